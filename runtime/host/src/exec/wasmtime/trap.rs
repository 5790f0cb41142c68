//! What the engine says of a call that failed, as the host tells it.

use crate::exec::isolate;
use crate::exec::place::{Instruction, instruction};
use crate::trap::{CodeLocation, MemoryAccess, Trap, TrapKind};
use wasmtime::{FrameInfo, WasmBacktrace};

/// A function of the host was to write to this address of a kernel's memory, which the kernel may only read.
#[cfg(feature = "wasi-nn")]
#[derive(Debug, thiserror::Error)]
#[error("address {0:#x} is read-only")]
pub(super) struct ReadOnly(pub(super) u64);

/// What a trap is to the host, in a call of the function that is exported under a name, of an instance of the
/// pack's module `own` whose memory has so many bytes.
#[cold]
pub(super) fn trap(error: &wasmtime::Error, own: &[u8], called: &str, memory: u64) -> Trap {
    use wasmtime::Trap as T;
    let found = place(error, own, called);
    let is_call = matches!(&found, Some((_, Some(instruction))) if instruction.is_indirect_call);
    let kind = match error.downcast_ref::<T>() {
        Some(T::Interrupt) => TrapKind::Deadline,
        Some(T::MemoryOutOfBounds) => TrapKind::OutOfBounds,
        Some(T::HeapMisaligned) => TrapKind::Misaligned,
        Some(T::TableOutOfBounds) if is_call => TrapKind::IndirectCallOutOfBounds,
        Some(T::TableOutOfBounds) => TrapKind::TableOutOfBounds,
        Some(T::UnreachableCodeReached) => TrapKind::Unreachable,
        Some(T::StackOverflow) => TrapKind::StackOverflow,
        Some(T::IntegerOverflow) => TrapKind::IntegerOverflow,
        Some(T::IntegerDivisionByZero) => TrapKind::DivisionByZero,
        Some(T::BadConversionToInteger) => TrapKind::BadConversion,
        Some(T::IndirectCallToNull) => TrapKind::IndirectCallNull,
        Some(T::BadSignature) => TrapKind::IndirectCallSignature,
        _ => TrapKind::Other,
    };
    let detail = match error.downcast_ref::<T>() {
        Some(trap) => trap.to_string(),
        None => format!("{error:#}"),
    };
    let mut trap = Trap::new(kind, detail);
    let (place, instruction) = found.unzip();
    trap.place = place.map(Box::new);
    if kind == TrapKind::OutOfBounds {
        // Of bounds that are checked by instructions of their own, no address is kept.
        let offset = fault(error);
        // Where the instruction is not known to access memory: all that a memory has can be read, so it wrote there.
        // Beyond the memory it read: compilers merge loads, and no stores, into the instruction that uses the value.
        let unknown = offset.map(|at| (None, at < memory));
        let access = instruction.flatten().and_then(|instruction| instruction.access).or(unknown);
        trap.access = access.map(|(size, write)| MemoryAccess { offset, size, write, memory });
    }
    trap
}

/// The function and the instruction that trapped, in the pack's own module.
fn place(
    error: &wasmtime::Error,
    own: &[u8],
    called: &str,
) -> Option<(CodeLocation, Option<Instruction>)> {
    let all = error.downcast_ref::<WasmBacktrace>()?.frames();
    let compiled = isolate::isolated(own).ok();
    let compiled = compiled.as_deref();
    let find = |frame: &FrameInfo| instruction(own, compiled?, frame.module_offset()?);
    // What copies and fills memory in the pack's place is none of its functions: their caller is.
    let helpers = all.iter().position(|frame| find(frame).is_some()).unwrap_or(0);
    let (helpers, frames) = all.split_at(helpers);
    let function = match frames {
        // The end of the stack: this is the function that was called.
        [_] => called.to_owned(),
        _ => match frames.first()?.func_name() {
            Some(name) => name.chars().take(128).collect(),
            None => format!("function {}", frames[0].func_index()),
        },
    };
    let mut found: Vec<Instruction> =
        frames.iter().map_while(find).take(CodeLocation::MAX_FRAMES).collect();
    if let (Some(helper), Some(first)) = (helpers.first(), found.first_mut()) {
        let helper = compiled.and_then(|all| instruction(all, all, helper.module_offset()?));
        if let Some((_, write)) = helper.and_then(|helper| helper.access) {
            // The helper's instruction tells whether it read or wrote, not how much was to be moved.
            first.access = Some((None, write));
        }
    }
    let offsets = found.iter().map(|instruction| instruction.offset).collect();
    let place = CodeLocation { function, called: called.to_owned(), frames: offsets, source: None };
    Some((place, found.first().copied()))
}

/// The address that a kernel could not reach. The engine's type for this is its own; its text is not.
fn fault(error: &wasmtime::Error) -> Option<u64> {
    #[cfg(feature = "wasi-nn")]
    if let Some(ReadOnly(address)) = error.downcast_ref() {
        return Some(*address);
    }
    error.chain().find_map(|cause| {
        let text = cause.to_string();
        let (address, _) = text.strip_prefix("memory fault at wasm address 0x")?.split_once(' ')?;
        u64::from_str_radix(address, 16).ok()
    })
}
