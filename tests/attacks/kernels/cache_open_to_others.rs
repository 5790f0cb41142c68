//! The directory of the cache, or its key, can be read or written by others.
#![cfg(unix)]

use super::{cache_of, cached, config, entries, pack};
use ruvllm_host::{Host, HostConfig};
use ruvllm_tests::wat::Module;
use std::fs::{self, Permissions};
use std::os::unix::fs::{PermissionsExt, symlink};

#[test]
fn neither_is_used_nor_written_to() {
    let directory = tempfile::tempdir().unwrap();
    let pack = pack(&Module::default());
    assert_eq!(cached(directory.path(), &pack), (0, 1));
    let cache = cache_of(directory.path());
    for (path, closed) in [(cache.clone(), 0o700), (cache.join("host.key"), 0o600)] {
        for open in [0o020, 0o002, 0o040, 0o004] {
            fs::set_permissions(&path, Permissions::from_mode(closed | open)).unwrap();
            assert_eq!(cached(directory.path(), &pack), (0, 1), "{open:o}");
            assert_eq!(entries(directory.path()).len(), 1);
        }
        fs::set_permissions(&path, Permissions::from_mode(closed)).unwrap();
        assert_eq!(cached(directory.path(), &pack), (1, 0));
    }
}

#[test]
fn a_link_to_a_directory_is_not_followed() {
    let directory = tempfile::tempdir().unwrap();
    let elsewhere = tempfile::tempdir().unwrap();
    symlink(elsewhere.path(), cache_of(directory.path())).unwrap();
    let config = HostConfig { cache_dir: Some(cache_of(directory.path())), ..config() };
    let report =
        Host::new(config).unwrap().install(pack(&Module::default()).verify().unwrap()).unwrap();
    assert!(report.cache.unusable.unwrap().contains("not a directory"));
    assert_eq!(fs::read_dir(elsewhere.path()).unwrap().count(), 0);
}
