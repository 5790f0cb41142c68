//! What this host has seen of its calls, for self-tests of packs that are staged and for instances
//! that are made ahead.
//!
//! Workers note a call when its class of sizes is new to them, which costs a warm call one test of a
//! bit, and a constant when an instance takes it up; the locks here are taken only then.

use crate::OpKey;
use crate::call::{Resident, ResidentBytes, Words};
use crate::exec::window::{BENCHES, Room};
use crate::host::lock;
use std::collections::HashMap;
use std::sync::{Arc, Mutex, Weak};

/// Shapes that are kept of one operation. They come in classes of powers of two, so there are few.
const SHAPES: usize = 64;

/// What was seen, by operation.
#[derive(Default)]
pub(crate) struct AllSeen(Mutex<HashMap<OpKey, Seen>>);

/// What was seen of one operation.
#[derive(Clone, Default)]
pub(crate) struct Seen {
    /// The distinct params blocks of calls.
    pub(crate) shapes: Vec<Words>,
    /// What instances of the operation's kernels were made for.
    pub(crate) rooms: Vec<Room>,
    pub(crate) constants: Arc<Constants>,
}

/// The constants that instances of an operation's kernels have taken up, first to last.
#[derive(Default)]
pub(crate) struct Constants(Mutex<Vec<Weak<ResidentBytes>>>);

impl AllSeen {
    /// Notes a call; beyond a number of them, further shapes are not kept.
    #[cold]
    pub(crate) fn note(&self, key: &OpKey, words: &Words) {
        self.on(key, |Seen { shapes, .. }| {
            let is_new = !shapes.iter().any(|other| other.as_slice() == words.as_slice());
            if shapes.len() < SHAPES && is_new {
                shapes.push(*words);
            }
        });
    }

    /// Notes what an instance is made for.
    #[cold]
    pub(crate) fn note_room(&self, key: &OpKey, room: Room) {
        self.on(key, |Seen { rooms, .. }| {
            if !rooms.contains(&room) && rooms.len() < BENCHES {
                rooms.push(room);
            }
        });
    }

    /// What was noted of an operation.
    pub(crate) fn of(&self, key: &OpKey) -> Seen {
        self.on(key, |seen| seen.clone())
    }

    fn on<T>(&self, key: &OpKey, work: impl FnOnce(&mut Seen) -> T) -> T {
        let mut all = lock(&self.0);
        match all.get_mut(key) {
            Some(seen) => work(seen),
            None => work(all.entry(key.clone()).or_default()),
        }
    }
}

impl Constants {
    /// Notes a constant, for as long as it lives.
    pub(crate) fn note(&self, constant: &Resident) {
        let constant = constant.downgrade();
        let mut noted = lock(&self.0);
        if noted.iter().any(|other| other.ptr_eq(&constant)) {
            return;
        }
        if noted.len() == noted.capacity() {
            noted.retain(|other| other.strong_count() > 0);
        }
        noted.push(constant);
    }

    /// Those that live.
    pub(crate) fn living(&self) -> Vec<Resident> {
        lock(&self.0).iter().filter_map(Resident::upgrade).collect()
    }
}
