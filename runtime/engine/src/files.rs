//! Reading the files of a model, which may be anything that somebody put under their names.
//!
//! A file is opened without waiting for anybody and must then turn out to be a regular one, so neither a
//! FIFO nor a device is ever read. Links are followed: model stores are made of them. What is read whole
//! has a limit; weights are mapped and need none.

use std::io::{self, Read as _};
use std::path::Path;

use ruvllm_host::open_regular;

/// Bytes that a `tokenizer.json` may have; those of the largest vocabularies have half of that.
pub(crate) const MAX_TOKENIZER_BYTES: u64 = 64 << 20;
/// Bytes that any other file of a model may have that is read whole: configurations, templates, indices.
pub(crate) const MAX_CONFIG_BYTES: u64 = 16 << 20;

/// Reads a regular file of at most `max` bytes.
///
/// # Errors
/// Those of the operating system, [`io::ErrorKind::InvalidInput`] for what is no regular file and
/// [`io::ErrorKind::FileTooLarge`].
pub(crate) fn read(path: &Path, max: u64) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    open_regular(path)?.take(max + 1).read_to_end(&mut bytes)?;
    if bytes.len() as u64 > max {
        let what = format!("it has more than {max} bytes, which no such file of a model needs");
        return Err(io::Error::new(io::ErrorKind::FileTooLarge, what));
    }
    Ok(bytes)
}
