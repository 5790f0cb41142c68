//! Figures of a load as a line of a table.

use crate::client::Answer;
use crate::stats::Percentiles;
use serde::Serialize;
use std::collections::BTreeMap;
use std::fmt;
use std::time::Duration;

/// What one load came to.
#[derive(Serialize)]
pub(crate) struct Row {
    pub(crate) name: String,
    pub(crate) requests: usize,
    /// Of the prompts, how many of those the server had computed before, and of the answers.
    pub(crate) prompt_tokens: u64,
    pub(crate) cached_tokens: u64,
    pub(crate) tokens: u64,
    pub(crate) seconds: f64,
    pub(crate) tokens_per_second: f64,
    /// Milliseconds from a request to its first token.
    pub(crate) first_token: Percentiles,
    /// Milliseconds from a token to the next of the same answer.
    pub(crate) between_tokens: Percentiles,
    /// Requests that failed, by status or reason.
    pub(crate) errors: BTreeMap<String, usize>,
}

impl Row {
    /// Of answers from the first request to the last token.
    pub(crate) fn of(name: impl Into<String>, answers: &[Answer]) -> Row {
        let first = answers.iter().map(|answer| answer.asked).min();
        let last = answers.iter().map(Answer::end).max();
        let seconds = first.zip(last).map_or(Duration::ZERO, |(first, last)| last - first);
        let seconds = seconds.as_secs_f64();
        let sum = |of: fn(&Answer) -> u64| answers.iter().map(of).sum::<u64>();
        let tokens = sum(|answer| answer.usage.completion);
        let mut errors = BTreeMap::new();
        for error in answers.iter().filter_map(|answer| answer.error.clone()) {
            *errors.entry(error).or_default() += 1;
        }
        Row {
            name: name.into(),
            requests: answers.len(),
            prompt_tokens: sum(|answer| answer.usage.prompt),
            cached_tokens: sum(|answer| answer.usage.cached),
            tokens,
            seconds,
            tokens_per_second: if seconds > 0.0 { tokens as f64 / seconds } else { 0.0 },
            first_token: Percentiles::of(answers.iter().filter_map(Answer::first)),
            between_tokens: Percentiles::of(
                answers.iter().flat_map(Answer::gaps).map(|(from, to)| to - from),
            ),
            errors,
        }
    }
}

/// Rows as a Markdown table, and what else was found out.
#[derive(Default, Serialize)]
pub(crate) struct Report {
    pub(crate) rows: Vec<Row>,
    /// Sentences, each with the figure that it gives.
    pub(crate) findings: Vec<Finding>,
}

/// A figure that is none of a row.
#[derive(Serialize)]
pub(crate) struct Finding {
    pub(crate) what: String,
    pub(crate) value: f64,
    pub(crate) unit: String,
}

impl Report {
    pub(crate) fn find(&mut self, what: impl Into<String>, value: f64, unit: &str) {
        self.findings.push(Finding { what: what.into(), value, unit: unit.to_owned() });
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if !self.rows.is_empty() {
            writeln!(
                f,
                "| load | requests | prompt (cached) | tokens | tokens/s | first token ms, p50 / p95 / p99 \
                 | between tokens ms, p50 / p95 / p99 / most | errors |\n\
                 |---|---:|---:|---:|---:|---:|---:|---|"
            )?;
        }
        for row in &self.rows {
            let Row { name, requests, prompt_tokens, cached_tokens, tokens, .. } = row;
            let (first, between) = (row.first_token, row.between_tokens);
            let errors: Vec<String> =
                row.errors.iter().map(|(error, n)| format!("{n} of {error}")).collect();
            writeln!(
                f,
                "| {name} | {requests} | {prompt_tokens} ({cached_tokens}) | {tokens} | {:.1} \
                 | {:.1} / {:.1} / {:.1} | {:.2} / {:.2} / {:.2} / {:.1} | {} |",
                row.tokens_per_second,
                first.p50,
                first.p95,
                first.p99,
                between.p50,
                between.p95,
                between.p99,
                between.max,
                if errors.is_empty() { "none".to_owned() } else { errors.join(", ") },
            )?;
        }
        if !self.rows.is_empty() && !self.findings.is_empty() {
            writeln!(f)?;
        }
        for Finding { what, value, unit } in &self.findings {
            writeln!(f, "{what}: {value:.4} {unit}")?;
        }
        Ok(())
    }
}
