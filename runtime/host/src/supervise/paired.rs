//! Whether a kernel is slower than another: both compute the same calls, in turns.
//!
//! Times that were counted while others were served suggest that, and cannot prove it: the calls of
//! two generations differ in their sizes and in what is in the processor's caches when they come, and
//! the machine may have been busier. Where both run in turns, all of that is the same for both.

use crate::admit::{Case, live_case};
use crate::call::native;
use crate::code::{Code, PreparedKernel};
use crate::deadline::thread_time;
use crate::instance::TILE_BYTES;
use crate::instance::{Instance, WindowSize};
use crate::op::call::{Scope, Words};
use crate::op::plan::CallBytes;
use crate::random::{self, Random};
use ruvllm_abi::Op;
use ruvllm_native::Isa;
use std::time::{Duration, Instant};

/// Calls of each shape, for each of the two, and how they take turns.
const CALLS: usize = TURNS * RUN;
const TURNS: usize = 5;
const RUN: usize = 13;

/// How many times as far as the median the mean may be off, over processor time, which other threads
/// do not disturb.
const MEAN_SLACK: f64 = 2.0;

/// How long it goes on; what was computed by then decides.
const LIMIT: Duration = Duration::from_secs(1);

/// Whether `new` takes more than `ratio` times as long as `old` for calls of any of the shapes; `None` where
/// that cannot be found out. `isa` is what native code uses.
pub(super) fn is_slower(
    old: &PreparedKernel,
    new: &PreparedKernel,
    isa: Isa,
    shapes: &[Words],
    ratio: f64,
) -> Option<bool> {
    let (mut old, mut new) = (PairedKernel::new(old, isa)?, PairedKernel::new(new, isa)?);
    let room = old.room().min(new.room()).min(TILE_BYTES);
    let mut random = Random::new(random::seed());
    let (begun, mut compared) = (Instant::now(), None);
    for &words in shapes {
        // Longer calls are cut into such runs of rows.
        let Some(words) = new.code.plan().within(words, room) else { continue };
        let Some(case) = new.case(words, &mut random) else { continue };
        let mut times = [[Duration::ZERO; CALLS]; 2];
        let mut computed = [Duration::ZERO; 2];
        let mut turns = 0;
        for turn in 0..TURNS {
            if begun.elapsed() > LIMIT {
                break;
            }
            for (i, kernel) in [&mut old, &mut new].into_iter().enumerate() {
                let before = thread_time();
                for time in &mut times[i][turn * RUN..][..RUN] {
                    match kernel.call(&case) {
                        Some(took) => *time = took,
                        // What fails in calls that the other computes does not serve them.
                        None => return (i == 1).then_some(true),
                    }
                }
                // The first turn touches pages that the others find.
                if let (Some(before), Some(now), 1..) = (before, thread_time(), turn) {
                    computed[i] += now.saturating_sub(before);
                }
            }
            turns += 1;
        }
        if turns == 0 {
            return compared;
        }
        let [before, now] = computed.map(|time| time.as_secs_f64());
        if before > 0.0 && now > before * ratio * MEAN_SLACK {
            return Some(true);
        }
        let [old, new] = times.map(|mut times| {
            let times = &mut times[..turns * RUN];
            times.sort_unstable();
            times[times.len() / 2].as_secs_f64()
        });
        if new > old * ratio {
            return Some(true);
        }
        compared = Some(false);
    }
    compared
}

/// Whether the second of two takes more than `ratio` times as long as the first for any call that both computed; `None`
/// where they computed none.
pub(super) fn is_longer(times: &[[Duration; 2]], ratio: f64) -> Option<bool> {
    let longer = |[old, new]: &[Duration; 2]| new.as_secs_f64() > old.as_secs_f64() * ratio;
    (!times.is_empty()).then(|| times.iter().any(longer))
}

/// A kernel with an instance of its own.
struct PairedKernel<'a> {
    code: &'a PreparedKernel,
    op: Op,
    /// `None` for the host's own code.
    instance: Option<Instance>,
    scope: Scope,
    isa: Isa,
    out: Vec<u8>,
}

impl<'a> PairedKernel<'a> {
    /// `None` for a custom operation, whose calls cannot be made up, and where there is no instance.
    fn new(code: &'a PreparedKernel, isa: Isa) -> Option<Self> {
        let (op, _) = code.key().known()?;
        let instance = match code.code() {
            // Team operations are none of those whose calls can be made up.
            Code::Native { .. } | Code::Team { .. } => None,
            Code::Sandboxed { template, .. } => {
                Some(Instance::new(template, WindowSize::Tile, None).ok()?)
            }
        };
        Some(Self { code, op, instance, scope: Scope::unique(), isa, out: Vec::new() })
    }

    /// Bytes that a call may move.
    fn room(&self) -> usize {
        self.instance.as_ref().map_or(usize::MAX, Instance::capacity)
    }

    fn case(&self, words: Words, random: &mut Random) -> Option<Case> {
        live_case(self.code.key().known()?, words, random)
    }

    /// How long a call takes, its operands' way into the sandbox with it; `None` where it fails.
    fn call(&mut self, case: &Case) -> Option<Duration> {
        // Of one scope, as most calls are.
        let call = case.call().within(self.scope);
        let bytes: CallBytes = self.code.plan().bytes(case.words.as_slice()).ok()?;
        self.out.resize(bytes.out, 0);
        let begun = Instant::now();
        match &mut self.instance {
            Some(instance) => drop(instance.call(&call, &bytes).ok()?),
            None => native::run(self.isa, self.op, self.code.key(), &call, &mut self.out).ok()?,
        }
        Some(begun.elapsed())
    }
}
