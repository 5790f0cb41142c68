//! A deployment pins its packs, and gets another one: also one that is authentic and newer.

use crate::{good_pack, good_version};
use ruvllm_signing::PackLock;
use ruvllm_tests::codes;

#[test]
fn a_pack_that_the_lock_does_not_pin_is_refused() {
    let pack = good_pack();
    let verified = pack.verify().unwrap();
    let mut lock = PackLock::new();
    assert_eq!(codes(&lock.check(&verified).unwrap_err()), ["pack_not_locked"]);
    lock.insert(&verified);
    let lock = PackLock::from_toml(&lock.to_toml().unwrap()).unwrap();
    lock.check(&verified).unwrap();
    // Another version by the same publisher.
    let newer = good_version(&pack, "1.0.1").verify().unwrap();
    assert_eq!(codes(&lock.check(&newer).unwrap_err()), ["lock_mismatch"]);
    // The same version with other contents by the same publisher.
    pack.sign_edited(|m| m["description"] = serde_json::json!("the same, only different"));
    let error = lock.check(&pack.verify().unwrap()).unwrap_err();
    assert_eq!(codes(&error), ["lock_mismatch"]);
    // A pack of another name.
    pack.sign_edited(|m| m["name"] = serde_json::json!("test-kernels-2"));
    assert_eq!(codes(&lock.check(&pack.verify().unwrap()).unwrap_err()), ["pack_not_locked"]);
}

#[test]
fn a_lock_file_with_two_pins_of_one_name_is_refused() {
    let mut lock = PackLock::new();
    lock.insert(&good_pack().verify().unwrap());
    let text = lock.to_toml().unwrap();
    let section = &text[text.find("[packs").unwrap()..];
    let doubled = format!("{text}\n{section}");
    assert_eq!(PackLock::from_toml(&doubled).unwrap_err().code(), "lock_invalid");
}
