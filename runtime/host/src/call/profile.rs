//! A profile of the calls of each operation, for self-tests of packs that are staged and for instances
//! that are made ahead.
//!
//! Workers note a call when its class of sizes is new to them, which costs a warm call one test of a
//! bit, and a constant when an instance takes it up; the locks here are taken only then.

use crate::OpKey;
use crate::instance::constants::Constants;
use crate::instance::{MAX_INSTANCES, WindowSize};
use crate::op::call::Words;
use crate::threads::lock;
use std::collections::HashMap;
use std::sync::{Arc, Mutex};

/// Shapes that are kept of one operation. They come in classes of powers of two, so there are few.
const SHAPES: usize = 64;

/// The profiles of all operations.
#[derive(Default)]
pub(crate) struct CallProfiles(Mutex<HashMap<OpKey, CallProfile>>);

/// What calls of one operation were like.
#[derive(Clone, Default)]
pub(crate) struct CallProfile {
    /// The distinct params blocks of calls.
    pub(crate) shapes: Vec<Words>,
    /// What instances of the operation's kernels were made for.
    pub(crate) windows: Vec<WindowSize>,
    pub(crate) constants: Arc<Constants>,
}

impl CallProfiles {
    /// Notes a call; beyond a number of them, further shapes are not kept.
    #[cold]
    pub(crate) fn note(&self, key: &OpKey, words: &Words) {
        self.on(key, |CallProfile { shapes, .. }| {
            let is_new = !shapes.iter().any(|other| other.as_slice() == words.as_slice());
            if shapes.len() < SHAPES && is_new {
                shapes.push(*words);
            }
        });
    }

    /// Notes what an instance is made for.
    #[cold]
    pub(crate) fn note_window(&self, key: &OpKey, window: WindowSize) {
        self.on(key, |CallProfile { windows, .. }| {
            if !windows.contains(&window) && windows.len() < MAX_INSTANCES {
                windows.push(window);
            }
        });
    }

    /// What was noted of an operation.
    pub(crate) fn of(&self, key: &OpKey) -> CallProfile {
        self.on(key, |profile| profile.clone())
    }

    fn on<T>(&self, key: &OpKey, work: impl FnOnce(&mut CallProfile) -> T) -> T {
        let mut all = lock(&self.0);
        match all.get_mut(key) {
            Some(profile) => work(profile),
            None => work(all.entry(key.clone()).or_default()),
        }
    }
}
