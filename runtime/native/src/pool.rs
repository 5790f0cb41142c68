//! A fixed set of threads that run one function together: `f(0)`, `f(1)`, … at the same time, back
//! to the caller when all are done.
//!
//! A decoded token is some hundred such regions of 10 us to 1 ms, so entering and leaving one must
//! cost well under a microsecond: waiting threads spin. They do so for [`SPIN`] only and then park,
//! so an idle pool uses no processor time. First they fetch what the next product reads into their caches, where
//! that is known: while one thread computes what lies between two products, memory would have nothing to do.
//!
//! Invariants:
//! - The caller is thread 0 and takes part; a pool of one thread has no workers and no locks.
//! - One region at a time: callers on other threads queue.
//! - A region started from inside a region of any pool runs inline, all its indices one after
//!   another on the thread that asked: never a deadlock, never more threads than asked for.
//! - A panic in `f` reaches the caller of the region after every thread has left it.
//! - Dropping the pool joins its threads.
//!
//! Not a scheduler: indices are not balanced, and `f` must not wait for another index of its own
//! region, since inline regions run them in turn.
#![allow(unsafe_code)]

use std::any::Any;
use std::cell::{Cell, UnsafeCell};
use std::ops::Range;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU32, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::{self, JoinHandle, Thread};
use std::time::{Duration, Instant};

use crate::prefetch::{Addresses, CACHE_LINE, ReadPattern, prefetch};

/// How long a thread spins for work, or the caller for its workers, before it parks.
pub const SPIN: Duration = Duration::from_micros(80);

/// Bytes that a waiting thread fetches at most: more than comes from memory in most waits, and what no longer fits the
/// second-level cache is in the third.
const FETCHED: usize = 1024 * 1024;

/// Bytes that it fetches before it looks again whether it still waits.
const FETCHED_AT_ONCE: usize = 8 * CACHE_LINE;

/// The most threads that a pool has; more are not started.
pub const MAX_THREADS: usize = 256;

/// How many threads to use where nobody says: one for each physical core that this process may use.
/// Affinity and the quota of a control group count; the second thread of a core does not, since both
/// would wait for the same arithmetic units and the same memory.
pub fn default_threads() -> usize {
    let usable = thread::available_parallelism().map_or(1, usize::from);
    // Where the system does not tell, or counts none, every thread counts as a core.
    let cores = sysinfo::System::physical_core_count().ok().filter(|&cores| cores > 0);
    usable.min(cores.unwrap_or(usable)).clamp(1, MAX_THREADS)
}

thread_local! {
    /// Whether this thread is inside a region, of whichever pool.
    static IN_REGION: Cell<bool> = const { Cell::new(false) };
}

type Job = *const (dyn Fn(usize) + Sync);

/// Keeps values that different threads write to on cache lines (and prefetch pairs) of their own.
#[derive(Default)]
#[repr(align(128))]
pub(crate) struct Padded<T>(pub(crate) T);

/// What threads share, by who writes it when: a line that moves between processors takes a tenth of a microsecond,
/// and several would be a good part of a region.
struct PoolState {
    start: Padded<Start>,
    /// How often workers have left a region, modulo 2^32.
    left: Padded<AtomicU32>,
    rest: Padded<Rest>,
    /// What the next product reads.
    expected: Padded<Addresses>,
    /// One flag per worker: it has parked, or is about to, and wants to be unparked.
    parked: Box<[Padded<AtomicBool>]>,
}

/// What the caller writes to start a region.
struct Start {
    /// Number of regions started, modulo 2^32; a change is the signal to read `job`.
    generation: AtomicU32,
    /// What `left` is once every worker has left the region.
    end: AtomicU32,
    /// The region's function. Written by the caller while `left` is `end`, read by workers only
    /// between a change of `generation` and their increment of `left`.
    job: UnsafeCell<Option<Job>>,
}

