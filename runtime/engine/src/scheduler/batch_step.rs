//! A step of a batch: it is planned, computed, and what it gave is told. Whoever generates repeats it.

use super::batch::{Batch, in_step};
use crate::error::EngineError;

impl Batch<'_> {
    /// Plans a step, computes it, and tells what it gave.
    pub(super) fn step(&mut self) {
        self.plan();
        self.compute();
        self.deliver();
    }

    /// Computes the planned step. What does not succeed is planned again, or ends.
    fn compute(&mut self) {
        let count = in_step(&mut self.running).count();
        if count == 0 {
            return;
        }
        let mut computed = self.try_step();
        if computed.as_ref().is_err_and(|error| !has_remedy(error)) {
            computed = self.try_step();
        }
        match computed {
            Ok(()) => self.advance(),
            Err(EngineError::StepInput { input, source }) => self.fail(input, *source),
            Err(EngineError::MemoryExhausted { .. }) if count > 1 => self.rest_for_memory(),
            Err(_) if count > 1 => self.compute_alone(),
            Err(error) => self.fail(0, error),
        }
    }
}

/// Whether something can be done about a failed step before it is tried again.
fn has_remedy(error: &EngineError) -> bool {
    matches!(error, EngineError::StepInput { .. } | EngineError::MemoryExhausted { .. })
}
