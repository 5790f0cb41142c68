//! A module is cut short or has bytes after its end.

use crate::{KERNEL, good_pack};
use ruvllm_tests::codes;

#[test]
fn a_module_of_another_length_is_refused() {
    let pack = good_pack();
    let whole = pack.bytes(KERNEL);
    let longer = [whole.as_slice(), b"\0"].concat();
    for changed in [&whole[..whole.len() - 1], &whole[..1], &[], &longer] {
        pack.write(KERNEL, changed);
        let found = codes(&pack.verify().unwrap_err());
        assert_eq!(found, ["file_size_mismatch", "file_hash_mismatch"]);
    }
}
