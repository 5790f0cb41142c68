//! Log-probabilities of a prompt's tokens, and those that are kept for prompts that begin alike.
//!
//! A token's log-probability follows from the logits of the token before it. Of a beginning that is taken
//! over from the prefix cache nothing is computed, so what was told of whole blocks is kept here, found by a
//! chain of hashes as their keys and values are. A prompt takes over no more blocks than both are known of,
//! and computes the last token of them again, for the logits from which the next token follows.
//!
//! Invariant: of a prompt that is not told yet, more is known than its session has tokens, since each of them
//! says something of the next.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;

use ruvllm_native::ThreadPool;

use super::request::PromptLogprobs;
use crate::kv::scope;
use crate::logprobs::{Logprobs, TokenLogprob};
use crate::session::SessionOptions;

/// The most bytes that are kept, by estimate: some hundred thousand tokens with one alternative each.
const BYTES: usize = 16 << 20;
/// Bytes of a block beside what is known of its tokens.
const BLOCK: usize = 256;

type Key = [u8; 32];

/// What is known of whole blocks of prompts.
#[derive(Default)]
pub(super) struct KeptScores {
    blocks: HashMap<Key, Kept>,
    /// The blocks, those that were used last at the end.
    order: VecDeque<Key>,
    bytes: usize,
}

struct Kept {
    top: usize,
    logprobs: Arc<[Option<Logprobs>]>,
    /// Whether it was used since it last came to the front of the order.
    used: bool,
}

impl Kept {
    fn bytes(&self) -> usize {
        let token = size_of::<Option<Logprobs>>() + self.top * size_of::<TokenLogprob>();
        BLOCK + self.logprobs.len() * token
    }
}

impl KeptScores {
    /// What is known of a block, with so many alternatives to each token.
    fn find(&mut self, key: &Key, top: usize) -> Option<Arc<[Option<Logprobs>]>> {
        let kept = self.blocks.get_mut(key).filter(|kept| kept.top >= top)?;
        kept.used = true;
        Some(Arc::clone(&kept.logprobs))
    }

    fn keep(&mut self, key: Key, top: usize, logprobs: &[Option<Logprobs>]) {
        if self.blocks.get(&key).is_some_and(|kept| kept.top >= top) {
            return;
        }
        let kept = Kept { top, logprobs: logprobs.into(), used: false };
        self.bytes += kept.bytes();
        match self.blocks.insert(key, kept) {
            Some(less) => self.bytes -= less.bytes(),
            None => self.order.push_back(key),
        }
        while self.bytes > BYTES {
            let Some(oldest) = self.order.pop_front() else { break };
            match self.blocks.get_mut(&oldest) {
                Some(kept) if kept.used => {
                    kept.used = false;
                    self.order.push_back(oldest);
                }
                _ => self.bytes -= self.blocks.remove(&oldest).map_or(0, |kept| kept.bytes()),
            }
        }
    }
}

/// The log-probabilities of one prompt, as far as they are known.
pub(super) struct PromptScores {
    prompt: Vec<u32>,
    /// Alternatives to each token.
    top: usize,
    /// Tokens of a block.
    block: usize,
    /// The keys of the prompt's whole blocks; none where it shares nothing.
    keys: Vec<Key>,
    /// Of the tokens from the first on, of which nothing can be known.
    known: Vec<Option<Logprobs>>,
    /// What the step added, until it has succeeded.
    step: Vec<Option<Logprobs>>,
    /// Whether all was told, and nothing is left to do.
    told: bool,
}

impl PromptScores {
    /// Of a prompt that is computed from blocks of so many tokens, with kernels of this generation.
    pub(super) fn new(
        prompt: &[u32],
        top: usize,
        session: &SessionOptions,
        block: usize,
        generation: u64,
    ) -> PromptScores {
        let adapter = session.adapter.as_ref().map(|adapter| adapter.fingerprint());
        let mut keys = Vec::new();
        if let Some(name) = &session.scope {
            let mut origin = blake3::Hasher::new_derive_key("ruvllm prompt logprobs v1");
            origin.update(&generation.to_le_bytes());
            let origin = *origin.finalize().as_bytes();
            let mut before = scope(name, adapter.as_ref());
            for run in prompt.chunks_exact(block) {
                let mut hasher = blake3::Hasher::new_keyed(&origin);
                hasher.update(&before);
                for token in run {
                    hasher.update(&token.to_le_bytes());
                }
                before = *hasher.finalize().as_bytes();
                keys.push(before);
            }
        }
        let (known, step) = (vec![None], Vec::new());
        PromptScores { prompt: prompt.to_vec(), top, block, keys, known, step, told: false }
    }

