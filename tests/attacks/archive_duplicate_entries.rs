//! An archive has a file twice, so that one program takes the first and another the last.

use crate::{KERNEL, good_pack, tar};

#[test]
fn an_archive_with_a_file_twice_is_refused() {
    let pack = good_pack();
    let bytes = tar::with(&pack, &tar::entry(KERNEL, b'0', b"other bytes"));
    assert_eq!(tar::refused(&pack, &bytes), ["path_case_duplicate"]);
    // The manifest again, after the kernel: not in order.
    let bytes = tar::with(&pack, &tar::entry("kernels.json", b'0', b"{}"));
    assert_eq!(tar::refused(&pack, &bytes), ["archive_order"]);
}

#[test]
fn an_archive_with_two_names_that_differ_by_case_is_refused() {
    let pack = good_pack();
    let bytes = tar::with(&pack, &tar::entry("test/rmsnorm_f32.wasM", b'0', b"other bytes"));
    assert_eq!(tar::refused(&pack, &bytes), ["archive_order"]);
    let two = [tar::entry("testing/X", b'0', b"1"), tar::entry("testing/x", b'0', b"2")].concat();
    assert_eq!(tar::refused(&pack, &tar::with(&pack, &two)), ["path_case_duplicate"]);
}
