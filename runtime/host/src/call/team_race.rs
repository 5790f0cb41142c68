//! Races of the providers of team operations, where the policy asks for the fastest.
//!
//! They are run when a model is loaded or a generation made ready, on one matrix of each type and size, on the
//! embedding table and on attention of the model's shape, with one row and with as many as a prompt has, by the threads
//! that steps are computed with: where steps are computed meanwhile, these and the race take turns.
//!
//! A matrix is prepared once, by the winner with one row. With many rows those race who could then be asked: that one,
//! and all who read the file's bytes.
//!
//! In the same way two providers are compared of which the newer one seems slower: live calls of an old and a new
//! generation differ in their rows, which a product's time depends on far more than on its bytes.

use super::team_worker::{
    BudgetReservation, Preparation, PreparedLayout, PreparedWeights, TeamWorker,
};
use crate::OpKey;
use crate::registry::RegistrySnapshot;
use crate::registry::kernel::PublishedKernel;
use crate::registry::race::{TEAM_ROWS, Times, class};
use crate::team::{
    AttentionProvider, ComparedProvider, MatmulProvider, Prepared, PreparedEmbed, PreparedMatmul,
    Provider, Team,
};
use ruvllm_abi::DType;
use ruvllm_native::attention::{AttnSequence, AttnShape, KvSegment};
use ruvllm_native::gemm::{MatMut, Weights};
use ruvllm_native::judge::encode;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// How often each runs.
const RACE_TURNS: usize = 5;

/// How often each of two is timed at least, and at most; and how long it goes on in between: brief calls need many turns
/// on a machine that is busy.
const COMPARE_TURNS: [usize; 2] = [3, 32];
const COMPARE_TIME: Duration = Duration::from_millis(200);

/// Positions of the cache that attention races over.
const RACE_POSITIONS: usize = 512;

impl TeamWorker {
    /// Times everybody who multiplies by weights of this type on a matrix of it, where the policy asks for the
    /// fastest and no earlier result holds. Each prepares it for as long as it is timed.
    pub fn race_matmul(
        &mut self,
        snap: &RegistrySnapshot,
        weights: &Weights<'_>,
        how: &Preparation<'_>,
    ) {
        let class = class(weights.rows() * weights.cols());
        self.race(snap, &OpKey::matmul(weights.dtype()), class, |worker, kernel| {
            worker.time_taken_up(kernel, weights, how)
        });
    }

    /// The times of a kernel, which takes the matrix up for as long as it is timed.
    fn time_taken_up(
        &mut self,
        kernel: &Arc<PublishedKernel>,
        weights: &Weights<'_>,
        how: &Preparation<'_>,
    ) -> Option<Timed> {
        let provider = kernel.team()?;
        let bytes = provider.prepared_bytes(weights, how.team.isa)?;
        let made = PreparedWeights::default();
        let (held, _) = self.prepare(kernel, provider, weights, &made, bytes, how).ok()?;
        Some(Timed { times: self.time_prepared(&held.prepared, weights, how), holds: bytes > 0 })
    }

    fn time_prepared(
        &mut self,
        prepared: &Prepared,
        weights: &Weights<'_>,
        how: &Preparation<'_>,
    ) -> Times {
        match prepared {
            Prepared::Matmul(provider, prepared) => {
                self.time_matmul(&**provider, &**prepared, weights, how)
            }
            Prepared::Embed(prepared) => self.time_embed(&**prepared, weights, how.team),
        }
    }

    fn time_matmul(
        &mut self,
        provider: &dyn MatmulProvider,
        prepared: &dyn PreparedMatmul,
        weights: &Weights<'_>,
        how: &Preparation<'_>,
    ) -> Times {
        let mut y = vec![0.0; TEAM_ROWS[1] * weights.rows()];
        TEAM_ROWS.map(|rows| {
            let (x, _) = self.input(provider, weights, rows, how).ok()?;
            least(|| {
                let y = MatMut { data: &mut y, stride: weights.rows() };
                prepared.run(weights, &x, y, how.team)
            })
        })
    }

    /// As [`TeamWorker::race_matmul`], for rows of a table.
    pub fn race_embed(
        &mut self,
        snap: &RegistrySnapshot,
        table: &Weights<'_>,
        how: &Preparation<'_>,
    ) {
        let class = class(table.rows() * table.cols());
        self.race(snap, &OpKey::embed(table.dtype()), class, |worker, kernel| {
            worker.time_taken_up(kernel, table, how)
        });
    }

    fn time_embed(
        &mut self,
        prepared: &dyn PreparedEmbed,
        table: &Weights<'_>,
        team: Team<'_>,
    ) -> Times {
        let mut y = vec![0.0; TEAM_ROWS[1] * table.cols()];
        TEAM_ROWS.map(|rows| {
            let tokens: Vec<u32> = match table.rows() {
                0 => Vec::new(),
                vocab => (0..rows).map(|_| self.checks.below(vocab) as u32).collect(),
            };
            let y = &mut y[..tokens.len() * table.cols()];
            least(|| prepared.run(table, &tokens, y, team))
        })
    }

    /// As [`TeamWorker::race_matmul`], for attention over a cache of f16.
    pub fn race_attention(&mut self, snap: &RegistrySnapshot, shape: &AttnShape, team: Team<'_>) {
        self.race(snap, &OpKey::attention(), class(shape.head_dim), |worker, kernel| {
            let Some(Provider::Attention(provider)) = kernel.team() else { return None };
            let times = worker.time_attention(&**provider, shape, team)?;
            Some(Timed { times, holds: false })
        });
    }

