//! Many measurements in few figures.

use serde::Serialize;
use std::time::Duration;

/// Parts of measurements, in milliseconds; each is the least value that so many do not exceed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub(crate) struct Percentiles {
    pub(crate) p50: f64,
    pub(crate) p95: f64,
    pub(crate) p99: f64,
    pub(crate) max: f64,
}

impl Percentiles {
    /// All zero without any measurement.
    pub(crate) fn of(values: impl IntoIterator<Item = Duration>) -> Percentiles {
        let mut sorted: Vec<Duration> = values.into_iter().collect();
        sorted.sort_unstable();
        let at = |part: f64| {
            let index = (part * sorted.len() as f64).ceil() as usize;
            let value = sorted.get(index.saturating_sub(1));
            value.map_or(0.0, |value| value.as_secs_f64() * 1e3)
        };
        Percentiles { p50: at(0.5), p95: at(0.95), p99: at(0.99), max: at(1.0) }
    }
}

/// A line through measurements, by least squares.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub(crate) struct Trend {
    pub(crate) mean: f64,
    /// Change in an hour.
    pub(crate) per_hour: f64,
    /// The standard error of that, as if the distances from the line were independent.
    pub(crate) error: f64,
    /// How much of the mean the growth over the whole time may be, at the least, two errors off.
    pub(crate) growth: f64,
}

/// Growth over the whole time that nobody would notice, as a part of the mean.
const FLAT: f64 = 0.01;

impl Trend {
    /// Of points of hours and values; `None` where there are fewer than three.
    pub(crate) fn of(points: &[(f64, f64)]) -> Option<Trend> {
        let n = points.len() as f64;
        if points.len() < 3 {
            return None;
        }
        let mean = |of: fn(&(f64, f64)) -> f64| points.iter().map(of).sum::<f64>() / n;
        let (x, y) = (mean(|p| p.0), mean(|p| p.1));
        let spread: f64 = points.iter().map(|p| (p.0 - x).powi(2)).sum();
        let per_hour = points.iter().map(|p| (p.0 - x) * (p.1 - y)).sum::<f64>() / spread;
        let off = |p: &(f64, f64)| (p.1 - y - per_hour * (p.0 - x)).powi(2);
        let error = (points.iter().map(off).sum::<f64>() / (n - 2.0) / spread).sqrt();
        let hours = points[points.len() - 1].0 - points[0].0;
        let growth = (per_hour - 2.0 * error) * hours / y;
        Some(Trend { mean: y, per_hour, error, growth })
    }

    /// Whether nothing shows that it grows.
    pub(crate) fn is_flat(&self) -> bool {
        self.growth <= FLAT
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percentiles_are_measurements() {
        let of = |n: u64| Percentiles::of((1..=n).map(Duration::from_millis));
        assert_eq!(of(0), Percentiles::default());
        assert_eq!(of(1), Percentiles { p50: 1.0, p95: 1.0, p99: 1.0, max: 1.0 });
        assert_eq!(of(100), Percentiles { p50: 50.0, p95: 95.0, p99: 99.0, max: 100.0 });
    }

    #[test]
    fn a_trend_is_told_from_noise() {
        let line = |slope: f64, noise: f64| {
            let noise = move |i: usize| if i.is_multiple_of(2) { noise } else { -noise };
            let points =
                (0..100).map(|i| (i as f64 / 100.0, 1000.0 + slope * i as f64 / 100.0 + noise(i)));
            Trend::of(&points.collect::<Vec<_>>()).unwrap()
        };
        let steep = line(100.0, 5.0);
        assert!((steep.per_hour - 100.0).abs() < 2.0 * steep.error && !steep.is_flat());
        assert!(
            line(0.0, 50.0).is_flat() && line(5.0, 0.0).is_flat() && line(-100.0, 5.0).is_flat()
        );
        assert_eq!(Trend::of(&[(0.0, 1.0), (1.0, 1.0)]), None);
    }
}
