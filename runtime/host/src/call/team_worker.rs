//! The call path of team operations: from the thread of a step to all threads.
//!
//! Who computes with a matrix, and what it has made of the weights, is found when a snapshot is pinned
//! ([`TeamWorker::product`], [`TeamWorker::table`]). A call then asks the first that is in service, and the next one
//! where that fails; the last reads the file's bytes in place, so no second copy of the weights has to be kept for it.
//!
//! All are held to the f64 definition. When a provider has prepared a matrix, every row is checked once, but nothing
//! where the host's own code reads the weights in place. In service one run in [`crate::HostConfig::cross_check_every`]
//! is checked on average, of the host's own in [`crate::HostConfig::cross_check_own_every`], by elements that are
//! drawn: 32 of a product, the row of one token of an embedding, the head of one query of attention. A provider that is
//! wrong in a share `f` of all elements goes unseen in `n` runs that are checked in `d` elements with the probability
//! `(1 - (1 - (1 - f)^d) / every)^n`. One wrong in a thousand is found in 99 of 100 cases within 37,500 products, which
//! a model of 22 layers computes for 240 tokens; within 19,100 runs of attention with heads of 64; and within 1,400
//! embeddings of 2048 elements. Of the host's own code, of which one run in 65,536 is checked by default, it takes
//! 9.6 million products, 4.9 million runs of attention or 346,500 embeddings.
//!
//! One that fails too often is quarantined as long as another stands behind it. In a call the last of a chain stays, and
//! what it has computed stands, although it is reported as wrong: there is nothing better to answer with.

use super::check::CheckSampler;
use super::context::WorkerContext;
use super::open::Open;
use crate::error::Failure;
use crate::memory::KernelBudget;
use crate::registry::kernel::PublishedKernel;
use crate::registry::race::{TEAM_ROWS, class};
use crate::registry::{OpSlot, RegistrySnapshot, with_first};
use crate::stats::Timing;
use crate::team::{
    AttentionSession, ComparedProvider, MatmulProvider, Prepared, PreparedEmbed, PreparedMatmul,
    Provider, Team, native_weights,
};
use crate::threads::lock;
use crate::{CallError, OpKey};
use ruvllm_native::Isa;
use ruvllm_native::attention::{AttnSequence, AttnShape};
use ruvllm_native::gemm::{ActForm, ActForms, Activations, MatMut, Product, Weights, matmul_all};
use ruvllm_native::judge::Wrong;
use ruvllm_native::judge::team::{
    TeamBuffers, check_attention, check_gathered, check_product, check_rows,
};
use smallvec::SmallVec;
use std::sync::{Arc, Mutex, Weak};
use std::time::Instant;

/// Elements of a product that a check looks at.
const CHECKED: usize = 32;

/// Rows of a table that are gathered at a time when all are checked.
const GATHERED: usize = 256;

/// Bytes of a call, weights included, below which it is small: reading the clock twice would take up to a hundredth of
/// its time, so about one of [`CLOCK_EVERY`] is timed.
const SMALL_BYTES: usize = 1 << 20;

/// Of so many small calls one is timed on average, and no kernel can know which.
const CLOCK_EVERY: u32 = 16;

/// What providers of one operation have made of a matrix, for as long as somebody computes with it.
#[derive(Default)]
pub struct PreparedWeights {
    made: Mutex<Vec<(LayoutKey, Weak<PreparedLayout>)>>,
}

/// Whose layout of a matrix it is, and what it was made for.
#[derive(PartialEq)]
struct LayoutKey {
    hash: String,
    isa: Isa,
    /// A provider of a pack may share the weights out to threads, the host's own code does not.
    threads: Option<usize>,
}

impl LayoutKey {
    fn new(hash: &str, is_native: bool, team: Team<'_>) -> Self {
        let threads = (!is_native).then(|| team.pool.threads());
        Self { hash: hash.to_owned(), isa: team.isa, threads }
    }
}

