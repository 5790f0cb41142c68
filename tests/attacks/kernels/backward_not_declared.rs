//! The module exports gradients that its manifest does not mention, or the other way.

use super::{differentiable, pack, refused};
use ruvllm_tests::PackBuilder;
use ruvllm_tests::wat::{Module, rmsnorm_backward, rmsnorm_f32};

#[test]
fn gradients_that_the_manifest_does_not_mention_are_refused() {
    let module = Module { fields: rmsnorm_backward("", ""), ..Module::default() };
    assert_eq!(refused(&pack(&module)), ["backward_undeclared"]);
}

#[test]
fn gradients_that_the_module_lacks_are_refused() {
    let pack = PackBuilder::new()
        .kernel("rmsnorm_f32", rmsnorm_f32(&Module::default()))
        .manifest(|m| m.kernels[0].backward = true)
        .build();
    assert_eq!(refused(&pack), ["export_missing"]);
}

#[test]
fn gradients_that_are_declared_and_right_are_admitted() {
    let host = ruvllm_host::Host::new(Default::default()).unwrap();
    host.install(differentiable("", "").verify().unwrap()).unwrap();
    let [dx, dweight] = super::gradients(&host);
    assert!(dx.iter().chain(&dweight).all(|x| x.is_finite()));
    let stats = host.stats().into_iter().find(|stats| stats.kernel == "rmsnorm_f32").unwrap();
    assert_eq!((stats.backward_calls, stats.calls, stats.fallbacks), (1, 0, 0));
}
