//! A request that has begun: its session, and the tokens that it goes on with.

use std::cmp::Reverse;
use std::ops::{ControlFlow, Deref, DerefMut};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

use super::request::{Finished, Latency, QueuedRequest, Started, Update, Work};
use super::scores::{KeptScores, PromptScores, Scored};
use crate::engine::Engine;
use crate::error::EngineError;
use crate::generate::{FinishReason, Usage};
use crate::sampler::Candidates;
use crate::session::{Session, SessionOptions};
use crate::step::StepInput;
use crate::text::{Choice, Text};

/// Tokens for which a sequence should have room when it joins.
pub(super) const ROOM: usize = 64;

/// A sequence of a batch.
pub(super) struct Sequence<'a> {
    pub(super) client: Arc<str>,
    /// Its request's place in the order of arrival.
    pub(super) order: u64,
    pub(super) options: SessionOptions,
    /// What its client was served since that was last counted, in weighted tokens.
    pub(super) cost: i64,
    work: Work,
    /// Log-probabilities of the prompt, where they are wanted.
    pub(super) scores: Option<Box<PromptScores>>,
    submitted: Instant,
    sink: LocalSink<'a>,
    /// Whether the sink broke off.
    closed: bool,
    cancel: Arc<AtomicBool>,
    session: SessionHandle<'a>,
    /// Tokens to go on with: the prompt, what has to be computed again, or the token chosen last.
    feed: Vec<u32>,
    /// Of these, how many are computed.
    fed: usize,
    /// Of the rest, how many are in the step.
    pub(super) take: usize,
    /// Whether it was not in the last step, so that its blocks may have gone.
    pub(super) idle: bool,
    /// The request that computes the beginning of this one's prompt, by its order, and how many tokens
    /// they share.
    pub(super) leader: Option<(u64, usize)>,
    /// What the step gave, until it is told.
    choice: Option<Result<Choice, EngineError>>,
    prompt: usize,
    cached: usize,
    started: Option<Instant>,
    first_token: Option<Instant>,
}

/// Receives what becomes of a sequence, on the thread of its batch.
pub(super) type LocalSink<'a> = Box<dyn FnMut(Update) -> ControlFlow<()> + 'a>;

/// The session of a sequence: its own, or that of the caller who waits for it.
enum SessionHandle<'a> {
    Owned(Box<Session>),
    Borrowed(&'a mut Session),
}

impl Deref for SessionHandle<'_> {
    type Target = Session;

    fn deref(&self) -> &Session {
        match self {
            SessionHandle::Owned(session) => session,
            SessionHandle::Borrowed(session) => session,
        }
    }
}

impl DerefMut for SessionHandle<'_> {
    fn deref_mut(&mut self) -> &mut Session {
        match self {
            SessionHandle::Owned(session) => session,
            SessionHandle::Borrowed(session) => session,
        }
    }
}

/// How a sequence ends.
pub(super) enum End {
    Done(FinishReason),
    Failed(EngineError),
    Embedding(Vec<f32>),
}