fn find(
    made: &[(LayoutKey, Weak<PreparedLayout>)],
    key: &LayoutKey,
) -> Option<Arc<PreparedLayout>> {
    made.iter().find(|(of, _)| of == key)?.1.upgrade()
}

/// Weights that a provider has prepared, and what they count for.
pub(super) struct PreparedLayout {
    pub(super) prepared: Prepared,
    bytes: usize,
    _memory: Option<BudgetReservation>,
}

impl PreparedLayout {
    pub(super) fn new(prepared: Prepared, bytes: usize, memory: Option<BudgetReservation>) -> Self {
        Self { prepared, bytes, _memory: memory }
    }
}

/// Bytes of a budget, given back when this is dropped.
pub(super) struct BudgetReservation {
    budget: Arc<dyn KernelBudget>,
    bytes: usize,
}

impl BudgetReservation {
    pub(super) fn new(budget: &Arc<dyn KernelBudget>, bytes: usize) -> Option<Self> {
        budget.take(bytes).then(|| Self { budget: budget.clone(), bytes })
    }
}

impl Drop for BudgetReservation {
    fn drop(&mut self) {
        self.budget.give(self.bytes);
    }
}

/// Who computes with one matrix, products or rows of a table, in the order in which they are asked.
pub struct MatrixProviders {
    /// In the order for one row. Stored inline: until the next call with this matrix the rest of the model goes
    /// through the caches, so every pointer that is followed is a cache miss.
    chain: SmallVec<[PreparedProvider; 2]>,
    /// Where in it that one is who is asked first for more rows.
    first_of_many: usize,
    /// The first that is not the host's own and could not take the matrix up, and why.
    refused: Option<Box<(String, Failure)>>,
    made: bool,
}

/// A product with one matrix, `y[m, n] = x[m, k] w[n, k]^T`.
pub struct MatrixProduct<'a> {
    /// Who multiplies by the matrix.
    pub providers: &'a MatrixProviders,
    /// The matrix.
    pub weights: Weights<'a>,
    /// Where the product goes.
    pub y: MatMut<'a>,
}

impl MatrixProduct<'_> {
    /// Bytes that it reads and writes, with `rows` rows of activations.
    fn bytes(&self, rows: usize) -> usize {
        let numbers = rows * (self.weights.rows() + self.weights.cols());
        self.weights.size() + size_of::<f32>() * numbers
    }

    /// What the host's own code computes, where this kernel of its is asked first.
    fn native<'s>(
        &'s mut self,
        kernel: &Arc<PublishedKernel>,
        x: &'s Activations,
        team: Team<'_>,
    ) -> Option<Product<'s>> {
        let one = self.providers.in_service(x.rows())?;
        let Prepared::Matmul(_, prepared) = &one.prepared else { return None };
        let weights = native_weights(&**prepared, self.weights)?;
        let y = MatMut { data: &mut *self.y.data, stride: self.y.stride };
        let product = Product::new(team.isa, weights, x, y).ok()?;
        Arc::ptr_eq(&one.kernel, kernel).then_some(product)
    }
}

struct PreparedProvider {
    kernel: Arc<PublishedKernel>,
    prepared: Prepared,
    /// Keeps the prepared weights counted, and others can find them here.
    _layout: Arc<PreparedLayout>,
}

/// How matrices are prepared.
#[derive(Clone, Copy)]
pub struct Preparation<'a> {
    /// What is computed on.
    pub team: Team<'a>,
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
    kernels: Vec<Option<ProviderState>>,
    pub(super) checks: Checks,
}

/// Decides which elements of a result are checked, and holds what that takes.
pub(super) struct Checks {
    pub(super) sampler: CheckSampler,
    buffers: TeamBuffers,
}

impl Checks {
    /// A number below `n`, drawn.
    pub(super) fn below(&mut self, n: usize) -> usize {
        self.sampler.random.below(n as u32) as usize
    }

