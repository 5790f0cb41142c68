//! A pack comes without its signature, or without its manifest.

use crate::good_pack;
use ruvllm_tests::codes;

#[test]
fn a_pack_without_a_signature_is_refused() {
    let pack = good_pack();
    pack.remove("kernels.json.sig");
    assert_eq!(codes(&pack.verify().unwrap_err()), ["signature_missing"]);
    pack.write("kernels.json.sig", br#"{"version":1,"signatures":[]}"#);
    assert_eq!(codes(&pack.verify().unwrap_err()), ["envelope_signature_count"]);
    pack.remove("kernels.json");
    assert_eq!(codes(&pack.verify().unwrap_err()), ["manifest_missing"]);
}
