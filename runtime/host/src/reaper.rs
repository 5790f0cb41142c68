//! What drained generations and failed instances leave is dropped by a thread that computes nothing.
//!
//! Nothing depends on when that is: who lacks the memory for an instance drops what waits.

use crate::threads::lock;
use crate::threads::lower_priority;
use std::sync::{Arc, Condvar, Mutex, OnceLock, PoisonError};
use std::time::{Duration, Instant};

/// How long what was handed over waits. The thread that drops it competes with those that compute, so it
/// looks by itself, after the step that crossed an activation, rather than being woken within it.
const LOOKS_EVERY: Duration = Duration::from_millis(10);

/// How long it looks after a publication, and after anything it found.
const LOOKS_FOR: Duration = Duration::from_secs(1);

/// Drops old snapshots and what workers keep of their kernels, on a thread of its own, which stands back
/// behind theirs: code and memory are unmapped, and an instance's `kernel_cleanup` may take as long as any
/// call of it.
#[derive(Default)]
pub(crate) struct Reaper {
    drop_queue: Arc<DropQueue>,
    /// Whether there is the thread.
    started: OnceLock<bool>,
}

/// What waits to be dropped.
#[derive(Default)]
pub(crate) struct DropQueue {
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
    pub(crate) fn attend(&self) {
        self.tell(|waiting| waiting.looks_until = Some(Instant::now() + LOOKS_FOR));
        self.started.get_or_init(|| {
            let drop_queue = self.drop_queue.clone();
            let thread = std::thread::Builder::new().name("ruvllm-reaper".into());
            let work = move || {
                lower_priority();
                while let Some(thing) = drop_queue.next() {
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
        let mut waiting = lock(&self.drop_queue.waiting);
        change(&mut waiting);
        if waiting.asleep {
            self.drop_queue.changed.notify_one();
        }
    }

    /// Drops what waits, as far as there is time. Publishers do, so that no more than one generation has
    /// left something behind however fast they follow each other.
    pub(crate) fn help(&self, until: Instant) {
        while Instant::now() < until && self.drop_queue.drop_one() {}
    }

    /// What waits to be dropped.
    pub(crate) fn drop_queue(&self) -> &Arc<DropQueue> {
        &self.drop_queue
    }
}

impl DropQueue {
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
        lock(&self.drop_queue.waiting).over = true;
        self.drop_queue.changed.notify_one();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::HostConfig;
    use crate::memory::{Charge, HostMemory};

    #[test]
    fn what_waits_to_be_dropped_keeps_no_instance_from_being_made() {
        let drop_queue = Arc::new(DropQueue::default());
        let config = HostConfig { kernel_memory: 100, pack_memory: 70, ..HostConfig::default() };
        let memory = HostMemory::new(&config, &drop_queue);
        let (one, other) = (memory.of_pack(), memory.of_pack());
        let wait = |charge| lock(&drop_queue.waiting).things.push(Box::new(charge));
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