    fn time_attention(
        &mut self,
        provider: &dyn AttentionProvider,
        shape: &AttnShape,
        team: Team<'_>,
    ) -> Option<Times> {
        let mut noise = |n: usize| -> Vec<f32> {
            (0..n).map(|_| self.checks.sampler.random.normal()).collect()
        };
        let row = shape.heads * shape.head_dim;
        let cache = noise(RACE_POSITIONS * shape.kv_heads * shape.head_dim);
        let cache = encode(DType::F16, &cache).ok()?;
        let (q, mut y) = (noise(TEAM_ROWS[1] * row), vec![0.0; TEAM_ROWS[1] * row]);
        let kv = [KvSegment::tokens(DType::F16, RACE_POSITIONS, &cache, &cache)];
        let mut session = provider.open();
        Some(TEAM_ROWS.map(|rows| {
            least(|| {
                let (q, y) = (&q[..rows * row], &mut y[..rows * row]);
                let mut calls = [AttnSequence { q, q_pos: RACE_POSITIONS - rows, kv: &kv, y }];
                session.run(shape, &mut calls, team)
            })
        }))
    }

    /// How long two providers take for products with a matrix, or for rows of a table, in turns: the least time of each
    /// with one row and with as many as a prompt has. What they have made of it is taken from `made`; otherwise it is
    /// prepared for as long as they are timed. Empty where that cannot be found out.
    pub fn compare_with_matrix(
        &mut self,
        two: [ComparedProvider<'_>; 2],
        matrix: &Weights<'_>,
        made: &PreparedWeights,
        how: &Preparation<'_>,
    ) -> Vec<[Duration; 2]> {
        let prepared = two.map(|one| match made.held(one, how.team) {
            Some(held) => Some(held),
            None => self.prepare_compared(one, matrix, how),
        });
        let [Some(old), Some(new)] = prepared else { return Vec::new() };
        compare([&old, &new], |one| Some(self.time_prepared(&one.prepared, matrix, how)))
    }

    fn prepare_compared(
        &self,
        one: ComparedProvider<'_>,
        matrix: &Weights<'_>,
        how: &Preparation<'_>,
    ) -> Option<Arc<PreparedLayout>> {
        let bytes = one.provider.prepared_bytes(matrix, how.team.isa)?;
        let memory = match one.is_native {
            false => Some(BudgetReservation::new(how.budget, bytes)?),
            true => None,
        };
        let prepared = one.provider.prepare(matrix, how.team).ok()?;
        Some(Arc::new(PreparedLayout::new(prepared, bytes, memory)))
    }

    /// As [`TeamWorker::compare_with_matrix`], for attention over a cache of f16.
    pub fn compare_attention(
        &mut self,
        two: [ComparedProvider<'_>; 2],
        shape: &AttnShape,
        team: Team<'_>,
    ) -> Vec<[Duration; 2]> {
        compare(two, |one| match one.provider {
            Provider::Attention(provider) => self.time_attention(&**provider, shape, team),
            _ => None,
        })
    }

    /// Times everybody who is in service, and books the times, where the policy asks for the fastest and no
    /// earlier result holds.
    fn race(
        &mut self,
        snap: &RegistrySnapshot,
        key: &OpKey,
        class: usize,
        mut time: impl FnMut(&mut Self, &Arc<PublishedKernel>) -> Option<Timed>,
    ) {
        let Some((slot, records)) = snap.slot_of(key).zip(snap.races()) else { return };
        let Some(race) = &slot.race else { return };
        if race.winner(class, TEAM_ROWS[0]).is_some() {
            return;
        }
        let chain = &slot.choice.chain;
        let mut timed = |kernel: &Arc<PublishedKernel>| match kernel.stats().quarantined() {
            true => None,
            false => time(self, kernel),
        };
        let mut timed: Vec<Timed> =
            chain.iter().map(|kernel| timed(kernel).unwrap_or_default()).collect();
        let with_one = timed.iter().filter_map(|timed| timed.times[0]).min();
        for Timed { times, holds } in &mut timed {
            if *holds && times[0] != with_one {
                times[1] = None;
            }
        }
        let times: Vec<Times> = timed.into_iter().map(|timed| timed.times).collect();
        records.finish(key, chain, race, class, &times);
    }
}

/// The least times of two providers, timed in turns. Empty where one of them failed.
fn compare<T: Copy>(two: [T; 2], mut time: impl FnMut(T) -> Option<Times>) -> Vec<[Duration; 2]> {
    let mut least = [[Duration::MAX; 2]; TEAM_ROWS.len()];
    let (begun, [fewest, most]) = (Instant::now(), COMPARE_TURNS);
    for turn in 0..most {
        if turn >= fewest && begun.elapsed() > COMPARE_TIME {
            break;
        }
        for (i, one) in two.into_iter().enumerate() {
            let Some(times) = time(one) else { return Vec::new() };
            for (least, time) in least.iter_mut().zip(times) {
                let Some(time) = time else { return Vec::new() };
                least[i] = least[i].min(time);
            }
        }
    }
    least.to_vec()
}

/// What a candidate took.
#[derive(Default)]
struct Timed {
    times: Times,
    /// Whether it holds weights in a layout of its own.
    holds: bool,
}

/// The least time of a few runs; `None` where one failed.
fn least(mut run: impl FnMut() -> Result<(), String>) -> Option<Duration> {
    let mut turn = || {
        let started = Instant::now();
        run().ok()?;
        Some(started.elapsed())
    };
    let turns: Option<Vec<Duration>> = (0..RACE_TURNS).map(|_| turn()).collect();
    turns?.into_iter().min()
}
