//! A policy is made to trust a key for which anyone can sign.

use crate::{good_pack, refused_by};
use ruvllm_signing::{Clock, Envelope, PublicKey, RootKeys, Signature, TrustPolicy};

/// Points of small order and encodings of them that are not their own, as hex.
const WEAK: [&str; 6] = [
    "0100000000000000000000000000000000000000000000000000000000000000",
    "ecffffffffffffffffffffffffffffffffffffffffffffffffffffffffffff7f",
    "0000000000000000000000000000000000000000000000000000000000000000",
    "26e8958fc2b227b045c3f489f2ef98f0d5dfac05d3c63339b13802886d53fc05",
    "c7176a703d4dd84fba3c0b760d10670f2a2053fa2c39ccc64ec7fd7792ac037a",
    "eeffffffffffffffffffffffffffffffffffffffffffffffffffffffffffff7f",
];

fn bytes(hex: &str) -> [u8; 32] {
    std::array::from_fn(|i| u8::from_str_radix(&hex[2 * i..2 * i + 2], 16).unwrap())
}

#[test]
fn a_weak_key_is_refused_wherever_it_is_named() {
    for hex in WEAK {
        let error = PublicKey::from_bytes(&bytes(hex)).unwrap_err();
        assert!(["key_weak", "key_invalid"].contains(&error.code()), "{hex}");
    }
    let identity = format!("ed25519:AQ{}=", "A".repeat(41));
    let policy =
        format!("version = 1\n[[publishers]]\nname = \"a\"\nkey = \"{identity}\"\npacks = []");
    assert_eq!(TrustPolicy::from_toml(&policy).unwrap_err().code(), "key_weak");
    let revoked = format!("version = 1\nrevoked = [\"{identity}\"]\npublishers = []");
    assert_eq!(TrustPolicy::from_toml(&revoked).unwrap_err().code(), "key_weak");
    assert!(RootKeys::new(Vec::new(), 1).is_err());
}

#[test]
fn a_signature_with_a_point_of_small_order_is_refused() {
    // R the identity and S zero: what verifies under a key of small order for every message.
    let pack = good_pack();
    let mut signature = [0; 64];
    signature[0] = 1;
    let entry = (pack.key().public_key().key_id(), Signature::from_bytes(signature));
    let envelope = Envelope::from_signatures(vec![entry]).unwrap();
    pack.write("kernels.json.sig", envelope.to_json().as_bytes());
    assert_eq!(refused_by(&pack, &pack.policy(), Clock::System), ["signature_invalid"]);
}
