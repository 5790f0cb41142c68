//! A model, the kernels under it, and text out of both.

use crate::{
    AdapterReport, Completion, Embedding, Error, KernelSet, KernelSetBuilder, RunReport,
    TextStream, embedded,
};
use ruvllm_engine::chat::{ChatTemplate, Message, Renderer};
use ruvllm_engine::memory::kernel_share;
use ruvllm_engine::scheduler::{
    Kind, Request, RequestHandle, Scheduler, SchedulerConfig, Sink, Update,
};
use ruvllm_engine::{
    Adapter, Engine, EngineConfig, Event, Finish, GenerateOptions, Isa, KvPolicy, LoadProgress,
    Model, ReadPattern, RopeExtension, Session, SessionKey, SessionOptions, unit_length,
};
use ruvllm_host::{Host, InstallReport};
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError, mpsc};
use std::time::{Duration, Instant};

/// What a generation begins with.
///
/// ```
/// use ruvllm::{Message, Prompt, Runtime};
///
/// # fn main() -> Result<(), ruvllm::Error> {
/// let runtime = Runtime::builder().build()?;
/// let text = runtime.tokens(Prompt::Raw("Once upon a time"))?;
/// let messages = [Message::new("user", "Once upon a time")];
/// // A user's message is a conversation of one message.
/// assert_eq!(
///     runtime.tokens(Prompt::User("Once upon a time"))?,
///     runtime.tokens(Prompt::Chat(&messages))?,
/// );
/// println!("{} tokens", text.len());
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Copy, Debug)]
pub enum Prompt<'a> {
    /// Text that the model continues as it stands.
    Raw(&'a str),
    /// A user's message, put into the model's chat template; as [`Prompt::Raw`] for a model without
    /// one.
    User(&'a str),
    /// A conversation, put into the model's chat template.
    Chat(&'a [Message]),
}

/// A loaded model with its kernels. Clones share it, and cost nothing; `Send + Sync`: hand one to each
/// thread that generates.
///
/// ```
/// use ruvllm::{GenerateOptions, Prompt, Runtime};
/// use std::ops::ControlFlow;
///
/// # fn main() -> Result<(), ruvllm::Error> {
/// let runtime = Runtime::builder().build()?; // the demo model, which is built in
/// let options = GenerateOptions { max_tokens: 16, ..GenerateOptions::default() };
/// let done = runtime.generate(Prompt::Raw("Once upon a time"), &options, |text| {
///     print!("{text}");
///     ControlFlow::Continue(())
/// })?;
/// assert_eq!(done.token_ids.len(), done.usage().completion_tokens);
/// # Ok(())
/// # }
/// ```
#[derive(Clone)]
pub struct Runtime {
    inner: Arc<RuntimeInner>,
}

struct RuntimeInner {
    engine: Engine,
    kernels: KernelSet,
    template: Option<ChatTemplate>,
    model_name: String,
    sessions: SessionOptions,
    load: Duration,
    /// Computes what is asked for without waiting, once something is.
    scheduler: Mutex<Option<Scheduler>>,
}

/// Where a model comes from.
enum Source {
    BuiltIn,
    Path(PathBuf),
    Bytes { bytes: Vec<u8>, name: String },
    Loaded(Arc<Model>),
}

/// Is told how far loading is.
type OnProgress = Box<dyn FnMut(LoadProgress) + Send>;

/// Chooses model, kernels and resources; made by [`Runtime::builder`].
///
/// ```no_run
/// use ruvllm::{KvCodec, Runtime};
///
/// # fn main() -> Result<(), ruvllm::Error> {
/// let runtime = Runtime::builder()
///     .model("model.gguf")
///     .threads(4)
///     .context(4096)
///     .kv(KvCodec::Q8_0)
///     .on_progress(|load| println!("{} of {} bytes", load.done, load.total))
///     .build()?;
/// # Ok(())
/// # }
/// ```
pub struct RuntimeBuilder {
    model: Source,
    adapter: Option<(PathBuf, f32)>,
    kernels: KernelSetBuilder,
    threads: Option<usize>,
    context: Option<usize>,
    rope_scaling: Option<RopeExtension>,
    kv: KvPolicy,
    memory: Option<usize>,
    spill_dir: Option<PathBuf>,
    sinks: Option<usize>,
    read_pattern: Option<ReadPattern>,
    isa: Option<Isa>,
    renderer: Option<Renderer>,
    on_progress: Option<OnProgress>,
}

impl Runtime {
    /// Starts from the built-in demo model, the core pack, and every processor that this process
    /// may use.
    pub fn builder() -> RuntimeBuilder {
        RuntimeBuilder {
            model: Source::BuiltIn,
            adapter: None,
            kernels: KernelSet::builder(),
            threads: None,
            context: None,
            rope_scaling: None,
            kv: KvPolicy::default(),
            memory: None,
            spill_dir: None,
            sinks: None,
            read_pattern: None,
            isa: None,
            renderer: None,
            on_progress: None,
        }
    }

    /// Generates from `prompt` with an empty cache, handing text to `on_text` as it is decided:
    /// whole characters, and never a part of a stop string. `on_text` breaks off the generation.
    ///
    /// # Errors
    ///
    /// Those of the tokenizer, the template and the engine; text that was handed out stays valid.
    pub fn generate(
        &self,
        prompt: Prompt<'_>,
        options: &GenerateOptions,
        on_text: impl FnMut(&str) -> ControlFlow<()>,
    ) -> Result<Completion, Error> {
        let tokens = self.tokens(prompt)?;
        run(&mut self.session(), &tokens, options, on_text)
    }

    /// As [`Runtime::generate`], in a session that may have read something before: what it has in common
    /// with the prompt is not computed again, and the rest of it is forgotten.
    ///
    /// # Errors
    ///
    /// As [`Runtime::generate`].
    pub fn generate_in(
        &self,
        session: &mut Session,
        prompt: Prompt<'_>,
        options: &GenerateOptions,
        on_text: impl FnMut(&str) -> ControlFlow<()>,
    ) -> Result<Completion, Error> {
        let tokens = self.tokens(prompt)?;
        let rest = rewind(session, &tokens);
        run(session, rest, options, on_text)
    }

    /// Generates from `prompt` on a thread of the runtime's own, which computes a token of all such texts in
    /// each step: read the text from the stream as it comes, in blocking or in asynchronous code.
    ///
    /// # Errors
    ///
    /// Those of the tokenizer, the template and the options; a failure while generating is an item of the
    /// stream.
    pub fn stream(
        &self,
        prompt: Prompt<'_>,
        options: &GenerateOptions,
    ) -> Result<TextStream, Error> {
        let request = self.request(self.tokens(prompt)?, options.clone());
        let scheduler = self.scheduler()?;
        TextStream::start(scheduler, request)
    }

    /// Generates from several prompts together: a step computes a token of each, which reads the weights
    /// once for all of them. Gives a completion, or why there is none, for each prompt in its order. With a
    /// seed it is that of every text.
    pub fn generate_batch<'p>(
        &self,
        prompts: impl IntoIterator<Item = Prompt<'p>>,
        options: &GenerateOptions,
    ) -> Vec<Result<Completion, Error>> {
        let streams: Vec<_> = prompts.into_iter().map(|p| self.stream(p, options)).collect();
        streams.into_iter().map(|stream| stream.and_then(TextStream::wait)).collect()
    }

    /// A text as a vector of length 1: the mean over its tokens of the model's hidden states behind the
    /// final norm, as `POST /v1/embeddings` has it. A model that was trained for embeddings tells texts
    /// apart better than one that was not.
    ///
    /// # Errors
    ///
    /// Those of the tokenizer and the engine; a text without tokens and one longer than the context are
    /// among them.
    pub fn embed(&self, text: &str) -> Result<Embedding, Error> {
        self.start_embedding(text)?.wait()
    }

    /// As [`Runtime::embed`] for several texts, which are computed together: a vector, or why there is none,
    /// for each text in its order.
    pub fn embed_batch<'t>(
        &self,
        texts: impl IntoIterator<Item = &'t str>,
    ) -> Vec<Result<Embedding, Error>> {
        let begun: Vec<_> = texts.into_iter().map(|text| self.start_embedding(text)).collect();
        begun.into_iter().map(|begun| begun.and_then(PendingEmbedding::wait)).collect()
    }

    fn start_embedding(&self, text: &str) -> Result<PendingEmbedding, Error> {
        let tokens = self.tokens(Prompt::Raw(text))?;
        let count = tokens.len();
        let request = self.request(tokens, GenerateOptions::default());
        let (sender, answer) = mpsc::channel();
        let sink: Sink = Box::new(move |update| {
            let _ = match update {
                Update::Embedding(mean) => sender.send(Ok(mean)),
                Update::Failed(error) => sender.send(Err(error.into())),
                _ => Ok(()),
            };
            ControlFlow::Continue(())
        });
        let scheduler = self.scheduler()?;
        let handle = scheduler.submit(Request { kind: Kind::Embed, ..request }, sink)?;
        Ok(PendingEmbedding { answer, tokens: count, _handle: handle, _scheduler: scheduler })
    }

    fn request(&self, tokens: Vec<u32>, options: GenerateOptions) -> Request {
        Request { session: self.inner.sessions.clone(), ..Request::new(tokens, options) }
    }

    /// What computes several requests together; begun when it is first asked for, and anew after a panic of
    /// its thread.
    fn scheduler(&self) -> Result<Scheduler, Error> {
        let mut scheduler = self.inner.scheduler.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(alive) = scheduler.as_ref().filter(|scheduler| scheduler.is_alive()) {
            return Ok(alive.clone());
        }
        // How many may wait is for the program to say, which knows whom it serves.
        let config = SchedulerConfig { queue: 1 << 20, ..SchedulerConfig::default() };
        Ok(scheduler.insert(Scheduler::start(self.engine().clone(), config)?).clone())
    }

    /// An empty session with the options that the runtime was built with.
    pub fn session(&self) -> Session {
        self.engine().session_with(&self.inner.sessions)
    }

    /// Continues a session from a file; see [`Session::save`].
    ///
    /// # Errors
    ///
    /// Where the file is damaged, does not open with the key, or is of another model, adapter or way
    /// of storing keys and values.
    pub fn restore_session(&self, path: &Path, key: &SessionKey) -> Result<Session, Error> {
        Ok(self.engine().restore_session(path, key, &self.inner.sessions)?)
    }

    /// A conversation that keeps its cache between messages.
    pub fn conversation(&self) -> Conversation {
        Conversation { runtime: self.clone(), session: self.session(), messages: Vec::new() }
    }

    /// The token ids that a prompt becomes.
    ///
    /// # Errors
    ///
    /// Where the template does not take the messages or the tokenizer not the text.
    pub fn tokens(&self, prompt: Prompt<'_>) -> Result<Vec<u32>, Error> {
        let user;
        let messages = match (prompt, &self.inner.template) {
            (Prompt::Raw(text), _) | (Prompt::User(text), None) => {
                return Ok(self.model().tokenizer().encode(text, true)?);
            }
            (Prompt::User(text), Some(_)) => {
                user = [Message::new("user", text)];
                &user
            }
            (Prompt::Chat(messages), _) => messages,
        };
        let text = self.render(messages)?;
        Ok(self.model().tokenizer().encode_chat(&text)?)
    }

    /// The text that the model's chat template makes of the messages, ready for an answer.
    ///
    /// # Errors
    ///
    /// [`Error::NoChatTemplate`] for a model without one, and where the template refuses the
    /// messages.
    pub fn render(&self, messages: &[Message]) -> Result<String, Error> {
        let template = self.inner.template.as_ref();
        let template = template
            .ok_or_else(|| Error::NoChatTemplate { model: self.model_name().to_owned() })?;
        Ok(template.render(messages, true)?)
    }

    /// Whether the model has a chat template.
    pub fn has_chat_template(&self) -> bool {
        self.inner.template.is_some()
    }

    /// The engine: sessions, logits, perplexity, benchmarks.
    pub fn engine(&self) -> &Engine {
        &self.inner.engine
    }

    /// The model: configuration, tokenizer, template.
    pub fn model(&self) -> &Model {
        self.engine().model()
    }

    /// The model, to be shared with another runtime by [`RuntimeBuilder::shared_model`].
    pub fn shared_model(&self) -> Arc<Model> {
        self.engine().shared_model().clone()
    }

    /// The adapter that the runtime was built with.
    pub fn adapter(&self) -> Option<&Adapter> {
        self.inner.sessions.adapter.as_ref()
    }

    /// The model's file, or its name where it comes from no file.
    pub fn model_name(&self) -> &str {
        &self.inner.model_name
    }

    /// The host that runs the kernels.
    pub fn host(&self) -> &Host {
        self.inner.kernels.host()
    }

    /// The host with its packs, and on whose word those are taken.
    pub fn kernels(&self) -> &KernelSet {
        &self.inner.kernels
    }

    /// The packs that were installed.
    pub fn installed(&self) -> &[InstallReport] {
        self.inner.kernels.installed()
    }

    /// How long building took.
    pub fn load_time(&self) -> Duration {
        self.inner.load
    }

    /// A completion, and per op what was counted since this runtime was built, in figures.
    pub fn report(&self, completion: &Completion) -> RunReport {
        let Finish { reason, usage, timings } = completion.finish;
        RunReport {
            model: self.model_name().to_owned(),
            adapter: self.adapter().map(AdapterReport::new),
            threads: self.engine().config().threads,
            isa: self.engine().isa().name(),
            kv: self.engine().config().kv.to_string(),
            memory: self.engine().memory(),
            finish: reason.name(),
            prompt_tokens: usage.prompt_tokens,
            generated_tokens: usage.completion_tokens,
            load_ms: self.load_time().as_secs_f64() * 1e3,
            time_to_first_token_ms: timings.time_to_first_token_seconds * 1e3,
            prefill_tokens_per_second: timings.prefill_tokens_per_second,
            decode_tokens_per_second: timings.decode_tokens_per_second,
            ops: self
                .host()
                .stats()
                .into_iter()
                .filter(|op| op.calls > 0 || op.fallbacks > 0)
                .collect(),
        }
    }
}

