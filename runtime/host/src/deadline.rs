//! How long a call may take: what the pack asks for, and no longer than a call of that size can
//! honestly take on this machine.
//!
//! The host computes a call of each catalogue operation with the scalar native twin, once, and takes
//! what that took for a unit of work as the measure; a kernel may take many times as long. Nothing
//! can be measured of a custom operation, so the pack's own limit holds there, under the host's cap.
//!
//! Time is counted in ticks of the clock that running kernels are held against, and a kernel that
//! has used them up is stopped only when the processor time of its thread shows that it computed
//! meanwhile: one that was not given a processor is not to blame.

use crate::OpKey;
use crate::op::call::Words;
use crate::op::plan::{CallBytes, CallPlan};
use ruvllm_abi::Op;
use ruvllm_native::{Isa, judge, twin};
use std::collections::BTreeMap;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

/// How many times as long as the scalar native twin a kernel may take.
const FACTOR: f64 = 32.0;

/// How many times as long as a call of their sizes gradients may take: each number goes through several products
/// where it went through one.
const BACKWARD: u64 = 4;

/// What any call may take: pages that are touched for the first time cost more than brief calls.
const LEAST: Duration = Duration::from_millis(5);

/// What `kernel_init`, `kernel_info` and `kernel_cleanup` may take each, beside what their memory costs.
const ASIDE: Duration = Duration::from_millis(20);

/// What touching a page of 64 KiB for the first time may take: `kernel_init` may fill all of them, each is sixteen
/// pages of most processors, and a virtual machine that is given its memory when it is touched takes 25 us for one.
const PAGE: Duration = Duration::from_millis(1);

/// How often the twin is measured; the shortest time counts.
const TURNS: usize = 9;

/// Fraction bits of a rate.
const FRACTION: u32 = 32;

/// The deadlines of one kernel.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Deadline {
    /// Of a tick.
    pub(crate) tick: Duration,
    /// Ticks that an export other than the entry point may take.
    pub(crate) aside: u64,
    /// Ticks that the pack asks for, which no call may exceed.
    most: u64,
    /// Ticks that a call may take whatever its size.
    least: u64,
    /// Ticks for a unit of work, times 2^32.
    rate: u64,
    /// The word that says how often input A and the output are gone through.
    repeats: Option<usize>,
}

impl Deadline {
    /// The deadlines of a kernel whose pack asks for so many ticks a call and pages of memory, for ticks of
    /// this length.
    pub(crate) fn new(key: &OpKey, asked: u64, memory_pages: u32, tick: Duration) -> Self {
        let ticks =
            |time: Duration| (time.as_nanos().div_ceil(tick.as_nanos().max(1)) as u64).max(1);
        let most = asked.max(1);
        let aside = ticks(ASIDE + PAGE * memory_pages).min(most);
        let own = Self { tick, aside, most, least: most, rate: 0, repeats: None };
        let Some((op, nanos)) = measured(key) else { return own };
        let rate = FACTOR * nanos / tick.as_nanos().max(1) as f64 * f64::from(FRACTION).exp2();
        Self { least: ticks(LEAST), rate: rate.ceil() as u64, repeats: judge::repeats(op), ..own }
    }

    /// The same on an executor whose kernels may take so many times as long as machine code.
    pub(crate) fn on_executor(self, times: f64) -> Self {
        Self { rate: (self.rate as f64 * times) as u64, ..self }
    }

    /// The same for ticks that are as long as a clock's, which are several of these.
    #[cfg(any(test, feature = "wasmtime"))]
    pub(crate) fn by_clock(self, clock: Duration) -> Self {
        let times = (clock.as_nanos() / self.tick.as_nanos().max(1)).max(1) as u64;
        Self {
            tick: clock,
            aside: self.aside.div_ceil(times),
            most: self.most.div_ceil(times),
            least: self.least.div_ceil(times),
            rate: self.rate.div_ceil(times),
            repeats: self.repeats,
        }
    }

    /// Ticks that a call may take.
    #[inline]
    pub(crate) fn ticks(&self, bytes: &CallBytes, words: &Words) -> u64 {
        let work = work(self.repeats, bytes, words);
        (self.least + (work.saturating_mul(self.rate) >> FRACTION)).min(self.most)
    }
}

