//! Two stores that go through the same steps, of which one writes ahead of time, hold the same.

use std::path::Path;

use ruvllm_host::{Host, HostConfig, Scope};
use ruvllm_tests::PackBuilder;
use ruvllm_tests::wat::{Module, rmsnorm_f32};

use super::*;
use crate::kv::AttendedPositions;
use crate::kv::block::Half;
use crate::kv::prefix::scope;
use crate::kv::store::{KvKernels, KvStore};
use crate::kv::table::KvTable;
use crate::kv::{KvCodec, SequenceOptions, SpillDir};
use crate::memory::{MemoryPool, PAGE, Use};

const SHAPE: BlockShape = BlockShape { layers: 3, kv_dim: 64, tokens: 32 };
const TIERS: &str = "f16:64+q4_0";

/// A store and what steps through it take.
struct Stage {
    store: KvStore,
    host: Host,
    kernels: Kernels,
    threads: ThreadPool,
}

impl Stage {
    fn new(policy: &str, ahead: bool, spill: Option<&Path>) -> Stage {
        let policy = policy.parse().unwrap();
        let host = Host::new(HostConfig::default()).unwrap();
        let kernels = Kernels::new(&host, 1, &policy).unwrap();
        let pool = MemoryPool::new(16 * PAGE).unwrap();
        let spill = spill.map(|dir| SpillDir::new(dir).unwrap());
        let mut store = KvStore::new(SHAPE, policy, pool, spill, [0; 32]);
        if ahead {
            store = store.with_ahead(host.worker().unwrap());
        }
        Stage { store, host, kernels, threads: ThreadPool::new(1) }
    }

    fn table(&self, scope: Option<[u8; 32]>) -> KvTable {
        self.store.table(2000, SequenceOptions { scope, ..SequenceOptions::default() })
    }

    fn step<T>(&mut self, work: impl FnOnce(&mut KvStore, &mut KvKernels<'_>) -> T) -> T {
        self.kernels.pin(&self.host, false).unwrap();
        self.store.begin(&self.kernels);
        work(&mut self.store, &mut KvKernels { kernels: &mut self.kernels, pool: &self.threads })
    }

    /// Computes tokens in one step, with those before that have to be computed again.
    fn append(&mut self, table: &mut KvTable, tokens: &[u32]) {
        self.step(|store, kv_kernels| {
            store.touch(table);
            store.restore(table, kv_kernels).unwrap();
            let tokens = &[&table.tokens[table.computed..], tokens].concat();
            store.extend(table, tokens.len(), kv_kernels).unwrap();
            for layer in 0..SHAPE.layers {
                for half in Half::BOTH {
                    let rows = tokens.iter().flat_map(|&token| row(token, layer, half));
                    store.write(table, layer, half, &rows.collect::<Vec<_>>(), kv_kernels).unwrap();
                }
            }
            table.commit(tokens);
            store.settle(table, tokens.len(), kv_kernels).unwrap();
        });
    }

    /// What attention reads of the sequence, with the codecs.
    fn content(&self, table: &KvTable) -> Vec<(usize, String, Vec<u8>)> {
        let mut content = Vec::new();
        for layer in 0..SHAPE.layers {
            let mut segments = Vec::new();
            let seen = AttendedPositions { first: 0, from: 0, end: usize::MAX };
            self.store.segments(table, layer, seen, &mut segments).unwrap();
            content.extend(segments.iter().map(|s| {
                let codecs = format!("{:?} {:?} {}", s.keys.dtype, s.values.dtype, s.len);
                (s.start, codecs, [s.keys.data, s.values.data].concat())
            }));
        }
        content
    }

    fn jobs(&self) -> usize {
        self.store.stats().ahead_blocks
    }
}

fn row(token: u32, layer: usize, half: Half) -> Vec<f32> {
    let seed = token as usize * 31 + layer * 7 + usize::from(half == Half::Keys);
    (0..SHAPE.kv_dim).map(|i| ((seed * 131 + i * i * 17) % 257) as f32 * 0.01 - 1.3).collect()
}

/// The same sequence in a store that writes ahead and in one that does not.
struct Pair([(Stage, KvTable); 2]);

impl Pair {
    fn new(policy: &str, spill: Option<&Path>) -> Pair {
        Pair([true, false].map(|ahead| {
            let stage = Stage::new(policy, ahead, spill);
            let table = stage.table(None);
            (stage, table)
        }))
    }