/// Takes a session back to what it has in common with `tokens`, and gives those that are left to compute;
/// at least one, so that there are logits.
fn rewind<'t>(session: &mut Session, tokens: &'t [u32]) -> &'t [u32] {
    let (held, evicted) = (session.tokens(), session.evicted_range());
    let most = tokens.len().saturating_sub(1);
    let common =
        |held: &[u32], tokens: &[u32]| held.iter().zip(tokens).take_while(|(a, b)| a == b).count();
    let mut keep = common(held, &tokens[..most]);
    let mut read = keep;
    if evicted.len > 0 && keep >= evicted.at {
        // What an endless session forgot, it has read.
        let behind = tokens[..most].get(evicted.at + evicted.len..).unwrap_or_default();
        keep = evicted.at + common(&held[evicted.at..], behind);
        read = if keep > evicted.at { keep + evicted.len } else { evicted.at };
    }
    session.truncate(keep);
    &tokens[read..]
}

/// Generates in `session` and gathers the text while handing it on.
fn run(
    session: &mut Session,
    tokens: &[u32],
    options: &GenerateOptions,
    mut on_text: impl FnMut(&str) -> ControlFlow<()>,
) -> Result<Completion, Error> {
    let (mut text, mut token_ids) = (String::new(), Vec::new());
    let finish = session.generate(tokens, options, &mut |event| match event {
        Event::Text(piece) => {
            text.push_str(&piece);
            on_text(&piece)
        }
        Event::Token(token) => {
            token_ids.push(token);
            ControlFlow::Continue(())
        }
        _ => ControlFlow::Continue(()),
    })?;
    Ok(Completion { text, token_ids, finish })
}

