//! A call answered by one candidate: its tiles, and the checks that are made of some of them.

use crate::OpKey;
use crate::call::{OpCall, Output};
use crate::compare::{Judge, decode, exact_blocks, is_in_range};
use crate::error::Failure;
use crate::exec::window::Bench;
use crate::kernel::PublishedKernel;
use crate::plan::{CallBytes, CallPlan};
use crate::random::Random;
use ruvllm_abi::Op;
use ruvllm_manifest::Tolerance;
use ruvllm_native::{Isa, twin};
use std::ops::Range;

/// Bytes of operands and output together above which a call is cut into runs of rows: what is
/// copied in and what the kernel writes then stay in a core's second-level cache until they are
/// read. Tiles for the first level were measured no faster: each starts its streams anew.
pub(crate) const TILE_BYTES: usize = 128 << 10;

/// Buffers of cross-checks, and of native results that are read instead of kept.
#[derive(Default)]
pub(crate) struct Scratch {
    want: Vec<u8>,
    /// Of numbers, so that it is aligned like them.
    read: Vec<u32>,
    got: Vec<f32>,
    twin: Vec<f32>,
    truth: Vec<f64>,
}

/// An instance about to run, with what decides whether its result is checked.
pub(crate) struct Run<'a> {
    pub(crate) bench: &'a mut Bench,
    pub(crate) kernel: &'a PublishedKernel,
    pub(crate) isa: Isa,
    pub(crate) scratch: &'a mut Scratch,
    /// How many runs there are to a check, on average; 0 is none.
    pub(crate) every: u32,
    /// Runs until the next check.
    pub(crate) until_check: &'a mut u32,
    pub(crate) watch: &'a mut Watch,
}

/// When a worker checks.
pub(crate) struct Watch {
    /// Draws the calls that are looked at.
    pub(crate) random: Random,
    /// Runs of any kernel that are checked, each of them, before checks are drawn again.
    pub(crate) all: u32,
    /// Whether a check has met numbers that no kernel could have computed right.
    pub(crate) met_nonsense: bool,
}

impl Run<'_> {
    /// Runs the kernel on a call, cut into tiles where it is large.
    ///
    /// # Errors
    /// How it failed; `out` may have a part of a result.
    #[inline]
    pub(crate) fn call(
        &mut self,
        plan: &CallPlan,
        call: &OpCall<'_>,
        bytes: &CallBytes,
        out: &mut Output<'_>,
    ) -> Result<(), Failure> {
        if bytes.total() > self.bench.capacity().min(TILE_BYTES) {
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
        let copied = [self.bench.is_copied(&call.a), self.bench.is_copied(&call.b)];
        let budget = self.bench.capacity().min(TILE_BYTES);
        let Some(tiles) = plan.tiles(call, bytes, budget, copied) else {
            return self.one(call, bytes, 0, out);
        };
        for tile in tiles {
            self.one(&tile.call, &tile.bytes, tile.out.start, out)?;
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
        let result = self.bench.call(call, bytes)?;
        if self.every == 0 {
            out.put(at, result);
            return Ok(());
        }
        if *self.until_check > 0 {
            *self.until_check -= 1;
            out.put(at, result);
            return Ok(());
        }
        *self.until_check = self.watch.until_next(self.every);
        self.check(call)?;
        out.put(at, self.bench.output());
        Ok(())
    }

    /// Holds the last run against the inputs, which no kernel may write, and the native twin.
    #[cold]
    fn check(&mut self, call: &OpCall<'_>) -> Result<(), Failure> {
        if !self.bench.inputs_unchanged(call) {
            return Err(Failure::InputWritten);
        }
        match self.scratch.cross_check(self.isa, self.kernel, call, self.bench.output())? {
            Verdict::Right => {}
            Verdict::Unjudged => self.watch.met_nonsense = true,
        }
        Ok(())
    }
}

/// What a check found that has nothing against the kernel.
enum Verdict {
    Right,
    /// Its inputs are out of the range of the operation, for which another is to blame.
    Unjudged,
}

impl Watch {
    /// Runs of a kernel before the next that is checked.
    #[cold]
    fn until_next(&mut self, every: u32) -> u32 {
        match self.all.checked_sub(1) {
            Some(left) => {
                self.all = left;
                0
            }
            None => self.random.next_gap(every) - 1,
        }
    }
}

/// Answers a call by the native twin of an operation.
///
/// # Errors
/// [`Failure::Native`]; `out` may have a part of a result.
#[inline]
pub(crate) fn answer(
    isa: Isa,
    op: Op,
    kernel: &PublishedKernel,
    scratch: &mut Scratch,
    call: &OpCall<'_>,
    bytes: &CallBytes,
    out: &mut Output<'_>,
) -> Result<(), Failure> {
    let read = match out {
        Output::Bytes(out) => return native(isa, op, kernel.key(), call, out),
        Output::Read { read, .. } => read,
    };
    let mut one = |call: &OpCall<'_>, run: Range<usize>| {
        let words = run.len().div_ceil(size_of::<u32>());
        if scratch.read.len() < words {
            scratch.read.resize(words, 0);
        }
        let out = &mut bytemuck::cast_slice_mut(&mut scratch.read)[..run.len()];
        native(isa, op, kernel.key(), call, out)?;
        read(run.start, out);
        Ok(())
    };
    // Runs of rows that are still in cache when they are read, as those of a kernel are.
    match kernel.plan().tiles(call, bytes, TILE_BYTES, [false; 2]) {
        Some(mut tiles) => tiles.try_for_each(|tile| one(&tile.call, tile.out)),
        None => one(call, 0..bytes.out),
    }
}

/// Answers a call by the native twin.
///
/// # Errors
/// [`Failure::Native`].
pub(crate) fn native(
    isa: Isa,
    op: Op,
    key: &OpKey,
    call: &OpCall<'_>,
    out: &mut [u8],
) -> Result<(), Failure> {
    // The operands' ranges have been checked with the call.
    let a = call.a.bytes().unwrap_or(&[]);
    let b = call.b.bytes().unwrap_or(&[]);
    twin::run(isa, op, &key.inputs, key.output, a, b, call.words.as_slice(), out)
        .map_err(|e| Failure::Native { detail: e.to_string() })
}

impl Scratch {
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
            return Ok(Verdict::Unjudged);
        }
        self.want.clear();
        self.want.resize(out.len(), 0);
        if native(isa, op, kernel.key(), call, &mut self.want).is_err() {
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
