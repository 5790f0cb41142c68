//! One thread of a kernel traps, while another would loop for ever.

use super::{outlived, refused, thread_begins_with, thread_later_begins_with, threaded_pack};
use ruvllm_host::TrapKind;
use ruvllm_tests::wat::Module;

#[test]
fn a_thread_that_traps_is_refused() {
    assert_eq!(refused(&threaded_pack(&thread_begins_with(1, "unreachable"))), ["kernel_trap"]);
    let beyond = "(drop (i32.load (i32.const -4)))";
    assert_eq!(refused(&threaded_pack(&thread_begins_with(2, beyond))), ["kernel_trap"]);
}

#[test]
fn a_thread_that_traps_later_ends_the_others_with_it() {
    let traps = thread_later_begins_with(3, "unreachable").prologue;
    let loops = thread_later_begins_with(0, "(loop $l (br $l))").prologue;
    let module = Module { prologue: format!("{traps} {loops}"), ..Module::threaded() };
    // Each time anew: what is left of the call does not reach the next.
    let incidents = outlived(&threaded_pack(&module), 2);
    assert_eq!(incidents.len(), 2);
    for incident in incidents {
        assert_eq!(incident.failure.trap().map(|trap| trap.kind), Some(TrapKind::Unreachable));
    }
}
