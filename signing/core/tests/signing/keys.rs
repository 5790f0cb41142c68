//! Which keys and signatures count.

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use ruvllm_signing::{KeyId, PublicKey, SecretKey, Signature};

fn bytes(hex: &str) -> Vec<u8> {
    (0..hex.len()).step_by(2).map(|i| u8::from_str_radix(&hex[i..i + 2], 16).unwrap()).collect()
}

fn key_code(hex: &str) -> Option<&'static str> {
    let bytes: [u8; 32] = bytes(hex).try_into().unwrap();
    PublicKey::from_bytes(&bytes).err().map(|e| e.code())
}

#[test]
fn a_signature_of_rfc_8032_verifies_and_a_changed_one_does_not() {
    // RFC 8032, section 7.1, test 3.
    let public = bytes("fc51cd8e6218a1a38da47ed00230f0580816ed13ba3303ac5deb911548908025");
    let signature = bytes(
        "6291d657deec24024827e69c3abe01a30ce548a284743a445e3680d7db5ac3ac\
         18ff9b538d16f290ae67f760984dc6594a7c15e9716ed28dc027beceea1ec40a",
    );
    let public = PublicKey::from_bytes(&public.try_into().unwrap()).unwrap();
    let signature: [u8; 64] = signature.try_into().unwrap();
    assert!(public.verify(&[0xaf, 0x82], &Signature::from_bytes(signature)));
    assert!(!public.verify(&[0xaf, 0x83], &Signature::from_bytes(signature)));
    for at in 0..64 {
        let mut changed = signature;
        changed[at] ^= 1;
        assert!(!public.verify(&[0xaf, 0x82], &Signature::from_bytes(changed)), "byte {at}");
    }
}

#[test]
fn a_signature_cannot_be_restated_with_a_larger_scalar() {
    // S + L is the same scalar modulo the group's order L.
    let order = bytes("edd3f55c1a631258d69cf7a2def9de1400000000000000000000000000000010");
    let key = SecretKey::generate().unwrap();
    let mut signature = *key.sign(b"m").as_bytes();
    let mut carry = 0u16;
    for (s, l) in signature[32..].iter_mut().zip(order) {
        let sum = u16::from(*s) + u16::from(l) + carry;
        *s = sum as u8;
        carry = sum >> 8;
    }
    assert!(!key.public_key().verify(b"m", &Signature::from_bytes(signature)));
}

#[test]
fn keys_for_which_anyone_could_sign_are_refused() {
    // The eight points of small order, and encodings of y at or above the prime.
    for weak in [
        "0100000000000000000000000000000000000000000000000000000000000000",
        "0100000000000000000000000000000000000000000000000000000000000080",
        "ecffffffffffffffffffffffffffffffffffffffffffffffffffffffffffff7f",
        "ecffffffffffffffffffffffffffffffffffffffffffffffffffffffffffffff",
        "0000000000000000000000000000000000000000000000000000000000000000",
        "0000000000000000000000000000000000000000000000000000000000000080",
        "26e8958fc2b227b045c3f489f2ef98f0d5dfac05d3c63339b13802886d53fc05",
        "26e8958fc2b227b045c3f489f2ef98f0d5dfac05d3c63339b13802886d53fc85",
        "c7176a703d4dd84fba3c0b760d10670f2a2053fa2c39ccc64ec7fd7792ac037a",
        "c7176a703d4dd84fba3c0b760d10670f2a2053fa2c39ccc64ec7fd7792ac03fa",
        "eeffffffffffffffffffffffffffffffffffffffffffffffffffffffffffff7f",
        "edffffffffffffffffffffffffffffffffffffffffffffffffffffffffffff7f",
        "f0ffffffffffffffffffffffffffffffffffffffffffffffffffffffffffff7f",
    ] {
        let code = key_code(weak);
        assert!(matches!(code, Some("key_weak" | "key_invalid")), "{weak}: {code:?}");
    }
    // y = 2 is no point of the curve.
    let none = format!("02{}", "00".repeat(31));
    assert_eq!(key_code(&none), Some("key_invalid"));
}

