//! Archives as an attacker writes them, for the attacks on `.rkp` files.

use ruvllm_signing::{PackLimits, UnverifiedPack};
use ruvllm_tests::{TestPack, codes};

/// The archive of a pack.
pub(crate) fn archive(pack: &TestPack) -> Vec<u8> {
    let mut bytes = Vec::new();
    pack.read().unwrap().write_archive(&mut bytes).unwrap();
    bytes
}

/// A header with the fields that archives of packs have, and a checksum that is right.
pub(crate) fn header(name: &[u8], size: &str, kind: u8) -> [u8; 512] {
    let mut block = [0; 512];
    let fields: [(usize, &[u8]); 10] = [
        (0, name),
        (100, b"0000644\0"),
        (108, b"0000000\0"),
        (116, b"0000000\0"),
        (124, size.as_bytes()),
        (136, b"00000000000\0"),
        (156, &[kind]),
        (257, b"ustar\x0000"),
        (329, b"0000000\0"),
        (337, b"0000000\0"),
    ];
    for (at, bytes) in fields {
        block[at..at + bytes.len()].copy_from_slice(bytes);
    }
    sum(&mut block);
    block
}

/// Makes the checksum right.
pub(crate) fn sum(block: &mut [u8; 512]) {
    block[148..156].fill(b' ');
    let sum: u32 = block.iter().map(|&b| u32::from(b)).sum();
    block[148..156].copy_from_slice(format!("{sum:06o}\0 ").as_bytes());
}

/// An entry with its contents and its padding.
pub(crate) fn entry(name: &str, kind: u8, contents: &[u8]) -> Vec<u8> {
    let mut bytes = header(name.as_bytes(), &format!("{:011o}\0", contents.len()), kind).to_vec();
    bytes.extend(contents);
    bytes.resize(bytes.len().next_multiple_of(512), 0);
    bytes
}

/// The archive of a pack with more entries before its end.
pub(crate) fn with(pack: &TestPack, more: &[u8]) -> Vec<u8> {
    let mut bytes = archive(pack);
    bytes.truncate(bytes.len() - 1024);
    bytes.extend(more);
    bytes.extend([0; 1024]);
    bytes
}

/// The codes with which an archive is refused, from memory and from a file alike; unpacking it
/// leaves nothing.
pub(crate) fn refused(pack: &TestPack, archive: &[u8]) -> Vec<&'static str> {
    let limits = PackLimits::default();
    let found = codes(&UnverifiedPack::read_archive(archive, &limits).unwrap_err());
    let file = pack.outside().join("attack.rkp");
    std::fs::write(&file, archive).unwrap();
    let before = crate::tree(pack.outside());
    assert_eq!(codes(&UnverifiedPack::read(&file, &limits).unwrap_err()), found);
    assert_eq!(crate::tree(pack.outside()), before, "something was left behind");
    found
}
