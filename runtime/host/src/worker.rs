//! The call path.
//!
//! A worker belongs to one thread and owns one instance of each kernel that it has called. A call
//! takes no lock and, once its instance is warm, allocates nothing. A candidate that fails costs
//! its instance; the call goes to the next one of the chain with the inputs untouched, because
//! operations are out of place.

use crate::call::OpCall;
use crate::compare::{Judge, decode, exact_blocks};
use crate::error::{Failure, Incident};
use crate::exec::window::Bench;
use crate::host::Shared;
use crate::kernel::{Body, Kernel};
use crate::plan::{CallBytes, CallPlan};
use crate::race::{Race, class};
use crate::registry::{OpSlot, RegistrySnapshot, Slot};
use crate::stats::{Counters, Ledger};
use crate::tensor::{Tensor, bind};
use crate::{CallError, OpKey};
use ruvllm_abi::Op;
use ruvllm_manifest::{ParamValue, Tolerance};
use ruvllm_native::{Isa, twin};
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

/// Bytes of operands and output together above which a call is cut into runs of rows, so that
/// what is copied in is still in the cache when the kernel reads it.
const TILE_BYTES: usize = 256 << 10;

/// How often each candidate of a race runs.
const RACE_TURNS: usize = 8;

/// Calls kernels from one thread.
pub struct Worker {
    host: Arc<Shared>,
    /// By kernel uid.
    lanes: Vec<Lane>,
    retired: u64,
    isa: Isa,
    check: Scratch,
}

/// What a worker keeps of one kernel.
#[derive(Default)]
struct Lane {
    open: Option<Open>,
    bench: Option<Bench>,
    /// Calls until the next cross-check; the first call of an instance is always checked.
    until_check: u32,
}

struct Open {
    alive: Weak<Kernel>,
    ledger: Arc<Ledger>,
    counters: Arc<Counters>,
}

/// Buffers of cross-checks.
#[derive(Default)]
struct Scratch {
    want: Vec<u8>,
    got: Vec<f32>,
    twin: Vec<f32>,
    truth: Vec<f64>,
}

impl Worker {
    pub(crate) fn new(host: Arc<Shared>) -> Self {
        let retired = host.retired.load(Relaxed);
        Self { host, lanes: Vec::new(), retired, isa: Isa::detect(), check: Scratch::default() }
    }

    /// Calls an operation of the snapshot and writes its result to `out`.
    ///
    /// The first candidate that is in service is asked, then the next, until one answers; each
    /// failure is counted, and reported by [`crate::Host::take_incidents`].
    ///
    /// # Errors
    /// [`CallError::Shape`] where operands, words and output do not fit each other: no kernel was
    /// asked then. [`CallError::Failed`] in strict mode, [`CallError::Exhausted`] where nobody
    /// could answer; `out` may hold a part of a result.
    #[inline]
    pub fn call(
        &mut self,
        snap: &RegistrySnapshot,
        slot: OpSlot,
        call: &OpCall<'_>,
        out: &mut [u8],
    ) -> Result<(), CallError> {
        let slot = snap.entry(slot)?;
        if snap.host != self.host.id {
            return Err(CallError::ForeignSnapshot);
        }
        let bytes = slot.plan.check(call, out.len()).map_err(|detail| shape(&slot.key, detail))?;
        let Slot { key, plan, choice, race } = slot;
        let race = race.as_ref();
        let target = Target { key, plan, chain: &choice.chain, race, alone: false };
        self.ask(snap, &target, call, bytes, out)
    }

