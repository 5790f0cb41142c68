//! Threads of a kernel get in each other's way, so that what they give depends on how many there are.

use super::refused;
use ruvllm_tests::wat::{meet, threaded_copy};
use ruvllm_tests::{PackBuilder, TestPack, custom_entry};

/// A pack whose kernel copies, and then each of its threads does this.
fn ending_with(end: &str) -> TestPack {
    let mut entry = custom_entry("copy_f32", "copy", "run");
    // They wait for each other, on however few cores.
    entry.resource_limits.max_epoch_ticks = 10_000;
    PackBuilder::new().entry(entry, threaded_copy("", "", end)).threads(4).build()
}

#[test]
fn threads_that_write_the_same_number_are_refused() {
    let add = |n: i32| {
        format!(
            "(i32.store (local.get $out) (i32.add (i32.load (local.get $out)) (i32.const {n})))"
        )
    };
    // When all is copied each adds one to the first word, and then the first takes one away.
    let first = format!("(if (i32.eqz (local.get $index)) (then {}))", add(-1));
    let race = [meet(256), add(1), meet(512), first].concat();
    assert_eq!(refused(&ending_with(&race)), ["kernel_not_deterministic"]);
}

#[test]
fn a_result_that_depends_on_the_number_of_threads_is_refused() {
    // By a bit, where a tolerance would let it pass.
    let bit =
        "(if (i32.and (i32.gt_u (local.get $count) (i32.const 1)) (i32.eqz (local.get $index)))
        (then (i32.store (local.get $out)
          (i32.xor (i32.load (local.get $out)) (i32.const 1)))))";
    assert_eq!(refused(&ending_with(&(meet(256) + bit))), ["kernel_not_deterministic"]);
}

#[test]
fn threads_that_agree_are_not() {
    let pack = ending_with(&meet(256));
    let host = ruvllm_host::Host::new(super::config_for(&pack)).unwrap();
    assert_eq!(host.install(pack.verify().unwrap()).unwrap().kernels, ["copy_f32"]);
}
