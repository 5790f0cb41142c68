//! `kernels.json` is cut short, with the signature that it had and with a new one.

use crate::{good_pack, refused};

#[test]
fn a_manifest_that_is_cut_is_refused_by_its_signature() {
    let pack = good_pack();
    let whole = pack.bytes("kernels.json");
    for length in [0, 1, whole.len() / 2, whole.len() - 1] {
        pack.write("kernels.json", &whole[..length]);
        assert_eq!(refused(&pack), ["signature_invalid"], "{length} bytes");
    }
}

#[test]
fn a_manifest_that_was_signed_when_it_was_cut_is_refused_by_its_syntax() {
    let pack = good_pack();
    let whole = pack.bytes("kernels.json");
    for length in [0, 1, whole.len() / 2, whole.len() - 1] {
        pack.sign(&whole[..length]);
        assert_eq!(refused(&pack), ["manifest_syntax"], "{length} bytes");
    }
}