/// What a call costs, in bytes that are gone through.
#[inline]
fn work(repeats: Option<usize>, bytes: &CallBytes, words: &Words) -> u64 {
    let times = match repeats {
        None => 1,
        Some(word) => words.as_slice().get(word).map_or(1, |&times| u64::from(times)),
    };
    let CallBytes { a, b, gradient, out, out_b } = *bytes;
    let work =
        ((a + gradient + out) as u64).saturating_mul(times).saturating_add((b + out_b) as u64);
    if gradient > 0 { work.saturating_mul(BACKWARD) } else { work }
}

/// Nanoseconds that the scalar native twin takes for a unit of work, measured once in a process;
/// `None` for a custom operation.
fn measured(key: &OpKey) -> Option<(Op, f64)> {
    static KNOWN: Mutex<BTreeMap<OpKey, f64>> = Mutex::new(BTreeMap::new());
    let (op, _) = key.known()?;
    // Held while it is measured, so that no two measurements disturb each other.
    let mut known = KNOWN.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(&nanos) = known.get(key) {
        return Some((op, nanos));
    }
    let nanos = measure(op, key)?;
    known.insert(key.clone(), nanos);
    Some((op, nanos))
}

fn measure(op: Op, key: &OpKey) -> Option<f64> {
    let words = Words::new(&judge::sample(op))?;
    let bytes = CallPlan::of_op(op, &key.inputs, key.output).bytes(words.as_slice()).ok()?;
    let (a, b, mut out) = (vec![0; bytes.a], vec![0; bytes.b], vec![0; bytes.out]);
    let mut best = Duration::MAX;
    for _ in 0..TURNS {
        let begun = Instant::now();
        let (inputs, words) = (&key.inputs, words.as_slice());
        twin::run(Isa::Scalar, op, inputs, key.output, &a, &b, words, &mut out).ok()?;
        best = best.min(begun.elapsed());
    }
    Some(best.as_nanos() as f64 / work(judge::repeats(op), &bytes, &words).max(1) as f64)
}

/// How much of its deadline the call has used that runs in an instance.
#[derive(Debug, Default)]
pub(crate) struct UsedTime {
    allowed: u64,
    tick: Duration,
    /// The processor time of its thread when that was looked at last, and what came together since
    /// the ticks were over.
    seen: Option<Duration>,
    computed: Duration,
}

impl UsedTime {
    /// A call begins that may take so many ticks of this length.
    #[inline]
    pub(crate) fn begin(&mut self, allowed: u64, tick: Duration) {
        *self = Self { allowed, tick, seen: None, computed: Duration::ZERO };
    }

    /// Its ticks are over: gives further ticks, or `None` where it has computed all the while.
    /// `now` is the processor time of its thread, where the system tells it.
    ///
    /// What passed between two looks counts for no more than the ticks that lay between them: a
    /// machine that stood still counts that as time of whoever ran.
    pub(crate) fn overrun(&mut self, now: Option<Duration>) -> Option<u64> {
        let slice = (self.allowed / 8).max(1);
        let now = now?;
        if let Some(seen) = self.seen.replace(now) {
            let ticks = u32::try_from(slice).unwrap_or(u32::MAX);
            self.computed += now.saturating_sub(seen).min(self.tick.saturating_mul(ticks));
        }
        let allowed = self.tick.saturating_mul(u32::try_from(self.allowed).unwrap_or(u32::MAX));
        (self.computed < allowed / 2).then_some(slice)
    }
}

