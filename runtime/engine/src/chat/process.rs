//! Rendering in processes of their own, with limits that hold for every construct of a template.
//!
//! A process is the program itself, or another that calls [`renderer_process`]. It is given one template,
//! which it compiles, and then conversations, one after the other. The interpreter bounds the steps; the
//! system bounds stack and memory, by which the process ends; the parent reads no more bytes than the
//! conversation explains, and ends the process when the time is up or nobody waits for the text. The next
//! rendering starts a new process.
//!
//! What a rendering leaves behind in its process (a cycle of values is never freed) must not cost the next
//! one its limits. So a rendering by which a process ends that was not new is tried once more in a new one.
//!
//! This guards time and memory. It is no guard against a template that takes the interpreter over.

use std::ffi::OsString;
use std::io::{self, Read, Write};
use std::path::PathBuf;
use std::process::{Child, ChildStdin, ChildStdout, ExitCode};
use std::sync::mpsc::{self, Receiver, RecvTimeoutError, Sender};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use ruvllm_host::process::{Limits, spawn};
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::jinja::Template;
use super::{ChatError, Message};

/// The longest template.
const MAX_SOURCE: usize = 1 << 20;
/// The longest conversation with its tools, as JSON.
const MAX_REQUEST: usize = 32 << 20;
/// The longest reason for a failure, in characters.
const MAX_REASON: usize = 1000;
/// How often a rendering looks whether somebody still waits for it.
const LOOK: Duration = Duration::from_millis(50);

/// The bytes that a conversation of this length may become.
fn max_text(request: usize) -> usize {
    (1 << 20) + 8 * request
}

/// A program that renders templates, and what it may use.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RendererProcess {
    /// A program that calls [`renderer_process`].
    pub program: PathBuf,
    /// The arguments on which it does.
    pub args: Vec<OsString>,
    /// Processes, and so conversations that are rendered at the same time; at least one. They are started
    /// with the template.
    pub processes: usize,
    /// Address space of each, in bytes. Its stack is what the system gives a main thread.
    pub memory_bytes: u64,
    /// Time by the clock that a rendering may take, and that it may wait for a process; also that a process
    /// may take to compile the template.
    pub time: Duration,
}

impl RendererProcess {
    /// The argument on which a program that is its own renderer becomes one.
    pub const COMMAND: &str = "render-template";
}

impl Default for RendererProcess {
    /// This program itself, run once with [`RendererProcess::COMMAND`], for at most 5 s and 512 MiB.
    fn default() -> Self {
        Self {
            program: std::env::current_exe().unwrap_or_default(),
            args: vec![Self::COMMAND.into()],
            processes: 1,
            memory_bytes: 512 << 20,
            time: Duration::from_secs(5),
        }
    }
}

/// What a process is told first.
#[derive(Serialize, Deserialize)]
struct Setup {
    source: String,
    bos: String,
    eos: String,
    memory_bytes: u64,
    /// After which it ends itself where its parent, whose clock is the limit, is gone.
    seconds: u64,
}

/// What it is told each time.
#[derive(Serialize, Deserialize)]
struct Conversation<M, T> {
    messages: M,
    tools: T,
    add_generation_prompt: bool,
}

/// How an answer begins.
#[derive(Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
enum Tag {
    Text,
    Syntax,
    Refused,
    Render,
    Limit,
}

impl Tag {
    const ALL: [Tag; 5] = [Tag::Text, Tag::Syntax, Tag::Refused, Tag::Render, Tag::Limit];
}

type Answer = Result<String, ChatError>;

fn to_answer(tag: Tag, reason: String) -> Answer {
    Err(match tag {
        Tag::Text => return Ok(reason),
        Tag::Syntax => ChatError::Syntax { reason },
        Tag::Refused => ChatError::Refused { reason },
        Tag::Render => ChatError::Render { reason },
        Tag::Limit => ChatError::Limit { reason },
    })
}

fn to_bytes(answer: Answer, most: usize) -> (Tag, String) {
    let (tag, reason) = match answer {
        Ok(text) if text.len() <= most => return (Tag::Text, text),
        Ok(text) => (Tag::Limit, format!("the text has {} bytes and may have {most}", text.len())),
        Err(ChatError::Syntax { reason }) => (Tag::Syntax, reason),
        Err(ChatError::Refused { reason }) => (Tag::Refused, reason),
        Err(ChatError::Render { reason }) => (Tag::Render, reason),
        Err(ChatError::Limit { reason }) => (Tag::Limit, reason),
        Err(error) => (Tag::Render, error.to_string()),
    };
    (tag, reason.chars().take(MAX_REASON).collect())
}

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
struct Worker {
    child: Child,
    requests: Option<Sender<Vec<u8>>>,
    answers: Receiver<io::Result<Answer>>,
    thread: Option<JoinHandle<()>>,
}

