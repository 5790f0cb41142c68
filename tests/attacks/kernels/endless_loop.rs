//! The kernel loops for ever.

use super::{begins_with, hasty_pack, later_begins_with, outlived, refused};
use std::time::{Duration, Instant};

const LOOP: &str = "(loop $l (br $l))";

#[test]
fn an_endless_loop_is_refused_at_its_deadline() {
    let started = Instant::now();
    assert_eq!(refused(&hasty_pack(&begins_with(LOOP))), ["kernel_deadline"]);
    assert!(started.elapsed() < Duration::from_secs(30));
}

#[test]
fn an_endless_loop_later_is_answered_by_the_twin() {
    let incidents = outlived(&hasty_pack(&later_begins_with(LOOP)), 1);
    assert_eq!(incidents[0].failure.code(), "kernel_deadline");
}

#[test]
fn an_endless_init_is_refused_at_its_deadline() {
    let fields = r#"(func (export "kernel_init") (param i32 i32) (result i32)
        (loop $l (br $l)) (i32.const 0))"#;
    let module = ruvllm_tests::wat::Module {
        fields: fields.to_owned(),
        ..ruvllm_tests::wat::Module::default()
    };
    assert_eq!(refused(&hasty_pack(&module)), ["kernel_instantiate"]);
}
