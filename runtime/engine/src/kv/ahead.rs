//! Writing blocks anew ahead of time, on a thread of the store's own.
//!
//! Ages are positions, so which blocks get a smaller codec at a sequence's next boundary is known at this
//! one, a block of tokens before. The thread is handed copies of them, and at the next boundary what it
//! made of them is put in their place. What a step reads does not depend on the thread: a block
//! changes at the boundary and not before, and what is not there by then is waited for. That is rare,
//! since a block is written in less than a millisecond and computing as many tokens takes many.
//!
//! - Attention goes on reading the block meanwhile. The copy spares both sides a lock.
//! - The block holds a [`JobHandle`] to its job. Whoever may write to its bytes, or drops them, drops the
//!   handle, and with it the job; so nothing is ever put in place of anything else.
//! - A job is worth nothing once other kernels are pinned than those it was to be written by, nor when one
//!   of them fails; the block is then written when it is due, by the kernels of that step, and
//!   what fails fails there.
//! - A job's slots are the pool's. The thread never frees them: they go back when the store joins or
//!   gives up the job, so that what is in use does not depend on its pace either.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, Weak};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use ruvllm_host::{Scope, Worker};
use ruvllm_native::ThreadPool;

use super::block::{BlockShape, Codecs, Side};
use super::recode::{Packer, Scratch};
use crate::error::EngineError;
use crate::kernels::{Kernels, Pinned};

#[cfg(test)]
mod tests;

/// The most jobs that there are at a time: some dozen sequences that are decoded together.
const JOBS: usize = 64;

/// The thread, and the jobs that were handed to it.
pub(super) struct RecodeThread {
    queue: Arc<JobQueue>,
    thread: Option<JoinHandle<()>>,
}

struct JobQueue {
    jobs: Mutex<Jobs>,
    /// A job was handed over, or the thread is to end.
    handed: Condvar,
    /// The thread is through with a job.
    back: Condvar,
}

struct Jobs {
    /// In the order in which they were handed over.
    list: Vec<QueuedJob>,
    /// The number of the next job.
    next: u64,
    end: bool,
}

struct QueuedJob {
    number: u64,
    /// The step that handed it over.
    since: u64,
    /// `None` while the thread has it.
    job: Option<RecodeJob>,
}

/// A block to be written anew.
pub(super) struct RecodeJob {
    /// By half, the sides that change.
    recodes: [Option<SideRecode>; 2],
    tokens: usize,
    isolation: Scope,
    codecs: Codecs,
    /// The kernels of the step that handed it over, gone once others are pinned.
    kernels: Weak<Pinned>,
    state: JobState,
}

/// A copy of a side, and where it is written anew.
pub(super) struct SideRecode {
    pub(super) from: Side,
    pub(super) to: Side,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum JobState {
    Waiting,
    /// All of it, in so much time.
    Written(Duration),
    Failed,
}

/// The sides of a block that have changed, by half, and how long writing them took.
pub(super) type RecodedSides = ([Option<Side>; 2], Duration);

/// A block's handle to the job that writes it anew. The job goes with it.
pub(super) struct JobHandle {
    queue: Arc<JobQueue>,
    number: u64,
}

impl JobHandle {
    /// What was written, once it is; `None` where that is not for these codecs, or not by these kernels, or
    /// was given up or failed.
    pub(super) fn join(self, codecs: Codecs, kernels: &Arc<Pinned>) -> Option<RecodedSides> {
        let job = self.queue.take(self.number, |job| job.state != JobState::Waiting)?;
        let JobState::Written(took) = job.state else { return None };
        let fits = job.codecs == codecs && Weak::ptr_eq(&job.kernels, &Arc::downgrade(kernels));
        fits.then(|| (job.recodes.map(|recode| Some(recode?.to)), took))
    }
}

impl Drop for JobHandle {
    fn drop(&mut self) {
        self.queue.take(self.number, |_| true);
    }
}

impl JobQueue {
    fn lock(&self) -> MutexGuard<'_, Jobs> {
        self.jobs.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn wait<'a>(condition: &Condvar, jobs: MutexGuard<'a, Jobs>) -> MutexGuard<'a, Jobs> {
        condition.wait(jobs).unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes a job off the list once it is `ready`; one that the thread has is waited for.
    fn take(&self, number: u64, ready: impl Fn(&RecodeJob) -> bool) -> Option<RecodeJob> {
        let mut jobs = self.lock();
        loop {
            let at = jobs.list.iter().position(|queued| queued.number == number)?;
            if jobs.list[at].job.as_ref().is_some_and(&ready) {
                return jobs.list.remove(at).job;
            }
            jobs = Self::wait(&self.back, jobs);
        }
    }