/// A vector that is being computed.
struct PendingEmbedding {
    answer: mpsc::Receiver<Result<Vec<f32>, Error>>,
    tokens: usize,
    _handle: RequestHandle,
    /// Goes on as long as somebody waits.
    _scheduler: Scheduler,
}

impl PendingEmbedding {
    fn wait(self) -> Result<Embedding, Error> {
        let mut vector = self.answer.recv().map_err(|_| Error::SchedulerStopped)??;
        unit_length(&mut vector);
        Ok(Embedding { vector, tokens: self.tokens })
    }
}

impl RuntimeBuilder {
    /// Loads this GGUF file or Hugging Face directory instead of the built-in model.
    pub fn model(mut self, path: impl Into<PathBuf>) -> Self {
        self.model = Source::Path(path.into());
        self
    }

    /// Takes a GGUF file that is in memory, as one that was downloaded or decrypted; `name` stands for its
    /// path in messages. The bytes stay in memory, beside those that are rearranged.
    pub fn model_bytes(mut self, bytes: impl Into<Vec<u8>>, name: impl Into<String>) -> Self {
        self.model = Source::Bytes { bytes: bytes.into(), name: name.into() };
        self
    }

    /// Takes a model that is loaded, from [`Runtime::shared_model`] or [`Model::open`]: runtimes of one
    /// model share its weights, rearranged ones included.
    pub fn shared_model(mut self, model: Arc<Model>) -> Self {
        self.model = Source::Loaded(model);
        self
    }

