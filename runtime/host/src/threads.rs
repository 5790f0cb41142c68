//! What threads of the host have in common: locks that outlive a panic, and priorities.

use std::sync::{Mutex, MutexGuard, PoisonError};

/// How much less than others a thread of low priority is worth to the scheduler of the system, on Linux:
/// it gets a thirtieth of a core that a serving thread wants too.
#[cfg(target_os = "linux")]
pub(crate) const NICE: i32 = 15;

/// Locks, whatever befell the last holder: what is guarded here is whole between any two statements.
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Lets serving threads go first wherever they want the core that the calling thread runs on, for
/// good; threads that it starts inherit that.
pub(crate) fn lower_priority() {
    // Elsewhere it would slow the whole process. A system that refuses costs some smoothness.
    #[cfg(target_os = "linux")]
    let _ = rustix::process::nice(NICE);
}