/// What is seldom written.
struct Rest {
    stop: AtomicBool,
    /// Whether the caller has parked, or is about to, and wants `waiter` unparked.
    caller_waits: AtomicBool,
    waiter: Mutex<Option<Thread>>,
    /// Whether `panic` holds one.
    panicked: AtomicBool,
    /// The first panic of a worker in the current region.
    panic: Mutex<Option<Box<dyn Any + Send>>>,
    spin: Duration,
}

// SAFETY: every field but `start.job` is Send + Sync by itself. `job` is written by one caller at a time
// (it holds `ThreadPool::region`) while no worker reads it, and is read after an acquire load of
// `generation` that saw the caller's store; the function behind it is `Sync`.
unsafe impl Send for PoolState {}
// SAFETY: as above.
unsafe impl Sync for PoolState {}

/// A fixed set of threads running regions; see the [module](self).
pub struct ThreadPool {
    shared: Arc<PoolState>,
    /// Held for the length of a region.
    region: Mutex<()>,
    workers: Vec<JoinHandle<()>>,
    /// How its threads read packed weights, as an index of [`ReadPattern::ALL`].
    read_pattern: AtomicU8,
}

impl ThreadPool {
    /// A pool of `threads` threads, the caller of each region included, so `threads - 1` are
    /// started here. 0 means 1. If the system refuses a thread the pool is smaller:
    /// [`threads`](Self::threads) says how large.
    pub fn new(threads: usize) -> ThreadPool {
        let wanted = threads.clamp(1, MAX_THREADS);
        let cores = thread::available_parallelism().map_or(1, usize::from);
        let shared = Arc::new(PoolState {
            start: Padded(Start {
                generation: AtomicU32::new(0),
                end: AtomicU32::new(0),
                job: UnsafeCell::new(None),
            }),
            left: Padded(AtomicU32::new(0)),
            expected: Padded(Addresses::default()),
            rest: Padded(Rest {
                stop: AtomicBool::new(false),
                caller_waits: AtomicBool::new(false),
                waiter: Mutex::new(None),
                panicked: AtomicBool::new(false),
                panic: Mutex::new(None),
                // With more threads than cores, one that spins takes the core another needs.
                spin: if wanted > cores { Duration::ZERO } else { SPIN },
            }),
            parked: (1..wanted).map(|_| Padded(AtomicBool::new(false))).collect(),
        });
        let mut workers = Vec::with_capacity(wanted - 1);
        for tid in 1..wanted {
            let shared = Arc::clone(&shared);
            let started = thread::Builder::new()
                .name(format!("ruvllm-{tid}"))
                .spawn(move || worker(&shared, tid));
            match started {
                Ok(handle) => workers.push(handle),
                Err(_) => break,
            }
        }
        let pool = ThreadPool {
            shared,
            region: Mutex::new(()),
            workers,
            read_pattern: AtomicU8::default(),
        };
        pool.set_read_pattern(ReadPattern::default());
        pool
    }

    /// How products with few rows of activations read packed weights on these threads.
    pub fn read_pattern(&self) -> ReadPattern {
        let at = self.read_pattern.load(Ordering::Relaxed);
        ReadPattern::ALL.get(usize::from(at)).map_or_else(ReadPattern::default, |(_, of)| *of)
    }

    /// Sets how products with few rows of activations read packed weights on these threads, from the next one on. It
    /// changes no result.
    pub fn set_read_pattern(&self, pattern: ReadPattern) {
        let at = ReadPattern::ALL.iter().position(|(_, of)| *of == pattern).unwrap_or(0);
        self.read_pattern.store(at as u8, Ordering::Relaxed);
    }

    /// Threads that take part in a region; at least 1.
    pub fn threads(&self) -> usize {
        self.workers.len() + 1
    }

    /// Lets threads that wait fetch their share of the memory at these addresses, from now on: what a later region
    /// reads, as contiguous shares in the order of threads.
    pub(crate) fn expect(&self, addresses: impl IntoIterator<Item = Range<usize>>) {
        self.shared.expected.0.set(addresses);
    }