    /// Calls an operation, or one kernel, by name, with tensors whose shapes are checked against
    /// its contract or manifest. Custom operations too.
    ///
    /// The name is an operation's (`rmsnorm`; the types of the inputs pick among its variants, and
    /// the chain answers) or a kernel's (`rmsnorm_f32`, `pack/rmsnorm_f32`, `native:rmsnorm_f32`;
    /// that kernel alone answers). Params not given have the manifest's defaults. An extent of the
    /// output that no input has is given among the params.
    ///
    /// # Errors
    /// As [`Worker::call`], and [`CallError::Unknown`].
    pub fn call_generic(
        &mut self,
        snap: &RegistrySnapshot,
        kernel_or_op: &str,
        inputs: &[Tensor],
        params: &[(&str, ParamValue)],
    ) -> Result<Vec<Tensor>, CallError> {
        if snap.host != self.host.id {
            return Err(CallError::ForeignSnapshot);
        }
        let target = find(snap, kernel_or_op, inputs)?;
        let fail = |detail: String| shape(target.key, detail);
        let mut bound = bind(target.plan, inputs, params).map_err(fail)?;
        let (call, out) = bound.call(inputs);
        let bytes = target.plan.check(&call, out.len()).map_err(fail)?;
        self.ask(snap, &target, &call, bytes, out)?;
        Ok(vec![bound.output])
    }

    #[inline]
    fn ask(
        &mut self,
        snap: &RegistrySnapshot,
        target: &Target<'_>,
        call: &OpCall<'_>,
        bytes: CallBytes,
        out: &mut [u8],
    ) -> Result<(), CallError> {
        if out.is_empty() {
            // Kernels never see an empty call: there is nothing to compute.
            return Ok(());
        }
        if self.host.retired.load(Relaxed) != self.retired {
            self.sweep();
        }
        let Target { key, plan, chain, race, alone } = *target;
        let strict = self.host.config.strict || alone;
        let class = class(bytes.total());
        let first = match race.map(|race| (race, race.winner(class))) {
            None => 0,
            Some((_, Some(winner))) => winner,
            Some((race, None)) => self.race(snap, target, race, call, bytes, out),
        };
        let order = std::iter::once(first).chain((0..chain.len()).filter(|&i| i != first));
        let mut last = None;
        for kernel in order.filter_map(|i| chain.get(i)) {
            if kernel.ledger.quarantined() {
                if strict {
                    break;
                }
                continue;
            }
            let started = Instant::now();
            match self.attempt(kernel, plan, call, bytes, out) {
                Ok(()) => {
                    let lane = &self.lanes[kernel.uid];
                    if let Some(open) = &lane.open {
                        open.counters.answered(started.elapsed());
                    }
                    return Ok(());
                }
                Err(failure) => {
                    self.failed(kernel, &failure);
                    if strict {
                        let (op, kernel) = (key.to_string(), kernel.id().to_owned());
                        return Err(CallError::Failed { op, kernel, failure });
                    }
                    last = Some(format!("{} {failure}", kernel.id()));
                }
            }
        }
        let last = last.unwrap_or_else(|| "every one is quarantined".to_owned());
        Err(CallError::Exhausted { op: key.to_string(), last })
    }

    /// Times every candidate in service on a call, and gives the winner's place in the chain.
    #[cold]
    fn race(
        &mut self,
        snap: &RegistrySnapshot,
        target: &Target<'_>,
        race: &Race,
        call: &OpCall<'_>,
        bytes: CallBytes,
        out: &mut [u8],
    ) -> usize {
        let Some(records) = snap.records() else { return 0 };
        let mut times = vec![None; target.chain.len()];
        // In turns, so that a passing disturbance meets all of them. The first turn makes
        // instances and warms caches.
        for turn in 0..RACE_TURNS {
            for (kernel, best) in target.chain.iter().zip(&mut times) {
                if kernel.ledger.quarantined() {
                    continue;
                }
                let started = Instant::now();
                match self.attempt(kernel, target.plan, call, bytes, out) {
                    Ok(()) if turn == 0 => {}
                    Ok(()) => {
                        let took = started.elapsed();
                        *best = Some(best.map_or(took, |best: Duration| best.min(took)));
                    }
                    Err(failure) => {
                        self.failed(kernel, &failure);
                        *best = None;
                    }
                }
            }
        }
        records.finish(target.key, target.chain, race, class(bytes.total()), &times)
    }

