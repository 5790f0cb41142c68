//! The memory pool: one budget for everything that grows while an engine runs.
//!
//! KV blocks live in the pool's own pages (`pages`); adapter weights, router weights, working memory and
//! instances of kernels live where their owners put them and hold a [`Reservation`], so that they count.
//! The budget is a hard bound on both together: what would exceed it is refused. Making room,
//! by quantising, spilling or evicting blocks, is the business of who knows the blocks
//! ([`crate::kv`]).
//!
//! Invariant: pages that serve blocks, times their size, plus all reservations, is at most the
//! budget, at every instant. Memory that was used once stays with the process; the bound is on
//! what is in use.

pub(crate) mod pages;

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use bytes::BytesMut;
use ruvllm_host::KernelBudget;
use serde::Serialize;

use crate::error::EngineError;
pub use pages::PAGE;
use pages::Pages;

/// What memory is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Use {
    /// Blocks of keys and values.
    Kv,
    /// Weights of adapters.
    Adapter,
    /// Weights of routers.
    Router,
    /// Working memory.
    Scratch,
    /// Instances of kernels.
    Kernels,
}

impl Use {
    /// Its name in reports and metrics.
    pub const fn name(self) -> &'static str {
        match self {
            Use::Kv => "kv",
            Use::Adapter => "adapter",
            Use::Router => "router",
            Use::Scratch => "scratch",
            Use::Kernels => "kernels",
        }
    }
}

/// A reservation as reports show it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Holder {
    /// What the memory is for.
    pub kind: Use,
    /// Who holds it.
    pub owner: String,
    /// How much it matters; higher goes later.
    pub priority: u8,
    /// Bytes.
    pub bytes: usize,
    /// When it was used last, in uses of the pool.
    pub last_use: u64,
}

/// What a pool holds.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct PoolUsage {
    /// The bound.
    pub budget: usize,
    /// Bytes in use: pages that serve blocks, and reservations. Never above the budget.
    pub used: usize,
    /// Bytes of the pages that serve KV blocks.
    pub kv_pages: usize,
    /// Bytes of these pages in which no block lies.
    pub kv_lost: usize,
    /// Reservations, ordered by use and owner.
    pub holders: Vec<Holder>,
}

impl PoolUsage {
    /// Bytes of all reservations.
    pub(crate) fn reserved(&self) -> usize {
        self.holders.iter().map(|holder| holder.bytes).sum()
    }

    /// Who holds what, for messages.
    pub(crate) fn describe_holders(&self) -> Vec<String> {
        let describe = |holder: &Holder| {
            format!("{} bytes of {} memory by {}", holder.bytes, holder.kind.name(), holder.owner)
        };
        self.holders.iter().map(describe).collect()
    }
}

/// One budget of memory; see the [module](self).
pub struct MemoryPool {
    budget: usize,
    state: Mutex<Allocations>,
}

struct Allocations {
    pages: Pages,
    reserved: usize,
    holders: BTreeMap<u64, Holder>,
    /// Counts reservations and their uses.
    clock: u64,
    /// Emptied containers of leases.
    spares: Vec<Vec<BytesMut>>,
}

/// The pool refuses because the budget would be exceeded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Exhausted;

impl MemoryPool {
    /// A pool of `budget` bytes. Address space of that size is reserved; memory is taken as it is
    /// first written.
    ///
    /// # Errors
    /// [`EngineError::InvalidOption`] where the budget is less than a page, or more than the system
    /// gives address space for.
    pub fn new(budget: usize) -> Result<Arc<MemoryPool>, EngineError> {
        if !(PAGE..=1 << 46).contains(&budget) {
            return Err(EngineError::InvalidOption {
                option: "memory",
                value: format!("{budget} bytes"),
                reason: "it must be at least one page of 2 MiB, and fit the address space",
            });
        }
        // Asked for in a way that may be refused; what follows may not.
        if Vec::<u8>::new().try_reserve_exact(budget + PAGE).is_err() {
            return Err(EngineError::InvalidOption {
                option: "memory",
                value: format!("{budget} bytes"),
                reason: "the system gives no address space of that size; choose less with --memory",
            });
        }
        let state = Allocations {
            pages: Pages::new(budget / PAGE),
            reserved: 0,
            holders: BTreeMap::new(),
            clock: 0,
            spares: Vec::new(),
        };
        Ok(Arc::new(MemoryPool { budget, state: Mutex::new(state) }))
    }

    /// The bound in bytes.
    pub fn budget(&self) -> usize {
        self.budget
    }

    /// Bytes in use; never above the budget.
    pub fn used(&self) -> usize {
        self.lock().used()
    }

    /// Bytes that are not in use.
    pub fn free(&self) -> usize {
        self.budget - self.used()
    }