    fn both(&mut self, mut work: impl FnMut(&mut Stage, &mut KvTable)) {
        self.0.iter_mut().for_each(|(stage, table)| work(stage, table));
    }

    fn append(&mut self, tokens: &[u32]) {
        self.both(|stage, table| stage.append(table, tokens));
        let [(ahead, a), (plain, p)] = &self.0;
        assert!(ahead.content(a) == plain.content(p), "they differ after {} tokens", a.len());
    }

    fn decode(&mut self, tokens: std::ops::Range<u32>) {
        tokens.for_each(|token| self.append(&[token]));
    }

    /// Blocks that were migrated, and those of them ahead of time.
    fn migrations(&self) -> (u64, u64) {
        let [ahead, plain] = self.0.each_ref().map(|(stage, _)| stage.store.stats());
        assert_eq!((ahead.migrations, 0), (plain.migrations, plain.migrations_ahead));
        (ahead.migrations, ahead.migrations_ahead)
    }

    /// 128 tokens, of which the third 32 are exact still and will not be after 32 more.
    fn begun() -> Pair {
        let mut pair = Pair::new(TIERS, None);
        pair.append(&(0..100).collect::<Vec<_>>());
        pair.decode(100..128);
        assert_eq!(pair.0.each_ref().map(|(stage, _)| stage.jobs()), [1, 0]);
        pair
    }
}

#[test]
fn what_is_written_ahead_is_what_is_written_when_it_is_due() {
    for policy in ["f16:32+q8_0:32+q4_0", "k=f16:64+q8_0:64+q4_0c,v=f16:32+q4_0", "mix"] {
        let mut pair = Pair::new(policy, None);
        pair.append(&(0..300).collect::<Vec<_>>());
        let (before, ahead) = pair.migrations();
        assert_eq!(ahead, 0, "{policy}");
        pair.decode(300..900);
        let (after, ahead) = pair.migrations();
        assert!(after - before > 18, "{policy}");
        assert_eq!(ahead, after - before, "{policy}");
        // A step over several boundaries finds what was written for the first of them.
        pair.append(&(900..1100).collect::<Vec<_>>());
        pair.decode(1100..1200);
    }
}

#[test]
fn a_block_that_is_cut_and_filled_again_is_written_when_it_is_due() {
    let mut pair = Pair::begun();
    pair.both(|_, table| table.truncate(70));
    pair.append(&[500]);
    // All blocks were computed again, and the first will be due next.
    assert_eq!(pair.0.each_ref().map(|(stage, _)| stage.jobs()), [1, 0]);
    pair.decode(501..700);
    // Filled and due in one step, at the boundary for which it was handed over.
    let mut pair = Pair::begun();
    let before = pair.migrations();
    pair.both(|_, table| table.truncate(95));
    pair.append(&(500..565).collect::<Vec<_>>());
    assert_eq!(pair.migrations(), (before.0 + 3, before.1));
    pair.decode(600..700);
}

#[test]
fn a_block_that_others_hold_at_the_boundary_stays_as_it_is_for_them() {
    for kept in [false, true] {
        let mut pair = Pair::begun();
        let before = pair.migrations().1;
        let (mut forks, mut contents) = (Vec::new(), Vec::new());
        pair.both(|stage, table| {
            let fork = stage.store.fork(table);
            contents.push(stage.content(&fork));
            forks.push(fork);
        });
        if !kept {
            forks.clear();
        }
        let copies = pair.0[0].0.store.stats().copies;
        pair.decode(128..160);
        assert_eq!(pair.migrations().1 - before, 1);
        assert_eq!(pair.0[0].0.store.stats().copies - copies, u64::from(kept));
        for (fork, ((stage, _), content)) in forks.iter().zip(pair.0.iter().zip(&contents)) {
            assert_eq!(stage.content(fork), *content);
        }
        drop(forks);
        pair.decode(160..300);
    }
}

#[test]
fn pressure_gives_up_what_was_written_ahead_first() {
    let mut pair = Pair::begun();
    pair.both(|stage, _| {
        let pool = Arc::clone(&stage.store.pool);
        let used = pool.used();
        let room = pool.budget() * 9 / 10 - used;
        let _held = pool.reserve(Use::Adapter, "test", 0, room).unwrap();
        stage.step(|store, kv_kernels| {
            drop(store.reserve(Use::Adapter, "more", 0, 2 * PAGE, kv_kernels))
        });
        assert_eq!(stage.jobs(), 0);
    });
    pair.decode(128..300);

    // Above the mark none are begun.
    let mut pair = Pair::begun();
    let before = pair.migrations().1;
    let mut held = Vec::new();
    pair.both(|stage, _| {
        let pool = &stage.store.pool;
        let room = pool.budget() * 9 / 10 - pool.used();
        held.push(pool.reserve(Use::Adapter, "test", 0, room).unwrap());
    });
    pair.decode(128..200);
    assert_eq!((pair.0[0].0.jobs(), pair.migrations().1), (0, before));
}

#[test]
fn a_block_that_was_on_disk_or_moved_is_written_when_it_is_due() {
    let dir = tempfile::tempdir().unwrap();
    let mut pair = Pair::new(TIERS, Some(dir.path()));
    pair.decode(0..128);
    pair.both(|stage, _| {
        stage.step(|store, kv_kernels| store.make_room(kv_kernels, |_| false, |_| false));
        assert_eq!(stage.jobs(), 0);
        assert!(stage.store.stats().spilled_blocks > 0);
    });
    pair.decode(128..300);

    let mut pair = Pair::begun();
    pair.both(|stage, _| stage.store.compact());
    assert_eq!(pair.0[0].0.jobs(), 0);
    pair.decode(128..300);
}

#[test]
fn kernels_that_are_swapped_write_what_is_due_themselves() {
    let pack = PackBuilder::new().kernel("rmsnorm_f32", rmsnorm_f32(&Module::default())).build();
    let mut pair = Pair::begun();
    let before = pair.migrations().1;
    pair.both(|stage, _| drop(stage.host.install(pack.verify().unwrap()).unwrap()));
    pair.decode(128..160);
    assert_eq!(pair.migrations().1, before);
    pair.decode(160..192);
    assert_eq!(pair.migrations().1, before + 1);
}

#[test]
fn jobs_go_with_their_sequences() {
    // Blocks of the second are kept for others who begin alike.
    for scope in [None, Some(scope("", None))] {
        let mut stage = Stage::new(TIERS, true, None);
        let mut table = stage.table(scope);
        (0..128).for_each(|token| stage.append(&mut table, &[token]));
        assert_eq!(stage.jobs(), 1);
        drop(table);
        stage.store.drain();
        assert_eq!(stage.jobs(), 0);
        assert_eq!(stage.store.stats().blocks, if scope.is_some() { 4 } else { 0 });
    }
}

#[test]
fn a_policy_without_ages_has_no_thread() {
    for policy in ["f16", "q8_0", "q4_0c,rotate"] {
        assert!(Stage::new(policy, true, None).store.recode_thread.is_none(), "{policy}");
    }
    assert!(Stage::new("mix", true, None).store.recode_thread.is_some());
}

/// A job that writes a block of zeros, whose first `tokens` it takes for written.
fn job(stage: &Stage, tokens: usize) -> RecodeJob {
    let side = |codec| stage.store.lease_side(codec).unwrap();
    let codecs = Codecs { keys: KvCodec::Q4_0, values: KvCodec::F16 };
    RecodeJob {
        recodes: [Some(SideRecode { from: side(KvCodec::F16), to: side(KvCodec::Q4_0) }), None],
        tokens,
        isolation: Scope::unique(),
        codecs,
        kernels: Arc::downgrade(stage.kernels.pinned()),
        state: JobState::Waiting,
    }
}

#[test]
fn a_panic_costs_its_job_alone() {
    let stage = Stage::new(TIERS, true, None);
    let thread = stage.store.recode_thread.as_ref().unwrap();
    let codecs = job(&stage, 0).codecs;
    // More tokens than a block has.
    let handles = [33, 32].map(|tokens| thread.hand(job(&stage, tokens), 0));
    let written = handles.map(|handle| handle.join(codecs, stage.kernels.pinned()).is_some());
    assert_eq!(written, [false, true]);
    assert_eq!((thread.jobs(), stage.store.pool.used()), (0, 0));
}

#[test]
fn only_what_was_asked_for_is_redeemed() {
    let mut stage = Stage::new(TIERS, true, None);
    let hand = |stage: &Stage| stage.store.recode_thread.as_ref().unwrap().hand(job(stage, 32), 0);
    let codecs = job(&stage, 0).codecs;
    let other = Codecs { values: KvCodec::Q4_0, ..codecs };
    assert!(hand(&stage).join(other, stage.kernels.pinned()).is_none());
    let handle = hand(&stage);
    stage.kernels = Kernels::new(&stage.host, 1, &TIERS.parse().unwrap()).unwrap();
    assert!(handle.join(codecs, stage.kernels.pinned()).is_none());
    assert!(hand(&stage).join(codecs, stage.kernels.pinned()).is_some());
    assert_eq!(stage.store.pool.used(), 0);
}

#[test]
fn sequences_that_rest_make_way() {
    let stage = Stage::new(TIERS, true, None);
    let thread = stage.store.recode_thread.as_ref().unwrap();
    let hand = |number| thread.hand(job(&stage, 32), number);
    let resting: Vec<JobHandle> = (0..JOBS as u64).map(hand).collect();
    assert!(!thread.has_room(0));
    assert_eq!(thread.jobs(), JOBS);
    assert!(thread.has_room(5));
    assert_eq!(thread.jobs(), JOBS - 5);
    drop(resting);
    assert_eq!((thread.jobs(), stage.store.pool.used()), (0, 0));
}

#[test]
fn what_one_sequence_packs_further_is_not_taken_for_what_another_is_due() {
    let policy = "f16:32+q8_0:32+q4_0";
    let mut stage = Stage::new(policy, false, None);
    let mut first = stage.table(Some(scope("", None)));
    let begun: Vec<u32> = (0..64).collect();
    stage.append(&mut first, &begun);
    let [mut second, _third] = [0, 1].map(|_| stage.store.fork(&first));
    (100..200).for_each(|token| stage.append(&mut first, &[token]));
    let mut alone = Stage::new(policy, false, None);
    let mut table = alone.table(None);
    alone.append(&mut table, &begun);
    for token in 300..400 {
        stage.append(&mut second, &[token]);
        alone.append(&mut table, &[token]);
        assert!(stage.content(&second) == alone.content(&table), "after {} tokens", table.len());
    }
}

#[test]
fn blocks_before_a_checkpoint_stay_for_others_and_what_was_packed_of_them_does_when_they_go() {
    let mut stage = Stage::new("f16:64+q8_0:32+q4_0", false, None);
    let options = Some(scope("", None));
    let tokens: Vec<u32> = (0..480).collect();
    let mut table = stage.table(options);
    table.expect_parting(200);
    stage.append(&mut table, &tokens);
    let content = stage.content(&table);
    drop(table);
    let found = |stage: &mut Stage, count: usize| {
        let mut other = stage.table(options);
        let tokens = &tokens[..count];
        let found = stage.step(|store, kv_kernels| store.attach(&mut other, tokens, kv_kernels));
        (found, other)
    };
    // A place that nobody expected, a block before the checkpoint, the checkpoint, and the end.
    for (count, expected) in [(128, 0), (160, 160), (192, 192), (480, 480)] {
        assert_eq!(found(&mut stage, count).0, expected);
    }
    let held = stage.step(|store, _| (store.drain(), store.stats()).1);
    assert_eq!((held.blocks, held.cached_blocks), (19, 19), "{held:?}");
    let is_enough = |store: &KvStore| store.stats().evictions == 4;
    stage.step(|store, kv_kernels| store.make_room(kv_kernels, is_enough, is_enough));
    assert_eq!(stage.store.stats().packed_early, 0);
    let (count, mut other) = found(&mut stage, 480);
    assert_eq!(count, 480);
    assert!(stage.content(&other) == content);
    assert_eq!(found(&mut stage, 192).0, 0);
    // It goes on as it would have.
    stage.append(&mut other, &(900..1000).collect::<Vec<_>>());
}
