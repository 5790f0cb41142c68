//! The call that runs on this thread, and what the host does when the module asks it for fuel.
#![allow(unsafe_code)]

use crate::deadline::{UsedTime, thread_time};
use crate::exec::meter::FUEL;
use std::cell::Cell;
use std::ffi::{CStr, c_void};
use std::ptr;
use std::time::{Duration, Instant};

/// What a call that is over its deadline ends with.
const LATE: &CStr = c"the deadline is over";

thread_local! {
    /// Of the call that runs, if one does.
    static CURRENT: Cell<*const Call<'static>> = const { Cell::new(ptr::null()) };
}

/// A call of a function of an instance.
pub(super) struct Call<'a> {
    /// Has the call end as soon as the function of the host that the module has called returns.
    end: &'a dyn Fn(&CStr),
    tick: Duration,
    until: Cell<Instant>,
    spent: Cell<UsedTime>,
    late: Cell<bool>,
}

impl<'a> Call<'a> {
    /// A call that may take so many ticks of this length. `end` is called on the call's
    /// thread, while the call runs, to end it.
    pub(super) fn new(end: &'a dyn Fn(&CStr), ticks: u64, tick: Duration) -> Self {
        let mut spent = UsedTime::default();
        spent.begin(ticks, tick);
        Self {
            end,
            tick,
            until: Cell::new(Instant::now() + times(tick, ticks)),
            spent: Cell::new(spent),
            late: Cell::new(false),
        }
    }

    /// Runs what is this call on this thread.
    pub(super) fn run<T>(&self, run: impl FnOnce() -> T) -> T {
        // `'static` stands for the time of this function: nothing of the call is used after it.
        CURRENT.set(ptr::from_ref(self).cast());
        let result = run();
        CURRENT.set(ptr::null());
        result
    }

    /// Whether it was ended at its deadline.
    pub(super) fn is_late(&self) -> bool {
        self.late.get()
    }

    /// Looks at the clock, and ends the call where its time is over.
    fn look(&self) {
        let now = Instant::now();
        if now < self.until.get() {
            return;
        }
        let mut spent = self.spent.take();
        match spent.overrun(thread_time()) {
            Some(ticks) => self.until.set(now + times(self.tick, ticks)),
            None => {
                self.late.set(true);
                (self.end)(LATE);
            }
        }
        self.spent.set(spent);
    }
}

fn times(tick: Duration, ticks: u64) -> Duration {
    // A deadline of half a year is none.
    tick.saturating_mul(u32::try_from(ticks).unwrap_or(u32::MAX)).min(Duration::from_secs(1 << 24))
}

/// What the module imports: called where its fuel is used up, it gives more.
pub(super) extern "C" fn tick(_environment: *mut c_void) -> i32 {
    // SAFETY: the pointer is that of a call that `Call::run` borrows on this thread, or null. `'static` stands for the
    // time of that borrow: nothing of the call is kept after `look`.
    if let Some(call) = unsafe { CURRENT.get().as_ref() } {
        call.look();
    }
    FUEL
}

/// Forgets the call that runs on this thread, if there is one: a signal has come while it did.
#[cfg(unix)]
pub(super) fn interrupted() -> bool {
    !CURRENT.replace(ptr::null()).is_null()
}
