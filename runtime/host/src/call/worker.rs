//! The call path.
//!
//! A worker belongs to one thread and owns one instance of each kernel that it has called. A call
//! takes no lock and, once its instance is warm, allocates nothing. A candidate that fails costs
//! its instance; the call goes to the next one of the chain with the inputs untouched, because
//! operations are out of place.

mod backward;

use super::check::Checker;
use super::context::WorkerContext;
use super::native;
use super::open::Open;
use super::sandboxed::SandboxedCall;
use crate::code::Code;
use crate::error::Failure;
use crate::instance::{Instance, InstanceTemplate, MAX_INSTANCES, WindowSize, wanted};
use crate::op::call::{OpCall, Output, Owner};
use crate::op::plan::{CallBytes, CallPlan};
use crate::op::tensor::{Tensor, bind};
use crate::registry::figures::FIRST_RATE;
use crate::registry::kernel::PublishedKernel;
use crate::registry::learn::Preference;
use crate::registry::{OpSlot, RegistrySnapshot, Slot};
use crate::stats::Timing;
use crate::stats::latency::size;
use crate::{CallError, OpKey};
use ruvllm_manifest::ParamValue;
use ruvllm_native::Isa;
use std::sync::Arc;
use std::time::Instant;

/// Bytes of operands and output together below which a call is brief: reading the clock would take
/// as long as the call, so about one of [`CLOCK_EVERY`] is timed.
const BRIEF_BYTES: usize = 4 << 10;

/// Of so many brief calls one is timed on average, and no kernel can know which.
const CLOCK_EVERY: u32 = 64;

/// Why such an operation is not to be called here.
const TEAM: &str = "all threads of a step compute it together, for a model";

/// Calls kernels from one thread.
pub struct Worker {
    host: Arc<WorkerContext>,
    /// By kernel uid.
    kernels: Vec<KernelState>,
    retired: u64,
    isa: Isa,
    checker: Checker,
    /// Calls until the next that may go to another candidate than the one that is asked first.
    until_look: u32,
    /// The other candidate, while it is looked at.
    looked_at: Option<Look>,
    /// Native results that are read instead of kept.
    buffer: Vec<u32>,
}

/// Calls of an operation, one after the other, that go to another candidate. Those of the first half are not timed: who
/// was not asked for a while finds neither its code nor its constants in caches, unlike the one that is asked first.
const LOOK_CALLS: u32 = 16;

/// Calls of any operation after which a look ends, however few of its own came by.
const LOOK_WAITS: u32 = 1024;

/// A candidate that is looked at, by calls of one class of sizes: only such are compared.
struct Look {
    kernel: usize,
    class: usize,
    /// Calls that it still answers.
    calls: u32,
    /// Calls of any operation that may still come by.
    waits: u32,
}

/// What a worker keeps of one kernel.
#[derive(Default)]
struct KernelState {
    open: Option<Open>,
    instances: Vec<Instance>,
    /// Runs until the next cross-check; the first run of an instance is always checked.
    until_check: u32,
    /// Brief calls until the next that is timed.
    until_clock: u32,
    /// The classes of shapes that were noted for self-tests of other kernels, a bit for each.
    noted: u64,
    /// Whether the last instance that was wanted did not fit the memory.
    short: bool,
}

impl Worker {
    pub(crate) fn new(host: Arc<WorkerContext>) -> Self {
        let retired = host.retired();
        let isa = host.config.isa.usable();
        let mut checker = Checker::new();
        let until_look = checker.sampler.random.next_gap(FIRST_RATE * LOOK_CALLS) - 1;
        let (kernels, buffer) = (Vec::new(), Vec::new());
        Self { host, kernels, retired, isa, checker, until_look, looked_at: None, buffer }
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
        let Some(bytes) = slot.plan.check(call, &out) else {
            return Err(shape(&slot.key, slot.plan.objection(call, &out)));
        };
        let Slot { key, plan, choice, preference, .. } = slot;
        let preference = preference.as_deref();
        let every = snap.check_every();
        let target = Target { key, plan, chain: &choice.chain, preference, alone: false, every };
        self.ask(&target, call, &bytes, &mut out)
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
        let mut out = Output::Bytes(out);
        let Some(bytes) = target.plan.check(&call, &out) else {
            return Err(fail(target.plan.objection(&call, &out)));
        };
        if let Err(error) = self.ask(&target, &call, &bytes, &mut out) {
            return Err(explained(&target, &call, error));
        }
        Ok(vec![bound.output])
    }

