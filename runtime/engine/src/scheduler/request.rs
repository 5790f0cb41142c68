//! What a request asks for, and what it is told.

use std::ops::ControlFlow;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use crate::constraint::TokenConstraint;
use crate::engine::Engine;
use crate::error::EngineError;
use crate::generate::{FinishReason, GenerateOptions, Token, Usage};
use crate::logprobs::Logprobs;
use crate::session::SessionOptions;
use crate::text::Text;

/// What a request wants of its prompt.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Kind {
    /// The text that follows.
    #[default]
    Generate,
    /// The mean over all tokens of the hidden states behind the final norm, `[dim]`.
    Embed,
}

/// A request.
pub struct Request {
    /// The tokens of the prompt.
    pub prompt: Vec<u32>,
    /// What is wanted of it.
    pub kind: Kind,
    /// How the text is chosen and where it ends.
    pub options: GenerateOptions,
    /// Priority, scope of shared beginnings, and whether the sequence ends where the context does. A
    /// request of a higher priority comes first.
    pub session: SessionOptions,
    /// Who asks; clients of one priority get equal shares.
    pub client: String,
    /// Whether log-probabilities are reported, and how many alternatives for each token.
    pub logprobs: Option<usize>,
    /// Whether those of the prompt's tokens are, too, before the first token of the text, and how many
    /// alternatives for each. Not for a sequence without an end.
    pub prompt_logprobs: Option<usize>,
    /// Decides which tokens may follow.
    pub constraint: Option<Box<dyn TokenConstraint>>,
}

impl Request {
    /// A request for a text, of nobody in particular.
    pub fn new(prompt: Vec<u32>, options: GenerateOptions) -> Request {
        Request {
            prompt,
            kind: Kind::Generate,
            options,
            session: SessionOptions::default(),
            client: String::new(),
            logprobs: None,
            prompt_logprobs: None,
            constraint: None,
        }
    }
}

/// Log-probabilities of a prompt's tokens, in their order; `None` for the first, which follows from nothing.
pub type PromptLogprobs = Vec<Option<Logprobs>>;

/// Receives what becomes of a request.
pub type Sink = Box<dyn FnMut(Update) -> ControlFlow<()> + Send>;

/// What becomes of a request.
#[derive(Debug)]
pub enum Update {
    /// Its first step is computed next.
    Started(Started),
    /// So many tokens of the prompt of a text are computed.
    Prefill {
        /// Tokens computed.
        done: usize,
        /// Tokens of the prompt.
        total: usize,
    },
    /// How likely the tokens of the prompt were, where that was asked for; once.
    Prompt(PromptLogprobs),
    /// A token was chosen.
    Token(Token),
    /// The text has ended; the last update.
    Done(Finished),
    /// The request failed; the last update. What was told before holds.
    Failed(EngineError),
    /// The mean of the hidden states `[dim]`, not normalised; the last update.
    Embedding(Vec<f32>),
}

/// How a request began.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Started {
    /// How long it waited.
    pub queued: Duration,
    /// Tokens of the prompt that others had computed.
    pub cached_tokens: usize,
}

/// How a text ended.
#[derive(Clone, Debug, PartialEq)]
pub struct Finished {
    /// Why.
    pub reason: FinishReason,
    /// What was held back and is text after all.
    pub text: String,
    /// The stop string that ended it, if one did.
    pub stop: Option<String>,
    /// The token that ended it and is no part of the text, if one did and log-probabilities are reported.
    pub end_token: Option<Token>,
    /// Token counts.
    pub usage: Usage,
    /// Tokens of the prompt that others had computed.
    pub cached_tokens: usize,
    /// How long it took.
    pub latency: Latency,
}

/// How long the parts of a request took.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Latency {
    /// From submission to the first step; all of it where there was none.
    pub queued: Duration,
    /// From submission to the first token; zero where there was none.
    pub first_token: Duration,
    /// From submission to the end.
    pub total: Duration,
}

/// Why a request was not taken.
#[derive(Debug, thiserror::Error)]
pub enum Rejected {
    /// As many requests wait as may.
    #[error("too many requests wait; try again in {} s", retry_after.as_secs())]
    QueueFull {
        /// How long those that wait will take to begin, at the recent pace; at least a second.
        retry_after: Duration,
    },
    /// No more requests are taken.
    #[error("no more requests are taken, since the program is about to end; ask elsewhere")]
    Draining,
    /// The request cannot be computed.
    #[error(transparent)]
    Invalid(#[from] EngineError),
}

/// A request that waits for its turn.
pub(super) struct QueuedRequest {
    pub(super) prompt: Vec<u32>,
    pub(super) work: Work,
    pub(super) prompt_logprobs: Option<usize>,
    pub(super) session: SessionOptions,
    pub(super) client: Arc<str>,
    /// Its place in the order of arrival.
    pub(super) order: u64,
    pub(super) submitted: Instant,
    pub(super) sink: Sink,
    pub(super) cancel: Arc<AtomicBool>,
}

/// What is made of the prompt.
pub(super) enum Work {
    Text(Box<Text>),
    Embedding(Embedding),
}

/// Hidden states, added up.
pub(super) struct Embedding {
    /// Those of finished steps `[dim]`.
    pub(super) sum: Vec<f32>,
    /// Those of the step `[dim]`: a step that fails half-way has added some.
    pub(super) step: Vec<f32>,
}

impl QueuedRequest {
    /// # Errors
    /// What makes the request impossible: [`EngineError::PromptEmpty`], [`EngineError::PromptTooLong`],
    /// [`EngineError::TokenOutOfRange`], [`EngineError::ForeignAdapter`],
    /// [`EngineError::InvalidOption`], and [`EngineError::MemoryExhausted`] where the prompt does not fit even alone.
    pub(super) fn new(
        engine: &Engine,
        request: Request,
        sink: Sink,
        cancel: Arc<AtomicBool>,
    ) -> Result<QueuedRequest, EngineError> {
        let Request { prompt, kind, options, session, client, .. } = request;
        let Request { logprobs, prompt_logprobs, constraint, .. } = request;
        engine.check_tokens(&prompt, 0, session.sinks.is_some())?;
        if let (Some(top), true) = (prompt_logprobs, session.sinks.is_some() || kind == Kind::Embed)
        {
            return Err(EngineError::InvalidOption {
                option: "prompt_logprobs",
                value: top.to_string(),
                reason: "they are of a prompt whose text is generated and ends where the context does",
            });
        }
        if let Some(adapter) = &session.adapter {
            engine.check_adapter(adapter)?;
        }
        engine.check_fits((prompt.len() + 1).min(engine.context()))?;
        let work = match kind {
            Kind::Generate => {
                Work::Text(Box::new(Text::new(engine.model(), &options, logprobs, constraint)?))
            }
            Kind::Embed => {
                let zeros = vec![0.0; engine.model().config().dim];
                Work::Embedding(Embedding { sum: zeros.clone(), step: zeros })
            }
        };
        let (client, submitted) = (client.into(), Instant::now());
        let order = 0;
        Ok(QueuedRequest {
            prompt,
            work,
            prompt_logprobs,
            session,
            client,
            order,
            submitted,
            sink,
            cancel,
        })
    }

    /// Whether nobody waits for it any more.
    pub(super) fn is_cancelled(&self) -> bool {
        self.cancel.load(Ordering::Relaxed)
    }
}
