//! Processes that answer one request after another, for work that somebody waits for.
//!
//! A [`Pool`] talks to programs that call [`answer_requests`]. Each is told once what all its requests have
//! in common, and its [`Limits`]. The system bounds its stack and memory, by which it ends; the parent reads
//! no more bytes than it asked for, and ends the process when the time is up or nobody waits for the answer.
//! The next request starts a new process.
//!
//! What a request leaves behind in its process must not cost the next one its limits. So a request by which
//! a process ends that was not new is tried once more in a new one.

use std::ffi::OsString;
use std::io::{self, Read, Write};
use std::path::PathBuf;
use std::process::{Child, ChildStdin, ChildStdout, ExitCode};
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::sync::mpsc::{self, Receiver, RecvTimeoutError, Sender};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use super::{Limits, spawn};

/// How often whoever waits for an answer is asked whether that is still so.
const LOOK: Duration = Duration::from_millis(50);
/// The longest message that a process reads. What its parent sends is shorter.
const MAX_REQUEST: usize = 1 << 30;

/// Has glibc keep one arena for all threads, where each would reserve address space of 64 MiB, which counts against
/// the limit though nobody uses it.
const ONE_ARENA: [(&str, &str); 1] = [("MALLOC_ARENA_MAX", "1")];

/// A program that answers requests, and what each of its processes may use.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HelperProcess {
    /// A program that calls [`answer_requests`].
    pub program: PathBuf,
    /// The arguments on which it does.
    pub args: Vec<OsString>,
    /// Processes, and so requests that are answered at the same time; at least one.
    pub processes: usize,
    /// Address space of each, in bytes. Its stack is what the system gives a main thread.
    pub memory_bytes: u64,
    /// Time by the clock that an answer may take, and that a request may wait for a process.
    pub time: Duration,
}

impl HelperProcess {
    /// This program itself, started with one argument: one process, for at most 5 s and 512 MiB.
    pub fn this_program(command: &str) -> Self {
        Self {
            program: std::env::current_exe().unwrap_or_default(),
            args: vec![command.into()],
            processes: 1,
            memory_bytes: 512 << 20,
            time: Duration::from_secs(5),
        }
    }
}

/// Why a request has no answer.
#[derive(Debug)]
pub enum Failure {
    /// The process refuses it, in words of its own protocol.
    Refused(Vec<u8>),
    /// The process ended: it met a limit of the system, or crashed.
    Ended,
    /// It took longer than [`HelperProcess::time`].
    Late,
    /// Nobody waits for the answer any more.
    Cancelled,
    /// No process can be had.
    Unavailable {
        /// Why not.
        reason: String,
    },
}

/// A request, and how long its answer may be.
type Request = (Vec<u8>, usize);
/// An answer, or a refusal.
type Answer = Result<Vec<u8>, Vec<u8>>;

/// Writes a length and the bytes.
fn write_frame(output: &mut impl Write, bytes: &[u8]) -> io::Result<()> {
    let length = u32::try_from(bytes.len()).map_err(io::Error::other)?;
    output.write_all(&length.to_le_bytes())?;
    output.write_all(bytes)?;
    output.flush()
}

/// Reads at most `most` bytes behind their length.
fn read_frame(input: &mut impl Read, most: usize) -> io::Result<Vec<u8>> {
    let mut length = [0; 4];
    input.read_exact(&mut length)?;
    let length = u32::from_le_bytes(length) as usize;
    if length > most {
        return Err(io::Error::other(format!("{length} bytes, where {most} are the most")));
    }
    let mut bytes = vec![0; length];
    input.read_exact(&mut bytes)?;
    Ok(bytes)
}

/// One process, and a thread that talks to it, so that nobody waits for a pipe.
#[derive(Debug)]
struct PooledProcess {
    child: Child,
    requests: Option<Sender<Request>>,
    answers: Receiver<io::Result<Answer>>,
    thread: Option<JoinHandle<()>>,
}

