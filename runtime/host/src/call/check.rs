//! A sample of results is held against the host's own: which results, and what counts as wrong.

use super::native;
use crate::compare::{Judge, decode, exact_blocks, is_in_range};
use crate::error::Failure;
use crate::instance::Instance;
use crate::op::call::OpCall;
use crate::random::Random;
use crate::registry::kernel::PublishedKernel;
use ruvllm_manifest::Tolerance;
use ruvllm_native::Isa;

/// Decides when a worker's results are checked, and checks them.
pub(crate) struct Checker {
    /// Draws the calls that are looked at.
    pub(crate) random: Random,
    /// Runs of any kernel that are checked, each of them, before checks are drawn again.
    pub(crate) all: u32,
    /// Whether a check has met numbers that no kernel could have computed right.
    pub(crate) met_out_of_range: bool,
    want: Vec<u8>,
    got: Vec<f32>,
    twin: Vec<f32>,
    truth: Vec<f64>,
}

/// What a check found that has nothing against the kernel.
enum Verdict {
    Right,
    /// Its inputs are out of the range of the operation, for which another is to blame.
    OutOfRange,
}

impl Checker {
    pub(crate) fn new(random: Random) -> Self {
        Self {
            random,
            all: 0,
            met_out_of_range: false,
            want: Vec::new(),
            got: Vec::new(),
            twin: Vec::new(),
            truth: Vec::new(),
        }
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

    /// Holds the last run of an instance against the inputs, which no kernel may write, and the native twin.
    ///
    /// # Errors
    /// [`Failure::InputWritten`] and those of [`Judge::check`].
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
        match self.cross_check(isa, kernel, call, instance.output())? {
            Verdict::Right => {}
            Verdict::OutOfRange => self.met_out_of_range = true,
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
        let Some((op, _)) = kernel.key().known() else { return Ok(Verdict::Right) };
        let operands = [&call.a, &call.b].map(|operand| operand.bytes().unwrap_or(&[]));
        if !kernel
            .key()
            .inputs
            .iter()
            .zip(operands)
            .all(|(&dtype, bytes)| is_in_range(dtype, bytes))
        {
            return Ok(Verdict::OutOfRange);
        }
        self.want.clear();
        self.want.resize(out.len(), 0);
        if native::run(isa, op, kernel.key(), call, &mut self.want).is_err() {
            return Ok(Verdict::Right);
        }
        let output = kernel.key().output;
        let Some(tolerance) = kernel.tolerance() else {
            exact_blocks(output, operands[0], out, &self.want)?;
            return Ok(Verdict::Right);
        };
        let unreadable = |detail: String| Failure::Mismatch { detail };
        decode(output, out, &mut self.got).map_err(unreadable)?;
        decode(output, &self.want, &mut self.twin).map_err(unreadable)?;
        self.truth.clear();
        self.truth.extend(self.twin.iter().map(|&x| f64::from(x)));
        let judge = Judge {
            dtype: output,
            // The twin is as far from the truth as the kernel may be.
            tolerance: Tolerance { rel: 2.0 * tolerance.rel, abs: 2.0 * tolerance.abs },
            author: None,
            row: kernel.plan().output_row(call.words.as_slice()),
            floor: 1024.0,
        };
        judge.check(&self.got, &self.truth)?;
        Ok(Verdict::Right)
    }
}
