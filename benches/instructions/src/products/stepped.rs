//! Counts the instructions that this thread executes, by having the processor trap after each.
#![allow(unsafe_code)]

use std::arch::asm;
use std::io::Error;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// The traps since the last start.
static STEPS: AtomicU64 = AtomicU64::new(0);

extern "C" fn trapped(_signal: libc::c_int) {
    STEPS.fetch_add(1, Relaxed);
}

/// Calls `f`, and gives the instructions of that and of a few around it, always the same.
///
/// # Errors
/// The system refuses a handler of traps.
pub(crate) fn count(f: impl FnOnce()) -> Result<u64, Error> {
    // SAFETY: a `sigaction` of zeros has no flags, an empty mask and no handler.
    let mut action: libc::sigaction = unsafe { std::mem::zeroed() };
    action.sa_sigaction = trapped as extern "C" fn(libc::c_int) as libc::sighandler_t;
    // SAFETY: both are valid for the call, and all that the handler does is add to an atomic, which
    // handlers may.
    if unsafe { libc::sigaction(libc::SIGTRAP, &raw const action, std::ptr::null_mut()) } != 0 {
        return Err(Error::last_os_error());
    }
    STEPS.store(0, Relaxed);
    // SAFETY: sets the trap flag, bit 8; what each trap calls is the handler, with the flag cleared.
    unsafe { asm!("pushfq", "or qword ptr [rsp], 0x100", "popfq") };
    f();
    // SAFETY: clears the flag.
    unsafe { asm!("pushfq", "and qword ptr [rsp], -0x101", "popfq") };
    Ok(STEPS.load(Relaxed))
}