    /// The next job for the thread; `None` when it is to end.
    fn next(&self) -> Option<(u64, RecodeJob)> {
        let mut jobs = self.lock();
        loop {
            if jobs.end {
                return None;
            }
            let waiting = |job: &mut RecodeJob| job.state == JobState::Waiting;
            for queued in &mut jobs.list {
                if let Some(job) = queued.job.take_if(waiting) {
                    return Some((queued.number, job));
                }
            }
            jobs = Self::wait(&self.handed, jobs);
        }
    }

    /// Puts a job back that the thread is through with.
    fn give_back(&self, number: u64, job: RecodeJob) {
        let mut jobs = self.lock();
        // Nobody takes it off the list while the thread has it.
        if let Some(queued) = jobs.list.iter_mut().find(|queued| queued.number == number) {
            queued.job = Some(job);
        }
        self.back.notify_all();
    }

    /// What the thread does.
    fn work(&self, shape: BlockShape, worker: Worker) {
        let (pool, mut scratch) = (ThreadPool::new(1), Scratch::default());
        let mut workers = vec![worker];
        while let Some((number, mut job)) = self.next() {
            job.state = JobState::Failed;
            if let Some(pinned) = job.kernels.upgrade() {
                let start = Instant::now();
                let mut kernels = Kernels::of(pinned, workers);
                let (kernels_of, scope) = (&mut kernels, job.isolation);
                let mut packer =
                    Packer { kernels: kernels_of, pool: &pool, scope, scratch: &mut scratch };
                let written = catch_unwind(AssertUnwindSafe(|| job.write(&shape, &mut packer)));
                if matches!(written, Ok(Ok(()))) {
                    job.state = JobState::Written(start.elapsed());
                }
                workers = kernels.into_workers();
            }
            self.give_back(number, job);
        }
    }
}

impl RecodeJob {
    /// A block of `tokens` tokens that the kernels of the step write anew.
    pub(super) fn new(
        recodes: [Option<SideRecode>; 2],
        tokens: usize,
        isolation: Scope,
        codecs: Codecs,
        kernels: &Arc<Pinned>,
    ) -> RecodeJob {
        let kernels = Arc::downgrade(kernels);
        RecodeJob { recodes, tokens, isolation, codecs, kernels, state: JobState::Waiting }
    }

    fn write(&mut self, shape: &BlockShape, packer: &mut Packer<'_>) -> Result<(), EngineError> {
        let mut recodes = self.recodes.iter_mut().flatten();
        recodes.try_for_each(|SideRecode { from, to }| packer.recode(shape, self.tokens, from, to))
    }
}

impl RecodeThread {
    /// Starts the thread, if the system lets it.
    pub(super) fn start(shape: BlockShape, worker: Worker) -> Option<RecodeThread> {
        let jobs = Jobs { list: Vec::with_capacity(JOBS), next: 0, end: false };
        let queue = Arc::new(JobQueue {
            jobs: Mutex::new(jobs),
            handed: Condvar::new(),
            back: Condvar::new(),
        });
        let theirs = Arc::clone(&queue);
        let thread = thread::Builder::new()
            .name("ruvllm-kv".into())
            .spawn(move || theirs.work(shape, worker));
        Some(RecodeThread { queue, thread: Some(thread.ok()?) })
    }

    /// Jobs that there are.
    pub(super) fn jobs(&self) -> usize {
        self.queue.lock().list.len()
    }

    /// Whether another job can be handed over. Where there are many, those go that were handed over before
    /// step `stale`: their sequences rest.
    pub(super) fn has_room(&self, stale: u64) -> bool {
        if self.jobs() == JOBS {
            self.give_up(stale);
        }
        self.jobs() < JOBS
    }

    pub(super) fn hand(&self, job: RecodeJob, since: u64) -> JobHandle {
        let mut jobs = self.queue.lock();
        let number = jobs.next;
        jobs.next += 1;
        jobs.list.push(QueuedJob { number, since, job: Some(job) });
        self.queue.handed.notify_one();
        JobHandle { queue: Arc::clone(&self.queue), number }
    }

    /// Gives up the jobs that were handed over before a step; one that the thread has is waited for.
    pub(super) fn give_up(&self, before: u64) {
        let mut jobs = self.queue.lock();
        loop {
            jobs.list.retain(|queued| queued.since >= before || queued.job.is_none());
            if jobs.list.iter().all(|queued| queued.since >= before) {
                return;
            }
            jobs = JobQueue::wait(&self.queue.back, jobs);
        }
    }
}

impl Drop for RecodeThread {
    fn drop(&mut self) {
        self.queue.lock().end = true;
        self.queue.handed.notify_one();
        if let Some(thread) = self.thread.take() {
            // It catches the panics of kernels; another can only be its own bug, and panicking in a
            // destructor would hide it.
            let _ = thread.join();
        }
    }
}
