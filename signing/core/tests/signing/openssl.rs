//! Keys and signatures go both ways between this crate and a stock OpenSSL, 3.0 or newer.
//!
//! Where there is none the tests say so and pass.

use ruvllm_signing::{Envelope, PublicKey, SecretKey, Signature, sign_manifest};
use std::fs;
use std::path::Path;
use std::process::Command;

const MANIFEST: &[u8] = b"{\"name\": \"any bytes, \xff\x00 too\"}\n";

fn is_there() -> bool {
    let version = Command::new("openssl").arg("version").output();
    let major = version.ok().and_then(|output| {
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        text.strip_prefix("OpenSSL ")?.split('.').next()?.parse::<u32>().ok()
    });
    let there = major.is_some_and(|major| major >= 3);
    if !there {
        eprintln!("skipped: no OpenSSL 3.0 or newer");
    }
    there
}

fn openssl(dir: &Path, args: &str) -> bool {
    let output =
        Command::new("openssl").args(args.split_whitespace()).current_dir(dir).output().unwrap();
    eprintln!("{}", String::from_utf8_lossy(&output.stderr));
    output.status.success()
}

#[test]
fn openssl_accepts_our_signatures_under_our_keys() {
    if !is_there() {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let file = |name: &str| dir.path().join(name);
    let secret = SecretKey::generate().unwrap();
    let envelope = sign_manifest(MANIFEST, &[&secret]).unwrap();
    fs::write(file("kernels.json"), MANIFEST).unwrap();
    fs::write(file("sig"), envelope.signatures()[0].1.as_bytes()).unwrap();
    fs::write(file("pub.pem"), secret.public_key().to_pem().unwrap()).unwrap();
    let verify = "pkeyutl -verify -pubin -inkey pub.pem -rawin -in kernels.json -sigfile sig";
    assert!(openssl(dir.path(), verify));
    fs::write(file("kernels.json"), b"something else").unwrap();
    assert!(!openssl(dir.path(), verify));
    secret.write_new_file(&file("key.pem")).unwrap();
    assert!(openssl(dir.path(), "pkey -in key.pem -pubout -out again.pem"));
    let again = PublicKey::from_pem(&fs::read_to_string(file("again.pem")).unwrap()).unwrap();
    assert_eq!(again, secret.public_key());
}

#[test]
fn we_accept_signatures_and_keys_that_openssl_makes() {
    if !is_there() {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let file = |name: &str| dir.path().join(name);
    fs::write(file("kernels.json"), MANIFEST).unwrap();
    assert!(openssl(dir.path(), "genpkey -algorithm ed25519 -out key.pem"));
    assert!(openssl(dir.path(), "pkey -in key.pem -pubout -out pub.pem"));
    let sign = "pkeyutl -sign -inkey key.pem -rawin -in kernels.json -out sig";
    assert!(openssl(dir.path(), sign));
    let public = PublicKey::from_pem(&fs::read_to_string(file("pub.pem")).unwrap()).unwrap();
    let secret = SecretKey::read_file(&file("key.pem")).unwrap();
    assert_eq!(secret.public_key(), public);
    let signature: [u8; 64] = fs::read(file("sig")).unwrap().try_into().unwrap();
    assert!(public.verify(MANIFEST, &Signature::from_bytes(signature)));
    // As an entry of an envelope, written and read again.
    let envelope =
        Envelope::from_signatures(vec![(public.key_id(), Signature::from_bytes(signature))]);
    let envelope = Envelope::parse(envelope.unwrap().to_json().as_bytes()).unwrap();
    assert_eq!(envelope, sign_manifest(MANIFEST, &[&secret]).unwrap());
    assert!(public.verify(MANIFEST, &envelope.signatures()[0].1));
    // Ed25519 is deterministic: the same key makes the same signature.
    assert_eq!(*secret.sign(MANIFEST).as_bytes(), signature);
}
