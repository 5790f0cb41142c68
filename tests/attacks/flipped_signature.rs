//! A bit of the signature file is flipped.

use crate::good_pack;
use ruvllm_tests::codes;

#[test]
fn a_flipped_bit_in_the_signature_is_refused() {
    let pack = good_pack();
    let envelope = String::from_utf8(pack.bytes("kernels.json.sig")).unwrap();
    let start = envelope.find("\"signature\": \"").unwrap() + "\"signature\": \"".len();
    for at in (start..start + 88).step_by(3).chain([start + 85]) {
        pack.flip("kernels.json.sig", at);
        let found = codes(&pack.verify().unwrap_err());
        // Some flips leave base64 behind, others no longer do.
        let expected = [["signature_invalid"], ["envelope_syntax"]];
        assert!(expected.contains(&[found[0]]) && found.len() == 1, "byte {at}: {found:?}");
        pack.flip("kernels.json.sig", at);
    }
}

#[test]
fn a_flipped_bit_elsewhere_in_the_envelope_makes_nobody_else_the_signer() {
    let pack = good_pack();
    let envelope = pack.bytes("kernels.json.sig");
    for at in (0..envelope.len()).step_by(5) {
        pack.flip("kernels.json.sig", at);
        // The key id is a hint and white space means nothing: what verifies then is the same
        // pack by the same publisher.
        if let Ok(verified) = pack.verify() {
            assert_eq!(verified.publishers()[0].publisher, "test");
            assert_eq!(verified.publishers()[0].key_id, pack.key().public_key().key_id());
        }
        pack.flip("kernels.json.sig", at);
    }
}
