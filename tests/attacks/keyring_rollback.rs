//! An old keyring, authentic and without the newest revocation, is offered again.

use crate::keyrings::{KeyringHost, NOW, key, keyring, roots, signed};
use ruvllm_signing::Keyring;

#[test]
fn a_keyring_older_than_one_that_was_used_is_refused() {
    let root = key();
    let host = KeyringHost::trusting(roots(&[&root], 1));
    let first = keyring(1, roots(&[&root], 1));
    let leaked = first.publishers[0].key.clone();
    let second = first.revoke(leaked, "leaked".to_owned(), NOW.parse().unwrap()).unwrap();
    host.admit(signed(&first, &[&root])).unwrap();
    host.admit(signed(&second, &[&root])).unwrap();
    assert_eq!(host.refuses(signed(&first, &[&root])), "keyring_rollback");
    host.admit(signed(&second, &[&root])).unwrap();
}

#[test]
fn another_keyring_of_the_same_serial_is_refused() {
    let root = key();
    let host = KeyringHost::trusting(roots(&[&root], 1));
    let one = keyring(5, roots(&[&root], 1));
    let other = Keyring { publishers: Vec::new(), ..one.clone() };
    host.admit(signed(&one, &[&root])).unwrap();
    assert_eq!(host.refuses(signed(&other, &[&root])), "keyring_rollback");
}
