//! Instances are made before a generation is published, by threads that compute nothing: the step that
//! crosses an activation need not.
//!
//! Making one takes system calls, its memory a page fault for every page, and taking up a table of
//! angles as long as a small model's whole token. Nothing depends on what was made ahead: a worker that
//! finds no instance makes its own.

use super::backstage::stand_back;
use crate::exec::window::Bench;
use crate::host::{Shared, lock};
use crate::kernel::{Code, PublishedKernel};
use crate::registry::RegistrySnapshot;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

/// How long a publication waits for instances and for what is dropped. Both ask kernels, and none may
/// hold up an operator who wants to be rid of it.
const READY_WITHIN: Duration = Duration::from_millis(250);

/// Instances of one kernel that no worker has taken yet, in sets for one worker each.
#[derive(Default)]
pub(crate) struct Ready(Mutex<Vec<Vec<Bench>>>);

impl Ready {
    /// For how many workers there are some.
    pub(crate) fn len(&self) -> usize {
        lock(&self.0).len()
    }

    /// What was made ahead for a worker.
    #[cold]
    pub(crate) fn take(&self) -> Vec<Bench> {
        lock(&self.0).pop().unwrap_or_default()
    }

    /// All that was made ahead.
    pub(crate) fn take_all(&self) -> Vec<Vec<Bench>> {
        std::mem::take(&mut lock(&self.0))
    }
}

impl Shared {
    /// Makes instances of the kernels of a generation that is about to be published, as many as there
    /// are workers that call the same operations now, with the constants and the room that those use.
    /// A thread that stands back does it, and this waits for it.
    pub(super) fn make_ready(&self, next: &RegistrySnapshot) {
        let published = self.published.load();
        let active = &published.active;
        if !active.pack_records().is_empty() {
            self.reaper.attend();
        }
        let mut wanted = Vec::new();
        for slot in next.slots() {
            let Some(now) = active.slot_of(&slot.key) else { continue };
            // Those that have not come by since the last publication count as well.
            let users = |kernel: &Arc<PublishedKernel>| kernel.workers() + kernel.ready().len();
            let workers = now.choice.chain.iter().map(users).max().unwrap_or(0);
            // Where kernels race, every one is about to be called.
            let asked = if slot.race.is_some() { slot.choice.chain.len() } else { 1 };
            let in_service =
                slot.choice.chain.iter().filter(|kernel| !kernel.ledger().quarantined());
            for kernel in in_service.take(asked) {
                // Only publishers add to what is ready, and they go one by one.
                let missing = workers.saturating_sub(users(kernel));
                if missing > 0 && !kernel.is_native() {
                    wanted.push((kernel, missing));
                }
            }
        }
        if wanted.is_empty() {
            return;
        }
        let make = || {
            stand_back();
            let until = Instant::now() + READY_WITHIN;
            self.reaper.help(until);
            wanted.iter().for_each(|&(kernel, missing)| self.make(kernel, missing, until));
        };
        // A new thread, because a publication waits for it: one that sleeps and stands back is let onto a
        // busy core some 40 ms after it was woken. Where none can be had, workers make their own.
        let thread = std::thread::Builder::new().name("ruvllm-ready".into());
        std::thread::scope(|scope| drop(thread.spawn_scoped(scope, make)));
    }

    /// Makes so many instances of a kernel, as far as there is time.
    fn make(&self, kernel: &PublishedKernel, missing: usize, until: Instant) {
        let Code::Sandboxed { sandbox, .. } = kernel.code() else { return };
        let seen = self.seen.of(kernel.key());
        let constants = seen.constants.living();
        for _ in 0..missing {
            let mut set = Vec::new();
            for &room in &seen.rooms {
                if Instant::now() > until {
                    return;
                }
                // What is wrong with it, its workers will find and report.
                let Ok(bench) = Bench::new(sandbox, room, None) else { return };
                let mut bench =
                    bench.serving(seen.constants.clone(), self.witness(kernel.ledger()));
                bench.warm(&constants);
                set.push(bench);
            }
            lock(&kernel.ready().0).push(set);
        }
    }
}
