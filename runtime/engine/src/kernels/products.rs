//! The matrices of a model: who multiplies by each, taken up anew for every snapshot that is pinned.
//!
//! Each matrix, and the table of embeddings, has [`MatrixProviders`] of its own in a pinned snapshot: who computes with
//! it, with the weights as that has prepared them. These are held by what is pinned, so they go with the last step
//! that reads them, and both layouts of a matrix are there only while a generation is on trial that brings another.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use ruvllm_host::{
    ComparedProvider, Host, HostError, KernelBudget, MatrixProviders, Preparation, Provider,
    RegistrySnapshot, Team, TeamWorker,
};
use ruvllm_native::gemm::Activations;
use ruvllm_native::{Isa, ThreadPool};

use super::pinned::{Keys, Pinned};
use crate::error::EngineError;
use crate::model::Model;

/// The matrices of a model, and how they are prepared.
pub(crate) struct Matrices {
    pub(crate) model: Arc<Model>,
    pub(crate) host: Host,
    pub(crate) pool: Arc<ThreadPool>,
    pub(crate) isa: Isa,
    /// Settings of the activations.
    pub(crate) settings: Activations,
    /// What providers of packs hold comes out of it.
    pub(crate) budget: Arc<dyn KernelBudget>,
    pub(crate) keys: Arc<Keys>,
    /// Generations that get steps, and none now: one that was made ready before any step ran on it, and the other one
    /// while a generation is on trial and steps go to and fro.
    pub(crate) waiting: Mutex<Vec<Arc<Pinned>>>,
}

impl Matrices {
    /// What a step computes on.
    pub(crate) fn team(&self) -> Team<'_> {
        Team { pool: &self.pool, isa: self.isa }
    }

    /// Pins a snapshot, and has every matrix taken up by whom it asks, with a `race` of providers first, where the
    /// policy wants one. After each, `each` is told the matrix's bytes.
    pub(super) fn pin(
        &self,
        snapshot: Arc<RegistrySnapshot>,
        worker: &mut TeamWorker,
        race: bool,
        each: &mut dyn FnMut(usize),
    ) -> Result<Pinned, EngineError> {
        let mut pinned = Pinned::new(snapshot, self.keys.clone())?;
        let how = Preparation { team: self.team(), budget: &self.budget, settings: &self.settings };
        let (snapshot, weights) = (&pinned.snapshot, self.model.weights());
        if race {
            // The first of each type and size stands for all.
            for linear in weights.multiplied() {
                worker.race_matmul(snapshot, &linear.matrix()?, &how);
            }
            worker.race_embed(snapshot, &weights.embedding.matrix()?, &how);
            let config = self.model.config();
            if let Some(layer) = config.layers.first() {
                worker.race_attention(
                    snapshot,
                    &config.attention_shape(&layer.attention, self.settings.is_deterministic()),
                    how.team,
                );
            }
        }
        let mut products: Vec<Option<MatrixProviders>> = Vec::new();
        for linear in weights.multiplied() {
            if products.len() <= linear.index() {
                products.resize_with(linear.index() + 1, || None);
            }
            let product = worker.product(snapshot, &linear.matrix()?, linear.prepared(), &how)?;
            if product.made() {
                linear.release();
            }
            products[linear.index()] = Some(product);
            each(linear.size());
        }
        let table = worker.table(
            snapshot,
            &weights.embedding.matrix()?,
            &weights.embedding_prepared,
            &how,
        )?;
        if table.made() {
            weights.embedding.release();
        }
        (pinned.products, pinned.table) = (products, Some(table));
        Ok(pinned)
    }

    /// The generation of that number, where it waits.
    pub(super) fn take_waiting(&self, generation: u64) -> Option<Arc<Pinned>> {
        let mut waiting = self.waiting();
        let at = waiting.iter().position(|one| one.snapshot.generation() == generation)?;
        Some(waiting.swap_remove(at))
    }

    /// Has a generation wait for its next step, where it gets any.
    pub(super) fn keep_waiting(&self, pinned: Arc<Pinned>) {
        let mut waiting = self.waiting();
        match self.host.serves(pinned.snapshot.generation()) {
            true => waiting.push(pinned),
            false => self.host.let_go(pinned),
        }
    }

    pub(super) fn waiting(&self) -> MutexGuard<'_, Vec<Arc<Pinned>>> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl ruvllm_host::Preparer for Matrices {
    fn prepare(&self, next: &Arc<RegistrySnapshot>) -> Result<(), HostError> {
        let mut worker = self.host.team_worker();
        // On the threads of the engine, in turns with the steps that these go on computing: providers prepare for
        // the threads that they will compute with, and a race tells of no others. What is unavailable, a step will
        // find and say.
        let Ok(pinned) = self.pin(next.clone(), &mut worker, true, &mut |_| ()) else {
            return Ok(());
        };
        if let Some((kernel, failure)) = pinned.providers().find_map(MatrixProviders::refused) {
            let (kernel, failure) = (kernel.to_owned(), failure.clone());
            return Err(HostError::NotPrepared { kernel, failure });
        }
        if pinned.providers().any(MatrixProviders::made) {
            self.waiting().push(Arc::new(pinned));
        }
        Ok(())
    }

    fn let_go(&self) {
        let gets_none = |one: &mut Arc<Pinned>| !self.host.serves(one.snapshot.generation());
        let gone: Vec<_> = self.waiting().extract_if(.., gets_none).collect();
        gone.into_iter().for_each(|one| self.host.let_go(one));
    }

    fn compare(&self, two: [ComparedProvider<'_>; 2]) -> Vec<[Duration; 2]> {
        let (mut worker, team) = (self.host.team_worker(), self.team());
        let (weights, config) = (self.model.weights(), self.model.config());
        let how = Preparation { team, budget: &self.budget, settings: &self.settings };
        match two[0].provider {
            Provider::Matmul(dtype, _) => {
                // What takes most of a token.
                let of_type = weights.multiplied().filter(|linear| linear.dtype() == *dtype);
                let largest = of_type.max_by_key(|linear| linear.size());
                let largest =
                    largest.and_then(|linear| Some((linear.matrix().ok()?, linear.prepared())));
                largest.map(|(largest, made)| worker.compare_with_matrix(two, &largest, made, &how))
            }
            Provider::Embed(dtype, _) => {
                let table = weights.embedding.matrix().ok().filter(|t| t.dtype() == *dtype);
                let made = &weights.embedding_prepared;
                table.map(|table| worker.compare_with_matrix(two, &table, made, &how))
            }
            Provider::Attention(_) => config.layers.first().map(|layer| {
                let deterministic = self.settings.is_deterministic();
                let shape = config.attention_shape(&layer.attention, deterministic);
                worker.compare_attention(two, &shape, team)
            }),
        }
        .unwrap_or_default()
    }
}