#[test]
fn text_forms_read_back_and_other_spellings_do_not() {
    let secret = SecretKey::generate().unwrap();
    let public = secret.public_key();
    assert_eq!(public.to_string().parse::<PublicKey>().unwrap(), public);
    assert_eq!(PublicKey::from_pem(&public.to_pem().unwrap()).unwrap(), public);
    let again = SecretKey::from_pem(&secret.to_pem().unwrap()).unwrap();
    assert_eq!(again.public_key(), public);
    let id = public.key_id();
    assert_eq!(id.to_string().parse::<KeyId>().unwrap(), id);
    assert!(id.to_string().to_uppercase().parse::<KeyId>().is_err());
    let text = public.to_string();
    let no_padding = text.trim_end_matches('=');
    for bad in [no_padding, &text[8..], "ed25519:", "ed25519:!!!!", &format!("{text} ")] {
        assert_eq!(bad.parse::<PublicKey>().unwrap_err().code(), "key_invalid", "{bad}");
    }
    assert!(PublicKey::from_pem(&secret.to_pem().unwrap()).is_err());
    assert!(SecretKey::from_pem(&public.to_pem().unwrap()).is_err());
}

#[test]
fn a_secret_key_shows_only_its_public_half() {
    let secret = SecretKey::generate().unwrap();
    let pem = secret.to_pem().unwrap();
    let body: String = pem.lines().filter(|line| !line.starts_with('-')).collect();
    let shown = format!("{secret:?}");
    assert!(shown.contains(&secret.public_key().to_string()));
    assert!(!shown.contains(&body[body.len() - 43..]));
    // An error about a key file does not quote it.
    let broken = pem.replace("PRIVATE KEY", "PRIVATE KEX");
    let error = SecretKey::from_pem(&broken).unwrap_err();
    assert!(!format!("{error} {error:?}").contains(&body[..16]));
}

#[test]
fn a_key_file_is_new_and_for_its_owner_alone() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("key.pem");
    let secret = SecretKey::generate().unwrap();
    secret.write_new_file(&path).unwrap();
    #[cfg(unix)]
    {
        use std::os::unix::fs::PermissionsExt;
        assert_eq!(std::fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
    }
    assert_eq!(SecretKey::read_file(&path).unwrap().public_key(), secret.public_key());
    let other = SecretKey::generate().unwrap();
    assert_eq!(other.write_new_file(&path).unwrap_err().code(), "io");
    assert_eq!(SecretKey::read_file(&path).unwrap().public_key(), secret.public_key());
    assert_eq!(SecretKey::read_file(&dir.path().join("none")).unwrap_err().code(), "io");
    std::fs::write(&path, vec![0xff; 100_000]).unwrap();
    assert_eq!(SecretKey::read_file(&path).unwrap_err().code(), "key_invalid");
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|b| format!("{b:02x}")).collect()
}

/// The seed and its public key of RFC 8032, section 7.1, test 1.
fn rfc_seed() -> (Vec<u8>, String) {
    let seed = bytes("9d61b19deffd5a60ba844af492ec2cc44449c5697b326919703bac031cae7f60");
    (seed, "d75a980182b10ab7d54bfed3c964073a0ee172f3daa62325af021a68f707511a".to_owned())
}

#[test]
fn a_raw_key_is_read_as_bytes_as_hex_and_as_base64() {
    let (seed, public) = rfc_seed();
    let text = hex(&seed);
    let base64 = STANDARD.encode(&seed);
    for form in [
        seed.clone(),
        text.clone().into_bytes(),
        format!("  {text}\n").into_bytes(),
        format!("{base64}\n").into_bytes(),
    ] {
        let key = SecretKey::parse(&form).unwrap().public_key();
        assert_eq!(hex(key.as_bytes()), public);
    }
    for bad in [&seed[..31], &[0xff; 33][..], &text.as_bytes()[..62], b"", b"zz", &[b'z'; 64]] {
        assert_eq!(SecretKey::parse(bad).unwrap_err().code(), "key_invalid");
    }
}