    #[inline]
    fn attempt(
        &mut self,
        kernel: &Arc<Kernel>,
        plan: &CallPlan,
        call: &OpCall<'_>,
        bytes: CallBytes,
        out: &mut [u8],
    ) -> Result<(), Failure> {
        if self.lanes.get(kernel.uid).is_none_or(|lane| lane.open.is_none()) {
            self.open(kernel);
        }
        let lane = &mut self.lanes[kernel.uid];
        match &kernel.body {
            Body::Native { op } => native(self.isa, *op, &kernel.key, call, out),
            Body::Sandbox { prepared, defaults, .. } => {
                let bench = match &mut lane.bench {
                    Some(bench) => bench,
                    empty => {
                        lane.until_check = 0;
                        empty.insert(Bench::new(&**prepared, defaults)?)
                    }
                };
                let every = self.host.config.cross_check_every;
                let check = every > 0 && lane.until_check == 0;
                lane.until_check = if check { every - 1 } else { lane.until_check.wrapping_sub(1) };
                run(bench, plan, call, bytes, check, out)?;
                if check {
                    self.check.cross_check(self.isa, kernel, call, out)?;
                }
                Ok(())
            }
        }
    }

    /// Makes room for a kernel that this worker has not called before.
    #[cold]
    fn open(&mut self, kernel: &Arc<Kernel>) {
        if self.lanes.len() <= kernel.uid {
            self.lanes.resize_with(kernel.uid + 1, Lane::default);
        }
        let ledger = kernel.ledger.clone();
        let counters = ledger.open();
        let alive = Arc::downgrade(kernel);
        self.lanes[kernel.uid].open = Some(Open { alive, ledger, counters });
    }

    /// Books a failure and discards the instance, which may be spoiled.
    #[cold]
    fn failed(&mut self, kernel: &Kernel, failure: &Failure) {
        if failure.counts() {
            self.lanes[kernel.uid].bench = None;
        }
        let quarantined = kernel.ledger.failed(failure, self.host.config.quarantine_after);
        self.host.report(Incident {
            op: kernel.key.clone(),
            kernel: kernel.id().to_owned(),
            generation: kernel.generation(),
            failure: failure.clone(),
            quarantined,
        });
    }

    /// Lets go of instances whose kernels no snapshot holds any more.
    #[cold]
    fn sweep(&mut self) {
        self.retired = self.host.retired.load(Relaxed);
        for lane in &mut self.lanes {
            if lane.open.as_ref().is_some_and(|open| open.alive.strong_count() == 0) {
                *lane = Lane::default();
            }
        }
    }

    /// Instances that it holds, for tests of draining.
    #[cfg(test)]
    pub(crate) fn instances(&self) -> usize {
        self.lanes.iter().filter(|lane| lane.bench.is_some()).count()
    }

    /// Constants that its instances hold, for tests of uploading.
    #[cfg(test)]
    pub(crate) fn uploaded(&self) -> usize {
        let benches = self.lanes.iter().filter_map(|lane| lane.bench.as_ref());
        benches.map(Bench::uploaded).sum()
    }
}

impl Drop for Open {
    fn drop(&mut self) {
        self.ledger.close(&self.counters);
    }
}

fn shape(key: &OpKey, detail: String) -> CallError {
    CallError::Shape { op: key.to_string(), detail }
}

/// Runs a sandboxed kernel, cut into runs of rows where the call is large.
#[inline]
fn run(
    bench: &mut Bench,
    plan: &CallPlan,
    call: &OpCall<'_>,
    bytes: CallBytes,
    check: bool,
    out: &mut [u8],
) -> Result<(), Failure> {
    if bytes.total() > bench.room().min(TILE_BYTES) {
        // Asking uploads what can be, so the room comes after.
        let copied = [bench.is_copied(&call.a), bench.is_copied(&call.b)];
        let budget = bench.room().min(TILE_BYTES);
        let Some(tiles) = plan.tiles(call, bytes, budget, copied) else {
            return one(bench, call, bytes, check, out);
        };
        for tile in tiles {
            let sized = plan.bytes(tile.call.words.as_slice());
            let bytes = sized.map_err(|_| Failure::TooLarge { needed: usize::MAX, limit: 0 })?;
            one(bench, &tile.call, bytes, check, &mut out[tile.out])?;
        }
        return Ok(());
    }
    one(bench, call, bytes, check, out)
}

