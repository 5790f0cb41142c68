//! A root that was rotated out, because it leaked, signs a keyring of its own.

use crate::keyrings::{KeyringHost, NOW, key, keyring, roots, signed};
use ruvllm_signing::Keyring;

#[test]
fn after_a_change_of_roots_the_old_ones_are_strangers_though_the_policy_names_them() {
    let [old, new] = [key(), key()];
    let host = KeyringHost::trusting(roots(&[&old], 1));
    let first = keyring(1, roots(&[&old], 1));
    host.admit(signed(&first, &[&old])).unwrap();
    let now = NOW.parse().unwrap();
    let second = Keyring { roots: roots(&[&new], 1), ..first.next(now) };
    assert_eq!(host.refuses(signed(&second, &[&new])), "keyring_not_trusted");
    assert_eq!(host.refuses(signed(&second, &[&old])), "keyring_not_trusted");
    host.admit(signed(&second, &[&old, &new])).unwrap();
    let usurper = Keyring { roots: roots(&[&old], 1), ..second.next(now) };
    assert_eq!(host.refuses(signed(&usurper, &[&old])), "keyring_not_trusted");
    host.admit(signed(&second.next(now), &[&new])).unwrap();
}

#[test]
fn a_root_that_the_keyring_revokes_does_not_sign_it() {
    let [leaked, sound] = [key(), key()];
    let host = KeyringHost::trusting(roots(&[&leaked, &sound], 1));
    let mut next = keyring(1, roots(&[&sound], 1));
    next = next.revoke(leaked.public_key(), "leaked".to_owned(), NOW.parse().unwrap()).unwrap();
    assert_eq!(host.refuses(signed(&next, &[&leaked])), "keyring_not_trusted");
    host.admit(signed(&next, &[&sound])).unwrap();
}
