//! A valid signature is restated in other bytes.

use crate::{good_pack, refused};
use ruvllm_signing::{Envelope, Signature};

/// The order of the base point, little endian (RFC 8032, section 5.1).
const ORDER: [u8; 32] = [
    0xed, 0xd3, 0xf5, 0x5c, 0x1a, 0x63, 0x12, 0x58, 0xd6, 0x9c, 0xf7, 0xa2, 0xde, 0xf9, 0xde, 0x14,
    0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0x10,
];

#[test]
fn a_signature_whose_scalar_is_larger_by_the_order_is_refused() {
    let pack = good_pack();
    let key = pack.key();
    let mut bytes = *key.sign(&pack.bytes("kernels.json")).as_bytes();
    let mut carry = 0u16;
    for (s, l) in bytes[32..].iter_mut().zip(ORDER) {
        let sum = u16::from(*s) + u16::from(l) + carry;
        *s = sum as u8;
        carry = sum >> 8;
    }
    let entry = (key.public_key().key_id(), Signature::from_bytes(bytes));
    let envelope = Envelope::from_signatures(vec![entry]).unwrap();
    pack.write("kernels.json.sig", envelope.to_json().as_bytes());
    assert_eq!(refused(&pack), ["signature_invalid"]);
}

#[test]
fn base64_has_one_spelling() {
    let pack = good_pack();
    let envelope = String::from_utf8(pack.bytes("kernels.json.sig")).unwrap();
    let signature = envelope.split('"').find(|part| part.ends_with("==")).unwrap().to_owned();
    let respelt = {
        // The last digit before the padding carries four bits that mean nothing.
        let mut bytes = signature.clone().into_bytes();
        bytes[85] += 1;
        String::from_utf8(bytes).unwrap()
    };
    let cut = signature.trim_end_matches('=');
    for other in [respelt.as_str(), cut, &format!("{signature}\\n"), &format!("{cut}=")] {
        pack.write("kernels.json.sig", envelope.replace(&signature, other).as_bytes());
        assert_eq!(refused(&pack), ["envelope_syntax"], "{other}");
    }
}
