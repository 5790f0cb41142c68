//! What all x86 instruction sets do alike.
#![allow(unsafe_code)]

use core::arch::asm;
use core::arch::x86_64::*;
use std::sync::LazyLock;

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
    /// What [`adds_floats_apart`] says in a test.
    pub(super) static APART: std::cell::Cell<Option<bool>> = const { std::cell::Cell::new(None) };
}

/// Whether units that multiply integers add integers too, but no floats, which others add. AMD's are made so since Zen:
/// there 192 products of 16 bits take a tenth less time with sums of floats. Intel's multiply where they add floats.
pub(super) fn adds_floats_apart() -> bool {
    #[cfg(test)]
    if let Some(apart) = APART.get() {
        return apart;
    }
    is_by(b"AuthenticAMD") || is_by(b"HygonGenuine")
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
