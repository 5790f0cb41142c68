//! A call that an instance of a sandboxed kernel answers, in runs of rows where it is large.

use super::check::Checker;
use crate::error::Failure;
use crate::instance::{Instance, TILE_BYTES};
use crate::op::call::{OpCall, Output};
use crate::op::plan::{CallBytes, CallPlan};
use crate::registry::kernel::PublishedKernel;
use ruvllm_native::Isa;

/// An instance about to run, with what decides whether its result is checked.
pub(crate) struct SandboxedCall<'a> {
    pub(crate) instance: &'a mut Instance,
    pub(crate) kernel: &'a PublishedKernel,
    pub(crate) isa: Isa,
    /// How many runs there are to a check, on average; 0 is none.
    pub(crate) every: u32,
    /// Runs until the next check.
    pub(crate) until_check: &'a mut u32,
    pub(crate) checker: &'a mut Checker,
}

impl SandboxedCall<'_> {
    /// Runs the kernel on a call, cut into tiles where it is large.
    ///
    /// # Errors
    /// How it failed; `out` may have a part of a result.
    #[inline]
    pub(crate) fn run(
        &mut self,
        plan: &CallPlan,
        call: &OpCall<'_>,
        bytes: &CallBytes,
        out: &mut Output<'_>,
    ) -> Result<(), Failure> {
        if call.is_backward() {
            return self.backward(plan, call, bytes, out);
        }
        if bytes.total() > self.instance.capacity().min(TILE_BYTES) {
            return self.tiles(plan, call, bytes, out);
        }
        self.one(call, bytes, 0, out)
    }

    fn tiles(
        &mut self,
        plan: &CallPlan,
        call: &OpCall<'_>,
        bytes: &CallBytes,
        out: &mut Output<'_>,
    ) -> Result<(), Failure> {
        // Asking uploads what can be, so the room comes after.
        let copied = [self.instance.is_copied(&call.a), self.instance.is_copied(&call.b)];
        let budget = self.instance.capacity().min(TILE_BYTES);
        let Some(tiles) = plan.tiles(call, bytes, budget, copied) else {
            return self.one(call, bytes, 0, out);
        };
        for tile in tiles {
            self.one(&tile.call, &tile.bytes, tile.out.start, out)?;
        }
        Ok(())
    }

    /// As [`SandboxedCall::run`], for gradients.
    fn backward(
        &mut self,
        plan: &CallPlan,
        call: &OpCall<'_>,
        bytes: &CallBytes,
        out: &mut Output<'_>,
    ) -> Result<(), Failure> {
        let Some(tiles) = plan.backward_tiles(call, bytes) else {
            self.one(call, bytes, 0, out)?;
            out.put_second(None, true, self.instance.outputs()[1]);
            return Ok(());
        };
        for (i, tile) in tiles.enumerate() {
            self.one(&tile.call, &tile.bytes, tile.out.start, out)?;
            out.put_second(tile.second, i == 0, self.instance.outputs()[1]);
        }
        Ok(())
    }

    /// Runs the kernel once, on what gives the result from `at` on; what is wrong reaches nobody.
    #[inline]
    fn one(
        &mut self,
        call: &OpCall<'_>,
        bytes: &CallBytes,
        at: usize,
        out: &mut Output<'_>,
    ) -> Result<(), Failure> {
        let result = self.instance.call(call, bytes)?;
        if self.every == 0 {
            out.put(at, result);
            return Ok(());
        }
        if *self.until_check > 0 {
            *self.until_check -= 1;
            out.put(at, result);
            return Ok(());
        }
        *self.until_check = self.checker.sampler.until_next(self.every);
        self.checker.check(self.isa, self.kernel, call, self.instance)?;
        out.put(at, self.instance.output());
        Ok(())
    }
}
