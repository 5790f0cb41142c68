//! Who made a kernel pack, and are these the bytes they signed?
//!
//! [`UnverifiedPack::read`] reads a directory or an archive once, under caps, into owned bytes;
//! [`UnverifiedPack::verify`] holds those very bytes against a [`TrustPolicy`] and gives a
//! [`VerifiedPack`], which nothing else can make. What runs later is compiled from its buffers, so
//! that no change of a file after the check can matter.
//!
//! Invariants: signatures are over the bytes of `kernels.json` as they are, never over JSON that
//! was written again; the manifest is not parsed before enough trusted keys have signed it; every
//! other file is tied to it by length and SHA-256; a file that it does not list is refused; a key
//! that was revoked never counts.
//!
//! What this does not protect against: a trusted publisher who signs a bad kernel (admission tests
//! kernels, it does not trust them), a stolen key before it is revoked, and an attacker who holds
//! the host's clock within the validity of a key (see [`Clock`]). `THREAT-MODEL.md` beside this
//! crate says which claims are made and which test holds each.
//!
//! Keys as PEM and of OpenSSH, and TOML, can be left out of a build (`pem`, `openssh`, `toml`). Their
//! functions are there all the same, and give an error that names the feature.
#![forbid(unsafe_code)]

mod archive;
mod clock;
#[cfg_attr(not(feature = "toml"), path = "absent/document.rs")]
mod document;
mod envelope;
mod error;
mod files;
mod floor;
mod key;
mod keyring;
mod lock;
#[cfg_attr(not(feature = "openssh"), path = "absent/openssh.rs")]
mod openssh;
mod pack;
#[cfg_attr(not(feature = "pem"), path = "absent/pem.rs")]
mod pem;
mod policy;
mod policy_file;
mod publisher;
mod rollback;
mod secret;
mod sources;
mod ustar;
mod verify;

pub use archive::{ARCHIVE_EXTENSION, CRATE_FILE, DIST, pack_directory};
pub use clock::Clock;
pub use envelope::{Envelope, MAX_ENVELOPE_BYTES, MAX_SIGNATURES, sign_manifest};
pub use error::PackError;
pub use files::open_regular;
pub use floor::{FloorRecord, VersionFloor};
pub use key::{KeyId, PUBLIC_KEY_EXTENSION, PublicKey, Signature};
pub use keyring::{
    Keyring, KeyringTrust, MAX_KEYRING_BYTES, MAX_ROOTS, Retire, RevokedKey, RootKeys, SeenKeyring,
    UnverifiedKeyring, VerifiedKeyring, keyring_signature_file,
};
pub use lock::{LockedPack, PackLock};
pub use pack::{PackLimits, UnverifiedPack};
pub use policy::{BUILTIN_PUBLISHER, KeyringUse, TrustPolicy};
pub use publisher::{PackPattern, Publisher};
pub use rollback::RollbackEntry;
pub use ruvllm_manifest::{MANIFEST_FILE, SIGNATURE_FILE, Timestamp, Violation, escape_untrusted};
pub use secret::{SecretKey, read_secret_file};
pub use sources::{SOURCES_FILE, Sources};
pub use verify::{Signer, VerifiedPack};
