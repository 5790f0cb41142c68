//! One thread of a kernel returns a status other than `OK`, while another would loop for ever.

use super::{outlived, refused, thread_begins_with, thread_later_begins_with, threaded_pack};
use ruvllm_tests::wat::Module;

#[test]
fn the_status_of_one_thread_is_that_of_the_call() {
    let gives_up = thread_begins_with(1, "(return (i32.const 5))");
    assert_eq!(refused(&threaded_pack(&gives_up)), ["kernel_status"]);
}

#[test]
fn a_thread_that_gives_up_later_ends_the_others_with_it() {
    let gives_up = thread_later_begins_with(1, "(return (i32.const 5))").prologue;
    let loops = thread_later_begins_with(2, "(loop $l (br $l))").prologue;
    let module = Module { prologue: format!("{gives_up} {loops}"), ..Module::threaded() };
    let incidents = outlived(&threaded_pack(&module), 2);
    assert_eq!(incidents.len(), 2);
    assert!(incidents.iter().all(|incident| incident.failure.code() == "kernel_status"));
}
