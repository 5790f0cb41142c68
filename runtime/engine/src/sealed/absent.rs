//! In place of the cipher, in a build without the feature `encryption`: nobody gets a sealer or an opener.

use super::format::SALT_BYTES;
use crate::error::SealedError;

pub(super) enum Sealer {}

impl Sealer {
    pub(super) fn new(_: &[u8; 32], _: &[u8; SALT_BYTES], _: &str) -> Result<Self, SealedError> {
        Err(SealedError::Disabled)
    }

    pub(super) fn seal(&mut self, _: &mut Vec<u8>) -> Result<(), SealedError> {
        match *self {}
    }

    pub(super) fn seal_last(self, _: &mut Vec<u8>) -> Result<(), SealedError> {
        match self {}
    }
}

pub(super) enum Opener {}

impl Opener {
    pub(super) fn new(_: &[u8; 32], _: &[u8; SALT_BYTES], _: &str) -> Result<Self, SealedError> {
        Err(SealedError::Disabled)
    }

    pub(super) fn open(&self, _: u32, _: bool, _: &mut Vec<u8>) -> Result<(), SealedError> {
        match *self {}
    }
}
