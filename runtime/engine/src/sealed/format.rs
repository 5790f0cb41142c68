//! Constants of the format.

pub(super) const MAGIC: [u8; 8] = *b"RVSEALED";
pub(super) const VERSION: u32 = 1;
pub(super) const SALT_BYTES: usize = 32;

/// The most bytes of a header or of a chunk.
pub const MAX_CHUNK: usize = 8 << 20;
