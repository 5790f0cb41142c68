//! Element types that have no counterpart in Rust: binary16 and the GGML blocks.
//!
//! Their layouts are those of `ruvllm_abi::DType`; every bit pattern is a valid value of each.

use ruvllm_abi::{f16_to_f32, f32_to_f16};

/// An IEEE 754 binary16, held as its bits.
#[repr(transparent)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct F16(pub u16);

impl F16 {
    /// Rounds to nearest, ties to even.
    pub const fn from_f32(x: f32) -> Self {
        F16(f32_to_f16(x))
    }

    /// Widens. Exact.
    pub const fn to_f32(self) -> f32 {
        f16_to_f32(self.0)
    }
}

/// 32 elements of `q8_0`: element `j` is `d * qs[j]`.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BlockQ8_0 {
    /// The scale.
    pub d: F16,
    /// The quants.
    pub qs: [i8; 32],
}

/// 32 elements of `q4_0`: element `j < 16` is `d * (low nibble of qs[j] - 8)`, element `j + 16` the
/// same of the high nibble.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BlockQ4_0 {
    /// The scale.
    pub d: F16,
    /// The quants, two to a byte.
    pub qs: [u8; 16],
}
