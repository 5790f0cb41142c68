//! A header claims more than there is, or more than anyone could hold.

use crate::{good_pack, tar};
use ruvllm_signing::{PackLimits, UnverifiedPack};
use std::io::Read;

#[test]
fn a_size_over_the_cap_is_refused_without_reading_on() {
    let pack = good_pack();
    let bytes = tar::with(&pack, &tar::header(b"z", "77777777777\0", b'0'));
    assert_eq!(tar::refused(&pack, &bytes), ["file_too_large"]);
    let bytes = tar::with(&pack, &tar::header(b"z", "00100000001\0", b'0'));
    assert_eq!(tar::refused(&pack, &bytes), ["file_too_large"]);
    // A stream without an end: what is read is bounded.
    let start = tar::header(b"kernels.json", "00004000000\0", b'0');
    let endless = start.as_slice().chain(std::io::repeat(b' '));
    let error = UnverifiedPack::read_archive(endless, &PackLimits::default()).unwrap_err();
    assert_eq!(ruvllm_tests::codes(&error), ["archive_header"]);
}

#[test]
fn many_files_within_their_caps_are_refused_by_the_cap_of_the_whole() {
    let pack = good_pack();
    let limits = PackLimits { max_total_bytes: 10_000, ..PackLimits::default() };
    let files: Vec<u8> =
        (0..9).flat_map(|i| tar::entry(&format!("z{i}"), b'0', &[0; 2000])).collect();
    let bytes = tar::with(&pack, &files);
    let error = UnverifiedPack::read_archive(bytes.as_slice(), &limits).unwrap_err();
    assert_eq!(ruvllm_tests::codes(&error), ["pack_too_large"]);
}

#[test]
fn a_size_in_another_number_format_is_refused() {
    let pack = good_pack();
    for size in ["\u{7f}00000000001", "0000000001 \0", "-0000000001\0", "1\0", "00000000008\0"] {
        let bytes = tar::with(&pack, &tar::header(b"z", size, b'0'));
        assert_eq!(tar::refused(&pack, &bytes), ["archive_header"], "{size:?}");
    }
    let mut base256 = tar::header(b"z", "", b'0');
    base256[124] = 0x80;
    base256[135] = 1;
    tar::sum(&mut base256);
    assert_eq!(tar::refused(&pack, &tar::with(&pack, &base256)), ["archive_header"]);
}
