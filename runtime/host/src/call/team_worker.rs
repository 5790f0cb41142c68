//! The call path of team operations: from the thread of a step to all threads.
//!
//! Who computes the products of a matrix, and what it has made of the weights, is found when a snapshot is pinned
//! ([`TeamWorker::product`]). A call then asks the first that is in service, and the next one where that fails; the last
//! reads the file's bytes in place, so no second copy of the weights has to be kept for it.
//!
//! Those that are not the host's own are held to the f64 definition: every row of a matrix once when it was
//! taken up, and in service, of one run in [`crate::HostConfig::cross_check_every`] on average, elements that are
//! drawn by chance. One that is wrong in a share `f` of all elements of its products goes unseen in `n` runs with the probability
//! `(1 - (1 - (1 - f)^32) / every)^n`: one wrong in a thousand is found within 37,000 products in 99 of 100 cases, which
//! a model of 22 layers computes for 240 tokens.

use super::context::WorkerContext;
use crate::error::Failure;
use crate::memory::KernelBudget;
use crate::random::{self, Random};
use crate::registry::kernel::PublishedKernel;
use crate::registry::race::class;
use crate::registry::{OpSlot, RegistrySnapshot};
use crate::stats::{Counters, KernelStats, Timing};
use crate::team::{AttentionSession, MatmulProvider, PreparedMatmul, Provider, Team};
use crate::threads::lock;
use crate::{CallError, OpKey};
use ruvllm_native::Isa;
use ruvllm_native::attention::{AttnSequence, AttnShape};
use ruvllm_native::gemm::{ActForm, ActForms, Activations, MatMut, Weights};
use ruvllm_native::judge::Wrong;
use ruvllm_native::judge::team::{TeamBuffers, check_attention, check_gathered, check_product};
use std::sync::{Arc, Mutex, Weak};
use std::time::Instant;

/// Elements of a product that a check looks at.
const CHECKED: usize = 32;

/// Runs that are checked, each of them, after numbers were met that make no sense.
const CHECKED_IN_DOUBT: u32 = 1024;

/// Rows of the activations that providers race with, and how often each runs.
const RACE_ROWS: [usize; 2] = [1, 32];
const RACE_TURNS: usize = 5;

/// What providers have made of a matrix, for as long as somebody multiplies by it.
#[derive(Default)]
pub struct PreparedWeights {
    made: Mutex<Vec<(String, Isa, Weak<Held>)>>,
}

/// Weights that a provider has prepared, and what they count for.
struct Held {
    prepared: Box<dyn PreparedMatmul>,
    _memory: Option<Taken>,
}

/// Bytes of a budget, given back when this is dropped.
struct Taken {
    budget: Arc<dyn KernelBudget>,
    bytes: usize,
}

impl Taken {
    fn new(budget: &Arc<dyn KernelBudget>, bytes: usize) -> Option<Self> {
        budget.take(bytes).then(|| Self { budget: budget.clone(), bytes })
    }
}

impl Drop for Taken {
    fn drop(&mut self) {
        self.budget.give(self.bytes);
    }
}

/// Who computes the products of one matrix, in the order in which they are asked.
pub struct Product {
    chain: Vec<Candidate>,
    /// The first that is not the host's own and could not take the matrix up, and why.
    refused: Option<(String, Failure)>,
    made: bool,
}

struct Candidate {
    kernel: Arc<PublishedKernel>,
    provider: Arc<dyn MatmulProvider>,
    held: Arc<Held>,
}

/// How matrices are prepared.
#[derive(Clone, Copy)]
pub struct Preparation<'a> {
    /// What is computed on.
    pub team: Team<'a>,
    /// Whether a provider may hold the weights in a layout of its own, beside the file's bytes.
    pub repack: bool,
    /// Counts what providers of packs hold. The host's own are not counted: what they hold stands for the file's
    /// bytes, which are given back.
    pub budget: &'a Arc<dyn KernelBudget>,
    /// Settings of the activations.
    pub settings: &'a Activations,
}

/// Calls team operations from the thread of a step.
pub struct TeamWorker {
    host: Arc<WorkerContext>,
    /// By kernel uid.
    kernels: Vec<Option<State>>,
    random: Random,
    /// Runs that are checked, each of them, before checks are drawn again.
    all: u32,
    buffers: TeamBuffers,
}

/// What a worker keeps of one kernel.
struct State {
    alive: Weak<PublishedKernel>,
    stats: Arc<KernelStats>,
    counters: Arc<Counters>,
    /// Runs until the next check.
    until_check: u32,
    session: Option<Box<dyn AttentionSession>>,
}

