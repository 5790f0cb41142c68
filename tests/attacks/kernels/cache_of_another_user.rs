//! The directory of the cache belongs to somebody else, who could put code there.
#![cfg(unix)]

use super::{cache_of, cached, entries, pack};
use ruvllm_tests::wat::Module;
use std::fs;
use std::os::unix::fs::chown;

#[test]
fn it_is_not_used_nor_written_to() {
    let directory = tempfile::tempdir().unwrap();
    let pack = pack(&Module::default());
    assert_eq!(cached(directory.path(), &pack), (0, 1));
    let cache = cache_of(directory.path());
    for path in [cache.clone(), cache.join("host.key")] {
        if chown(&path, Some(65_534), None).is_err() {
            eprintln!("skipped: giving a file away takes the rights of an administrator");
            return;
        }
        assert_eq!(cached(directory.path(), &pack), (0, 1));
        assert_eq!(entries(directory.path()).len(), 1);
        chown(&path, Some(0), None).unwrap();
        assert_eq!(cached(directory.path(), &pack), (1, 0));
    }
    assert!(fs::read_dir(&cache).unwrap().count() >= 2);
}