    /// Whether a prompt with these can take over what one with `others` computes.
    pub(super) fn suffices(others: Option<&PromptScores>, own: Option<&PromptScores>) -> bool {
        match (own, others) {
            (None, _) => true,
            (Some(own), Some(others)) => own.told || others.top >= own.top,
            (Some(own), None) => own.told,
        }
    }

    /// Whether all of them are known.
    pub(super) fn is_complete(&self) -> bool {
        self.told || self.known.len() == self.prompt.len()
    }

    /// Looks for what is kept of blocks behind those that all is known of.
    pub(super) fn look_up(&mut self, kept: &mut KeptScores) {
        while !self.is_complete()
            && let Some(key) = self.keys.get(self.known.len() / self.block)
            && let Some(found) = kept.find(key, self.top)
        {
            let from = self.known.len() % self.block;
            let less = |logprobs: &Option<Logprobs>| {
                let mut logprobs = logprobs.clone();
                logprobs.iter_mut().for_each(|logprobs| logprobs.top.truncate(self.top));
                logprobs
            };
            let more: Vec<_> = found[from..].iter().map(less).collect();
            self.known.extend(more);
        }
    }

    /// How many tokens a session of `len` tokens may take over.
    pub(super) fn may_adopt(&self, len: usize) -> usize {
        if self.is_complete() { usize::MAX } else { self.known.len().saturating_sub(len) }
    }

    /// The tokens that a session of `len` tokens may not have yet, so that the next log-probability can be
    /// computed; one or none.
    pub(super) fn to_compute_again(&self, len: usize) -> usize {
        usize::from(!self.is_complete() && self.known.len() <= len)
    }

    /// The index of the first token behind `len` of whose logits something follows.
    pub(super) fn first_wanted(&self, len: usize) -> usize {
        if self.is_complete() { usize::MAX } else { (self.known.len() - 1).saturating_sub(len) }
    }

    /// Forgets what a step gave that did not succeed.
    pub(super) fn begin_step(&mut self) {
        self.step.clear();
    }

    /// The token whose log-probability follows from the logits at a position, where it is wanted.
    fn next(&self, position: usize, in_row: usize) -> Option<u32> {
        let next = self.known.len() + self.step.len() + in_row;
        if self.is_complete() || next != position + 1 {
            None
        } else {
            self.prompt.get(next).copied()
        }
    }

    /// Takes what the step gave, and keeps what is known of whole blocks by now.
    pub(super) fn commit(&mut self, kept: &mut KeptScores) {
        let before = self.known.len() / self.block;
        self.known.append(&mut self.step);
        let whole = before..self.known.len() / self.block;
        for (index, key) in self.keys.iter().enumerate().take(whole.end).skip(whole.start) {
            let from = index * self.block;
            kept.keep(*key, self.top, &self.known[from..from + self.block]);
        }
    }

    /// All of them, once.
    pub(super) fn take(&mut self) -> Option<PromptLogprobs> {
        if self.told || !self.is_complete() {
            return None;
        }
        self.told = true;
        Some(std::mem::take(&mut self.known))
    }
}

/// An input of a step whose logits say something of its prompt.
pub(super) struct Scored<'s> {
    pub(super) scores: &'s mut PromptScores,
    /// Tokens of its session before the step.
    pub(super) len: usize,
}

/// Computes log-probabilities on all threads, from rows of logits that come one by one.
pub(super) struct Scorer<'s> {
    inputs: Vec<Option<Scored<'s>>>,
    /// Rows that wait until there is one for each thread.
    rows: Vec<Row>,
    waiting: usize,
}

#[derive(Default)]
struct Row {
    input: usize,
    token: u32,
    top: usize,
    logits: Vec<f32>,
    logprobs: Option<Logprobs>,
}

