//! What an instance has in place of its engine's from when that is dropped until there is a new one.

use crate::exec::EngineInstance;
use crate::trap::{Trap, TrapKind};
use std::ops::Range;

/// An engine's instance that is gone: it has no memory, and calls of it fail.
pub(super) struct Released;

fn gone<T>() -> Result<T, Trap> {
    Err(Trap::new(TrapKind::Other, "the instance is gone".to_owned()))
}

impl EngineInstance for Released {
    fn heap_base(&self) -> u32 {
        0
    }

    fn memory(&mut self) -> &mut [u8] {
        &mut []
    }

    fn protect(&mut self, _pages: Range<usize>, _writable: bool) -> bool {
        false
    }

    fn keep_globals(&mut self) {}

    fn reset_globals(&mut self) {}

    fn grow_to(&mut self, _bytes: usize) -> bool {
        false
    }

    fn call(&mut self, _descriptor: u32, _ticks: u64) -> Result<(i32, &[u8]), Trap> {
        gone()
    }

    fn backward(&mut self, _descriptor: u32, _ticks: u64) -> Result<i32, Trap> {
        gone()
    }

    fn init(&mut self, _params: u32, _len: u32) -> Result<Option<i32>, Trap> {
        gone()
    }

    fn info(&mut self, _out: u32) -> Result<Option<i32>, Trap> {
        gone()
    }

    fn cleanup(&mut self) -> Result<Option<i32>, Trap> {
        gone()
    }
}
