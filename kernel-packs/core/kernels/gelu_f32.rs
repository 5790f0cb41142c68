//! GELU in its approximation by tanh, f32.
#![cfg_attr(target_family = "wasm", no_std, no_main)]

use ruvllm_core_kernels::gated_backward::gelu_backward;
use ruvllm_core_kernels::gelu::gelu;
use ruvllm_kernel_sdk::prelude::*;

kernel! {
    fn gelu_forward;
    revision 1;
    shape [rows, dim];
    input x: f32 [rows, dim];
    output y: f32 [rows, dim];
    run {
        gelu(x.as_slice(), y.as_mut_slice());
        Ok(())
    }
    backward {
        grad_output dy: f32 [rows, dim];
        grad_input dx: f32 [rows, dim];
        run {
            gelu_backward(x.as_slice(), dy.as_slice(), dx.as_mut_slice());
            Ok(())
        }
    }
}
