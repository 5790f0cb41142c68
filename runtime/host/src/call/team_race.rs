//! Races of the providers of team operations, where the policy asks for the fastest.
//!
//! They are run when a model is loaded or a generation made ready, on one matrix of each type, on the embedding
//! table and on attention of the model's shape, with one row and with as many as a prompt has. No call of a step
//! waits for one.

use super::team_worker::{Preparation, PreparedWeights, TeamWorker};
use crate::OpKey;
use crate::registry::RegistrySnapshot;
use crate::registry::kernel::PublishedKernel;
use crate::registry::race::{TEAM_ROWS, class};
use crate::team::{Provider, Team};
use ruvllm_abi::DType;
use ruvllm_native::attention::{AttnSequence, AttnShape, KvLayout, KvSegment};
use ruvllm_native::gemm::{MatMut, Weights};
use ruvllm_native::quant::quantize_row;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// How often each runs.
const RACE_TURNS: usize = 5;

/// Positions of the cache that attention races over.
const RACE_POSITIONS: usize = 512;

/// The least time that a provider took with each number of rows; `None` where it failed.
type Times = [Option<Duration>; TEAM_ROWS.len()];

impl TeamWorker {
    /// Times everybody who multiplies by weights of this type on a matrix of it, where the policy asks for the
    /// fastest and no earlier result holds. Each prepares it for as long as it is timed.
    pub fn race_matmul(
        &mut self,
        snap: &RegistrySnapshot,
        weights: &Weights<'_>,
        how: &Preparation<'_>,
    ) {
        let mut y = vec![0.0; TEAM_ROWS[1] * weights.rows()];
        self.race(snap, &OpKey::matmul(weights.dtype()), |worker, kernel| {
            let Some(Provider::Matmul(_, provider)) = kernel.team() else {
                return Times::default();
            };
            let Some(bytes) = provider.prepared_bytes(weights, how.team.isa) else {
                return Times::default();
            };
            let made = PreparedWeights::default();
            let Ok((held, _)) = worker.prepare(kernel, provider, weights, &made, bytes, how) else {
                return Times::default();
            };
            TEAM_ROWS.map(|rows| {
                let (x, _) = worker.input(&**provider, weights, rows, how).ok()?;
                least(|| {
                    let y = MatMut { data: &mut y, stride: weights.rows() };
                    held.prepared.run(weights, &x, y, how.team)
                })
            })
        });
    }

    /// As [`TeamWorker::race_matmul`], for rows of a table.
    pub fn race_embed(&mut self, snap: &RegistrySnapshot, table: &Weights<'_>, team: Team<'_>) {
        let tokens = TEAM_ROWS.map(|rows| match table.rows() {
            0 => Vec::new(),
            vocab => (0..rows).map(|_| self.checks.below(vocab) as u32).collect(),
        });
        let mut y = vec![0.0; TEAM_ROWS[1] * table.cols()];
        self.race(snap, &OpKey::embed(table.dtype()), |_, kernel| {
            let Some(Provider::Embed(_, provider)) = kernel.team() else { return Times::default() };
            tokens.each_ref().map(|tokens: &Vec<u32>| {
                let y = &mut y[..tokens.len() * table.cols()];
                least(|| provider.run(table, tokens, y, team))
            })
        });
    }

    /// As [`TeamWorker::race_matmul`], for attention over a cache of f16.
    pub fn race_attention(&mut self, snap: &RegistrySnapshot, shape: &AttnShape, team: Team<'_>) {
        let mut noise = |n: usize| -> Vec<f32> {
            (0..n).map(|_| self.checks.sampler.random.normal()).collect()
        };
        let numbers = noise(RACE_POSITIONS * shape.kv_heads * shape.head_dim);
        let mut cache = vec![0; size_of::<u16>() * numbers.len()];
        if quantize_row(DType::F16, &numbers, &mut cache).is_err() {
            return;
        }
        let kv = [KvSegment {
            start: 0,
            len: RACE_POSITIONS,
            k_dtype: DType::F16,
            v_dtype: DType::F16,
            k_layout: KvLayout::Tokens,
            v_layout: KvLayout::Tokens,
            k: &cache,
            v: &cache,
        }];
        let row = shape.heads * shape.head_dim;
        let q = noise(TEAM_ROWS[1] * row);
        let mut y = vec![0.0; q.len()];
        self.race(snap, &OpKey::attention(), |_, kernel| {
            let Some(Provider::Attention(provider)) = kernel.team() else {
                return Times::default();
            };
            let mut session = provider.open();
            TEAM_ROWS.map(|rows| {
                least(|| {
                    let (q, y) = (&q[..rows * row], &mut y[..rows * row]);
                    let mut calls = [AttnSequence { q, q_pos: RACE_POSITIONS - rows, kv: &kv, y }];
                    session.run(shape, &mut calls, team)
                })
            })
        });
    }

    /// Times everybody who is in service, and books the times, where the policy asks for the fastest and no
    /// earlier result holds.
    fn race(
        &mut self,
        snap: &RegistrySnapshot,
        key: &OpKey,
        mut time: impl FnMut(&mut Self, &Arc<PublishedKernel>) -> Times,
    ) {
        let Some((slot, records)) = snap.slot_of(key).zip(snap.races()) else { return };
        let Some(race) = &slot.race else { return };
        if TEAM_ROWS.iter().all(|&rows| race.winner(class(rows)).is_some()) {
            return;
        }
        let chain = &slot.choice.chain;
        let times: Vec<Times> = chain
            .iter()
            .map(|kernel| match kernel.stats().quarantined() {
                true => Times::default(),
                false => time(self, kernel),
            })
            .collect();
        for (at, rows) in TEAM_ROWS.into_iter().enumerate() {
            let times: Vec<Option<Duration>> = times.iter().map(|times| times[at]).collect();
            records.finish(key, chain, race, class(rows), &times);
        }
    }
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