#[inline]
fn one(
    bench: &mut Bench,
    call: &OpCall<'_>,
    bytes: CallBytes,
    check: bool,
    out: &mut [u8],
) -> Result<(), Failure> {
    bench.call(call, bytes, out)?;
    if check && !bench.inputs_unchanged(call) {
        return Err(Failure::InputWritten);
    }
    Ok(())
}

fn native(isa: Isa, op: Op, key: &OpKey, call: &OpCall<'_>, out: &mut [u8]) -> Result<(), Failure> {
    // The operands' ranges have been checked with the call.
    let a = call.a.bytes().unwrap_or(&[]);
    let b = call.b.bytes().unwrap_or(&[]);
    twin::run(isa, op, &key.inputs, key.output, a, b, call.words.as_slice(), out)
        .map_err(|e| Failure::Native { detail: e.to_string() })
}

impl Scratch {
    /// Holds an output against the native twin's. Custom operations have none.
    #[cold]
    fn cross_check(
        &mut self,
        isa: Isa,
        kernel: &Kernel,
        call: &OpCall<'_>,
        out: &[u8],
    ) -> Result<(), Failure> {
        let Some((op, _)) = kernel.key.known() else { return Ok(()) };
        self.want.clear();
        self.want.resize(out.len(), 0);
        if native(isa, op, &kernel.key, call, &mut self.want).is_err() {
            // A twin that cannot answer cannot accuse.
            return Ok(());
        }
        let output = kernel.key.output;
        let Some(tolerance) = kernel.tolerance else {
            return exact_blocks(output, call.a.bytes().unwrap_or(&[]), out, &self.want);
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
            row: kernel.plan.output_row(call.words.as_slice()),
            floor: 1024.0,
        };
        judge.check(&self.got, &self.truth)
    }
}

/// What a generic call goes to.
struct Target<'a> {
    key: &'a OpKey,
    plan: &'a CallPlan,
    chain: &'a [Arc<Kernel>],
    race: Option<&'a Race>,
    /// Whether it was named, so that no other may answer.
    alone: bool,
}

fn find<'a>(
    snap: &'a RegistrySnapshot,
    name: &str,
    inputs: &[Tensor],
) -> Result<Target<'a>, CallError> {
    if let Some(kernel) = snap.kernels().find(|kernel| kernel.is_named(name)) {
        let chain = std::slice::from_ref(kernel);
        return Ok(Target { key: &kernel.key, plan: &kernel.plan, chain, race: None, alone: true });
    }
    let unknown = |detail: String| CallError::Unknown { name: name.to_owned(), detail };
    let slots: Vec<_> = snap.slots().iter().filter(|slot| slot.key.op == name).collect();
    if slots.is_empty() {
        let mut ops: Vec<&str> = snap.ops().map(|key| key.op.as_str()).collect();
        ops.sort_unstable();
        ops.dedup();
        return Err(unknown(format!("there are the operations {}", ops.join(", "))));
    }
    let types: Vec<_> = inputs.iter().map(Tensor::dtype).collect();
    let mut fitting = slots.iter().filter(|slot| slot.key.inputs == types);
    let names = || slots.iter().map(|s| s.key.to_string()).collect::<Vec<_>>().join(", ");
    let Some(slot) = fitting.next() else {
        return Err(unknown(format!("none takes these types; there are {}", names())));
    };
    if fitting.next().is_some() {
        let what = format!("several give different types: name one kernel of {}", names());
        return Err(unknown(what));
    }
    if slot.choice.chain.is_empty() {
        return Err(unknown("the policy leaves out every kernel of it".to_owned()));
    }
    let Slot { key, plan, choice, race } = slot;
    Ok(Target { key, plan, chain: &choice.chain, race: race.as_ref(), alone: false })
}
