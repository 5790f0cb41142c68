//! Rows of the KV cache from `q8_0`.
#![cfg_attr(target_family = "wasm", no_std, no_main)]
#![allow(unsafe_code)]

use kernels::kv_unpack::unpack;
use ruvllm_kernel_sdk::prelude::*;

kernel! {
    fn kv_unpack_forward;
    revision 1;
    shape [rows, dim];
    input x: BlockQ8_0 [rows, dim];
    output y: f32 [rows, dim];
    run {
        // Rows hold whole blocks, so that all of them are one run of blocks.
        if !dim.is_multiple_of(32) {
            return Err(Status::InvalidParams);
        }
        unpack(x.as_slice(), y.as_mut_slice());
        Ok(())
    }
}
