//! The kernel drops a data segment, and sees later that it is gone.

use super::{pack, refused};
use ruvllm_tests::wat::Module;

#[test]
fn a_segment_that_could_be_dropped_is_refused() {
    let module = Module {
        fields: "(data $d \"x\")".to_owned(),
        prologue: "(data.drop $d)".to_owned(),
        ..Module::default()
    };
    assert_eq!(refused(&pack(&module)), ["module_segment"]);
}
