//! Root-mean-square normalisation, f32.
#![cfg_attr(target_family = "wasm", no_std, no_main)]
#![allow(unsafe_code)]

use kernels::rmsnorm::rmsnorm_row;
use ruvllm_kernel_sdk::prelude::*;

kernel! {
    fn rmsnorm_forward;
    revision 1;
    shape [rows, dim];
    param eps: f32;
    input x: f32 [rows, dim];
    input weight: f32 [dim];
    output y: f32 [rows, dim];
    run {
        for (x, y) in x.rows(dim).zip(y.rows_mut(dim)) {
            rmsnorm_row(x, weight.as_slice(), eps, y);
        }
        Ok(())
    }
}