    /// Is told, on the thread that builds, how far the model's weights are prepared: at the beginning and
    /// after each matrix.
    pub fn on_progress(mut self, on_progress: impl FnMut(LoadProgress) + Send + 'static) -> Self {
        self.on_progress = Some(Box::new(on_progress));
        self
    }

    /// Adds this LoRA adapter, a GGUF file or a PEFT directory, to the model in every session, times
    /// `scale`; 1 is as it was trained. See [`Adapter`] for sessions with others.
    pub fn adapter(mut self, path: impl Into<PathBuf>, scale: f32) -> Self {
        self.adapter = Some((path.into(), scale));
        self
    }

    /// Replaces the kernels: packs, trust, policy.
    pub fn kernels(mut self, kernels: KernelSetBuilder) -> Self {
        self.kernels = kernels;
        self
    }

    /// Computes with this many threads, whatever the host's configuration says.
    pub fn threads(mut self, threads: usize) -> Self {
        self.threads = Some(threads);
        self
    }

    /// Limits the context to this many tokens; the model's own length is the most unless
    /// [`RuntimeBuilder::rope_scaling`] stretches it.
    pub fn context(mut self, tokens: usize) -> Self {
        self.context = Some(tokens);
        self
    }

    /// Stretches the model's context; see [`EngineConfig::rope_scaling`].
    pub fn rope_scaling(mut self, extension: RopeExtension) -> Self {
        self.rope_scaling = Some(extension);
        self
    }

