//! A device lies where a file should be; reading it would never end, or do something.

use crate::{KERNEL, good_pack, refused};
use std::process::Command;

#[test]
fn a_device_is_refused_unopened() {
    for (name, minor) in [(KERNEL, "5"), ("kernels.json", "3"), ("extra", "8")] {
        let pack = good_pack();
        let path = pack.path().join(name);
        let _ = std::fs::remove_file(&path);
        // Memory devices: 5 is /dev/zero, 3 is /dev/null, 8 is /dev/random.
        let made = Command::new("mknod").arg(&path).args(["c", "1", minor]).output();
        if !made.is_ok_and(|output| output.status.success()) {
            eprintln!("skipped: only root can make a device here");
            return;
        }
        assert_eq!(refused(&pack), ["special_file"], "{name}");
    }
}

#[test]
fn a_device_is_no_archive() {
    let limits = ruvllm_signing::PackLimits::default();
    let error = ruvllm_signing::UnverifiedPack::read("/dev/zero".as_ref(), &limits).unwrap_err();
    assert_eq!(error.code(), "io");
}
