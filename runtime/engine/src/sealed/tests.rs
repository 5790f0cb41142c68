//! What a sealed file gives back, and everything that it refuses.

use std::io;

use super::*;

const PURPOSE: &str = "test";

fn key() -> SessionKey {
    SessionKey::from_bytes(&[3; 32])
}

fn seal(header: &[u8], chunks: &[&[u8]]) -> Vec<u8> {
    let mut writer = SealedWriter::new(Vec::new(), &key(), PURPOSE, header).unwrap();
    for chunk in chunks {
        writer.chunk(chunk).unwrap();
    }
    writer.finish().unwrap()
}

/// Header and chunks of a file.
type Contents = (Vec<u8>, Vec<Vec<u8>>);

/// Opens a file on one thread and on several, which must come to the same.
fn open_with(file: &[u8], key: &SessionKey, purpose: &str) -> Result<Contents, SealedError> {
    let alone = open_on(1, file, key, purpose);
    let together = open_on(3, file, key, purpose);
    assert_eq!(alone.as_ref().ok(), together.ok().as_ref());
    alone
}

fn open_on(
    threads: usize,
    file: &[u8],
    key: &SessionKey,
    purpose: &str,
) -> Result<Contents, SealedError> {
    let (reader, header) = SealedReader::open(file, key, purpose)?;
    let mut reader = reader.with_threads(threads);
    let (mut chunks, mut chunk) = (Vec::new(), Vec::new());
    while reader.chunk(&mut chunk)? {
        chunks.push(chunk.clone());
    }
    Ok((header, chunks))
}

fn open(file: &[u8]) -> Result<Contents, SealedError> {
    open_with(file, &key(), PURPOSE)
}

/// Where each chunk of a file begins, that of the end included.
fn chunks_at(file: &[u8]) -> Vec<usize> {
    let (mut at, mut found) = (MAGIC.len() + 4 + SALT_BYTES, Vec::new());
    while at < file.len() {
        found.push(at);
        let word = u32::from_le_bytes(file[at..at + 4].try_into().unwrap());
        at += 4 + (word & !LAST) as usize + TAG_BYTES;
    }
    found
}

#[test]
fn chunks_come_back_as_they_went_in() {
    let big = vec![0xa5; MAX_CHUNK];
    let many: Vec<Vec<u8>> = (0..300u16).map(|i| i.to_le_bytes().repeat(i.into())).collect();
    let many: Vec<&[u8]> = many.iter().map(Vec::as_slice).collect();
    let cases: [&[&[u8]]; 5] = [&[], &[b""], &[b"one"], &[&big, b"x"], &many];
    for chunks in cases {
        for header in [&b""[..], b"what this is"] {
            let (found, contents) = open(&seal(header, chunks)).unwrap();
            assert_eq!(found, header);
            assert_eq!(contents, chunks);
        }
    }
}

#[test]
fn the_end_stays_the_end() {
    let file = seal(b"h", &[b"one"]);
    let (mut reader, _) = SealedReader::open(file.as_slice(), &key(), PURPOSE).unwrap();
    let mut chunk = Vec::new();
    assert!(reader.chunk(&mut chunk).unwrap());
    for _ in 0..3 {
        assert!(!reader.chunk(&mut chunk).unwrap());
        assert!(chunk.is_empty());
    }
}

#[test]
fn nothing_can_be_read_from_the_file_and_no_two_are_alike() {
    let files = [(); 2].map(|()| seal(b"the header", &[b"the secret"]));
    for file in &files {
        for plain in [&b"the header"[..], b"the secret"] {
            assert!(!file.windows(plain.len()).any(|window| window == plain));
        }
    }
    // Beyond magic and version every field differs, the lengths apart.
    let salt = MAGIC.len() + 4;
    assert_ne!(files[0][salt..salt + SALT_BYTES], files[1][salt..salt + SALT_BYTES]);
    let first = chunks_at(&files[0])[0] + 4;
    assert_ne!(files[0][first..first + 10], files[1][first..first + 10]);
}