impl PooledProcess {
    /// Starts a process without telling it anything.
    fn start(process: &HelperProcess) -> Result<Self, Failure> {
        let unavailable = |error: io::Error| {
            let program = process.program.display();
            Failure::Unavailable { reason: format!("cannot start {program}: {error}") }
        };
        let (child, input, output) =
            spawn(&process.program, &process.args, &ONE_ARENA).map_err(unavailable)?;
        let (requests, to_send) = mpsc::channel();
        let (answered, answers) = mpsc::channel();
        // From here on the child is ended with the worker.
        let mut worker = Self { child, requests: Some(requests), answers, thread: None };
        let talk = move || talk(&to_send, &answered, input, output);
        let thread = thread::Builder::new().name("ruvllm-child".to_owned()).spawn(talk);
        worker.thread = Some(thread.map_err(unavailable)?);
        Ok(worker)
    }

    /// Sends a request and waits for the answer.
    fn ask(
        &self,
        request: Request,
        time: Duration,
        waited_for: &dyn Fn() -> bool,
    ) -> Result<Vec<u8>, Failure> {
        let until = Instant::now() + time;
        let requests = self.requests.as_ref().ok_or(Failure::Ended)?;
        requests.send(request).map_err(|_| Failure::Ended)?;
        loop {
            let left = until.saturating_duration_since(Instant::now());
            match self.answers.recv_timeout(left.min(LOOK)) {
                Ok(Ok(answer)) => return answer.map_err(Failure::Refused),
                Ok(Err(_)) | Err(RecvTimeoutError::Disconnected) => return Err(Failure::Ended),
                Err(RecvTimeoutError::Timeout) if !waited_for() => return Err(Failure::Cancelled),
                Err(RecvTimeoutError::Timeout) if left.is_zero() => return Err(Failure::Late),
                Err(RecvTimeoutError::Timeout) => {}
            }
        }
    }
}

impl Drop for PooledProcess {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
        self.requests = None;
        if let Some(thread) = self.thread.take() {
            // Its pipes are closed, so it ends.
            let _ = thread.join();
        }
    }
}

/// Passes requests to a process and its answers back until either is gone.
fn talk(
    requests: &Receiver<Request>,
    answered: &Sender<io::Result<Answer>>,
    mut input: ChildStdin,
    mut output: ChildStdout,
) {
    for (request, most) in requests {
        let mut exchange = || {
            write_frame(&mut input, &request)?;
            let mut tag = [0];
            output.read_exact(&mut tag)?;
            let answer = read_frame(&mut output, most)?;
            match tag {
                [0] => Ok(Ok(answer)),
                [1] => Ok(Err(answer)),
                _ => Err(io::Error::other("it does not speak the protocol")),
            }
        };
        let answer = exchange();
        let broken = answer.is_err();
        if answered.send(answer).is_err() || broken {
            return;
        }
    }
}

/// The processes of one kind of request.
#[derive(Debug)]
pub struct Pool {
    process: HelperProcess,
    setup: Request,
    setup_time: Duration,
    /// Those that do nothing; `None` is one to be started when it is wanted.
    idle: Mutex<Vec<Option<PooledProcess>>>,
    freed: Condvar,
    /// Processes that are being started in place of others.
    restarting: AtomicUsize,
}

impl Pool {
    /// A pool that starts its processes when they are wanted. Each is told `setup` first, which it answers
    /// with `most` bytes at most.
    pub fn new(process: HelperProcess, setup: Vec<u8>, most: usize) -> Self {
        let idle = (0..process.processes.max(1)).map(|_| None).collect();
        let setup_time = process.time;
        let setup = (setup, most);
        let (idle, freed) = (Mutex::new(idle), Condvar::new());
        Self { process, setup, setup_time, idle, freed, restarting: AtomicUsize::new(0) }
    }

