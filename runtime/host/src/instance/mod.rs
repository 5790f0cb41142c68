//! Instances of sandboxed kernels: where a call's regions lie in their memory, and what an earlier call
//! leaves to a later one, which is nothing.
//!
//! Above `__heap_base`, every region on a multiple of 64: descriptor, params, scratch, then the window
//! of input A, input B and output of the current call, then the resident area, which grows upwards as
//! constants are uploaded. In a call for gradients that of the output follows the inputs, and those of the
//! inputs are what is given. Inputs that are resident are not copied. Nothing of the layout is trusted
//! afterwards: a kernel that writes elsewhere spoils its own results, and only those.
//!
//! # What a kernel can keep
//!
//! The state of an instance is its memory and its globals; the gate refuses modules that could change
//! anything else. Memory is read-only but for a few pages: those of descriptor and params, of the
//! window, of scratch once a kernel has used that, and the kernel's *own*, up to [`OWN_PAGES`] that
//! it has written to (its stack, usually): when it was admitted, or in this scope, where a trap asks for one.
//! Where a call is of another scope than the one before, these pages and the globals get what they
//! have in a new instance, and then the operands: the memory that the kernel finds is, byte for byte,
//! that of a new instance. Constants lie in pages that it cannot write to, and an instance takes up
//! those of one owner at most. A kernel that writes anywhere else traps.
//!
//! Where the system cannot protect pages ([`crate::exec::fence`]), every change of scope makes a new
//! instance, after the old one is gone: there need not be memory for both.

pub(crate) mod constants;
mod declined;
pub(crate) mod pool;
mod released;
mod window;

pub(crate) use window::{TILE_BYTES, WindowSize, taken, wanted};

use crate::deadline::Deadline;
use crate::error::Failure;
use crate::exec::fence::page_size;
use crate::exec::{CompiledModule, EngineInstance, Footprint, OWN_PAGES, WASM_PAGE};
use crate::memory::{Charge, PackMemory};
use crate::op::call::{OpCall, Operand, Owner, Resident, ResidentBytes, Scope, Words};
use crate::op::plan::CallBytes;
use crate::random::Random;
use crate::stats::incidents::FailureReporter;
use crate::trap::{Trap, TrapKind};
use constants::Constants;
use released::Released;
use ruvllm_abi::{
    ABI_VERSION, BackwardDescriptor, KernelDescriptor, KernelInfo, REGION_ALIGN, Region,
    SCRATCH_BYTES, message,
};
use std::collections::{BTreeSet, HashMap};
use std::hash::{BuildHasherDefault, Hasher};
use std::ops::Range;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering::Relaxed};
use std::sync::{Arc, Weak};
use window::{DESCRIPTOR_BYTES, Layout, align};

/// Bytes behind the output that a guarded run watches.
pub(crate) const GUARD_BYTES: usize = 256;

/// The unit in which a kernel's own pages are told: whole ones of the machine on most, parts of one
/// on some.
const PAGE: usize = 4 << 10;

/// Instances that a worker keeps of one kernel. Their windows differ, since what is set back at a change
/// of scope should be little; a model has a few shapes of rows, and a step few adapters.
pub(crate) const MAX_INSTANCES: usize = 16;

/// Constants of an instance for which there is room on the heap at once: those that come while tokens are decoded
/// should take nothing of it.
const CONSTANTS: usize = 224;

/// What instances of a kernel are made of.
pub(crate) struct InstanceTemplate {
    pub(crate) module: Arc<dyn CompiledModule>,
    /// Where its instances count.
    pub(crate) memory: Arc<PackMemory>,
    /// The words for `kernel_init`.
    pub(crate) defaults: Vec<u32>,
    /// Numbers of the pages below the host's part that the kernel wrote to when it was admitted.
    pub(crate) own_pages: Vec<u16>,
    /// Whether it has asked for scratch, by a trap. What it uses of that depends on the call, and most
    /// kernels use none, which spares them having it set back.
    pub(crate) scratch: AtomicBool,
    /// Where the host's part of the memory begins, as its first instance shows; 0 before.
    pub(crate) heap_base: AtomicU32,
}