#[test]
fn every_flipped_bit_is_refused() {
    let file = seal(b"header", &[b"first chunk", b"", b"third"]);
    let header_end = chunks_at(&file)[1];
    for at in 0..file.len() {
        for bit in 0..8 {
            let mut bad = file.clone();
            bad[at] ^= 1 << bit;
            let code = open(&bad).unwrap_err().code();
            let expected: &[&str] = match at {
                0..8 => &["not_sealed"],
                8..12 => &["sealed_version"],
                // A length that is too long runs into the end of the file.
                _ if at < header_end => &["sealed_key", "sealed_truncated"],
                _ => &["sealed_damaged", "sealed_truncated"],
            };
            assert!(expected.contains(&code), "bit {bit} of byte {at}: {code}");
        }
    }
}

#[test]
fn every_truncation_is_refused() {
    let file = seal(b"header", &[b"first chunk", b"", b"third"]);
    for length in 0..file.len() {
        let code = open(&file[..length]).unwrap_err().code();
        let expected = if length < MAGIC.len() { "not_sealed" } else { "sealed_truncated" };
        assert_eq!(code, expected, "{length} bytes");
    }
}

#[test]
fn appended_bytes_are_refused() {
    let file = seal(b"h", &[b"one"]);
    for more in [&b"\0"[..], &file, &file[chunks_at(&file)[1]..]] {
        assert_eq!(open(&[&file, more].concat()).unwrap_err().code(), "sealed_damaged");
    }
}

#[test]
fn chunks_cannot_be_moved_repeated_left_out_or_grafted() {
    let file = seal(b"head", &[b"aaaa", b"bbbb"]);
    let other = seal(b"head", &[b"aaaa", b"bbbb"]);
    let at = chunks_at(&file);
    let part =
        |file: &[u8], i: usize| file[at[i]..at.get(i + 1).map_or(file.len(), |&n| n)].to_vec();
    let prefix = file[..at[0]].to_vec();
    let [h, a, b, end] = [0, 1, 2, 3].map(|i| part(&file, i));
    let whole = [&prefix[..], &h, &a, &b, &end].concat();
    assert_eq!(whole, file);
    open(&whole).unwrap();
    let foreign = part(&other, 1);
    let bad: [&[&[u8]]; 7] = [
        &[&h, &b, &a, &end],
        &[&h, &a, &a, &end],
        &[&h, &a, &end],
        &[&h, &end],
        &[&h, &foreign, &b, &end],
        &[&a, &h, &b, &end],
        &[&end],
    ];
    for (i, parts) in bad.iter().enumerate() {
        let file = [&prefix[..], &parts.concat()].concat();
        let expected = if i < 5 { "sealed_damaged" } else { "sealed_key" };
        assert_eq!(open(&file).unwrap_err().code(), expected, "case {i}");
    }
    // The whole of another file under this one's salt.
    let grafted = [&prefix[..], &other[at[0]..]].concat();
    assert_eq!(open(&grafted).unwrap_err().code(), "sealed_key");
}

#[test]
fn another_key_or_purpose_does_not_open_it() {
    let file = seal(b"h", &[b"one"]);
    let mut nearly = [3; 32];
    nearly[31] ^= 1;
    for (key, purpose) in [
        (SessionKey::from_bytes(&nearly), PURPOSE),
        (SessionKey::generate().unwrap(), PURPOSE),
        (key(), "tes"),
        (key(), "test2"),
        (key(), ""),
    ] {
        let error = open_with(&file, &key, purpose).unwrap_err();
        assert_eq!(error.code(), "sealed_key", "{purpose}");
        assert!(error.to_string().contains("compute the prompt again"), "{error}");
    }
}

#[test]
fn a_failed_reader_never_says_that_the_stream_ended() {
    let mut file = seal(b"h", &[b"one", b"two"]);
    let second = chunks_at(&file)[1] + 4;
    file[second] ^= 1;
    let (mut reader, _) = SealedReader::open(file.as_slice(), &key(), PURPOSE).unwrap();
    let mut chunk = vec![1];
    for _ in 0..4 {
        assert_eq!(reader.chunk(&mut chunk).unwrap_err().code(), "sealed_damaged");
        assert!(chunk.is_empty());
    }
}

#[test]
fn files_of_other_kinds_and_versions_are_told_apart() {
    let code = |bytes: &[u8]| open(bytes).unwrap_err().code();
    assert_eq!(code(b""), "not_sealed");
    assert_eq!(code(b"GGUF and more than eight bytes"), "not_sealed");
    let mut newer = seal(b"h", &[]);
    newer[8..12].copy_from_slice(&2u32.to_le_bytes());
    let error = open(&newer).unwrap_err();
    assert_eq!(error.code(), "sealed_version");
    assert!(error.to_string().contains("version 2"), "{error}");
}

