//! The manifest lists a file that is not there.

use crate::{KERNEL, good_pack};
use ruvllm_tests::codes;

#[test]
fn a_listed_file_that_is_missing_is_refused() {
    let pack = good_pack();
    pack.remove(KERNEL);
    let error = pack.verify().unwrap_err();
    assert_eq!(codes(&error), ["file_missing"]);
    assert_eq!(error.violations()[0].location, KERNEL);
}

#[test]
fn a_directory_in_its_place_is_no_file() {
    let pack = good_pack();
    pack.remove(KERNEL);
    std::fs::create_dir(pack.path().join(KERNEL)).unwrap();
    assert_eq!(codes(&pack.verify().unwrap_err()), ["file_missing"]);
}
