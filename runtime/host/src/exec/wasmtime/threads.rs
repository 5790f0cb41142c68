//! Kernels with threads: instances that share one memory and compute a call together.
//!
//! A [`Group`] stands for one instance towards the host. Each of its members has a store, globals and a stack of its
//! own; the memory is that of the group. A call enters them on a thread each, the first on the calling one, and is
//! over when all have left. What one ends by, a trap, its deadline or a status, ends the call: the others look
//! every tick whether that has happened, and are interrupted. The host replaces a group whose call did not end well,
//! since its members stopped wherever they were. Between scopes it sets the memory and the globals of all back.
//!
//! The engine counts what has to do with shared memories among the parts that it does not give security fixes to
//! earlier versions for (tier 2), so it is off unless the device class asks for it.
#![allow(unsafe_code)]

use super::instance::{LoadedModule, WasmtimeInstance, missing};
use super::member::{End, Member};
use crate::exec::executor::EngineInstance;
use crate::exec::fence;
use crate::trap::{Trap, TrapKind};
use ruvllm_abi::export;
use std::cell::UnsafeCell;
use std::ops::Range;
use std::sync::Arc;
use std::thread;
use wasmtime::{ExternType, SharedMemory, Val};

/// Bytes of a thread's stack beside what its kernel may use.
const HOST_STACK: usize = 512 << 10;

/// The bytes that the end of a stack is a multiple of.
const STACK_ALIGN: i32 = 16;

/// The instances of a kernel with threads.
pub(super) struct Group {
    /// At least one. The first answers for all where one is enough.
    members: Vec<WasmtimeInstance>,
    memory: SharedMemory,
    end: Arc<End>,
    /// How many of the members a call enters.
    count: usize,
    /// Bytes of stack of their threads.
    stack: usize,
    /// Whether a call was ended by one of them.
    lost: bool,
}

impl Group {
    /// Makes the instances, all of them before any code runs: each lays the same data out.
    ///
    /// # Errors
    /// What the engine says.
    pub(super) fn new(loaded: &LoadedModule) -> Result<Self, Trap> {
        let failed = |error: wasmtime::Error| Trap::new(TrapKind::Other, format!("{error:#}"));
        let ty = match loaded.module.get_export(export::MEMORY) {
            Some(ExternType::Memory(ty)) if ty.is_shared() => ty,
            _ => return Err(missing(export::MEMORY)),
        };
        let memory = SharedMemory::new(loaded.module.engine(), ty).map_err(failed)?;
        let end = Arc::new(End::default());
        let member = |_| loaded.new_instance(Some((&memory, Member::new(&end))));
        let members = (0..loaded.spec.threads).map(member).collect::<Result<_, Trap>>()?;
        let count = loaded.threads as usize;
        let stack = loaded.stack.saturating_add(HOST_STACK);
        let mut group = Self { members, memory, end, count, stack, lost: false };
        group.divide_the_stack().map_err(failed)?;
        Ok(group)
    }

    /// Gives each member a part of the stack, of those the first the upper one.
    fn divide_the_stack(&mut self) -> Result<(), wasmtime::Error> {
        let count = self.members.len() as i32;
        for (index, member) in (0..).zip(&mut self.members) {
            let Some(stack) = member.stack else { continue };
            if let Some(end) = stack.get(&mut member.store).i32().filter(|end| *end > 0) {
                let part = end / count / STACK_ALIGN * STACK_ALIGN;
                stack.set(&mut member.store, Val::I32(end - index * part))?;
            }
            member.keep_globals();
        }
        Ok(())
    }

    fn first(&mut self) -> &mut WasmtimeInstance {
        &mut self.members[0]
    }
}

impl EngineInstance for Group {
    fn heap_base(&self) -> u32 {
        self.members[0].heap_base()
    }

    fn memory(&mut self) -> &mut [u8] {
        let cells = self.memory.data();
        let bytes = UnsafeCell::raw_get(cells.as_ptr()).cast::<u8>();
        // SAFETY: `SharedMemory::data` gives a slice of initialised bytes that stay where they are for as long as
        // the memory lives, which is at least as long as `self`. Whoever can reach them holds a handle of
        // the memory: `self`, which is borrowed exclusively for as long as the slice lives, and the stores of its
        // members, whose code runs in methods of `self` that borrow it exclusively and join every thread before
        // they return. No handle leaves this module and [`LoadedModule::new_instance`], which keeps its own in the member.
        unsafe { std::slice::from_raw_parts_mut(bytes, cells.len()) }
    }

    fn protect(&mut self, pages: Range<usize>, writable: bool) -> bool {
        fence::protect(self.memory(), pages, writable)
    }

    fn keep_globals(&mut self) {
        self.members.iter_mut().for_each(WasmtimeInstance::keep_globals);
    }

    fn reset_globals(&mut self) {
        self.members.iter_mut().for_each(WasmtimeInstance::reset_globals);
    }

    fn grow_to(&mut self, bytes: usize) -> bool {
        self.first().grow_to(bytes)
    }

    fn set_threads(&mut self, count: u32) {
        self.count = (count as usize).clamp(1, self.members.len());
    }

    fn is_lost(&self) -> bool {
        self.lost
    }

    fn call(&mut self, descriptor: u32, ticks: u64) -> Result<(i32, &[u8]), Trap> {
        let Self { members, end, count, stack, .. } = self;
        let (end, count, stack) = (&**end, *count, *stack);
        if let Some((first, others)) = members[..count].split_first_mut() {
            thread::scope(|scope| {
                for (index, member) in (1..).zip(others) {
                    let place = [index, count as u32];
                    let enter = move || member.enter(descriptor, place, ticks, end);
                    let builder = thread::Builder::new().name("ruvllm-kernel".to_owned());
                    if let Err(error) = builder.stack_size(stack).spawn_scoped(scope, enter) {
                        let what = format!("cannot start a thread of the kernel: {error}");
                        return end.by(Err(Trap::new(TrapKind::Other, what)));
                    }
                }
                first.enter(descriptor, [0, count as u32], ticks, end);
            });
        }
        let ended = end.take();
        self.lost |= ended.is_some();
        let status = ended.unwrap_or(Ok(0))?;
        Ok((status, self.memory()))
    }

    fn backward(&mut self, descriptor: u32, ticks: u64) -> Result<i32, Trap> {
        self.first().backward(descriptor, ticks)
    }

    fn init(&mut self, params: u32, len: u32) -> Result<Option<i32>, Trap> {
        self.first().init(params, len)
    }

    fn info(&mut self, out: u32) -> Result<Option<i32>, Trap> {
        self.first().info(out)
    }

    fn cleanup(&mut self) -> Result<Option<i32>, Trap> {
        self.first().cleanup()
    }
}
