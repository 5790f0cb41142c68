//! Gated unit GEGLU, f32.
#![cfg_attr(target_family = "wasm", no_std, no_main)]
#![allow(unsafe_code)]

use kernels::geglu::geglu;
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
}
