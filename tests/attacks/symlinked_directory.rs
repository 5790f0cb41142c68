//! A directory of the pack is a symlink, to elsewhere or to itself.

use crate::good_pack;
use ruvllm_tests::codes;
use std::os::unix::fs::symlink;

#[test]
fn a_symlinked_directory_is_refused() {
    let pack = good_pack();
    let outside = pack.outside().join("moved");
    std::fs::rename(pack.path().join("test"), &outside).unwrap();
    symlink(&outside, pack.path().join("test")).unwrap();
    assert_eq!(codes(&pack.verify().unwrap_err()), ["symlink"]);
}

#[test]
fn a_circle_of_directories_ends() {
    let pack = good_pack();
    symlink(pack.path(), pack.path().join("test/again")).unwrap();
    assert_eq!(codes(&pack.verify().unwrap_err()), ["symlink"]);
}
