//! What a step computes: the tokens of each running sequence that are in it.

use std::cmp::Reverse;

use super::batch::Batch;
use super::queue::PROMPT_WEIGHT;
use super::scores::PromptScores;
use super::sequence::Sequence;

impl Batch<'_> {
    /// Plans a step: one token of every text, and shares of the prompts.
    ///
    /// Prompts of the highest priority share the budget equally, the shortest first, so that what these
    /// leave goes to the longer ones; then the next priority. A share is no less than a block.
    pub(super) fn plan(&mut self) {
        self.follow();
        let config = self.engine.config();
        let (batch, block) = (config.batch, config.kv_block);
        let mut texts = 0;
        for index in 0..self.running.len() {
            let sequence = &mut self.running[index];
            sequence.take = 0;
            if !sequence.is_prompt() && sequence.idle {
                self.wake(index);
            }
            let sequence = &mut self.running[index];
            if !sequence.is_prompt() {
                sequence.take = 1;
                texts += 1;
            }
        }
        let most = if texts > 0 { self.config.chunk } else { batch };
        let mut left = most.min(batch.saturating_sub(texts).max(block));
        let mut prompts: Vec<usize> = (0..self.running.len())
            .filter(|&i| self.running[i].is_prompt() && self.running[i].leader.is_none())
            .collect();
        prompts.sort_by_key(|&i| {
            let sequence = &self.running[i];
            (Reverse(sequence.priority()), sequence.pending().len(), sequence.order)
        });
        for (n, &index) in prompts.iter().enumerate() {
            if left == 0 {
                break;
            }
            if self.running[index].idle {
                self.wake(index);
            }
            let priority = self.running[index].priority();
            let alike = |&&i: &&usize| self.running[i].priority() == priority;
            let share = left / prompts[n..].iter().take_while(alike).count();
            let sequence = &mut self.running[index];
            let share = share.max(block).min(left).min(sequence.chunk_len());
            sequence.take = share.min(sequence.pending().len());
            left -= sequence.take;
        }
        for sequence in &mut self.running {
            sequence.idle = sequence.take == 0;
        }
    }

    fn wake(&mut self, index: usize) {
        let (lost, cached) = self.running[index].wake(&mut self.kept_scores);
        self.stats.recomputed_tokens += lost as u64;
        self.stats.cached_tokens += cached as u64;
        // What was not computed for its client is not counted.
        self.running[index].cost -= cached as i64 * PROMPT_WEIGHT;
    }

    /// Looks again whether those that wait for another's beginning still have to.
    fn follow(&mut self) {
        for index in 0..self.running.len() {
            let Some((order, shared)) = self.running[index].leader else { continue };
            let before = &self.running[..index];
            let leader = before.iter().find(|other| other.order == order);
            self.running[index].leader = match leader {
                Some(leader) if leader.len() < shared => continue,
                Some(_) => None,
                // It left before it came that far; another may go first.
                None => self.leader(&self.running[index], index),
            };
            self.expect_parting(index);
        }
    }

    /// Tells the leader of a running sequence where that will part from it.
    pub(super) fn expect_parting(&mut self, index: usize) {
        let Some((order, shared)) = self.running[index].leader else { return };
        if let Some(leader) = self.running.iter_mut().find(|other| other.order == order) {
            leader.expect_parting(shared);
        }
    }

    /// Who of the first `count` running sequences computes the most of the beginning of this one's
    /// prompt, by its order, and how many tokens that is. Nobody waits for a lower priority.
    pub(super) fn leader(&self, sequence: &Sequence<'_>, count: usize) -> Option<(u64, usize)> {
        let len = sequence.len();
        let share = |other: &Sequence<'_>| (other.order, self.common(sequence, other));
        let shares = self.running[..count].iter().filter(|other| other.is_prompt());
        let shares = shares.filter(|other| other.priority() >= sequence.priority());
        let ahead = shares.map(|other| (share(other), other.len()));
        let ahead = ahead.filter(|&((_, shared), done)| shared > done && shared > len);
        ahead.map(|(share, _)| share).max_by_key(|&(order, shared)| (shared, Reverse(order)))
    }

    /// Tokens at the beginning of a sequence that it shares, or is going to, with one that runs.
    pub(super) fn shared_tokens(&self, sequence: &Sequence<'_>) -> usize {
        self.running.iter().map(|other| self.common(sequence, other)).max().unwrap_or(0)
    }

    /// Tokens at the beginning that two sequences can share: in whole blocks, and not the last, whose
    /// logits each computes for itself.
    fn common(&self, sequence: &Sequence<'_>, other: &Sequence<'_>) -> usize {
        let (ours, theirs) = (&sequence.options, &other.options);
        let alike = ours.scope == theirs.scope && ours.adapter == theirs.adapter;
        let scored = PromptScores::suffices(other.scores.as_deref(), sequence.scores.as_deref());
        if !(alike && scored && sequence.shares() && other.shares()) {
            return 0;
        }
        let pairs = sequence.tokens().zip(other.tokens());
        let alike = pairs.take_while(|(a, b)| a == b).count();
        let block = self.engine.config().kv_block;
        alike.min(sequence.tokens().count().saturating_sub(1)) / block * block
    }
}