    /// What is held, and by whom.
    pub fn usage(&self) -> PoolUsage {
        let state = self.lock();
        let mut holders: Vec<_> = state.holders.values().cloned().collect();
        holders.sort_by(|a, b| (a.kind, &a.owner).cmp(&(b.kind, &b.owner)));
        PoolUsage {
            budget: self.budget,
            used: state.used(),
            kv_pages: state.pages.serving() * PAGE,
            kv_lost: state.pages.lost(),
            holders,
        }
    }

    /// Counts `bytes` that `owner` keeps outside the pool's pages.
    pub(crate) fn reserve(
        self: &Arc<Self>,
        kind: Use,
        owner: &str,
        priority: u8,
        bytes: usize,
    ) -> Result<Reservation, Exhausted> {
        let mut state = self.lock();
        if bytes > self.budget - state.used() {
            return Err(Exhausted);
        }
        state.reserved += bytes;
        state.clock += 1;
        let id = state.clock;
        let owner = owner.to_owned();
        state.holders.insert(id, Holder { kind, owner, priority, bytes, last_use: id });
        Ok(Reservation { pool: Arc::clone(self), id })
    }

    /// Takes `count` slots of `size` bytes each, all or none.
    pub(crate) fn lease(self: &Arc<Self>, size: usize, count: usize) -> Result<Lease, Exhausted> {
        let mut state = self.lock();
        let pages = state.pages.pages_for(size, count);
        if pages * PAGE > self.budget - state.used() {
            return Err(Exhausted);
        }
        let mut slots = state.spares.pop().unwrap_or_default();
        slots.reserve(count);
        if !state.pages.take(size, count, &mut slots) {
            state.pages.give(&mut slots);
            state.spares.push(slots);
            return Err(Exhausted);
        }
        Ok(Lease { pool: Arc::clone(self), slots })
    }

    /// Makes ready what `leases` leases of `count` slots of `size` bytes will need of the heap, so that
    /// taking them does not.
    pub(crate) fn stock(&self, size: usize, count: usize, leases: usize) {
        let mut state = self.lock();
        state.pages.stock(size, count * leases);
        while state.spares.len() < leases {
            state.spares.push(Vec::with_capacity(count));
        }
    }

    /// Bytes of the pages that serve blocks in which no block lies.
    pub(crate) fn lost(&self) -> usize {
        self.lock().pages.lost()
    }

    /// Marks, by index, pages that would be whole if what lies in them moved to others; gives whether
    /// there are any.
    pub(crate) fn mark_sparse(&self, marked: &mut Vec<bool>) -> bool {
        self.lock().pages.mark_sparse(marked)
    }

    fn lock(&self) -> MutexGuard<'_, Allocations> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Allocations {
    fn used(&self) -> usize {
        self.pages.serving() * PAGE + self.reserved
    }
}

/// Memory that its owner keeps elsewhere and that counts until this is dropped.
pub struct Reservation {
    pool: Arc<MemoryPool>,
    id: u64,
}

impl Reservation {
    /// Bytes that are counted.
    pub fn bytes(&self) -> usize {
        self.pool.lock().holders.get(&self.id).map_or(0, |holder| holder.bytes)
    }

    /// Notes that the memory was used.
    pub fn touch(&self) {
        let mut state = self.pool.lock();
        state.clock += 1;
        let now = state.clock;
        if let Some(holder) = state.holders.get_mut(&self.id) {
            holder.last_use = now;
        }
    }

    /// Counts another number of bytes from now on.
    pub(crate) fn resize(&mut self, bytes: usize) -> Result<(), Exhausted> {
        let mut state = self.pool.lock();
        let free = self.pool.budget - state.used();
        let Some(holder) = state.holders.get_mut(&self.id) else { return Err(Exhausted) };
        let before = holder.bytes;
        if bytes > before && bytes - before > free {
            return Err(Exhausted);
        }
        holder.bytes = bytes;
        state.reserved = state.reserved - before + bytes;
        Ok(())
    }
}

impl Drop for Reservation {
    fn drop(&mut self) {
        let mut state = self.pool.lock();
        if let Some(holder) = state.holders.remove(&self.id) {
            state.reserved -= holder.bytes;
        }
    }
}

/// What the kernels of a host take of a pool.
pub(crate) struct KernelReservation(Mutex<Reservation>);

impl KernelReservation {
    pub(crate) fn new(pool: &Arc<MemoryPool>) -> Result<Self, Exhausted> {
        Ok(Self(Mutex::new(pool.reserve(Use::Kernels, "kernels", u8::MAX, 0)?)))
    }

    /// Counts what `change` makes of the number of bytes.
    fn resize(&self, change: impl Fn(usize) -> Option<usize>) -> bool {
        let mut reservation = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        change(reservation.bytes()).is_some_and(|bytes| reservation.resize(bytes).is_ok())
    }
}

