//! The manifest says the same in other bytes.

use crate::good_pack;
use ruvllm_tests::codes;

#[test]
fn a_manifest_that_was_written_again_is_refused() {
    let pack = good_pack();
    let original = pack.bytes("kernels.json");
    let json: serde_json::Value = serde_json::from_slice(&original).unwrap();
    for same in [
        serde_json::to_vec(&json).unwrap(),
        [original.as_slice(), b"\n"].concat(),
        [b" ", original.as_slice()].concat(),
    ] {
        pack.write("kernels.json", &same);
        assert_eq!(codes(&pack.verify().unwrap_err()), ["signature_invalid"]);
    }
}
