//! Calls that go to a kernel's limits: the most memory that it may have, and for operations without
//! an oracle, shapes and numbers that must not make it trap.
//!
//! Regions are not tried at odd addresses: a host lays each out on a multiple of 64, always. Odd
//! sizes are tried throughout.

use ruvllm_abi::{DType, REGION_ALIGN};
use ruvllm_host::{CallError, Failure, ParamValue, RegistrySnapshot, Tensor, TrapKind, Worker};
use ruvllm_manifest::{Dim, KernelEntry, TensorSpec};
use ruvllm_native::judge::{self, Case, Kind};
use ruvllm_native::random::Random;

use crate::lines::Lines;
use crate::oracle_test::Trial;

/// A kernel, and how to call it by itself.
pub(crate) struct Target<'a> {
    pub(crate) worker: &'a mut Worker,
    pub(crate) snapshot: &'a RegistrySnapshot,
    pub(crate) entry: &'a KernelEntry,
    /// `pack/kernel`.
    name: String,
    lines: &'a Lines,
}

impl<'a> Target<'a> {
    /// A kernel of an admitted pack.
    pub(crate) fn of(
        trial: &'a Trial,
        worker: &'a mut Worker,
        snapshot: &'a RegistrySnapshot,
        entry: &'a KernelEntry,
    ) -> Self {
        let name = format!("{}/{}", trial.manifest.name, entry.id);
        Target { worker, snapshot, entry, name, lines: &trial.lines }
    }

    /// Calls the kernel; it alone answers.
    pub(crate) fn call(
        &mut self,
        inputs: &[Tensor],
        params: &[(&str, ParamValue)],
    ) -> Result<Tensor, CallError> {
        let outputs = self.worker.call_generic(self.snapshot, &self.name, inputs, params);
        let outputs = outputs.map_err(|error| self.lines.name(&self.entry.id, error))?;
        outputs.into_iter().next().ok_or_else(|| CallError::Unknown {
            name: self.name.clone(),
            detail: "it gave no output".to_owned(),
        })
    }

    /// The gradients by the inputs of a call; the kernel alone answers.
    pub(crate) fn backward(
        &mut self,
        inputs: &[Tensor],
        params: &[(&str, ParamValue)],
        gradient: &Tensor,
    ) -> Result<Vec<Tensor>, CallError> {
        self.worker.backward_generic(self.snapshot, &self.name, inputs, params, gradient)
    }
}

/// What was found at the limit of memory.
pub(crate) enum AtLimit {
    /// The largest call that fits.
    Fits {
        /// Its length in units.
        n: u32,
        /// Bytes of its tensors.
        bytes: u64,
    },
    /// The kernel has no extent that could grow.
    Fixed,
}

/// Finds the largest call that fits the kernel's memory, and sees that one above it is refused
/// without the kernel being asked.
///
/// # Errors
/// What the host did instead of refusing.
pub(crate) fn find_limit(target: &mut Target<'_>) -> Result<AtLimit, String> {
    let pages = u64::from(target.entry.resource_limits.max_memory_pages);
    let size = |n: u32| Some(aligned_bytes(target.entry, &extents(target.entry, n)?));
    if size(2) == size(1) && size(1 << 12) == size(1) {
        return Ok(AtLimit::Fixed);
    }
    let bytes = |n: u32| size(n).flatten().unwrap_or(u64::MAX);
    // More than all of its memory, whatever the host keeps there besides.
    let above = first(|n| bytes(n) > pages * 65_536).ok_or("no call is too large for it")?;
    let overhead = match attempt(target, above)? {
        Err(CallError::Failed { failure: Failure::TooLarge { needed, .. }, .. }) => {
            (needed as u64).saturating_sub(bytes(above))
        }
        other => return Err(refusal(above, other)),
    };
    let above = first(|n| bytes(n).saturating_add(overhead) > pages * 65_536).unwrap_or(above);
    match attempt(target, above)? {
        Err(CallError::Failed { failure: Failure::TooLarge { .. }, .. }) => {}
        other => return Err(refusal(above, other)),
    }
    if above <= 1 {
        return Err("not even the smallest call fits its memory: raise max_memory_pages".to_owned());
    }
    Ok(AtLimit::Fits { n: above - 1, bytes: bytes(above - 1) })
}

