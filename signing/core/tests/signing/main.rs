//! Keys, envelopes, archives, keyrings and verification from outside.
#![forbid(unsafe_code)]

mod archive;
mod keyring;
mod keys;
mod openssl;
mod policy_file;
mod verify;
