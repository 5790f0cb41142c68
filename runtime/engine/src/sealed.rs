//! Sealed files: saved state under the operator's key, encrypted and authenticated.
//!
//! What a model has read is as private as the text itself, and a wrong number in it would pass for
//! a right one. So state that leaves memory is sealed: who does not have the key learns only how
//! long its chunks are, and no byte of them can change unnoticed.
//!
//! A sealed file is a prefix and a stream of chunks. Integers are little-endian.
//!
//! ```text
//!  offset
//!       0 | magic, "RVSEALED"                                  8 bytes
//!       8 | version of the format, 1                           4 bytes
//!      12 | salt, random                                      32 bytes
//!      44 | chunk 0: the header
//!         | chunk 1 ..: the contents
//!         | last chunk: empty, marked as the last
//!     end | nothing follows
//!
//!   chunk | length n in bits 0 to 30, "is the last" in bit 31   4 bytes
//!         | contents, encrypted                                 n bytes, at most 8 MiB
//!         | authentication tag                                 16 bytes
//! ```
//!
//! A file has a key of its own: 32 bytes of HKDF-SHA256 (RFC 5869) of the [`SessionKey`] with the
//! salt, its info being the prefix's magic and version and the purpose of the file, a word that
//! writer and reader agree on. Under it the chunks are a STREAM (Hoang, Reyhanitabar, Rogaway and
//! Vizár, eprint 2015/189) over ChaCha20-Poly1305 (RFC 8439): the nonce of a chunk is seven zeros,
//! its number, big-endian in 4 bytes, and whether it is the last. So no two chunks ever share key
//! and nonce, however often state is saved, and a chunk opens only in its place, in its file, for
//! its purpose: bits flipped, chunks swapped, left out, taken from another file or added, and an
//! end that is missing are all refused before their bytes are used.
//!
//! Not protected against: an old file put in place of a newer one, or one file in place of another
//! that was sealed for the same purpose (what a file stands for belongs into its header); who can
//! read this process's memory, its swap or its core dumps; who sees how long files are.
//!
//! The cipher is the feature `encryption`. In a build without it nothing is sealed or opened, since nothing
//! leaves memory in the clear.

#[cfg_attr(not(feature = "encryption"), path = "sealed/absent.rs")]
mod cipher;
mod file;
mod format;
mod key;

use std::collections::VecDeque;
use std::io::{Read, Write};

use cipher::{Opener, Sealer};
use format::{MAGIC, SALT_BYTES, VERSION};

pub use crate::error::SealedError;
pub use file::write_atomically;
pub use format::MAX_CHUNK;
pub use key::SessionKey;

const TAG_BYTES: usize = 16;
const LAST: u32 = 1 << 31;

/// The position of a reader whose stream has ended.
const ENDED: u32 = u32::MAX;

/// Bytes that several threads open together, if chunks are not longer: few enough to stay in the
/// processor's cache, in buffers that are used again.
const AHEAD: usize = 2 << 20;

/// Seals chunks into a writer.
///
/// Dropped without [`SealedWriter::finish`] it leaves a stream that no reader takes for whole.
pub struct SealedWriter<W: Write> {
    out: W,
    sealer: Sealer,
    buffer: Vec<u8>,
}

impl<W: Write> SealedWriter<W> {
    /// Begins a stream with a header, which is encrypted as all the rest.
    ///
    /// # Errors
    /// [`SealedError::ChunkTooLarge`] for a header of more than [`MAX_CHUNK`] bytes,
    /// [`SealedError::Entropy`], [`SealedError::StorageFull`] and [`SealedError::Write`].
    pub fn new(
        mut out: W,
        key: &SessionKey,
        purpose: &str,
        header: &[u8],
    ) -> Result<SealedWriter<W>, SealedError> {
        let mut salt = [0; SALT_BYTES];
        getrandom::fill(&mut salt).map_err(|source| SealedError::Entropy { source })?;
        let sealer = Sealer::new(key.bytes(), &salt, purpose)?;
        for field in [&MAGIC[..], &VERSION.to_le_bytes(), &salt] {
            out.write_all(field).map_err(SealedError::write)?;
        }
        let mut writer = SealedWriter { out, sealer, buffer: Vec::new() };
        writer.chunk(header)?;
        Ok(writer)
    }

