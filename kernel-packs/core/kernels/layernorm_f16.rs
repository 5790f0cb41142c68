//! Layer normalisation, f16.
#![cfg_attr(target_family = "wasm", no_std, no_main)]

use ruvllm_core_kernels::layernorm::layernorm_row;
use ruvllm_kernel_sdk::prelude::*;

kernel! {
    fn layernorm_forward;
    revision 1;
    shape [rows, dim];
    param eps: f32;
    input x: F16 [rows, dim];
    input weight_and_bias: f32 [2, dim];
    output y: F16 [rows, dim];
    run {
        let mut rows = weight_and_bias.rows(dim);
        let (weight, bias) = (rows.next().unwrap_or_default(), rows.next().unwrap_or_default());
        for (x, y) in x.rows(dim).zip(y.rows_mut(dim)) {
            layernorm_row(x, weight, bias, eps, y);
        }
        Ok(())
    }
}
