//! The threads that stage packs, behind those that compute: at a low priority, started when the first pack
//! comes, and kept until the host is gone.
//!
//! Kept, because allocators keep what a thread lets go of for the threads that come after it in the same
//! arena, and give a new thread the next one: with a thread for every pack, what loading and proving one
//! takes would stay behind in each arena in turn, of which glibc makes eight for every core.

use crate::threads::lower_priority;
use rayon::{ThreadPool, ThreadPoolBuilder};
use std::sync::OnceLock;

/// These threads.
#[derive(Default)]
pub(crate) struct StagingPool(OnceLock<Option<ThreadPool>>);

impl StagingPool {
    /// Does some work on one of these threads, while the calling one waits; on the calling one where the
    /// system gives none. How many there are is decided by who comes first.
    ///
    /// # Panics
    /// As the work does.
    pub(super) fn run<T: Send>(&self, threads: usize, work: impl FnOnce() -> T + Send) -> T {
        let pool = self.0.get_or_init(|| {
            ThreadPoolBuilder::new()
                .num_threads(threads)
                .thread_name(|_| "ruvllm-staging".to_owned())
                .start_handler(|_| lower_priority())
                .build()
                .ok()
        });
        match pool {
            Some(pool) => pool.install(work),
            None => work(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    #[cfg(target_os = "linux")]
    use crate::threads::NICE;
    use std::thread;

    #[test]
    fn the_same_thread_works_every_time_and_stands_back() {
        let stage = StagingPool::default();
        let who = || stage.run(1, || thread::current().id());
        let first = who();
        assert_ne!(first, thread::current().id());
        assert_eq!(who(), first);
        #[cfg(target_os = "linux")]
        {
            let stat = || std::fs::read_to_string("/proc/thread-self/stat").unwrap();
            let of_work = stage.run(1, stat);
            let nice = |stat: &str| {
                let fields = stat.rsplit_once(") ").unwrap().1;
                fields.split(' ').nth(16).unwrap().parse::<i32>().unwrap()
            };
            assert_eq!(nice(&of_work), (nice(&stat()) + NICE).min(19));
        }
    }

    #[test]
    #[should_panic(expected = "a kernel's fault")]
    fn who_waits_hears_of_a_panic() {
        StagingPool::default().run(1, || panic!("a kernel's fault"));
    }
}