/// An instance together with what the host keeps in its memory.
pub(crate) struct Instance {
    template: Arc<InstanceTemplate>,
    engine: Box<dyn EngineInstance>,
    deadline: Deadline,
    /// Ticks that the call may take that is laid out.
    ticks: u64,
    window_size: WindowSize,
    owner: Option<Owner>,
    isolation: Isolation,
    /// The scope of the last call, where it had one.
    scope: Option<Scope>,
    /// Pages of its own that the kernel has asked for in this scope, beside those of admission.
    opened: Vec<u16>,
    limit: usize,
    /// Bytes that its memory has.
    size: usize,
    descriptor: usize,
    params: usize,
    scratch: usize,
    /// Where operands and output go, up to the end of a page. The resident area follows.
    window: Range<usize>,
    /// Where the next constant goes.
    residents_to: usize,
    residents: HashMap<u64, Uploaded, BuildHasherDefault<IdHasher>>,
    /// How often the resident area has begun anew.
    clearings: u64,
    /// What the last call used, for looking at it afterwards.
    last: Regions,
    /// Whether that was for gradients.
    is_backward: bool,
    /// How many threads compute a call, where that was said.
    threads: Option<u32>,
    spoiled: bool,
    /// Whether the kernel can write to all of scratch.
    has_scratch: bool,
    /// Whether a call was prepared.
    used: bool,
    /// Where constants are noted that it takes up.
    constants: Option<Arc<Constants>>,
    /// Who is told where it does not end as it should.
    reporter: Option<FailureReporter>,
    /// Last, so that it counts until the instance is gone.
    charge: Charge,
}

/// Where the regions of a call go; of an operand that is resident, it is there already.
struct Placed {
    a: (usize, bool),
    b: (usize, bool),
    gradient: (usize, bool),
    out: usize,
    out_b: usize,
    end: usize,
}

/// What a call reads, and what it gives, in the order in which it lies in memory.
#[derive(Clone, Copy, Default)]
struct Regions {
    inputs: [Region; 3],
    outputs: [Region; 2],
}

/// How an instance is kept from remembering.
enum Isolation {
    /// Not at all, to learn which pages a kernel writes to: what lies below the window in a new
    /// instance, and the pages found so far.
    Recording { image: Vec<u8>, written: BTreeSet<u16> },
    /// Pages are read-only but for the window and these parts of the memory, with what they hold in a
    /// new instance.
    Protected { parts: Vec<(usize, Vec<u8>)> },
    /// A new instance for every scope.
    Reinstantiated,
}

struct Uploaded {
    offset: usize,
    alive: Weak<ResidentBytes>,
}

impl Instance {
    /// Makes an instance, runs its `kernel_init` with the words of the default params, and fences it in.
    ///
    /// # Errors
    /// [`Failure::Instantiate`], [`Failure::Memory`].
    pub(crate) fn new(
        template: &Arc<InstanceTemplate>,
        window_size: WindowSize,
        owner: Option<Owner>,
    ) -> Result<Self, Failure> {
        let mut instance = Self::bare(template, window_size, owner, window_size.bytes())?;
        instance.fence();
        instance.settle()?;
        Ok(instance)
    }

    /// Makes an instance that may write anywhere, to learn where it does.
    ///
    /// # Errors
    /// [`Failure::Instantiate`], [`Failure::Memory`].
    pub(crate) fn learning(
        template: &Arc<InstanceTemplate>,
        window_size: WindowSize,
    ) -> Result<Self, Failure> {
        let mut instance = Self::bare(template, window_size, None, window_size.bytes())?;
        instance.learns(BTreeSet::new())?;
        Ok(instance)
    }

    /// An instance as where the system cannot protect pages.
    #[cfg(test)]
    pub(crate) fn unprotected(
        template: &Arc<InstanceTemplate>,
        window_size: WindowSize,
    ) -> Result<Self, Failure> {
        Self::bare(template, window_size, None, window_size.bytes())
    }

    /// All of its memory.
    #[cfg(test)]
    pub(crate) fn bytes(&mut self) -> &[u8] {
        self.engine.memory()
    }

    /// Learns which pages the kernel writes to, beside those found so far.
    fn learns(&mut self, written: BTreeSet<u16>) -> Result<(), Failure> {
        self.charge.resize(self.takes(self.size) + self.window.start)?;
        let image = self.engine.memory()[..self.window.start].to_vec();
        self.isolation = Isolation::Recording { image, written };
        Ok(())
    }

    /// Bytes that it counts with where its memory has `size`.
    fn takes(&self, size: usize) -> usize {
        let copies = match &self.isolation {
            Isolation::Recording { image, .. } => image.len(),
            Isolation::Protected { parts } => parts.iter().map(|(_, image)| image.len()).sum(),
            Isolation::Reinstantiated => 0,
        };
        self.template.module.footprint().table + size + copies
    }

    /// Counts what it takes, once that is known.
    fn settle(&mut self) -> Result<(), Failure> {
        self.charge.resize(self.takes(self.size))
    }

