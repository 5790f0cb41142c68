//! A secret key lies in a file that others can read or write.

use crate::{good_pack, tree};
use ruvllm_signing::SecretKey;
use std::fs;
use std::os::unix::fs::PermissionsExt;

#[test]
fn a_key_that_others_could_have_read_does_not_sign() {
    let pack = good_pack();
    let path = pack.outside().join("key.pem");
    pack.key().write_new_file(&path).unwrap();
    for mode in [0o644, 0o640, 0o620, 0o604, 0o602, 0o666] {
        fs::set_permissions(&path, PermissionsExt::from_mode(mode)).unwrap();
        let before = tree(pack.outside());
        assert_eq!(SecretKey::read_file(&path).unwrap_err().code(), "key_exposed", "{mode:o}");
        assert_eq!(tree(pack.outside()), before);
    }
    fs::set_permissions(&path, PermissionsExt::from_mode(0o600)).unwrap();
    assert!(SecretKey::read_file(&path).is_ok());
}