    /// Calls `f(tid)` for every `tid` in `0..threads()`, each on its own thread, and returns when
    /// all have returned.
    ///
    /// # Panics
    /// Where `f` panicked, with the payload of thread 0 if it did, else of another.
    pub fn run(&self, f: &(dyn Fn(usize) + Sync)) {
        if self.workers.is_empty() || IN_REGION.get() {
            (0..self.threads()).for_each(f);
            return;
        }
        let _region = lock(&self.region);
        let PoolState { start, rest, parked, .. } = &*self.shared;
        let Start { generation, end, job: next } = &start.0;
        // SAFETY: only the lifetime changes. Workers use the pointer between the store to
        // `generation` and their increment of `left`, and this function neither returns nor
        // unwinds before all have left, so `f` outlives every use.
        let job: Job = unsafe {
            std::mem::transmute::<*const (dyn Fn(usize) + Sync + '_), Job>(std::ptr::from_ref(f))
        };
        // SAFETY: `region` is held and all workers have left, so no other thread touches `job`.
        unsafe { *next.get() = Some(job) };
        let workers = self.workers.len() as u32;
        let all = end.load(Ordering::Relaxed).wrapping_add(workers);
        end.store(all, Ordering::Relaxed);
        // SeqCst pairs with the worker's: it sets `parked` and then loads `generation`, we store
        // `generation` and then load `parked`, so one of the two sees the other.
        generation.fetch_add(1, Ordering::SeqCst);
        for (parked, worker) in parked.iter().zip(&self.workers) {
            if parked.0.load(Ordering::SeqCst) {
                worker.thread().unpark();
            }
        }
        IN_REGION.set(true);
        let own = catch_unwind(AssertUnwindSafe(|| f(0)));
        IN_REGION.set(false);
        self.shared.wait_for_workers(all);
        let panicked = rest.0.panicked.load(Ordering::Relaxed);
        let theirs = panicked.then(|| rest.0.take_panic()).flatten();
        if let Some(payload) = own.err().or(theirs) {
            drop(_region);
            resume_unwind(payload);
        }
    }

    /// [`run`](Self::run) with a state of its own for every thread: `f(tid, &mut states[tid])`.
    ///
    /// # Panics
    /// Where there are fewer states than threads, or `f` panicked.
    pub fn run_with<S: Send>(&self, states: &mut [S], f: &(dyn Fn(usize, &mut S) + Sync)) {
        assert!(states.len() >= self.threads(), "run_with needs one state per thread");
        let base = SendPtr(states.as_mut_ptr());
        self.run(&|tid| {
            // SAFETY: `tid < threads() <= states.len()`, and `run` passes every `tid` once, so
            // this is the only reference to that element while the exclusive borrow lasts.
            f(tid, unsafe { &mut *base.get().add(tid) });
        });
    }

    /// Calls `f(i, chunk)` for the consecutive pieces of `chunk` elements of `data`, the last of
    /// which may be shorter. Each thread takes one contiguous range of them. A `chunk` of 0 means 1.
    ///
    /// # Panics
    /// Where `f` panicked.
    pub fn for_chunks<T: Send>(
        &self,
        data: &mut [T],
        chunk: usize,
        f: &(dyn Fn(usize, &mut [T]) + Sync),
    ) {
        let chunk = chunk.max(1);
        let (len, threads) = (data.len(), self.threads());
        let chunks = len.div_ceil(chunk);
        if threads == 1 || chunks <= 1 {
            data.chunks_mut(chunk).enumerate().for_each(|(i, part)| f(i, part));
            return;
        }
        let base = SendPtr(data.as_mut_ptr());
        self.run(&|tid| {
            for i in split(chunks, threads, tid) {
                let start = i * chunk;
                let size = chunk.min(len - start);
                // SAFETY: `start + size <= len`, and the ranges of `split` are disjoint over
                // `tid`, so no element is in two of these slices while `data` stays borrowed.
                f(i, unsafe { std::slice::from_raw_parts_mut(base.get().add(start), size) });
            }
        });
    }
}

/// The contiguous share of `0..items` that belongs to thread `tid` of `threads`; the shares
/// partition it and differ by at most one item.
pub fn split(items: usize, threads: usize, tid: usize) -> std::ops::Range<usize> {
    let threads = threads.max(1);
    let (each, rest) = (items / threads, items % threads);
    let start = tid * each + tid.min(rest);
    start..(start + each + usize::from(tid < rest)).min(items)
}

/// Cuts a range of the items of lists, laid end to end, where lists meet: the index of each list, and which of its own items.
pub(crate) fn pieces(
    lens: impl IntoIterator<Item = usize>,
    range: Range<usize>,
) -> impl Iterator<Item = (usize, Range<usize>)> {
    let mut first = 0usize;
    lens.into_iter().enumerate().filter_map(move |(list, len)| {
        let before = first;
        first = before.saturating_add(len);
        let (start, end) = (range.start.max(before), range.end.min(first));
        (start < end).then(|| (list, start - before..end - before))
    })
}

impl Drop for ThreadPool {
    fn drop(&mut self) {
        self.shared.rest.0.stop.store(true, Ordering::SeqCst);
        self.shared.start.0.generation.fetch_add(1, Ordering::SeqCst);
        for worker in self.workers.drain(..) {
            worker.thread().unpark();
            // A worker catches the panics of regions, so this one can only be its own bug, and
            // panicking in a destructor would hide it.
            let _ = worker.join();
        }
    }
}

impl std::fmt::Debug for ThreadPool {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ThreadPool").field("threads", &self.threads()).finish_non_exhaustive()
    }
}