/// How an exchange with a process failed.
enum Broken {
    Ended,
    Late,
    Cancelled,
}

impl Worker {
    /// Starts a process without telling it anything.
    fn start(process: &RendererProcess) -> Result<Self, ChatError> {
        let unavailable = |error: io::Error| {
            let program = process.program.display();
            ChatError::Unavailable { reason: format!("cannot start {program}: {error}") }
        };
        let (child, input, output) = spawn(&process.program, &process.args).map_err(unavailable)?;
        let (requests, to_send) = mpsc::channel();
        let (answered, answers) = mpsc::channel();
        // From here on the child is ended with the worker.
        let mut worker = Self { child, requests: Some(requests), answers, thread: None };
        let talk = move || talk(&to_send, &answered, input, output);
        let thread = thread::Builder::new().name("ruvllm-template".to_owned()).spawn(talk);
        worker.thread = Some(thread.map_err(unavailable)?);
        Ok(worker)
    }

    /// Sends a request and waits for the answer.
    fn ask(
        &self,
        request: Vec<u8>,
        time: Duration,
        waited_for: &dyn Fn() -> bool,
    ) -> Result<Answer, Broken> {
        let until = Instant::now() + time;
        let requests = self.requests.as_ref().ok_or(Broken::Ended)?;
        requests.send(request).map_err(|_| Broken::Ended)?;
        loop {
            let left = until.saturating_duration_since(Instant::now());
            match self.answers.recv_timeout(left.min(LOOK)) {
                Ok(Ok(answer)) => return Ok(answer),
                Ok(Err(_)) | Err(RecvTimeoutError::Disconnected) => return Err(Broken::Ended),
                Err(RecvTimeoutError::Timeout) if !waited_for() => return Err(Broken::Cancelled),
                Err(RecvTimeoutError::Timeout) if left.is_zero() => return Err(Broken::Late),
                Err(RecvTimeoutError::Timeout) => {}
            }
        }
    }
}

impl Drop for Worker {
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
    requests: &Receiver<Vec<u8>>,
    answered: &Sender<io::Result<Answer>>,
    mut input: ChildStdin,
    mut output: ChildStdout,
) {
    for request in requests {
        let most = max_text(request.len());
        let mut exchange = || {
            write_frame(&mut input, &request)?;
            let mut tag = [0];
            output.read_exact(&mut tag)?;
            let known = Tag::ALL.into_iter().find(|known| *known as u8 == tag[0]);
            let tag = known.ok_or_else(|| io::Error::other("it does not speak the protocol"))?;
            let text = String::from_utf8(read_frame(&mut output, most)?);
            Ok(to_answer(tag, text.map_err(io::Error::other)?))
        };
        let answer = exchange();
        let broken = answer.is_err();
        if answered.send(answer).is_err() || broken {
            return;
        }
    }
}

/// The processes of one template.
#[derive(Debug)]
pub(super) struct Pool {
    process: RendererProcess,
    setup: Vec<u8>,
    /// Those that do nothing; `None` is one to be started when it is wanted.
    idle: Mutex<Vec<Option<Worker>>>,
    freed: Condvar,
}

impl Pool {
    /// Starts the processes, and tries the template on one message.
    pub(super) fn start(
        process: &RendererProcess,
        source: &str,
        bos: &str,
        eos: &str,
    ) -> Result<Self, ChatError> {
        if source.len() > MAX_SOURCE {
            let reason = format!("it has {} bytes and may have {MAX_SOURCE}", source.len());
            return Err(ChatError::Limit { reason });
        }
        let setup = Setup {
            source: source.to_owned(),
            bos: bos.to_owned(),
            eos: eos.to_owned(),
            memory_bytes: process.memory_bytes,
            seconds: process.time.as_secs().saturating_add(1),
        };
        let setup = to_json(&setup)?;
        let (process, freed) = (process.clone(), Condvar::new());
        let pool = Self { process, setup, idle: Mutex::default(), freed };
        let workers = (0..pool.process.processes.max(1)).map(|_| pool.worker().map(Some));
        let workers = workers.collect::<Result<_, _>>()?;
        *pool.idle() = workers;
        match pool.render([Message::new("user", "Hello")], None, true, &|| true) {
            // It may want other messages than that.
            Err(ChatError::Refused { .. } | ChatError::Render { .. }) | Ok(_) => Ok(pool),
            Err(error) => Err(error),
        }
    }

    fn idle(&self) -> MutexGuard<'_, Vec<Option<Worker>>> {
        self.idle.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A new process that has compiled the template.
    fn worker(&self) -> Result<Worker, ChatError> {
        let worker = Worker::start(&self.process)?;
        match worker.ask(self.setup.clone(), self.process.time, &|| true) {
            Ok(answer) => answer.map(|_| worker),
            Err(broken) => Err(self.error(broken)),
        }
    }