impl Drop for State {
    fn drop(&mut self) {
        self.stats.close(&self.counters);
    }
}

impl Product {
    /// The form that products of `rows` rows read: of all that may be asked, so that another can answer where one
    /// fails.
    pub fn reads(&self, x: &Activations, rows: usize, isa: Isa) -> ActForms {
        let forms = self.chain.iter().map(|one| one.provider.reads(x, rows, isa).into());
        forms.fold(ActForms::NONE, ActForms::and)
    }

    /// The first provider that is not the host's own and could not take the matrix up, and why.
    pub fn refused(&self) -> Option<(&str, &Failure)> {
        self.refused.as_ref().map(|(kernel, failure)| (kernel.as_str(), failure))
    }

    /// Whether the weights were brought into another layout just now.
    pub fn made(&self) -> bool {
        self.made
    }

    /// The kernel that is asked first.
    pub fn kernel(&self) -> &str {
        self.chain.first().map_or("", |one| one.kernel.id())
    }
}

impl PreparedWeights {
    /// Whether some provider holds the weights in a layout of its own.
    pub fn is_held(&self) -> bool {
        lock(&self.made).iter().any(|(.., held)| held.strong_count() > 0)
    }
}

impl TeamWorker {
    pub(crate) fn new(host: Arc<WorkerContext>) -> Self {
        let random = Random::new(random::seed());
        Self { host, kernels: Vec::new(), random, all: 0, buffers: TeamBuffers::default() }
    }

    /// Has every one of the next runs checked: something has computed what it should not.
    #[cold]
    pub fn suspect(&mut self) {
        self.all = CHECKED_IN_DOUBT;
        self.kernels.iter_mut().flatten().for_each(|state| state.until_check = 0);
    }

    /// Has a matrix taken up by the provider that the snapshot asks first, or the first that can and for
    /// which there is memory; behind it stand those that read the file's bytes.
    ///
    /// # Errors
    /// [`CallError::Unknown`] where nobody multiplies by such weights, [`CallError::Exhausted`] where nobody could
    /// take them up.
    pub fn product(
        &mut self,
        snap: &RegistrySnapshot,
        weights: &Weights<'_>,
        made: &PreparedWeights,
        how: &Preparation<'_>,
    ) -> Result<Product, CallError> {
        let key = OpKey::matmul(weights.dtype());
        let slot = snap.slot_of(&key);
        let Some(slot) = slot.filter(|slot| !slot.choice.chain.is_empty()) else {
            let (name, detail) = (key.to_string(), "nobody provides it".to_owned());
            return Err(CallError::Unknown { name, detail });
        };
        let chain = &slot.choice.chain;
        // Most text is written a token at a time.
        let winner = slot.race.as_ref().and_then(|race| race.winner(class(RACE_ROWS[0])));
        let rest = (0..chain.len()).filter(|at| Some(*at) != winner);
        let mut product = Product { chain: Vec::new(), refused: None, made: false };
        let mut holds = false;
        let mut last = None;
        for kernel in winner.into_iter().chain(rest).filter_map(|at| chain.get(at)) {
            let Some(Provider::Matmul(_, provider)) = kernel.team() else { continue };
            let Some(bytes) = provider.prepared_bytes(weights, how.team.isa) else { continue };
            if kernel.stats().quarantined() || bytes > 0 && (holds || !how.repack) {
                continue;
            }
            match self.prepare(kernel, provider, weights, made, bytes, how) {
                Ok((held, new)) => {
                    product.made |= new && bytes > 0;
                    let (kernel, provider) = (kernel.clone(), provider.clone());
                    product.chain.push(Candidate { kernel, provider, held });
                    holds |= bytes > 0;
                }
                Err(failure) => {
                    self.host.incidents.report(kernel.stats(), &failure);
                    let failed = (kernel.id().to_owned(), failure);
                    if !kernel.is_native() && product.refused.is_none() {
                        product.refused = Some(failed.clone());
                    }
                    last = Some(failed);
                }
            }
        }
        match (product.chain.is_empty(), last) {
            (false, _) => Ok(product),
            (true, last) => Err(exhausted(&key, last)),
        }
    }