    /// Gives a process so long to make ready what its setup says, where that takes longer than an answer.
    #[must_use]
    pub fn setup_within(self, time: Duration) -> Self {
        Self { setup_time: time, ..self }
    }

    /// What the processes may use.
    pub fn process(&self) -> &HelperProcess {
        &self.process
    }

    /// Starts all processes now.
    ///
    /// # Errors
    /// What one answers to the setup when it refuses that; otherwise as [`Pool::ask`].
    pub fn warm(&self) -> Result<(), Failure> {
        let mut idle = self.idle();
        let missing = idle.iter_mut().filter(|worker| worker.is_none());
        for worker in missing {
            *worker = Some(self.worker(&|| true)?);
        }
        Ok(())
    }

    /// Starts one process in place of one that was ended, where there is any; requests meanwhile wait for it, or for
    /// another. For whoever has seen a request fail that ends its process, on a thread of its own.
    pub fn restart(&self) {
        let mut idle = self.idle();
        let Some(place) = idle.iter().position(Option::is_none) else { return };
        idle.remove(place);
        self.restarting.fetch_add(1, Relaxed);
        drop(idle);
        // Where it does not start, the next request tries again, and says why.
        let worker = self.worker(&|| true).ok();
        self.idle().push(worker);
        self.restarting.fetch_sub(1, Relaxed);
        self.freed.notify_one();
    }

    /// The answer to a request, of `most` bytes at most. The process is ended soon after `waited_for`, which
    /// is asked some twenty times a second, turns false.
    ///
    /// # Errors
    /// See [`Failure`].
    pub fn ask(
        &self,
        request: &[u8],
        most: usize,
        waited_for: &dyn Fn() -> bool,
    ) -> Result<Vec<u8>, Failure> {
        let mut worker = self.take(waited_for)?;
        let answer = self.ask_in(&mut worker, request, most, waited_for);
        self.idle().push(worker);
        self.freed.notify_one();
        answer
    }

    fn idle(&self) -> MutexGuard<'_, Vec<Option<PooledProcess>>> {
        self.idle.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A new process that knows its setup and limits.
    fn worker(&self, waited_for: &dyn Fn() -> bool) -> Result<PooledProcess, Failure> {
        let (memory_bytes, time) = (self.process.memory_bytes, self.setup_time);
        let worker = PooledProcess::start(&self.process)?;
        let longest = time.max(self.process.time);
        let limits = [memory_bytes, longest.as_secs().saturating_add(1)].map(u64::to_le_bytes);
        // It knows nothing yet that could be at fault.
        worker.ask((limits.concat(), 0), time, waited_for).map_err(|failure| match failure {
            Failure::Late | Failure::Ended => {
                let program = self.process.program.display();
                let reason = format!("{program} was not ready within {time:?}; try again later");
                Failure::Unavailable { reason }
            }
            failure => failure,
        })?;
        worker.ask(self.setup.clone(), time, waited_for)?;
        Ok(worker)
    }

