//! Keyrings: the document, its signatures, rotation, and what a host remembers.

use ruvllm_signing::{
    Keyring, KeyringTrust, PackError, Publisher, Retire, RootKeys, SecretKey, TrustPolicy,
    UnverifiedKeyring, VersionFloor, sign_manifest,
};
use serde_json::{Value, json};

pub(crate) const NOW: &str = "2026-12-01T00:00:00Z";

pub(crate) fn key() -> SecretKey {
    SecretKey::generate().unwrap()
}

pub(crate) fn publisher(name: &str, key: &SecretKey) -> Publisher {
    Publisher {
        name: name.to_owned(),
        key: key.public_key(),
        packs: vec!["acme-*".parse().unwrap()],
        native: false,
        threads: false,
        wasi_nn: false,
        not_before: None,
        not_after: None,
    }
}

pub(crate) fn roots(keys: &[&SecretKey], threshold: usize) -> RootKeys {
    RootKeys::new(keys.iter().map(|key| key.public_key()).collect(), threshold).unwrap()
}

pub(crate) fn keyring(serial: u64, roots: RootKeys, publishers: Vec<Publisher>) -> Keyring {
    Keyring {
        name: "acme".parse().unwrap(),
        serial,
        issued_at: "2026-11-20T00:00:00Z".parse().unwrap(),
        expires_at: Some("2027-11-20T00:00:00Z".parse().unwrap()),
        roots,
        publishers,
        revoked: Vec::new(),
    }
}

pub(crate) fn signed(keyring: &Keyring, keys: &[&SecretKey]) -> UnverifiedKeyring {
    let bytes = keyring.to_json().unwrap().into_bytes();
    let envelope = sign_manifest(&bytes, keys).unwrap().to_json().into_bytes();
    UnverifiedKeyring::new(bytes, envelope)
}

pub(crate) fn trust(roots: &RootKeys) -> KeyringTrust<'_> {
    let now = Some(NOW.parse().unwrap());
    KeyringTrust { roots, revoked: &[], now, accepts_without_clock: false }
}

fn code<T: std::fmt::Debug>(result: Result<T, PackError>) -> &'static str {
    result.unwrap_err().code()
}

#[test]
fn a_keyring_writes_and_reads_back() {
    let (root, a) = (key(), key());
    let mut keyring = keyring(3, roots(&[&root], 1), vec![publisher("a", &a)]);
    keyring.publishers[0].not_after = Some("2028-01-01T00:00:00Z".parse().unwrap());
    let keyring = keyring.revoke(key().public_key(), "lost".to_owned(), NOW.parse().unwrap());
    let keyring = keyring.unwrap();
    assert_eq!(keyring.serial, 4);
    assert_eq!(Keyring::parse(keyring.to_json().unwrap().as_bytes()).unwrap(), keyring);
}

