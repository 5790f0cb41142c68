//! The memory that instances of kernels take, counted and bounded: for each pack, and for all of a host.
//!
//! An instance is counted from before it is made until it is gone, whoever has it: a worker, admission,
//! what is made ahead of an activation, a generation that drains. In bytes, that is
//! - its linear memory at the size that it has: what its module begins with, and what the host adds for
//!   calls and constants. Addresses that the engine sets aside behind it are no memory;
//! - its table, a pointer for each element;
//! - the host's copies of those parts that are set back between scopes.
//!
//! Not counted is what does not grow with these: kernels run on the stack of their thread; machine code and
//! data segments are there once for each kernel; and the records that engine and host keep of an instance
//! are bounded by the gate's limits (a few KiB, and some 100 KiB for a module that exhausts those).
//!
//! Invariant: what is counted is never above the limit of the host, nor that of a pack above the pack's, nor
//! does it take more than the budgets grant that it comes out of; what would is not made. Instances that
//! wait to be dropped keep no other from being made: who lacks memory drops them. Counting takes a lock
//! where an instance is made, grows or goes; a call that has its instance takes none.

use crate::HostConfig;
use crate::error::{Failure, MemoryBound};
use crate::reaper::DropQueue;
use crate::threads::lock;
use serde::{Deserialize, Serialize};
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::sync::{Arc, Mutex, Weak};

/// What the instances of all kernels take, and what they may.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct KernelMemory {
    /// Bytes that they take now.
    pub used: usize,
    /// Bytes that they may take together.
    pub limit: usize,
    /// Bytes of those that the instances of one pack may take.
    pub pack_limit: usize,
}

/// A budget that others use as well, and that the memory of a host's kernels comes out of.
pub trait KernelBudget: Send + Sync {
    /// Counts so many bytes more. `false` where there is no room for them: nothing is counted then.
    fn take(&self, bytes: usize) -> bool;

    /// Counts so many bytes less.
    fn give(&self, bytes: usize);
}

/// The count of a host.
pub(crate) struct HostMemory {
    pack_limit: usize,
    /// Instances among it count until they are dropped.
    drop_queue: Arc<DropQueue>,
    state: Mutex<MemoryUse>,
}

struct MemoryUse {
    used: usize,
    /// [`HostConfig::kernel_memory`].
    limit: usize,
    /// What it comes out of as well, and the limit that each brings.
    budgets: Vec<(Weak<dyn KernelBudget>, usize)>,
}

/// The count of a pack, each version that was taken in by itself.
pub(crate) struct PackMemory {
    host: Arc<HostMemory>,
    /// Changes while the state of the host is locked.
    used: AtomicUsize,
}

/// What one instance is counted with, until this is dropped.
pub(crate) struct Charge {
    pack: Arc<PackMemory>,
    bytes: usize,
}

impl HostMemory {
    pub(crate) fn new(config: &HostConfig, drop_queue: &Arc<DropQueue>) -> Arc<Self> {
        let state = MemoryUse { used: 0, limit: config.kernel_memory, budgets: Vec::new() };
        let (pack_limit, drop_queue) = (config.pack_memory, drop_queue.clone());
        Arc::new(Self { pack_limit, drop_queue, state: Mutex::new(state) })
    }

    /// Has what is counted come out of a budget, within a limit, as long as the budget lives. What is in use
    /// beyond the limit stays. `false` where the budget has no room for what is in use.
    pub(crate) fn join(&self, budget: &Arc<dyn KernelBudget>, limit: usize) -> bool {
        let mut state = lock(&self.state);
        let joins = budget.take(state.used);
        if joins {
            state.budgets.retain(|(budget, _)| budget.strong_count() > 0);
            state.budgets.push((Arc::downgrade(budget), limit));
        }
        joins
    }

    /// A count for a pack that is taken in.
    pub(crate) fn of_pack(self: &Arc<Self>) -> Arc<PackMemory> {
        Arc::new(PackMemory { host: self.clone(), used: AtomicUsize::new(0) })
    }

    pub(crate) fn report(&self) -> KernelMemory {
        let state = lock(&self.state);
        KernelMemory {
            used: state.used,
            limit: state.limit(),
            pack_limit: self.pack_limit(state.limit()),
        }
    }

    /// Bytes that one pack may take of `limit`: in the last quarter another can prove itself.
    fn pack_limit(&self, limit: usize) -> usize {
        self.pack_limit.min(limit - limit / 4)
    }
}

impl MemoryUse {
    /// Bytes that may be in use: the least of what the host and the budgets allow.
    fn limit(&self) -> usize {
        let living = self.budgets.iter().filter(|(budget, _)| budget.strong_count() > 0);
        living.map(|&(_, limit)| limit).fold(self.limit, usize::min)
    }

    /// Takes `needed` bytes of every budget, or of none. Of the heap it takes nothing: instances grow while
    /// tokens are decoded.
    fn ask_budgets(&self, needed: usize) -> bool {
        // One that is gone has nothing to refuse.
        let refuses = |(budget, _): &(Weak<dyn KernelBudget>, usize)| {
            budget.upgrade().is_some_and(|budget| !budget.take(needed))
        };
        match self.budgets.iter().position(refuses) {
            Some(at) => {
                let asked = self.budgets[..at].iter().filter_map(|(budget, _)| budget.upgrade());
                asked.for_each(|budget| budget.give(needed));
                false
            }
            None => true,
        }
    }
}

impl PackMemory {
    /// Bytes that the pack may take.
    pub(crate) fn share(&self) -> usize {
        self.host.report().pack_limit
    }

    /// Counts so many bytes more. Where there is no room for them, what waits to be dropped goes first.
    fn take(&self, needed: usize) -> Result<(), Failure> {
        loop {
            match self.try_take(needed) {
                Err(_) if self.host.drop_queue.drop_one() => {}
                done => return done,
            }
        }
    }

