//! Prometheus' text format 0.0.4.
//!
//! Written here because the libraries at hand either count in integers alone, and seconds are none, or
//! write OpenMetrics alone, in which `promtool check metrics` finds fault with every counter.

use std::fmt::Write as _;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;

use serde::Serialize;

/// What Prometheus does with a metric.
#[derive(Clone, Copy)]
pub(super) enum Kind {
    Counter,
    Gauge,
}

/// An exposition under construction.
#[derive(Default)]
pub(super) struct Text(String);

impl Text {
    /// One metric with its samples; without any it is left out.
    pub(super) fn metric<const N: usize>(
        &mut self,
        name: &str,
        kind: Kind,
        help: &str,
        samples: impl IntoIterator<Item = ([(&'static str, String); N], f64)>,
    ) {
        let mut samples = samples.into_iter().peekable();
        if samples.peek().is_some() {
            let kind = match kind {
                Kind::Counter => "counter",
                Kind::Gauge => "gauge",
            };
            self.head(name, kind, help);
        }
        for (labels, value) in samples {
            self.sample(name, &labels, value);
        }
    }

    /// One metric without labels.
    pub(super) fn single(&mut self, name: &str, kind: Kind, help: &str, value: f64) {
        self.metric(name, kind, help, [([], value)]);
    }

    /// One histogram: how many values are in each bucket alone, by its upper bound, rising; the last has
    /// none. `sum` is that of all values.
    pub(super) fn histogram(
        &mut self,
        name: &str,
        help: &str,
        buckets: impl IntoIterator<Item = (Option<f64>, u64)>,
        sum: f64,
    ) {
        self.head(name, "histogram", help);
        let bucket = format!("{name}_bucket");
        let mut count = 0;
        for (bound, in_bucket) in buckets {
            count += in_bucket;
            let bound = bound.map_or_else(|| "+Inf".to_owned(), |bound| bound.to_string());
            self.sample(&bucket, &[("le", bound)], count as f64);
        }
        self.sample(&format!("{name}_sum"), &[], sum);
        self.sample(&format!("{name}_count"), &[], count as f64);
    }

    pub(super) fn finish(self) -> String {
        self.0
    }

    fn head(&mut self, name: &str, kind: &str, help: &str) {
        // Writing to a string cannot fail.
        let _ = writeln!(self.0, "# HELP {name} {help}\n# TYPE {name} {kind}");
    }

    fn sample(&mut self, name: &str, labels: &[(&str, String)], value: f64) {
        self.0.push_str(name);
        for (i, (label, text)) in labels.iter().enumerate() {
            self.0.push(if i == 0 { '{' } else { ',' });
            let text = text.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n");
            let _ = write!(self.0, "{label}=\"{text}\"");
        }
        if !labels.is_empty() {
            self.0.push('}');
        }
        let _ = writeln!(self.0, " {value}");
    }
}

/// Durations, counted in buckets of seconds.
pub(super) struct Durations {
    bounds: &'static [f64],
    counts: Vec<AtomicU64>,
    above: AtomicU64,
    nanos: AtomicU64,
}

impl Durations {
    /// None yet; `bounds` are upper bounds of buckets in seconds, rising.
    pub(super) fn new(bounds: &'static [f64]) -> Durations {
        let counts = bounds.iter().map(|_| AtomicU64::new(0)).collect();
        Durations { bounds, counts, above: AtomicU64::new(0), nanos: AtomicU64::new(0) }
    }

    pub(super) fn record(&self, took: Duration) {
        let seconds = took.as_secs_f64();
        let bucket = self.bounds.iter().position(|&bound| seconds <= bound);
        bucket.map_or(&self.above, |at| &self.counts[at]).fetch_add(1, Relaxed);
        self.nanos.fetch_add(took.as_nanos() as u64, Relaxed);
    }

    /// How many there are in each bucket.
    pub(super) fn buckets(&self) -> Buckets {
        let counts = self.counts.iter().chain([&self.above]);
        Buckets { bounds: self.bounds, counts: counts.map(|count| count.load(Relaxed)).collect() }
    }

    /// All of them, added up, in seconds.
    pub(super) fn sum(&self) -> f64 {
        self.nanos.load(Relaxed) as f64 / 1e9
    }
}

/// How many durations lay in which bucket.
#[derive(Serialize)]
pub(crate) struct Buckets {
    /// Upper bounds in seconds, rising.
    bounds: &'static [f64],
    /// One count for each bound, without those of the bounds before, and one for what lay above all.
    counts: Vec<u64>,
}

impl Buckets {
    /// As [`Text::histogram`] takes them.
    pub(super) fn iter(&self) -> impl Iterator<Item = (Option<f64>, u64)> {
        let bounds = self.bounds.iter().copied().map(Some).chain([None]);
        bounds.zip(self.counts.iter().copied())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn labels_are_escaped_and_buckets_add_up() {
        let mut text = Text::default();
        text.metric("a_total", Kind::Counter, "As.", [([("b", "\"\\\n".to_owned())], 1.5)]);
        text.metric("none", Kind::Gauge, "Nothing.", Vec::<([(&str, String); 1], f64)>::new());
        let durations = Durations::new(&[0.1, 1.0]);
        for millis in [50, 100, 500, 2000] {
            durations.record(Duration::from_millis(millis));
        }
        text.histogram("h_seconds", "Times.", durations.buckets().iter(), durations.sum());
        let expected = "\
# HELP a_total As.
# TYPE a_total counter
a_total{b=\"\\\"\\\\\\n\"} 1.5
# HELP h_seconds Times.
# TYPE h_seconds histogram
h_seconds_bucket{le=\"0.1\"} 2
h_seconds_bucket{le=\"1\"} 3
h_seconds_bucket{le=\"+Inf\"} 4
h_seconds_sum 2.65
h_seconds_count 4
";
        assert_eq!(text.finish(), expected);
    }
}
