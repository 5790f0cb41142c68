//! Blocks on disk: where reclaiming puts what sequences still refer to.
//!
//! Each block is a file of its own in a directory that goes with the engine, sealed
//! ([`crate::sealed`]) under a key that is never written anywhere: nobody else reads what is
//! spilled, and after the process has ended nobody at all.

use std::fs::File;
use std::io::BufReader;
use std::path::{Path, PathBuf};

use tempfile::TempDir;

use super::block::{BlockShape, Codecs, Half};
use super::stored::Stored;
use crate::error::EngineError;
use crate::sealed::{MAX_CHUNK, SealedError, SealedReader, SealedWriter, SessionKey};

const PURPOSE: &str = "spilled KV block";

/// The directory of an engine's spilled blocks.
pub(crate) struct SpillDir {
    dir: TempDir,
    key: SessionKey,
    /// Files that were made.
    count: u64,
    buffer: Vec<u8>,
}

/// A block on disk; the file goes with it.
pub(crate) struct SpilledBlock {
    path: PathBuf,
    codecs: Codecs,
}

impl SpilledBlock {
    /// The codecs of the block.
    pub(super) fn codecs(&self) -> Codecs {
        self.codecs
    }
}

impl Drop for SpilledBlock {
    fn drop(&mut self) {
        // The directory is removed as a whole in the end; a file that stays until then does no harm.
        let _ = std::fs::remove_file(&self.path);
    }
}

impl SpillDir {
    /// Makes a directory for this process in `parent`, which must exist.
    ///
    /// # Errors
    /// [`EngineError::SpillDirectory`] where nothing can be written there; [`EngineError::Sealed`] without
    /// the feature `encryption`.
    pub(crate) fn new(parent: &Path) -> Result<SpillDir, EngineError> {
        let refused = |source| EngineError::SpillDirectory { path: parent.to_owned(), source };
        let key = SessionKey::generate()?;
        // A program that cannot seal says so here, not block by block.
        SealedWriter::new(std::io::sink(), &key, PURPOSE, &[])
            .map_err(|source| EngineError::Sealed { path: parent.to_owned(), source })?;
        let dir =
            tempfile::Builder::new().prefix("ruvllm-spill-").tempdir_in(parent).map_err(refused)?;
        std::fs::write(dir.path().join("probe"), [0; 4096]).map_err(refused)?;
        std::fs::remove_file(dir.path().join("probe")).map_err(refused)?;
        Ok(SpillDir { dir, key, count: 0, buffer: Vec::new() })
    }

    /// Writes a block.
    ///
    /// # Errors
    /// What the operating system refuses, a full disk above all; nothing of the block stays then.
    pub(super) fn write(
        &mut self,
        stored: &Stored,
        shape: &BlockShape,
    ) -> Result<SpilledBlock, SealedError> {
        self.count += 1;
        let path = self.dir.path().join(self.count.to_string());
        let file = File::create_new(&path).map_err(|source| SealedError::Write { source })?;
        // From here on the file goes if writing fails.
        let spilled = SpilledBlock { path, codecs: stored.codecs() };
        let mut sealed = SealedWriter::new(file, &self.key, PURPOSE, &[])?;
        write_block(&mut sealed, stored, shape, &mut self.buffer)?;
        sealed.finish()?;
        Ok(spilled)
    }

    /// Reads a block into one of the same codecs.
    ///
    /// # Errors
    /// A file that is damaged or cannot be read.
    pub(super) fn read(
        &self,
        spilled: &SpilledBlock,
        shape: &BlockShape,
        stored: &mut Stored,
    ) -> Result<(), SealedError> {
        let file = File::open(&spilled.path).map_err(|source| SealedError::Read { source })?;
        let (mut sealed, _) = SealedReader::open(BufReader::new(file), &self.key, PURPOSE)?;
        read_block(&mut sealed, shape, stored, &mut Vec::new())?;
        // Only the end says that nothing is missing.
        if sealed.chunk(&mut Vec::new())? { Err(SealedError::Damaged) } else { Ok(()) }
    }
}

/// Appends the numbers of a block, keys before values, layer after layer, in chunks of as many layers
/// as fit.
pub(super) fn write_block<W: std::io::Write>(
    sealed: &mut SealedWriter<W>,
    stored: &Stored,
    shape: &BlockShape,
    buffer: &mut Vec<u8>,
) -> Result<(), SealedError> {
    for half in Half::BOTH {
        let side = stored.side(half);
        buffer.clear();
        for layer in 0..shape.layers {
            let bytes = side.bytes(shape, layer);
            if buffer.len() + bytes.len() > MAX_CHUNK {
                sealed.chunk(buffer)?;
                buffer.clear();
            }
            buffer.extend_from_slice(bytes);
        }
        sealed.chunk(buffer)?;
    }
    Ok(())
}

/// Reads what [`write_block`] wrote.
pub(super) fn read_block<R: std::io::Read>(
    sealed: &mut SealedReader<R>,
    shape: &BlockShape,
    stored: &mut Stored,
    buffer: &mut Vec<u8>,
) -> Result<(), SealedError> {
    for half in Half::BOTH {
        let side = stored.side_mut(half);
        let mut rest: &[u8] = &[];
        for layer in 0..shape.layers {
            if rest.is_empty() {
                if !sealed.chunk(buffer)? {
                    return Err(SealedError::Truncated);
                }
                rest = buffer;
            }
            let to = side.bytes_mut(shape, layer);
            let Some((now, after)) = rest.split_at_checked(to.len()) else {
                return Err(SealedError::Damaged);
            };
            to.copy_from_slice(now);
            rest = after;
        }
        if !rest.is_empty() {
            return Err(SealedError::Damaged);
        }
    }
    Ok(())
}
