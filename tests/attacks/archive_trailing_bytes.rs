//! Something follows the end of an archive, or its end is not where it should be.

use crate::{good_pack, tar};

#[test]
fn bytes_after_the_end_are_refused_whatever_they_are() {
    let pack = good_pack();
    let good = tar::archive(&pack);
    let more = tar::entry("z", b'0', b"x");
    for tail in [&[0u8][..], &[0; 512], b"x", &[b'x'; 9000], &more, &good] {
        let bytes = [good.as_slice(), tail].concat();
        assert_eq!(tar::refused(&pack, &bytes), ["archive_trailing"]);
    }
}

#[test]
fn an_end_in_the_middle_is_refused() {
    let pack = good_pack();
    let more = [vec![0; 512], tar::entry("z", b'0', b"x")].concat();
    assert_eq!(tar::refused(&pack, &tar::with(&pack, &more)), ["archive_trailing"]);
}