impl<'a> Sequence<'a> {
    /// A sequence for a request that has waited, with a session of its own.
    pub(super) fn new(engine: &Engine, queued: QueuedRequest) -> Sequence<'a> {
        let QueuedRequest { prompt, work, prompt_logprobs, session: options, client, .. } = queued;
        let QueuedRequest { order, submitted, mut sink, cancel, .. } = queued;
        // A sink that panics is as good as one that breaks off.
        let told = move |update| {
            catch_unwind(AssertUnwindSafe(|| sink(update))).unwrap_or(ControlFlow::Break(()))
        };
        let (block, generation) = (engine.config().kv_block, engine.host().generation());
        let scores = |top| Box::new(PromptScores::new(&prompt, top, &options, block, generation));
        let scores = prompt_logprobs.map(scores);
        let session = SessionHandle::Owned(Box::new(engine.session_with(&options)));
        let base = Sequence::with(session, prompt, work, cancel, Box::new(told));
        Sequence { client, order, options, scores, submitted, idle: true, ..base }
    }

    /// A sequence that goes on with the session of a caller who waits for its end. Blocks that were evicted
    /// are left to the engine's steps, which compute them again, since taking their tokens out of the session
    /// as [`Sequence::wake`] does would lose them where a step fails.
    pub(super) fn borrowing(
        session: &'a mut Session,
        prompt: &[u32],
        text: Text,
        cancel: Arc<AtomicBool>,
        sink: LocalSink<'a>,
    ) -> Sequence<'a> {
        let work = Work::Text(Box::new(text));
        Sequence::with(SessionHandle::Borrowed(session), prompt.to_vec(), work, cancel, sink)
    }

    fn with(
        session: SessionHandle<'a>,
        feed: Vec<u32>,
        work: Work,
        cancel: Arc<AtomicBool>,
        sink: LocalSink<'a>,
    ) -> Sequence<'a> {
        Sequence {
            client: Arc::default(),
            order: 0,
            options: SessionOptions::default(),
            cost: 0,
            work,
            scores: None,
            submitted: Instant::now(),
            sink,
            closed: false,
            cancel,
            session,
            prompt: feed.len(),
            feed,
            fed: 0,
            take: 0,
            idle: false,
            leader: None,
            choice: None,
            cached: 0,
            started: None,
            first_token: None,
        }
    }

    /// Whether nobody waits for it any more.
    pub(super) fn is_cancelled(&self) -> bool {
        self.closed || self.cancel.load(Ordering::Relaxed)
    }

    /// Tells its sink something, unless that broke off.
    fn tell(&mut self, update: Update) {
        if !self.closed {
            self.closed = (self.sink)(update).is_break();
        }
    }

    /// Tokens to go on with.
    pub(super) fn pending(&self) -> &[u32] {
        &self.feed[self.fed..]
    }

    /// All its tokens, those to go on with among them.
    pub(super) fn tokens(&self) -> impl Iterator<Item = u32> {
        self.session.tokens().iter().chain(self.pending()).copied()
    }

    /// Tokens that are computed.
    pub(super) fn len(&self) -> usize {
        self.session.len()
    }

    /// Whether it goes on with more than the token that was chosen last.
    pub(super) fn is_prompt(&self) -> bool {
        self.pending().len() > 1
    }

    pub(super) fn priority(&self) -> u8 {
        self.options.priority
    }

    /// The order in which sequences are kept: the priority, then who came first.
    pub(super) fn rank(&self) -> (u8, Reverse<u64>) {
        (self.priority(), Reverse(self.order))
    }

    /// Bytes of its blocks, with those that it needs next; what another computes for it is not its own.
    pub(super) fn bytes(&self) -> usize {
        let taken_over = self.leader.map_or(0, |(_, shared)| shared.saturating_sub(self.len()));
        let next = self.pending().len() + ROOM - taken_over;
        self.session.held_bytes() + self.session.engine().sequence_bytes(next)
    }

    /// Whether it can take over blocks from others, and they from it.
    pub(super) fn shares(&self) -> bool {
        let SessionOptions { scope, sinks, .. } = &self.options;
        matches!(self.work, Work::Text(_)) && scope.is_some() && sinks.is_none()
    }

    /// Has blocks kept so that others can go on behind its first `len` tokens.
    pub(super) fn expect_parting(&mut self, len: usize) {
        self.session.expect_parting(len);
    }

    /// Whether it goes on with the token that was chosen last, and nothing else.
    pub(super) fn is_decoding(&self) -> bool {
        self.first_token.is_some() && self.feed.len() == 1
    }

    /// The most tokens that it takes in one step.
    pub(super) fn chunk_len(&self) -> usize {
        self.session.chunk_len()
    }

    /// Makes it ready for a step after one that it was not in: what was given up since is computed
    /// again, and what others have computed is taken over. Gives how many tokens were given up, and how
    /// many of its prompt it had not to compute in the first place.
    pub(super) fn wake(&mut self, kept: &mut KeptScores) -> (usize, usize) {
        let mut lost = 0;
        // Hidden states of lost tokens are in the sum already; the engine catches up on their blocks.
        if let Work::Text(_) = self.work {
            let mut feed = self.session.forget_lost();
            lost = feed.len();
            if lost > 0 {
                feed.extend_from_slice(self.pending());
                (self.feed, self.fed) = (feed, 0);
            }
        }
        let mut found = 0;
        let pending = &self.feed[self.fed..];
        if let (Work::Text(_), [rest @ .., _]) = (&self.work, pending)
            && !rest.is_empty()
        {
            let may_adopt = self.scores.as_mut().map_or(usize::MAX, |scores| {
                scores.look_up(kept);
                scores.may_adopt(self.session.len())
            });
            // What the host refuses here it refuses in the step.
            found = self.session.adopt(&rest[..rest.len().min(may_adopt)]).unwrap_or(0);
            let len = self.session.len();
            let again = self.scores.as_ref().map_or(0, |scores| scores.to_compute_again(len));
            if found > 0 && again > 0 {
                self.session.truncate(len - again);
                found -= again;
            }
            self.fed += found;
        }
        self.idle = false;
        if self.started.is_some() {
            return (lost, 0);
        }
        self.started = Some(Instant::now());
        self.cached = found;
        let queued = self.submitted.elapsed();
        self.tell(Update::Started(Started { queued, cached_tokens: found }));
        (lost, found)
    }

    /// Its input of the step, and what takes the logits of its prompt, where these are wanted.
    pub(super) fn input(&mut self) -> (StepInput<'_>, Option<Scored<'_>>) {
        let tokens = &self.feed[self.fed..self.fed + self.take];
        let goes_on = self.fed + self.take < self.feed.len();
        let len = self.session.len();
        let lacking = self.scores.as_deref_mut().filter(|scores| !scores.is_complete());
        let scored = lacking.map(|scores| {
            scores.begin_step();
            Scored { scores, len }
        });
        let input = StepInput::new(&mut self.session, tokens);
        let input = match &mut self.work {
            Work::Embedding(embedding) => {
                embedding.step.fill(0.0);
                StepInput { hidden: Some(&mut embedding.step), ..input }
            }
            Work::Text(_) => {
                let last = if goes_on { tokens.len() } else { input.from };
                let first = scored.as_ref().map_or(usize::MAX, |s| s.scores.first_wanted(len));
                StepInput { from: last.min(first), ..input }
            }
        };
        (input, scored)
    }

    /// Goes on after its input was computed.
    pub(super) fn advance(&mut self, kept: &mut KeptScores) {
        self.fed += self.take;
        if let Some(scores) = &mut self.scores {
            scores.commit(kept);
        }
        match &mut self.work {
            Work::Embedding(embedding) => {
                let sums = embedding.sum.iter_mut().zip(&embedding.step);
                sums.for_each(|(sum, step)| *sum += step);
            }
            Work::Text(_) if self.first_token.is_none() => {
                let total = self.prompt;
                let done = total.saturating_sub(self.pending().len());
                self.tell(Update::Prefill { done, total });
            }
            Work::Text(_) => {}
        }
    }

    /// Whether all its tokens are computed.
    fn is_ready(&self) -> bool {
        self.fed == self.feed.len()
    }

    /// What chooses the token that follows, where the step gave the logits for it and somebody still
    /// waits for it.
    pub(super) fn chooser(&mut self) -> Option<Chooser<'_>> {
        if !self.is_ready() || self.is_cancelled() {
            return None;
        }
        let Sequence { work: Work::Text(text), session, choice, .. } = self else { return None };
        Some(Chooser { text, session, choice })
    }

    /// Tells what the step gave. Gives how it ends, if it does, and whether there was a token.
    pub(super) fn deliver(&mut self) -> (Option<End>, bool) {
        let ready = self.is_ready();
        if let (Work::Embedding(embedding), true) = (&mut self.work, ready) {
            let count = self.prompt as f32;
            let mean = std::mem::take(&mut embedding.sum).into_iter().map(|sum| sum / count);
            return (Some(End::Embedding(mean.collect())), false);
        }
        let told = self.scores.as_mut().filter(|_| ready).and_then(|scores| scores.take());
        if let Some(prompt) = told {
            self.tell(Update::Prompt(prompt));
        }
        let Choice { token, end } = match self.choice.take() {
            None => return (None, false),
            Some(Err(error)) => return (Some(End::Failed(error)), false),
            Some(Ok(choice)) => choice,
        };
        let chosen = token.is_some();
        if let Some(token) = token {
            self.first_token.get_or_insert_with(Instant::now);
            self.feed.clear();
            self.feed.push(token.token);
            self.fed = 0;
            self.tell(Update::Token(token));
        }
        (end.map(End::Done), chosen)
    }

    /// Ends it; the blocks of a session of its own are free then. Who broke off is told nothing.
    pub(super) fn end(mut self, end: End) {
        let update = match end {
            End::Failed(error) => Update::Failed(error),
            End::Embedding(mean) => Update::Embedding(mean),
            End::Done(reason) => Update::Done(self.finished(reason)),
        };
        let Sequence { mut sink, closed, session, .. } = self;
        drop(session);
        if !closed {
            // Nothing is left to break off.
            let _ = sink(update);
        }
    }

    fn finished(&mut self, reason: FinishReason) -> Finished {
        let (text, stop, end_token, completion_tokens) = match &mut self.work {
            Work::Text(text) => {
                (text.rest(reason), text.stopped_by(), text.take_end(), text.written())
            }
            Work::Embedding(_) => Default::default(),
        };
        let submitted = self.submitted;
        let since = |at: Option<Instant>| at.map(|at| at - submitted);
        let total = submitted.elapsed();
        Finished {
            reason,
            text,
            stop,
            end_token,
            usage: Usage { prompt_tokens: self.prompt, completion_tokens },
            cached_tokens: self.cached,
            latency: Latency {
                queued: since(self.started).unwrap_or(total),
                first_token: since(self.first_token).unwrap_or_default(),
                total,
            },
        }
    }
}

/// What chooses the token of one sequence, on any thread.
pub(super) struct Chooser<'s> {
    text: &'s mut Text,
    session: &'s Session,
    choice: &'s mut Option<Result<Choice, EngineError>>,
}

impl Chooser<'_> {
    pub(super) fn choose(&mut self, candidates: &mut Candidates) {
        let Chooser { text, session, choice } = self;
        // A constraint is somebody else's code.
        let chosen = catch_unwind(AssertUnwindSafe(|| text.choose(session, candidates)));
        let panicked = |_| Err(EngineError::Constraint { reason: "it panicked".into() });
        **choice = Some(chosen.unwrap_or_else(panicked));
    }
}
