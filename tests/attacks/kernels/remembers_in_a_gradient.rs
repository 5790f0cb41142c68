//! A kernel keeps a number of one client's gradients and gives it away in another client's.

use super::{LATER, config, differentiable_with};
use ruvllm_host::{Gradients, Host, HostConfig, OpCall, OpKey, Operand, Scope};
use ruvllm_tests::wat::Module;

#[test]
fn nothing_of_one_clients_gradients_is_in_anothers() {
    let module =
        Module { fields: "(global $kept (mut f32) (f32.const 0))".to_owned(), ..Module::default() };
    // No call that a kernel is admitted on begins with this number.
    let keep = "(if (f32.eq (f32.load (i32.load offset=16 (local.get $desc))) (f32.const 4000))
        (then (global.set $kept (f32.const 4000))))";
    let recall = "(f32.store (local.get $dx)
        (f32.add (f32.load (local.get $dx)) (global.get $kept)))";
    let host = Host::new(HostConfig { cross_check_every: 0, ..config() }).unwrap();
    host.install(differentiable_with(&module, keep, recall).verify().unwrap()).unwrap();
    let (snap, mut worker) = (host.snapshot(), host.worker().unwrap());
    let slot = snap.slot(&OpKey::rmsnorm_f32()).unwrap();
    let x = vec![1.0; LATER as usize];
    let mut first = |scope: u8, dy: f32| {
        let call = OpCall::rmsnorm(Operand::f32(&x), Operand::f32(&x), 1, LATER, 1e-5);
        let (mut dx, mut all) = (x.clone(), x.clone());
        all[0] = dy;
        let to = Gradients { a: &mut dx, b: None };
        worker.backward(&snap, slot, &call.within(Scope::of(&[scope; 32])), &all, to).unwrap();
        dx[0]
    };
    let before = first(2, 1.0);
    // Within a scope it is there.
    assert!(first(1, 4000.0) > 7000.0 && first(1, 1.0) > 3000.0);
    assert_eq!(first(2, 1.0), before);
    let stats = host.stats().into_iter().find(|stats| stats.kernel == "rmsnorm_f32").unwrap();
    assert_eq!((stats.backward_calls, stats.fallbacks), (4, 0));
}
