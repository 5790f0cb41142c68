//! The call path.
//!
//! A worker belongs to one thread and owns one instance of each kernel that it has called. A call
//! takes no lock and, once its instance is warm, allocates nothing. A candidate that fails costs
//! its instance; the call goes to the next one of the chain with the inputs untouched, because
//! operations are out of place.

use crate::call::{OpCall, Operand, Output, Owner};
use crate::error::Failure;
use crate::exec::window::{BENCHES, Bench, Room, Sandbox};
use crate::host::Shared;
use crate::kernel::{Code, PublishedKernel};
use crate::plan::{CallBytes, CallPlan};
use crate::race::{Race, class};
use crate::random::{self, Random};
use crate::registry::{OpSlot, RegistrySnapshot, Slot};
use crate::run::{self, Run, Scratch, Watch};
use crate::stats::{Counters, Ledger, Timing};
use crate::tensor::{Tensor, bind};
use crate::{CallError, OpKey};
use ruvllm_abi::REGION_ALIGN;
use ruvllm_manifest::ParamValue;
use ruvllm_native::Isa;
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

/// Bytes of operands and output together below which a call is brief: reading the clock would take
/// as long as the call, so about one of [`CLOCK_EVERY`] is timed.
const BRIEF_BYTES: usize = 4 << 10;

/// Of so many brief calls one is timed on average, and no kernel can know which.
const CLOCK_EVERY: u32 = 64;

/// Runs that are checked, each of them, after numbers were met that make no sense: those of some steps
/// of a model.
const CHECKED_IN_DOUBT: u32 = 1024;

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
    watch: Watch,
}

/// What a worker keeps of one kernel.
#[derive(Default)]
struct Lane {
    open: Option<Open>,
    benches: Vec<Bench>,
    /// Runs until the next cross-check; the first run of an instance is always checked.
    until_check: u32,
    /// Brief calls until the next that is timed.
    until_clock: u32,
    /// The classes of shapes that were noted for self-tests of other kernels, a bit for each.
    noted: u64,
    /// Whether the last instance that was wanted did not fit the memory.
    short: bool,
}

struct Open {
    alive: Weak<PublishedKernel>,
    ledger: Arc<Ledger>,
    counters: Arc<Counters>,
}

impl Worker {
    pub(crate) fn new(host: Arc<Shared>) -> Self {
        let retired = host.uids.retired();
        let isa = host.config.isa.usable();
        Self {
            host,
            lanes: Vec::new(),
            retired,
            isa,
            check: Scratch::default(),
            watch: Watch { random: Random::new(random::seed()), all: 0, met_nonsense: false },
        }
    }

