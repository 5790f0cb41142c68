//! Somebody writes machine code of their own into the cache.

use super::{cached, entries, pack};
use ruvllm_tests::wat::Module;
use std::fs;

#[test]
fn a_changed_entry_is_compiled_anew_and_replaced() {
    let directory = tempfile::tempdir().unwrap();
    let pack = pack(&Module::default());
    assert_eq!(cached(directory.path(), &pack), (0, 1));
    let [path] = entries(directory.path()).try_into().unwrap();
    let good = fs::read(&path).unwrap();
    // In the magic, the MAC, the id, the flags, the code, and at the very end.
    for at in [0, 10, 50, 72, 200, good.len() - 1] {
        let mut bad = good.clone();
        bad[at] ^= 1;
        fs::write(&path, bad).unwrap();
        assert_eq!(cached(directory.path(), &pack), (0, 1), "byte {at}");
        assert_eq!(fs::read(&path).unwrap().len(), good.len());
    }
    for bad in [&b""[..], b"RVAOT001", &good[..good.len() / 2]] {
        fs::write(&path, bad).unwrap();
        assert_eq!(cached(directory.path(), &pack), (0, 1), "{} bytes", bad.len());
    }
    assert_eq!(cached(directory.path(), &pack), (1, 0), "healed");
}

#[test]
fn an_entry_made_under_another_key_is_not_believed() {
    let (ours, theirs) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let pack = pack(&Module::default());
    assert_eq!(cached(ours.path(), &pack), (0, 1));
    assert_eq!(cached(theirs.path(), &pack), (0, 1));
    let ([mine], [forged]) = (
        <[_; 1]>::try_from(entries(ours.path())).unwrap(),
        <[_; 1]>::try_from(entries(theirs.path())).unwrap(),
    );
    assert_eq!(mine.file_name(), forged.file_name(), "the same kernel has the same name");
    fs::copy(&forged, &mine).unwrap();
    assert_eq!(cached(ours.path(), &pack), (0, 1));
}