    /// Holds elements of a product, which are drawn, against its definition. Rows of `y` lie `stride` elements apart.
    fn product(
        &mut self,
        of: &PreparedProvider,
        weights: &Weights<'_>,
        x: &Activations,
        (y, stride): (&[f32], usize),
        team: Team<'_>,
    ) -> Result<(), Failure> {
        let Prepared::Matmul(provider, _) = &of.prepared else { return Ok(()) };
        let form = provider.reads(x, x.rows(), team.isa);
        for _ in 0..CHECKED.min(x.rows() * weights.rows()) {
            let at @ [row, col] = [self.below(x.rows()), self.below(weights.rows())];
            match check_product(weights, x, form, at, y[row * stride + col], &mut self.buffers) {
                // It says that it reads what it did not ask for, or nothing that there is.
                Err(Wrong::Refused(error)) if !of.kernel.is_native() => {
                    return Err(failure(error.to_string()));
                }
                checked => wrong(checked)?,
            }
        }
        Ok(())
    }
}

/// What a worker keeps of one provider.
struct ProviderState {
    open: Open,
    /// Runs until the next check.
    until_check: u32,
    /// Small calls until the next that is timed.
    until_clock: u32,
    session: Option<Box<dyn AttentionSession>>,
}

impl MatrixProviders {
    /// The form that products of `rows` rows read: of all that may be asked, so that another can answer where one
    /// fails.
    pub fn reads(&self, x: &Activations, rows: usize, isa: Isa) -> ActForms {
        let forms = self.chain.iter().filter_map(|one| match &one.prepared {
            Prepared::Matmul(provider, _) => Some(provider.reads(x, rows, isa).into()),
            Prepared::Embed(_) => None,
        });
        forms.fold(ActForms::NONE, ActForms::and)
    }

    /// Those who are asked in a call of so many rows, in order.
    #[inline]
    fn by_rows(&self, rows: usize) -> impl Iterator<Item = &PreparedProvider> + Clone {
        with_first(&self.chain, Some(if rows > 1 { self.first_of_many } else { 0 }))
    }

    /// The first of them that is in service.
    #[inline]
    fn in_service(&self, rows: usize) -> Option<&PreparedProvider> {
        self.by_rows(rows).find(|one| !one.kernel.stats().quarantined())
    }

    /// The first provider that is not the host's own and could not take the matrix up, and why.
    pub fn refused(&self) -> Option<(&str, &Failure)> {
        self.refused.as_deref().map(|(kernel, failure)| (kernel.as_str(), failure))
    }

    /// Whether the weights were brought into another layout just now.
    pub fn made(&self) -> bool {
        self.made
    }

    /// Whether one that is asked first has gone out of service: who stands behind it reads the file's bytes, while
    /// [`TeamWorker::product`] finds who else would take the matrix up.
    pub fn is_out_of_service(&self) -> bool {
        let firsts = [0, self.first_of_many].into_iter().filter_map(|at| self.chain.get(at));
        firsts.into_iter().any(|first| first.kernel.stats().quarantined())
    }

    /// The kernel that is asked first.
    pub fn kernel(&self) -> &str {
        self.chain.first().map_or("", |one| one.kernel.id())
    }
}

impl PreparedWeights {
    /// Bytes that providers hold of the weights in layouts of their own.
    pub fn held_bytes(&self) -> usize {
        let made = lock(&self.made);
        made.iter().filter_map(|(_, held)| Some(held.upgrade()?.bytes)).sum()
    }

    /// What one of two that are compared has prepared, where that is held for such a team.
    pub(super) fn held(
        &self,
        one: ComparedProvider<'_>,
        team: Team<'_>,
    ) -> Option<Arc<PreparedLayout>> {
        find(&lock(&self.made), &LayoutKey::new(one.hash, one.is_native, team))
    }
}

impl TeamWorker {
    pub(crate) fn new(host: Arc<WorkerContext>) -> Self {
        let checks = Checks { sampler: CheckSampler::new(), buffers: TeamBuffers::default() };
        Self { host, kernels: Vec::new(), checks }
    }

    /// Changes whenever a kernel has gone out of service.
    pub fn retired(&self) -> u64 {
        self.host.retired()
    }

