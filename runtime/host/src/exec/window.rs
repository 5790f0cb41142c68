//! The host's part of an instance's memory: where a call's regions lie.
//!
//! Above `__heap_base`, every region on a multiple of 64: descriptor, params, scratch, then the
//! resident area, which grows upwards as constants are uploaded, then input A, input B and output
//! of the current call. Inputs that are resident are not copied. Nothing of the layout is trusted
//! afterwards: a kernel that writes elsewhere spoils its own results, and only those.

use super::{Instance, PreparedKernel, Trap};
use crate::call::{OpCall, Operand, Resident, ResidentBytes, Words};
use crate::deadline::Deadline;
use crate::error::Failure;
use crate::host::Witness;
use crate::plan::CallBytes;
use crate::swap::seen::Constants;
use ruvllm_abi::{ABI_VERSION, KernelDescriptor, KernelInfo, REGION_ALIGN, Region, SCRATCH_BYTES};
use std::collections::HashMap;
use std::hash::{BuildHasherDefault, Hasher};
use std::sync::{Arc, Weak};

/// Bytes behind the output that a guarded run watches.
pub(crate) const GUARD_BYTES: usize = 256;

/// Bytes between two that lie in different pages of the machine, on any of them.
const PAGE: usize = 4 << 10;

const DESCRIPTOR_BYTES: usize = align(KernelDescriptor::SIZE);

const PARAMS_BYTES: usize = Words::BYTES.next_multiple_of(REGION_ALIGN);

/// An instance together with what the host keeps in its memory.
pub(crate) struct Bench {
    instance: Box<dyn Instance>,
    deadline: Deadline,
    /// Ticks that the call may take that is laid out.
    ticks: u64,
    limit: usize,
    /// Bytes that its memory has at least; a kernel may have grown it further.
    size: usize,
    descriptor: usize,
    params: usize,
    scratch: usize,
    /// Where the resident area begins and where the next constant goes.
    residents_from: usize,
    residents_to: usize,
    residents: HashMap<u64, Uploaded, BuildHasherDefault<IdHasher>>,
    /// How often the resident area has begun anew.
    clearings: u64,
    /// What the last call used, for looking at it afterwards.
    last: KernelDescriptor,
    spoiled: bool,
    /// Where constants are noted that it takes up.
    constants: Option<Arc<Constants>>,
    /// Who is told where it does not end as it should.
    witness: Option<Witness>,
}

struct Uploaded {
    offset: usize,
    alive: Weak<ResidentBytes>,
}

impl Bench {
    /// Makes an instance and runs its `kernel_init` with the words of the default params.
    ///
    /// # Errors
    /// [`Failure::Instantiate`].
    pub(crate) fn new(prepared: &dyn PreparedKernel, defaults: &[u32]) -> Result<Self, Failure> {
        let failed = |detail: String| Failure::Instantiate { detail };
        let instance = prepared.instantiate().map_err(|trap| failed(trap.detail))?;
        let descriptor = align(instance.heap_base() as usize);
        let params = descriptor + DESCRIPTOR_BYTES;
        let scratch = params + PARAMS_BYTES;
        let residents_from = scratch + SCRATCH_BYTES;
        let limit = instance.memory_limit();
        let mut bench = Self {
            size: 0,
            instance,
            deadline: *prepared.deadline(),
            ticks: 0,
            limit,
            descriptor,
            params,
            scratch,
            residents_from,
            residents_to: residents_from,
            residents: HashMap::default(),
            clearings: 0,
            last: KernelDescriptor::default(),
            spoiled: false,
            constants: None,
            witness: None,
        };
        bench.reserve(residents_from).map_err(|_| {
            failed(format!(
                "it needs {residents_from} bytes of memory before any call; its limit is {limit}"
            ))
        })?;
        let len = defaults.len() * 4;
        let words = bytemuck::cast_slice(defaults);
        bench.instance.memory()[params..params + len].copy_from_slice(words);
        match bench.instance.init(params as u32, len as u32) {
            Ok(None | Some(0)) => Ok(bench),
            Ok(Some(status)) => Err(failed(format!("kernel_init returned status {status}"))),
            Err(trap) => Err(failed(format!("kernel_init: {}", trap.detail))),
        }
    }

    /// The same for a worker: it notes the constants that it takes up from now on, and what goes
    /// wrong at its end is told to `witness`.
    pub(crate) fn serving(mut self, constants: Arc<Constants>, witness: Witness) -> Self {
        (self.constants, self.witness) = (Some(constants), Some(witness));
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
        let Trap { kind: trap, detail } = match self.instance.cleanup() {
            Ok(()) => return Ok(()),
            Err(trap) => trap,
        };
        Err(Failure::Cleanup { trap, detail })
    }

