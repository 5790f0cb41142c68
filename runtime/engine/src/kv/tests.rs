//! The store under load: many threads, one budget.

use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use rand::rngs::StdRng;
use rand::{RngExt as _, SeedableRng as _};
use ruvllm_host::{Host, HostConfig};
use ruvllm_native::ThreadPool;

use super::prefix::scope;
use super::*;
use crate::kernels::Kernels;
use crate::memory::{MemoryPool, PAGE, Reservation, Use};

const SHAPE: BlockShape = BlockShape { layers: 2, kv_dim: 64, tokens: 32 };
/// Large enough that a page of each size of slots, the last of which is never full, is little of it.
const BUDGET: usize = 96 * PAGE;
const THREADS: u64 = 64;
const TIME: Duration = Duration::from_secs(60);

struct Load {
    pool: Arc<MemoryPool>,
    threads: ThreadPool,
    state: Mutex<(KvStore, Kernels)>,
    exact: bool,
}

/// The keys or values that stand for a token in a layer.
fn row(token: u32, layer: usize, half: Half) -> Vec<f32> {
    let first = (token % 61) as f32 + 64.0 * layer as f32 + 256.0 * f32::from(half == Half::Keys);
    (0..SHAPE.kv_dim).map(|i| first + i as f32).collect()
}

impl Load {
    fn new(policy: &str) -> Load {
        let policy: KvPolicy = policy.parse().unwrap();
        let host = Host::new(HostConfig::default()).unwrap();
        let kernels = Kernels::new(&host, 1, &policy).unwrap();
        let pool = MemoryPool::new(BUDGET).unwrap();
        let exact = policy == KvPolicy::default();
        let store = KvStore::new(SHAPE, policy, Arc::clone(&pool), None, [0; 32])
            .with_ahead(host.worker().unwrap());
        let state = Mutex::new((store, kernels));
        Load { pool, threads: ThreadPool::new(1), state, exact }
    }

