//! The scheduler: texts of many requests from one engine, a step at a time (continuous batching, Yu et
//! al., OSDI 2022).
//!
//! One thread computes steps (`runner`). A step holds one token of every running text and chunks of
//! prompts up to a budget of tokens, so a long prompt holds up no text for longer than a chunk takes.
//! Requests join and leave at every step. The loop of steps itself (`batch_step`) needs neither thread nor queue:
//! [`Session::generate`] runs it for a single request on the caller's thread (`single`).
//!
//! - *Who is next* (`queue`): the highest priority; within it the client that was served least, in
//!   tokens, those of texts counted twice; within a client who came first. Of two clients that always
//!   have requests of one priority waiting, neither is ever ahead by more than what the requests cost
//!   that run for the two. Nothing keeps a lower priority from waiting for as long as higher ones use
//!   all there is.
//! - *How many run* (`admission`): no more than are configured, and no more than fit the memory with a
//!   little room to grow. A request that does not fit waits, and those behind it do. For a request of a
//!   higher priority, the youngest of the lowest priority rest.
//! - *A full pool* in the middle of a text makes the youngest request of the lowest priority rest too.
//!   A resting sequence keeps its tokens; its blocks may be quantised, spilled or given up by
//!   [`crate::kv`]. It goes on before any request of its priority begins. What was given up is computed
//!   again in chunks, as a prompt is; what was spilled is read back in one step, which takes as long as
//!   the disk does.
//! - *Common beginnings* (`plan`): a request whose prompt begins as that of a running one in the same
//!   scope waits until that one has computed what they share, and then takes it over from the prefix
//!   cache. So the choices of one prompt compute it once.
//! - *Log-probabilities of prompts* (`scores`): those of whole blocks are kept, so that a prompt that
//!   begins alike takes them over together with the blocks.
//! - *Failures* (`batch_step`): an input that the engine names fails alone. Any other failure is tried once
//!   more, and then every sequence of the step in a step of its own; those that fail again end with
//!   their error.
//!
//! The same request with the same seed gives the same draws, whatever else runs. Its logits can differ
//! in rounding, since products of more rows sum in another order, and texts part where two tokens
//! are as good as equally likely.
//!
//! Invariants: a request whose handle is held gets exactly one last update, [`Update::Done`],
//! [`Update::Failed`] or [`Update::Embedding`], unless its sink broke off or panicked. Sinks are called on
//! the scheduler's thread alone and never under its lock. Not protected against: a sink that blocks
//! holds up every request. A panic outside sinks and constraints ends the scheduler: it lets go of all
//! sinks and takes no more requests ([`Scheduler::is_alive`]).
//!
//! [`Session::generate`]: crate::Session::generate

mod admission;
mod batch;
mod batch_step;
mod config;
mod generate;
mod plan;
mod queue;
mod request;
mod runner;
mod scores;
mod sequence;
mod state;
mod stats;

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

pub use crate::generate::Token;
pub use config::SchedulerConfig;
pub use request::{
    Finished, Kind, Latency, PromptLogprobs, Rejected, Request, Sink, Started, Update,
};
pub use stats::{SchedulerStats, StepSizes};

use crate::engine::Engine;
use crate::error::EngineError;
use queue::Queue;
use request::QueuedRequest;
use state::{Phase, SchedulerInner, SchedulerState};
use stats::Pace;

/// Runs requests on an engine; see the [module](self). Clones are handles to the same scheduler; with
/// the last of them it ends, and what still runs is cancelled.
///
/// ```no_run
/// use std::ops::ControlFlow;
/// use ruvllm_engine::scheduler::{Request, Scheduler, SchedulerConfig, Update};
///
/// # fn example(engine: ruvllm_engine::Engine) -> Result<(), Box<dyn std::error::Error>> {
/// let scheduler = Scheduler::start(engine, SchedulerConfig::default())?;
/// let sink = Box::new(|update| {
///     if let Update::Token(token) = update {
///         print!("{}", token.text);
///     }
///     ControlFlow::Continue(())
/// });
/// let _handle = scheduler.submit(Request::new(vec![1, 450, 6635], Default::default()), sink)?;
/// scheduler.drain(std::time::Duration::from_secs(60));
/// # Ok(())
/// # }
/// ```
#[derive(Clone)]
pub struct Scheduler {
    handle: Arc<Handle>,
}

struct Handle {
    inner: Arc<SchedulerInner>,
    thread: Option<JoinHandle<()>>,
}

