//! Root-mean-square normalisation, f32.
#![cfg_attr(target_family = "wasm", no_std, no_main)]

use ruvllm_core_kernels::norm_backward::rmsnorm_backward_row;
use ruvllm_core_kernels::rmsnorm::rmsnorm_row;
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
    backward {
        grad_output dy: f32 [rows, dim];
        grad_input dx: f32 [rows, dim];
        grad_input dweight: f32 [dim];
        run {
            let dweight = dweight.as_mut_slice();
            dweight.fill(0.0);
            for ((x, dy), dx) in x.rows(dim).zip(dy.rows(dim)).zip(dx.rows_mut(dim)) {
                rmsnorm_backward_row(x, weight.as_slice(), eps, dy, dx, dweight);
            }
            Ok(())
        }
    }
}