    /// Has every one of the next runs checked: something has computed what it should not.
    #[cold]
    pub fn suspect(&mut self) {
        self.checks.sampler.suspect();
        self.kernels.iter_mut().flatten().for_each(|state| state.until_check = 0);
    }

    /// Has a matrix taken up for products, by the provider that the snapshot asks first, or the first that can and for
    /// which there is memory; behind it stand those that read the file's bytes. So at most one layout of the weights is
    /// made, and none where the first reads the file's.
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
    ) -> Result<MatrixProviders, CallError> {
        let class = class(weights.rows() * weights.cols());
        self.take_up(snap, OpKey::matmul(weights.dtype()), class, weights, made, how)
    }

    /// Has a table taken up for its rows to be gathered, as [`TeamWorker::product`] has a matrix.
    ///
    /// # Errors
    /// As for [`TeamWorker::product`].
    pub fn table(
        &mut self,
        snap: &RegistrySnapshot,
        table: &Weights<'_>,
        made: &PreparedWeights,
        how: &Preparation<'_>,
    ) -> Result<MatrixProviders, CallError> {
        let class = class(table.rows() * table.cols());
        self.take_up(snap, OpKey::embed(table.dtype()), class, table, made, how)
    }

    fn take_up(
        &mut self,
        snap: &RegistrySnapshot,
        key: OpKey,
        class: usize,
        weights: &Weights<'_>,
        made: &PreparedWeights,
        how: &Preparation<'_>,
    ) -> Result<MatrixProviders, CallError> {
        let slot = snap.slot_of(&key);
        let Some(slot) = slot.filter(|slot| !slot.choice.chain.is_empty()) else {
            let (name, detail) = (key.to_string(), "nobody provides it".to_owned());
            return Err(CallError::Unknown { name, detail });
        };
        let [one, many] = TEAM_ROWS.map(|rows| slot.winner(class, rows));
        let mut found = MatrixProviders {
            chain: SmallVec::new(),
            first_of_many: 0,
            refused: None,
            made: false,
        };
        let mut last = None;
        // Most text is written a token at a time, so that decides who may hold the weights.
        let mut order = with_first(&slot.choice.chain, one);
        while let Some(kernel) = order.next() {
            let is_last = order.clone().next().is_none();
            let Some(provider) = kernel.team() else { continue };
            let Some(bytes) = provider.prepared_bytes(weights, how.team.isa) else { continue };
            let second = bytes > 0 && !found.chain.is_empty();
            if second || kernel.stats().quarantined() && !is_last {
                continue;
            }
            match self.prepare(kernel, provider, weights, made, bytes, how) {
                Ok((held, new)) => {
                    found.made |= new && bytes > 0;
                    let (kernel, prepared) = (kernel.clone(), held.prepared.clone());
                    found.chain.push(PreparedProvider { kernel, prepared, _layout: held });
                }
                Err(failure) => {
                    match is_last {
                        true => self.host.incidents.report_last(kernel.stats(), &failure),
                        false => self.host.incidents.report(kernel.stats(), &failure),
                    }
                    let failed = (kernel.id().to_owned(), failure);
                    if !kernel.is_native() && found.refused.is_none() {
                        found.refused = Some(Box::new(failed.clone()));
                    }
                    last = Some(failed);
                }
            }
        }
        let many = many.and_then(|at| slot.choice.chain.get(at));
        let is_many =
            |one: &PreparedProvider| many.is_some_and(|many| Arc::ptr_eq(many, &one.kernel));
        found.first_of_many = found.chain.iter().position(is_many).unwrap_or(0);
        match (found.chain.is_empty(), last) {
            (false, _) => Ok(found),
            (true, last) => Err(Unanswered::Exhausted(last).of(&key)),
        }
    }

    /// A matrix as a provider takes it up, and whether it was not taken up before.
    pub(super) fn prepare(
        &mut self,
        kernel: &Arc<PublishedKernel>,
        provider: &Provider,
        weights: &Weights<'_>,
        made: &PreparedWeights,
        bytes: usize,
        how: &Preparation<'_>,
    ) -> Result<(Arc<PreparedLayout>, bool), Failure> {
        // Held until it is done: what two want is made once.
        let mut made = lock(&made.made);
        made.retain(|(_, held)| held.strong_count() > 0);
        let key = LayoutKey::new(kernel.hash(), kernel.is_native(), how.team);
        if let Some(held) = find(&made, &key) {
            return Ok((held, false));
        }
        let memory = match bytes > 0 && !kernel.is_native() {
            false => None,
            true => Some(
                BudgetReservation::new(how.budget, bytes)
                    .ok_or(Failure::WeightMemory { needed: bytes })?,
            ),
        };
        let prepared = provider.prepare(weights, how.team).map_err(failure)?;
        // The host's own code for weights in place has rearranged nothing.
        if bytes > 0 || !kernel.is_native() {
            match &prepared {
                Prepared::Matmul(provider, prepared) => {
                    self.check_rows(&**provider, &**prepared, weights, how)?;
                }
                Prepared::Embed(prepared) => self.check_table(&**prepared, weights, how)?,
            }
        }
        let held = Arc::new(PreparedLayout::new(prepared, bytes, memory));
        made.push((key, Arc::downgrade(&held)));
        Ok((held, true))
    }

    /// Holds each row of a matrix that was taken up against its definition, for a random input.
    fn check_rows(
        &mut self,
        provider: &dyn MatmulProvider,
        prepared: &dyn PreparedMatmul,
        weights: &Weights<'_>,
        how: &Preparation<'_>,
    ) -> Result<(), Failure> {
        let (x, form) = self.input(provider, weights, 1, how)?;
        let mut y = vec![f32::NAN; weights.rows()];
        let stride = y.len();
        let out = MatMut { data: &mut y, stride };
        prepared.run(weights, &x, out, how.team).map_err(failure)?;
        wrong(check_rows(how.team.pool, weights, &x, form, &y))
    }

    /// Holds each row of a table that was taken up against the table's.
    fn check_table(
        &mut self,
        prepared: &dyn PreparedEmbed,
        table: &Weights<'_>,
        how: &Preparation<'_>,
    ) -> Result<(), Failure> {
        let mut y = vec![f32::NAN; table.rows().min(GATHERED) * table.cols()];
        let vocab: Vec<u32> = (0..table.rows() as u32).collect();
        for tokens in vocab.chunks(GATHERED) {
            let y = &mut y[..tokens.len() * table.cols()];
            prepared.run(table, tokens, y, how.team).map_err(failure)?;
            for (token, got) in tokens.iter().zip(y.chunks_exact(table.cols())) {
                wrong(check_gathered(table, *token as usize, got, &mut self.checks.buffers))?;
            }
        }
        Ok(())
    }

    /// Random activations `[rows, k]` in the form that a provider reads.
    pub(super) fn input(
        &mut self,
        provider: &dyn MatmulProvider,
        weights: &Weights<'_>,
        rows: usize,
        how: &Preparation<'_>,
    ) -> Result<(Activations, ActForm), Failure> {
        let Team { pool, isa, .. } = how.team;
        let mut x = Activations::like(how.settings);
        let form = provider.reads(&x, rows, isa);
        let numbers: Vec<f32> =
            (0..rows * weights.cols()).map(|_| self.checks.sampler.random.uniform()).collect();
        x.prepare(pool, isa, &numbers, rows, weights.cols(), form.into())
            .map_err(|e| Failure::Native { detail: e.to_string() })?;
        Ok((x, form))
    }

    /// Multiplies the same activations by several matrices, each by its providers. Where the host's own code answers for
    /// neighbours, it computes them together.
    ///
    /// # Errors
    /// [`CallError::Failed`] in strict mode, [`CallError::Exhausted`] where nobody could answer; the outputs may have a
    /// part of the products.
    pub fn matmul(
        &mut self,
        snap: &RegistrySnapshot,
        products: &mut [MatrixProduct<'_>],
        x: &Activations,
        team: Team<'_>,
    ) -> Result<(), CallError> {
        let uid = |product: &MatrixProduct<'_>| {
            product.providers.in_service(x.rows()).map(|one| one.kernel.uid())
        };
        for products in products.chunk_by_mut(|a, b| uid(a) == uid(b)) {
            if products.len() > 1 && self.matmul_together(snap, products, x, team)? {
                continue;
            }
            for product in products {
                self.matmul_alone(snap, product, x, team)?;
            }
        }
        Ok(())
    }

    /// Computes products that one kernel of the host's own is asked for first, and books as many calls. `false` where
    /// there is no such kernel or it was found wrong: then each is to be computed alone.
    fn matmul_together(
        &mut self,
        snap: &RegistrySnapshot,
        products: &mut [MatrixProduct<'_>],
        x: &Activations,
        team: Team<'_>,
    ) -> Result<bool, CallError> {
        let first = products.first().and_then(|product| product.providers.in_service(x.rows()));
        let Some(first) = first.filter(|one| one.kernel.is_native()) else { return Ok(false) };
        let (kernel, every) = (&first.kernel, self.check_every(snap, &first.kernel));
        let bytes: usize = products.iter().map(|product| product.bytes(x.rows())).sum();
        let native = products.iter_mut().map(|product| product.native(kernel, x, team));
        let Some(mut native) = native.collect::<Option<SmallVec<[Product<'_>; 3]>>>() else {
            return Ok(false);
        };
        let Self { host, kernels, checks } = self;
        let (state, calls) = (state(kernels, kernel), native.len() as u32);
        let checked = (every > 0 && state.until_check < calls).then_some(state.until_check);
        state.until_check = match checked {
            Some(at) => checks.sampler.until_next(every).saturating_sub(calls - 1 - at),
            None => state.until_check.saturating_sub(calls),
        };
        let (started, small) = state.start(bytes, checked.is_some(), checks);
        matmul_all(team.pool, &mut native);
        drop(native);
        if let Some(MatrixProduct { weights, y, .. }) = checked.map(|at| &products[at as usize])
            && let Err(failure) = checks.product(first, weights, x, (y.data, y.stride), team)
        {
            host.incidents.report(kernel.stats(), &failure);
            if host.config.strict {
                let failed = Unanswered::Strict((kernel.id().to_owned(), failure));
                return Err(failed.of(&OpKey::matmul(weights.dtype())));
            }
            self.suspect();
            return Ok(false);
        }
        let took = started.map(|started| started.elapsed());
        for product in products {
            let size = product.bytes(x.rows());
            let share = took.map(|took| took.mul_f64(size as f64 / bytes as f64));
            state.open.counters.answered(size, Timing::of(share, small));
        }
        Ok(true)
    }

    /// `y[m, n] = x[m, k] w[n, k]^T`, by the providers of the matrix.
    fn matmul_alone(
        &mut self,
        snap: &RegistrySnapshot,
        product: &mut MatrixProduct<'_>,
        x: &Activations,
        team: Team<'_>,
    ) -> Result<(), CallError> {
        let bytes = product.bytes(x.rows());
        let MatrixProduct { providers, weights, y: MatMut { data, stride } } = product;
        let (weights, stride) = (&*weights, *stride);
        let chain = providers.by_rows(x.rows()).filter_map(|one| match &one.prepared {
            Prepared::Matmul(_, prepared) => Some((&one.kernel, (one, prepared))),
            Prepared::Embed(_) => None,
        });
        let asked = self.ask(snap, chain, bytes, |(one, prepared), _, checks| {
            let out = MatMut { data, stride };
            prepared.run(weights, x, out, team).map_err(failure)?;
            checks.map_or(Ok(()), |checks| checks.product(one, weights, x, (data, stride), team))
        });
        asked.map_err(|error| error.of(&OpKey::matmul(weights.dtype())))
    }

    /// Rows of a table: row `tokens[i]` of `[vocab, dim]` to row `i` of `y`, by the providers of this table. The
    /// tokens are in it.
    ///
    /// # Errors
    /// As for [`TeamWorker::matmul`].
    pub fn embed(
        &mut self,
        snap: &RegistrySnapshot,
        providers: &MatrixProviders,
        table: &Weights<'_>,
        tokens: &[u32],
        y: &mut [f32],
        team: Team<'_>,
    ) -> Result<(), CallError> {
        let chain = providers.by_rows(tokens.len()).filter_map(|one| match &one.prepared {
            Prepared::Embed(prepared) => Some((&one.kernel, prepared)),
            Prepared::Matmul(..) => None,
        });
        let asked = self.ask(snap, chain, size_of_val(y), |prepared, _, checks| {
            prepared.run(table, tokens, y, team).map_err(failure)?;
            if let Some(checks) = checks.filter(|_| !tokens.is_empty()) {
                let row = checks.below(tokens.len());
                let got = &y[row * table.cols()..(row + 1) * table.cols()];
                wrong(check_gathered(table, tokens[row] as usize, got, &mut checks.buffers))?;
            }
            Ok(())
        });
        asked.map_err(|error| error.of(&OpKey::embed(table.dtype())))
    }

    /// Attention of each sequence's queries over its own cache.
    ///
    /// # Errors
    /// As for [`TeamWorker::matmul`], and [`CallError::StaleSlot`].
    pub fn attention(
        &mut self,
        snap: &RegistrySnapshot,
        slot: OpSlot,
        shape: &AttnShape,
        sequences: &mut [AttnSequence<'_>],
        team: Team<'_>,
    ) -> Result<(), CallError> {
        let slot = snap.entry(slot)?;
        let cache = |s: &AttnSequence<'_>| {
            s.kv.iter().map(|kv| kv.keys.data.len() + kv.values.data.len()).sum::<usize>()
        };
        let queries = |s: &AttnSequence<'_>| size_of_val(s.q) + size_of_val(&*s.y);
        let bytes = sequences.iter().map(|sequence| cache(sequence) + queries(sequence)).sum();
        let row = shape.heads * shape.head_dim;
        let rows = |sequence: &AttnSequence<'_>| sequence.y.len() / row.max(1);
        let rows = sequences.iter().map(rows).max().unwrap_or_default();
        let chain =
            slot.by_rows(class(shape.head_dim), rows).filter_map(|kernel| match kernel.team() {
                Some(Provider::Attention(provider)) => Some((kernel, provider)),
                _ => None,
            });
        let asked = self.ask(snap, chain, bytes, |provider, session, checks| {
            let session = session.get_or_insert_with(|| provider.open());
            // What is checked, and what the next one answers, is not what this one makes of its list.
            let given = sequences.iter_mut().map(|s| AttnSequence { y: &mut *s.y, ..*s });
            let mut given: SmallVec<[AttnSequence<'_>; 16]> = given.collect();
            session.run(shape, &mut given, team).map_err(failure)?;
            drop(given);
            if let Some(checks) = checks.filter(|_| row > 0 && !sequences.is_empty()) {
                let sequence = &sequences[checks.below(sequences.len())];
                let queries = sequence.y.len() / row;
                if queries > 0 {
                    let (query, head) = (checks.below(queries), checks.below(shape.heads));
                    let buffers = &mut checks.buffers;
                    wrong(check_attention(shape, sequence, [query, head], buffers))?;
                }
            }
            Ok(())
        });
        asked.map_err(|error| error.of(&slot.key))
    }

    /// One of how many runs of this kernel is checked; 0 for none.
    fn check_every(&self, snap: &RegistrySnapshot, kernel: &PublishedKernel) -> u32 {
        match (snap.check_every(), kernel.is_native()) {
            (1.., true) => self.host.config.cross_check_own_every,
            (every, _) => every,
        }
    }

    /// Asks the kernels of a chain that are in service, one after another, until one answers, and books the call.
    /// `run` is handed what stands beside the kernel in the chain, and what checks the result where it is to be.
    #[inline]
    fn ask<'k, P>(
        &mut self,
        snap: &RegistrySnapshot,
        mut chain: impl Iterator<Item = (&'k Arc<PublishedKernel>, P)> + Clone,
        bytes: usize,
        mut run: impl FnMut(
            P,
            &mut Option<Box<dyn AttentionSession>>,
            Option<&mut Checks>,
        ) -> Result<(), Failure>,
    ) -> Result<(), Unanswered> {
        let mut last = None;
        while let Some((kernel, provider)) = chain.next() {
            if kernel.stats().quarantined() && chain.clone().next().is_some() {
                continue;
            }
            let every = self.check_every(snap, kernel);
            let Self { host, kernels, checks } = self;
            let state = state(kernels, kernel);
            let check = every > 0 && state.until_check == 0;
            state.until_check = match check {
                true => checks.sampler.until_next(every),
                false => state.until_check.saturating_sub(1),
            };
            let (started, small) = state.start(bytes, check, checks);
            let ran = run(provider, &mut state.session, check.then_some(&mut *checks));
            let took = started.map(|started| started.elapsed());
            if let Err(failure) = ran {
                let is_last = !chain.clone().any(|(kernel, _)| !kernel.stats().quarantined());
                match is_last {
                    true => host.incidents.report_last(kernel.stats(), &failure),
                    false => host.incidents.report(kernel.stats(), &failure),
                }
                let wrong = matches!(failure, Failure::Mismatch { .. } | Failure::NonFinite { .. });
                let failed = (kernel.id().to_owned(), failure);
                if host.config.strict {
                    return Err(Unanswered::Strict(failed));
                }
                if !(is_last && wrong) {
                    last = Some(failed);
                    continue;
                }
            }
            state.open.counters.answered(bytes, Timing::of(took, small));
            return Ok(());
        }
        Err(Unanswered::Exhausted(last))
    }
}

impl ProviderState {
    /// Begins a call of so many bytes: gives the time, where it is to be timed, and whether it is small.
    #[inline]
    fn start(&mut self, bytes: usize, check: bool, checks: &mut Checks) -> (Option<Instant>, bool) {
        // A call that is checked takes longer than others: it may not stand for them.
        let small = bytes < SMALL_BYTES && !check;
        let timed = !small || self.until_clock == 0;
        self.until_clock = match small && timed {
            true => checks.sampler.random.next_gap(CLOCK_EVERY) - 1,
            false => self.until_clock.saturating_sub(1),
        };
        (timed.then(Instant::now), small)
    }
}

/// What a worker keeps of a provider.
#[inline]
fn state<'a>(
    kernels: &'a mut Vec<Option<ProviderState>>,
    kernel: &Arc<PublishedKernel>,
) -> &'a mut ProviderState {
    let uid = kernel.uid();
    if kernels.len() <= uid {
        kernels.resize_with(uid + 1, || None);
    }
    // One that is gone has left its number to another.
    drop(kernels[uid].take_if(|state| !state.open.is_of(kernel)));
    kernels[uid].get_or_insert_with(|| ProviderState {
        open: Open::new(kernel),
        until_check: 0,
        until_clock: 0,
        session: None,
    })
}

/// Why nobody has answered: the kernel that failed, and how.
enum Unanswered {
    /// Nobody else may.
    Strict((String, Failure)),
    /// It was the last; `None` where there is nobody.
    Exhausted(Option<(String, Failure)>),
}

impl Unanswered {
    fn of(self, key: &OpKey) -> CallError {
        let op = key.to_string();
        match self {
            Unanswered::Strict((kernel, failure)) => CallError::Failed { op, kernel, failure },
            Unanswered::Exhausted(last) => {
                let last = match last {
                    Some((kernel, failure)) => format!("{kernel} {failure}"),
                    None => "nobody takes such operands".to_owned(),
                };
                CallError::Exhausted { op, last }
            }
        }
    }
}

fn failure(detail: String) -> Failure {
    Failure::Provider { detail }
}

/// What a check found against a kernel, if anything.
fn wrong(checked: Result<(), Wrong>) -> Result<(), Failure> {
    match checked {
        // There is no truth to hold it against.
        Ok(()) | Err(Wrong::Refused(_)) => Ok(()),
        Err(wrong) => Err(wrong.into()),
    }
}
