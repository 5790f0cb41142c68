//! A request that has begun: its session, and the tokens that it goes on with.

use std::cmp::Reverse;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::time::Instant;

use super::request::{Finished, Job, Latency, Started, Update, Work};
use super::text::Choice;
use crate::engine::{Engine, SessionOptions};
use crate::error::EngineError;
use crate::generate::{FinishReason, Usage};
use crate::sampler::Candidates;
use crate::session::Session;
use crate::step::Part;

/// Tokens for which a sequence should have room when it joins.
pub(super) const ROOM: usize = 64;

/// A sequence of the scheduler.
pub(super) struct Sequence {
    pub(super) job: Job,
    session: Session,
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

/// How a sequence ends.
pub(super) enum End {
    Done(FinishReason),
    Failed(EngineError),
    Embedding(Vec<f32>),
}

impl Sequence {
    pub(super) fn new(engine: &Engine, mut job: Job) -> Sequence {
        let feed = std::mem::take(&mut job.prompt);
        Sequence {
            session: engine.session_with(&job.session),
            prompt: feed.len(),
            feed,
            fed: 0,
            take: 0,
            idle: true,
            leader: None,
            choice: None,
            cached: 0,
            started: None,
            first_token: None,
            job,
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
        self.job.session.priority
    }

    /// The order in which sequences are kept: the priority, then who came first.
    pub(super) fn rank(&self) -> (u8, Reverse<u64>) {
        (self.priority(), Reverse(self.job.order))
    }

    /// Bytes of its blocks, with those that it needs next; what another computes for it is not its own.
    pub(super) fn bytes(&self) -> usize {
        let taken_over = self.leader.map_or(0, |(_, shared)| shared.saturating_sub(self.len()));
        let next = self.pending().len() + ROOM - taken_over;
        self.session.held_bytes() + self.session.engine().sequence_bytes(next)
    }

    /// Whether it can take over blocks from others, and they from it.
    pub(super) fn shares(&self) -> bool {
        let SessionOptions { scope, sinks, .. } = &self.job.session;
        matches!(self.job.work, Work::Text(_)) && scope.is_some() && sinks.is_none()
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
    pub(super) fn wake(&mut self) -> (usize, usize) {
        let mut lost = 0;
        // Hidden states of lost tokens are in the sum already; the engine catches up on their blocks.
        if let Work::Text(_) = self.job.work {
            let mut feed = self.session.forget_lost();
            lost = feed.len();
            if lost > 0 {
                feed.extend_from_slice(self.pending());
                (self.feed, self.fed) = (feed, 0);
            }
        }
        let mut found = 0;
        let pending = &self.feed[self.fed..];
        if let (Work::Text(_), [rest @ .., _]) = (&self.job.work, pending)
            && !rest.is_empty()
        {
            // What the host refuses here it refuses in the step.
            found = self.session.adopt(rest).unwrap_or(0);
            self.fed += found;
        }
        self.idle = false;
        if self.started.is_some() {
            return (lost, 0);
        }
        self.started = Some(Instant::now());
        self.cached = found;
        let queued = self.job.submitted.elapsed();
        self.job.tell(Update::Started(Started { queued, cached_tokens: found }));
        (lost, found)
    }

    /// Its part of the step.
    pub(super) fn part(&mut self) -> Part<'_> {
        let tokens = &self.feed[self.fed..self.fed + self.take];
        let goes_on = self.fed + self.take < self.feed.len();
        let part = Part::new(&mut self.session, tokens);
        match &mut self.job.work {
            Work::Embedding(embedding) => {
                embedding.step.fill(0.0);
                Part { hidden: Some(&mut embedding.step), ..part }
            }
            Work::Text(_) if goes_on => Part { from: tokens.len(), ..part },
            Work::Text(_) => part,
        }
    }

    /// Goes on after its part was computed.
    pub(super) fn advance(&mut self) {
        self.fed += self.take;
        if let Work::Embedding(embedding) = &mut self.job.work {
            let sums = embedding.sum.iter_mut().zip(&embedding.step);
            sums.for_each(|(sum, step)| *sum += step);
        }
    }

    /// Whether all its tokens are computed.
    pub(super) fn is_ready(&self) -> bool {
        self.fed == self.feed.len()
    }

    /// Chooses the token that follows, on any thread.
    pub(super) fn choose(&mut self, candidates: &mut Candidates) {
        let Sequence { job, session, choice, .. } = self;
        let Work::Text(text) = &mut job.work else { return };
        // A constraint is somebody else's code.
        let chosen = catch_unwind(AssertUnwindSafe(|| text.choose(session, candidates)));
        let panicked = |_| Err(EngineError::Constraint { reason: "it panicked".into() });
        *choice = Some(chosen.unwrap_or_else(panicked));
    }

    /// Tells what the step gave. Gives how it ends, if it does, and whether there was a token.
    pub(super) fn deliver(&mut self) -> (Option<End>, bool) {
        let ready = self.is_ready();
        if let (Work::Embedding(embedding), true) = (&mut self.job.work, ready) {
            let count = self.prompt as f32;
            let mean = std::mem::take(&mut embedding.sum).into_iter().map(|sum| sum / count);
            return (Some(End::Embedding(mean.collect())), false);
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
            self.job.tell(Update::Token(token));
        }
        (end.map(End::Done), chosen)
    }

    /// Ends it; its blocks are free then. Who broke off is told nothing.
    pub(super) fn end(mut self, end: End) {
        let update = match end {
            End::Failed(error) => Update::Failed(error),
            End::Embedding(mean) => Update::Embedding(mean),
            End::Done(reason) => Update::Done(self.finished(reason)),
        };
        let Sequence { mut job, session, .. } = self;
        drop(session);
        job.tell(update);
    }

    fn finished(&mut self, reason: FinishReason) -> Finished {
        let (text, completion_tokens) = match &mut self.job.work {
            Work::Text(text) => (text.rest(reason), text.written()),
            Work::Embedding(_) => Default::default(),
        };
        let submitted = self.job.submitted;
        let since = |at: Option<Instant>| at.map(|at| at - submitted);
        let total = submitted.elapsed();
        Finished {
            reason,
            text,
            usage: Usage { prompt_tokens: self.prompt, completion_tokens },
            cached_tokens: self.cached,
            latency: Latency {
                queued: since(self.started).unwrap_or(total),
                first_token: since(self.first_token).unwrap_or_default(),
                total,
            },
        }
    }

    /// The name of its client.
    pub(super) fn client(&self) -> &Arc<str> {
        &self.job.client
    }
}
