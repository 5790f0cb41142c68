//! Where the numbers that a kernel cannot predict begin.

pub(crate) use ruvllm_native::random::Random;
use std::hash::{BuildHasher, RandomState};

/// A seed from the operating system.
pub(crate) fn seed() -> u64 {
    let mut seed = [0; 8];
    match getrandom::fill(&mut seed) {
        Ok(()) => u64::from_le_bytes(seed),
        // The standard library's own, which it asks for in other ways too.
        Err(_) => RandomState::new().hash_one(0),
    }
}

#[cfg(test)]
mod tests {
    #[test]
    fn no_two_seeds_are_the_same() {
        assert_ne!(super::seed(), super::seed());
    }
}
