//! Gated unit GEGLU, f32.
#![cfg_attr(target_family = "wasm", no_std, no_main)]

use ruvllm_core_kernels::gated_backward::geglu_backward;
use ruvllm_core_kernels::gelu::geglu;
use ruvllm_kernel_sdk::prelude::*;

kernel! {
    fn geglu_forward;
    revision 1;
    shape [rows, dim];
    input gate: f32 [rows, dim];
    input up: f32 [rows, dim];
    output y: f32 [rows, dim];
    run {
        geglu(gate.as_slice(), up.as_slice(), y.as_mut_slice());
        Ok(())
    }
    backward {
        grad_output dy: f32 [rows, dim];
        grad_input dgate: f32 [rows, dim];
        grad_input dup: f32 [rows, dim];
        run {
            let (gate, up, dy) = (gate.as_slice(), up.as_slice(), dy.as_slice());
            geglu_backward(gate, up, dy, dgate.as_mut_slice(), dup.as_mut_slice());
            Ok(())
        }
    }
}
