//! A sample of results is held against the host's own: which results, and what counts as wrong.

use crate::compare::called;
use crate::error::Failure;
use crate::instance::Instance;
use crate::op::call::OpCall;
use crate::random::{self, Random};
use crate::registry::kernel::PublishedKernel;
use ruvllm_native::Isa;
use ruvllm_native::judge::{Buffers, Judge, Verdict, Wrong};

/// Runs that are checked, each of them, after numbers were met that make no sense: those of some steps
/// of a model.
const CHECKED_IN_DOUBT: u32 = 1024;

/// Decides which runs of a worker are checked.
pub(crate) struct CheckSampler {
    /// Draws the calls that are looked at.
    pub(crate) random: Random,
    /// Runs of any kernel that are checked, each of them, before checks are drawn again.
    all: u32,
}

impl CheckSampler {
    pub(crate) fn new() -> Self {
        Self { random: Random::new(random::seed()), all: 0 }
    }

    /// Has every one of the next runs checked.
    pub(crate) fn suspect(&mut self) {
        self.all = CHECKED_IN_DOUBT;
    }

    /// Runs of a kernel before the next that is checked.
    #[cold]
    pub(crate) fn until_next(&mut self, every: u32) -> u32 {
        match self.all.checked_sub(1) {
            Some(left) => {
                self.all = left;
                0
            }
            None => self.random.next_gap(every) - 1,
        }
    }
}

/// Decides when a worker's results are checked, and checks them.
pub(crate) struct Checker {
    pub(crate) sampler: CheckSampler,
    /// Whether a check has met numbers that no kernel could have computed right.
    pub(crate) met_out_of_range: bool,
    buffers: Buffers,
}

impl Checker {
    pub(crate) fn new() -> Self {
        Self { sampler: CheckSampler::new(), met_out_of_range: false, buffers: Buffers::default() }
    }

    /// Holds the last run of an instance against the inputs, which no kernel may write, and the native twin.
    ///
    /// # Errors
    /// [`Failure::InputWritten`], and what the judge has against the result.
    #[cold]
    pub(crate) fn check(
        &mut self,
        isa: Isa,
        kernel: &PublishedKernel,
        call: &OpCall<'_>,
        instance: &mut Instance,
    ) -> Result<(), Failure> {
        if !instance.inputs_unchanged(call) {
            return Err(Failure::InputWritten);
        }
        let verdict = match call.is_backward() {
            true => cross_check_gradients(kernel, call, instance.outputs())?,
            false => self.cross_check(isa, kernel, call, instance.output())?,
        };
        match verdict {
            Verdict::Right(_) => {}
            // For which another is to blame.
            Verdict::Unjudged => self.met_out_of_range = true,
        }
        Ok(())
    }

    /// Holds an output against the native twin's. Custom operations have none, and a twin that cannot
    /// answer cannot accuse.
    fn cross_check(
        &mut self,
        isa: Isa,
        kernel: &PublishedKernel,
        call: &OpCall<'_>,
        out: &[u8],
    ) -> Result<Verdict, Failure> {
        let right = Ok(Verdict::Right(None));
        let Some((op, variant)) = kernel.key().known() else { return right };
        match Judge::new(op, variant).against_native(isa, called(call), out, &mut self.buffers) {
            Err(Wrong::Refused(_)) => right,
            verdict => Ok(verdict?),
        }
    }
}

/// Holds gradients against the oracle's: what they may be off by follows from all that is summed on the way,
/// which a result alone does not tell.
fn cross_check_gradients(
    kernel: &PublishedKernel,
    call: &OpCall<'_>,
    gradients: [&[u8]; 2],
) -> Result<Verdict, Failure> {
    let Some((op, variant)) = kernel.key().known() else { return Ok(Verdict::Right(None)) };
    let grad_output = call.gradient.bytes().unwrap_or(&[]);
    match Judge::new(op, variant).check_gradients(called(call), grad_output, gradients) {
        Err(Wrong::Refused(_)) => Ok(Verdict::Right(None)),
        verdict => Ok(verdict?),
    }
}