#[test]
fn a_chunk_above_the_cap_is_refused_by_writer_and_reader() {
    let large = vec![0; MAX_CHUNK + 1];
    let error = SealedWriter::new(Vec::new(), &key(), PURPOSE, &large).err().unwrap();
    assert_eq!(error.code(), "sealed_chunk_too_large");
    let mut writer = SealedWriter::new(Vec::new(), &key(), PURPOSE, b"h").unwrap();
    assert_eq!(writer.chunk(&large).unwrap_err().code(), "sealed_chunk_too_large");
    // The refused chunk left no trace.
    writer.chunk(b"small").unwrap();
    let file = writer.finish().unwrap();
    assert_eq!(open(&file).unwrap().1, [b"small"]);
    // A length is believed only up to the cap, so a hostile file takes no more memory than that.
    let mut hostile = file.clone();
    let at = chunks_at(&file)[1];
    hostile[at..at + 4].copy_from_slice(&(MAX_CHUNK as u32 + 1).to_le_bytes());
    hostile.resize(at + 4 + MAX_CHUNK + 1 + TAG_BYTES, 0);
    assert_eq!(open(&hostile).unwrap_err().code(), "sealed_damaged");
}

/// A reader or writer that fails.
struct Failing(io::ErrorKind);

impl Read for Failing {
    fn read(&mut self, _: &mut [u8]) -> io::Result<usize> {
        Err(self.0.into())
    }
}

impl Write for Failing {
    fn write(&mut self, _: &[u8]) -> io::Result<usize> {
        Err(self.0.into())
    }

    fn flush(&mut self) -> io::Result<()> {
        Err(self.0.into())
    }
}

#[test]
fn what_the_system_says_is_told_from_damage() {
    let written = |kind| SealedWriter::new(Failing(kind), &key(), PURPOSE, b"h").err().unwrap();
    assert_eq!(written(io::ErrorKind::StorageFull).code(), "storage_full");
    assert_eq!(written(io::ErrorKind::QuotaExceeded).code(), "storage_full");
    assert_eq!(written(io::ErrorKind::ReadOnlyFilesystem).code(), "storage_unwritable");
    let whole = seal(b"h", &[b"one"]);
    for good in 0..whole.len() {
        let input = whole[..good].chain(Failing(io::ErrorKind::TimedOut));
        let result = SealedReader::open(input, &key(), PURPOSE).and_then(|(mut reader, _)| {
            let mut chunk = Vec::new();
            while reader.chunk(&mut chunk)? {}
            Ok(())
        });
        assert_eq!(result.unwrap_err().code(), "io", "after {good} bytes");
    }
}

#[cfg(target_os = "linux")]
#[test]
fn a_full_disk_is_named() {
    let full = std::fs::OpenOptions::new().write(true).open("/dev/full").unwrap();
    let error = SealedWriter::new(&full, &key(), PURPOSE, b"h").err().unwrap();
    assert_eq!(error.code(), "storage_full");
    // Through a buffer the system is asked late, at the end at the latest.
    let mut writer = SealedWriter::new(io::BufWriter::new(&full), &key(), PURPOSE, b"h").unwrap();
    writer.chunk(b"one").unwrap();
    let error = writer.finish().err().unwrap();
    assert_eq!(error.code(), "storage_full");
    assert!(error.to_string().contains("free some space"), "{error}");
}

#[test]
fn the_format_does_not_change_unnoticed() {
    // Version 1 by another implementation of the layout (Python's hmac for HKDF, ChaCha20-Poly1305
    // of its `cryptography`): salt 00 to 1f, header "header", one chunk "contents".
    const FILE: &str = "52565345414c454401000000000102030405060708090a0b0c0d0e0f101112131415161718191a1b\
        1c1d1e1f060000006839b3452201632f5a96d2117b7827e20333594bdc39080000003eefd7ef5c44\
        b7802153bf987fc117501d9ea6f44ff1061f000000803fb76f19b415c62f98e832930e56c4ea";
    let file: Vec<u8> = FILE
        .as_bytes()
        .chunks(2)
        .map(|pair| u8::from_str_radix(std::str::from_utf8(pair).unwrap(), 16).unwrap())
        .collect();
    let (header, chunks) = open(&file).unwrap();
    assert_eq!(header, b"header");
    assert_eq!(chunks, [b"contents"]);
}
