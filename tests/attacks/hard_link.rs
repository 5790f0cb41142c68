//! A listed file is a hard link to a file outside of the pack.

use crate::{KERNEL, good_pack};
use ruvllm_tests::codes;

#[test]
fn a_hard_link_counts_by_its_bytes_and_by_those_that_were_read() {
    let pack = good_pack();
    let (inside, outside) = (pack.path().join(KERNEL), pack.outside().join("outside.wasm"));
    std::fs::hard_link(&inside, &outside).unwrap();
    let read = pack.read().unwrap();
    let before = std::fs::read(&outside).unwrap();
    // Through the other name the file changes after it was read: what was read still counts.
    std::fs::write(&outside, b"changed").unwrap();
    let verified = read.verify(&pack.policy(), None).unwrap();
    assert_eq!(verified.kernel_bytes("rmsnorm_f32"), Some(before.as_slice()));
    let found = codes(&pack.verify().unwrap_err());
    assert_eq!(found, ["file_size_mismatch", "file_hash_mismatch"]);
}