    /// Makes an instance with a window of so many bytes, or what its limit allows. It is counted with what
    /// it takes at most when it is fenced in, so that it is not made where there is no memory for that.
    fn bare(
        template: &Arc<InstanceTemplate>,
        window_size: WindowSize,
        owner: Option<Owner>,
        bytes: usize,
    ) -> Result<Self, Failure> {
        let failed = |detail: String| Failure::Instantiate { detail };
        let Footprint { initial, limit, table } = template.module.footprint();
        let expected = Layout::new(template.heap_base.load(Relaxed), limit, window_size, bytes);
        let linear = initial.max(expected.window.end.next_multiple_of(WASM_PAGE).min(limit));
        let copies = (template.own_pages.len() + 3) * page_size() + SCRATCH_BYTES;
        let charge = Charge::new(&template.memory, table + linear + copies)?;
        let mut engine = template.module.instantiate().map_err(|trap| failed(trap.to_string()))?;
        template.heap_base.store(engine.heap_base(), Relaxed);
        let Layout { descriptor, params, scratch, window } =
            Layout::new(engine.heap_base(), limit, window_size, bytes);
        let (from, residents_to) = (window.start, window.end);
        let size = engine.memory().len();
        let mut instance = Self {
            template: template.clone(),
            engine,
            deadline: *template.module.deadline(),
            ticks: 0,
            window_size,
            owner,
            isolation: Isolation::Reinstantiated,
            scope: None,
            opened: Vec::new(),
            limit,
            size,
            descriptor,
            params,
            scratch,
            window,
            residents_to,
            residents: HashMap::with_capacity_and_hasher(CONSTANTS, BuildHasherDefault::default()),
            clearings: 0,
            last: Regions::default(),
            is_backward: false,
            threads: None,
            spoiled: false,
            has_scratch: false,
            used: false,
            constants: None,
            reporter: None,
            charge,
        };
        instance.reserve(residents_to).map_err(|failure| match failure {
            Failure::TooLarge { .. } => failed(format!(
                "it needs {from} bytes of memory before any call; its limit is {limit}"
            )),
            other => other,
        })?;
        let words = bytemuck::cast_slice(&template.defaults);
        let memory = instance.engine.memory();
        memory[params..params + words.len()].copy_from_slice(words);
        match instance.engine.init(params as u32, words.len() as u32) {
            Ok(None | Some(0)) => {}
            Ok(Some(status)) => {
                return Err(failed(format!("kernel_init returned status {status}")));
            }
            Err(trap) => return Err(failed(format!("kernel_init: {trap}"))),
        }
        // The window of a new instance is empty, whatever its module or `kernel_init` left there.
        instance.engine.memory()[from..residents_to].fill(0);
        instance.engine.keep_globals();
        Ok(instance)
    }

    /// Protects what the kernel has no business writing to.
    fn fence(&mut self) {
        let all = 0..self.engine.memory().len();
        if !self.engine.protect(all, false) {
            self.isolation = Isolation::Reinstantiated;
            return;
        }
        let size = page_size();
        let own = self.template.own_pages.iter().chain(&self.opened);
        let own = own.map(|&page| usize::from(page) * PAGE);
        let own = own.map(|at| at / size * size..at / size * size + size);
        let head = self.descriptor / size * size..(self.scratch).next_multiple_of(size);
        // All of scratch, where it was asked for, or what of it shares a page with the window.
        self.has_scratch = self.template.scratch.load(Relaxed);
        let end = self.window.start;
        let behind = if self.has_scratch { self.scratch } else { end } / size * size..end;
        let mut parts: Vec<Range<usize>> = own.chain([head, behind]).collect();
        parts.sort_by_key(|part| part.start);
        // Neighbours, and parts that overlap where the machine's pages are larger, are one.
        parts.dedup_by(|next, part| {
            let joins = next.start <= part.end;
            if joins {
                part.end = part.end.max(next.end);
            }
            joins
        });
        let start = self.window.start;
        parts.retain_mut(|part| {
            part.end = part.end.min(start);
            part.start < part.end
        });
        let writable = parts.iter().map(|part| part.start..part.end.next_multiple_of(size));
        let window = start / size * size..self.window.end;
        let opened = writable.chain([window]).all(|pages| self.engine.protect(pages, true));
        if !opened {
            // What is left protected is no obstacle: the instance is replaced before the next call.
            self.isolation = Isolation::Reinstantiated;
            return;
        }
        let memory = self.engine.memory();
        let image = |part: Range<usize>| (part.start, memory[part].to_vec());
        self.isolation = Isolation::Protected { parts: parts.into_iter().map(image).collect() };
    }

    /// Has so many threads compute a call from now on, of those that the kernel asks for.
    pub(crate) fn set_threads(&mut self, count: u32) {
        self.threads = Some(count);
        self.engine.set_threads(count);
    }

    /// The pages below the window that the kernel has written to since [`Instance::learning`].
    pub(crate) fn own_pages(&self) -> Vec<u16> {
        match &self.isolation {
            Isolation::Recording { written, .. } => written.iter().copied().collect(),
            Isolation::Protected { .. } | Isolation::Reinstantiated => {
                self.template.own_pages.clone()
            }
        }
    }