    /// Waits for a process that does nothing.
    fn take(&self, waited_for: &dyn Fn() -> bool) -> Result<Option<PooledProcess>, Failure> {
        let until = Instant::now() + self.process.time;
        let mut idle = self.idle();
        loop {
            if !waited_for() {
                return Err(Failure::Cancelled);
            }
            if let Some(worker) = idle.pop() {
                return Ok(worker);
            }
            if Instant::now() >= until && self.restarting.load(Relaxed) == 0 {
                let reason = "all that there are have been busy for too long; try again later";
                return Err(Failure::Unavailable { reason: reason.to_owned() });
            }
            let waited = self.freed.wait_timeout(idle, LOOK);
            idle = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
    }

    /// Asks this process, or a new one where it is gone.
    fn ask_in(
        &self,
        place: &mut Option<PooledProcess>,
        request: &[u8],
        most: usize,
        waited_for: &dyn Fn() -> bool,
    ) -> Result<Vec<u8>, Failure> {
        let ask = |worker: PooledProcess| {
            let answer = worker.ask((request.to_vec(), most), self.process.time, waited_for);
            let goes_on = matches!(answer, Ok(_) | Err(Failure::Refused(_)));
            (goes_on.then_some(worker), answer)
        };
        let used = place.take();
        let was_used = used.is_some();
        let (kept, answer) = ask(match used {
            Some(worker) => worker,
            None => self.worker(waited_for)?,
        });
        let (kept, answer) = match answer {
            // By what an earlier request left behind, perhaps.
            Err(Failure::Ended) if was_used => ask(self.worker(waited_for)?),
            answer => (kept, answer),
        };
        *place = kept;
        answer
    }
}

/// The process's side of a [`Pool`]: reads its limits, the setup and requests from standard input, and writes
/// answers to standard output, until its parent asks no more. `start` makes of the setup what answers
/// requests; either may refuse, in words of the caller's protocol.
///
/// A program calls this at the top of `main`, before it starts a thread, and ends with the code. That is a
/// failure where the system refuses a limit, or a pipe breaks.
pub fn answer_requests<A>(start: impl FnOnce(&[u8]) -> Result<A, Vec<u8>>) -> ExitCode
where
    A: FnMut(&[u8]) -> Result<Vec<u8>, Vec<u8>>,
{
    match answer_all(start) {
        Ok(()) => ExitCode::SUCCESS,
        Err(_) => ExitCode::FAILURE,
    }
}

fn answer_all<A>(start: impl FnOnce(&[u8]) -> Result<A, Vec<u8>>) -> io::Result<()>
where
    A: FnMut(&[u8]) -> Result<Vec<u8>, Vec<u8>>,
{
    let (mut input, mut output) = (io::stdin().lock(), io::stdout().lock());
    let mut write = |answer: Answer| {
        let (tag, bytes) = match &answer {
            Ok(bytes) => (0, bytes),
            Err(bytes) => (1, bytes),
        };
        output.write_all(&[tag])?;
        write_frame(&mut output, bytes)
    };
    let limits = read_frame(&mut input, 16)?;
    let [memory_bytes, seconds] = match limits.as_chunks() {
        ([memory, seconds], []) => [memory, seconds].map(|word| u64::from_le_bytes(*word)),
        _ => return Err(io::Error::other("this is no request: the program runs this itself")),
    };
    Limits { memory_bytes, cpu_seconds: None, file_bytes: 0 }.apply().map_err(io::Error::other)?;
    let watch = Watch::start(Duration::from_secs(seconds))?;
    write(Ok(Vec::new()))?;
    let setup = read_frame(&mut input, MAX_REQUEST)?;
    let mut answer = match watch.over(|| start(&setup)) {
        Ok(answer) => answer,
        Err(refusal) => return write(Err(refusal)),
    };
    drop(setup);
    write(Ok(Vec::new()))?;
    loop {
        let request = match read_frame(&mut input, MAX_REQUEST) {
            Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => return Ok(()),
            request => request?,
        };
        write(watch.over(|| answer(&request)))?;
    }
}

/// Ends the process where work takes too long and its parent, whose clock is the limit, is gone.
struct Watch(Sender<()>);

impl Watch {
    fn start(limit: Duration) -> io::Result<Self> {
        // A message begins the work, the next one ends it.
        let (work, works) = mpsc::channel();
        let watch = move || {
            while works.recv().is_ok() {
                if works.recv_timeout(limit) == Err(RecvTimeoutError::Timeout) {
                    std::process::abort();
                }
            }
        };
        thread::Builder::new().stack_size(128 << 10).spawn(watch)?;
        Ok(Self(work))
    }

    fn over<T>(&self, work: impl FnOnce() -> T) -> T {
        // The thread lives as long as its channel.
        let _ = self.0.send(());
        let done = work();
        let _ = self.0.send(());
        done
    }
}
