//! What all x86 instruction sets do alike.
#![allow(unsafe_code)]

use core::arch::asm;
use core::arch::x86_64::*;
use std::sync::LazyLock;

use super::kernels::int::sums;
use crate::Isa;
use crate::prefetch::Ahead;

/// Fetches what a stream reads after the cache line at `p`.
#[inline(always)]
pub(super) fn fetch_ahead(p: *const u8, ahead: Ahead) {
    // SAFETY: a prefetch faults on no address.
    unsafe {
        if ahead.second > 0 {
            _mm_prefetch::<_MM_HINT_T1>(p.wrapping_add(ahead.second).cast());
        }
        _mm_prefetch::<_MM_HINT_T0>(p.wrapping_add(ahead.first).cast());
    }
}

/// Whether the processor is by that vendor.
pub(super) fn is_by(vendor: &[u8; 12]) -> bool {
    // Asked once: a virtual machine leaves it to its host to answer, and this is asked for every product.
    static VENDOR: LazyLock<[[u8; 4]; 3]> = LazyLock::new(|| {
        let of = __cpuid(0);
        [of.ebx, of.edx, of.ecx].map(u32::to_le_bytes)
    });
    VENDOR.as_flattened() == vendor
}

#[cfg(test)]
thread_local! {
    /// What [`sums_in_tiles`] says in a test.
    pub(super) static SUMS: std::cell::Cell<Option<u8>> = const { std::cell::Cell::new(None) };
}

/// The kind of sums by which many rows are multiplied by 8-bit weights the fastest with AVX2, as was measured. On a Zen 4,
/// whose units for products add integers as well, but no floats, sums of floats are a tenth faster than integers; on a Zen 3
/// they are a fifth slower. Strassen's algorithm is the fastest on a Xeon, and the slowest on some matrices on either Zen.
pub(super) fn sums_in_tiles() -> u8 {
    #[cfg(test)]
    if let Some(sums) = SUMS.get() {
        return sums;
    }
    if !is_by(b"AuthenticAMD") && !is_by(b"HygonGenuine") {
        sums::STRASSEN
    } else if Isa::Avx512.is_available() {
        // AMD's have had it since Zen 4.
        sums::FLOATS
    } else {
        sums::WIDE
    }
}

/// While there is a value, this thread computes with subnormal numbers, which it may have been told to take for zeros:
/// a thread begins as its maker is set, and a program that embeds this may be set so.
pub(super) struct WithSubnormals {
    before: u32,
}

/// The bits of the control register that decide what is computed, without those that tell what has been.
const CONTROL: u32 = 0xffc0;
/// What Rust takes for granted of them: no exceptions, rounding to nearest, nothing flushed to zero.
const USUAL: u32 = 0x1f80;

impl WithSubnormals {
    pub(super) fn new() -> Self {
        let before = control();
        if before & CONTROL != USUAL {
            set_control(USUAL);
        }
        Self { before }
    }
}

impl Drop for WithSubnormals {
    fn drop(&mut self) {
        if self.before & CONTROL != USUAL {
            set_control(self.before);
        }
    }
}

fn control() -> u32 {
    let mut control = 0;
    // SAFETY: writes the register to that place.
    unsafe { asm!("stmxcsr [{}]", in(reg) &raw mut control, options(nostack, preserves_flags)) };
    control
}

fn set_control(control: u32) {
    // SAFETY: a value that was read from the register or is `USUAL`, so no bit that the processor has not.
    unsafe { asm!("ldmxcsr [{}]", in(reg) &raw const control, options(nostack, preserves_flags)) };
}

/// Calls `f` on a thread that takes subnormal numbers for zeros and makes zeros of them, and goes on doing so.
#[cfg(test)]
pub(super) fn flushed_to_zero<T>(f: impl FnOnce() -> T) -> T {
    let (before, flushed) = (control(), USUAL | 0x8040);
    set_control(flushed);
    let result = f();
    let after = control() & CONTROL;
    set_control(before);
    assert_eq!(after, flushed & CONTROL);
    result
}
