//! What all x86 instruction sets do alike.
#![allow(unsafe_code)]

use core::arch::x86_64::*;

/// How far ahead of the loads weights are fetched into the second-level cache, in bytes: it has room for
/// more fetches at a time than the first, which bounds how fast some processors read.
const FAR: usize = 12 * 1024;

/// How far ahead they are fetched into the first-level cache.
const NEAR: usize = 2 * 1024;

/// Fetches what a stream reads after the cache line at `p`.
#[inline(always)]
pub(super) fn fetch_ahead(p: *const u8) {
    // SAFETY: a prefetch faults on no address.
    unsafe {
        _mm_prefetch::<_MM_HINT_T1>(p.wrapping_add(FAR).cast());
        _mm_prefetch::<_MM_HINT_T0>(p.wrapping_add(NEAR).cast());
    }
}
