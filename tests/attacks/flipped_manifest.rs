//! A bit of `kernels.json` is flipped, at many places from its first byte to its last.

use crate::good_pack;
use ruvllm_tests::codes;

#[test]
fn a_flipped_bit_in_the_manifest_is_refused() {
    let pack = good_pack();
    let length = pack.bytes("kernels.json").len();
    for at in (0..length).step_by(29).chain([length - 1]) {
        pack.flip("kernels.json", at);
        assert_eq!(codes(&pack.verify().unwrap_err()), ["signature_invalid"], "byte {at}");
        pack.flip("kernels.json", at);
    }
    assert!(pack.verify().is_ok());
}