/// Calls team operations for the steps of an engine.
pub(super) struct TeamCaller {
    pub(super) matrices: Arc<Matrices>,
    pub(super) worker: TeamWorker,
    /// What [`TeamWorker::retired`] said when it was looked whether others have to take matrices up.
    retired: u64,
}

impl TeamCaller {
    pub(super) fn new(matrices: Arc<Matrices>, worker: TeamWorker) -> TeamCaller {
        TeamCaller { retired: worker.retired(), matrices, worker }
    }

    /// Whether a kernel has gone out of service since this was asked last.
    pub(super) fn misses_some(&mut self) -> bool {
        let now = self.worker.retired();
        std::mem::replace(&mut self.retired, now) != now
    }

    /// The same snapshot with its matrices taken up anew, where one is to be multiplied by a kernel that is out of
    /// service. What that has made of the weights goes with the pinned one.
    pub(super) fn replaced(&mut self, pinned: &Pinned) -> Option<Arc<Pinned>> {
        if !pinned.providers().any(MatrixProviders::is_out_of_service) {
            return None;
        }
        let snapshot = pinned.snapshot.clone();
        // Where that fails those that stand behind go on answering.
        self.matrices.pin(snapshot, &mut self.worker, false, &mut |_| ()).ok().map(Arc::new)
    }

    /// As [`TeamCaller::replaced`], for the generations that wait.
    pub(super) fn replace_waiting(&mut self) {
        let waiting = self.matrices.waiting().clone();
        for old in waiting {
            let Some(new) = self.replaced(&old) else { continue };
            let mut waiting = self.matrices.waiting();
            if let Some(place) = waiting.iter_mut().find(|one| Arc::ptr_eq(one, &old)) {
                *place = new;
            }
            self.matrices.host.let_go(old);
        }
    }
}
