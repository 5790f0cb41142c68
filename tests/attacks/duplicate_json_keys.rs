//! A signed manifest or an envelope has a key twice, so that readers may differ.

use crate::good_pack;
use ruvllm_tests::codes;

#[test]
fn a_manifest_with_a_key_twice_is_refused_at_every_level() {
    let pack = good_pack();
    let text = String::from_utf8(pack.bytes("kernels.json")).unwrap();
    for key in ["\"version\": \"1.0.0\",", "\"id\": \"rmsnorm_f32\",", "\"max_memory_pages\": 256,"]
    {
        assert!(text.contains(key));
        pack.sign(text.replacen(key, &format!("{key}{key}"), 1).as_bytes());
        assert_eq!(codes(&pack.verify().unwrap_err()), ["duplicate_key"], "{key}");
    }
}

#[test]
fn an_envelope_with_a_key_twice_is_refused() {
    let pack = good_pack();
    let text = String::from_utf8(pack.bytes("kernels.json.sig")).unwrap();
    let doubled = text.replacen("\"version\": 1,", "\"version\": 1, \"version\": 1,", 1);
    pack.write("kernels.json.sig", doubled.as_bytes());
    assert_eq!(codes(&pack.verify().unwrap_err()), ["envelope_syntax"]);
}
