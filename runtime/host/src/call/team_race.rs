//! Races of the providers of team operations, where the policy asks for the fastest.
//!
//! They are run when a model is loaded or a generation made ready, on one matrix of each type and size, on the
//! embedding table and on attention of the model's shape, with one row and with as many as a prompt has, by the threads
//! that steps are computed with: where steps are computed meanwhile, these and the race take turns.
//!
//! A matrix is prepared once, by the winner with one row. With many rows those race who could then be asked: that one,
//! and all who read the file's bytes.

use super::team_worker::{Preparation, PreparedWeights, TeamWorker};
use crate::OpKey;
use crate::registry::RegistrySnapshot;
use crate::registry::kernel::PublishedKernel;
use crate::registry::race::{TEAM_ROWS, Times, class};
use crate::team::{Provider, Team};
use ruvllm_abi::DType;
use ruvllm_native::attention::{AttnSequence, AttnShape, KvLayout, KvSegment};
use ruvllm_native::gemm::{MatMut, Weights};
use ruvllm_native::judge::encode;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// How often each runs.
const RACE_TURNS: usize = 5;

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
        let mut y = Vec::new();
        self.race(snap, &OpKey::matmul(weights.dtype()), class, |worker, kernel| {
            let Some(Provider::Matmul(_, provider)) = kernel.team() else { return None };
            let bytes = provider.prepared_bytes(weights, how.team.isa)?;
            let made = PreparedWeights::default();
            let prepared = worker.prepare(kernel, provider, weights, &made, bytes, how);
            let (held, _) = prepared.ok()?;
            y.resize(TEAM_ROWS[1] * weights.rows(), 0.0);
            let times = TEAM_ROWS.map(|rows| {
                let (x, _) = worker.input(&**provider, weights, rows, how).ok()?;
                least(|| {
                    let y = MatMut { data: &mut y, stride: weights.rows() };
                    held.prepared.run(weights, &x, y, how.team)
                })
            });
            Some(Timed { times, holds: bytes > 0 })
        });
    }

    /// As [`TeamWorker::race_matmul`], for rows of a table.
    pub fn race_embed(&mut self, snap: &RegistrySnapshot, table: &Weights<'_>, team: Team<'_>) {
        let mut tokens = None;
        let mut y = Vec::new();
        self.race(snap, &OpKey::embed(table.dtype()), 0, |worker, kernel| {
            let Some(Provider::Embed(_, provider)) = kernel.team() else { return None };
            let tokens = tokens.get_or_insert_with(|| {
                TEAM_ROWS.map(|rows| match table.rows() {
                    0 => Vec::new(),
                    vocab => (0..rows).map(|_| worker.checks.below(vocab) as u32).collect(),
                })
            });
            y.resize(TEAM_ROWS[1] * table.cols(), 0.0);
            let times = tokens.each_ref().map(|tokens: &Vec<u32>| {
                let y = &mut y[..tokens.len() * table.cols()];
                least(|| provider.run(table, tokens, y, team))
            });
            Some(Timed { times, holds: false })
        });
    }

    /// As [`TeamWorker::race_matmul`], for attention over a cache of f16.
    pub fn race_attention(&mut self, snap: &RegistrySnapshot, shape: &AttnShape, team: Team<'_>) {
        let row = shape.heads * shape.head_dim;
        let mut operands = None;
        self.race(snap, &OpKey::attention(), 0, |worker, kernel| {
            let Some(Provider::Attention(provider)) = kernel.team() else { return None };
            let mut noise = |n: usize| -> Vec<f32> {
                (0..n).map(|_| worker.checks.sampler.random.normal()).collect()
            };
            let (cache, q, y) = match &mut operands {
                Some(operands) => operands,
                None => {
                    let numbers = noise(RACE_POSITIONS * shape.kv_heads * shape.head_dim);
                    let cache = encode(DType::F16, &numbers).ok()?;
                    let q = noise(TEAM_ROWS[1] * row);
                    operands.insert((cache, q, vec![0.0; TEAM_ROWS[1] * row]))
                }
            };
            let kv = [KvSegment {
                start: 0,
                len: RACE_POSITIONS,
                k_dtype: DType::F16,
                v_dtype: DType::F16,
                k_layout: KvLayout::Tokens,
                v_layout: KvLayout::Tokens,
                k: cache,
                v: cache,
            }];
            let mut session = provider.open();
            let times = TEAM_ROWS.map(|rows| {
                least(|| {
                    let (q, y) = (&q[..rows * row], &mut y[..rows * row]);
                    let mut calls = [AttnSequence { q, q_pos: RACE_POSITIONS - rows, kv: &kv, y }];
                    session.run(shape, &mut calls, team)
                })
            });
            Some(Timed { times, holds: false })
        });
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