    /// A matrix as a provider takes it up, and whether it was not taken up before.
    fn prepare(
        &mut self,
        kernel: &Arc<PublishedKernel>,
        provider: &Arc<dyn MatmulProvider>,
        weights: &Weights<'_>,
        made: &PreparedWeights,
        bytes: usize,
        how: &Preparation<'_>,
    ) -> Result<(Arc<Held>, bool), Failure> {
        // Held until it is done: what two want is made once.
        let mut made = lock(&made.made);
        made.retain(|(.., held)| held.strong_count() > 0);
        let isa = how.team.isa;
        let same =
            |(hash, with, _): &&(String, Isa, Weak<Held>)| hash == kernel.hash() && *with == isa;
        if let Some(held) = made.iter().find(same).and_then(|(.., held)| held.upgrade()) {
            return Ok((held, false));
        }
        let memory = match bytes > 0 && !kernel.is_native() {
            false => None,
            true => {
                Some(Taken::new(how.budget, bytes).ok_or(Failure::WeightMemory { needed: bytes })?)
            }
        };
        let prepared = provider.prepare(weights, how.team).map_err(|e| failure(kernel, e))?;
        if !kernel.is_native() {
            self.check_rows(kernel, &**provider, &*prepared, weights, how)?;
        }
        let held = Arc::new(Held { prepared, _memory: memory });
        made.push((kernel.hash().to_owned(), isa, Arc::downgrade(&held)));
        Ok((held, true))
    }

    /// Holds every row of a matrix that was taken up against its definition, for a random input.
    fn check_rows(
        &mut self,
        kernel: &PublishedKernel,
        provider: &dyn MatmulProvider,
        prepared: &dyn PreparedMatmul,
        weights: &Weights<'_>,
        how: &Preparation<'_>,
    ) -> Result<(), Failure> {
        let (x, form) = self.input(provider, weights, 1, how)?;
        let mut y = vec![f32::NAN; weights.rows()];
        let stride = y.len();
        let out = MatMut { data: &mut y, stride };
        prepared.run(weights, &x, out, how.team).map_err(|e| failure(kernel, e))?;
        for (col, got) in y.into_iter().enumerate() {
            wrong(check_product(weights, &x, form, [0, col], got, &mut self.buffers))?;
        }
        Ok(())
    }

    /// Random activations `[rows, k]` in the form that a provider reads.
    fn input(
        &mut self,
        provider: &dyn MatmulProvider,
        weights: &Weights<'_>,
        rows: usize,
        how: &Preparation<'_>,
    ) -> Result<(Activations, ActForm), Failure> {
        let Team { pool, isa, .. } = how.team;
        let mut x = Activations::like(how.settings);
        let form = provider.reads(&x, rows, isa);
        let numbers: Vec<f32> = (0..rows * weights.cols()).map(|_| self.random.normal()).collect();
        x.prepare(pool, isa, &numbers, rows, weights.cols(), form.into())
            .map_err(|e| Failure::Native { detail: e.to_string() })?;
        Ok((x, form))
    }

    /// Times everybody who multiplies by weights of this type on a matrix of it, where the policy asks for the
    /// fastest and no earlier result holds. Each prepares it for as long as it is timed.
    pub fn race(&mut self, snap: &RegistrySnapshot, weights: &Weights<'_>, how: &Preparation<'_>) {
        let key = OpKey::matmul(weights.dtype());
        let Some((slot, records)) = snap.slot_of(&key).zip(snap.records()) else { return };
        let Some(race) = &slot.race else { return };
        if RACE_ROWS.iter().all(|&rows| race.winner(class(rows)).is_some()) {
            return;
        }
        let chain = &slot.choice.chain;
        let mut times = RACE_ROWS.map(|_| vec![None; chain.len()]);
        let mut y = vec![0.0; RACE_ROWS[1] * weights.rows()];
        for (at, kernel) in chain.iter().enumerate() {
            let Some(Provider::Matmul(_, provider)) = kernel.team() else { continue };
            let bytes = provider.prepared_bytes(weights, how.team.isa);
            if kernel.stats().quarantined() || bytes.is_none_or(|bytes| bytes > 0 && !how.repack) {
                continue;
            }
            let made = PreparedWeights::default();
            let bytes = bytes.unwrap_or_default();
            let Ok((held, _)) = self.prepare(kernel, provider, weights, &made, bytes, how) else {
                continue;
            };
            for (rows, times) in RACE_ROWS.into_iter().zip(&mut times) {
                let Ok((x, _)) = self.input(&**provider, weights, rows, how) else { continue };
                let mut turn = || {
                    let started = Instant::now();
                    let out = MatMut { data: &mut y, stride: weights.rows() };
                    held.prepared.run(weights, &x, out, how.team).ok()?;
                    Some(started.elapsed())
                };
                let turns: Option<Vec<_>> = (0..RACE_TURNS).map(|_| turn()).collect();
                times[at] = turns.and_then(|turns| turns.into_iter().min());
            }
        }
        for (rows, times) in RACE_ROWS.into_iter().zip(&times) {
            records.finish(&key, chain, race, class(rows), times, true);
        }
    }