impl PoolState {
    /// Returns when `left` is `end`, having acquired all that the workers wrote.
    fn wait_for_workers(&self, end: u32) {
        let Rest { caller_waits, waiter, .. } = &self.rest.0;
        if self.spin_until(0, || self.left.0.load(Ordering::Acquire) == end) {
            return;
        }
        *lock(waiter) = Some(thread::current());
        // SeqCst pairs with the last worker's increment and load, as in `run`. A swap, since emulated
        // processors may let a load overtake a plain store, whatever its ordering.
        caller_waits.swap(true, Ordering::SeqCst);
        while self.left.0.load(Ordering::SeqCst) != end {
            thread::park();
        }
        caller_waits.store(false, Ordering::Relaxed);
    }

    /// Returns the generation that follows `seen`.
    fn wait_for_region(&self, seen: u32, tid: usize) -> u32 {
        let parked = &self.parked[tid - 1].0;
        let generation = &self.start.0.generation;
        let next = || generation.load(Ordering::Acquire);
        if !self.spin_until(tid, || next() != seen) {
            // A swap for the reason that `wait_for_workers` has.
            parked.swap(true, Ordering::SeqCst);
            while generation.load(Ordering::SeqCst) == seen {
                thread::park();
            }
            parked.store(false, Ordering::Relaxed);
        }
        next()
    }

    /// Spins until `ready`, for a while at most; says whether it became so.
    fn spin_until(&self, tid: usize, ready: impl Fn() -> bool) -> bool {
        let limit = self.rest.0.spin;
        if !limit.is_zero() && self.fetch_until(tid, &ready) {
            return true;
        }
        let mut started = None;
        loop {
            for _ in 0..64 {
                if ready() {
                    return true;
                }
                std::hint::spin_loop();
            }
            // Reading the clock costs more than a check, so it is read only once it may matter.
            if started.get_or_insert_with(Instant::now).elapsed() >= limit {
                return ready();
            }
        }
    }

