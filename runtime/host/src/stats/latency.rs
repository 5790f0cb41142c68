//! How long calls take: counts in buckets of time, for calls of about one size.
//!
//! Two generations of kernels seldom have the same calls: one meets long prompts, the other short ones
//! or none. So times are counted as if every call had the least size of its class and took as long in
//! proportion; otherwise a class's median would tell of what was asked as much as of the kernel. Calls
//! below the first class are left as they are, since most of their time does not depend on their size.
//!
//! Means of few calls say nothing on a busy machine, where one that was interrupted takes as long as
//! a thousand others. Medians do, and buckets of a quarter of an octave are fine enough to compare
//! two of them.

use serde::{Deserialize, Serialize};
use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// Classes of sizes: below 4 KiB, then by factors of four.
pub(crate) const SIZES: usize = 8;
/// From 16 ns to 33 ms.
const BUCKETS: usize = 84;
const FIRST_OCTAVE: u32 = 4;

/// The class of a call that moves so many bytes.
#[inline]
pub(crate) fn size(bytes: usize) -> usize {
    let log = (bytes | 1).ilog2() as usize;
    (log.saturating_sub(10) / 2).min(SIZES - 1)
}

/// The class of a call that moves so many bytes, and how long it would take with the least size of its
/// class.
#[inline]
pub(crate) fn scaled(bytes: usize, nanos: u64) -> (usize, u64) {
    match size(bytes) {
        0 => (0, nanos),
        class => (class, nanos.saturating_mul(1024 << (2 * class)) / bytes as u64),
    }
}

/// Bytes that calls of a class stay below; `None` for the last.
pub(crate) fn below(size: usize) -> Option<u64> {
    (size + 1 < SIZES).then(|| 4096 << (2 * size))
}

/// The calls of a class, in words.
pub(crate) struct SizeName(pub(crate) Option<u64>);

impl fmt::Display for SizeName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            Some(4096) => f.write_str("less than 4 KiB"),
            Some(bytes) => write!(f, "{} to {} KiB", bytes >> 12, bytes >> 10),
            None => f.write_str("16 MiB or more"),
        }
    }
}

/// Counts that one thread writes.
#[derive(Debug)]
pub(crate) struct Histogram([AtomicU64; BUCKETS]);

/// Counts, summed over threads.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Times([u64; BUCKETS]);

impl Default for Histogram {
    fn default() -> Self {
        Self(std::array::from_fn(|_| AtomicU64::new(0)))
    }
}

impl Default for Times {
    fn default() -> Self {
        Self([0; BUCKETS])
    }
}

impl Histogram {
    #[inline]
    pub(crate) fn add(&self, nanos: u64) {
        let count = &self.0[bucket(nanos)];
        // One thread writes, so nothing is lost between load and store.
        count.store(count.load(Relaxed) + 1, Relaxed);
    }
}

impl Times {
    /// Adds what a thread has counted.
    pub(crate) fn take(&mut self, histogram: &Histogram) {
        self.0.iter_mut().zip(&histogram.0).for_each(|(sum, count)| *sum += count.load(Relaxed));
    }

    pub(crate) fn add(&mut self, other: &Times) {
        self.0.iter_mut().zip(&other.0).for_each(|(sum, count)| *sum += count);
    }

    /// What came since.
    pub(crate) fn since(&self, earlier: &Times) -> Times {
        Times(std::array::from_fn(|i| self.0[i].saturating_sub(earlier.0[i])))
    }

    pub(crate) fn calls(&self) -> u64 {
        self.0.iter().sum()
    }

    /// The mean of all calls but the longest few, in nanoseconds. On a busy machine a call that is
    /// interrupted takes as long as thousands of others, and few of those that are timed are.
    pub(crate) fn mean_but(&self, longest: u64) -> f64 {
        let mut left = self.calls().saturating_sub(longest);
        let (calls, mut sum) = (left.max(1) as f64, 0.0);
        for (i, &count) in self.0.iter().enumerate() {
            let taken = count.min(left);
            left -= taken;
            sum += taken as f64 * (lower(i) + lower(i + 1)) / 2.0;
        }
        sum / calls
    }

    /// Nanoseconds that half of the calls stayed below.
    pub(crate) fn median(&self) -> f64 {
        median(&self.0.map(|count| count as f64))
    }
}

/// Counts in which a call weighs less the longer ago it was.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(into = "Vec<(usize, f64)>", try_from = "Vec<(usize, f64)>")]
pub(crate) struct DecayedHistogram([f64; BUCKETS]);

impl Default for DecayedHistogram {
    fn default() -> Self {
        Self([0.0; BUCKETS])
    }
}

impl DecayedHistogram {
    /// Lets every call weigh so many times as much.
    pub(crate) fn fade(&mut self, factor: f64) {
        self.0.iter_mut().for_each(|count| *count *= factor);
    }

    pub(crate) fn add(&mut self, times: &Times) {
        self.0.iter_mut().zip(&times.0).for_each(|(sum, &count)| *sum += count as f64);
    }

    /// What all calls weigh together: their number, were they all of this moment.
    pub(crate) fn weight(&self) -> f64 {
        self.0.iter().sum()
    }

    /// Nanoseconds that half of the weight stayed below.
    pub(crate) fn median(&self) -> f64 {
        median(&self.0)
    }
}