    /// Looks where the kernel has written, if that is to be learnt.
    pub(crate) fn learn(&mut self) {
        let Isolation::Recording { image, written } = &mut self.isolation else { return };
        let memory = self.engine.memory();
        // What the host wrote there itself is the kernel's to read, and scratch can be written anyway.
        let host = self.descriptor..self.window.start;
        for (page, old) in image.chunks(PAGE).enumerate() {
            let from = page * PAGE;
            let differs = |(at, &old): (usize, &u8)| memory[at] != old && !host.contains(&at);
            if memory[from..from + old.len()] != *old && (from..).zip(old).any(differs) {
                // Numbers of a 32-bit memory's pages below 256 MiB; the host's cap is lower.
                written.insert(u16::try_from(page).unwrap_or(u16::MAX));
            }
        }
    }

    /// Whether it is for such calls, and holds no constants but the owner's.
    #[inline]
    pub(crate) fn is_for(&self, window_size: WindowSize, owner: Option<Owner>) -> bool {
        self.window_size == window_size && self.owner == owner
    }

    /// Whether it holds constants of an owner, all of which are gone.
    pub(crate) fn is_orphaned(&self) -> bool {
        let gone = |uploaded: &Uploaded| uploaded.alive.strong_count() == 0;
        self.owner.is_some() && self.residents.values().all(gone)
    }

    /// Whether it has room for such calls, and no constants of an owner.
    pub(crate) fn could_serve(&self, window_size: WindowSize) -> bool {
        self.owner.is_none() && self.window.len() >= window_size.bytes()
    }

    /// The same for a worker: it notes the constants that it takes up from now on, and what goes
    /// wrong at its end is told to `reporter`.
    pub(crate) fn serving(mut self, constants: Arc<Constants>, reporter: FailureReporter) -> Self {
        (self.constants, self.reporter) = (Some(constants), Some(reporter));
        self
    }

    /// Ends it as dropping does, and says how `kernel_cleanup` went.
    ///
    /// # Errors
    /// [`Failure::Cleanup`].
    pub(crate) fn close(mut self) -> Result<(), Failure> {
        self.cleanup()
    }

    fn cleanup(&mut self) -> Result<(), Failure> {
        // After a trap the kernel's state means nothing, and it is not asked to tidy up.
        if std::mem::replace(&mut self.spoiled, true) {
            return Ok(());
        }
        match self.engine.cleanup() {
            Ok(None | Some(0)) => Ok(()),
            Ok(Some(status)) => Err(Failure::CleanupStatus { status }),
            Err(trap) => Err(Failure::Cleanup { trap: Box::new(trap) }),
        }
    }

    /// The same for one that goes in service, where a failure is reported.
    fn tidy_up(&mut self) {
        // A kernel that failed to tidy up once is not asked again: instances may go by the dozen.
        if self.reporter.as_ref().is_some_and(FailureReporter::is_untidy) {
            return;
        }
        if let (Err(failure), Some(reporter)) = (self.cleanup(), &self.reporter) {
            reporter.report(&failure);
        }
    }

    /// Takes constants up that every call may see, as far as its limit allows: calls find them there.
    pub(crate) fn warm(&mut self, constants: &[Resident]) {
        for constant in constants.iter().filter(|constant| constant.owner().is_none()) {
            if self.upload(constant).is_none() {
                break;
            }
        }
    }

    /// What `kernel_info` reports, or `None` where the kernel has none.
    ///
    /// # Errors
    /// A trap or a status other than 0.
    pub(crate) fn info(&mut self) -> Result<Option<KernelInfo>, Failure> {
        // Where every call's params go: they are written anew before the next.
        let at = self.params;
        self.engine.memory()[at..at + KernelInfo::SIZE].fill(0);
        let info = self.engine.info(at as u32).map_err(|trap| {
            self.spoiled = true;
            Failure::Trap { trap: Box::new(trap) }
        });
        match info? {
            None => Ok(None),
            Some(0) => {
                let bytes = &self.engine.memory()[at..at + KernelInfo::SIZE];
                let word = |i: usize| {
                    let b = &bytes[i * 4..];
                    u32::from_le_bytes([b[0], b[1], b[2], b[3]])
                };
                let [abi_version, revision, flags, reserved] = [0, 1, 2, 3].map(word);
                Ok(Some(KernelInfo { abi_version, revision, flags, reserved }))
            }
            Some(status) => {
                Err(Failure::Status { status, detail: String::new(), message: String::new() })
            }
        }
    }

