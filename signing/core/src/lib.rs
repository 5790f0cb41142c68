//! Who made a kernel pack, and are these the bytes they signed?
//!
//! [`UnverifiedPack::read_dir`] reads a directory once, under caps, into owned bytes;
//! [`UnverifiedPack::verify`] holds those very bytes against a [`TrustPolicy`] and gives a
//! [`VerifiedPack`], which nothing else can make. What runs later is compiled from its buffers, so
//! that no change of a file after the check can matter.
//!
//! Invariants: signatures are over the bytes of `kernels.json` as they are, never over JSON that
//! was written again; the manifest is not parsed before enough trusted keys have signed it; every
//! other file is tied to it by length and SHA-256; a file that it does not list is refused.
//!
//! What this does not protect against: a trusted publisher who signs a bad kernel (admission tests
//! kernels, it does not trust them), a stolen key before its publisher is taken out of the policy,
//! and a clock that an attacker controls (validity times are compared with the host's clock).
#![forbid(unsafe_code)]

mod envelope;
mod error;
mod files;
mod floor;
mod key;
mod pack;
mod policy;
mod verify;

pub use envelope::{Envelope, MAX_ENVELOPE_BYTES, MAX_SIGNATURES, sign_manifest};
pub use error::PackError;
pub use floor::VersionFloor;
pub use key::{KeyId, PublicKey, SecretKey, Signature};
pub use pack::{PackLimits, UnverifiedPack};
pub use policy::{BUILTIN_PUBLISHER, PackPattern, Publisher, TrustPolicy};
pub use ruvllm_manifest::{MANIFEST_FILE, SIGNATURE_FILE, Timestamp, Violation, escape_untrusted};
pub use verify::{Signer, VerifiedPack};