    /// Calls an operation of the snapshot and hands its result to `out`, bytes to write or a reader.
    ///
    /// The first candidate that is in service is asked, then the next, until one answers; each
    /// failure is counted, and reported by [`crate::Host::take_incidents`].
    ///
    /// # Errors
    /// [`CallError::Shape`] where operands, words and output do not fit each other: no kernel was
    /// asked then. [`CallError::Failed`] in strict mode, [`CallError::Exhausted`] where nobody
    /// could answer; `out` may have a part of a result.
    #[inline]
    pub fn call<'o>(
        &mut self,
        snap: &RegistrySnapshot,
        slot: OpSlot,
        call: &OpCall<'_>,
        out: impl Into<Output<'o>>,
    ) -> Result<(), CallError> {
        let mut out = out.into();
        let slot = snap.entry(slot)?;
        if snap.host != self.host.id {
            return Err(CallError::ForeignSnapshot);
        }
        let Some(bytes) = slot.plan.check(call, out.len()) else {
            return Err(shape(&slot.key, slot.plan.objection(call, out.len())));
        };
        let Slot { key, plan, choice, race, .. } = slot;
        let race = race.as_ref();
        let every = snap.check_every();
        let target = Target { key, plan, chain: &choice.chain, race, alone: false, every };
        self.ask(snap, &target, call, &bytes, &mut out)
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
        let Some(bytes) = target.plan.check(&call, out.len()) else {
            return Err(fail(target.plan.objection(&call, out.len())));
        };
        self.ask(snap, &target, &call, &bytes, &mut Output::Bytes(out))?;
        Ok(vec![bound.output])
    }

    /// Has every one of the next few hundred runs checked, of whatever kernel: something has computed what
    /// it should not, and whoever does it again is found. For callers whose results make no sense.
    #[cold]
    pub fn suspect(&mut self) {
        self.watch.all = CHECKED_IN_DOUBT;
        self.lanes.iter_mut().for_each(|lane| lane.until_check = 0);
    }

    #[inline]
    fn ask(
        &mut self,
        snap: &RegistrySnapshot,
        target: &Target<'_>,
        call: &OpCall<'_>,
        bytes: &CallBytes,
        out: &mut Output<'_>,
    ) -> Result<(), CallError> {
        if out.len() == 0 {
            // Kernels never see an empty call: there is nothing to compute.
            return Ok(());
        }
        if self.host.uids.retired() != self.retired {
            self.sweep();
        }
        let Target { chain, race, .. } = *target;
        let first = match race {
            None => 0,
            Some(race) => match race.winner(class(bytes.total())) {
                Some(winner) => winner,
                None => self.race(snap, target, race, call, bytes, out),
            },
        };
        let failure = match chain.get(first) {
            Some(kernel) if !kernel.ledger().quarantined() => {
                match self.answer(kernel, target, call, bytes, out) {
                    Ok(()) => return Ok(()),
                    Err(failure) => Some(failure),
                }
            }
            _ => None,
        };
        self.fall_back(target, first, failure, call, bytes, out)
    }

    /// Asks the others of a chain, after the first failed or while it is out of service.
    #[cold]
    fn fall_back(
        &mut self,
        target: &Target<'_>,
        first: usize,
        failure: Option<Failure>,
        call: &OpCall<'_>,
        bytes: &CallBytes,
        out: &mut Output<'_>,
    ) -> Result<(), CallError> {
        let Target { key, chain, alone, .. } = *target;
        let strict = self.host.config.strict || alone;
        let mut last = None;
        let mut failed = |worker: &mut Self, kernel: &Arc<PublishedKernel>, failure: Failure| {
            worker.failed(kernel, &failure);
            if strict {
                let (op, kernel) = (key.to_string(), kernel.id().to_owned());
                return Err(CallError::Failed { op, kernel, failure });
            }
            last = Some((kernel.clone(), failure));
            Ok(())
        };
        if let (Some(kernel), Some(failure)) = (chain.get(first), failure) {
            failed(self, kernel, failure)?;
        }
        let others = chain.iter().enumerate().filter(|&(i, kernel)| {
            // In strict mode nobody answers for the first.
            i != first && !strict && !kernel.ledger().quarantined()
        });
        for (_, kernel) in others {
            match self.answer(kernel, target, call, bytes, out) {
                Ok(()) => return Ok(()),
                Err(failure) => failed(self, kernel, failure)?,
            }
        }
        let last = match last {
            Some((kernel, failure)) => format!("{} {failure}", kernel.id()),
            None => "every one is quarantined".to_owned(),
        };
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
        bytes: &CallBytes,
        out: &mut Output<'_>,
    ) -> usize {
        let Some(records) = snap.records() else { return 0 };
        let mut times = vec![None; target.chain.len()];
        // Who has no memory now may be the fastest when there is some.
        let mut lasting = true;
        // In turns, so that a passing disturbance meets all of them. The first turn makes
        // instances and warms caches.
        for turn in 0..RACE_TURNS {
            for (kernel, best) in target.chain.iter().zip(&mut times) {
                if kernel.ledger().quarantined() {
                    continue;
                }
                self.lane(kernel);
                let started = Instant::now();
                match self.attempt(kernel, target, call, bytes, out) {
                    Ok(()) if turn == 0 => {}
                    Ok(()) => {
                        let took = started.elapsed();
                        *best = Some(best.map_or(took, |best: Duration| best.min(took)));
                    }
                    Err(failure) => {
                        lasting &= !matches!(failure, Failure::Memory { .. });
                        self.failed(kernel, &failure);
                        *best = None;
                    }
                }
            }
        }
        records.finish(target.key, target.chain, race, class(bytes.total()), &times, lasting)
    }

    /// Runs one candidate, and books the call where it succeeds.
    #[inline]
    fn answer(
        &mut self,
        kernel: &Arc<PublishedKernel>,
        target: &Target<'_>,
        call: &OpCall<'_>,
        bytes: &CallBytes,
        out: &mut Output<'_>,
    ) -> Result<(), Failure> {
        let lane = self.lane(kernel);
        // A call that makes an instance or is checked takes many times what others do: it may not
        // stand for them.
        let usual = kernel.is_native() || !lane.benches.is_empty() && lane.until_check > 0;
        let brief = usual && bytes.total() < BRIEF_BYTES;
        let timed = !brief || lane.until_clock == 0;
        if !timed {
            lane.until_clock -= 1;
        }
        let class = bytes.class();
        let first_of_class = lane.noted & class == 0;
        lane.noted |= class;
        if first_of_class {
            self.host.seen.note(kernel.key(), &call.words);
        }
        if brief && timed {
            self.lanes[kernel.uid()].until_clock = self.watch.random.next_gap(CLOCK_EVERY) - 1;
        }
        let started = timed.then(Instant::now);
        self.attempt(kernel, target, call, bytes, out)?;
        if !usual && std::mem::take(&mut self.watch.met_nonsense) {
            self.suspect();
        }
        if let Some(open) = &self.lanes[kernel.uid()].open {
            open.counters.answered(
                bytes.total(),
                match started.map(|started| started.elapsed()) {
                    Some(took) if !brief => Timing::Each(took),
                    took => Timing::Sampled(took),
                },
            );
        }
        Ok(())
    }

    /// Runs one candidate whose lane is open.
    #[inline]
    fn attempt(
        &mut self,
        kernel: &PublishedKernel,
        target: &Target<'_>,
        call: &OpCall<'_>,
        bytes: &CallBytes,
        out: &mut Output<'_>,
    ) -> Result<(), Failure> {
        let sandbox = match kernel.code() {
            Code::Native { op } => {
                let scratch = &mut self.check;
                return run::answer(self.isa, *op, kernel, scratch, call, bytes, out);
            }
            Code::Sandboxed { sandbox, .. } => sandbox,
        };
        let lane = &mut self.lanes[kernel.uid()];
        let (room, owner) = wanted(target.plan, call, bytes);
        let bench = match lane.benches.iter().position(|bench| bench.is_for(room, owner)) {
            Some(found) => found,
            None => lane.make(&self.host, kernel, sandbox, room, owner)?,
        };
        let bench = &mut lane.benches[bench];
        let mut run = Run {
            bench,
            kernel,
            isa: self.isa,
            scratch: &mut self.check,
            every: target.every,
            until_check: &mut lane.until_check,
            watch: &mut self.watch,
        };
        run.call(target.plan, call, bytes, out)
    }

    /// What this worker keeps of a kernel.
    #[inline]
    fn lane(&mut self, kernel: &Arc<PublishedKernel>) -> &mut Lane {
        if self.lanes.get(kernel.uid()).is_none_or(|lane| !lane.is_of(kernel)) {
            self.open(kernel);
        }
        &mut self.lanes[kernel.uid()]
    }

    /// Makes room for a kernel that this worker has not called before.
    #[cold]
    fn open(&mut self, kernel: &Arc<PublishedKernel>) {
        if self.lanes.len() <= kernel.uid() {
            self.lanes.resize_with(kernel.uid() + 1, Lane::default);
        }
        let ledger = kernel.ledger().clone();
        let counters = ledger.open();
        let alive = Arc::downgrade(kernel);
        let open = Some(Open { alive, ledger, counters });
        // In place of what an earlier kernel of this number has left.
        let until_clock = self.watch.random.next_gap(CLOCK_EVERY) - 1;
        self.lanes[kernel.uid()] = Lane { open, until_clock, ..Lane::default() };
    }

    /// Books a failure and discards the instance, which may be spoiled.
    #[cold]
    fn failed(&mut self, kernel: &PublishedKernel, failure: &Failure) {
        if failure.counts() {
            // Not here: its `kernel_cleanup` takes its time.
            self.host.reaper.take(std::mem::take(&mut self.lanes[kernel.uid()].benches));
        }
        let lacks = matches!(failure, Failure::Memory { .. });
        if lacks && std::mem::replace(&mut self.lanes[kernel.uid()].short, true) {
            // One incident tells of them all: there may be one in every call.
            kernel.ledger().failed(failure, self.host.config.quarantine_after);
            return;
        }
        self.host.report(kernel.ledger(), failure);
        if kernel.ledger().quarantined() {
            self.host.reaper.take(kernel.ready().take_all());
        }
    }

    /// Lets go of instances whose kernels no snapshot holds any more, or that are out of service.
    #[cold]
    fn sweep(&mut self) {
        self.retired = self.host.uids.retired();
        let remains = |lane: &mut Lane| {
            let open = lane.open.as_ref()?;
            if open.alive.strong_count() == 0 {
                return Some(std::mem::take(lane));
            }
            if !open.ledger.quarantined() || lane.benches.is_empty() {
                return None;
            }
            Some(Lane { benches: std::mem::take(&mut lane.benches), ..Lane::default() })
        };
        let over: Vec<Lane> = self.lanes.iter_mut().filter_map(remains).collect();
        if !over.is_empty() {
            self.host.reaper.take(over);
        }
    }

    /// Kernels that it holds instances of, for tests of draining.
    #[cfg(test)]
    pub(crate) fn instances(&self) -> usize {
        self.lanes.iter().filter(|lane| !lane.benches.is_empty()).count()
    }

    /// Kernels that it has room for, for tests of leaks.
    #[cfg(test)]
    pub(crate) fn lanes(&self) -> usize {
        self.lanes.len()
    }

    /// Constants that its instances hold, for tests of uploading.
    #[cfg(test)]
    pub(crate) fn uploaded(&self) -> usize {
        self.lanes.iter().flat_map(|lane| &lane.benches).map(Bench::uploaded).sum()
    }
}