    /// Bytes that the operands and the output of one call may take together, constants aside.
    #[inline]
    pub(crate) fn capacity(&self) -> usize {
        // Each of the three regions of a call may lose most of an alignment step.
        self.window.len().saturating_sub(3 * REGION_ALIGN)
    }

    /// Whether a call copies the operand instead of finding it in place.
    pub(crate) fn is_copied(&mut self, operand: &Operand<'_>) -> bool {
        self.resident(operand).is_none()
    }

    /// Constants that are uploaded.
    pub(crate) fn uploaded(&self) -> usize {
        self.residents.len()
    }

    /// Runs the kernel on a call whose sizes have been checked, and gives its output.
    ///
    /// # Errors
    /// How it failed.
    #[inline]
    pub(crate) fn call(&mut self, call: &OpCall<'_>, bytes: &CallBytes) -> Result<&[u8], Failure> {
        if !self.opened.is_empty() && self.is_entered_by(call) {
            // Which pages a kernel may write to is as much of a scope as what is in them.
            self.release();
            self.opened.clear();
        }
        self.prepare(call, bytes)?;
        if let Err(failure) = self.enter() {
            self.with_more_pages(failure, call, bytes)?;
        }
        Ok(self.output())
    }

    /// Lets a kernel that trapped at a page that it cannot write to try again with that page, or with all of scratch.
    #[cold]
    fn with_more_pages(
        &mut self,
        mut failure: Failure,
        call: &OpCall<'_>,
        bytes: &CallBytes,
    ) -> Result<(), Failure> {
        while self.asks_for_pages(&failure) {
            // Where there is no memory for a new instance, the next call looks for it, as for another client.
            self.scope = None;
            self.renew(self.window.len())?;
            self.prepare(call, bytes)?;
            match self.enter() {
                Ok(()) => return Ok(()),
                Err(next) => failure = next,
            }
        }
        Err(failure)
    }

    /// Whether a new instance has pages that a kernel lacked: one of its own memory, such as that of a stack which few
    /// calls use, or all of scratch, which it has in every scope from then on.
    fn asks_for_pages(&mut self, failure: &Failure) -> bool {
        let Failure::Trap { trap } = failure else { return false };
        let is_protected = matches!(self.isolation, Isolation::Protected { .. });
        if trap.kind != TrapKind::OutOfBounds || !is_protected {
            return false;
        }
        let written = trap.access.filter(|access| access.write).and_then(|access| access.offset);
        let own =
            written.and_then(|at| usize::try_from(at).ok()).filter(|&at| at < self.descriptor);
        if let Some(page) = own.and_then(|at| u16::try_from(at / PAGE).ok()) {
            let known = &self.template.own_pages;
            let is_new = !known.contains(&page) && !self.opened.contains(&page);
            let opens = is_new && known.len() + self.opened.len() < OWN_PAGES;
            if opens {
                self.opened.push(page);
            }
            // Scratch would be of no use to it.
            return opens;
        }
        self.template.scratch.store(true, Relaxed);
        !self.has_scratch
    }

    /// Whether the call is of another scope than the one before, or of none.
    fn is_entered_by(&self, call: &OpCall<'_>) -> bool {
        call.scope.is_none() || call.scope != self.scope
    }

    /// Lays the regions of a call out and copies its operands. Where its scope is another than that of
    /// the call before, everything else becomes what it is in a new instance.
    #[inline]
    pub(crate) fn prepare(&mut self, call: &OpCall<'_>, bytes: &CallBytes) -> Result<(), Failure> {
        let enters = self.is_entered_by(call);
        // Of no scope until it is done: an error on the way leaves nothing to go on from.
        self.scope = None;
        let is_stale = enters && self.used && matches!(self.isolation, Isolation::Reinstantiated);
        if is_stale || self.spoiled {
            self.renew(self.window.len())?;
        }
        self.used = true;
        let mut placed = self.place(call, bytes);
        if placed.end > self.window.end {
            placed = self.widen(call, bytes, placed)?;
        }
        let Placed { a, b, gradient, out, out_b, .. } = placed;
        let words = call.words.as_slice().len();
        let [input_a, input_b] = [region(a.0, bytes.a), region(b.0, bytes.b)];
        let output = region(out, bytes.out);
        let scratch = region(self.scratch, SCRATCH_BYTES);
        let params = region(self.params, words * 4);
        let grad_output = region(gradient.0, bytes.gradient);
        let grad_b = region(out_b, bytes.out_b);
        let inputs = [(a, bytes.a), (b, bytes.b), (gradient, bytes.gradient)];
        let head = self.descriptor..self.scratch;
        let memory = self.engine.memory();
        if enters && let Isolation::Protected { parts } = &self.isolation {
            for (at, image) in parts {
                memory[*at..at + image.len()].copy_from_slice(image);
            }
            // Operands follow from here on; between them, gaps of alignment.
            for ((at, is_resident), len) in inputs {
                if !is_resident {
                    memory[at + len..at + align(len)].fill(0);
                }
            }
            memory[out..self.window.end].fill(0);
        }
        let (descriptor, block) = memory[head].split_at_mut(DESCRIPTOR_BYTES);
        self.is_backward = call.is_backward();
        if self.is_backward {
            let grad_a = output;
            let desc = BackwardDescriptor {
                input_a,
                input_b,
                grad_output,
                scratch,
                params,
                grad_a,
                grad_b,
            };
            descriptor[..BackwardDescriptor::SIZE].copy_from_slice(&desc.to_bytes());
        } else {
            let desc = KernelDescriptor { input_a, input_b, output, scratch, params };
            descriptor[..KernelDescriptor::SIZE].copy_from_slice(&desc.to_bytes());
        }
        // All of the block, which has a length that the compiler knows.
        block[..Words::BYTES].copy_from_slice(call.words.block());
        for ((at, is_resident), operand) in [(a, &call.a), (b, &call.b), (gradient, &call.gradient)]
        {
            if !is_resident
                && let Some(bytes) = operand.bytes()
                && !bytes.is_empty()
            {
                memory[at..at + bytes.len()].copy_from_slice(bytes);
            }
        }
        if enters && !matches!(self.isolation, Isolation::Recording { .. }) {
            self.engine.reset_globals();
        }
        self.last = Regions { inputs: [input_a, input_b, grad_output], outputs: [output, grad_b] };
        self.ticks = self.deadline.ticks(bytes, &call.words);
        self.scope = call.scope;
        Ok(())
    }

