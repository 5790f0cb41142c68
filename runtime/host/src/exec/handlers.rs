//! Handlers of signals, which engines put in place for the whole process.

use crate::threads::lock;
use std::sync::{Mutex, MutexGuard};

/// Held by whoever changes handlers.
static CHANGING: Mutex<()> = Mutex::new(());

/// Keeps other engines from changing handlers meanwhile. After WAMR has initialised a thread the handlers of before are put
/// back, and those that Wasmtime's first engine puts in place in between would be lost.
pub(super) fn changing() -> MutexGuard<'static, ()> {
    lock(&CHANGING)
}