impl Lane {
    /// Whether it was opened for this kernel. Its weak reference keeps the address from being used
    /// again, so no other kernel can be taken for it.
    #[inline]
    fn is_of(&self, kernel: &Arc<PublishedKernel>) -> bool {
        self.open.as_ref().is_some_and(|open| std::ptr::eq(open.alive.as_ptr(), &**kernel))
    }
}

impl Lane {
    /// Gets an instance for such calls, and its place: one that was made ahead, or else a new one.
    #[cold]
    fn make(
        &mut self,
        host: &Shared,
        kernel: &PublishedKernel,
        sandbox: &Arc<Sandbox>,
        room: Room,
        owner: Option<Owner>,
    ) -> Result<usize, Failure> {
        if self.benches.is_empty() {
            self.benches = kernel.ready().take();
        }
        let find = |benches: &[Bench], owner| benches.iter().position(|b| b.is_for(room, owner));
        if let Some(found) = find(&self.benches, owner) {
            self.until_check = 0;
            return Ok(found);
        }
        self.benches.retain(|bench| !bench.is_orphaned());
        if self.benches.len() >= BENCHES {
            // Owners in great numbers, whose constants are then copied for every call; or shapes.
            if let Some(found) = self.benches.iter().position(|bench| bench.could_serve(room)) {
                return Ok(found);
            }
            self.benches.remove(0);
        }
        let bench = match Bench::new(sandbox, room, owner) {
            // One that is larger than need be, or has to be handed its constants, still answers.
            Err(full @ Failure::Memory { .. }) => {
                let found = self.benches.iter().position(|bench| bench.could_serve(room));
                return found.ok_or(full);
            }
            made => made?,
        };
        self.short = false;
        let seen = &host.seen;
        seen.note_room(kernel.key(), room);
        let constants = seen.of(kernel.key()).constants;
        self.benches.push(bench.serving(constants, host.witness(kernel.ledger())));
        // The first run of an instance is checked.
        self.until_check = 0;
        Ok(self.benches.len() - 1)
    }
}