    fn try_take(&self, needed: usize) -> Result<(), Failure> {
        let mut state = lock(&self.host.state);
        let full = |bound, limit| Err(Failure::Memory { bound, needed, limit });
        let used = self.used.load(Relaxed);
        let (mine, all) = (used.saturating_add(needed), state.used.saturating_add(needed));
        let most = state.limit();
        let limit = self.host.pack_limit(most);
        if all > most {
            return full(MemoryBound::Host, most);
        }
        if mine > limit {
            return full(MemoryBound::Pack, limit);
        }
        if !state.ask_budgets(needed) {
            // Others have the rest.
            return full(MemoryBound::Host, state.used);
        }
        state.used = all;
        self.used.store(mine, Relaxed);
        Ok(())
    }

    fn give(&self, bytes: usize) {
        let mut state = lock(&self.host.state);
        state.used -= bytes;
        self.used.fetch_sub(bytes, Relaxed);
        let living = state.budgets.iter().filter_map(|(budget, _)| budget.upgrade());
        living.for_each(|budget| budget.give(bytes));
    }
}

impl Charge {
    /// # Errors
    /// [`Failure::Memory`].
    pub(crate) fn new(pack: &Arc<PackMemory>, bytes: usize) -> Result<Self, Failure> {
        pack.take(bytes)?;
        Ok(Self { pack: pack.clone(), bytes })
    }

    pub(crate) fn bytes(&self) -> usize {
        self.bytes
    }

    /// Counts another number of bytes from now on.
    ///
    /// # Errors
    /// [`Failure::Memory`], for more than before; the count is as it was then.
    pub(crate) fn resize(&mut self, bytes: usize) -> Result<(), Failure> {
        if bytes > self.bytes {
            self.pack.take(bytes - self.bytes)?;
        } else {
            self.pack.give(self.bytes - bytes);
        }
        self.bytes = bytes;
        Ok(())
    }
}

impl Drop for Charge {
    fn drop(&mut self) {
        self.pack.give(self.bytes);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn memory(kernel_memory: usize, pack_memory: usize) -> Arc<HostMemory> {
        let config = HostConfig { kernel_memory, pack_memory, ..HostConfig::default() };
        HostMemory::new(&config, &Arc::default())
    }

    fn code(refused: Result<Charge, Failure>) -> &'static str {
        refused.err().unwrap().code()
    }

    #[test]
    fn packs_share_the_limit_of_the_host_and_have_one_each() {
        let host = memory(100, 60);
        let (one, other) = (host.of_pack(), host.of_pack());
        let mut charge = Charge::new(&one, 60).unwrap();
        assert_eq!(code(Charge::new(&one, 1)), "pack_memory_full");
        assert_eq!(code(Charge::new(&other, 41)), "kernel_memory_full");
        let _other = Charge::new(&other, 40).unwrap();
        assert_eq!(host.report(), KernelMemory { used: 100, limit: 100, pack_limit: 60 });
        assert!(charge.resize(61).is_err());
        assert_eq!((charge.bytes(), host.report().used), (60, 100), "a refusal changes nothing");
        charge.resize(10).unwrap();
        assert_eq!(host.report().used, 50);
        drop((charge, _other));
        assert_eq!(host.report().used, 0);
    }

    #[test]
    fn no_pack_has_the_last_quarter() {
        assert_eq!(memory(100, usize::MAX).report().pack_limit, 75);
    }

    /// A budget of so many bytes.
    struct Budget(AtomicUsize);

    impl KernelBudget for Budget {
        fn take(&self, bytes: usize) -> bool {
            let left = |left: usize| left.checked_sub(bytes);
            self.0.fetch_update(Relaxed, Relaxed, left).is_ok()
        }

        fn give(&self, bytes: usize) {
            self.0.fetch_add(bytes, Relaxed);
        }
    }

    #[test]
    fn what_is_counted_comes_out_of_every_budget_while_it_lives() {
        let host = memory(100, 100);
        let pack = host.of_pack();
        let first = Charge::new(&pack, 10).unwrap();
        let budgets = [50, 30].map(|bytes| Arc::new(Budget(AtomicUsize::new(bytes))));
        let join = |budget: &Arc<Budget>, limit| {
            let budget: Arc<dyn KernelBudget> = budget.clone();
            host.join(&budget, limit)
        };
        assert!(join(&budgets[0], 80) && join(&budgets[1], 90));
        assert!(!join(&Arc::new(Budget(AtomicUsize::new(9))), 1));
        assert_eq!(host.report(), KernelMemory { used: 10, limit: 80, pack_limit: 60 });
        let left = || budgets.each_ref().map(|budget| budget.0.load(Relaxed));
        assert_eq!(left(), [40, 20]);
        assert_eq!(code(Charge::new(&pack, 21)), "kernel_memory_full");
        assert_eq!(left(), [40, 20], "a refusal takes nothing");
        let second = Charge::new(&pack, 20).unwrap();
        assert_eq!(left(), [20, 0]);
        drop((first, second));
        assert_eq!(left(), [50, 30]);
        drop(budgets);
        assert_eq!(host.report().limit, 100, "a limit goes with its budget");
        assert!(Charge::new(&pack, 75).is_ok());
    }

    #[test]
    fn no_size_is_too_large_to_be_refused() {
        let pack = memory(usize::MAX, usize::MAX).of_pack();
        let _charge = Charge::new(&pack, 1).unwrap();
        assert_eq!(code(Charge::new(&pack, usize::MAX)), "pack_memory_full");
        assert_eq!(code(Charge::new(&memory(8, 8).of_pack(), usize::MAX)), "kernel_memory_full");
    }
}
