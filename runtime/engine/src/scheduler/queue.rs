//! Who is next: the requests that wait, and what each client was served.
//!
//! Fairness between clients is that of the virtual token counter (Sheng et al., OSDI 2024): each client
//! has a count of what it was served, and the client with the lowest is next. A client that comes
//! back is lifted to the lowest count of those that are there, so nobody saves up for later.

use std::cmp::Reverse;
use std::collections::HashMap;
use std::sync::Arc;

use super::request::QueuedRequest;

/// What a computed token of a prompt counts.
pub(super) const PROMPT_WEIGHT: i64 = 1;

/// What a chosen token counts: it takes a row of a step as one of a prompt does, but steps have room for
/// fewer of them.
pub(super) const TEXT_WEIGHT: i64 = 2;

/// The requests that wait.
#[derive(Default)]
pub(super) struct Queue {
    requests: Vec<QueuedRequest>,
    clients: HashMap<Arc<str>, Client>,
    arrived: u64,
}

#[derive(Default)]
struct Client {
    /// What it was served, in weighted tokens.
    served: u64,
    /// Its requests that wait, run or rest.
    requests: usize,
}

impl Queue {
    /// Requests that wait.
    pub(super) fn len(&self) -> usize {
        self.requests.len()
    }

    /// Adds a request behind the others of its client.
    pub(super) fn push(&mut self, mut request: QueuedRequest) {
        self.arrived += 1;
        request.order = self.arrived;
        let least = self.least();
        let client = self.clients.entry(Arc::clone(&request.client)).or_default();
        if client.requests == 0 {
            client.served = client.served.max(least);
        }
        client.requests += 1;
        self.requests.push(request);
    }

    /// The lowest count of the clients that have requests.
    fn least(&self) -> u64 {
        let there = self.clients.values().filter(|client| client.requests > 0);
        there.map(|client| client.served).min().unwrap_or(0)
    }

    /// The highest priority of those that wait.
    pub(super) fn priority(&self) -> Option<u8> {
        self.requests.iter().map(|request| request.session.priority).max()
    }

    /// Takes out who is next.
    pub(super) fn take(&mut self) -> Option<QueuedRequest> {
        let served = |request: &QueuedRequest| {
            self.clients.get(&request.client).map_or(0, |client| client.served)
        };
        let rank = |request: &QueuedRequest| {
            (Reverse(request.session.priority), served(request), request.order)
        };
        let (index, _) =
            self.requests.iter().enumerate().min_by_key(|(_, request)| rank(request))?;
        Some(self.requests.swap_remove(index))
    }

    /// Takes out the requests that were cancelled, or all.
    pub(super) fn remove(&mut self, all: bool) -> Vec<QueuedRequest> {
        self.requests.extract_if(.., |request| all || request.is_cancelled()).collect()
    }

    /// Counts weighted tokens that a client was served, or was not after all.
    pub(super) fn charge(&mut self, client: &str, cost: i64) {
        if let Some(client) = self.clients.get_mut(client) {
            client.served = client.served.saturating_add_signed(cost);
        }
    }

    /// Counts that a request of a client has ended. Clients without requests are remembered as long as
    /// they are ahead of others, which is what they would come back with.
    pub(super) fn leave(&mut self, client: &str) {
        if let Some(client) = self.clients.get_mut(client) {
            client.requests -= 1;
        }
        if self.clients.values().all(|client| client.requests == 0) {
            self.clients.clear();
        } else {
            let least = self.least();
            self.clients.retain(|_, client| client.requests > 0 || client.served > least);
        }
    }
}