/// What instance a call needs: how large a window, and whose constants.
#[inline]
pub(crate) fn wanted(
    plan: &CallPlan,
    call: &OpCall<'_>,
    bytes: &CallBytes,
) -> (Room, Option<Owner>) {
    let mut owner = None;
    let mut copied = |operand: &Operand<'_>, size: usize| match operand {
        Operand::Resident(resident, range) => {
            owner = owner.or(resident.owner());
            // The ABI promises aligned regions; a range that starts elsewhere is copied.
            if range.start.is_multiple_of(REGION_ALIGN) { 0 } else { size }
        }
        Operand::None | Operand::Bytes(_) => size,
    };
    let regions = [copied(&call.a, bytes.a), copied(&call.b, bytes.b), bytes.out];
    let many = plan.split_word(call.words.as_slice()).is_some();
    (if many { Room::Tile } else { Room::row(regions) }, owner)
}

impl Drop for Open {
    fn drop(&mut self) {
        self.ledger.close(&self.counters);
    }
}

fn shape(key: &OpKey, detail: String) -> CallError {
    CallError::Shape { op: key.to_string(), detail }
}

/// What a generic call goes to.
struct Target<'a> {
    key: &'a OpKey,
    plan: &'a CallPlan,
    chain: &'a [Arc<PublishedKernel>],
    race: Option<&'a Race>,
    /// Whether it was named, so that no other may answer.
    alone: bool,
    /// How many runs there are to a check of the output, on average; 0 is none.
    every: u32,
}

fn find<'a>(
    snap: &'a RegistrySnapshot,
    name: &str,
    inputs: &[Tensor],
) -> Result<Target<'a>, CallError> {
    let every = snap.check_every();
    if let Some(kernel) = snap.kernels().find(|kernel| kernel.is_named(name)) {
        let chain = std::slice::from_ref(kernel);
        let (key, plan) = (kernel.key(), kernel.plan());
        return Ok(Target { key, plan, chain, race: None, alone: true, every });
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
    let Slot { key, plan, choice, race, .. } = slot;
    Ok(Target { key, plan, chain: &choice.chain, race: race.as_ref(), alone: false, every })
}
