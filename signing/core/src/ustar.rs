//! The one header that a file of an archive may have: POSIX ustar (IEEE Std 1003.1, pax, "ustar
//! Interchange Format"), a regular file, mode 0644, owner 0, time 0.
//!
//! A header is read by taking path and size from it, writing the header that they call for, and
//! comparing all 512 bytes: what this module does not write, it does not read. So there are no
//! links, devices, sparse files, extension records, second spellings of a number, or bytes that one
//! program looks at and another does not.

/// Length of a header, and what file contents are padded to.
pub(crate) const BLOCK: usize = 512;

const NAME: usize = 100;
const PREFIX: usize = 155;
const SIZE_AT: std::ops::Range<usize> = 124..136;
const CHECKSUM_AT: std::ops::Range<usize> = 148..156;
const KIND_AT: usize = 156;
const MAGIC_AT: std::ops::Range<usize> = 257..265;
const PREFIX_AT: std::ops::Range<usize> = 345..500;
const MAGIC: &[u8; 8] = b"ustar\x0000";
/// A regular file.
const FILE: u8 = b'0';

/// What a header says, once it is known to be the one that this module writes.
pub(crate) struct Entry {
    pub(crate) path: String,
    pub(crate) size: u64,
}

/// Why a header is refused.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum BadHeader {
    /// No ustar header, or one with other fields than this module writes.
    Form(&'static str),
    /// An entry that is no regular file.
    Kind(String),
    /// The path is not UTF-8.
    Path,
}

/// The header of a file; `None` where path or size have no place in one.
pub(crate) fn header(path: &str, size: u64) -> Option<[u8; BLOCK]> {
    let (prefix, name) = split(path)?;
    let mut block = [0; BLOCK];
    let mut put = |at: usize, bytes: &[u8]| block[at..at + bytes.len()].copy_from_slice(bytes);
    put(0, name.as_bytes());
    put(100, b"0000644\0");
    put(108, b"0000000\0");
    put(116, b"0000000\0");
    let size = format!("{size:011o}\0");
    if size.len() != SIZE_AT.len() {
        return None;
    }
    put(SIZE_AT.start, size.as_bytes());
    put(136, b"00000000000\0");
    put(KIND_AT, &[FILE]);
    put(MAGIC_AT.start, MAGIC);
    put(329, b"0000000\0");
    put(337, b"0000000\0");
    put(PREFIX_AT.start, prefix.as_bytes());
    let sum = format!("{:06o}\0 ", checksum(&block));
    block[CHECKSUM_AT].copy_from_slice(sum.as_bytes());
    Some(block)
}

/// Whether the first bytes of a file, at most a block of them, show that it is no archive of this kind at
/// all: a text, or a module. What is cut short or was changed may still be one.
pub(crate) fn is_foreign(start: &[u8]) -> bool {
    const MAGIC_OF_ALL: &[u8] = b"ustar";
    let padded = start.contains(&0);
    match start.get(MAGIC_AT) {
        // The end of an archive without files is zeros.
        Some(magic) => !magic.starts_with(MAGIC_OF_ALL) && start.iter().any(|&byte| byte != 0),
        // Names are padded with zeros, which no text has.
        None => !start.is_empty() && !padded,
    }
}

/// Reads a header; the inverse of [`header`].
pub(crate) fn parse(block: &[u8; BLOCK]) -> Result<Entry, BadHeader> {
    if block[MAGIC_AT] != *MAGIC {
        return Err(BadHeader::Form("it is no ustar header"));
    }
    match block[KIND_AT] {
        FILE => {}
        kind => return Err(BadHeader::Kind(kind_name(kind))),
    }
    let text = |field: &[u8]| {
        let end = field.iter().position(|&b| b == 0).unwrap_or(field.len());
        std::str::from_utf8(&field[..end]).map(str::to_owned).map_err(|_| BadHeader::Path)
    };
    let (prefix, name) = (text(&block[PREFIX_AT])?, text(&block[..NAME])?);
    let path = if prefix.is_empty() { name } else { format!("{prefix}/{name}") };
    let size = octal(&block[SIZE_AT]).ok_or(BadHeader::Form("its size is no octal number"))?;
    match header(&path, size) {
        Some(canonical) if canonical == *block => Ok(Entry { path, size }),
        // A path that cannot be in a pack is the finding to report, not how its header looks.
        _ if path.parse::<ruvllm_manifest::PackPath>().is_err() => Ok(Entry { path, size }),
        _ => Err(BadHeader::Form("its fields are not those that `ruvllm-pack archive` writes")),
    }
}

/// The path as prefix and name, split at the last `/` that leaves both short enough.
fn split(path: &str) -> Option<(&str, &str)> {
    if path.len() <= NAME {
        return Some(("", path));
    }
    let end = path.len().min(PREFIX + 1);
    let at = path.as_bytes()[..end].iter().rposition(|&b| b == b'/')?;
    let (prefix, name) = (path.get(..at)?, path.get(at + 1..)?);
    (name.len() <= NAME && !name.is_empty()).then_some((prefix, name))
}

/// Eleven octal digits and a NUL.
fn octal(field: &[u8]) -> Option<u64> {
    let (0, digits) = field.split_last()? else { return None };
    digits
        .iter()
        .try_fold(0u64, |n, b| matches!(b, b'0'..=b'7').then(|| n << 3 | u64::from(b - b'0')))
}

/// The sum of all bytes, those of the checksum itself as spaces.
fn checksum(block: &[u8; BLOCK]) -> u32 {
    let sum: u32 = block.iter().map(|&b| u32::from(b)).sum();
    let own: u32 = block[CHECKSUM_AT].iter().map(|&b| u32::from(b)).sum();
    sum - own + CHECKSUM_AT.len() as u32 * u32::from(b' ')
}

fn kind_name(kind: u8) -> String {
    match kind {
        b'1' => "a hard link".to_owned(),
        b'2' => "a symlink".to_owned(),
        b'3' | b'4' => "a device".to_owned(),
        b'5' => "a directory".to_owned(),
        b'6' => "a FIFO".to_owned(),
        b'x' | b'g' => "a pax extension".to_owned(),
        b'A'..=b'Z' => "a GNU or vendor extension".to_owned(),
        other => format!("an entry of kind {other:#04x}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn headers_read_back_also_with_long_paths() {
        let long = format!("{}/{}", "d".repeat(120), "f".repeat(100));
        let deep = format!("{}name", "abcdefghi/".repeat(8).repeat(2));
        for path in ["a", "kernels.json", "rope/rope_f32.wasm", &"x".repeat(100), &long, &deep] {
            for size in [0, 1, 511, 512, 16 << 20, (1 << 33) - 1] {
                let block = header(path, size).unwrap();
                let entry = parse(&block).unwrap();
                assert_eq!((entry.path.as_str(), entry.size), (path, size));
            }
        }
        assert!(header(&"x".repeat(101), 0).is_none());
        assert!(header(&format!("{}/{}", "d".repeat(156), "f"), 0).is_none());
        assert!(header("a", 1 << 33).is_none());
    }

    #[test]
    fn a_header_with_any_byte_changed_is_refused_or_another_file() {
        let block = header("dir/file", 42).unwrap();
        for at in 0..BLOCK {
            let mut changed = block;
            changed[at] ^= 1;
            // Every change breaks the checksum at least.
            assert!(
                !matches!(parse(&changed), Ok(entry) if entry.path.parse::<ruvllm_manifest::PackPath>().is_ok()),
                "byte {at}"
            );
        }
    }
}