    /// Chooses how keys and values are stored: a policy, or one codec for all.
    pub fn kv(mut self, kv: impl Into<KvPolicy>) -> Self {
        self.kv = kv.into();
        self
    }

    /// Bounds the bytes that keys and values, adapters, kernels and working memory take together, by half of
    /// the machine's memory where this is not called; see [`EngineConfig::memory`].
    pub fn memory(mut self, bytes: usize) -> Self {
        self.memory = Some(bytes);
        self
    }

    /// Makes sessions endless: where the context is full they forget the older half of what follows
    /// their first `sinks` tokens; see [`SessionOptions::sinks`]. What
    /// [`HostConfig::deterministic`](crate::host::HostConfig::deterministic) promises does not hold for them.
    pub fn endless(mut self, sinks: usize) -> Self {
        self.sinks = Some(sinks);
        self
    }

    /// Writes keys and values that the bound has no room for to files in this directory, while their
    /// sequences rest, instead of computing them again; see [`EngineConfig::spill_dir`].
    pub fn spill_dir(mut self, dir: impl Into<PathBuf>) -> Self {
        self.spill_dir = Some(dir.into());
        self
    }

    /// Reads rearranged weights from memory by this pattern, instead of measuring which is the fastest;
    /// see [`EngineConfig::read_pattern`].
    pub fn read_pattern(mut self, pattern: ReadPattern) -> Self {
        self.read_pattern = Some(pattern);
        self
    }

    /// Computes products and attention with these instructions instead of the best that the processor
    /// has; [`HostConfig::isa`](crate::host::HostConfig::isa) says so for the native kernels.
    pub fn isa(mut self, isa: Isa) -> Self {
        self.isa = Some(isa);
        self
    }

    /// Says where the model's chat template runs. Where this is not called, the built-in model's runs in
    /// this process, and that of a file nowhere: see [`Renderer`].
    pub fn renderer(mut self, renderer: Renderer) -> Self {
        self.renderer = Some(renderer);
        self
    }

