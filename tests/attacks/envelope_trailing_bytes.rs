//! The signature file goes on after its end.

use crate::{good_pack, refused};

#[test]
fn an_envelope_with_bytes_around_it_is_refused() {
    let pack = good_pack();
    let good = pack.bytes("kernels.json.sig");
    for tail in [&b"x"[..], b"{}", b"\0", b"/* */", &good] {
        pack.write("kernels.json.sig", &[good.as_slice(), tail].concat());
        assert_eq!(refused(&pack), ["envelope_syntax"]);
    }
    pack.write("kernels.json.sig", &[b"\xef\xbb\xbf", good.as_slice()].concat());
    assert_eq!(refused(&pack), ["envelope_syntax"]);
}