    /// Where the regions of a call go. What is resident is uploaded, if need be.
    #[inline]
    fn place(&mut self, call: &OpCall<'_>, bytes: &CallBytes) -> Placed {
        let mut a = self.resident(&call.a);
        let clearings = self.clearings;
        let b = self.resident(&call.b);
        if self.clearings != clearings {
            // Making room for B has moved A. It cannot happen again: nothing that is left is dead.
            a = self.resident(&call.a);
        }
        let mut end = self.window.start;
        let mut place = |resident: Option<usize>, size: usize| match resident {
            Some(offset) => (offset, true),
            None => {
                let at = end;
                end = at.saturating_add(align(size));
                (at, false)
            }
        };
        let (a, b) = (place(a, bytes.a), place(b, bytes.b));
        let gradient = place(None, bytes.gradient);
        let [(out, _), (out_b, _)] = [bytes.out, bytes.out_b].map(|size| place(None, size));
        Placed { a, b, gradient, out, out_b, end }
    }

    /// Makes the instance anew, with a window that holds the call.
    #[cold]
    fn widen(
        &mut self,
        call: &OpCall<'_>,
        bytes: &CallBytes,
        mut placed: Placed,
    ) -> Result<Placed, Failure> {
        // A larger window leaves less for constants, so that some may have to be copied: once more.
        for _ in 0..2 {
            if placed.end <= self.limit {
                self.renew(placed.end - self.window.start)?;
                self.used = true;
                placed = self.place(call, bytes);
            }
            if placed.end <= self.window.end {
                return Ok(placed);
            }
        }
        Err(Failure::TooLarge { needed: placed.end, limit: self.limit })
    }

    /// Makes the instance anew, with a window of so many bytes; constants are uploaded again on use. One that no call
    /// may use any more goes first, so that its memory is there for the new one; without that, too, it is tried again
    /// before the next call.
    fn renew(&mut self, window: usize) -> Result<(), Failure> {
        let window_size =
            if window > self.window.len() { WindowSize::row([window]) } else { self.window_size };
        if self.spoiled || matches!(self.isolation, Isolation::Reinstantiated) {
            self.release();
        }
        let mut new = Self::bare(&self.template, window_size, self.owner, window)?;
        new.window_size = self.window_size;
        if let Some(count) = self.threads {
            new.set_threads(count);
        }
        (new.constants, new.reporter) = (self.constants.take(), self.reporter.clone());
        // Offsets that were asked for before mean nothing now.
        new.clearings = self.clearings + 1;
        new.opened = std::mem::take(&mut self.opened);
        match &mut self.isolation {
            Isolation::Recording { written, .. } => {
                new.learns(std::mem::take(written))?;
            }
            Isolation::Protected { .. } => {
                new.fence();
                new.settle()?;
            }
            Isolation::Reinstantiated => new.settle()?,
        }
        *self = new;
        Ok(())
    }

