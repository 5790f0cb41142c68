//! A fast multiplicative hash for vocabulary and merge tables.
//!
//! Keys come from the model file, looked-up strings from the prompt; a prompt can cause misses but never
//! insertions, so a keyed hash would buy nothing here. Not for tables that grow with untrusted input.

use std::collections::HashMap;
use std::hash::{BuildHasherDefault, Hasher};

pub(super) type FastMap<K, V> = HashMap<K, V, BuildHasherDefault<FastHasher>>;

/// Rotate, xor, multiply over 8-byte words.
#[derive(Default)]
pub(super) struct FastHasher(u64);

impl FastHasher {
    fn mix(&mut self, word: u64) {
        self.0 = (self.0.rotate_left(5) ^ word).wrapping_mul(0x9E37_79B9_7F4A_7C15);
    }
}

impl Hasher for FastHasher {
    fn write(&mut self, bytes: &[u8]) {
        let (words, rest) = bytes.as_chunks::<8>();
        for word in words {
            self.mix(u64::from_le_bytes(*word));
        }
        if !rest.is_empty() {
            let mut word = [0; 8];
            word[..rest.len()].copy_from_slice(rest);
            self.mix(u64::from_le_bytes(word));
        }
    }

    fn write_u64(&mut self, word: u64) {
        self.mix(word);
    }

    fn write_usize(&mut self, word: usize) {
        self.mix(word as u64);
    }

    fn finish(&self) -> u64 {
        // The table index comes from the low bits, which a multiplication mixes least.
        self.0 ^ (self.0 >> 32)
    }
}