    /// Fetches this thread's share of what is expected until `ready`; says whether it became so.
    fn fetch_until(&self, tid: usize, ready: impl Fn() -> bool) -> bool {
        let places = self.expected.0.get();
        let lens = places.each_ref().map(Range::len);
        let all = lens.into_iter().fold(0, usize::saturating_add);
        let share = split(all, self.parked.len() + 1, tid);
        let share = share.start..share.end.min(share.start.saturating_add(FETCHED));
        for (place, part) in pieces(lens, share) {
            let start = places[place].start;
            for at in part.step_by(FETCHED_AT_ONCE) {
                if ready() {
                    return true;
                }
                for line in (0..FETCHED_AT_ONCE).step_by(CACHE_LINE) {
                    prefetch(std::ptr::without_provenance::<u8>(start.wrapping_add(at + line)));
                }
            }
        }
        false
    }
}

impl Rest {
    #[cold]
    fn take_panic(&self) -> Option<Box<dyn Any + Send>> {
        self.panicked.store(false, Ordering::Relaxed);
        lock(&self.panic).take()
    }

    #[cold]
    fn panicked(&self, payload: Box<dyn Any + Send>) {
        lock(&self.panic).get_or_insert(payload);
        self.panicked.store(true, Ordering::Relaxed);
    }
}

fn worker(shared: &PoolState, tid: usize) {
    let PoolState { start, left, rest, .. } = shared;
    IN_REGION.set(true);
    let mut seen = 0;
    loop {
        seen = shared.wait_for_region(seen, tid);
        if rest.0.stop.load(Ordering::SeqCst) {
            return;
        }
        // SAFETY: `generation` changed and `stop` is unset, so a caller wrote `job` before it and
        // waits for our increment of `left` below before it writes or drops anything.
        let job = unsafe { (*start.0.job.get()).map(|job| &*job) };
        // Of this region: the next begins when we have left.
        let end = start.0.end.load(Ordering::Relaxed);
        if let Some(job) = job
            && let Err(payload) = catch_unwind(AssertUnwindSafe(|| job(tid)))
        {
            rest.0.panicked(payload);
        }
        if left.0.fetch_add(1, Ordering::SeqCst).wrapping_add(1) == end
            && rest.0.caller_waits.load(Ordering::SeqCst)
            // Not taken out: a worker late here may already see the next region's waiter, and the
            // region's last worker must still find it. An unpark too many is harmless.
            && let Some(caller) = lock(&rest.0.waiter).as_ref()
        {
            caller.unpark();
        }
    }
}

/// Locks, ignoring poison: the data behind these locks is valid after any panic.
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A pointer to elements that threads access disjointly.
struct SendPtr<T>(*mut T);

impl<T> SendPtr<T> {
    fn get(&self) -> *mut T {
        self.0
    }
}

