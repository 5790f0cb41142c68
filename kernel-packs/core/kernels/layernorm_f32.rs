//! Layer normalisation, f32.
#![cfg_attr(target_family = "wasm", no_std, no_main)]

use ruvllm_core_kernels::layernorm::layernorm_row;
use ruvllm_core_kernels::norm_backward::layernorm_backward_row;
use ruvllm_kernel_sdk::prelude::*;

kernel! {
    fn layernorm_forward;
    revision 1;
    shape [rows, dim];
    param eps: f32;
    input x: f32 [rows, dim];
    input weight_and_bias: f32 [2, dim];
    output y: f32 [rows, dim];
    run {
        let mut rows = weight_and_bias.rows(dim);
        let (weight, bias) = (rows.next().unwrap_or_default(), rows.next().unwrap_or_default());
        for (x, y) in x.rows(dim).zip(y.rows_mut(dim)) {
            layernorm_row(x, weight, bias, eps, y);
        }
        Ok(())
    }
    backward {
        grad_output dy: f32 [rows, dim];
        grad_input dx: f32 [rows, dim];
        grad_input dparams: f32 [2, dim];
        run {
            let weight = weight_and_bias.rows(dim).next().unwrap_or_default();
            let dparams = dparams.as_mut_slice();
            dparams.fill(0.0);
            let (dweight, dbias) = dparams.split_at_mut_checked(dim).ok_or(Status::InvalidOutput)?;
            for ((x, dy), dx) in x.rows(dim).zip(dy.rows(dim)).zip(dx.rows_mut(dim)) {
                layernorm_backward_row(x, weight, eps, dy, dx, [&mut *dweight, &mut *dbias]);
            }
            Ok(())
        }
    }
}
