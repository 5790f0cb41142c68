//! Numbers that a kernel cannot predict: which of its calls are looked at, and what it is admitted on.

use std::f64::consts::TAU;

/// A stream of random numbers: of BLAKE3's, which shows nothing of what comes next.
pub struct Random {
    stream: blake3::OutputReader,
    block: [u8; 64],
    /// Bytes of the block that are used up.
    used: usize,
}

impl Random {
    /// The stream of a seed.
    pub fn new(seed: u64) -> Self {
        let mut key = [0; 32];
        key[..8].copy_from_slice(&seed.to_le_bytes());
        let stream = blake3::Hasher::new_keyed(&key).finalize_xof();
        Self { stream, block: [0; 64], used: 64 }
    }

    /// The next 32 bits.
    #[expect(clippy::should_implement_trait, reason = "it never ends")]
    pub fn next(&mut self) -> u32 {
        if self.used == self.block.len() {
            self.stream.fill(&mut self.block);
            self.used = 0;
        }
        let [a, b, c, d] = [0, 1, 2, 3].map(|i| self.block[self.used + i]);
        self.used += 4;
        u32::from_le_bytes([a, b, c, d])
    }

    /// One of the numbers below `n`, which is small.
    pub fn below(&mut self, n: u32) -> u32 {
        self.next() % n.max(1)
    }

    /// One of some things.
    pub fn one_of<T: Copy, const N: usize>(&mut self, of: [T; N]) -> T {
        of[self.below(N as u32) as usize]
    }

    /// In an order of its own (Fisher and Yates).
    pub fn shuffle<T>(&mut self, items: &mut [T]) {
        for i in (1..items.len()).rev() {
            items.swap(i, self.below(i as u32 + 1) as usize);
        }
    }

    /// Uniform in [-1, 1), in all the steps of such a binary32.
    pub fn uniform(&mut self) -> f32 {
        (self.next() >> 8) as f32 / 8_388_608.0 - 1.0
    }

    /// Normally distributed around 0 with a deviation of 1 (Box and Muller 1958).
    pub fn normal(&mut self) -> f32 {
        let radius = (-2.0 * self.above_zero().ln()).sqrt();
        (radius * (TAU * self.above_zero()).cos()) as f32
    }

    /// Calls until the next one that is looked at, itself included: at least one, `mean` on average.
    ///
    /// Gaps are geometric: whatever came before, each call is as likely to be looked at as any other,
    /// so what is measured of those that are stands for all, and a kernel that counts learns nothing.
    pub fn next_gap(&mut self, mean: u32) -> u32 {
        let passed = self.above_zero().ln() / (1.0 - 1.0 / f64::from(mean.max(1))).ln();
        // The conversion saturates.
        (passed as u32).saturating_add(1)
    }

    /// Uniform above 0 and at most 1.
    fn above_zero(&mut self) -> f64 {
        (f64::from(self.next()) + 1.0) / (f64::from(u32::MAX) + 1.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn gaps_have_their_mean_and_no_call_is_likelier_than_another() {
        let mut random = Random::new(7);
        assert_eq!([0, 1].map(|mean| random.next_gap(mean)), [1, 1]);
        let gaps: Vec<u32> = (0..100_000).map(|_| random.next_gap(64)).collect();
        let mean = gaps.iter().map(|&gap| f64::from(gap)).sum::<f64>() / gaps.len() as f64;
        assert!((62.0..66.0).contains(&mean), "{mean}");
        // The first call after a look is looked at as often as any: one time in 64.
        let next = gaps.iter().filter(|&&gap| gap == 1).count();
        assert!((1300..1850).contains(&next), "{next}");
    }

    #[test]
    fn numbers_have_the_distribution_that_they_should_have() {
        let mut random = Random::new(7);
        let n = 100_000;
        let moments = |mut draw: Box<dyn FnMut() -> f32 + '_>| {
            let numbers: Vec<f64> = (0..n).map(|_| f64::from(draw())).collect();
            let mean = numbers.iter().sum::<f64>() / f64::from(n);
            (mean, numbers.iter().map(|x| x * x).sum::<f64>() / f64::from(n))
        };
        let (mean, square) = moments(Box::new(|| random.uniform()));
        assert!(mean.abs() < 0.02 && (square - 1.0 / 3.0).abs() < 0.01, "{mean} {square}");
        let (mean, square) = moments(Box::new(|| random.normal()));
        assert!(mean.abs() < 0.03 && (square - 1.0).abs() < 0.04, "{mean} {square}");
        let mut all: Vec<u32> = (0..100).collect();
        random.shuffle(&mut all);
        assert!(all.windows(2).any(|pair| pair[0] > pair[1]));
        all.sort_unstable();
        assert!(all.into_iter().eq(0..100));
    }

    #[test]
    fn a_stream_is_that_of_its_seed() {
        let draw = |seed| {
            let mut random = Random::new(seed);
            (0..20).map(|_| random.next()).collect::<Vec<_>>()
        };
        assert_eq!(draw(1), draw(1));
        assert_ne!(draw(1), draw(2));
    }
}
