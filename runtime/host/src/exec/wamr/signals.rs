//! What WAMR does to the signals of a process, and how it is kept from harming others.
//!
//! Setting it up replaces the handlers of SIGSEGV and SIGBUS. Releases of 2020 forget who had them, and
//! need them for code compiled ahead of time alone, which they are not given: the others' are put back.
//! Later ones need theirs where a read out of bounds is a page fault, and hand on what is not theirs, but
//! to themselves once a second thread was initialised. So a handler of the host's stands in front: faults
//! of a thread that runs a module go to WAMR, all others to whoever was there before. Who comes later, as
//! Wasmtime does with its first engine, stands in front of that and hands on in turn.
#![allow(unsafe_code)]

#[cfg(unix)]
pub(super) use unix::{around_setup, around_thread};

#[cfg(unix)]
mod unix {
    use crate::exec::handlers::changing;
    use crate::exec::wamr::calls;
    use libc::{SA_NODEFER, SA_ONSTACK, SA_SIGINFO, SIGBUS, SIGSEGV, c_int, c_void, siginfo_t};
    use std::mem::MaybeUninit;
    use std::ptr;
    use std::sync::OnceLock;

    type Action = libc::sigaction;
    type Handler = extern "C" fn(c_int, *mut siginfo_t, *mut c_void);

    const SIGNALS: [c_int; 2] = [SIGSEGV, SIGBUS];

    /// Who handles the signals where no module runs, and WAMR, who does where one runs.
    struct Route {
        others: [Action; 2],
        wamr: [Action; 2],
    }

    static ROUTE: OnceLock<Route> = OnceLock::new();

    fn handlers() -> [Action; 2] {
        SIGNALS.map(|signal| {
            let mut action = MaybeUninit::<Action>::uninit();
            // SAFETY: it writes the action, which `sigaction` fills for a signal that exists.
            unsafe {
                libc::sigaction(signal, ptr::null(), action.as_mut_ptr());
                action.assume_init()
            }
        })
    }

    fn set(handlers: &[Action; 2]) {
        for (signal, action) in SIGNALS.into_iter().zip(handlers) {
            // SAFETY: actions that were in force before, or `route`, which does what a handler may do.
            unsafe { libc::sigaction(signal, action, ptr::null_mut()) };
        }
    }

    fn is_same(one: &[Action; 2], other: &[Action; 2]) -> bool {
        one.iter().zip(other).all(|(one, other)| one.sa_sigaction == other.sa_sigaction)
    }

    /// Sets WAMR up, which may need its handlers later or not.
    pub(in super::super) fn around_setup(
        needs_handlers: bool,
        set_up: impl FnOnce() -> Result<(), String>,
    ) -> Result<(), String> {
        let _changing = changing();
        let before = handlers();
        let result = set_up();
        let after = handlers();
        if is_same(&before, &after) {
            return result;
        }
        if result.is_err() || !needs_handlers {
            set(&before);
            return result;
        }
        if ROUTE.set(Route { others: before, wamr: after }).is_err() {
            set(&before);
            return Err(
                "another WAMR library handles the signals of this process already: use one of \
                        them, or build libiwasm with WAMR_DISABLE_HW_BOUND_CHECK=1"
                    .to_owned(),
            );
        }
        let mut front = after;
        for action in &mut front {
            action.sa_sigaction = route as Handler as usize;
            action.sa_flags = SA_SIGINFO | SA_NODEFER | SA_ONSTACK;
        }
        set(&front);
        result
    }

    /// Has WAMR initialise a thread, which sets its handlers anew: who was in front stays there.
    pub(in super::super) fn around_thread(initialise: impl FnOnce() -> bool) -> bool {
        let _changing = changing();
        let before = handlers();
        let result = initialise();
        if !is_same(&before, &handlers()) {
            set(&before);
        }
        result
    }

    /// Stands in front of WAMR's handlers.
    extern "C" fn route(signal: c_int, info: *mut siginfo_t, context: *mut c_void) {
        let Some(route) = ROUTE.get() else { return };
        let at = usize::from(signal == SIGBUS);
        // The call is over in any case: WAMR leaves it for the place that it was made from, without coming
        // back here, or hands on to whoever was in front, this handler, which then is asked for the second
        // time.
        let action = if calls::interrupted() { &route.wamr[at] } else { &route.others[at] };
        match action.sa_sigaction {
            libc::SIG_IGN => {}
            libc::SIG_DFL => {
                // SAFETY: the default action is one that is always there. It takes place when the instruction
                // that has faulted runs again.
                unsafe { libc::sigaction(signal, action, ptr::null_mut()) };
            }
            handler if action.sa_flags & SA_SIGINFO != 0 => {
                // SAFETY: who set the action with this flag gave a handler of this type.
                let handler: Handler = unsafe { std::mem::transmute(handler) };
                handler(signal, info, context);
            }
            handler => {
                // SAFETY: likewise, without the flag.
                let handler: extern "C" fn(c_int) = unsafe { std::mem::transmute(handler) };
                handler(signal);
            }
        }
    }
}

/// Other systems have no signals for faults.
#[cfg(not(unix))]
pub(super) fn around_setup(
    _: bool,
    set_up: impl FnOnce() -> Result<(), String>,
) -> Result<(), String> {
    set_up()
}

#[cfg(not(unix))]
pub(super) fn around_thread(initialise: impl FnOnce() -> bool) -> bool {
    initialise()
}
