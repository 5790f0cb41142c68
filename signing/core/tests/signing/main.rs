//! Keys, envelopes and verification from outside.
#![forbid(unsafe_code)]

mod keys;
mod openssl;
mod verify;