    /// Opens the model and, meanwhile, verifies and prepares the kernels.
    ///
    /// # Errors
    ///
    /// Whatever is wrong with the model, the adapter, a pack or the resources asked for.
    pub fn build(self) -> Result<Runtime, Error> {
        let started = Instant::now();
        let RuntimeBuilder {
            model: source,
            adapter,
            kernels,
            threads,
            context,
            rope_scaling,
            kv,
            memory,
            spill_dir,
            sinks,
            read_pattern,
            isa,
            renderer,
            on_progress,
        } = self;
        let kernels = kernels.for_models(&kv);
        // From the start, so that proving packs keeps to it.
        let kernels = match memory {
            Some(budget) => kernels.kernel_memory(kernel_share(budget)),
            None => kernels,
        };
        // The built-in model's template is a part of this program.
        let trusted = match source {
            Source::BuiltIn => Renderer::InProcess,
            _ => Renderer::None,
        };
        let (model, kernels) = std::thread::scope(|scope| {
            let kernels = scope.spawn(|| kernels.build());
            let model = source.open();
            let kernels = kernels.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic));
            (model, kernels)
        });
        let ((model, model_name), kernels) = (model?, kernels?);
        let mut config = EngineConfig {
            kv,
            ctx: context,
            memory,
            spill_dir,
            rope_scaling,
            read_pattern,
            isa,
            ..EngineConfig::default()
        };
        let host = kernels.host().clone();
        if let Some(threads) = threads.or(host.config().threads) {
            config.threads = threads;
        }
        let template = model.chat_template(&renderer.unwrap_or(trusted))?;
        let mut on_progress = on_progress.unwrap_or_else(|| Box::new(|_| ()));
        let engine = Engine::with_progress(model, host, config, &mut *on_progress)?;
        let adapter = adapter.map(|(path, scale)| Adapter::open(&engine, &path, scale));
        let adapter = adapter.transpose()?;
        let sessions = SessionOptions { sinks, adapter, ..SessionOptions::default() };
        let load = started.elapsed();
        let scheduler = Mutex::default();
        let inner =
            RuntimeInner { engine, kernels, template, model_name, sessions, load, scheduler };
        Ok(Runtime { inner: Arc::new(inner) })
    }
}

impl Source {
    /// The model, and what to call it.
    fn open(self) -> Result<(Arc<Model>, String), Error> {
        let (model, name) = match self {
            Source::BuiltIn => {
                let name = embedded::DEMO_MODEL_NAME;
                (Model::from_static(embedded::demo_model(), name)?, name.to_owned())
            }
            Source::Path(path) => (Model::open(&path)?, path.display().to_string()),
            Source::Bytes { bytes, name } => (Model::from_bytes(bytes, &name)?, name),
            Source::Loaded(model) => {
                let name = model.name().to_owned();
                return Ok((model, name));
            }
        };
        Ok((Arc::new(model), name))
    }
}

/// A conversation: its messages, and the cache of what the model has read of them. It holds the runtime, so
/// it can be kept anywhere and moved to any thread.
///
/// ```
/// use ruvllm::{GenerateOptions, Message, Runtime};
/// use std::ops::ControlFlow;
///
/// # fn main() -> Result<(), ruvllm::Error> {
/// let mut conversation = Runtime::builder().build()?.conversation();
/// let options = GenerateOptions { max_tokens: 8, ..GenerateOptions::default() };
/// let answer = conversation.send("Once upon a time", &options, |_text| ControlFlow::Continue(()))?;
/// let last = Message::new("assistant", answer.text);
/// assert_eq!(conversation.messages().last(), Some(&last));
/// # Ok(())
/// # }
/// ```
pub struct Conversation {
    runtime: Runtime,
    session: Session,
    messages: Vec<Message>,
}

impl Conversation {
    /// Adds a message without asking for an answer; a system message, say.
    pub fn push(&mut self, message: Message) {
        self.messages.push(message);
    }

    /// Replaces the messages. What the cache holds of their beginning is not computed again.
    pub fn set_messages(&mut self, messages: Vec<Message>) {
        self.messages = messages;
    }

    /// The messages so far, answers included.
    pub fn messages(&self) -> &[Message] {
        &self.messages
    }

    /// Adds a user's message and generates the answer to it, which joins the conversation even when
    /// `on_text` breaks it off. Only what the cache does not hold yet is computed.
    ///
    /// # Errors
    ///
    /// As [`Runtime::generate`]; the message is then not part of the conversation.
    pub fn send(
        &mut self,
        text: &str,
        options: &GenerateOptions,
        on_text: impl FnMut(&str) -> ControlFlow<()>,
    ) -> Result<Completion, Error> {
        self.messages.push(Message::new("user", text));
        let answer = self.answer(options, on_text);
        match &answer {
            Ok(completion) => {
                self.messages.push(Message::new("assistant", completion.text.as_str()))
            }
            Err(_) => {
                self.messages.pop();
            }
        }
        answer
    }

    fn answer(
        &mut self,
        options: &GenerateOptions,
        on_text: impl FnMut(&str) -> ControlFlow<()>,
    ) -> Result<Completion, Error> {
        let tokens = self.runtime.tokens(Prompt::Chat(&self.messages))?;
        // Answers are tokenised anew with the text around them, so only a common prefix is sure to
        // be what the session holds.
        let rest = rewind(&mut self.session, &tokens);
        run(&mut self.session, rest, options, on_text)
    }
}