    /// Ends it and gives its memory back.
    fn release(&mut self) {
        self.tidy_up();
        self.spoiled = true;
        self.engine = Box::new(Released);
        match &mut self.isolation {
            Isolation::Recording { image, .. } => *image = Vec::new(),
            Isolation::Protected { parts } => *parts = Vec::new(),
            Isolation::Reinstantiated => {}
        }
        self.residents.clear();
        (self.size, self.limit) = (0, 0);
        // Less is never refused.
        let _ = self.charge.resize(0);
    }

    /// Runs the kernel on what [`Instance::prepare`] laid out, and gives its output.
    #[inline]
    pub(crate) fn run(&mut self) -> Result<&[u8], Failure> {
        self.enter()?;
        Ok(self.output())
    }

    #[inline]
    fn enter(&mut self) -> Result<(), Failure> {
        let status = if self.is_backward {
            self.engine.backward(self.descriptor as u32, self.ticks)
        } else {
            self.engine.call(self.descriptor as u32, self.ticks).map(|(status, _)| status)
        };
        match status {
            Ok(0) => Ok(()),
            Ok(status) => {
                self.spoiled |= self.engine.is_lost();
                let (detail, message) = (String::new(), self.message());
                Err(Failure::Status { status, detail, message })
            }
            Err(trap) => Err(self.trapped(trap)),
        }
    }

    /// What a trap is to the caller; the instance is spoiled by it.
    #[cold]
    fn trapped(&mut self, trap: Trap) -> Failure {
        self.spoiled = true;
        Failure::Trap { trap: Box::new(Trap { message: self.message(), ..trap }) }
    }

    /// What the kernel said of its failure, at the end of scratch.
    #[cold]
    fn message(&mut self) -> String {
        let scratch = region(self.scratch, SCRATCH_BYTES);
        let scratch = within(self.engine.memory(), scratch);
        message::read(scratch)
            .map_or_else(String::new, |text| String::from_utf8_lossy(text).into_owned())
    }

    /// The output of the last run; of a call for gradients, that of the first input.
    pub(crate) fn output(&mut self) -> &[u8] {
        within(self.engine.memory(), self.last.outputs[0])
    }

    /// The output of the last run, or both gradients. What there is none of is empty.
    pub(crate) fn outputs(&mut self) -> [&[u8]; 2] {
        let [first, second] = self.last.outputs;
        let memory = self.engine.memory();
        [within(memory, first), within(memory, second)]
    }

    /// Whether the inputs of the last call are still what was passed.
    pub(crate) fn inputs_unchanged(&mut self, call: &OpCall<'_>) -> bool {
        let operands = self.last.inputs.into_iter().zip([&call.a, &call.b, &call.gradient]);
        let memory = self.engine.memory();
        operands.into_iter().all(|(region, operand)| {
            let at = region.offset as usize;
            let want = operand.bytes().unwrap_or(&[]);
            want.is_empty() || memory.get(at..at + want.len()) == Some(want)
        })
    }

    /// Runs the kernel as [`Instance::run`] does, with random numbers in place of the outputs and behind them,
    /// as earlier calls leave theirs. Gives what was in place of the outputs, and the outputs, end to end.
    ///
    /// # Errors
    /// How it failed; [`Failure::Mismatch`] where it writes beyond its output.
    pub(crate) fn run_guarded(
        &mut self,
        random: &mut Random,
    ) -> Result<(Vec<u8>, Vec<u8>), Failure> {
        let bytes =
            |region: &Region| region.offset as usize..(region.offset + region.size) as usize;
        let outputs = self.last.outputs.map(|region| bytes(&region));
        let there = || outputs.iter().filter(|output| !output.is_empty());
        let Some((from, to)) = there().map(|o| o.start).min().zip(there().map(|o| o.end).max())
        else {
            // They lie nowhere, so nothing is in their place or behind them.
            self.run()?;
            return Ok(Default::default());
        };
        // Behind the window nothing can be written.
        let watched = from..self.window.end.min(to + GUARD_BYTES);
        // Of ordinary magnitudes: below 2 and above 1/256.
        let number = |random: &mut Random| 0x3c00_0000 + (random.next() & 0x83ff_ffff);
        let words = std::iter::repeat_with(|| number(random).to_le_bytes());
        let before: Vec<u8> = words.flatten().take(watched.len()).collect();
        self.engine.memory()[watched.clone()].copy_from_slice(&before);
        self.run()?;
        let after = &self.engine.memory()[watched.clone()];
        let ends = there().map(|output| output.end - from);
        let begins = there().skip(1).map(|output| output.start - from).chain([watched.len()]);
        for (end, next) in ends.zip(begins) {
            let behind = after[end..next].iter().zip(&before[end..next]);
            if let Some(at) = behind.into_iter().position(|(after, old)| after != old) {
                let detail = format!("it writes {} bytes beyond its output", at + 1);
                return Err(Failure::Mismatch { detail });
            }
        }
        let joined = |bytes: &[u8]| {
            there().flat_map(|o| &bytes[o.start - from..o.end - from]).copied().collect()
        };
        Ok((joined(&before), joined(after)))
    }

