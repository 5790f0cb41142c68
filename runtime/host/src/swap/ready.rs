//! Instances are made before a generation is published, and what drained ones leave is dropped, by
//! threads that compute nothing: the step that crosses an activation need not.
//!
//! Making one takes system calls, its memory a page fault for every page, and taking up a table of
//! angles as long as a small model's whole token. Nothing depends on what was made ahead: a worker that
//! finds no instance makes its own. Nor on when what is left is dropped: a worker that lacks the memory for
//! an instance drops what waits.

use super::backstage::stand_back;
use crate::exec::window::Bench;
use crate::host::{Shared, lock};
use crate::kernel::{Body, Kernel};
use crate::registry::RegistrySnapshot;
use std::sync::{Arc, Condvar, Mutex, OnceLock, PoisonError};
use std::time::{Duration, Instant};

/// How long what was handed over waits. The thread that drops it competes with those that compute, so it
/// looks by itself, after the step that crossed an activation, rather than being woken within it.
const LOOKS_EVERY: Duration = Duration::from_millis(10);

/// How long a publication waits for instances and for what is dropped. Both ask kernels, and none may
/// hold up an operator who wants to be rid of it.
const READY_WITHIN: Duration = Duration::from_millis(250);

/// How long it looks after a publication, and after anything it found.
const LOOKS_FOR: Duration = Duration::from_secs(1);

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
            let users = |kernel: &Arc<Kernel>| kernel.workers() + kernel.ready.len();
            let workers = now.choice.chain.iter().map(users).max().unwrap_or(0);
            // Where kernels race, every one is about to be called.
            let asked = if slot.race.is_some() { slot.choice.chain.len() } else { 1 };
            let in_service = slot.choice.chain.iter().filter(|kernel| !kernel.ledger.quarantined());
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
    fn make(&self, kernel: &Kernel, missing: usize, until: Instant) {
        let Body::Sandbox { sandbox, .. } = &kernel.body else { return };
        let seen = self.seen.of(&kernel.key);
        let constants = seen.constants.living();
        for _ in 0..missing {
            let mut set = Vec::new();
            for &room in &seen.rooms {
                if Instant::now() > until {
                    return;
                }
                // What is wrong with it, its workers will find and report.
                let Ok(bench) = Bench::new(sandbox, room, None) else { return };
                let mut bench = bench.serving(seen.constants.clone(), self.witness(&kernel.ledger));
                bench.warm(&constants);
                set.push(bench);
            }
            lock(&kernel.ready.0).push(set);
        }
    }
}

/// Drops old snapshots and what workers keep of their kernels, on a thread of its own, which stands back
/// behind theirs: code and memory are unmapped, and an instance's `kernel_cleanup` may take as long as any
/// call of it.
#[derive(Default)]
pub(crate) struct Reaper {
    remains: Arc<Remains>,
    /// Whether there is the thread.
    started: OnceLock<bool>,
}

/// What waits to be dropped.
#[derive(Default)]
pub(crate) struct Remains {
    waiting: Mutex<Waiting>,
    changed: Condvar,
}

#[derive(Default)]
struct Waiting {
    things: Vec<Box<dyn Send>>,
    /// Until when the thread looks by itself; after that it sleeps, and has to be woken.
    looks_until: Option<Instant>,
    /// Whether it sleeps.
    asleep: bool,
    /// Whether the host is gone.
    over: bool,
}

impl Reaper {
    /// Has the thread look out for what a publication will leave. It ends with the host.
    fn attend(&self) {
        self.tell(|waiting| waiting.looks_until = Some(Instant::now() + LOOKS_FOR));
        self.started.get_or_init(|| {
            let remains = self.remains.clone();
            let thread = std::thread::Builder::new().name("ruvllm-reaper".into());
            let work = move || {
                stand_back();
                while let Some(thing) = remains.next() {
                    drop(thing);
                }
            };
            thread.spawn(work).is_ok()
        });
    }

    /// Drops something: at once where there is no thread for it.
    pub(crate) fn take(&self, thing: impl Send + 'static) {
        if self.started.get() == Some(&true) {
            self.tell(|waiting| waiting.things.push(Box::new(thing)));
        }
    }

    /// Changes what the thread looks at, and wakes it if it sleeps.
    fn tell(&self, change: impl FnOnce(&mut Waiting)) {
        let mut waiting = lock(&self.remains.waiting);
        change(&mut waiting);
        if waiting.asleep {
            self.remains.changed.notify_one();
        }
    }

    /// Drops what waits, as far as there is time. Publishers do, so that no more than one generation has
    /// left something behind however fast they follow each other.
    fn help(&self, until: Instant) {
        while Instant::now() < until && self.remains.drop_one() {}
    }

    /// What waits to be dropped.
    pub(crate) fn remains(&self) -> &Arc<Remains> {
        &self.remains
    }
}

impl Remains {
    /// Drops one thing that waits; `false` where there is none.
    #[cold]
    pub(crate) fn drop_one(&self) -> bool {
        let thing = lock(&self.waiting).things.pop();
        thing.is_some()
    }

    /// Waits for something to drop; `None` when the host is gone and nothing is left. One thing at a time,
    /// so that whoever wants memory can drop the others: a thread that stands back may be kept waiting
    /// with what it has.
    fn next(&self) -> Option<Box<dyn Send>> {
        let mut waiting = lock(&self.waiting);
        loop {
            let now = Instant::now();
            if let Some(thing) = waiting.things.pop() {
                waiting.looks_until = Some(now + LOOKS_FOR);
                return Some(thing);
            }
            if waiting.over {
                return None;
            }
            waiting = if waiting.looks_until.is_some_and(|until| now < until) {
                let woken = self.changed.wait_timeout(waiting, LOOKS_EVERY);
                woken.unwrap_or_else(PoisonError::into_inner).0
            } else {
                waiting.asleep = true;
                let woken = self.changed.wait(waiting);
                let mut waiting = woken.unwrap_or_else(PoisonError::into_inner);
                waiting.asleep = false;
                waiting
            };
        }
    }
}

impl Drop for Reaper {
    fn drop(&mut self) {
        lock(&self.remains.waiting).over = true;
        self.remains.changed.notify_one();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::HostConfig;
    use crate::memory::{Charge, HostMemory};

    #[test]
    fn what_waits_to_be_dropped_keeps_no_instance_from_being_made() {
        let remains = Arc::new(Remains::default());
        let config = HostConfig { kernel_memory: 100, pack_memory: 70, ..HostConfig::default() };
        let memory = HostMemory::new(&config, &remains);
        let (one, other) = (memory.of_pack(), memory.of_pack());
        let wait = |charge| lock(&remains.waiting).things.push(Box::new(charge));
        let charge = |pack, bytes| Charge::new(pack, bytes).map_err(|failure| failure.code());
        for _ in 0..3 {
            wait(charge(&one, 20).unwrap());
        }
        let mut grows = charge(&one, 30).unwrap();
        assert_eq!(memory.report().used, 70, "no more is dropped than has to be");
        wait(charge(&other, 30).unwrap());
        grows.resize(70).unwrap();
        assert_eq!(memory.report().used, 70);
        assert_eq!(charge(&one, 1).err(), Some("pack_memory_full"));
    }
}