#[test]
fn anything_but_one_strict_document_is_refused() {
    let root = key();
    let good = keyring(1, roots(&[&root], 1), vec![publisher("a", &key())]).to_json().unwrap();
    let edited = |edit: &dyn Fn(&mut Value)| {
        let mut json: Value = serde_json::from_str(&good).unwrap();
        edit(&mut json);
        code(Keyring::parse(json.to_string().as_bytes()))
    };
    assert_eq!(edited(&|k| k["surprise"] = json!(1)), "keyring_syntax");
    assert_eq!(edited(&|k| k["roots"]["surprise"] = json!(1)), "keyring_syntax");
    assert_eq!(edited(&|k| k["publishers"][0]["surprise"] = json!(1)), "keyring_syntax");
    assert_eq!(edited(&|k| drop(k.as_object_mut().unwrap().remove("revoked"))), "keyring_syntax");
    assert_eq!(edited(&|k| k["version"] = json!(2)), "keyring_version");
    assert_eq!(edited(&|k| k["serial"] = json!(0)), "keyring_invalid");
    assert_eq!(edited(&|k| k["serial"] = json!(-1)), "keyring_syntax");
    assert_eq!(edited(&|k| k["name"] = json!("A")), "keyring_invalid");
    assert_eq!(edited(&|k| k["issued_at"] = json!("now")), "keyring_invalid");
    assert_eq!(edited(&|k| k["roots"]["threshold"] = json!(0)), "keyring_invalid");
    assert_eq!(edited(&|k| k["roots"]["threshold"] = json!(2)), "keyring_invalid");
    assert_eq!(edited(&|k| k["roots"]["keys"] = json!([])), "keyring_invalid");
    let twice = |k: &mut Value| {
        let entry = k["publishers"][0].clone();
        k["publishers"].as_array_mut().unwrap().push(entry);
    };
    assert_eq!(edited(&twice), "keyring_invalid");
    let revoked_root = |k: &mut Value| {
        let key = k["roots"]["keys"][0].clone();
        k["revoked"] = json!([{ "key": key, "since": "2026-01-01T00:00:00Z", "reason": "" }]);
    };
    assert_eq!(edited(&revoked_root), "keyring_invalid");
    let weak = format!("ed25519:AQ{}=", "A".repeat(41));
    assert_eq!(edited(&|k| k["publishers"][0]["key"] = json!(weak)), "key_weak");
    assert_eq!(code(Keyring::parse(format!("{good}x").as_bytes())), "keyring_syntax");
    let doubled = good.replacen("\"version\": 1,", "\"version\": 1, \"version\": 1,", 1);
    assert_eq!(code(Keyring::parse(doubled.as_bytes())), "keyring_syntax");
    assert_eq!(code(Keyring::parse(&vec![b' '; 300_000])), "keyring_too_large");
}

#[test]
fn the_trusted_roots_and_its_own_must_sign() {
    let [r1, r2, r3, stranger] = [key(), key(), key(), key()];
    let trusted = roots(&[&r1, &r2], 2);
    let next = keyring(2, roots(&[&r2, &r3], 2), vec![publisher("a", &key())]);
    let verify = |keys: &[&SecretKey]| signed(&next, keys).verify(&trust(&trusted));
    assert_eq!(verify(&[&r1, &r2, &r3]).unwrap().document(), &next);
    assert!(verify(&[&stranger, &r3, &r2, &r1]).is_ok());
    for too_few in [&[&r1, &r2][..], &[&r2, &r3], &[&r1, &r3], &[&stranger]] {
        assert_eq!(code(verify(too_few)), "keyring_not_trusted");
    }
    let revoked = [r1.public_key()];
    let trust = KeyringTrust { revoked: &revoked, ..trust(&trusted) };
    assert_eq!(code(signed(&next, &[&r1, &r2, &r3]).verify(&trust)), "keyring_not_trusted");
}

#[test]
fn expiry_needs_a_clock() {
    let root = key();
    let roots = roots(&[&root], 1);
    let keyring = keyring(1, roots.clone(), vec![publisher("a", &key())]);
    let verify = |now: Option<&str>, accepts_without_clock| {
        let now = now.map(|t| t.parse().unwrap());
        let trust = KeyringTrust { now, accepts_without_clock, ..trust(&roots) };
        signed(&keyring, &[&root]).verify(&trust)
    };
    assert!(verify(Some("2027-11-19T23:59:59Z"), false).is_ok());
    assert_eq!(code(verify(Some("2027-11-20T00:00:00Z"), false)), "keyring_expired");
    assert_eq!(code(verify(None, false)), "clock_unknown");
    assert!(verify(None, true).is_ok());
}

