//! An archive holds links, devices, directories or FIFOs instead of files.

use crate::{KERNEL, good_pack, tar};

#[test]
fn an_entry_that_is_no_file_is_refused() {
    let pack = good_pack();
    for kind in b'1'..=b'7' {
        let mut header = tar::header(b"z", "00000000000\0", kind);
        header[157..157 + KERNEL.len()].copy_from_slice(KERNEL.as_bytes());
        tar::sum(&mut header);
        let bytes = tar::with(&pack, &header);
        let found = tar::refused(&pack, &bytes);
        assert_eq!(found, ["archive_entry_kind"], "{}", char::from(kind));
    }
}

#[test]
fn a_file_with_a_link_target_is_refused() {
    let pack = good_pack();
    let mut header = tar::header(b"z", "00000000000\0", b'0');
    header[157..168].copy_from_slice(b"/etc/passwd");
    tar::sum(&mut header);
    assert_eq!(tar::refused(&pack, &tar::with(&pack, &header)), ["archive_header"]);
}
