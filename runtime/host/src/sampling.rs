//! Which calls are looked at: drawn so that nothing a kernel can know tells it which.
//!
//! A kernel counts its calls, so what comes every so many calls is never seen by one that behaves
//! then. Gaps are geometric: whatever came before, each call is as likely to be looked at as any
//! other, so what is measured of those that are stands for all.

use std::hash::{BuildHasher, RandomState};

/// Draws gaps between calls, from a stream that begins with a seed of the operating system.
pub(crate) struct Sampler {
    stream: blake3::OutputReader,
    block: [u8; 64],
    /// Bytes of the block that are used up.
    used: usize,
}

impl Sampler {
    /// A stream of its own.
    pub(crate) fn new() -> Self {
        let mut seed = [0; 32];
        if getrandom::fill(&mut seed).is_err() {
            // The standard library's own seed, which it asks for in other ways too.
            seed[..8].copy_from_slice(&RandomState::new().hash_one(0).to_le_bytes());
        }
        let stream = blake3::Hasher::new_keyed(&seed).finalize_xof();
        Self { stream, block: [0; 64], used: 64 }
    }

    /// Calls until the next one that is looked at, itself included: at least one, `mean` on average.
    pub(crate) fn next_gap(&mut self, mean: u32) -> u32 {
        // Above 0 and at most 1.
        let uniform = (f64::from(self.next()) + 1.0) / (f64::from(u32::MAX) + 1.0);
        let passed = uniform.ln() / (1.0 - 1.0 / f64::from(mean.max(1))).ln();
        // The conversion saturates.
        (passed as u32).saturating_add(1)
    }

    fn next(&mut self) -> u32 {
        if self.used == self.block.len() {
            self.stream.fill(&mut self.block);
            self.used = 0;
        }
        let [a, b, c, d] = [0, 1, 2, 3].map(|i| self.block[self.used + i]);
        self.used += 4;
        u32::from_le_bytes([a, b, c, d])
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn gaps_have_their_mean_and_no_call_is_likelier_than_another() {
        let mut sampler = Sampler::new();
        assert_eq!([0, 1].map(|mean| sampler.next_gap(mean)), [1, 1]);
        let gaps: Vec<u32> = (0..100_000).map(|_| sampler.next_gap(64)).collect();
        let mean = gaps.iter().map(|&gap| f64::from(gap)).sum::<f64>() / gaps.len() as f64;
        assert!((62.0..66.0).contains(&mean), "{mean}");
        // The first call after a look is looked at as often as any: one time in 64.
        let next = gaps.iter().filter(|&&gap| gap == 1).count();
        assert!((1300..1850).contains(&next), "{next}");
    }

    #[test]
    fn two_streams_have_nothing_in_common() {
        let draw = || {
            let mut sampler = Sampler::new();
            (0..8).map(|_| sampler.next()).collect::<Vec<_>>()
        };
        assert_ne!(draw(), draw());
    }
}