#[test]
fn a_host_goes_forward_only_and_follows_the_roots() {
    let [r1, r2, a] = [key(), key(), key()];
    let anchor = roots(&[&r1], 1);
    let dir = tempfile::tempdir().unwrap();
    let seen = VersionFloor::open(dir.path()).unwrap();
    let admit = |keyring: &Keyring, keys: &[&SecretKey]| {
        seen.admit_keyring(signed(keyring, keys), &trust(&anchor))
    };
    let first = keyring(1, anchor.clone(), vec![publisher("a", &a)]);
    assert!(admit(&first, &[&r1]).is_ok() && admit(&first, &[&r1]).is_ok());
    // The roots change: the old ones and the new ones sign.
    let second = Keyring { roots: roots(&[&r2], 1), ..first.next(NOW.parse().unwrap()) };
    assert_eq!(code(admit(&second, &[&r2])), "keyring_not_trusted");
    assert!(admit(&second, &[&r1, &r2]).is_ok());
    assert_eq!(code(admit(&first, &[&r1])), "keyring_rollback");
    let other = Keyring { publishers: vec![publisher("a", &key())], ..second.clone() };
    assert_eq!(code(admit(&other, &[&r1, &r2])), "keyring_rollback");
    // From now on the new roots decide; the old one alone is a stranger, though the policy names it.
    let third = second.next(NOW.parse().unwrap());
    assert!(admit(&third, &[&r2]).is_ok());
    let usurper = Keyring { roots: anchor.clone(), ..third.next(NOW.parse().unwrap()) };
    assert_eq!(code(admit(&usurper, &[&r1])), "keyring_not_trusted");
    let record = seen.seen_keyring(&"acme".parse().unwrap()).unwrap().unwrap();
    assert_eq!((record.serial, record.roots), (3, roots(&[&r2], 1)));
    std::fs::write(dir.path().join("acme.keyring"), b"{}").unwrap();
    assert_eq!(code(admit(&third, &[&r2])), "floor_damaged");
}

#[test]
fn rotating_gives_a_publisher_a_new_key_and_retires_the_old() {
    let [root, a, b] = [key(), key(), key()];
    let first = keyring(1, roots(&[&root], 1), vec![publisher("a", &a)]);
    let now = NOW.parse().unwrap();
    let until = "2027-01-01T00:00:00Z".parse().unwrap();
    let planned = first.rotate("a", None, b.public_key(), Retire::At(until), now).unwrap();
    assert_eq!((planned.serial, planned.publishers.len()), (2, 2));
    assert_eq!(planned.publishers[0].not_after, Some(until));
    assert_eq!(planned.publishers[1].key, b.public_key());
    assert_eq!(planned.publishers[1].packs, first.publishers[0].packs);
    let why = Retire::Revoked { reason: "leaked".to_owned() };
    let leaked = first.rotate("a", None, b.public_key(), why.clone(), now).unwrap();
    assert!(leaked.is_revoked(&a.public_key()) && !leaked.is_revoked(&b.public_key()));
    assert!(leaked.to_json().is_ok());
    // Who is meant must be clear, and a key is new once.
    let rotate = |keyring: &Keyring, name: &str, new: &SecretKey| {
        keyring.rotate(name, None, new.public_key(), why.clone(), now)
    };
    assert!(rotate(&first, "nobody", &b).is_err());
    assert!(rotate(&first, "a", &a).is_err());
    assert!(rotate(&planned, "a", &key()).is_err());
    assert!(rotate(&leaked, "a", &a).is_err());
    assert!(rotate(&leaked, "a", &key()).is_ok());
}

#[test]
fn a_policy_of_a_keyring_ends_with_it() {
    let [root, a, b] = [key(), key(), key()];
    let roots = roots(&[&root], 1);
    let mut document = keyring(7, roots.clone(), vec![publisher("a", &a), publisher("b", &b)]);
    document.publishers[1].not_before = Some("2030-01-01T00:00:00Z".parse().unwrap());
    let document =
        document.revoke(key().public_key(), String::new(), NOW.parse().unwrap()).unwrap();
    let verified = signed(&document, &[&root]).verify(&trust(&roots)).unwrap();
    let policy = TrustPolicy::from_keyring(&verified, 1).unwrap();
    // One begins after the keyring has ended, so it is nobody yet.
    assert_eq!(policy.publishers().len(), 1);
    assert_eq!(policy.publishers()[0].not_after, document.expires_at);
    assert_eq!(policy.revoked().len(), 1);
    assert_eq!(policy.keyring().unwrap().serial, 8);
    assert!(TrustPolicy::from_keyring(&verified, 2).is_err());
}