    /// `y[m, n] = x[m, k] w[n, k]^T`, by the providers of this matrix.
    ///
    /// # Errors
    /// [`CallError::Failed`] in strict mode, [`CallError::Exhausted`] where nobody could answer; `y` may have a
    /// part of the product.
    pub fn matmul(
        &mut self,
        snap: &RegistrySnapshot,
        product: &Product,
        weights: &Weights<'_>,
        x: &Activations,
        y: MatMut<'_>,
        team: Team<'_>,
    ) -> Result<(), CallError> {
        let MatMut { data, stride } = y;
        let bytes = weights.size() + size_of::<f32>() * x.rows() * (weights.rows() + x.cols());
        let mut last = None;
        for Candidate { kernel, provider, held } in &product.chain {
            let answer = self.answer(snap, kernel, bytes, |worker, _, check| {
                let out = MatMut { data: &mut *data, stride };
                held.prepared.run(weights, x, out, team).map_err(|e| failure(kernel, e))?;
                if check {
                    let form = provider.reads(x, x.rows(), team.isa);
                    for _ in 0..CHECKED.min(x.rows() * weights.rows()) {
                        let row = worker.random.below(x.rows() as u32) as usize;
                        let col = worker.random.below(weights.rows() as u32) as usize;
                        let (at, buffers) = (row * stride + col, &mut worker.buffers);
                        wrong(check_product(weights, x, form, [row, col], data[at], buffers))?;
                    }
                }
                Ok(())
            });
            if self.is_answered(kernel, answer, &mut last)? {
                return Ok(());
            }
        }
        Err(exhausted(&OpKey::matmul(weights.dtype()), last))
    }

    /// Rows of a table: row `tokens[i]` of `[vocab, dim]` to row `i` of `y`. The tokens are in the table.
    ///
    /// # Errors
    /// As for [`TeamWorker::matmul`], and [`CallError::StaleSlot`].
    pub fn embed(
        &mut self,
        snap: &RegistrySnapshot,
        slot: OpSlot,
        table: &Weights<'_>,
        tokens: &[u32],
        y: &mut [f32],
        team: Team<'_>,
    ) -> Result<(), CallError> {
        let slot = snap.entry(slot)?;
        let mut last = None;
        for kernel in &slot.choice.chain {
            let Some(Provider::Embed(_, provider)) = kernel.team() else { continue };
            let answer = self.answer(snap, kernel, size_of_val(y), |worker, _, check| {
                provider.run(table, tokens, y, team).map_err(|e| failure(kernel, e))?;
                if check && !tokens.is_empty() {
                    let row = worker.random.below(tokens.len() as u32) as usize;
                    let got = &y[row * table.cols()..(row + 1) * table.cols()];
                    let token = tokens[row] as usize;
                    wrong(check_gathered(table, token, got, &mut worker.buffers))?;
                }
                Ok(())
            });
            if self.is_answered(kernel, answer, &mut last)? {
                return Ok(());
            }
        }
        Err(exhausted(&slot.key, last))
    }

