//! Each call of admission takes less than its deadline, and all of them for ever.

use super::{begins_with, config_for, pack, thread_begins_with, threaded_pack};
use ruvllm_host::{Host, HostConfig};
use ruvllm_tests::{TestPack, wamr};
use std::time::Duration;

/// Instructions that take long, and not too long for a call.
fn slow() -> String {
    // An interpreter takes as long for a tenth.
    let turns = if wamr::is_taken() { 100_000 } else { 1_000_000 };
    format!(
        "(local.set $i (i32.const {turns}))
         (loop $l (br_if $l (local.tee $i (i32.sub (local.get $i) (i32.const 1)))))"
    )
}

fn takes_too_long(slow: &TestPack) {
    let install = |admission_time| {
        let host = Host::new(HostConfig { admission_time, ..config_for(slow) }).unwrap();
        host.install(slow.verify().unwrap()).map(drop)
    };
    install(Duration::from_secs(60)).unwrap();
    let error = install(Duration::from_millis(5)).unwrap_err();
    assert_eq!(error.code(), "admission_timeout");
}

#[test]
fn a_pack_that_takes_too_long_to_prove_itself_is_refused() {
    takes_too_long(&pack(&begins_with(&slow())));
}

#[test]
fn so_is_one_that_takes_too_long_in_another_thread() {
    takes_too_long(&threaded_pack(&thread_begins_with(1, &slow())));
}
