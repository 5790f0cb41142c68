//! The kernel asks for the longest deadline that the host grants, and takes it for brief calls.

use super::{begins_with, later_begins_with, outlived, refused};
use ruvllm_tests::wat::{Module, rmsnorm_f32};
use ruvllm_tests::{PackBuilder, TestPack};
use std::time::{Duration, Instant};

const LOOP: &str = "(loop $l (br $l))";

/// A pack whose kernel may take ten seconds, if it is for the pack.
fn patient_pack(module: &Module) -> TestPack {
    PackBuilder::new()
        .kernel("rmsnorm_f32", rmsnorm_f32(module))
        .manifest(|m| m.kernels[0].resource_limits.max_epoch_ticks = 10_000)
        .build()
}

#[test]
fn a_call_has_the_time_that_its_size_takes_whatever_the_pack_asks_for() {
    let (admitted, refusable) =
        (patient_pack(&later_begins_with(LOOP)), patient_pack(&begins_with(LOOP)));
    let started = Instant::now();
    assert_eq!(refused(&refusable), ["kernel_deadline"]);
    let incidents = outlived(&admitted, 1);
    assert_eq!(incidents[0].failure.code(), "kernel_deadline");
    assert!(started.elapsed() < Duration::from_secs(8), "{:?}", started.elapsed());
}
