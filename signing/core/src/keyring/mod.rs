//! The keyring: a signed document that carries publishers, revocations and its own next root keys.
//!
//! A policy file is written on every host; a keyring is written once by whoever runs a fleet or a
//! registry, and every host that trusts its roots follows it. It is modelled on the root role of
//! The Update Framework (<https://theupdateframework.io>). `keyring.json` is strict JSON,
//! `keyring.json.sig` an [`Envelope`](crate::Envelope) over its exact bytes.
//!
//! Invariants of a [`VerifiedKeyring`]: a threshold of the roots that the host trusted before has
//! signed it, and a threshold of the roots that it names itself, so that nobody can name roots that
//! do not exist or do not agree; it has not expired; and, where the host keeps a record, no newer one
//! was used here before. The document is parsed before its signatures are checked, because the
//! record is found by its name; it is small, and the parser builds plain data.
//!
//! What this does not protect against: a host that never gets the newest keyring, beyond the time
//! that `expires_at` sets. Set it.

mod document;
mod rotate;
mod seen;
mod verify;

pub use document::{Keyring, MAX_KEYRING_BYTES, MAX_ROOTS, RevokedKey, RootKeys};
pub use rotate::Retire;
pub use seen::SeenKeyring;
pub use verify::{KeyringTrust, UnverifiedKeyring, VerifiedKeyring, keyring_signature_file};