    /// Attention of each sequence's queries over its own cache.
    ///
    /// # Errors
    /// As for [`TeamWorker::embed`].
    pub fn attention(
        &mut self,
        snap: &RegistrySnapshot,
        slot: OpSlot,
        shape: &AttnShape,
        sequences: &mut [AttnSequence<'_>],
        team: Team<'_>,
    ) -> Result<(), CallError> {
        let slot = snap.entry(slot)?;
        let cache =
            |s: &AttnSequence<'_>| s.kv.iter().map(|kv| kv.k.len() + kv.v.len()).sum::<usize>();
        let queries = |s: &AttnSequence<'_>| size_of_val(s.q) + size_of_val(&*s.y);
        let bytes = sequences.iter().map(|sequence| cache(sequence) + queries(sequence)).sum();
        let mut last = None;
        for kernel in &slot.choice.chain {
            let Some(Provider::Attention(provider)) = kernel.team() else { continue };
            let answer = self.answer(snap, kernel, bytes, |worker, session, check| {
                let session = session.get_or_insert_with(|| provider.open());
                session.run(shape, sequences, team).map_err(|e| failure(kernel, e))?;
                let row = shape.heads * shape.head_dim;
                if check && row > 0 && !sequences.is_empty() {
                    let sequence = worker.random.below(sequences.len() as u32) as usize;
                    let sequence = &sequences[sequence];
                    let queries = (sequence.y.len() / row) as u32;
                    if queries > 0 {
                        let query = worker.random.below(queries) as usize;
                        let head = worker.random.below(shape.heads as u32) as usize;
                        let buffers = &mut worker.buffers;
                        wrong(check_attention(shape, sequence, [query, head], buffers))?;
                    }
                }
                Ok(())
            });
            if self.is_answered(kernel, answer, &mut last)? {
                return Ok(());
            }
        }
        Err(exhausted(&slot.key, last))
    }

    /// Runs a kernel that is in service, and books the call where it succeeds. `run` is told whether to
    /// check its result. `None` where the kernel is out of service.
    #[inline]
    fn answer(
        &mut self,
        snap: &RegistrySnapshot,
        kernel: &Arc<PublishedKernel>,
        bytes: usize,
        run: impl FnOnce(&mut Self, &mut Option<Box<dyn AttentionSession>>, bool) -> Result<(), Failure>,
    ) -> Option<Result<(), Failure>> {
        if kernel.stats().quarantined() {
            return None;
        }
        let every = snap.check_every();
        let mut state = self.take(kernel);
        let check = every > 0 && !kernel.is_native() && state.until_check == 0;
        if check {
            state.until_check = match self.all.checked_sub(1) {
                Some(left) => {
                    self.all = left;
                    0
                }
                None => self.random.next_gap(every) - 1,
            };
        } else {
            state.until_check = state.until_check.saturating_sub(1);
        }
        let started = Instant::now();
        let ran = run(self, &mut state.session, check);
        if ran.is_ok() {
            state.counters.answered(bytes, Timing::Each(started.elapsed()));
        }
        self.kernels[kernel.uid()] = Some(state);
        Some(ran)
    }

    /// Whether a kernel has answered; its failure is booked and kept in `last`.
    ///
    /// # Errors
    /// [`CallError::Failed`] in strict mode.
    #[inline]
    fn is_answered(
        &mut self,
        kernel: &Arc<PublishedKernel>,
        answer: Option<Result<(), Failure>>,
        last: &mut Option<(String, Failure)>,
    ) -> Result<bool, CallError> {
        let failure = match answer {
            None => return Ok(false),
            Some(Ok(())) => return Ok(true),
            Some(Err(failure)) => failure,
        };
        self.host.incidents.report(kernel.stats(), &failure);
        let id = kernel.id().to_owned();
        if self.host.config.strict {
            return Err(CallError::Failed { op: kernel.key().to_string(), kernel: id, failure });
        }
        *last = Some((id, failure));
        Ok(false)
    }

    /// Takes what this worker keeps of a kernel.
    #[inline]
    fn take(&mut self, kernel: &Arc<PublishedKernel>) -> State {
        let uid = kernel.uid();
        if self.kernels.len() <= uid {
            self.kernels.resize_with(uid + 1, || None);
        }
        // Its weak reference keeps the address from being used again.
        let is_of = |state: &State| std::ptr::eq(state.alive.as_ptr(), &**kernel);
        self.kernels[uid].take().filter(is_of).unwrap_or_else(|| {
            let stats = kernel.stats().clone();
            let (alive, counters) = (Arc::downgrade(kernel), stats.open());
            State { alive, stats, counters, until_check: 0, session: None }
        })
    }
}

fn failure(kernel: &PublishedKernel, detail: String) -> Failure {
    match kernel.is_native() {
        true => Failure::Native { detail },
        false => Failure::Provider { detail },
    }
}

/// What a check found against a kernel, if anything.
fn wrong(checked: Result<(), Wrong>) -> Result<(), Failure> {
    match checked {
        Err(Wrong::NonFinite { index }) => Err(Failure::NonFinite { index }),
        Err(Wrong::Mismatch { detail }) => Err(Failure::Mismatch { detail }),
        // There is no truth to hold it against.
        Ok(()) | Err(Wrong::Refused(_)) => Ok(()),
    }
}

fn exhausted(key: &OpKey, last: Option<(String, Failure)>) -> CallError {
    let last = match last {
        Some((kernel, failure)) => format!("{kernel} {failure}"),
        None => "every one is quarantined".to_owned(),
    };
    CallError::Exhausted { op: key.to_string(), last }
}
