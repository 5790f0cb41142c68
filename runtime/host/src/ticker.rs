//! Threads that do something at a steady pace: the clock that running kernels are held against, and
//! the watch over a new generation.
//!
//! The clock's thread starts with the first kernel that could run and stops when the host goes. The
//! pace is a lower bound: a busy machine ticks late,
//! never early, so a deadline errs in favour of the kernel.

use std::sync::mpsc::{self, RecvTimeoutError};
use std::sync::{Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// Ticks every `period` from its first [`Ticker::start`] until it is dropped.
pub(crate) struct Ticker {
    name: &'static str,
    period: Duration,
    /// How long dropping it waits for a tick that has begun; as long as that takes when absent.
    patience: Option<Duration>,
    running: Mutex<Option<(mpsc::Sender<()>, JoinHandle<()>)>>,
}

impl Ticker {
    /// A ticker whose thread has this name.
    pub(crate) fn new(name: &'static str, period: Duration) -> Self {
        let period = period.max(Duration::from_micros(100));
        Self { name, period, patience: None, running: Mutex::new(None) }
    }

    /// The same, for ticks that may take long: dropping it waits for one for a second at most.
    pub(crate) fn impatient(mut self) -> Self {
        self.patience = Some(Duration::from_secs(1));
        self
    }

    /// Starts the thread unless it already runs.
    pub(crate) fn start(&self, mut tick: impl FnMut() + Send + 'static) -> std::io::Result<()> {
        let mut running = self.running.lock().unwrap_or_else(PoisonError::into_inner);
        if running.is_some() {
            return Ok(());
        }
        let (stop, stopped) = mpsc::channel::<()>();
        let period = self.period;
        let thread = std::thread::Builder::new().name(self.name.into()).spawn(move || {
            while stopped.recv_timeout(period) == Err(RecvTimeoutError::Timeout) {
                tick();
            }
        })?;
        *running = Some((stop, thread));
        Ok(())
    }
}

impl Drop for Ticker {
    fn drop(&mut self) {
        let running = self.running.get_mut().unwrap_or_else(PoisonError::into_inner).take();
        if let Some((stop, thread)) = running {
            drop(stop);
            if let Some(patience) = self.patience {
                let begun = Instant::now();
                while !thread.is_finished() {
                    if begun.elapsed() > patience {
                        return;
                    }
                    std::thread::sleep(Duration::from_millis(1));
                }
            }
            // The last reference to a host may be dropped by a kernel thread, never by the ticker.
            let _ = thread.join();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Arc;
    use std::sync::atomic::{AtomicU32, Ordering};

    #[test]
    fn it_ticks_once_started_and_stops_on_drop() {
        let count = Arc::new(AtomicU32::new(0));
        let ticker = Ticker::new("ticker", Duration::from_millis(1));
        let seen = count.clone();
        ticker
            .start(move || {
                seen.fetch_add(1, Ordering::Relaxed);
            })
            .unwrap();
        while count.load(Ordering::Relaxed) < 3 {
            std::thread::sleep(Duration::from_millis(1));
        }
        drop(ticker);
        let after = count.load(Ordering::Relaxed);
        std::thread::sleep(Duration::from_millis(10));
        assert_eq!(count.load(Ordering::Relaxed), after);
    }
}
