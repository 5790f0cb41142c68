//! What all x86 instruction sets do alike.
#![allow(unsafe_code)]

use core::arch::x86_64::*;

use super::kernels::Ahead;

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
