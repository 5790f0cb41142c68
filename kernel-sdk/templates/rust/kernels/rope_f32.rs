//! Rotary position embedding, f32.
#![cfg_attr(target_family = "wasm", no_std, no_main)]
#![allow(unsafe_code)]

use kernels::rope::{RopeShape, rope};
use ruvllm_kernel_sdk::prelude::*;

kernel! {
    fn rope_forward;
    revision 1;
    shape [batch, seq, heads, dim, dim_half];
    param _theta: f32;
    param interleaved: u32;
    input x: f32 [batch, seq, heads, dim];
    input freqs: f32 [seq, dim_half, 2];
    output y: f32 [batch, seq, heads, dim];
    scratch scratch;
    run {
        let shape = RopeShape { seq, heads, dim, dim_half, interleaved: interleaved != 0 };
        // As many pairs at once as fit the scratch that every call has.
        let pairs = dim_half.min(1024);
        let room = [scratch.take(pairs)?, scratch.take(pairs)?];
        rope(&shape, x.as_slice(), freqs.as_slice(), y.as_mut_slice(), room)
    }
}
