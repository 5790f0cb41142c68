//! Handlers of signals, which engines put in place for the whole process.

use crate::threads::lock;
use std::sync::{Mutex, MutexGuard};

/// Held by whoever changes handlers.
static CHANGING: Mutex<()> = Mutex::new(());

/// Keeps other engines from changing handlers meanwhile. WAMR's have to be put back to what they were before it is asked
/// to initialise a thread: handlers that Wasmtime's first engine puts in place in between would be lost.
pub(super) fn changing() -> MutexGuard<'static, ()> {
    lock(&CHANGING)
}