/// The seed as `ssh-keygen` would write it.
fn openssh(seed: &[u8]) -> (String, String) {
    use ssh_key::private::{Ed25519Keypair, Ed25519PrivateKey, KeypairData};
    let private = Ed25519PrivateKey::try_from(seed).unwrap();
    let public = SecretKey::parse(seed).unwrap().public_key();
    let public = ssh_key::public::Ed25519PublicKey(*public.as_bytes());
    let pair = KeypairData::from(Ed25519Keypair { public, private });
    let key = ssh_key::PrivateKey::new(pair, "ann@example").unwrap();
    let text = key.to_openssh(ssh_key::LineEnding::LF).unwrap().to_string();
    (text, key.public_key().to_openssh().unwrap())
}

#[test]
fn openssh_keys_are_read_both_halves() {
    let (seed, public) = rfc_seed();
    let (private_text, public_text) = openssh(&seed);
    let secret = SecretKey::parse(private_text.as_bytes()).unwrap();
    assert_eq!(hex(secret.public_key().as_bytes()), public);
    assert!(public_text.starts_with("ssh-ed25519 AAAA") && public_text.ends_with("ann@example"));
    assert_eq!(PublicKey::from_text(&public_text).unwrap(), secret.public_key());
    let pem = secret.public_key().to_pem().unwrap();
    assert_eq!(PublicKey::from_text(&pem).unwrap(), secret.public_key());
    let text = format!(" {}\n", secret.public_key());
    assert_eq!(PublicKey::from_text(&text).unwrap(), secret.public_key());
    for bad in ["ssh-rsa AAAAB3NzaC1yc2EAAAADAQABAAAAAQ==", "ssh-ed25519 AAAA", "ssh-", ""] {
        assert_eq!(PublicKey::from_text(bad).unwrap_err().code(), "key_invalid", "{bad}");
    }
    let cut = private_text.replace("b3BlbnNzaC1rZXktdjE", "b3BlbnNzaC1rZXktdjI");
    assert_eq!(SecretKey::parse(cut.as_bytes()).unwrap_err().code(), "key_invalid");
}

#[test]
fn an_encrypted_key_is_refused_with_what_to_do() {
    // The OpenSSH container as its PROTOCOL.key describes it, with bytes of no meaning for the
    // encrypted part.
    let field = |bytes: &[u8]| [&(bytes.len() as u32).to_be_bytes()[..], bytes].concat();
    let public = [field(b"ssh-ed25519"), field(&[9; 32])].concat();
    let options = [field(&[7; 16]), 16u32.to_be_bytes().to_vec()].concat();
    let container = [
        b"openssh-key-v1\0".to_vec(),
        field(b"aes256-ctr"),
        field(b"bcrypt"),
        field(&options),
        1u32.to_be_bytes().to_vec(),
        field(&public),
        field(&[5; 144]),
    ]
    .concat();
    let body = STANDARD.encode(container);
    let lines: Vec<&str> =
        body.as_bytes().chunks(70).map(|line| std::str::from_utf8(line).unwrap()).collect();
    let name = "OPENSSH PRIVATE KEY";
    let text = format!("-----BEGIN {name}-----\n{}\n-----END {name}-----\n", lines.join("\n"));
    let error = SecretKey::parse(text.as_bytes()).unwrap_err().to_string();
    assert!(error.contains("encrypted") && error.contains("ssh-keygen -p"), "{error}");
    let name = "ENCRYPTED PRIVATE KEY";
    let text = format!("-----BEGIN {name}-----\nAAAA\n-----END {name}-----\n");
    let error = SecretKey::parse(text.as_bytes()).unwrap_err().to_string();
    assert!(error.contains("encrypted") && error.contains("openssl pkey"), "{error}");
}

#[cfg(unix)]
#[test]
fn a_key_file_that_others_can_reach_is_refused() {
    use std::os::unix::fs::PermissionsExt;
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("key.pem");
    SecretKey::generate().unwrap().write_new_file(&path).unwrap();
    for mode in [0o644, 0o640, 0o660, 0o604, 0o601] {
        std::fs::set_permissions(&path, PermissionsExt::from_mode(mode)).unwrap();
        let error = SecretKey::read_file(&path).unwrap_err();
        assert_eq!(error.code(), "key_exposed");
        assert!(error.to_string().contains("chmod 600"));
    }
    std::fs::set_permissions(&path, PermissionsExt::from_mode(0o400)).unwrap();
    assert!(SecretKey::read_file(&path).is_ok());
}
