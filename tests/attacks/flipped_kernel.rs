//! A bit of a module is flipped.

use crate::{KERNEL, good_pack};
use ruvllm_tests::codes;

#[test]
fn a_flipped_bit_anywhere_in_a_module_is_refused() {
    let pack = good_pack();
    let length = pack.bytes(KERNEL).len();
    for at in 0..length {
        pack.flip(KERNEL, at);
        assert_eq!(codes(&pack.verify().unwrap_err()), ["file_hash_mismatch"], "byte {at}");
        pack.flip(KERNEL, at);
    }
}
