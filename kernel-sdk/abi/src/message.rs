//! What a kernel may say of its failure.
//!
//! A kernel that fails, by a status or by a trap, can leave a text for whoever looks into it: in the last
//! [`BYTES`] bytes of the call's scratch region, the bytes of [`MAGIC`], then the length of the text as a
//! `u32`, then the text as UTF-8. The host reads it after a failed call alone, so it costs nothing where a
//! kernel succeeds, and makes no more of it than a line for people.

/// What a message begins with.
pub const MAGIC: [u8; 8] = *b"RVMSG\0\0\x01";

/// Bytes at the end of scratch that a message takes.
pub const BYTES: usize = 256;

/// The most bytes of its text.
pub const MAX_TEXT: usize = BYTES - MAGIC.len() - 4;

/// The text that a scratch region ends with, if it ends with one.
pub fn read(scratch: &[u8]) -> Option<&[u8]> {
    let (_, message) = scratch.split_last_chunk::<BYTES>()?;
    let text = message.strip_prefix(&MAGIC)?;
    let (length, text) = text.split_first_chunk()?;
    text.get(..u32::from_le_bytes(*length) as usize)
}

/// Leaves a text at the end of a scratch region, cut to what there is room for. A region that is shorter
/// than a message gets none.
pub fn write(scratch: &mut [u8], text: &str) {
    let Some((_, message)) = scratch.split_last_chunk_mut::<BYTES>() else { return };
    let mut length = text.len().min(MAX_TEXT);
    while !text.is_char_boundary(length) {
        length -= 1;
    }
    let bytes = MAGIC.into_iter().chain((length as u32).to_le_bytes());
    let bytes = bytes.chain(text.bytes().take(length));
    message.iter_mut().zip(bytes).for_each(|(to, byte)| *to = byte);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_text_reads_back_and_is_cut_between_characters() {
        let mut scratch = [7; 1000];
        assert_eq!(read(&scratch), None);
        write(&mut scratch, "rows must be even");
        assert_eq!(read(&scratch), Some(&b"rows must be even"[..]));
        assert!(scratch[..1000 - BYTES].iter().all(|byte| *byte == 7));
        let long = [b'x'; MAX_TEXT - 1];
        let mut text = [0; MAX_TEXT + 1];
        text[..MAX_TEXT - 1].copy_from_slice(&long);
        text[MAX_TEXT - 1..].copy_from_slice("é".as_bytes());
        write(&mut scratch, core::str::from_utf8(&text).unwrap());
        assert_eq!(read(&scratch), Some(&long[..]));
        write(&mut scratch[..BYTES - 1], "no room");
        assert_eq!(read(&scratch[..BYTES - 1]), None);
    }

    #[test]
    fn a_length_beyond_the_message_is_no_message() {
        let mut scratch = [0; BYTES];
        scratch[..8].copy_from_slice(&MAGIC);
        scratch[8..12].copy_from_slice(&(MAX_TEXT as u32 + 1).to_le_bytes());
        assert_eq!(read(&scratch), None);
    }
}
