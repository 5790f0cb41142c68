//! An entry of an archive would be unpacked elsewhere.

use crate::{good_pack, tar, tree};
use ruvllm_signing::{PackLimits, UnverifiedPack};

#[test]
fn a_path_that_leaves_the_archive_is_refused() {
    let pack = good_pack();
    for path in ["../z", "z/../../x", "..", "..\\z", "z/.."] {
        let bytes = tar::with(&pack, &tar::entry(path, b'0', b"x"));
        assert_eq!(tar::refused(&pack, &bytes), ["path_escapes"], "{path}");
    }
    for path in ["", "./z", "z//x", "z/", ".z", "z\u{1b}[2J", "nul", "z\n"] {
        let bytes = tar::with(&pack, &tar::entry(path, b'0', b"x"));
        assert_eq!(tar::refused(&pack, &bytes), ["path_invalid"], "{path}");
    }
    let mut bytes = tar::entry("z", b'0', b"x");
    let mut header: [u8; 512] = bytes[..512].try_into().unwrap();
    header[0] = 0xff;
    tar::sum(&mut header);
    bytes[..512].copy_from_slice(&header);
    assert_eq!(tar::refused(&pack, &tar::with(&pack, &bytes)), ["path_not_utf8"]);
}

#[test]
fn the_prefix_of_a_name_is_part_of_the_path() {
    let pack = good_pack();
    let mut header = tar::header(b"etc/x", "00000000000\0", b'0');
    header[345..347].copy_from_slice(b"..");
    tar::sum(&mut header);
    assert_eq!(tar::refused(&pack, &tar::with(&pack, &header)), ["path_escapes"]);
    header[345..347].copy_from_slice(b"zz");
    tar::sum(&mut header);
    assert_eq!(tar::refused(&pack, &tar::with(&pack, &header)), ["archive_header"]);
}

#[test]
fn what_is_unpacked_stays_below_its_directory() {
    let pack = good_pack();
    let read = UnverifiedPack::read_archive(tar::archive(&pack).as_slice(), &PackLimits::default());
    let before = tree(pack.outside());
    let target = pack.outside().join("unpacked");
    read.unwrap().write_dir(&target).unwrap();
    let mut after = tree(pack.outside());
    after.retain(|path, _| !path.starts_with(&target));
    assert_eq!(after, before);
}