impl<'s> Scorer<'s> {
    /// For the inputs of a step in their order.
    pub(super) fn new(inputs: Vec<Option<Scored<'s>>>) -> Scorer<'s> {
        Scorer { inputs, rows: Vec::new(), waiting: 0 }
    }

    /// Whether there is nothing to compute.
    pub(super) fn is_idle(&self) -> bool {
        self.inputs.iter().all(Option::is_none)
    }

    /// Takes the logits of an input's token; those of an input come in the order of its tokens.
    pub(super) fn row(&mut self, pool: &ThreadPool, input: usize, token: usize, logits: &[f32]) {
        let Some(Some(Scored { scores, len })) = self.inputs.get(input) else { return };
        let in_row = self.rows[..self.waiting].iter().filter(|row| row.input == input).count();
        let Some(next) = scores.next(len + token, in_row) else { return };
        if self.waiting == self.rows.len() {
            self.rows.push(Row::default());
        }
        let row = &mut self.rows[self.waiting];
        (row.input, row.token, row.top) = (input, next, scores.top);
        logits.clone_into(&mut row.logits);
        self.waiting += 1;
        if self.waiting == pool.threads() {
            self.finish(pool);
        }
    }

    /// Computes what waits.
    pub(super) fn finish(&mut self, pool: &ThreadPool) {
        let rows = &mut self.rows[..std::mem::take(&mut self.waiting)];
        pool.for_chunks(rows, 1, &|_, rows| {
            for row in rows {
                row.logprobs = Some(Logprobs::of(&row.logits, row.token, row.top));
            }
        });
        for row in rows {
            if let Some(Some(Scored { scores, .. })) = self.inputs.get_mut(row.input) {
                scores.step.push(row.logprobs.take());
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn scores(prompt: &[u32], top: usize) -> PromptScores {
        PromptScores::new(prompt, top, &SessionOptions::default(), 4, 1)
    }

    fn logprobs(top: usize) -> Option<Logprobs> {
        let top = (0..top as u32).map(|token| TokenLogprob { token, logprob: -1.0 });
        Some(Logprobs { chosen: -2.0, top: top.collect() })
    }

    fn compute(scores: &mut PromptScores, kept: &mut KeptScores) {
        while !scores.is_complete() {
            scores.step.push(logprobs(scores.top));
            scores.commit(kept);
        }
    }

    #[test]
    fn whole_blocks_are_found_by_prompts_that_begin_alike_and_want_no_more() {
        let mut kept = KeptScores::default();
        let mut first = scores(&[1, 2, 3, 4, 5, 6, 7, 8, 9], 2);
        first.look_up(&mut kept);
        assert_eq!((first.known.len(), first.may_adopt(0), first.first_wanted(0)), (1, 1, 0));
        compute(&mut first, &mut kept);
        assert_eq!(kept.blocks.len(), 2);
        assert_eq!(first.take().map(|all| all.len()), Some(9));
        assert_eq!((first.take(), first.first_wanted(9)), (None, usize::MAX));
        let found = |prompt: &[u32], top, kept: &mut KeptScores| {
            let mut scores = scores(prompt, top);
            scores.look_up(kept);
            scores
        };
        let same = found(&[1, 2, 3, 4, 5, 6, 7, 8, 10, 11], 1, &mut kept);
        assert_eq!((same.known.len(), same.may_adopt(0)), (8, 8));
        assert_eq!(same.known[1], logprobs(1));
        // The last token that was taken over is computed again.
        assert_eq!((same.to_compute_again(8), same.to_compute_again(4)), (1, 0));
        assert_eq!((same.first_wanted(7), same.first_wanted(4)), (0, 3));
        assert_eq!(found(&[1, 2, 3, 4, 0, 6, 7, 8], 2, &mut kept).known.len(), 4);
        assert_eq!(found(&[1, 2, 3, 4, 5], 3, &mut kept).known.len(), 1);
        let other = SessionOptions { scope: Some("b".into()), ..SessionOptions::default() };
        for (session, generation) in [(&other, 1), (&SessionOptions::default(), 2)] {
            let mut scores = PromptScores::new(&[1, 2, 3, 4, 5], 1, session, 4, generation);
            scores.look_up(&mut kept);
            assert_eq!(scores.known.len(), 1);
        }
    }

    #[test]
    fn what_is_kept_is_bounded_and_what_is_used_stays_longest() {
        let mut kept = KeptScores::default();
        let compute = |first: u32, kept: &mut KeptScores| {
            let mut scores = scores(&[first, 2, 3, 4], 20);
            compute(&mut scores, kept);
            scores.keys[0]
        };
        let hot = compute(0, &mut kept);
        let cold = compute(1, &mut kept);
        for first in 2..100_000 {
            assert!(kept.find(&hot, 20).is_some(), "{first}");
            compute(first, &mut kept);
            assert!(kept.bytes <= BYTES);
        }
        assert!(!kept.blocks.contains_key(&cold));
        assert_eq!(kept.blocks.len(), kept.order.len());
    }
}
