//! An archive says the same in other bytes, so that a hash of it is worth nothing.

use crate::{good_pack, tar};
use ruvllm_signing::{PackLimits, UnverifiedPack};

#[test]
fn a_header_with_another_owner_time_mode_or_checksum_is_refused() {
    let pack = good_pack();
    let good = tar::archive(&pack);
    // mode, uid, gid, mtime, uname, gname, devmajor, the space after the NUL of the name, the tail
    for at in [104, 110, 118, 140, 265, 297, 330, 90, 511] {
        let mut header: [u8; 512] = good[..512].try_into().unwrap();
        header[at] = b'1';
        tar::sum(&mut header);
        let bytes = [&header[..], &good[512..]].concat();
        assert_eq!(tar::refused(&pack, &bytes), ["archive_header"], "byte {at}");
    }
    let mut wrong_sum = good.clone();
    wrong_sum[149] ^= 1;
    assert_eq!(tar::refused(&pack, &wrong_sum), ["archive_header"]);
    let mut padding = good.clone();
    let manifest = pack.bytes("kernels.json").len();
    assert_ne!(manifest % 512, 0);
    padding[512 + manifest] = b'x';
    assert_eq!(tar::refused(&pack, &padding), ["archive_padding"]);
}

#[test]
fn the_same_pack_gives_the_same_bytes_by_every_way() {
    let pack = good_pack();
    let first = tar::archive(&pack);
    let again = UnverifiedPack::read_archive(first.as_slice(), &PackLimits::default()).unwrap();
    let mut second = Vec::new();
    again.write_archive(&mut second).unwrap();
    assert_eq!(first, second);
}

#[test]
fn a_compressed_archive_is_no_archive() {
    let pack = good_pack();
    for magic in [&[0x1f, 0x8b, 8][..], b"BZh9", &[0x28, 0xb5, 0x2f, 0xfd], b"PK\x03\x04"] {
        let bytes = [magic, &[7; 2048]].concat();
        // It is not looked into.
        assert!(tar::refused(&pack, &bytes).is_empty());
        let read = UnverifiedPack::read_archive(bytes.as_slice(), &PackLimits::default());
        let error = read.map(|_| ()).unwrap_err();
        assert_eq!(error.code(), "pack_rejected");
        assert!(error.to_string().contains("is not a pack archive"), "{error}");
    }
}