    /// Has every one of the next few hundred runs checked, of whatever kernel: something has computed what
    /// it should not, and whoever does it again is found. For callers whose results make no sense.
    #[cold]
    pub fn suspect(&mut self) {
        self.checker.sampler.suspect();
        self.kernels.iter_mut().for_each(|state| state.until_check = 0);
    }

    #[inline]
    fn ask(
        &mut self,
        target: &Target<'_>,
        call: &OpCall<'_>,
        bytes: &CallBytes,
        out: &mut Output<'_>,
    ) -> Result<(), CallError> {
        if bytes.is_empty(call.is_backward()) {
            // Kernels never see an empty call: there is nothing to compute.
            out.clear();
            return Ok(());
        }
        if self.host.retired() != self.retired {
            self.sweep();
        }
        let Target { chain, preference, .. } = *target;
        let first = match preference {
            // What is learnt is learnt of forward calls; gradients go by the chain's order.
            _ if call.is_backward() => {
                chain.iter().position(|kernel| answers(kernel, call)).unwrap_or(chain.len())
            }
            None => 0,
            Some(preference) => {
                let class = size(bytes.total());
                let (first, rate) = (preference.first(class), preference.rate(class));
                match self.until_look.checked_sub(1) {
                    Some(left) => self.until_look = left,
                    None if self.look(target, [first, rate as usize], call, bytes, out) => {
                        return Ok(());
                    }
                    None => {}
                }
                first
            }
        };
        let failure = match chain.get(first) {
            Some(kernel) if !kernel.stats().quarantined() => {
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
            i != first && !strict && answers(kernel, call) && !kernel.stats().quarantined()
        });
        for (_, kernel) in others {
            match self.answer(kernel, target, call, bytes, out) {
                Ok(()) => return Ok(()),
                Err(failure) => failed(self, kernel, failure)?,
            }
        }
        let last = match last {
            Some((kernel, failure)) => format!("{} {failure}", kernel.id()),
            None if chain.iter().any(|kernel| answers(kernel, call)) => {
                "every one is quarantined".to_owned()
            }
            None => "none of them gives gradients".to_owned(),
        };
        Err(CallError::Exhausted { op: key.to_string(), last })
    }

    /// The place in the chain of another candidate that this call goes to: where one of its operation and class is
    /// looked at, or the draw falls on this call, so that one of their calls in `rate` does.
    fn other(
        &mut self,
        target: &Target<'_>,
        [first, rate]: [usize; 2],
        class: usize,
    ) -> Option<(usize, u32)> {
        let in_service = |at: &usize| *at != first && !target.chain[*at].stats().quarantined();
        if let Some(look) = &mut self.looked_at {
            look.waits -= 1;
            let here = |at: &usize| target.chain[*at].uid() == look.kernel && class == look.class;
            let at = (0..target.chain.len()).filter(in_service).find(here);
            look.calls -= u32::from(at.is_some());
            let calls = look.calls;
            if look.calls == 0 || look.waits == 0 {
                self.stop_looking();
            }
            return Some((at?, calls));
        }
        // Of all operations together one call in so many gets here, and of those of this one the rest is drawn.
        self.stop_looking();
        let random = &mut self.checker.sampler.random;
        if random.below(rate as u32 / FIRST_RATE) > 0 {
            return None;
        }
        let others: Vec<usize> = (0..target.chain.len()).filter(in_service).collect();
        let at = *others.get(random.below(others.len() as u32) as usize)?;
        let (kernel, calls) = (target.chain[at].uid(), LOOK_CALLS - 1);
        self.looked_at = Some(Look { kernel, class, calls, waits: LOOK_WAITS });
        // The next calls get here, too.
        self.until_look = 0;
        Some((at, calls))
    }

