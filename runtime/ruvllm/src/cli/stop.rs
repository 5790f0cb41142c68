//! Ctrl-C and SIGTERM: the first asks the command to stop after the token at hand, the second ends the
//! process, and so does time where a command says how long stopping may take. SIGHUP does the same, but for a
//! server, which it asks to read its configuration anew.

use super::Failure;
use super::terminal::note;
use std::io::{self, Write as _};
use std::ops::ControlFlow;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, mpsc};
use std::thread::{self, Thread};
use std::time::{Duration, Instant};

/// Whether somebody asked to stop.
#[derive(Clone)]
pub(crate) struct StopFlag {
    asked: Arc<AtomicBool>,
    /// Who installed it and may wait.
    waiter: Thread,
    /// How long stopping may take.
    within: Arc<OnceLock<Duration>>,
    /// What is done before the process ends early.
    last_act: Arc<OnceLock<LastAct>>,
    /// What is said to who asks.
    announcement: Arc<OnceLock<&'static str>>,
    /// Whether it was said to who asked last. Held while text is written, which does not come behind it.
    announced: Arc<Mutex<bool>>,
    /// Whether SIGHUP asks for something else than to stop.
    #[cfg_attr(not(unix), expect(dead_code, reason = "there is no SIGHUP"))]
    reloads: bool,
    /// Whether somebody asked to read the configuration anew.
    reload: Arc<AtomicBool>,
}

/// What a command has done before the process ends without it.
type LastAct = Arc<dyn Fn() + Send + Sync>;

/// The exit status of a process that did not stop in time: that of `timeout`.
const OVERDUE: i32 = 124;

/// How long a last act may take: whoever asks twice does not want to wait, and what it needs may be what hangs.
const LAST_ACT: Duration = Duration::from_secs(1);

impl StopFlag {
    /// Installs the handler; once per process.
    pub(crate) fn install() -> Result<Self, Failure> {
        Self::listening(false)
    }

    /// As [`StopFlag::install`], but SIGHUP is for [`StopFlag::take_reload`]. There is none on Windows.
    pub(crate) fn install_reloading() -> Result<Self, Failure> {
        Self::listening(true)
    }

    fn listening(reloads: bool) -> Result<Self, Failure> {
        let flag = Self::new(reloads);
        listen(flag.clone())?;
        Ok(flag)
    }

    /// A flag that hears nothing yet.
    fn new(reloads: bool) -> Self {
        let (asked, within, last_act, announcement, announced, reload) = Default::default();
        let waiter = thread::current();
        StopFlag { asked, waiter, within, last_act, announcement, announced, reloads, reload }
    }

    /// Somebody asks to stop.
    fn stop(&self) {
        if self.asked.swap(true, Ordering::Relaxed) {
            self.end(130);
        }
        // Whoever loads waits for them, for minutes where one hangs; and they would outlive the process.
        ruvllm::host::stop_compilers();
        self.waiter.unpark();
        // Whoever is writing says it behind what is written: this thread must not wait for a terminal that takes
        // nothing, for it hears the second signal.
        if let Ok(mut announced) = self.announced.try_lock() {
            self.say(&mut announced);
        }
        if let Some(&within) = self.within.get() {
            // Where there is no thread to be had, a second signal still ends the process.
            let timer = thread::Builder::new().name("ruvllm-end".to_owned());
            let flag = self.clone();
            drop(timer.spawn(move || flag.end_after(within)));
        }
    }

    /// Ends the process after so long, whatever its threads are doing then.
    fn end_after(&self, time: Duration) {
        thread::sleep(time);
        // Not through the log, whose writer may be what hangs.
        let seconds = time.as_secs_f64();
        let _ = writeln!(
            io::stderr(),
            "error: not everything had stopped {seconds:.1} s after the signal, so the process ends without it"
        );
        self.end(OVERDUE);
    }

    fn end(&self, code: i32) -> ! {
        self.act_last();
        std::process::exit(code)
    }

    /// Does what is to be done before the process ends early, and waits for it no longer than [`LAST_ACT`].
    fn act_last(&self) {
        let Some(act) = self.last_act.get().cloned() else { return };
        let (done, is_done) = mpsc::channel::<()>();
        let acting = thread::Builder::new().name("ruvllm-last-act".to_owned()).spawn(move || {
            act();
            drop(done);
        });
        if acting.is_ok() {
            let _ = is_done.recv_timeout(LAST_ACT);
        }
    }

    /// Has this done before the process ends because of a second signal, or because it did not stop in time. It is
    /// not done where the command ends by itself.
    pub(crate) fn before_early_end(&self, act: impl Fn() + Send + Sync + 'static) {
        let _ = self.last_act.set(Arc::new(act));
    }

