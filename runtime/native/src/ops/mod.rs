//! Native twins of the operations that kernel packs provide, and a few that only the engine uses.
//!
//! Each file holds one operation: a scalar reference that says plainly what it computes, vector code
//! written once over `simd`, and one public function that takes an [`Isa`](crate::Isa), checks
//! sizes and dispatches. [`Isa::Scalar`](crate::Isa::Scalar) is the reference.
//!
//! Invariants: outputs are written in full or, on an error, not at all; every size is accepted or
//! refused with a [`NativeError`], never a panic; all are single-threaded and, unless their
//! documentation says otherwise, allocate nothing. Infinities and NaN are not refused: they
//! propagate as IEEE 754 has it, except where a function says what it does instead.

mod add;
mod backward;
mod gelu;
mod hadamard;
mod kv;
mod layernorm;
mod lora;
mod rmsnorm;
mod rope;
pub(crate) mod simd;
mod softmax;
mod swiglu;

pub use add::add;
pub use backward::{
    geglu_backward, gelu_backward, layernorm_backward, lora_backward, rmsnorm_backward,
    swiglu_backward,
};
pub use gelu::{geglu, geglu_f16, gelu, gelu_f16};
pub use hadamard::hadamard;
pub(crate) use kv::{BLOCK, unpack_q4, unpack_q8};
pub use kv::{kv_pack_q4, kv_pack_q8, kv_unpack_q4, kv_unpack_q8};
pub use layernorm::{layernorm, layernorm_f16};
pub use lora::{LoraShape, lora_apply, lora_apply_f16, lora_interleave};
pub use rmsnorm::{rmsnorm, rmsnorm_f16};
pub use rope::{RopeShape, rope, rope_backward, rope_f16, rope_q8};
pub use softmax::softmax;
pub use swiglu::{swiglu, swiglu_f16};

use crate::NativeError;

/// The product of dimensions; one that overflows is refused as larger than any buffer.
pub(crate) fn product(what: &'static str, dims: &[usize]) -> Result<usize, NativeError> {
    let size = dims.iter().try_fold(1usize, |size, &dim| size.checked_mul(dim));
    // Zero anywhere makes the product zero, whatever overflowed before it.
    let size = if dims.contains(&0) { Some(0) } else { size };
    let actual = dims.first().copied().unwrap_or(1);
    size.ok_or(NativeError::Shape { what, expected: usize::MAX, actual })
}

/// Checks that `len` is a whole number of rows of `dim` elements.
pub(crate) fn whole_rows(what: &'static str, dim: usize, len: usize) -> Result<(), NativeError> {
    let whole = if dim == 0 { len == 0 } else { len.is_multiple_of(dim) };
    if whole {
        return Ok(());
    }
    let expected = if dim == 0 { 0 } else { len.next_multiple_of(dim) };
    Err(NativeError::Shape { what, expected, actual: len })
}

#[cfg(test)]
pub(crate) mod testing {
    //! Inputs that every operation is tested on. Numbers and the comparison are the judge's, with what native
    //! code may be off by, which is less than a kernel may be.

    use crate::judge::{Kind, fill};
    use crate::random::Random;
    use ruvllm_abi::DType;

    pub(crate) use crate::judge::close;

    /// Deterministic numbers in [-1, 1).
    pub(crate) fn noise(n: usize, seed: u64) -> Vec<f32> {
        let mut random = Random::new(seed);
        (0..n).map(|_| random.uniform()).collect()
    }

    /// Rows of normal, tiny, huge, zero and subnormal numbers.
    pub(crate) fn ranges(n: usize, seed: u64) -> Vec<(&'static str, Vec<f32>)> {
        let random = &mut Random::new(seed);
        let kinds = [
            ("normal", Kind::Normal),
            ("tiny", Kind::Tiny),
            ("huge", Kind::Huge),
            ("zero", Kind::Zeros),
            ("subnormal", Kind::Subnormal),
        ];
        kinds.map(|(name, kind)| (name, fill(random, n, kind, DType::F32, 1e30))).into()
    }

    /// Lengths around every vector width and unroll factor.
    pub(crate) const LENGTHS: [usize; 14] = [1, 2, 3, 5, 8, 15, 16, 17, 31, 33, 64, 100, 257, 2048];
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn products_that_overflow_are_refused_unless_one_factor_is_zero() {
        assert_eq!(product("x", &[2, 3]), Ok(6));
        assert_eq!(product("x", &[usize::MAX, 2, 0]), Ok(0));
        assert!(product("x", &[usize::MAX, 2]).is_err());
    }

    #[test]
    fn rows_must_be_whole() {
        assert_eq!(whole_rows("x", 4, 12), Ok(()));
        assert_eq!(whole_rows("x", 0, 0), Ok(()));
        assert!(whole_rows("x", 0, 1).is_err());
        assert!(whole_rows("x", 5, 12).is_err());
    }
}