    /// Lets the one that is asked first answer until the next draw.
    fn stop_looking(&mut self) {
        self.looked_at = None;
        self.until_look = self.checker.sampler.random.next_gap(FIRST_RATE * LOOK_CALLS) - 1;
    }

    /// Has another candidate answer, where one is looked at. `false` where none has answered.
    #[cold]
    fn look(
        &mut self,
        target: &Target<'_>,
        first_and_rate: [usize; 2],
        call: &OpCall<'_>,
        bytes: &CallBytes,
        out: &mut Output<'_>,
    ) -> bool {
        let Some((at, left)) = self.other(target, first_and_rate, size(bytes.total())) else {
            return false;
        };
        let kernel = &target.chain[at];
        self.state(kernel);
        let state = &self.kernels[kernel.uid()];
        let (made, unchecked) = (state.made(), kernel.is_native() || state.until_check > 0);
        let started = Instant::now();
        if let Err(failure) = self.attempt(kernel, target, call, bytes, out) {
            self.failed(kernel, &failure);
            self.stop_looking();
            return false;
        }
        let took = started.elapsed();
        if std::mem::take(&mut self.checker.met_out_of_range) {
            self.suspect();
        }
        let state = &self.kernels[kernel.uid()];
        if let Some(open) = &state.open {
            let is_usual = left < LOOK_CALLS / 2 && unchecked && state.made() == made;
            let timing = match is_usual {
                false => Timing::Unusual(took),
                true if bytes.total() < BRIEF_BYTES => Timing::Sampled(Some(took)),
                true => Timing::Each(took),
            };
            open.counters.answered(bytes.total(), timing);
        }
        true
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
        let state = self.state(kernel);
        if call.is_backward() {
            let started = Instant::now();
            self.attempt(kernel, target, call, bytes, out)?;
            if let Some(open) = &self.kernels[kernel.uid()].open {
                open.counters.differentiated(started.elapsed());
            }
            return Ok(());
        }
        // A call that makes an instance or is checked takes many times what others do: it may not
        // stand for them.
        let usual = kernel.is_native() || !state.instances.is_empty() && state.until_check > 0;
        let brief = usual && bytes.total() < BRIEF_BYTES;
        let timed = !brief || state.until_clock == 0;
        if !timed {
            state.until_clock -= 1;
        }
        let class = bytes.class();
        let first_of_class = state.noted & class == 0;
        state.noted |= class;
        if first_of_class {
            self.host.profiles.note(kernel.key(), &call.words);
        }
        if brief && timed {
            self.kernels[kernel.uid()].until_clock =
                self.checker.sampler.random.next_gap(CLOCK_EVERY) - 1;
        }
        let started = timed.then(Instant::now);
        self.attempt(kernel, target, call, bytes, out)?;
        if !usual && std::mem::take(&mut self.checker.met_out_of_range) {
            self.suspect();
        }
        if let Some(open) = &self.kernels[kernel.uid()].open {
            let took = started.map(|started| started.elapsed());
            open.counters.answered(bytes.total(), Timing::of(took, brief));
        }
        Ok(())
    }

    /// Runs one candidate for which this worker has a state.
    #[inline]
    fn attempt(
        &mut self,
        kernel: &PublishedKernel,
        target: &Target<'_>,
        call: &OpCall<'_>,
        bytes: &CallBytes,
        out: &mut Output<'_>,
    ) -> Result<(), Failure> {
        let template = match kernel.code() {
            Code::Native { op } => {
                #[cfg(test)]
                self.host.delay_native();
                let buffer = &mut self.buffer;
                return native::answer(self.isa, *op, kernel, buffer, call, bytes, out);
            }
            Code::Sandboxed { template, .. } => template,
            // Neither of the ways to call a worker gets here with one.
            Code::Team { .. } => return Err(Failure::Native { detail: TEAM.to_owned() }),
        };
        let state = &mut self.kernels[kernel.uid()];
        let (window_size, owner) = wanted(target.plan, call, bytes);
        let instance =
            match state.instances.iter().position(|instance| instance.is_for(window_size, owner)) {
                Some(found) => found,
                None => state.make(&self.host, kernel, template, window_size, owner)?,
            };
        let instance = &mut state.instances[instance];
        let mut run = SandboxedCall {
            instance,
            kernel,
            isa: self.isa,
            every: target.every,
            until_check: &mut state.until_check,
            checker: &mut self.checker,
        };
        run.run(target.plan, call, bytes, out)
    }

