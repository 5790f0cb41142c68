//! Files change between verification and use.

use crate::{KERNEL, good_kernel, good_pack};
use ruvllm_host::{Host, HostConfig};
use ruvllm_signing::{PackLimits, UnverifiedPack};

#[test]
fn what_runs_is_what_was_verified_whatever_happens_to_the_directory() {
    let pack = good_pack();
    let read = pack.read().unwrap();
    pack.write(KERNEL, b"swapped after it was read");
    let verified = read.verify(&pack.policy(), None).unwrap();
    pack.write("kernels.json", b"{}");
    std::fs::remove_dir_all(pack.path()).unwrap();
    assert_eq!(verified.kernel_bytes("rmsnorm_f32"), Some(good_kernel().as_slice()));
    let host = Host::new(HostConfig::default()).unwrap();
    host.install(verified).unwrap();
    assert!(host.kernels().iter().any(|kernel| kernel.id == "rmsnorm_f32"));
}

#[test]
fn an_archive_that_changes_after_it_was_read_changes_nothing() {
    let pack = good_pack();
    let file = pack.outside().join("pack.rkp");
    let mut bytes = Vec::new();
    pack.read().unwrap().write_archive(&mut bytes).unwrap();
    std::fs::write(&file, bytes).unwrap();
    let read = UnverifiedPack::read(&file, &PackLimits::default()).unwrap();
    std::fs::write(&file, b"swapped").unwrap();
    let verified = read.verify(&pack.policy(), None).unwrap();
    assert_eq!(verified.kernel_bytes("rmsnorm_f32"), Some(good_kernel().as_slice()));
}
