//! The sequences of one request on the scheduler, and what becomes of them as one stream.

use std::ops::ControlFlow;
use std::sync::Arc;
use std::time::{Duration, Instant};

use ruvllm_engine::scheduler::{
    Finished, Kind, PromptLogprobs, Rejected, Request, RequestHandle, Token, Update,
};
use ruvllm_engine::{GenerateOptions, SessionOptions, TokenConstraint};
use tokio::sync::mpsc::{UnboundedReceiver, unbounded_channel};

use crate::app::App;
use crate::error::ApiError;
use crate::grammar::Grammar;
use crate::http::Caller;
use crate::models::Choice;
use crate::spans::{self, SequenceSpans};

/// What to compute.
pub(crate) struct Work {
    pub(crate) model: Choice,
    pub(crate) operation: Operation,
    pub(crate) prompts: Vec<Vec<u32>>,
    /// Sequences for each prompt.
    pub(crate) n: usize,
    pub(crate) options: GenerateOptions,
    pub(crate) logprobs: Option<usize>,
    /// Alternatives to each token of the prompts, where their log-probabilities are wanted.
    pub(crate) prompt_logprobs: Option<usize>,
    pub(crate) grammar: Option<Grammar>,
}

/// What is made of a prompt.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Operation {
    Chat,
    Completion,
    Embeddings,
}

impl Operation {
    /// The name that it has in traces.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Operation::Chat => "chat",
            Operation::Completion => "text_completion",
            Operation::Embeddings => "embeddings",
        }
    }

    /// The parameter of a request that the prompt comes in.
    fn param(self) -> &'static str {
        match self {
            Operation::Chat => "messages",
            Operation::Completion => "prompt",
            Operation::Embeddings => "input",
        }
    }

    fn kind(self) -> Kind {
        match self {
            Operation::Chat | Operation::Completion => Kind::Generate,
            Operation::Embeddings => Kind::Embed,
        }
    }
}

/// What became of a sequence.
pub(crate) enum Step {
    Prompt(PromptLogprobs),
    Token(Token),
    Done(Finished),
    Embedding(Vec<f32>),
}

/// Sequences that are computed; dropped, they are cancelled.
pub(crate) struct Sequences {
    updates: UnboundedReceiver<(usize, Update)>,
    handles: Vec<RequestHandle>,
    /// Those that have not ended.
    open: usize,
    begun: Instant,
    limit: Duration,
    model: Arc<str>,
    caller: Caller,
    usage: Usage,
}

/// Token counts of a request.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Usage {
    pub(crate) prompt: usize,
    pub(crate) cached: usize,
    pub(crate) completion: usize,
}