// SAFETY: each use above gives every thread other elements, which are `Send`.
unsafe impl<T: Send> Sync for SendPtr<T> {}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::AtomicUsize;

    #[test]
    fn every_thread_runs_once_per_region() {
        for threads in [1, 2, 3, 7] {
            let pool = ThreadPool::new(threads);
            let counts: Vec<AtomicUsize> = (0..threads).map(|_| AtomicUsize::new(0)).collect();
            for _ in 0..500 {
                pool.run(&|tid| {
                    counts[tid].fetch_add(1, Ordering::Relaxed);
                });
            }
            assert!(counts.iter().all(|count| count.load(Ordering::Relaxed) == 500));
        }
    }

    #[test]
    fn memory_that_is_gone_can_be_expected() {
        let pool = ThreadPool::new(3);
        let count = AtomicUsize::new(0);
        let all = [(0, usize::MAX), (7, usize::MAX), (1, 1 << 40), (9, 5), (3, 1 << 41)];
        for places in [&all[..1], &all[..2], &all[2..], &all] {
            let places = places.iter().map(|(start, end)| *start..*end);
            pool.expect(places);
            for _ in 0..50 {
                pool.run(&|_| {
                    count.fetch_add(1, Ordering::Relaxed);
                });
            }
        }
        assert_eq!(count.into_inner(), 600);
    }

    #[test]
    fn pieces_of_lists_are_those_that_a_range_of_all_covers() {
        let of = |range| pieces([3, 0, 2, 4], range).collect::<Vec<_>>();
        assert_eq!(of(0..9), [(0, 0..3), (2, 0..2), (3, 0..4)]);
        assert_eq!(of(2..4), [(0, 2..3), (2, 0..1)]);
        assert_eq!(of(5..6), [(3, 0..1)]);
        assert_eq!(of(4..4), []);
        assert_eq!(of(8..20), [(3, 3..4)]);
    }

    #[test]
    fn parked_workers_wake_for_the_next_region() {
        let pool = ThreadPool::new(2);
        let count = AtomicUsize::new(0);
        for _ in 0..5 {
            thread::sleep(SPIN * 20);
            pool.run(&|_| {
                count.fetch_add(1, Ordering::Relaxed);
            });
        }
        assert_eq!(count.into_inner(), 10);
    }

    #[test]
    fn a_caller_that_waits_long_is_woken() {
        let pool = ThreadPool::new(2);
        for _ in 0..5 {
            pool.run(&|tid| {
                if tid == 1 {
                    thread::sleep(SPIN * 20);
                }
            });
        }
    }

    #[test]
    fn chunks_partition_the_data_for_any_size() {
        for threads in [1, 2, 3] {
            let pool = ThreadPool::new(threads);
            for len in [0, 1, 2, 7, 64, 65] {
                for chunk in [0, 1, 3, 64, 100] {
                    let mut data = vec![usize::MAX; len];
                    pool.for_chunks(&mut data, chunk, &|i, part| {
                        for (j, value) in part.iter_mut().enumerate() {
                            assert_eq!(*value, usize::MAX);
                            *value = i * chunk.max(1) + j;
                        }
                    });
                    assert!(data.iter().enumerate().all(|(i, &value)| i == value));
                }
            }
        }
    }

    #[test]
    fn each_thread_gets_its_own_state() {
        let pool = ThreadPool::new(3);
        let mut states = vec![0; 3];
        pool.run_with(&mut states, &|tid, state| *state = tid + 1);
        assert_eq!(states, [1, 2, 3]);
    }

    #[test]
    fn a_panic_reaches_the_caller_and_the_pool_goes_on() {
        let pool = ThreadPool::new(2);
        for bad in [0, 1] {
            let caught = catch_unwind(AssertUnwindSafe(|| {
                pool.run(&|tid| {
                    if tid == bad {
                        resume_unwind(Box::new("deliberate"));
                    }
                });
            }));
            assert_eq!(caught.unwrap_err().downcast_ref(), Some(&"deliberate"));
        }
        let count = AtomicUsize::new(0);
        pool.run(&|_| {
            count.fetch_add(1, Ordering::Relaxed);
        });
        assert_eq!(count.into_inner(), 2);
    }

    #[test]
    fn a_region_inside_a_region_runs_inline() {
        let pool = ThreadPool::new(2);
        let count = AtomicUsize::new(0);
        pool.run(&|_| {
            let thread = thread::current().id();
            pool.run(&|_| {
                assert_eq!(thread::current().id(), thread);
                count.fetch_add(1, Ordering::Relaxed);
            });
        });
        assert_eq!(count.into_inner(), 4);
    }

    #[test]
    fn callers_on_several_threads_take_turns() {
        let pool = ThreadPool::new(2);
        let count = AtomicUsize::new(0);
        thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    for _ in 0..50 {
                        pool.run(&|_| {
                            count.fetch_add(1, Ordering::Relaxed);
                        });
                    }
                });
            }
        });
        assert_eq!(count.into_inner(), 400);
    }

    #[test]
    fn shares_partition_and_are_even() {
        for items in 0..20 {
            for threads in 1..5 {
                let shares: Vec<_> = (0..threads).map(|tid| split(items, threads, tid)).collect();
                assert_eq!(
                    shares.iter().cloned().flatten().collect::<Vec<_>>(),
                    (0..items).collect::<Vec<_>>()
                );
                let sizes = shares.iter().map(ExactSizeIterator::len);
                assert!(sizes.clone().max().unwrap() - sizes.min().unwrap() <= 1);
            }
        }
    }
}