    /// The terminal was closed, or somebody wants a server to read its configuration anew.
    #[cfg(unix)]
    fn hang_up(&self) {
        if !self.reloads {
            return self.stop();
        }
        self.reload.store(true, Ordering::Relaxed);
        self.waiter.unpark();
    }

    /// Whether somebody asked to read the configuration anew since this was asked last.
    pub(crate) fn take_reload(&self) -> bool {
        self.reload.swap(false, Ordering::Relaxed)
    }

    /// Ends the process so long after somebody asked, whatever its threads are doing then.
    pub(crate) fn end_within(&self, time: Duration) {
        let _ = self.within.set(time);
    }

    /// Says this on standard error when somebody asks.
    pub(crate) fn announce(&self, text: &'static str) {
        let _ = self.announcement.set(text);
    }

    /// What was loaded; `None` where it was not because somebody asked to stop, which is no failure.
    pub(crate) fn loaded<T>(&self, loaded: Result<T, Failure>) -> Result<Option<T>, Failure> {
        match loaded {
            Err(_) if self.is_set() => Ok(None),
            loaded => loaded.map(Some),
        }
    }

    pub(crate) fn is_set(&self) -> bool {
        self.asked.load(Ordering::Relaxed)
    }

    /// Waits until somebody asks, and no longer than `goes_on`, which is looked at every second; for the
    /// thread that installed it. Gives whether somebody asked.
    pub(crate) fn wait_while(&self, goes_on: impl Fn() -> bool) -> bool {
        while !self.is_set() && goes_on() {
            thread::park_timeout(Duration::from_secs(1));
        }
        self.is_set()
    }

    /// Waits until somebody asks, at most for a time; for the thread that installed it. Gives whether
    /// somebody asked.
    pub(crate) fn wait_for(&self, time: Duration) -> bool {
        let end = Instant::now() + time;
        while !self.is_set() && Instant::now() < end {
            thread::park_timeout(end.saturating_duration_since(Instant::now()));
        }
        self.is_set()
    }

    /// Says once, behind what was written and the `^C` of the terminal, what comes of a request.
    fn say(&self, announced: &mut bool) {
        if let Some(text) = self.announcement.get().filter(|_| !*announced) {
            note!("\n{text}");
            *announced = true;
        }
    }

    /// Writes a piece of text that is not in vain: none behind what was said to who asked to stop.
    pub(crate) fn write(
        &self,
        piece: &str,
        emit: impl Fn(&str) -> ControlFlow<()>,
    ) -> ControlFlow<()> {
        let mut announced = lock(&self.announced);
        if *announced {
            return ControlFlow::Break(());
        }
        emit(piece)?;
        if self.is_set() {
            self.say(&mut announced);
        }
        self.flow()
    }

    /// Forgets an earlier request, for a command that goes on after it.
    pub(crate) fn clear(&self) {
        self.asked.store(false, Ordering::Relaxed);
        *lock(&self.announced) = false;
    }

    /// Break once asked to stop.
    pub(crate) fn flow(&self) -> ControlFlow<()> {
        if self.is_set() { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
    }
}

fn lock(announced: &Mutex<bool>) -> MutexGuard<'_, bool> {
    announced.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Hears signals on a thread of its own.
#[cfg(unix)]
fn listen(flag: StopFlag) -> Result<(), Failure> {
    use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
    let mut signals = signal_hook::iterator::Signals::new([SIGHUP, SIGINT, SIGTERM])?;
    let hear = move || {
        for signal in signals.forever() {
            match signal {
                SIGHUP => flag.hang_up(),
                _ => flag.stop(),
            }
        }
    };
    thread::Builder::new().name("ruvllm-signals".to_owned()).spawn(hear)?;
    Ok(())
}

/// Hears Ctrl-C, and that the window was closed.
#[cfg(not(unix))]
fn listen(flag: StopFlag) -> Result<(), Failure> {
    Ok(ctrlc::set_handler(move || flag.stop())?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_last_act_is_done_and_does_not_hold_up_the_end() {
        let flag = StopFlag::new(false);
        flag.act_last();
        let done = Arc::new(AtomicBool::new(false));
        let act = done.clone();
        flag.before_early_end(move || act.store(true, Ordering::Relaxed));
        flag.act_last();
        assert!(done.load(Ordering::Relaxed));

        let flag = StopFlag::new(false);
        flag.before_early_end(|| thread::sleep(Duration::from_secs(600)));
        let begun = Instant::now();
        flag.act_last();
        assert!((LAST_ACT..Duration::from_secs(60)).contains(&begun.elapsed()));
    }
}