    fn error(&self, broken: Broken) -> ChatError {
        match broken {
            Broken::Late => ChatError::Timeout { limit: self.process.time },
            Broken::Cancelled => ChatError::Cancelled,
            Broken::Ended => {
                let memory = self.process.memory_bytes >> 20;
                let reason = format!(
                    "the process that renders it, which may use {memory} MiB and the stack of a main thread, crashed"
                );
                ChatError::Limit { reason }
            }
        }
    }

    /// Waits for a process that does nothing.
    fn take(&self, waited_for: &dyn Fn() -> bool) -> Result<Option<Worker>, ChatError> {
        let until = Instant::now() + self.process.time;
        let mut idle = self.idle();
        loop {
            if !waited_for() {
                return Err(ChatError::Cancelled);
            }
            if let Some(worker) = idle.pop() {
                return Ok(worker);
            }
            if Instant::now() >= until {
                let reason = "all that there are have been busy for too long; try again later";
                return Err(ChatError::Unavailable { reason: reason.to_owned() });
            }
            let waited = self.freed.wait_timeout(idle, LOOK);
            idle = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
    }

    pub(super) fn render(
        &self,
        messages: impl Serialize,
        tools: Option<&Value>,
        add_generation_prompt: bool,
        waited_for: &dyn Fn() -> bool,
    ) -> Answer {
        let request = to_json(&Conversation { messages, tools, add_generation_prompt })?;
        if request.len() > MAX_REQUEST {
            let reason =
                format!("the messages have {} bytes and may have {MAX_REQUEST}", request.len());
            return Err(ChatError::Limit { reason });
        }
        let mut worker = self.take(waited_for)?;
        let answer = self.render_in(&mut worker, &request, waited_for);
        self.idle().push(worker);
        self.freed.notify_one();
        answer
    }

    /// Renders in this process, or in a new one where it is gone.
    fn render_in(
        &self,
        place: &mut Option<Worker>,
        request: &[u8],
        waited_for: &dyn Fn() -> bool,
    ) -> Answer {
        let ask = |worker: &Worker| worker.ask(request.to_vec(), self.process.time, waited_for);
        if let Some(worker) = place.take() {
            match ask(&worker) {
                Ok(answer) => {
                    *place = Some(worker);
                    return answer;
                }
                // By what an earlier rendering left behind, perhaps.
                Err(Broken::Ended) => {}
                Err(broken) => return Err(self.error(broken)),
            }
        }
        let worker = self.worker()?;
        let answer = ask(&worker).map_err(|broken| self.error(broken))?;
        *place = Some(worker);
        answer
    }
}

fn to_json(value: &impl Serialize) -> Result<Vec<u8>, ChatError> {
    let fail = |error: serde_json::Error| ChatError::Render {
        reason: format!("the messages cannot be written as JSON: {error}"),
    };
    serde_json::to_vec(value).map_err(fail)
}

/// The process for templates: reads a template and conversations from standard input and writes texts to
/// standard output, under the limits that it is told first.
///
/// A program whose [`RendererProcess`] names itself calls this at the top of `main` when it sees the
/// arguments that it chose, before it starts a thread.
pub fn renderer_process() -> ExitCode {
    match serve(&mut io::stdin().lock(), &mut io::stdout().lock()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(_) => ExitCode::FAILURE,
    }
}

/// Answers until the parent asks no more.
fn serve(input: &mut impl Read, output: &mut impl Write) -> io::Result<()> {
    let mut answer = |answer: Answer, most: usize| {
        let (tag, text) = to_bytes(answer, most);
        output.write_all(&[tag as u8])?;
        write_frame(output, text.as_bytes())
    };
    // JSON may write a byte of the source as six.
    let setup = read_frame(input, 8 * MAX_SOURCE)?;
    let Setup { source, bos, eos, memory_bytes, seconds } =
        serde_json::from_slice(&setup).map_err(io::Error::other)?;
    Limits { memory_bytes, cpu_seconds: None }.apply().map_err(io::Error::other)?;
    let watch = Watch::start(Duration::from_secs(seconds))?;
    let template = match watch.over(|| Template::new(&source, bos, eos)) {
        Ok(template) => template,
        Err(error) => return answer(Err(error), 0),
    };
    answer(Ok(String::new()), 0)?;
    loop {
        let request = match read_frame(input, MAX_REQUEST) {
            Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => return Ok(()),
            request => request?,
        };
        let text = watch.over(|| {
            let Conversation::<Value, Option<Value>> { messages, tools, add_generation_prompt } =
                serde_json::from_slice(&request).map_err(|error| ChatError::Render {
                    reason: format!("the messages cannot be read: {error}"),
                })?;
            template.render(messages, tools.as_ref(), add_generation_prompt)
        });
        answer(text, max_text(request.len()))?;
    }
}

/// Ends the process where work takes too long and nobody else does.
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
