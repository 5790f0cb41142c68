//! The manifest asks to be judged by a tolerance that lets anything pass.

use super::{pack, refused};
use ruvllm_tests::wat::Module;
use serde_json::json;

#[test]
fn a_tolerance_looser_than_the_hosts_is_refused() {
    let pack = pack(&Module::default());
    pack.sign_edited(|m| m["kernels"][0]["tolerance"] = json!({ "rel": 0.5, "abs": 10.0 }));
    assert_eq!(refused(&pack), ["tolerance_too_loose"]);
}
