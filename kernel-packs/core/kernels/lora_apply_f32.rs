//! Low-rank update, f32.
#![cfg_attr(target_family = "wasm", no_std, no_main)]

use ruvllm_core_kernels::lora::{LoraShape, lora_apply, lora_backward};
use ruvllm_kernel_sdk::prelude::*;

kernel! {
    fn lora_apply_forward;
    revision 1;
    shape [rows, in_dim, groups, rank, out_dim];
    param scale: f32;
    input x: f32 [rows, in_dim];
    input ab: f32 [groups, rank, 4];
    output y: f32 [rows, out_dim];
    scratch scratch;
    run {
        let shape = LoraShape { rows, in_dim, rank, out_dim };
        if groups != shape.groups() {
            return Err(Status::InvalidParams);
        }
        lora_apply(&shape, scale, x.as_slice(), ab.as_slice(), y.as_mut_slice(), &mut scratch)
    }
    backward {
        grad_output dy: f32 [rows, out_dim];
        grad_input dx: f32 [rows, in_dim];
        grad_input dab: f32 [groups, rank, 4];
        run {
            let shape = LoraShape { rows, in_dim, rank, out_dim };
            if groups != shape.groups() {
                return Err(Status::InvalidParams);
            }
            let (inputs, dy) = ([x.as_slice(), ab.as_slice()], dy.as_slice());
            let gradients = [dx.as_mut_slice(), dab.as_mut_slice()];
            lora_backward(&shape, scale, inputs, dy, gradients, &mut scratch)
        }
    }
}
