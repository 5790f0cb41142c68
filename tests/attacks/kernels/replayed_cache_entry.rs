//! An authentic entry of one kernel is put in the place of another's.

use super::{cached, ends_with, entries, pack};
use ruvllm_tests::wat::Module;
use std::fs;

#[test]
fn an_entry_speaks_for_its_own_module_only() {
    let directory = tempfile::tempdir().unwrap();
    let good = pack(&Module::default());
    let other = pack(&ends_with("(nop)"));
    assert_eq!(cached(directory.path(), &good), (0, 1));
    let [of_good] = entries(directory.path()).try_into().unwrap();
    assert_eq!(cached(directory.path(), &other), (0, 1));
    let of_other = entries(directory.path()).into_iter().find(|path| *path != of_good).unwrap();
    fs::copy(of_other, &of_good).unwrap();
    assert_eq!(cached(directory.path(), &good), (0, 1));
}
