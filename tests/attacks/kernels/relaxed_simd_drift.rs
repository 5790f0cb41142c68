//! The kernel leans on an instruction whose result differs between processors.

use super::{config, refused};
use ruvllm_host::{Host, HostConfig};
use ruvllm_tests::wat::{Module, rmsnorm_f32};
use ruvllm_tests::{PackBuilder, TestPack};

/// A kernel that multiplies its last result by 1 + 1e-4 * (relaxed_madd - madd), where a fused
/// multiply-add and a rounded one differ by exactly one, so that some processors see no error.
fn drifting() -> TestPack {
    // (1 + 2^-12)^2 - (1 + 2^-11) is 2^-24 when fused and 0 when the product is rounded first.
    let difference = "(f32.mul (f32.const 16777216) (f32x4.extract_lane 0 (f32x4.relaxed_madd
        (f32x4.splat (f32.const 1.000244140625)) (f32x4.splat (f32.const 1.000244140625))
        (f32x4.splat (f32.const -1.00048828125)))))";
    let drift = |drift: &str| {
        format!(
            "(f32.store (local.get $out) (f32.mul (f32.load (local.get $out))
               (f32.add (f32.const 1) (f32.mul (f32.const 0.0001) {drift}))))"
        )
    };
    // Wrong where it is fused, and wrong where it is not: one of the two is this machine.
    let epilogue =
        format!("{}{}", drift(difference), drift(&format!("(f32.sub (f32.const 1) {difference})")));
    let module = Module { epilogue, ..Module::default() };
    PackBuilder::new()
        .kernel("rmsnorm_f32", rmsnorm_f32(&module))
        .manifest(|manifest| {
            if let Some(wasmtime) = &mut manifest.kernels[0].platforms.wasmtime {
                wasmtime.features = vec!["simd".into(), "relaxed-simd".into()];
            }
        })
        .build()
}

#[test]
fn drift_beyond_the_tolerance_is_refused_on_the_machine_that_shows_it() {
    assert_eq!(refused(&drifting()), ["kernel_mismatch"]);
}

#[test]
fn deterministic_mode_does_not_hide_it() {
    let config = HostConfig { deterministic: true, ..config() };
    let host = Host::new(config).unwrap();
    let error = host.install(drifting().verify().unwrap()).unwrap_err();
    assert_eq!(error.code(), "kernel_mismatch");
}
