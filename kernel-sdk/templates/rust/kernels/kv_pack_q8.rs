//! Rows of the KV cache to `q8_0`.
#![cfg_attr(target_family = "wasm", no_std, no_main)]
#![allow(unsafe_code)]

use kernels::kv_pack::pack;
use ruvllm_kernel_sdk::prelude::*;

kernel! {
    fn kv_pack_forward;
    revision 1;
    shape [rows, dim];
    input x: f32 [rows, dim];
    output y: BlockQ8_0 [rows, dim];
    run {
        // Rows hold whole blocks, so that all of them are one run of blocks.
        if !dim.is_multiple_of(32) {
            return Err(Status::InvalidParams);
        }
        pack(x.as_slice(), y.as_mut_slice());
        Ok(())
    }
}
