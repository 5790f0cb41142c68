//! Rotary position embedding, `q8_0`.
#![cfg_attr(target_family = "wasm", no_std, no_main)]

use ruvllm_core_kernels::rope::{RopeShape, rope_q8};
use ruvllm_kernel_sdk::prelude::*;

kernel! {
    fn rope_forward;
    revision 1;
    shape [batch, seq, heads, dim, dim_half];
    param _theta: f32;
    param interleaved: u32;
    input x: BlockQ8_0 [batch, seq, heads, dim];
    input freqs: f32 [seq, dim_half, 2];
    output y: BlockQ8_0 [batch, seq, heads, dim];
    scratch scratch;
    run {
        let interleaved = interleaved != 0;
        let shape = RopeShape { seq, heads, dim, dim_half, interleaved, backward: false };
        rope_q8(&shape, x.as_slice(), freqs.as_slice(), y.as_mut_slice(), &mut scratch)
    }
}