fn refusal(n: u32, outcome: Result<Tensor, CallError>) -> String {
    let what = match outcome {
        Ok(_) => "answered".to_owned(),
        Err(error) => error.to_string(),
    };
    format!("a call of {n} units, beyond its memory, should be refused as too large: {what}")
}

/// The smallest number for which it holds, where it holds from some number on.
fn first(holds: impl Fn(u32) -> bool) -> Option<u32> {
    let (mut low, mut high) = (0u32, 1u32 << 26);
    if !holds(high) {
        return None;
    }
    while high - low > 1 {
        let middle = low + (high - low) / 2;
        if holds(middle) { high = middle } else { low = middle }
    }
    Some(high)
}

/// Calls with `n` units of zeros.
fn attempt(target: &mut Target<'_>, n: u32) -> Result<Result<Tensor, CallError>, String> {
    let extents = extents(target.entry, n).ok_or("it has no extents")?;
    let inputs =
        tensors(target.entry, &extents, |dtype, n| dtype.bytes_for(n).map(|size| vec![0; size]));
    let inputs = inputs.ok_or("its inputs have no size")?;
    Ok(call(target, &inputs, &extents))
}

/// Calls a kernel with every extent given by name and its params at their defaults, or one.
fn call(target: &mut Target<'_>, inputs: &[Tensor], extents: &[u32]) -> Result<Tensor, CallError> {
    let entry = target.entry;
    let params = params(entry, extents);
    target.call(inputs, &params)
}

fn params<'e>(entry: &'e KernelEntry, extents: &[u32]) -> Vec<(&'e str, ParamValue)> {
    use ruvllm_manifest::ParamType::{F32, I32, U32};
    let symbols = entry.symbols().into_iter().zip(extents.iter().map(|n| ParamValue::U32(*n)));
    let params = entry.params.iter().map(|(name, spec)| {
        let one = match spec.ty {
            F32 => ParamValue::F32(1.0),
            U32 => ParamValue::U32(1),
            I32 => ParamValue::I32(1),
        };
        (name.as_str(), spec.default.unwrap_or(one))
    });
    symbols.chain(params).collect()
}

/// Extents of a call that is `n` units long.
fn extents(entry: &KernelEntry, n: u32) -> Option<Vec<u32>> {
    if let Some(op) = entry.known_op() {
        return Some(judge::long_extents(op, n));
    }
    // One extent of the output grows; the others are as small as the blocks let them be.
    let unit = unit(entry);
    let symbols = entry.symbols();
    let output = entry.outputs.first()?;
    let grows = output.shape.iter().rev().find_map(|dim| match dim {
        Dim::Symbol(name) => symbols.iter().position(|symbol| symbol == name),
        Dim::Fixed(_) => None,
    })?;
    let mut extents = vec![unit; symbols.len()];
    extents[grows] = n.saturating_mul(unit);
    Some(extents)
}

/// The smallest extent that every format of the kernel takes.
fn unit(entry: &KernelEntry) -> u32 {
    let tensors = entry.inputs.iter().chain(&entry.outputs);
    tensors.map(|tensor| tensor.dtype.layout().elems as u32).max().unwrap_or(1)
}

fn shape(entry: &KernelEntry, tensor: &TensorSpec, extents: &[u32]) -> Vec<usize> {
    let symbols = entry.symbols();
    let extent = |dim: &Dim| match dim {
        Dim::Fixed(n) => *n as usize,
        Dim::Symbol(name) => {
            let at = symbols.iter().position(|symbol| symbol == name);
            at.and_then(|at| extents.get(at)).map_or(0, |n| *n as usize)
        }
    };
    tensor.shape.iter().map(extent).collect()
}

/// Bytes that the tensors of a call take, each rounded up as a host does.
fn aligned_bytes(entry: &KernelEntry, extents: &[u32]) -> Option<u64> {
    let mut total = 0u64;
    for tensor in entry.inputs.iter().chain(&entry.outputs) {
        let shape = shape(entry, tensor, extents);
        let elems = shape.iter().try_fold(1usize, |n, extent| n.checked_mul(*extent))?;
        let bytes = tensor.dtype.bytes_for(elems)? as u64;
        total = total.checked_add(bytes.next_multiple_of(REGION_ALIGN as u64))?;
    }
    Some(total)
}

