//! A model, the kernels under it, and text out of both.

use crate::{AdapterReport, Completion, Error, KernelSet, KernelSetBuilder, RunReport, embedded};
use ruvllm_engine::chat::{ChatTemplate, Message, Renderer};
use ruvllm_engine::memory::kernel_share;
use ruvllm_engine::{
    Adapter, Engine, EngineConfig, Event, Finish, GenerateOptions, Isa, KvPolicy, Model,
    ReadPattern, RopeExtension, Session, SessionKey, SessionOptions,
};
use ruvllm_host::{Host, InstallReport};
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// What a generation begins with.
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

/// A loaded model with its kernels. `Send + Sync`: share it, and give each thread that generates a
/// conversation of its own.
pub struct Runtime {
    engine: Engine,
    kernels: KernelSet,
    template: Option<ChatTemplate>,
    model_name: String,
    sessions: SessionOptions,
    load: Duration,
}

/// Chooses model, kernels and resources; made by [`Runtime::builder`].
pub struct RuntimeBuilder {
    model: Option<PathBuf>,
    adapter: Option<(PathBuf, f32)>,
    kernels: KernelSetBuilder,
    threads: Option<usize>,
    context: Option<usize>,
    rope_scaling: Option<RopeExtension>,
    kv: KvPolicy,
    memory: Option<usize>,
    spill_dir: Option<PathBuf>,
    sinks: Option<usize>,
    repack: bool,
    read_pattern: Option<ReadPattern>,
    isa: Option<Isa>,
    bf16: bool,
    renderer: Option<Renderer>,
}