    /// Appends a chunk. Readers get chunks as they were given here.
    ///
    /// # Errors
    /// [`SealedError::ChunkTooLarge`] above [`MAX_CHUNK`] bytes, before anything is written;
    /// [`SealedError::TooManyChunks`], [`SealedError::StorageFull`] and [`SealedError::Write`].
    pub fn chunk(&mut self, contents: &[u8]) -> Result<(), SealedError> {
        let bytes = contents.len();
        let length = u32::try_from(bytes).ok().filter(|_| bytes <= MAX_CHUNK);
        let length = length.ok_or(SealedError::ChunkTooLarge { bytes, most: MAX_CHUNK })?;
        self.buffer.clear();
        self.buffer.reserve(bytes + TAG_BYTES);
        self.buffer.extend_from_slice(contents);
        self.sealer.seal(&mut self.buffer)?;
        self.out.write_all(&length.to_le_bytes()).map_err(SealedError::write)?;
        self.out.write_all(&self.buffer).map_err(SealedError::write)
    }

    /// Ends the stream and gives the writer back, flushed.
    ///
    /// # Errors
    /// [`SealedError::StorageFull`] and [`SealedError::Write`].
    pub fn finish(self) -> Result<W, SealedError> {
        let SealedWriter { mut out, sealer, mut buffer } = self;
        buffer.clear();
        sealer.seal_last(&mut buffer)?;
        out.write_all(&LAST.to_le_bytes()).map_err(SealedError::write)?;
        out.write_all(&buffer).map_err(SealedError::write)?;
        out.flush().map_err(SealedError::write)?;
        Ok(out)
    }
}

/// Opens the chunks of a sealed stream.
pub struct SealedReader<R: Read> {
    input: R,
    /// `None` after the last chunk and after a failure.
    opener: Option<Opener>,
    /// Number of the next chunk in the file.
    position: u32,
    /// Chunks that are open already.
    ready: VecDeque<Vec<u8>>,
    /// Buffers of chunks that were handed over.
    spares: Vec<Vec<u8>>,
    threads: usize,
}

impl<R: Read> SealedReader<R> {
    /// Opens a stream that was sealed with this key for this purpose; returns its header, too.
    ///
    /// # Errors
    /// [`SealedError::NotSealed`], [`SealedError::Version`], [`SealedError::Key`],
    /// [`SealedError::Truncated`] and [`SealedError::Read`].
    pub fn open(
        mut input: R,
        key: &SessionKey,
        purpose: &str,
    ) -> Result<(SealedReader<R>, Vec<u8>), SealedError> {
        let mut magic = [0; MAGIC.len()];
        let (mut version, mut salt) = ([0; 4], [0; SALT_BYTES]);
        input.read_exact(&mut magic).map_err(|e| match SealedError::read(e) {
            // Too short to tell.
            SealedError::Truncated => SealedError::NotSealed,
            other => other,
        })?;
        if magic != MAGIC {
            return Err(SealedError::NotSealed);
        }
        input.read_exact(&mut version).map_err(SealedError::read)?;
        let found = u32::from_le_bytes(version);
        if found != VERSION {
            return Err(SealedError::Version { found, known: VERSION });
        }
        input.read_exact(&mut salt).map_err(SealedError::read)?;
        let mut reader = SealedReader {
            input,
            opener: Some(Opener::new(key.bytes(), &salt, purpose)?),
            position: 0,
            ready: VecDeque::new(),
            spares: Vec::new(),
            threads: 1,
        };
        let mut header = Vec::new();
        match reader.chunk(&mut header) {
            Ok(true) => Ok((reader, header)),
            // A stream has a header before its end.
            Ok(false) | Err(SealedError::Damaged) => Err(SealedError::Key),
            Err(other) => Err(other),
        }
    }

