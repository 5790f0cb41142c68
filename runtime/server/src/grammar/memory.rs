//! The memory that the grammars of all requests hold on to.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Bytes are taken in multiples of this, so that a state that grows by little asks seldom.
const STEP: usize = 256 << 10;

/// How many bytes may be held, and who holds them.
pub(super) struct Memory {
    most: usize,
    held: Mutex<Ledger>,
}

#[derive(Default)]
struct Ledger {
    all: usize,
    clients: HashMap<Arc<str>, usize>,
}

impl Memory {
    pub(super) fn new(most: usize) -> Memory {
        Memory { most, held: Mutex::default() }
    }

    /// What one client may hold: half, so that there is some for another.
    pub(super) fn most_of_client(&self) -> usize {
        self.most / 2
    }

    fn ledger(&self) -> MutexGuard<'_, Ledger> {
        self.held.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Books bytes for a client, if there are as many left.
    fn book(&self, client: &Arc<str>, bytes: usize) -> bool {
        let mut ledger = self.ledger();
        let all = ledger.all.saturating_add(bytes);
        let own = ledger.clients.get(client).copied().unwrap_or(0).saturating_add(bytes);
        if all > self.most || own > self.most_of_client() {
            return false;
        }
        ledger.all = all;
        ledger.clients.insert(Arc::clone(client), own);
        true
    }

    fn give_back(&self, client: &str, bytes: usize) {
        let mut ledger = self.ledger();
        ledger.all -= bytes;
        if let Some(own) = ledger.clients.get_mut(client) {
            *own -= bytes;
            if *own == 0 {
                ledger.clients.remove(client);
            }
        }
    }
}

/// Bytes that a client's grammar holds, given back when this is dropped.
pub(super) struct Held {
    memory: Arc<Memory>,
    client: Arc<str>,
    bytes: usize,
}

impl Held {
    /// Takes bytes for a client; `None` where there are too few.
    pub(super) fn take(memory: &Arc<Memory>, client: &Arc<str>, bytes: usize) -> Option<Held> {
        let (memory, client) = (Arc::clone(memory), Arc::clone(client));
        let mut held = Held { memory, client, bytes: 0 };
        held.grow(bytes).then_some(held)
    }

    /// Takes bytes for the same client.
    pub(super) fn beside(&self, bytes: usize) -> Option<Held> {
        Held::take(&self.memory, &self.client, bytes)
    }

    /// Makes it at least so many bytes; false where there are too few.
    pub(super) fn grow(&mut self, bytes: usize) -> bool {
        if bytes <= self.bytes {
            return true;
        }
        let Some(bytes) = bytes.checked_next_multiple_of(STEP) else { return false };
        let booked = self.memory.book(&self.client, bytes - self.bytes);
        if booked {
            self.bytes = bytes;
        }
        booked
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        self.memory.give_back(&self.client, self.bytes);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_client_holds_half_at_most_and_all_of_them_no_more_than_there_is() {
        let memory = Arc::new(Memory::new(8 * STEP));
        let [a, b, c] = ["a", "b", "c"].map(Arc::from);
        let take = |client: &Arc<str>, steps: usize| Held::take(&memory, client, steps * STEP);
        let mut first = take(&a, 3).unwrap();
        assert!(take(&a, 2).is_none());
        assert!(first.grow(3 * STEP + 1));
        assert!(!first.grow(4 * STEP + 1));
        assert!(first.beside(1).is_none());
        let _second = take(&b, 3).unwrap();
        assert!(take(&c, 2).is_none());
        drop(first);
        assert!(take(&c, 4).is_some());
        assert!(take(&a, 4).is_some());
        assert_eq!(memory.ledger().all, 3 * STEP);
        assert_eq!(memory.ledger().clients.len(), 1);
    }
}