    /// Takes constants up and has room for operands and output of so many bytes at hand, as far as its
    /// limit allows: calls find them there, and no page of it is touched for the first time by one.
    pub(crate) fn warm(&mut self, constants: &[Resident], window: usize) {
        for constant in constants {
            if self.upload(constant).is_none() {
                break;
            }
        }
        let end = (self.residents_to + window).min(self.limit);
        if self.reserve(end).is_ok() {
            // Pages are had by writing to them, what is there already stays.
            for byte in self.instance.memory()[..end].iter_mut().step_by(PAGE) {
                *byte = std::hint::black_box(*byte);
            }
        }
    }

    /// What `kernel_info` reports, or `None` where the kernel has none.
    ///
    /// # Errors
    /// A trap or a status other than 0.
    pub(crate) fn info(&mut self) -> Result<Option<KernelInfo>, Failure> {
        let at = self.scratch;
        self.instance.memory()[at..at + KernelInfo::SIZE].fill(0);
        match self.instance.info(at as u32).map_err(|trap| failed(trap, &mut self.spoiled))? {
            None => Ok(None),
            Some(0) => {
                let bytes = &self.instance.memory()[at..at + KernelInfo::SIZE];
                let word = |i: usize| {
                    let b = &bytes[i * 4..];
                    u32::from_le_bytes([b[0], b[1], b[2], b[3]])
                };
                let [abi_version, revision, flags, reserved] = [0, 1, 2, 3].map(word);
                Ok(Some(KernelInfo { abi_version, revision, flags, reserved }))
            }
            Some(status) => Err(Failure::Status { status }),
        }
    }

    /// Bytes that the operands and the output of one call may take together, constants that may
    /// still come aside.
    #[inline]
    pub(crate) fn room(&self) -> usize {
        // Each of the three windows may lose most of an alignment step.
        self.limit.saturating_sub(self.residents_to + 3 * REGION_ALIGN)
    }

    /// Whether a call copies the operand instead of finding it in place.
    pub(crate) fn is_copied(&mut self, operand: &Operand<'_>) -> bool {
        self.resident(operand).is_none()
    }

    /// Constants that are uploaded.
    #[cfg(test)]
    pub(crate) fn uploaded(&self) -> usize {
        self.residents.len()
    }

    /// Runs the kernel on a call whose sizes have been checked, and gives its output.
    ///
    /// # Errors
    /// How it failed.
    #[inline]
    pub(crate) fn call(&mut self, call: &OpCall<'_>, bytes: &CallBytes) -> Result<&[u8], Failure> {
        self.prepare(call, bytes)?;
        self.run()
    }

    /// Lays the regions of a call out and copies its operands.
    #[inline]
    pub(crate) fn prepare(&mut self, call: &OpCall<'_>, bytes: &CallBytes) -> Result<(), Failure> {
        let mut a = self.resident(&call.a);
        let clearings = self.clearings;
        let b = self.resident(&call.b);
        if self.clearings != clearings {
            // Making room for B has moved A. It cannot happen again: nothing that is left is dead.
            a = self.resident(&call.a);
        }
        let mut end = self.residents_to;
        let mut place = |resident: Option<usize>, size: usize| match resident {
            Some(offset) => offset,
            None => {
                let at = end;
                end = at.saturating_add(align(size));
                at
            }
        };
        let a_at = place(a, bytes.a);
        let b_at = place(b, bytes.b);
        let out_at = place(None, bytes.out);
        self.reserve(end)?;
        let words = call.words.as_slice().len();
        let desc = KernelDescriptor {
            input_a: region(a_at, bytes.a),
            input_b: region(b_at, bytes.b),
            output: region(out_at, bytes.out),
            scratch: region(self.scratch, SCRATCH_BYTES),
            params: region(self.params, words * 4),
        };
        let head = self.descriptor..self.scratch;
        let memory = self.instance.memory();
        let (descriptor, params) = memory[head].split_at_mut(DESCRIPTOR_BYTES);
        descriptor[..KernelDescriptor::SIZE].copy_from_slice(&desc.to_bytes());
        // All of the block, which has a length that the compiler knows.
        params[..Words::BYTES].copy_from_slice(call.words.block());
        for (resident, at, operand) in [(a, a_at, &call.a), (b, b_at, &call.b)] {
            if resident.is_none()
                && let Some(bytes) = operand.bytes()
                && !bytes.is_empty()
            {
                memory[at..at + bytes.len()].copy_from_slice(bytes);
            }
        }
        self.last = desc;
        self.ticks = self.deadline.ticks(bytes, &call.words);
        Ok(())
    }

