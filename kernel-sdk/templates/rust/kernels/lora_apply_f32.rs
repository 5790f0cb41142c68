//! Low-rank update, f32.
#![cfg_attr(target_family = "wasm", no_std, no_main)]
#![allow(unsafe_code)]

use kernels::lora_apply::lora_row;
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
        let in_groups = in_dim.div_ceil(4);
        if groups != in_groups + out_dim.div_ceil(4) {
            return Err(Status::InvalidParams);
        }
        let factors = ab.as_slice().as_chunks::<4>().0;
        let a_len = in_groups.checked_mul(rank).ok_or(Status::InvalidParams)?;
        let (a, b) = factors.split_at_checked(a_len).ok_or(Status::InvalidParams)?;
        let low = scratch.take::<f32>(rank)?;
        for (x, y) in x.rows(in_dim).zip(y.rows_mut(out_dim)) {
            lora_row(x, a, b, scale, low, y);
        }
        Ok(())
    }
}
