//! Low-rank update, f16.
#![cfg_attr(target_family = "wasm", no_std, no_main)]

use ruvllm_core_kernels::lora::{LoraShape, lora_apply};
use ruvllm_kernel_sdk::prelude::*;

kernel! {
    fn lora_apply_forward;
    revision 1;
    shape [rows, in_dim, groups, rank, out_dim];
    param scale: f32;
    input x: F16 [rows, in_dim];
    input ab: F16 [groups, rank, 4];
    output y: F16 [rows, out_dim];
    scratch scratch;
    run {
        let shape = LoraShape { rows, in_dim, rank, out_dim };
        if groups != shape.groups() {
            return Err(Status::InvalidParams);
        }
        lora_apply(&shape, scale, x.as_slice(), ab.as_slice(), y.as_mut_slice(), &mut scratch)
    }
}