impl Scheduler {
    /// Starts the thread.
    ///
    /// # Errors
    /// [`EngineError::InvalidOption`], also where the system gives no thread.
    pub fn start(engine: Engine, config: SchedulerConfig) -> Result<Scheduler, EngineError> {
        config.validate()?;
        let state = SchedulerState {
            queue: Queue::default(),
            phase: Phase::Open,
            busy: None,
            pace: Pace::default(),
            stats: SchedulerStats::default(),
        };
        let (work, idle) = (Condvar::new(), Condvar::new());
        let inner =
            Arc::new(SchedulerInner { engine, config, state: Mutex::new(state), work, idle });
        let thread = thread::Builder::new().name("ruvllm-steps".into());
        let thread = thread.spawn({
            let inner = Arc::clone(&inner);
            || runner::run(inner)
        });
        let thread = thread.map_err(|source| EngineError::InvalidOption {
            option: "scheduler",
            value: source.to_string(),
            reason: "the system gave no thread for it",
        })?;
        Ok(Scheduler { handle: Arc::new(Handle { inner, thread: Some(thread) }) })
    }

    /// The engine that computes.
    pub fn engine(&self) -> &Engine {
        &self.handle.inner.engine
    }

    /// The configuration.
    pub fn config(&self) -> &SchedulerConfig {
        &self.handle.inner.config
    }

    /// Whether requests can still be computed; not so after a panic of the thread.
    pub fn is_alive(&self) -> bool {
        self.handle.inner.state().phase != Phase::Stopped
    }

    /// How long the thread has been at what it does now, a step and what belongs to it; zero where there is
    /// nothing to do.
    pub fn busy_for(&self) -> Duration {
        self.handle.inner.state().busy.map_or(Duration::ZERO, |since| since.elapsed())
    }

    /// Queues a request. What becomes of it goes to `sink`, on the scheduler's thread, so it must not
    /// block; breaking off there cancels the request, as dropping the handle does.
    ///
    /// # Errors
    /// [`Rejected`]; the sink is not called then.
    pub fn submit(&self, request: Request, sink: Sink) -> Result<RequestHandle, Rejected> {
        let inner = &self.handle.inner;
        let cancel = Arc::new(AtomicBool::new(false));
        let queued = QueuedRequest::new(&inner.engine, request, sink, Arc::clone(&cancel))?;
        let mut state = inner.state();
        if state.phase != Phase::Open {
            return Err(Rejected::Draining);
        }
        if state.queue.len() >= inner.config.queue {
            state.stats.rejected += 1;
            return Err(Rejected::QueueFull {
                retry_after: state.pace.time_for(state.queue.len()),
            });
        }
        state.queue.push(queued);
        state.busy.get_or_insert_with(Instant::now);
        inner.work.notify_one();
        Ok(RequestHandle { cancel })
    }

    /// Figures as of the last step.
    pub fn stats(&self) -> SchedulerStats {
        let state = self.handle.inner.state();
        SchedulerStats { waiting: state.queue.len(), ..state.stats }
    }

    /// Takes no more requests, and returns when all are done, or at the latest after `timeout`; gives
    /// whether all are. What runs then goes on running.
    pub fn drain(&self, timeout: Duration) -> bool {
        let inner = &self.handle.inner;
        let deadline = Instant::now().checked_add(timeout);
        let mut state = inner.state();
        if state.phase == Phase::Open {
            state.phase = Phase::Draining;
        }
        while state.busy.is_some() {
            let left = match deadline {
                Some(deadline) => deadline.saturating_duration_since(Instant::now()),
                None => timeout,
            };
            if left.is_zero() {
                return false;
            }
            state = match inner.idle.wait_timeout(state, left) {
                Ok((state, _)) => state,
                Err(poisoned) => poisoned.into_inner().0,
            };
        }
        true
    }
}

impl Drop for Handle {
    fn drop(&mut self) {
        self.inner.state().phase = Phase::Stopped;
        self.inner.work.notify_one();
        let Some(thread) = self.thread.take() else { return };
        // A sink may hold the last handle.
        if thread.thread().id() != thread::current().id() {
            // A panic of the thread has been reported where it happened.
            let _ = thread.join();
        }
    }
}

/// A request that was taken. Dropping it cancels the request: within a step it has ended, and its
/// blocks are free.
#[must_use = "dropping the handle cancels the request"]
#[derive(Debug)]
pub struct RequestHandle {
    cancel: Arc<AtomicBool>,
}

impl RequestHandle {
    /// Cancels the request, unless it has ended.
    pub fn cancel(&self) {
        self.cancel.store(true, Ordering::Relaxed);
    }
}

impl Drop for RequestHandle {
    fn drop(&mut self) {
        self.cancel();
    }
}