impl KernelBudget for KernelReservation {
    fn take(&self, bytes: usize) -> bool {
        self.resize(|before| before.checked_add(bytes))
    }

    fn give(&self, bytes: usize) {
        self.resize(|before| before.checked_sub(bytes));
    }
}

/// Bytes of a budget that instances of kernels may take: an eighth, and where that is less than 8 MiB,
/// which serve a small model on a few threads, so much. The bytes are free for others until they are taken.
pub fn kernel_share(budget: usize) -> usize {
    (budget / 8).max(8 << 20)
}

/// Slots of one size, given back when this is dropped.
pub(crate) struct Lease {
    pool: Arc<MemoryPool>,
    slots: Vec<BytesMut>,
}

impl Lease {
    /// The slots.
    pub(crate) fn slots(&self) -> &[BytesMut] {
        &self.slots
    }

    /// The slots, to write to.
    pub(crate) fn slots_mut(&mut self) -> &mut [BytesMut] {
        &mut self.slots
    }

    /// Whether a slot lies in one of the marked pages.
    pub(crate) fn lies_in(&self, marked: &[bool]) -> bool {
        let state = self.pool.lock();
        self.slots.iter().any(|slot| marked.get(state.pages.page_of(slot)).is_some_and(|&m| m))
    }
}

impl Drop for Lease {
    fn drop(&mut self) {
        let mut slots = std::mem::take(&mut self.slots);
        let mut state = self.pool.lock();
        state.pages.give(&mut slots);
        state.spares.push(slots);
    }
}

/// The first `len` elements, grown when needed.
pub(crate) fn room(buffer: &mut Vec<f32>, len: usize) -> &mut [f32] {
    if buffer.len() < len {
        buffer.resize(len, 0.0);
    }
    &mut buffer[..len]
}

/// Reads a number of bytes with an optional unit: K, M, G or T, powers of 1024.
///
/// # Errors
/// What is wrong with the text, for whoever wrote it.
pub fn parse_size(text: &str) -> Result<usize, String> {
    let malformed = || format!("`{text}` is no size; write a number and K, M, G or T, as in 512M");
    let text = text.trim_end_matches(['B', 'b']).trim_end_matches('i');
    let unit = text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
    let (number, unit) = text.split_at(unit);
    let shift = match unit.to_ascii_uppercase().as_str() {
        "" => 0,
        "K" => 10,
        "M" => 20,
        "G" => 30,
        "T" => 40,
        _ => return Err(malformed()),
    };
    let number: usize = number.parse().map_err(|_| malformed())?;
    number.checked_mul(1 << shift).ok_or_else(malformed)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blocks_and_reservations_share_one_budget() {
        let pool = MemoryPool::new(4 * PAGE).unwrap();
        let weights = pool.reserve(Use::Adapter, "pirate", 1, 2 * PAGE).unwrap();
        let blocks = pool.lease(64 * 1024, 64).unwrap();
        assert_eq!(pool.used(), 4 * PAGE);
        assert!(pool.lease(64 * 1024, 1).is_err());
        assert!(pool.reserve(Use::Scratch, "step", 0, 1).is_err());
        let usage = pool.usage();
        assert_eq!((usage.kv_pages, usage.kv_lost), (2 * PAGE, 0));
        assert_eq!(usage.holders[0].owner, "pirate");
        drop((weights, blocks));
        assert_eq!(pool.used(), 0);
    }

    #[test]
    fn a_refused_resize_changes_nothing() {
        let pool = MemoryPool::new(PAGE).unwrap();
        let mut scratch = pool.reserve(Use::Scratch, "step", 0, 100).unwrap();
        assert!(scratch.resize(PAGE + 1).is_err());
        assert_eq!((scratch.bytes(), pool.used()), (100, 100));
        scratch.resize(PAGE).unwrap();
        assert!(pool.lease(64, 1).is_err());
        scratch.resize(0).unwrap();
        assert!(pool.lease(64, 1).is_ok());
    }

    #[test]
    fn a_budget_below_a_page_or_above_what_there_is_is_refused() {
        for budget in [PAGE - 1, (1 << 46) + 1, usize::MAX] {
            let error = MemoryPool::new(budget).err().unwrap();
            assert_eq!(error.code(), "invalid_option", "{budget}");
        }
    }

    #[test]
    fn sizes_are_numbers_with_units() {
        for (text, bytes) in
            [("1000", 1000), ("512M", 512 << 20), ("2g", 2 << 30), ("3KiB", 3 << 10)]
        {
            assert_eq!(parse_size(text), Ok(bytes), "{text}");
        }
        for text in ["", "M", "2X", "-1", "1.5G", "99999999999T"] {
            assert!(parse_size(text).unwrap_err().contains("512M"), "{text}");
        }
    }
}
