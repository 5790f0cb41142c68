//! A host is kept on a keyring whose time is over.

use crate::keyrings::{KeyringHost, NOW, key, keyring, roots, signed};
use crate::{good_pack, refused_by};
use ruvllm_signing::{Clock, TrustPolicy};

#[test]
fn a_keyring_is_refused_from_its_end_on_and_where_nobody_knows_the_time() {
    let root = key();
    let host = KeyringHost::trusting(roots(&[&root], 1));
    let keyring = keyring(1, roots(&[&root], 1));
    let offer = || signed(&keyring, &[&root]);
    assert_eq!(host.refuses_at(offer(), Some("2027-11-20T00:00:00Z")), "keyring_expired");
    assert_eq!(host.refuses_at(offer(), None), "clock_unknown");
    host.admit_at(offer(), Some("2027-11-19T23:59:59Z")).unwrap();
}

#[test]
fn its_publishers_do_not_outlive_it_in_a_process_that_has_read_it() {
    let (pack, root) = (good_pack(), key());
    let host = KeyringHost::trusting(roots(&[&root], 1));
    let mut keyring = keyring(1, roots(&[&root], 1));
    keyring.publishers = vec![pack.publisher("acme")];
    let policy = TrustPolicy::from_keyring(&host.admit(signed(&keyring, &[&root])).unwrap(), 1);
    let policy = policy.unwrap();
    let now = NOW.parse().unwrap();
    assert!(pack.read().unwrap().verify_at(&policy, None, now).is_ok());
    let later = Clock::Fixed("2027-11-20T00:00:00Z".parse().unwrap());
    assert_eq!(refused_by(&pack, &policy, later), ["publisher_expired"]);
}