impl From<DecayedHistogram> for Vec<(usize, f64)> {
    /// The buckets that are not empty, to a thousandth of a call.
    fn from(decayed: DecayedHistogram) -> Self {
        let rounded = decayed.0.into_iter().map(|count| (count * 1e3).round() / 1e3);
        rounded.enumerate().filter(|&(_, count)| count > 0.0).collect()
    }
}

impl TryFrom<Vec<(usize, f64)>> for DecayedHistogram {
    type Error = &'static str;

    fn try_from(buckets: Vec<(usize, f64)>) -> Result<Self, Self::Error> {
        let mut decayed = Self::default();
        for (bucket, count) in buckets {
            let place = decayed.0.get_mut(bucket).ok_or("there is no such bucket")?;
            *place = Some(count).filter(|c| (0.0..1e15).contains(c)).ok_or("a count is none")?;
        }
        Ok(decayed)
    }
}

/// Nanoseconds that half of the counts stay below; 0 where there are none.
fn median(counts: &[f64; BUCKETS]) -> f64 {
    let half = counts.iter().sum::<f64>() / 2.0;
    let mut below = 0.0;
    for (i, &count) in counts.iter().enumerate() {
        if count > 0.0 && below + count >= half {
            let (from, to) = (lower(i), lower(i + 1));
            return from + (to - from) * (half - below) / count;
        }
        below += count;
    }
    0.0
}

fn bucket(nanos: u64) -> usize {
    let nanos = nanos.max(1 << FIRST_OCTAVE);
    let octave = nanos.ilog2();
    let quarter = nanos >> (octave - 2) & 3;
    ((octave - FIRST_OCTAVE) as usize * 4 + quarter as usize).min(BUCKETS - 1)
}

/// The least time of a bucket, in nanoseconds.
fn lower(bucket: usize) -> f64 {
    let quarters = (4 + bucket % 4) as f64 / 4.0;
    quarters * 2f64.powi(FIRST_OCTAVE as i32 + (bucket / 4) as i32)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_factors_of_four() {
        let sizes = [0, 4095, 4096, 16383, 16384, 1 << 22, 1 << 24, usize::MAX].map(size);
        assert_eq!(sizes, [0, 0, 1, 1, 2, 6, 7, 7]);
        assert_eq!([0, 1, 6, 7].map(below), [Some(4096), Some(16384), Some(1 << 24), None]);
    }

    #[test]
    fn calls_of_one_speed_have_one_time() {
        assert_eq!(scaled(100, 70), (0, 70));
        assert_eq!(
            [4096, 8192, 16380].map(|bytes| scaled(bytes, bytes as u64 / 4)),
            [(1, 1024); 3]
        );
        assert_eq!(scaled(1 << 26, 1 << 20), (7, 1 << 18));
        assert_eq!(scaled(16384, u64::MAX).0, 2);
    }

    #[test]
    fn a_median_is_near_and_outliers_do_not_move_it() {
        for nanos in [20, 100, 999, 12_345, 7_000_000] {
            let histogram = Histogram::default();
            (0..1000).for_each(|_| histogram.add(nanos));
            (0..300).for_each(|_| histogram.add(30_000_000));
            let mut times = Times::default();
            times.take(&histogram);
            let off = times.median() / nanos as f64;
            assert!((0.8..1.25).contains(&off), "{nanos}: {}", times.median());
            assert_eq!(times.calls(), 1300);
            assert_eq!(times.since(&times), Times::default());
        }
        assert_eq!((bucket(0), bucket(16), bucket(u64::MAX)), (0, 0, BUCKETS - 1));
    }

    #[test]
    fn faded_counts_have_the_median_of_the_newer_ones_and_survive_being_written() {
        let times = |nanos: u64, calls: usize| {
            let histogram = Histogram::default();
            (0..calls).for_each(|_| histogram.add(nanos));
            let mut times = Times::default();
            times.take(&histogram);
            times
        };
        let mut decayed = DecayedHistogram::default();
        decayed.add(&times(1000, 100));
        decayed.fade(0.5);
        decayed.add(&times(4000, 51));
        assert_eq!(decayed.weight(), 101.0);
        assert!((3500.0..5000.0).contains(&decayed.median()), "{}", decayed.median());
        let text = serde_json::to_string(&decayed).unwrap();
        assert_eq!(serde_json::from_str::<DecayedHistogram>(&text).unwrap(), decayed, "{text}");
        for bad in ["[[84,1.0]]", "[[0,-1.0]]", "[[0,1e300]]", "[[-1,1.0]]"] {
            assert!(serde_json::from_str::<DecayedHistogram>(bad).is_err(), "{bad}");
        }
        assert_eq!(DecayedHistogram::default().median(), 0.0);
    }

    #[test]
    fn a_mean_sees_what_a_median_does_not_but_for_a_few() {
        let times = |slow: u64| {
            let histogram = Histogram::default();
            (0..1000 - slow).for_each(|_| histogram.add(600));
            (0..slow).for_each(|_| histogram.add(3_000_000));
            let mut times = Times::default();
            times.take(&histogram);
            times
        };
        for (slow, low, high) in [(0, 500.0, 700.0), (8, 500.0, 700.0), (108, 250e3, 350e3)] {
            let (mean, median) = (times(slow).mean_but(8), times(slow).median());
            assert!((low..high).contains(&mean), "{slow}: {mean}");
            assert!((500.0..700.0).contains(&median), "{slow}: {median}");
        }
        assert_eq!(Times::default().mean_but(8), 0.0);
    }
}
