//! A listed file is a symlink to a file with the right bytes.

use crate::{KERNEL, good_pack};
use ruvllm_tests::codes;
use std::os::unix::fs::symlink;

#[test]
fn a_symlink_in_place_of_a_listed_file_is_refused_whatever_it_points_to() {
    let pack = good_pack();
    let inside = pack.path().join(KERNEL);
    let outside = pack.outside().join("outside.wasm");
    std::fs::rename(&inside, &outside).unwrap();
    for target in [outside.as_path(), "/dev/zero".as_ref(), "/nowhere".as_ref()] {
        symlink(target, &inside).unwrap();
        assert_eq!(codes(&pack.verify().unwrap_err()), ["symlink"], "{target:?}");
        std::fs::remove_file(&inside).unwrap();
    }
}

#[test]
fn a_symlinked_manifest_or_signature_is_refused() {
    for name in ["kernels.json", "kernels.json.sig"] {
        let pack = good_pack();
        let outside = pack.outside().join("moved");
        std::fs::rename(pack.path().join(name), &outside).unwrap();
        symlink(&outside, pack.path().join(name)).unwrap();
        assert_eq!(codes(&pack.verify().unwrap_err()), ["symlink"], "{name}");
    }
}

#[test]
fn the_pack_directory_itself_may_be_named_through_a_symlink() {
    let pack = good_pack();
    let link = pack.outside().join("current");
    symlink(pack.path(), &link).unwrap();
    let limits = ruvllm_signing::PackLimits::default();
    let read = ruvllm_signing::UnverifiedPack::read_dir(&link, &limits).unwrap();
    assert!(read.verify(&pack.policy(), None).is_ok());
}
