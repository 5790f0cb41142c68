//! Memory of large pages for what is read over and over: matrices that are too small to have such pages for themselves
//! share them. A page of the usual size has an entry of its own in the processor's cache of translations, which has too
//! few for a model: generation takes longer with small pages.
#![allow(unsafe_code)]

use std::io;
use std::ops::{Deref, DerefMut, Range};
use std::sync::{Arc, Mutex, PoisonError, Weak};

use memmap2::{MmapMut, MmapRaw};

use crate::prefetch::CACHE_LINE;

/// Bytes of a mapping that is shared.
const SHARED: usize = 64 << 20;

/// Bytes of a large page. Linux places mappings of whole ones so that they begin with one.
const LARGE_PAGE: usize = 2 << 20;

/// Memory that nobody else has. It goes back to the system when all has that shares its mapping.
#[derive(Debug)]
pub(crate) struct Mapped {
    mapping: Arc<MmapRaw>,
    range: Range<usize>,
}

/// The mapping that is shared next.
struct Next {
    mapping: Weak<MmapRaw>,
    /// Bytes of it that somebody has or had.
    used: usize,
}

static NEXT: Mutex<Next> = Mutex::new(Next::NONE);

impl Mapped {
    /// So many bytes, all zero, of which the first begins a cache line.
    ///
    /// # Errors
    /// The system has not got so many.
    pub(crate) fn zeros(bytes: usize) -> io::Result<Mapped> {
        NEXT.lock().unwrap_or_else(PoisonError::into_inner).zeros(bytes)
    }
}

impl Next {
    const NONE: Next = Next { mapping: Weak::new(), used: 0 };

    fn zeros(&mut self, bytes: usize) -> io::Result<Mapped> {
        if bytes > SHARED / 2 {
            return Ok(Mapped { mapping: map(bytes)?, range: 0..bytes });
        }
        let start = self.used.next_multiple_of(CACHE_LINE);
        let shared = self.mapping.upgrade().filter(|mapping| start + bytes <= mapping.len());
        let (mapping, start) = match shared {
            Some(mapping) => (mapping, start),
            None => (map(SHARED).or_else(|_| map(bytes))?, 0),
        };
        *self = Next { mapping: Arc::downgrade(&mapping), used: start + bytes };
        Ok(Mapped { mapping, range: start..start + bytes })
    }
}

/// A mapping of at least so many bytes, all zero.
fn map(bytes: usize) -> io::Result<Arc<MmapRaw>> {
    let whole = bytes.checked_next_multiple_of(LARGE_PAGE).unwrap_or(bytes).max(LARGE_PAGE);
    let mapping = MmapMut::map_anon(whole)?;
    // Where the system has large pages to give.
    #[cfg(target_os = "linux")]
    let _ = mapping.advise(memmap2::Advice::HugePage);
    Ok(Arc::new(mapping.into()))
}

impl Deref for Mapped {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        let start = self.mapping.as_ptr().wrapping_add(self.range.start);
        // SAFETY: the range is within the mapping, which is there as long as `self` and holds bytes that are set, zero at
        // first; `zeros` gives no byte of a mapping to two, so whoever borrows `self` has these alone.
        unsafe { std::slice::from_raw_parts(start, self.range.len()) }
    }
}

impl DerefMut for Mapped {
    fn deref_mut(&mut self) -> &mut [u8] {
        let start = self.mapping.as_mut_ptr().wrapping_add(self.range.start);
        // SAFETY: as for `deref`.
        unsafe { std::slice::from_raw_parts_mut(start, self.range.len()) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn everyone_has_memory_of_their_own_that_is_zero_at_first() {
        let sizes = [1, 64, 1000, SHARED / 2, 0, SHARED / 2, SHARED / 2 + 1, 100];
        let mut all: Vec<Mapped> = Vec::new();
        for (i, bytes) in sizes.into_iter().enumerate() {
            let mut mapped = Mapped::zeros(bytes).unwrap();
            assert_eq!(mapped.len(), bytes);
            assert_eq!(mapped.as_ptr().addr() % CACHE_LINE, 0);
            assert!(mapped.iter().all(|byte| *byte == 0), "{i}");
            mapped.fill(i as u8 + 1);
            all.push(mapped);
        }
        for (i, mapped) in all.iter().enumerate() {
            assert!(mapped.iter().all(|byte| *byte == i as u8 + 1), "{i}");
        }
    }

    #[test]
    fn small_matrices_share_a_mapping_that_goes_with_the_last() {
        let mut next = Next::NONE;
        let mut mapped: Vec<Mapped> = (0..4).map(|_| next.zeros(SHARED / 4).unwrap()).collect();
        let mapping = Arc::downgrade(&mapped[0].mapping);
        assert!(mapped.iter().all(|of| Weak::ptr_eq(&mapping, &Arc::downgrade(&of.mapping))));
        let another = next.zeros(1).unwrap();
        assert!(!Weak::ptr_eq(&mapping, &Arc::downgrade(&another.mapping)));
        mapped.truncate(1);
        assert!(mapping.upgrade().is_some());
        mapped.clear();
        assert!(mapping.upgrade().is_none());
    }

    #[test]
    fn what_nobody_has_is_an_error() {
        assert!(Mapped::zeros(usize::MAX).is_err());
        assert!(Mapped::zeros(isize::MAX as usize - 10).is_err());
    }
}