fn tensors(
    entry: &KernelEntry,
    extents: &[u32],
    mut operand: impl FnMut(DType, usize) -> Option<Vec<u8>>,
) -> Option<Vec<Tensor>> {
    let inputs = entry.inputs.iter().map(|spec| {
        let shape = shape(entry, spec, extents);
        let elems = shape.iter().try_fold(1usize, |n, extent| n.checked_mul(*extent))?;
        Tensor::new(spec.dtype, shape, operand(spec.dtype, elems)?)
    });
    inputs.collect()
}

/// What became of the calls of [`manners`].
#[derive(Debug, Default)]
pub(crate) struct Manners {
    /// Calls that were made.
    pub(crate) calls: usize,
    /// Calls that the kernel declined with a status, as it may.
    pub(crate) declined: usize,
    /// What the host says of the first of these.
    pub(crate) first_declined: Option<String>,
    /// Calls that went wrong.
    pub(crate) failures: Vec<String>,
}

/// Calls a kernel of a custom operation with odd and empty shapes and with numbers that are not
/// finite: it may decline, but it may neither trap nor run out of time.
pub(crate) fn manners(target: &mut Target<'_>) -> Manners {
    const EXTENTS: [[u32; 5]; 4] =
        [[1, 1, 1, 1, 1], [3, 7, 33, 5, 2], [257, 3, 1, 7, 33], [0, 3, 5, 1, 2]];
    let mut random = Random::new(0xc0570);
    let mut found = Manners::default();
    let (symbols, unit) = (target.entry.symbols().len(), unit(target.entry));
    for pattern in EXTENTS {
        let extents: Vec<u32> = (0..symbols).map(|i| pattern[i % 5] * unit).collect();
        for kind in [Kind::Normal, Kind::Zeros, Kind::Huge, Kind::Subnormal, Kind::NonFinite] {
            let inputs = tensors(target.entry, &extents, |dtype, n| {
                judge::custom_operand(&mut random, n, kind, dtype)
            });
            let Some(inputs) = inputs else { continue };
            found.calls += 1;
            match call(target, &inputs, &extents) {
                Ok(_) => {}
                Err(CallError::Failed {
                    failure: failure @ Failure::Status { status: 1..=5, .. },
                    ..
                }) => {
                    found.declined += 1;
                    found.first_declined.get_or_insert_with(|| failure.to_string());
                }
                Err(error) => {
                    let symbols = target.entry.symbols();
                    let shape: Vec<String> =
                        symbols.iter().zip(&extents).map(|(s, n)| format!("{s} {n}")).collect();
                    found.failures.push(format!("{kind:?} numbers, {}: {error}", shape.join(", ")));
                }
            }
        }
    }
    found
}

/// A call of a kernel without an oracle with ordinary numbers, `n` units long.
pub(crate) fn custom_case(entry: &KernelEntry, n: u32) -> Option<Case> {
    let extents = extents(entry, n)?;
    let mut random = Random::new(0xbe4c);
    let operand = |dtype, n| judge::custom_operand(&mut random, n, Kind::Normal, dtype);
    let inputs = tensors(entry, &extents, operand)?;
    let symbols = entry.symbols();
    let named: Vec<String> =
        symbols.iter().zip(&extents).map(|(name, n)| format!("{name} {n}")).collect();
    let output = entry.outputs.first()?;
    let operand = |i: usize| inputs.get(i).map_or(Vec::new(), |tensor| tensor.bytes().to_vec());
    let shape_text = named.join(", ");
    Some(Case {
        what: format!("normal numbers, {shape_text}"),
        shape: shape_text,
        a: operand(0),
        b: operand(1),
        gradient: Vec::new(),
        words: params(entry, &extents).iter().map(|(_, value)| value.to_word()).collect(),
        output: output.dtype.bytes_for(shape(entry, output, &extents).iter().product())?,
    })
}

/// Whether a call ended because the kernel ran too long.
pub(crate) fn is_deadline(error: &CallError) -> bool {
    let CallError::Failed { failure: Failure::Trap { trap }, .. } = error else { return false };
    trap.kind == TrapKind::Deadline
}

/// The largest call of a kernel without an oracle.
///
/// # Errors
/// As [`Target::call`].
pub(crate) fn call_at_limit(target: &mut Target<'_>, n: u32) -> Result<Tensor, CallError> {
    attempt(target, n)
        .unwrap_or_else(|detail| Err(CallError::Unknown { name: target.name.clone(), detail }))
}