    /// What this worker keeps of a kernel.
    #[inline]
    fn state(&mut self, kernel: &Arc<PublishedKernel>) -> &mut KernelState {
        if self.kernels.get(kernel.uid()).is_none_or(|state| !state.is_of(kernel)) {
            self.open(kernel);
        }
        &mut self.kernels[kernel.uid()]
    }

    /// Makes room for a kernel that this worker has not called before.
    #[cold]
    fn open(&mut self, kernel: &Arc<PublishedKernel>) {
        if self.kernels.len() <= kernel.uid() {
            self.kernels.resize_with(kernel.uid() + 1, KernelState::default);
        }
        let open = Some(Open::new(kernel));
        // In place of what an earlier kernel of this number has left.
        let until_clock = self.checker.sampler.random.next_gap(CLOCK_EVERY) - 1;
        self.kernels[kernel.uid()] = KernelState { open, until_clock, ..KernelState::default() };
    }

    /// Books a failure and discards the instance, which may be spoiled.
    #[cold]
    fn failed(&mut self, kernel: &PublishedKernel, failure: &Failure) {
        if failure.counts() {
            // Not here: its `kernel_cleanup` takes its time.
            self.host.reaper.take(std::mem::take(&mut self.kernels[kernel.uid()].instances));
        }
        let lacks = matches!(failure, Failure::Memory { .. });
        if lacks && std::mem::replace(&mut self.kernels[kernel.uid()].short, true) {
            // One incident tells of them all: there may be one in every call.
            self.host.incidents.count(kernel.stats(), failure);
            return;
        }
        self.host.incidents.report(kernel.stats(), failure);
        if kernel.stats().quarantined() {
            self.host.reaper.take(kernel.pool().take_all());
        }
    }

    /// Lets go of instances whose kernels no snapshot holds any more, or that are out of service.
    #[cold]
    fn sweep(&mut self) {
        self.retired = self.host.retired();
        let remains = |state: &mut KernelState| {
            let open = state.open.as_ref()?;
            if open.is_gone() {
                return Some(std::mem::take(state));
            }
            if !open.stats.quarantined() || state.instances.is_empty() {
                return None;
            }
            Some(KernelState {
                instances: std::mem::take(&mut state.instances),
                ..KernelState::default()
            })
        };
        let over: Vec<KernelState> = self.kernels.iter_mut().filter_map(remains).collect();
        if !over.is_empty() {
            self.host.reaper.take(over);
        }
    }

    /// Kernels that it holds instances of, for tests of draining.
    #[cfg(test)]
    pub(crate) fn instances(&self) -> usize {
        self.kernels.iter().filter(|state| !state.instances.is_empty()).count()
    }

    /// Kernels that it has room for, for tests of leaks.
    #[cfg(test)]
    pub(crate) fn kernels(&self) -> usize {
        self.kernels.len()
    }

    /// Constants that its instances hold, for tests of uploading.
    #[cfg(test)]
    pub(crate) fn uploaded(&self) -> usize {
        self.kernels.iter().flat_map(|state| &state.instances).map(Instance::uploaded).sum()
    }
}

impl KernelState {
    /// How many instances there are, and uploaded constants: a call that changes that takes longer than others.
    fn made(&self) -> [usize; 2] {
        let uploaded = self.instances.iter().map(Instance::uploaded).sum();
        [self.instances.len(), uploaded]
    }

    /// Whether it was opened for this kernel.
    #[inline]
    fn is_of(&self, kernel: &Arc<PublishedKernel>) -> bool {
        self.open.as_ref().is_some_and(|open| open.is_of(kernel))
    }
}

