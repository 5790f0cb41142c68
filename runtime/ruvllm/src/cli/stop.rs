//! Ctrl-C: the first asks the command to stop after the token at hand, the second ends the process.

use super::Failure;
use std::ops::ControlFlow;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// Whether somebody asked to stop.
#[derive(Clone)]
pub(crate) struct StopFlag(Arc<AtomicBool>);

impl StopFlag {
    /// Installs the handler; once per process.
    pub(crate) fn install() -> Result<Self, Failure> {
        let flag = StopFlag(Arc::new(AtomicBool::new(false)));
        let asked = flag.clone();
        ctrlc::set_handler(move || {
            if asked.0.swap(true, Ordering::Relaxed) {
                std::process::exit(130);
            }
        })?;
        Ok(flag)
    }

    pub(crate) fn is_set(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }

    /// Forgets an earlier request, for a command that goes on after it.
    pub(crate) fn clear(&self) {
        self.0.store(false, Ordering::Relaxed);
    }

    /// Break once asked to stop.
    pub(crate) fn flow(&self) -> ControlFlow<()> {
        if self.is_set() { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
    }
}