/// The processor time that the calling thread has used; `None` where the system does not tell.
pub(crate) fn thread_time() -> Option<Duration> {
    #[cfg(unix)]
    {
        use rustix::time::{ClockId, clock_gettime};
        Duration::try_from(clock_gettime(ClockId::ThreadCPUTime)).ok()
    }
    #[cfg(not(unix))]
    None
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::HostConfig;
    use crate::op::call::{LoraDims, OpCall, Operand};

    const TICK: Duration = Duration::from_millis(1);

    fn ticks(key: &OpKey, most: u64, words: &Words) -> u64 {
        let (op, _) = key.known().unwrap();
        let bytes = CallPlan::of_op(op, &key.inputs, key.output).bytes(words.as_slice()).unwrap();
        Deadline::new(key, most, 0, TICK).ticks(&bytes, words)
    }

    #[test]
    fn a_deadline_follows_the_size_of_the_call_and_never_exceeds_the_packs() {
        let key = OpKey::rmsnorm_f32();
        let rmsnorm = |rows, dim| {
            let none = || Operand::None;
            OpCall::rmsnorm(none(), none(), rows, dim, 1e-5).words
        };
        // Whatever this machine is: a call of some bytes has milliseconds, not seconds.
        let brief = ticks(&key, 10_000, &rmsnorm(1, 64));
        assert!((5..100).contains(&brief), "{brief}");
        let long = ticks(&key, u64::MAX, &rmsnorm(1 << 14, 1 << 12));
        assert!(long > 8 * brief, "{long}");
        assert_eq!(ticks(&key, 3, &rmsnorm(1 << 14, 1 << 12)), 3);
    }

    #[test]
    fn a_rank_counts_and_every_operation_is_measured() {
        for op in Op::ALL {
            for variant in op.contract().variants {
                let key = OpKey::of(op, variant);
                assert!(measured(&key).is_some_and(|(_, nanos)| nanos > 0.0), "{key}");
            }
        }
        let lora = |rank| {
            let dims = LoraDims { rows: 64, in_dim: 4096, rank, out_dim: 4096 };
            OpCall::lora(Operand::None, Operand::None, dims, 1.0).words
        };
        let [low, high] = [8, 512].map(|rank| ticks(&OpKey::lora_f32(), u64::MAX, &lora(rank)));
        assert!(high > 8 * low, "{low} {high}");
    }

    #[test]
    fn a_clock_ticks_no_oftener_than_a_call_may_take() {
        let none = || Operand::None;
        let words = OpCall::rmsnorm(none(), none(), 1 << 14, 1 << 12, 1e-5).words;
        let key = OpKey::rmsnorm_f32();
        let (op, _) = key.known().unwrap();
        let bytes = CallPlan::of_op(op, &key.inputs, key.output).bytes(words.as_slice()).unwrap();
        for (tick, period) in [(100, 5_000), (1_000, 5_000), (2_000, 4_000), (10_000, 10_000)] {
            let tick = Duration::from_micros(tick);
            let fine = Deadline::new(&key, u64::MAX, 4, tick);
            let clock = HostConfig { tick, ..HostConfig::default() }.clock();
            assert_eq!(clock, Duration::from_micros(period));
            let coarse = fine.by_clock(clock);
            let took = |of: Deadline, ticks: u64| of.tick.as_secs_f64() * ticks as f64;
            let all = |of: Deadline| [of.ticks(&bytes, &words), of.aside].map(|n| took(of, n));
            for (fine, coarse) in all(fine).into_iter().zip(all(coarse)) {
                let off = coarse - fine;
                assert!(off.abs() <= coarse * 0.01 + clock.as_secs_f64(), "{fine} {coarse}");
            }
        }
    }

    #[test]
    fn nothing_but_the_packs_own_limit_is_known_of_a_custom_operation() {
        let key = OpKey::new("mine", [ruvllm_abi::DType::F32], ruvllm_abi::DType::F32);
        let deadline = Deadline::new(&key, 700, 0, TICK);
        let bytes = CallBytes { a: 4, out: 4, ..CallBytes::default() };
        assert_eq!(deadline.ticks(&bytes, &Words::of([1])), 700);
        assert_eq!(deadline.aside, 20);
        // Who has more memory to fill has more time to.
        assert_eq!(Deadline::new(&key, 700, 256, TICK).aside, 276);
        assert_eq!(Deadline::new(&key, 50, 256, TICK).aside, 50);
    }

    /// Looks at a call of 16 ticks until it is stopped, `step` of processor time apart.
    fn looks(step: Duration) -> Option<usize> {
        let mut spent = UsedTime::default();
        spent.begin(16, TICK);
        let times = (0u32..10_000).map(|n| Duration::from_secs(9) + n * step);
        times.map(Some).position(|now| spent.overrun(now).is_none())
    }

    #[test]
    fn who_computes_is_stopped_and_who_was_not_running_is_not() {
        assert_eq!(looks(2 * TICK), Some(4));
        assert_eq!(looks(TICK / 10), Some(80));
        assert_eq!(looks(Duration::ZERO), None);
        // A machine that stood still for an hour counts that as one look.
        assert_eq!(looks(Duration::from_secs(3600)), Some(4));
        let mut spent = UsedTime::default();
        spent.begin(16, TICK);
        assert_eq!(spent.overrun(None), None, "ticks alone count where there is no such clock");
    }
}