impl Sequences {
    /// Hands the work to the scheduler: `n` sequences for the first prompt, then for the next.
    ///
    /// # Errors
    /// Too many sequences, a full queue, a server that is about to stop, a prompt that cannot be computed.
    pub(crate) fn start(app: &App, caller: Caller, work: Work) -> Result<Sequences, ApiError> {
        let Work { model, operation, prompts, n, options, logprobs, .. } = work;
        let (prompt_logprobs, grammar) = (work.prompt_logprobs, work.grammar);
        if app.is_draining() {
            return Err(ApiError::draining());
        }
        let (count, most) = (prompts.len().saturating_mul(n), app.options.limits.max_choices);
        if count > most {
            let message =
                format!("a request may have {most} sequences, prompts times `n`; this has {count}");
            let param = if n > 1 { "n" } else { operation.param() };
            return Err(ApiError::invalid(param, message));
        }
        let (sender, updates) = unbounded_channel();
        let mut handles = Vec::with_capacity(count);
        for index in 0..count {
            let mut options = options.clone();
            let seed = options.sampling.seed;
            options.sampling.seed = seed.map(|seed| seed.wrapping_add(index as u64));
            let constraint = grammar.as_ref().map(Grammar::constraint).transpose()?;
            let prompt = prompts[index / n].clone();
            let mut watch = app.metrics.watch();
            let tokens = prompt.len();
            let mut spans =
                SequenceSpans::new(&caller.span, &model.name, operation, tokens, &options);
            let span = spans.whole().clone();
            let request = Request {
                prompt,
                kind: operation.kind(),
                options,
                // How fast a prompt is computed must not tell one client what another asked.
                session: SessionOptions {
                    priority: caller.priority,
                    scope: Some(caller.client.to_string()),
                    adapter: model.adapter.clone(),
                    ..SessionOptions::default()
                },
                client: caller.client.to_string(),
                logprobs,
                prompt_logprobs,
                constraint: constraint.map(|rules| Box::new(rules) as Box<dyn TokenConstraint>),
            };
            let sender = sender.clone();
            let sink = Box::new(move |update| {
                watch.see(&update);
                spans.see(&update);
                match sender.send((index, update)) {
                    Ok(()) => ControlFlow::Continue(()),
                    Err(_) => ControlFlow::Break(()),
                }
            });
            let submitted =
                app.scheduler.submit(request, sink).map_err(|rejected| match rejected {
                    Rejected::QueueFull { retry_after } => ApiError::queue_full(retry_after),
                    Rejected::Draining => ApiError::draining(),
                    Rejected::Invalid(error) => ApiError::from(error).of(operation.param()),
                });
            handles.push(submitted.inspect_err(|error| spans::failed(&span, error.code()))?);
        }
        let usage = Usage { prompt: prompts.iter().map(Vec::len).sum(), ..Usage::default() };
        Ok(Sequences {
            updates,
            handles,
            open: count,
            begun: Instant::now(),
            limit: app.options.limits.request_timeout,
            model: model.name,
            caller,
            usage,
        })
    }

    /// The name of the model that answers.
    pub(crate) fn model(&self) -> &Arc<str> {
        &self.model
    }

    /// How many there are, at first.
    pub(crate) fn count(&self) -> usize {
        self.handles.len()
    }

    /// Token counts so far.
    pub(crate) fn usage(&self) -> Usage {
        self.usage
    }

    /// What happens next, and to which sequence; `None` once all have ended.
    ///
    /// # Errors
    /// A failed sequence, and the time limit; the others are not waited for then.
    pub(crate) async fn next(&mut self) -> Option<Result<(usize, Step), ApiError>> {
        if self.open == 0 {
            return None;
        }
        let step = loop {
            match tokio::time::timeout_at(self.caller.until.into(), self.updates.recv()).await {
                Err(_) => break Err(ApiError::timeout(self.limit)),
                // The scheduler says how every sequence ends, unless it ended itself.
                Ok(None) => break Err(ApiError::draining()),
                Ok(Some((index, update))) => match update {
                    Update::Started(started) => self.usage.cached += started.cached_tokens,
                    Update::Prefill { .. } => {}
                    Update::Prompt(logprobs) => break Ok((index, Step::Prompt(logprobs))),
                    Update::Token(token) => {
                        self.usage.completion += 1;
                        break Ok((index, Step::Token(token)));
                    }
                    Update::Done(finished) => {
                        self.open -= 1;
                        break Ok((index, Step::Done(finished)));
                    }
                    Update::Embedding(mean) => {
                        self.open -= 1;
                        break Ok((index, Step::Embedding(mean)));
                    }
                    Update::Failed(error) => break Err(error.into()),
                },
            }
        };
        if let Err(error) = &step {
            self.open = 0;
            self.updates.close();
            spans::failed(&self.caller.span, error.code());
            self.log(error.code());
        } else if self.open == 0 {
            self.log("done");
        }
        Some(step)
    }

    fn log(&self, outcome: &str) {
        let Caller { client, request, .. } = &self.caller;
        let Usage { prompt, cached, completion } = self.usage;
        let seconds = self.begun.elapsed().as_secs_f64();
        tracing::info!(
            request = &**request,
            client = &**client,
            outcome,
            prompt,
            cached,
            completion,
            seconds,
            "answer"
        );
    }
}

impl Drop for Sequences {
    fn drop(&mut self) {
        if self.open > 0 {
            self.caller.span.record("error.type", "cancelled");
            self.log("cancelled");
        }
    }
}
