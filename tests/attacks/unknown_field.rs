//! A signed manifest says something that this runtime does not know.

use crate::good_pack;
use ruvllm_tests::codes;
use serde_json::json;

#[test]
fn an_unknown_field_is_refused_at_every_level() {
    for place in ["", "/author", "/kernels/0", "/kernels/0/platforms", "/kernels/0/resource_limits"]
    {
        let pack = good_pack();
        pack.sign_edited(|m| m.pointer_mut(place).unwrap()["surprise"] = json!(true));
        assert_eq!(codes(&pack.verify().unwrap_err()), ["unknown_field"], "{place}");
    }
}
