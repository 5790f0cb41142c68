//! The kernel keeps what it saw in a global that holds a reference.

use super::{pack, refused};
use ruvllm_tests::wat::Module;

#[test]
fn a_mutable_reference_is_refused() {
    let module = Module {
        fields: "(global $r (mut funcref) (ref.null func))".to_owned(),
        prologue: "(global.set $r (ref.null func))".to_owned(),
        ..Module::default()
    };
    assert_eq!(refused(&pack(&module)), ["module_global"]);
}
