//! The shapes of the calls that this host has seen, for self-tests of packs that are staged.
//!
//! Workers note a call when its class of sizes is new to them, which costs a warm call one test of a
//! bit; the lock here is taken on the first call of a class only.

use crate::OpKey;
use crate::call::Words;
use crate::host::lock;
use std::collections::HashMap;
use std::sync::Mutex;

/// Shapes that are kept of one operation. They come in classes of powers of two, so there are few.
const SHAPES: usize = 64;

/// The distinct params blocks of calls, by operation.
#[derive(Default)]
pub(crate) struct Shapes(Mutex<HashMap<OpKey, Vec<Words>>>);

impl Shapes {
    /// Notes a call; beyond a number of them, further shapes are not kept.
    #[cold]
    pub(crate) fn note(&self, key: &OpKey, words: &Words) {
        let mut shapes = lock(&self.0);
        let seen = match shapes.get_mut(key) {
            Some(seen) => seen,
            None => shapes.entry(key.clone()).or_default(),
        };
        if seen.len() < SHAPES && !seen.iter().any(|other| other.as_slice() == words.as_slice()) {
            seen.push(*words);
        }
    }

    /// The calls of an operation that were noted.
    pub(crate) fn of(&self, key: &OpKey) -> Vec<Words> {
        lock(&self.0).get(key).cloned().unwrap_or_default()
    }
}