impl Runtime {
    /// Starts from the built-in demo model, the core pack, and every processor that this process
    /// may use.
    pub fn builder() -> RuntimeBuilder {
        RuntimeBuilder {
            model: None,
            adapter: None,
            kernels: KernelSet::builder(),
            threads: None,
            context: None,
            rope_scaling: None,
            kv: KvPolicy::default(),
            memory: None,
            spill_dir: None,
            sinks: None,
            repack: true,
            read_pattern: None,
            isa: None,
            bf16: false,
            renderer: None,
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

    /// An empty session with the options that the runtime was built with.
    pub fn session(&self) -> Session {
        self.engine.session_with(&self.sessions)
    }

    /// Continues a session from a file; see [`Session::save`].
    ///
    /// # Errors
    ///
    /// Where the file is damaged, does not open with the key, or is of another model, adapter or way
    /// of storing keys and values.
    pub fn restore_session(&self, path: &Path, key: &SessionKey) -> Result<Session, Error> {
        Ok(self.engine.restore_session(path, key, &self.sessions)?)
    }

    /// A conversation that keeps its cache between messages.
    pub fn conversation(&self) -> Conversation<'_> {
        Conversation { runtime: self, session: self.session(), messages: Vec::new() }
    }

    /// The token ids that a prompt becomes.
    ///
    /// # Errors
    ///
    /// Where the template does not take the messages or the tokenizer not the text.
    pub fn tokens(&self, prompt: Prompt<'_>) -> Result<Vec<u32>, Error> {
        let user;
        let messages = match (prompt, &self.template) {
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
        let template = self
            .template
            .as_ref()
            .ok_or_else(|| Error::NoChatTemplate { model: self.model_name.clone() })?;
        Ok(template.render(messages, true)?)
    }

    /// Whether the model has a chat template.
    pub fn has_chat_template(&self) -> bool {
        self.template.is_some()
    }

    /// The engine: sessions, logits, perplexity, benchmarks.
    pub fn engine(&self) -> &Engine {
        &self.engine
    }

    /// The model: configuration, tokenizer, template.
    pub fn model(&self) -> &Model {
        self.engine.model()
    }

    /// The adapter that the runtime was built with.
    pub fn adapter(&self) -> Option<&Adapter> {
        self.sessions.adapter.as_ref()
    }

    /// The model's file, or the name of the built-in one.
    pub fn model_name(&self) -> &str {
        &self.model_name
    }

    /// The host that runs the kernels.
    pub fn host(&self) -> &Host {
        self.kernels.host()
    }

    /// The host with its packs, and on whose word those are taken.
    pub fn kernels(&self) -> &KernelSet {
        &self.kernels
    }

    /// The packs that were installed.
    pub fn installed(&self) -> &[InstallReport] {
        self.kernels.installed()
    }

    /// How long building took.
    pub fn load_time(&self) -> Duration {
        self.load
    }

    /// A completion, and per op what was counted since this runtime was built, in figures.
    pub fn report(&self, completion: &Completion) -> RunReport {
        let Finish { reason, usage, timings } = completion.finish;
        RunReport {
            model: self.model_name.clone(),
            adapter: self.adapter().map(AdapterReport::new),
            threads: self.engine.config().threads,
            isa: self.engine.isa().name(),
            kv: self.engine.config().kv.to_string(),
            memory: self.engine.memory(),
            finish: reason.name(),
            prompt_tokens: usage.prompt_tokens,
            generated_tokens: usage.completion_tokens,
            load_ms: self.load.as_secs_f64() * 1e3,
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

/// Generates in `session` and gathers the text while handing it on.
/// Takes a session back to what it has in common with `tokens`, and gives those that are left to compute;
/// at least one, so that there are logits.
fn rewind<'t>(session: &mut Session, tokens: &'t [u32]) -> &'t [u32] {
    let (held, gap) = (session.tokens(), session.gap());
    let most = tokens.len().saturating_sub(1);
    let common =
        |held: &[u32], tokens: &[u32]| held.iter().zip(tokens).take_while(|(a, b)| a == b).count();
    let mut keep = common(held, &tokens[..most]);
    let mut read = keep;
    if gap.len > 0 && keep >= gap.at {
        // What an endless session forgot, it has read.
        let behind = tokens[..most].get(gap.at + gap.len..).unwrap_or_default();
        keep = gap.at + common(&held[gap.at..], behind);
        read = if keep > gap.at { keep + gap.len } else { gap.at };
    }
    session.truncate(keep);
    &tokens[read..]
}

fn run(
    session: &mut Session,
    tokens: &[u32],
    options: &GenerateOptions,
    mut on_text: impl FnMut(&str) -> ControlFlow<()>,
) -> Result<Completion, Error> {
    let mut text = String::new();
    let finish = session.generate(tokens, options, &mut |event| match event {
        Event::Text(piece) => {
            text.push_str(&piece);
            on_text(&piece)
        }
        _ => ControlFlow::Continue(()),
    })?;
    Ok(Completion { text, finish })
}

impl RuntimeBuilder {
    /// Loads this GGUF file or Hugging Face directory instead of the built-in model.
    pub fn model(mut self, path: impl Into<PathBuf>) -> Self {
        self.model = Some(path.into());
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

    /// Computes with this many threads.
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
    /// their first `sinks` tokens; see [`SessionOptions::sinks`].
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

    /// Rearranges the weights in memory where products are faster from that, as by default, or
    /// leaves them in the file, shared with other processes; see [`EngineConfig::repack`].
    pub fn repack(mut self, repack: bool) -> Self {
        self.repack = repack;
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

    /// Allows prompts to meet 16-bit float weights as bf16; see [`EngineConfig::bf16`].
    pub fn bf16(mut self, bf16: bool) -> Self {
        self.bf16 = bf16;
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
            model: path,
            adapter,
            kernels,
            threads,
            context,
            rope_scaling,
            kv,
            memory,
            spill_dir,
            sinks,
            repack,
            read_pattern,
            isa,
            bf16,
            renderer,
        } = self;
        let kernels = kernels.for_models(&kv);
        // From the start, so that proving packs keeps to it.
        let kernels = match memory {
            Some(budget) => kernels.kernel_memory(kernel_share(budget)),
            None => kernels,
        };
        let (model, kernels) = std::thread::scope(|scope| {
            let kernels = scope.spawn(|| kernels.build());
            let model = match &path {
                Some(path) => Model::open(path),
                None => Model::from_static(embedded::demo_model(), embedded::DEMO_MODEL_NAME),
            };
            let kernels = kernels.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic));
            (model, kernels)
        });
        let (model, kernels) = (model?, kernels?);
        let mut config = EngineConfig {
            kv,
            ctx: context,
            memory,
            spill_dir,
            rope_scaling,
            repack,
            read_pattern,
            isa,
            bf16,
            ..EngineConfig::default()
        };
        if let Some(threads) = threads {
            config.threads = threads;
        }
        // The built-in model's is a part of this program.
        let trusted = if path.is_some() { Renderer::None } else { Renderer::InProcess };
        let renderer = renderer.unwrap_or(trusted);
        let template = model.chat_template(&renderer)?;
        let engine = Engine::new(Arc::new(model), kernels.host().clone(), config)?;
        let model_name =
            path.map_or_else(|| embedded::DEMO_MODEL_NAME.to_owned(), |p| p.display().to_string());
        let adapter = adapter.map(|(path, scale)| Adapter::open(&engine, &path, scale));
        let adapter = adapter.transpose()?;
        let sessions = SessionOptions { sinks, adapter, ..SessionOptions::default() };
        let load = started.elapsed();
        Ok(Runtime { engine, kernels, template, model_name, sessions, load })
    }
}

/// A conversation: its messages, and the cache of what the model has read of them.
pub struct Conversation<'r> {
    runtime: &'r Runtime,
    session: Session,
    messages: Vec<Message>,
}

impl Conversation<'_> {
    /// Adds a message without asking for an answer; a system message, say.
    pub fn push(&mut self, message: Message) {
        self.messages.push(message);
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