    /// Calls `work` as a step that needs the table's blocks; what was evicted is forgotten.
    fn step<T>(
        &self,
        table: &mut KvTable,
        work: impl FnOnce(&mut KvStore, &mut KvTable, &mut KvKernels<'_>) -> T,
    ) -> Option<T> {
        let mut state = self.state.lock().unwrap();
        let (store, kernels) = &mut *state;
        store.begin(kernels);
        store.touch(table);
        let mut kv_kernels = KvKernels { kernels, pool: &self.threads };
        if let Err(error) = store.restore(table, &mut kv_kernels) {
            assert_eq!(error.code(), "memory_exhausted");
            return None;
        }
        table.truncate(table.computed);
        Some(work(store, table, &mut kv_kernels))
    }

    fn append(&self, table: &mut KvTable, tokens: &[u32]) {
        self.step(table, |store, table, kv_kernels| {
            let found = store.attach(table, tokens, kv_kernels);
            let tokens = &tokens[found..];
            if let Err(error) = store.extend(table, tokens.len(), kv_kernels) {
                assert_eq!(error.code(), "memory_exhausted");
                table.uncompute(table.computed);
                return;
            }
            for layer in 0..SHAPE.layers {
                for half in Half::BOTH {
                    let rows: Vec<f32> =
                        tokens.iter().flat_map(|&token| row(token, layer, half)).collect();
                    store.write(table, layer, half, &rows, kv_kernels).unwrap();
                }
            }
            table.commit(tokens);
            store.settle(table, tokens.len(), kv_kernels).unwrap();
        });
    }

    /// Whether the blocks hold what was written for the tokens.
    fn check(&self, table: &mut KvTable) {
        self.step(table, |store, table, _| {
            let mut segments = Vec::new();
            let seen = AttendedPositions { first: 0, from: 0, end: usize::MAX };
            store.segments(table, 1, seen, &mut segments).unwrap();
            let held: usize = segments.iter().map(|segment| segment.len).sum();
            assert_eq!(held, table.len());
            for segment in segments.iter().filter(|_| self.exact) {
                let keys: &[half::f16] = bytemuck::cast_slice(segment.keys.data);
                for (i, keys) in keys.chunks_exact(SHAPE.kv_dim).enumerate() {
                    let token = table.tokens[segment.start + i];
                    let expected = row(token, 1, Half::Keys);
                    assert!(keys.iter().zip(&expected).all(|(k, e)| k.to_f32() == *e));
                }
            }
        });
    }

    fn one_thread(&self, seed: u64, done: &AtomicBool) {
        let mut rng = StdRng::seed_from_u64(seed);
        let mut tables: Vec<KvTable> = Vec::new();
        let mut reserved: Vec<Reservation> = Vec::new();
        while !done.load(Relaxed) {
            let chosen = rng.random_range(0..16usize);
            match rng.random_range(0..10) {
                0 => {
                    let options = SequenceOptions {
                        priority: rng.random_range(0..3),
                        scope: rng.random_bool(0.5).then(|| scope("", None)),
                        ..SequenceOptions::default()
                    };
                    tables.push(self.state.lock().unwrap().0.table(2000, options));
                }
                1 if chosen < tables.len() => {
                    let fork = self.state.lock().unwrap().0.fork(&tables[chosen]);
                    tables.push(fork);
                }
                2 if chosen < tables.len() => drop(tables.swap_remove(chosen)),
                3 if chosen < tables.len() => {
                    let len = rng.random_range(0..=tables[chosen].len());
                    tables[chosen].truncate(len);
                }
                4 if chosen < tables.len() => self.check(&mut tables[chosen]),
                5 => {
                    reserved.truncate(rng.random_range(0..3));
                    let bytes = rng.random_range(0..256 * 1024);
                    reserved.extend(self.pool.reserve(Use::Adapter, "test", 0, bytes));
                }
                _ if chosen < tables.len() => {
                    let table = &mut tables[chosen];
                    let most = (2000 - table.len()).min(300);
                    // Few beginnings, so that some are found.
                    let first = rng.random_range(0..8);
                    let tokens: Vec<u32> =
                        (0..rng.random_range(0..=most) as u32).map(|i| first * 7 + i).collect();
                    self.append(table, &tokens);
                }
                _ => {}
            }
            tables.truncate(16);
            assert!(self.pool.used() <= BUDGET);
        }
        for table in &mut tables {
            self.check(table);
        }
    }
}

/// Ends the threads, also where the test panics.
struct End<'a>(&'a AtomicBool);

impl Drop for End<'_> {
    fn drop(&mut self) {
        self.0.store(true, Relaxed);
    }
}

/// Half a minute for each policy, or what a busy machine takes to fill the budget once.
#[test]
fn a_minute_of_64_threads_stays_within_the_budget_and_leaks_nothing() {
    for policy in ["f16", "f16:64+q8_0:64+q4_0"] {
        let load = Load::new(policy);
        let (begun, done) = (Instant::now(), AtomicBool::new(false));
        std::thread::scope(|scope| {
            let (load, done) = (&load, &done);
            for seed in 0..THREADS {
                scope.spawn(move || load.one_thread(seed, done));
            }
            let _end = End(done);
            let mut full = false;
            while begun.elapsed() < TIME / 2 || !full && begun.elapsed() < 5 * TIME {
                std::thread::sleep(Duration::from_millis(50));
                let (store, _) = &mut *load.state.lock().unwrap();
                store.drain();
                store.compact();
                let lost = load.pool.lost() as f64 / BUDGET as f64;
                assert!(lost <= 0.05, "{policy}: {:.1} % lost", 100.0 * lost);
                full = store.stats().evictions > 0;
            }
        });
        let mut state = load.state.into_inner().unwrap();
        let (store, kernels) = &mut state;
        store.begin(kernels);
        let stats = store.stats();
        println!("{policy}: {stats:?}");
        assert!(stats.evictions > 0 && stats.prefix_hit_tokens > 0 && stats.copies > 0);
        assert_eq!(stats.blocks, stats.cached_blocks, "blocks are left that nobody refers to");
        let nothing = |store: &KvStore| store.stats().blocks == 0;
        store.make_room(&mut KvKernels { kernels, pool: &load.threads }, nothing, nothing);
        assert_eq!((store.stats().blocks, load.pool.used()), (0, 0));
    }
}
