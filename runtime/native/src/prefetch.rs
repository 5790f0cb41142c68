//! Memory that is asked for before it is read.
#![allow(unsafe_code)] // One instruction, which concerns no memory of the program's.

use std::ops::Range;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

/// Asks for the cache line at an address, which need not be there.
#[inline(always)]
pub(crate) fn prefetch<T>(address: *const T) {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: a prefetch faults on no address.
    unsafe {
        use core::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
        _mm_prefetch::<_MM_HINT_T0>(address.cast());
    }
    #[cfg(target_arch = "aarch64")]
    // SAFETY: a prefetch faults on no address.
    unsafe {
        core::arch::asm!("prfm pldl1keep, [{}]", in(reg) address, options(nostack, readonly));
    }
    #[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
    let _ = address;
}

/// Asks for the cache line at an address, which need not be there, for writing: other processors give it up.
#[inline(always)]
fn prefetch_to_write<T>(address: *const T) {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: a prefetch faults on no address, and processors without this one do nothing.
    unsafe {
        core::arch::asm!("prefetchw [{}]", in(reg) address, options(nostack, readonly, preserves_flags));
    }
    #[cfg(target_arch = "aarch64")]
    // SAFETY: a prefetch faults on no address.
    unsafe {
        core::arch::asm!("prfm pstl1keep, [{}]", in(reg) address, options(nostack, readonly, preserves_flags));
    }
    #[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
    let _ = address;
}

/// [`prefetch_to_write`] for each cache line of the `len` values from `start` on.
#[inline(always)]
pub(crate) fn prefetch_all_to_write<T>(start: *const T, len: usize) {
    for at in (0..len).step_by(CACHE_LINE / size_of::<T>()) {
        prefetch_to_write(start.wrapping_add(at));
    }
}

/// Bytes of a cache line.
pub(crate) const CACHE_LINE: usize = 64;

/// How many ranges of addresses are known at most of what is read next: as many as fit a cache line.
pub(crate) const PLACES: usize = 4;

/// Ranges of addresses, in the order in which they will be read. Nothing is read through them: the memory may be gone by
/// then, and a thread may find what another has half written.
#[derive(Debug, Default)]
pub(crate) struct Addresses([[AtomicUsize; 2]; PLACES]);

impl Addresses {
    /// Sets them to the first of these.
    pub(crate) fn set(&self, places: impl IntoIterator<Item = Range<usize>>) {
        let places = places.into_iter().chain(std::iter::repeat(0..0));
        for ([start, end], place) in self.0.iter().zip(places) {
            start.store(place.start, Relaxed);
            end.store(place.end, Relaxed);
        }
    }

    pub(crate) fn get(&self) -> [Range<usize>; PLACES] {
        self.0.each_ref().map(|[start, end]| start.load(Relaxed)..end.load(Relaxed))
    }
}

/// How far ahead of its loads a stream is fetched, in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Ahead {
    /// Into the second-level cache, where not 0: it has room for more fetches at a time than the first,
    /// which bounds how fast some processors read.
    pub(crate) second: usize,
    /// Into the first-level cache.
    pub(crate) first: usize,
}

impl Ahead {
    /// Not at all: the processor sees by itself what is read in order.
    pub(crate) const NONE: Ahead = Ahead { second: 0, first: 0 };
    /// As far as several streams need.
    pub(crate) const NEAR: Ahead = Ahead { second: 0, first: 1024 };
    /// As far as memory takes to answer.
    pub(crate) const FAR: Ahead = Ahead { second: 24 * 1024, first: 2 * 1024 };
}

/// How products with few rows of activations read packed weights.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReadPattern {
    /// Panels that a thread reads side by side.
    pub(crate) streams: usize,
    pub(crate) ahead: Ahead,
}

impl ReadPattern {
    /// All that there are, by their names.
    pub const ALL: [(&'static str, ReadPattern); 9] = [
        ("1-none", ReadPattern { streams: 1, ahead: Ahead::NONE }),
        ("1-near", ReadPattern { streams: 1, ahead: Ahead::NEAR }),
        ("1-far", ReadPattern { streams: 1, ahead: Ahead::FAR }),
        ("2-none", ReadPattern { streams: 2, ahead: Ahead::NONE }),
        ("2-near", ReadPattern { streams: 2, ahead: Ahead::NEAR }),
        ("2-far", ReadPattern { streams: 2, ahead: Ahead::FAR }),
        ("4-none", ReadPattern { streams: 4, ahead: Ahead::NONE }),
        ("4-near", ReadPattern { streams: 4, ahead: Ahead::NEAR }),
        ("4-far", ReadPattern { streams: 4, ahead: Ahead::FAR }),
    ];

    /// The pattern of that name, such as `4-near`: panels that a thread reads side by side, and
    /// whether they are not fetched ahead of the loads, a kilobyte or, into the second-level cache, 24.
    pub fn named(name: &str) -> Option<ReadPattern> {
        Self::ALL.iter().find(|(of, _)| *of == name).map(|(_, pattern)| *pattern)
    }

    /// The name.
    pub fn name(self) -> &'static str {
        Self::ALL.iter().find(|(_, of)| *of == self).map_or("", |(name, _)| name)
    }
}

impl Default for ReadPattern {
    /// One stream, which read more than two on a Zen 4 and on a Zen 5.
    fn default() -> Self {
        ReadPattern { streams: 1, ahead: Ahead::FAR }
    }
}
