//! `kernels.json.sig` is cut short.

use crate::{good_pack, refused};

#[test]
fn a_signature_file_that_is_cut_anywhere_is_refused() {
    let pack = good_pack();
    let whole = pack.bytes("kernels.json.sig");
    // The newline at the end means nothing.
    for length in 0..whole.len() - 1 {
        pack.write("kernels.json.sig", &whole[..length]);
        assert_eq!(refused(&pack), ["envelope_syntax"], "{length} bytes");
    }
}