impl KernelState {
    /// Gets an instance for such calls, and its place: one that was made ahead, or else a new one.
    #[cold]
    fn make(
        &mut self,
        host: &WorkerContext,
        kernel: &PublishedKernel,
        template: &Arc<InstanceTemplate>,
        window_size: WindowSize,
        owner: Option<Owner>,
    ) -> Result<usize, Failure> {
        if self.instances.is_empty() {
            self.instances = kernel.pool().take();
        }
        let find = |instances: &[Instance], owner| {
            instances.iter().position(|b| b.is_for(window_size, owner))
        };
        if let Some(found) = find(&self.instances, owner) {
            self.until_check = 0;
            return Ok(found);
        }
        self.instances.retain(|instance| !instance.is_orphaned());
        if self.instances.len() >= MAX_INSTANCES {
            // Owners in great numbers, whose constants are then copied for every call; or shapes.
            if let Some(found) =
                self.instances.iter().position(|instance| instance.could_serve(window_size))
            {
                return Ok(found);
            }
            self.instances.remove(0);
        }
        let instance = match Instance::new(template, window_size, owner) {
            // One that is larger than need be, or has to be handed its constants, still answers.
            Err(full @ Failure::Memory { .. }) => {
                let found =
                    self.instances.iter().position(|instance| instance.could_serve(window_size));
                return found.ok_or(full);
            }
            made => made?,
        };
        self.short = false;
        let profiles = &host.profiles;
        profiles.note_window(kernel.key(), window_size);
        let constants = profiles.of(kernel.key()).constants;
        self.instances.push(instance.serving(constants, host.reporter(kernel.stats())));
        // The first run of an instance is checked.
        self.until_check = 0;
        Ok(self.instances.len() - 1)
    }
}

/// Whether a kernel has what the call is for.
fn answers(kernel: &PublishedKernel, call: &OpCall<'_>) -> bool {
    !call.is_backward() || kernel.has_backward()
}

fn shape(key: &OpKey, detail: String) -> CallError {
    CallError::Shape { op: key.to_string(), detail }
}

/// What a generic call goes to.
struct Target<'a> {
    key: &'a OpKey,
    plan: &'a CallPlan,
    chain: &'a [Arc<PublishedKernel>],
    /// Where the fastest candidate is looked for.
    preference: Option<&'a Preference>,
    /// Whether it was named, so that no other may answer.
    alone: bool,
    /// How many runs there are to a check of the output, on average; 0 is none.
    every: u32,
}

/// What a named kernel that declined a call takes instead, beside the error: whoever names one works on it.
#[cold]
fn explained(target: &Target<'_>, call: &OpCall<'_>, error: CallError) -> CallError {
    let (CallError::Failed { op, kernel, failure }, [named]) = (&error, target.chain) else {
        return error;
    };
    let Failure::Status { status, message, .. } = failure else { return error };
    let Code::Sandboxed { template, .. } = named.code() else { return error };
    let Ok(mut instance) = Instance::new(template, WindowSize::Tile, None) else { return error };
    let detail = instance.explain_status(target.plan, call, *status);
    let failure = Failure::Status { status: *status, detail, message: message.clone() };
    CallError::Failed { op: op.clone(), kernel: kernel.clone(), failure }
}

/// Finds what a name and the types of the inputs stand for.
fn find<'a>(
    snap: &'a RegistrySnapshot,
    name: &str,
    inputs: &[Tensor],
) -> Result<Target<'a>, CallError> {
    let every = snap.check_every();
    let team = |kernel: &Arc<PublishedKernel>| kernel.team().is_some();
    if let Some(kernel) = snap.kernels().find(|kernel| kernel.is_named(name)) {
        if team(kernel) {
            return Err(CallError::Unknown { name: name.to_owned(), detail: TEAM.to_owned() });
        }
        let chain = std::slice::from_ref(kernel);
        let (key, plan) = (kernel.key(), kernel.plan());
        return Ok(Target { key, plan, chain, preference: None, alone: true, every });
    }
    let unknown = |detail: String| CallError::Unknown { name: name.to_owned(), detail };
    let slots: Vec<_> = snap.slots().iter().filter(|slot| slot.key.op == name).collect();
    if slots.iter().any(|slot| slot.choice.chain.iter().any(team)) {
        return Err(unknown(TEAM.to_owned()));
    }
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
    let Slot { key, plan, choice, preference, .. } = &***slot;
    let preference = preference.as_deref();
    Ok(Target { key, plan, chain: &choice.chain, preference, alone: false, every })
}
