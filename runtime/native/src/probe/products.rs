//! Loops of nothing but 8-bit dot products, for each instruction that the kernels know.
#![allow(unsafe_code)]

use std::hint::black_box;

use crate::Isa;

/// Sums that grow side by side: more than the instruction's latency times how many start in a cycle,
/// fewer than there are registers.
const SUMS: usize = 12;

/// An instruction that this processor has, in a loop.
#[derive(Clone, Copy)]
pub(super) struct Loop {
    /// Products of two bytes in one round.
    pub(super) products: usize,
    run: unsafe fn(usize),
}

impl Loop {
    /// The one that matrix products of many rows use here.
    pub(super) fn detect() -> Option<Loop> {
        match Isa::detect() {
            #[cfg(target_arch = "x86_64")]
            Isa::Avx512Vnni => Some(Loop { products: SUMS * 64, run: x86::vnni_512 }),
            #[cfg(target_arch = "x86_64")]
            Isa::Avx2Vnni => Some(Loop { products: SUMS * 32, run: x86::vnni_256 }),
            #[cfg(target_arch = "aarch64")]
            Isa::NeonI8mm => Some(Loop { products: SUMS * 32, run: neon::smmla }),
            #[cfg(target_arch = "aarch64")]
            Isa::NeonDotprod => Some(Loop { products: SUMS * 16, run: neon::sdot }),
            _ => None,
        }
    }

    /// Goes through so many rounds.
    pub(super) fn run(self, rounds: usize) {
        // SAFETY: only `detect` makes a `Loop`, of instructions that the processor has.
        unsafe { (self.run)(rounds) }
    }
}

/// A function of so many rounds, in each of which every sum takes one more dot product.
macro_rules! rounds {
    ($name:ident, $features:literal, $splat:expr, |$sum:ident, $a:ident, $w:ident| $dot:expr) => {
        #[target_feature(enable = $features)]
        pub(super) fn $name(rounds: usize) {
            let ($a, $w) = (black_box($splat(1)), black_box($splat(2)));
            let mut sums = [$splat(0); SUMS];
            for _ in 0..rounds {
                for $sum in &mut sums {
                    *$sum = $dot;
                }
            }
            black_box(sums);
        }
    };
}

#[cfg(target_arch = "x86_64")]
mod x86 {
    use super::{SUMS, black_box};
    use core::arch::x86_64::*;

    rounds!(vnni_512, "avx512f,avx512vnni", _mm512_set1_epi32, |sum, a, w| {
        _mm512_dpbusd_epi32(*sum, a, w)
    });
    rounds!(vnni_256, "avx2,avxvnni", _mm256_set1_epi32, |sum, a, w| {
        _mm256_dpbusd_avx_epi32(*sum, a, w)
    });
}

#[cfg(target_arch = "aarch64")]
mod neon {
    use super::{SUMS, black_box};
    use core::arch::aarch64::vdupq_n_s32;
    use core::arch::asm;

    use crate::gemm::{neon::sdot, neon_i8mm::smmla};

    rounds!(smmla, "neon", vdupq_n_s32, |sum, a, w| {
        let mut total = *sum;
        // SAFETY: called where the processor has the instruction, which touches no memory.
        unsafe { smmla!(total, a, w) };
        total
    });
    rounds!(sdot, "neon", vdupq_n_s32, |sum, a, w| {
        let mut total = *sum;
        // SAFETY: as above.
        unsafe { sdot!(total, w, a, ".16b") };
        total
    });
}