    #[inline]
    fn reserve(&mut self, end: usize) -> Result<(), Failure> {
        if end > self.size {
            let too_large = Failure::TooLarge { needed: end, limit: self.limit };
            if end > self.limit {
                return Err(too_large);
            }
            let takes = self.takes(end.next_multiple_of(WASM_PAGE));
            if takes > self.charge.bytes() {
                self.charge.resize(takes)?;
            }
            if !self.engine.grow_to(end) {
                self.settle()?;
                return Err(too_large);
            }
            let grown = self.size..self.engine.memory().len();
            self.size = grown.end;
            if matches!(self.isolation, Isolation::Protected { .. }) {
                self.protect(grown, false);
            }
        }
        Ok(())
    }

    /// Changes the protection of whole pages of a fenced instance. One that cannot be protected any
    /// more is replaced before the next call.
    fn protect(&mut self, pages: Range<usize>, writable: bool) -> bool {
        let done = self.engine.protect(pages, writable);
        if !done {
            self.isolation = Isolation::Reinstantiated;
        }
        done
    }

    /// Where a resident operand lies, uploaded if need be; `None` where it is to be copied.
    #[inline]
    fn resident(&mut self, operand: &Operand<'_>) -> Option<usize> {
        let Operand::Resident(resident, range) = operand else { return None };
        let offset = match self.residents.get(&resident.id()) {
            Some(uploaded) => uploaded.offset,
            None => self.upload(resident)?,
        } + range.start;
        // The ABI promises aligned regions; a range that starts elsewhere is copied.
        offset.is_multiple_of(REGION_ALIGN).then_some(offset)
    }

    #[cold]
    fn upload(&mut self, resident: &Resident) -> Option<usize> {
        if resident.owner().is_some() && resident.owner() != self.owner {
            return None;
        }
        let limit = self.limit;
        let window_size =
            |from: usize| from.checked_add(align(resident.len())).filter(|&to| to <= limit);
        let to = match window_size(self.residents_to) {
            Some(to) => to,
            // Full: where constants in it have died, begin anew. The living come back on use.
            None if self.residents.values().any(|uploaded| uploaded.alive.strong_count() == 0) => {
                self.residents.clear();
                self.residents_to = self.window.end;
                self.clearings += 1;
                window_size(self.residents_to)?
            }
            None => return None,
        };
        self.reserve(to).ok()?;
        let offset = self.residents_to;
        let bytes = offset..offset + resident.len();
        let pages = offset / page_size() * page_size()..bytes.end.next_multiple_of(page_size());
        let is_fenced = matches!(self.isolation, Isolation::Protected { .. });
        if is_fenced && !self.protect(pages.clone(), true) {
            return None;
        }
        self.engine.memory()[bytes].copy_from_slice(resident.bytes());
        if is_fenced && !self.protect(pages, false) {
            return None;
        }
        self.residents_to = to;
        if let Some(constants) = &self.constants {
            constants.note(resident);
        }
        self.residents.insert(resident.id(), Uploaded { offset, alive: resident.downgrade() });
        Some(offset)
    }
}

impl Drop for Instance {
    fn drop(&mut self) {
        self.tidy_up();
    }
}

/// The bytes of a region that lies inside the memory.
#[inline]
fn within(memory: &[u8], Region { offset, size }: Region) -> &[u8] {
    &memory[offset as usize..][..size as usize]
}

/// An absent region is `{0, 0}`. Everything that is placed fits the 32-bit address space, because
/// [`Instance::reserve`] comes before the kernel runs.
fn region(at: usize, size: usize) -> Region {
    if size == 0 { Region::default() } else { Region::new(at as u32, size as u32) }
}

/// Ids are consecutive numbers: multiplying spreads them well enough, at a nanosecond.
#[derive(Default)]
pub(crate) struct IdHasher(u64);

impl Hasher for IdHasher {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, bytes: &[u8]) {
        for &byte in bytes {
            self.write_u64(u64::from(byte));
        }
    }

    fn write_u64(&mut self, n: u64) {
        self.0 = (self.0 ^ n).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    }
}

/// Checks what a module says about itself.
///
/// # Errors
/// A sentence for the author.
pub(crate) fn check_info(info: KernelInfo) -> Result<(), String> {
    if info.abi_version != ABI_VERSION {
        return Err(format!(
            "the module was built for ABI {}; this host runs ABI {ABI_VERSION}: rebuild it",
            info.abi_version
        ));
    }
    if (info.flags, info.reserved) != (0, 0) {
        return Err("kernel_info sets reserved fields: write zero".to_owned());
    }
    Ok(())
}
