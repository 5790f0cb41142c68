//! Policy files: alone, with revocations, and with a keyring.

use crate::keyring::{NOW, key, keyring, publisher, roots};
use ruvllm_signing::{
    Clock, PackError, SecretKey, TrustPolicy, VersionFloor, keyring_signature_file, sign_manifest,
};
use std::path::{Path, PathBuf};

fn clock() -> Clock {
    Clock::Fixed(NOW.parse().unwrap())
}

fn write(dir: &Path, body: &str) -> PathBuf {
    let path = dir.join("trust.toml");
    std::fs::write(&path, format!("version = 1\n{body}")).unwrap();
    path
}

fn publish(dir: &Path, serial: u64, root: &SecretKey, publishers: &[(&str, &SecretKey)]) {
    let publishers = publishers.iter().map(|(name, key)| publisher(name, key)).collect();
    let json = keyring(serial, roots(&[root], 1), publishers).to_json().unwrap();
    let envelope = sign_manifest(json.as_bytes(), &[root]).unwrap();
    let path = dir.join("keyring.json");
    std::fs::write(keyring_signature_file(&path), envelope.to_json()).unwrap();
    std::fs::write(path, json).unwrap();
}

fn code(result: Result<TrustPolicy, PackError>) -> &'static str {
    result.unwrap_err().code()
}

#[test]
fn a_policy_can_revoke_and_say_what_holds_without_a_clock() {
    let (a, gone) = (key().public_key(), key().public_key());
    let text = |clock: &str| {
        format!(
            "version = 1\nwithout_clock = \"{clock}\"\nrevoked = [\"{gone}\"]\n[[publishers]]\n\
             name = \"a\"\nkey = \"{a}\"\npacks = []\n"
        )
    };
    let policy = TrustPolicy::from_toml(&text("accept")).unwrap();
    assert!(policy.accepts_without_clock() && policy.is_revoked(&gone) && !policy.is_revoked(&a));
    assert!(!TrustPolicy::from_toml(&text("refuse")).unwrap().accepts_without_clock());
    assert_eq!(code(TrustPolicy::from_toml(&text("perhaps"))), "policy_invalid");
}

#[test]
fn publishers_of_policy_and_keyring_are_merged_and_the_newest_keyring_is_remembered() {
    let [root, mine, theirs, stranger] = [key(), key(), key(), key()];
    let dir = tempfile::tempdir().unwrap();
    let seen = VersionFloor::open(dir.path().join("floors")).unwrap();
    let root_key = root.public_key();
    let mine_key = mine.public_key();
    let body = format!(
        "threshold = 2\n[[publishers]]\nname = \"mine\"\nkey = \"{mine_key}\"\npacks = [\"*\"]\n\
         [keyring]\nfile = \"keyring.json\"\nroots = [\"{root_key}\"]\n"
    );
    let path = write(dir.path(), &body);
    publish(dir.path(), 2, &root, &[("theirs", &theirs)]);
    let policy = TrustPolicy::read_file(&path, Some(&seen), clock()).unwrap();
    let names: Vec<_> = policy.publishers().iter().map(|p| p.name.as_str()).collect();
    assert_eq!((names, policy.threshold()), (vec!["mine", "theirs"], 2));
    assert_eq!(policy.keyring().unwrap().serial, 2);
    // A text alone has no place for a keyring.
    let text = std::fs::read_to_string(&path).unwrap();
    assert_eq!(code(TrustPolicy::from_toml(&text)), "policy_invalid");

    publish(dir.path(), 1, &root, &[("theirs", &theirs)]);
    assert_eq!(code(TrustPolicy::read_file(&path, Some(&seen), clock())), "keyring_rollback");
    publish(dir.path(), 3, &stranger, &[("theirs", &theirs)]);
    assert_eq!(code(TrustPolicy::read_file(&path, Some(&seen), clock())), "keyring_not_trusted");
    // The same key from both sides: whose scopes hold would depend on who is asked.
    publish(dir.path(), 3, &root, &[("theirs", &mine)]);
    assert_eq!(code(TrustPolicy::read_file(&path, Some(&seen), clock())), "policy_invalid");
    std::fs::remove_file(dir.path().join("keyring.json.sig")).unwrap();
    assert_eq!(code(TrustPolicy::read_file(&path, Some(&seen), clock())), "io");
}

#[test]
fn a_policy_may_consist_of_a_keyring_and_can_revoke_its_roots() {
    let [root, theirs] = [key(), key()];
    let dir = tempfile::tempdir().unwrap();
    let root_key = root.public_key();
    publish(dir.path(), 1, &root, &[("theirs", &theirs)]);
    let section = format!("[keyring]\nfile = \"keyring.json\"\nroots = [\"{root_key}\"]\n");
    let path = write(dir.path(), &section);
    assert_eq!(TrustPolicy::read_file(&path, None, clock()).unwrap().publishers().len(), 1);
    let late = Clock::Fixed("2028-01-01T00:00:00Z".parse().unwrap());
    assert_eq!(code(TrustPolicy::read_file(&path, None, late)), "keyring_expired");
    assert_eq!(code(TrustPolicy::read_file(&path, None, Clock::None)), "clock_unknown");
    let path = write(dir.path(), &format!("revoked = [\"{root_key}\"]\n{section}"));
    assert_eq!(code(TrustPolicy::read_file(&path, None, clock())), "keyring_not_trusted");
    let path = write(dir.path(), &section.replace("roots", "root"));
    assert_eq!(code(TrustPolicy::read_file(&path, None, clock())), "policy_invalid");
}
