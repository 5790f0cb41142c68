//! Pages of an instance's memory that its kernel may read and not write.
//!
//! A page is made read-only once, when an instance is made or has taken up a constant, and never for
//! a call. Only unix systems have the call that is used here; elsewhere nothing is protected, and
//! the host makes a new instance at every change of scope instead ([`super::window`]).
#![allow(unsafe_code)]

#[cfg(feature = "wasmtime")]
use std::ops::Range;

/// Bytes of a page of the machine; a multiple of 4 KiB.
pub(crate) fn page_size() -> usize {
    #[cfg(unix)]
    return rustix::param::page_size().max(4 << 10);
    #[cfg(not(unix))]
    return 64 << 10;
}

/// Makes the whole pages `pages`, in bytes, of a memory read-only, or writable again. `false` where this
/// system cannot.
#[cfg(feature = "wasmtime")]
pub(super) fn protect(memory: &mut [u8], pages: Range<usize>, writable: bool) -> bool {
    #[cfg(unix)]
    {
        use rustix::mm::{MprotectFlags, mprotect};
        let Some(pages) = memory.get_mut(pages) else { return false };
        let size = page_size();
        if !(pages.as_ptr() as usize).is_multiple_of(size) || !pages.len().is_multiple_of(size) {
            return false;
        }
        let flags =
            if writable { MprotectFlags::READ | MprotectFlags::WRITE } else { MprotectFlags::READ };
        // SAFETY: the range consists of whole pages of a slice that is borrowed exclusively, so nothing
        // else reads or writes them meanwhile. They stay readable. What writes to a page that is
        // read-only faults, in compiled code as a trap, and changes nothing; and the engine maps
        // and unmaps the memory of an instance as a whole, whatever its protection.
        unsafe { mprotect(pages.as_mut_ptr().cast(), pages.len(), flags) }.is_ok()
    }
    #[cfg(not(unix))]
    {
        let _ = (memory, pages, writable);
        false
    }
}
