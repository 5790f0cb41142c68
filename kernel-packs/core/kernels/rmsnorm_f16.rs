//! Root-mean-square normalisation, f16.
#![cfg_attr(target_family = "wasm", no_std, no_main)]

use ruvllm_core_kernels::rmsnorm::rmsnorm_row;
use ruvllm_kernel_sdk::prelude::*;

kernel! {
    fn rmsnorm_forward;
    revision 1;
    shape [rows, dim];
    param eps: f32;
    input x: F16 [rows, dim];
    input weight: f32 [dim];
    output y: F16 [rows, dim];
    run {
        for (x, y) in x.rows(dim).zip(y.rows_mut(dim)) {
            rmsnorm_row(x, weight.as_slice(), eps, y);
        }
        Ok(())
    }
}
