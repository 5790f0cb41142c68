//! Gated unit SwiGLU, f32.
#![cfg_attr(target_family = "wasm", no_std, no_main)]
#![allow(unsafe_code)]

use kernels::swiglu::{swiglu, swiglu_backward};
use ruvllm_kernel_sdk::prelude::*;

kernel! {
    fn swiglu_forward;
    revision 1;
    shape [rows, dim];
    input gate: f32 [rows, dim];
    input up: f32 [rows, dim];
    output y: f32 [rows, dim];
    run {
        swiglu(gate.as_slice(), up.as_slice(), y.as_mut_slice());
        Ok(())
    }
    // Optional: without it the host's own code gives the gradients to who trains a model.
    backward {
        grad_output dy: f32 [rows, dim];
        grad_input dgate: f32 [rows, dim];
        grad_input dup: f32 [rows, dim];
        run {
            let gradients = [dgate.as_mut_slice(), dup.as_mut_slice()];
            swiglu_backward(gate.as_slice(), up.as_slice(), dy.as_slice(), gradients);
            Ok(())
        }
    }
}
