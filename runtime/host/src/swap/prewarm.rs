//! Instances are made before a generation is published, by threads that compute nothing: the step that
//! crosses an activation need not.
//!
//! Making one takes system calls, its memory a page fault for every page, and taking up a table of
//! angles as long as a small model's whole token. Nothing depends on what was made ahead: a worker that
//! finds no instance makes its own.

use super::host::HostState;
use crate::call::context::WorkerContext;
use crate::code::Code;
use crate::instance::Instance;
use crate::registry::RegistrySnapshot;
use crate::registry::kernel::PublishedKernel;
use crate::threads::lower_priority;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// How long a publication waits for instances and for what is dropped. Both ask kernels, and none may
/// hold up an operator who wants to be rid of it.
const READY_WITHIN: Duration = Duration::from_millis(250);

/// Makes instances of the kernels of a generation that is about to be published, as many as there
/// are workers that call the same operations now, with the constants and the room that those use.
/// A thread that stands back does it, and this waits for it.
pub(super) fn make_instances(host: &HostState, next: &RegistrySnapshot) {
    let published = host.published.load();
    let active = &published.active;
    if !active.pack_records().is_empty() {
        host.workers.reaper.attend();
    }
    let mut wanted = Vec::new();
    for slot in next.slots() {
        let Some(now) = active.slot_of(&slot.key) else { continue };
        // Those that have not come by since the last publication count as well.
        let users = |kernel: &Arc<PublishedKernel>| kernel.workers() + kernel.pool().len();
        let workers = now.choice.chain.iter().map(users).max().unwrap_or(0);
        // Where the fastest is looked for, every one is about to be called.
        let asked = if slot.preference.is_some() { slot.choice.chain.len() } else { 1 };
        let in_service = slot.choice.chain.iter().filter(|kernel| !kernel.stats().quarantined());
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
    let work = || {
        lower_priority();
        let until = Instant::now() + READY_WITHIN;
        host.workers.reaper.help(until);
        wanted.iter().for_each(|&(kernel, missing)| make(&host.workers, kernel, missing, until));
    };
    // A new thread, because a publication waits for it: one that sleeps and stands back is let onto a
    // busy core some 40 ms after it was woken. Where none can be had, workers make their own.
    let thread = std::thread::Builder::new().name("ruvllm-ready".into());
    std::thread::scope(|scope| drop(thread.spawn_scoped(scope, work)));
}

/// Makes so many instances of a kernel, as far as there is time.
fn make(workers: &WorkerContext, kernel: &PublishedKernel, missing: usize, until: Instant) {
    let Code::Sandboxed { template, .. } = kernel.code() else { return };
    let profile = workers.profiles.of(kernel.key());
    let constants = profile.constants.living();
    for _ in 0..missing {
        let mut set = Vec::new();
        for &window in &profile.windows {
            if Instant::now() > until {
                return;
            }
            // What is wrong with it, its workers will find and report.
            let Ok(instance) = Instance::new(template, window, None) else { return };
            let mut instance =
                instance.serving(profile.constants.clone(), workers.reporter(kernel.stats()));
            instance.warm(&constants);
            set.push(instance);
        }
        kernel.pool().put(set);
    }
}
