//! A caller gives an output that is smaller or larger than the shapes say, as a kernel would like.

use super::{LATER, config, later_begins_with, pack};
use ruvllm_host::{CallError, Host, OpCall, OpKey, Operand};

#[test]
fn the_call_is_refused_before_any_kernel_sees_it() {
    let host = Host::new(config()).unwrap();
    // Were it asked, it would be caught: it traps.
    host.install(pack(&later_begins_with("unreachable")).verify().unwrap()).unwrap();
    let snap = host.snapshot();
    let slot = snap.slot(&OpKey::rmsnorm_f32()).unwrap();
    let mut worker = host.worker().unwrap();
    let (x, weight) = (vec![1.0f32; 3 * LATER as usize], vec![1.0f32; LATER as usize]);
    let call = OpCall::rmsnorm(Operand::f32(&x), Operand::f32(&weight), 3, LATER, 1e-5);
    for bytes in [0, 4, x.len() * 4 - 1, x.len() * 4 + 4] {
        let mut y = vec![0x5a; bytes];
        let error = worker.call(&snap, slot, &call, &mut y).unwrap_err();
        assert!(matches!(error, CallError::Shape { .. }), "{bytes}: {error}");
        assert!(y.iter().all(|&byte| byte == 0x5a), "{bytes}: the output was written");
    }
    assert!(host.take_incidents().0.is_empty());
}