    /// Runs the kernel on what [`Bench::prepare`] laid out, and gives its output.
    #[inline]
    pub(crate) fn run(&mut self) -> Result<&[u8], Failure> {
        match self.instance.call(self.descriptor as u32, self.ticks) {
            Ok((0, memory)) => Ok(within(memory, self.last.output)),
            Ok((status, _)) => Err(Failure::Status { status }),
            Err(trap) => Err(failed(trap, &mut self.spoiled)),
        }
    }

    /// The output of the last run.
    pub(crate) fn output(&mut self) -> &[u8] {
        within(self.instance.memory(), self.last.output)
    }

    /// Whether the inputs of the last call are still what was passed.
    pub(crate) fn inputs_unchanged(&mut self, call: &OpCall<'_>) -> bool {
        let KernelDescriptor { input_a, input_b, .. } = self.last;
        let memory = self.instance.memory();
        [(input_a, &call.a), (input_b, &call.b)].into_iter().all(|(region, operand)| {
            let at = region.offset as usize;
            let want = operand.bytes().unwrap_or(&[]);
            want.is_empty() || memory.get(at..at + want.len()) == Some(want)
        })
    }

    /// Runs the kernel as [`Bench::run`] does, with the output window and what follows it filled
    /// first: an output left unwritten does not pass for a result, and writing beyond it shows.
    pub(crate) fn run_guarded(&mut self) -> Result<&[u8], Failure> {
        const GUARD: u8 = 0xa5;
        let Region { offset, size } = self.last.output;
        let (from, end) = (offset as usize, offset as usize + size as usize);
        self.reserve(end + GUARD_BYTES)?;
        self.instance.memory()[from..end + GUARD_BYTES].fill(GUARD);
        self.run()?;
        let behind = &self.instance.memory()[end..end + GUARD_BYTES];
        match behind.iter().position(|&byte| byte != GUARD) {
            Some(at) => Err(Failure::Mismatch {
                detail: format!("it writes {} bytes beyond its output", at + 1),
            }),
            None => Ok(self.output()),
        }
    }

    #[inline]
    fn reserve(&mut self, end: usize) -> Result<(), Failure> {
        if end > self.size {
            if !self.instance.grow_to(end) {
                return Err(Failure::TooLarge { needed: end, limit: self.limit });
            }
            self.size = self.instance.memory().len();
        }
        Ok(())
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
        let limit = self.residents_from + (self.limit - self.residents_from) / 2;
        let room = |from: usize| from.checked_add(align(resident.len())).filter(|&to| to <= limit);
        let to = match room(self.residents_to) {
            Some(to) => to,
            // Full: where constants in it have died, begin anew. The living come back on use.
            None if self.residents.values().any(|uploaded| uploaded.alive.strong_count() == 0) => {
                self.residents.clear();
                self.residents_to = self.residents_from;
                self.clearings += 1;
                room(self.residents_to)?
            }
            None => return None,
        };
        self.reserve(to).ok()?;
        let offset = self.residents_to;
        self.instance.memory()[offset..offset + resident.len()].copy_from_slice(resident.bytes());
        self.residents_to = to;
        if let Some(constants) = &self.constants {
            constants.note(resident);
        }
        self.residents.insert(resident.id(), Uploaded { offset, alive: resident.downgrade() });
        Some(offset)
    }
}

impl Drop for Bench {
    fn drop(&mut self) {
        // A kernel that failed to tidy up once is not asked again: instances may go by the dozen.
        if self.witness.as_ref().is_some_and(Witness::knows_better) {
            return;
        }
        if let (Err(failure), Some(witness)) = (self.cleanup(), &self.witness) {
            witness.tell(&failure);
        }
    }
}

/// What a trap is to the caller; the instance is spoiled by it.
#[cold]
fn failed(trap: Trap, spoiled: &mut bool) -> Failure {
    *spoiled = true;
    Failure::Trap { trap: trap.kind, detail: trap.detail }
}

/// The bytes of a region that lies inside the memory.
#[inline]
fn within(memory: &[u8], Region { offset, size }: Region) -> &[u8] {
    &memory[offset as usize..][..size as usize]
}

const fn align(bytes: usize) -> usize {
    bytes.saturating_add(REGION_ALIGN - 1) & !(REGION_ALIGN - 1)
}

/// An absent region is `{0, 0}`. Everything that is placed fits the 32-bit address space, because
/// [`Bench::reserve`] comes before the kernel runs.
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
