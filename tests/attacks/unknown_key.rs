//! A pack is signed by a key that no publisher of the policy has.

use crate::good_pack;
use ruvllm_signing::TrustPolicy;
use ruvllm_tests::codes;

#[test]
fn a_pack_signed_by_an_unknown_key_is_refused() {
    let (pack, other) = (good_pack(), good_pack());
    let error = pack.read().unwrap().verify(&other.policy(), None).unwrap_err();
    assert_eq!(codes(&error), ["signature_unknown_key"]);
    let error = pack.read().unwrap().verify(&TrustPolicy::builtin(), None).unwrap_err();
    assert_eq!(codes(&error), ["signature_unknown_key"]);
    // That its author field names a key makes the key no better known.
    assert!(error.to_string().contains(&pack.key().public_key().key_id().to_string()));
}

#[test]
fn a_signature_under_the_id_of_a_trusted_key_is_refused() {
    let (pack, other) = (good_pack(), good_pack());
    let id = |pack: &ruvllm_tests::TestPack| pack.key().public_key().key_id().to_string();
    let envelope = String::from_utf8(pack.bytes("kernels.json.sig")).unwrap();
    pack.write("kernels.json.sig", envelope.replace(&id(&pack), &id(&other)).as_bytes());
    let error = pack.read().unwrap().verify(&other.policy(), None).unwrap_err();
    assert_eq!(codes(&error), ["signature_invalid"]);
}
