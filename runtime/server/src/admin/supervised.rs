//! Turns with the supervisor.
//!
//! Whoever asks it may have to wait: for a pack to be compiled, or for a probe text to be computed.
//! There is one turn for staging, one for what publishes, one for what takes back and one for reading,
//! so that all of it takes four helper threads at most and leaves the others to requests, and nobody
//! who wants to be rid of a kernel waits until a probe text is computed with it. A turn that was begun is finished,
//! whether or not its client is still there.

use std::sync::Arc;

use ruvllm_host::{Acceptance, Supervisor, SupervisorError};
use tokio::sync::Mutex;

use crate::app::aside;
use crate::error::ApiError;

type Turn = Arc<Mutex<()>>;

/// A supervisor, asked in turns.
#[derive(Clone)]
pub(crate) struct Supervised {
    supervisor: Arc<Supervisor>,
    staging: Turn,
    changing: Turn,
    withdrawing: Turn,
    reading: Turn,
}

impl Supervised {
    pub(crate) fn new(supervisor: Arc<Supervisor>) -> Supervised {
        let (staging, changing, withdrawing, reading) = Default::default();
        Supervised { supervisor, staging, changing, withdrawing, reading }
    }

    /// Compiles and proves.
    pub(super) async fn stage<T: Send + 'static>(
        &self,
        work: impl FnOnce(&Supervisor) -> Result<T, ApiError> + Send + 'static,
    ) -> Result<T, ApiError> {
        self.take(&self.staging, work).await
    }

    /// Publishes.
    pub(super) async fn change<T: Send + 'static>(
        &self,
        work: impl FnOnce(&Supervisor) -> Result<T, ApiError> + Send + 'static,
    ) -> Result<T, ApiError> {
        self.take(&self.changing, work).await
    }

    /// Goes back, ends or discards, which waits for no kernel.
    pub(super) async fn withdraw<T: Send + 'static>(
        &self,
        work: impl FnOnce(&Supervisor) -> Result<T, ApiError> + Send + 'static,
    ) -> Result<T, ApiError> {
        self.take(&self.withdrawing, work).await
    }

    /// Changes nothing.
    pub(crate) async fn read<T: Send + 'static>(
        &self,
        work: impl FnOnce(&Supervisor) -> Result<T, ApiError> + Send + 'static,
    ) -> Result<T, ApiError> {
        self.take(&self.reading, work).await
    }

    /// Takes packs as this says from here on; see [`Supervisor::accept`]. It waits for nobody, so it takes no turn.
    pub(crate) fn accept(
        &self,
        acceptance: Acceptance,
        beside: &[String],
        operator: &str,
    ) -> Result<Vec<String>, SupervisorError> {
        self.supervisor.accept(acceptance, beside, operator)
    }

    async fn take<T: Send + 'static>(
        &self,
        turn: &Turn,
        work: impl FnOnce(&Supervisor) -> Result<T, ApiError> + Send + 'static,
    ) -> Result<T, ApiError> {
        let turn = Arc::clone(turn).lock_owned().await;
        let supervisor = Arc::clone(&self.supervisor);
        aside(move || {
            let result = work(&supervisor);
            drop(turn);
            result
        })
        .await
    }
}
