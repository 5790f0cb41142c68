//! A custom operation: `y = a * x + b`, f32.
#![cfg_attr(target_family = "wasm", no_std, no_main)]
#![allow(unsafe_code)]

use kernels::affine::affine;
use ruvllm_kernel_sdk::prelude::*;

kernel! {
    fn affine_forward;
    revision 1;
    shape [rows, dim];
    param a: f32;
    param b: f32;
    input x: f32 [rows, dim];
    output y: f32 [rows, dim];
    run {
        affine(a, b, x.as_slice(), y.as_mut_slice());
        Ok(())
    }
}
