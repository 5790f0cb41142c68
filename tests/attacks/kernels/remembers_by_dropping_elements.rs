//! The kernel drops an element segment, and sees later that it is gone.

use super::{pack, refused};
use ruvllm_tests::wat::Module;

#[test]
fn an_element_segment_that_could_be_dropped_is_refused() {
    let module = Module {
        fields: "(table $t 2 funcref) (elem $e funcref (ref.null func))".to_owned(),
        prologue: "(elem.drop $e)".to_owned(),
        ..Module::default()
    };
    assert_eq!(refused(&pack(&module)), ["module_segment"]);
}