    /// Opens chunks ahead of being asked for them, on so many threads; some MiB at a time. An error of
    /// one is then that of all that are opened with it.
    pub fn with_threads(self, threads: usize) -> Self {
        SealedReader { threads: threads.max(1), ..self }
    }

    /// Replaces `contents` by the next chunk. `false` means that the stream has ended as its writer
    /// ended it, and that every chunk before was whole and in its place; until then more may be
    /// missing. An error is final.
    ///
    /// # Errors
    /// [`SealedError::Damaged`], [`SealedError::Truncated`] and [`SealedError::Read`]; `contents` is
    /// empty then.
    pub fn chunk(&mut self, contents: &mut Vec<u8>) -> Result<bool, SealedError> {
        if self.ready.is_empty() {
            contents.clear();
            if let Some(opener) = self.opener.take() {
                self.opener = self.open_some(opener)?;
            } else if self.position != ENDED {
                return Err(SealedError::Damaged);
            }
        }
        let Some(chunk) = self.ready.pop_front() else { return Ok(false) };
        self.spares.push(std::mem::replace(contents, chunk));
        Ok(true)
    }

    /// Opens the next chunk, or with several threads some; gives the opener back if the stream goes on.
    fn open_some(&mut self, opener: Opener) -> Result<Option<Opener>, SealedError> {
        let (mut sealed, mut bytes) = (Vec::new(), 0);
        let end = loop {
            let (last, chunk) = self.read_sealed()?;
            if last {
                break Some(chunk);
            }
            bytes += chunk.len();
            sealed.push(chunk);
            if self.threads == 1 || bytes >= AHEAD {
                break None;
            }
        };
        let first = self.position;
        let count = u32::try_from(sealed.len()).map_err(|_| SealedError::Damaged)?;
        // The last number is kept for the mark of an end.
        let after = first.checked_add(count).filter(|&n| n < ENDED).ok_or(SealedError::Damaged)?;
        let share = sealed.len().div_ceil(self.threads).max(1);
        std::thread::scope(|scope| {
            let open_all = |(chunks, at): (&mut [Vec<u8>], u32)| {
                let mut numbered = chunks.iter_mut().zip(at..);
                numbered.try_for_each(|(chunk, at)| opener.open(at, false, chunk))
            };
            let mut shares = sealed.chunks_mut(share).zip((first..).step_by(share));
            let own = shares.next();
            let threads: Vec<_> =
                shares.map(|share| scope.spawn(move || open_all(share))).collect();
            let own = own.map_or(Ok(()), open_all);
            let joined = threads.into_iter().map(|thread| {
                thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
            });
            joined.fold(own, Result::and)
        })?;
        self.position = after;
        self.ready.extend(sealed);
        let Some(mut end) = end else { return Ok(Some(opener)) };
        opener.open(after, true, &mut end)?;
        match self.input.read_exact(&mut [0]).map_err(SealedError::read) {
            Err(SealedError::Truncated) => {
                self.position = ENDED;
                Ok(None)
            }
            Err(other) => Err(other),
            Ok(()) => Err(SealedError::Damaged),
        }
    }

    /// Reads a chunk as it is in the file: whether it is the last, and its encrypted contents with their
    /// tag.
    fn read_sealed(&mut self) -> Result<(bool, Vec<u8>), SealedError> {
        let mut word = [0; 4];
        self.input.read_exact(&mut word).map_err(SealedError::read)?;
        let word = u32::from_le_bytes(word);
        let (last, bytes) = (word & LAST != 0, (word & !LAST) as usize);
        // Refused before any memory is taken.
        if bytes > MAX_CHUNK || (last && bytes > 0) {
            return Err(SealedError::Damaged);
        }
        let mut chunk = self.spares.pop().unwrap_or_default();
        chunk.resize(bytes + TAG_BYTES, 0);
        self.input.read_exact(&mut chunk).map_err(SealedError::read)?;
        Ok((last, chunk))
    }
}

#[cfg(test)]
mod tests;
