//! `/metrics`: what the server, the scheduler, the KV cache and the kernels count, for Prometheus.

mod swap;
mod text;

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Instant;

use axum::extract::State;
use axum::http::header;
use axum::response::IntoResponse;
use ruvllm_engine::memory::{Holder, Use};
use ruvllm_engine::scheduler::{SchedulerStats, Update};
use ruvllm_engine::{KvCodec, MemoryReport};
use ruvllm_host::{OpStats, Supervisor};
use serde::Serialize;

use crate::app::App;
use crate::error::ApiError;
use text::{Buckets, Durations, Kind, Text};

/// Upper bounds of buckets in seconds: of what a person waits for, and of what a token takes.
const WAITS: &[f64] =
    &[0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0];
const GAPS: &[f64] =
    &[0.001, 0.0025, 0.005, 0.01, 0.02, 0.03, 0.05, 0.075, 0.1, 0.25, 0.5, 1.0, 5.0];

/// What the server counts itself.
pub(crate) struct Metrics {
    /// Answered requests by route, method and status.
    requests: Mutex<BTreeMap<(String, &'static str, u16), u64>>,
    latency: Arc<Latency>,
}

/// How long sequences take.
struct Latency {
    queue: Durations,
    first_token: Durations,
    between_tokens: Durations,
    total: Durations,
}

/// How long clients waited for tokens, since the server began.
#[derive(Serialize)]
pub(crate) struct TokenTimes {
    first_token: Buckets,
    between_tokens: Buckets,
}

/// Measures one sequence.
pub(crate) struct Watch {
    latency: Arc<Latency>,
    submitted: Instant,
    last_token: Option<Instant>,
}

impl Default for Metrics {
    fn default() -> Metrics {
        let latency = Latency {
            queue: Durations::new(WAITS),
            first_token: Durations::new(WAITS),
            between_tokens: Durations::new(GAPS),
            total: Durations::new(WAITS),
        };
        Metrics { requests: Mutex::default(), latency: Arc::new(latency) }
    }
}

impl Watch {
    /// Notes what the scheduler says of the sequence, when it says it.
    pub(crate) fn see(&mut self, update: &Update) {
        match update {
            Update::Started(started) => self.latency.queue.record(started.queued),
            Update::Token(_) => {
                let now = Instant::now();
                match self.last_token.replace(now) {
                    None => self.latency.first_token.record(now - self.submitted),
                    Some(last) => self.latency.between_tokens.record(now - last),
                }
            }
            Update::Done(finished) => self.latency.total.record(finished.latency.total),
            Update::Prefill { .. }
            | Update::Prompt(_)
            | Update::Failed(_)
            | Update::Embedding(_) => {}
        }
    }
}

impl Metrics {
    /// Counts an answered request; `path` is a route, not what the client wrote.
    pub(crate) fn request(&self, path: &str, method: &'static str, status: u16) {
        let mut requests = self.requests.lock().unwrap_or_else(PoisonError::into_inner);
        *requests.entry((path.to_owned(), method, status)).or_default() += 1;
    }

    pub(crate) fn token_times(&self) -> TokenTimes {
        let Latency { first_token, between_tokens, .. } = &*self.latency;
        TokenTimes { first_token: first_token.buckets(), between_tokens: between_tokens.buckets() }
    }

    /// For a sequence that is submitted at this moment.
    pub(crate) fn watch(&self) -> Watch {
        let latency = Arc::clone(&self.latency);
        Watch { latency, submitted: Instant::now(), last_token: None }
    }

    fn write(&self, text: &mut Text) {
        let requests = self.requests.lock().unwrap_or_else(PoisonError::into_inner).clone();
        let samples = requests.iter().map(|((path, method, status), &count)| {
            let labels = [
                ("path", path.clone()),
                ("method", (*method).to_owned()),
                ("status", status.to_string()),
            ];
            (labels, count as f64)
        });
        text.metric(
            "ruvllm_http_requests_total",
            Kind::Counter,
            "Answered HTTP requests.",
            samples,
        );
        let Latency { queue, first_token, between_tokens, total } = &*self.latency;
        for (name, help, durations) in [
            ("ruvllm_queue_seconds", "From a sequence's submission to its first step.", queue),
            (
                "ruvllm_time_to_first_token_seconds",
                "From a sequence's submission to its first token.",
                first_token,
            ),
            ("ruvllm_inter_token_seconds", "From a token to the next.", between_tokens),
            ("ruvllm_sequence_seconds", "From submission to the end.", total),
        ] {
            text.histogram(name, help, durations.buckets().iter(), durations.sum());
        }
    }
}

/// `GET /metrics`.
pub(crate) async fn metrics(State(app): State<Arc<App>>) -> Result<impl IntoResponse, ApiError> {
    let mut text = Text::default();
    if let Some(kernels) = &app.supervised {
        let write = move |supervisor: &Supervisor| {
            swap::write(supervisor, &mut text);
            Ok(text)
        };
        text = kernels.read(write).await?;
    }
    // The figures of the memory are there once no step is computed.
    let shared = Arc::clone(&app);
    let body = app
        .aside(move || {
            let app = shared;
            let labels =
                [("version", env!("CARGO_PKG_VERSION").to_owned()), ("model", app.model.clone())];
            let help = "The version that runs and the model that it serves; always 1.";
            text.metric("ruvllm_build_info", Kind::Gauge, help, [(labels, 1.0)]);
            app.metrics.write(&mut text);
            let stats = app.scheduler.stats();
            write_scheduler(&stats, &mut text);
            write_steps(&stats, &mut text);
            #[cfg(feature = "otel")]
            write_spans(&mut text);
            write_memory(&app.engine.memory(), &mut text);
            write_kernels(&app.engine.host().stats(), &mut text);
            let help = "The newest generation of kernels.";
            let generation = app.engine.host().generation();
            text.single("ruvllm_kernel_generation", Kind::Gauge, help, generation as f64);
            Ok(text.finish())
        })
        .await?;
    Ok(([(header::CONTENT_TYPE, "text/plain; version=0.0.4; charset=utf-8")], body))
}

fn write_scheduler(stats: &SchedulerStats, text: &mut Text) {
    let states =
        [("waiting", stats.waiting), ("running", stats.running), ("resting", stats.resting)];
    let states = states.map(|(state, count)| ([("state", state.to_owned())], count as f64));
    let help = "Sequences: waiting for their first step, computed, or interrupted.";
    text.metric("ruvllm_sequences", Kind::Gauge, help, states);
    let outcomes = [
        ("finished", stats.finished),
        ("cancelled", stats.cancelled),
        ("failed", stats.failed),
        ("rejected", stats.rejected),
    ];
    let outcomes = outcomes.map(|(how, count)| ([("outcome", how.to_owned())], count as f64));
    text.metric("ruvllm_sequences_total", Kind::Counter, "Sequences that have ended.", outcomes);
    let tokens = [
        ("prompt", stats.prompt_tokens),
        ("cached", stats.cached_tokens),
        ("generated", stats.generated_tokens),
        ("recomputed", stats.recomputed_tokens),
    ];
    let tokens = tokens.map(|(kind, count)| ([("kind", kind.to_owned())], count as f64));
    let help = "Tokens: of prompts, of prompts found in the cache, chosen, computed again.";
    text.metric("ruvllm_tokens_total", Kind::Counter, help, tokens);
    let preempted =
        [("memory", stats.preempted_for_memory), ("priority", stats.preempted_for_priority)];
    let preempted = preempted.map(|(why, count)| ([("reason", why.to_owned())], count as f64));
    let help = "Sequences that were interrupted to make room.";
    text.metric("ruvllm_preemptions_total", Kind::Counter, help, preempted);
    for (name, kind, help, value) in [
        ("ruvllm_steps_total", Kind::Counter, "Computed steps.", stats.steps),
        ("ruvllm_failed_steps_total", Kind::Counter, "Steps that failed.", stats.failed_steps),
        (
            "ruvllm_batch_sequences",
            Kind::Gauge,
            "Sequences in the last step.",
            stats.batch_sequences as u64,
        ),
        ("ruvllm_batch_tokens", Kind::Gauge, "Tokens in the last step.", stats.batch_tokens as u64),
    ] {
        text.single(name, kind, help, value as f64);
    }
}

fn write_steps(stats: &SchedulerStats, text: &mut Text) {
    for (name, help, sizes) in [
        ("ruvllm_step_sequences", "Computed steps by their sequences.", &stats.step_sequences),
        ("ruvllm_step_tokens", "Computed steps by their tokens.", &stats.step_tokens),
    ] {
        let buckets = sizes.classes().map(|(bound, steps)| (bound.map(|n| n as f64), steps));
        text.histogram(name, help, buckets, sizes.sum as f64);
    }
}

#[cfg(feature = "otel")]
fn write_spans(text: &mut Text) {
    let help = "Spans for the collector of traces: sent, not taken by it, or too many to be held.";
    let counts = crate::otlp::counts();
    let counts = counts.map(|(how, count)| ([("outcome", how.to_owned())], count as f64));
    text.metric("ruvllm_trace_spans_total", Kind::Counter, help, counts);
}

fn write_memory(MemoryReport { pool, kv, kernels }: &MemoryReport, text: &mut Text) {
    let gauges = [
        (
            "ruvllm_memory_budget_bytes",
            "The bound on KV, adapters, instances of kernels and working memory.",
            pool.budget,
        ),
        ("ruvllm_memory_used_bytes", "What is in use of that.", pool.used),
        (
            "ruvllm_kernel_memory_limit_bytes",
            "What instances of kernels may take of it.",
            kernels.limit,
        ),
    ];
    for (name, help, value) in gauges {
        text.single(name, Kind::Gauge, help, value as f64);
    }
    // Owners can have several reservations, and a series must be alone with its labels.
    let mut held = BTreeMap::from([((Use::Kv.name(), "kv cache".to_owned()), pool.kv_pages)]);
    for Holder { kind, owner, bytes, .. } in &pool.holders {
        *held.entry((kind.name(), owner.clone())).or_default() += bytes;
    }
    let held = held
        .into_iter()
        .map(|((kind, owner), bytes)| ([("use", kind.to_owned()), ("owner", owner)], bytes as f64));
    let help = "What is in use, by what for and by whom; keys and values in whole pages.";
    text.metric("ruvllm_memory_held_bytes", Kind::Gauge, help, held);
    let tiers = KvCodec::ALL.into_iter().zip(kv.bytes);
    let tiers = tiers.map(|(codec, bytes)| ([("codec", codec.name().to_owned())], bytes as f64));
    text.metric("ruvllm_kv_bytes", Kind::Gauge, "Keys and values in memory, by tier.", tiers);
    let blocks = [
        ("memory", kv.blocks),
        ("shared", kv.shared_blocks),
        ("cached", kv.cached_blocks),
        ("disk", kv.spilled_blocks),
        ("free", kv.free_blocks),
    ];
    let help = "KV blocks: in memory, of those shared by sequences and kept for later ones, on disk, and how many more fit.";
    let blocks = blocks.map(|(state, count)| ([("state", state.to_owned())], count as f64));
    text.metric("ruvllm_kv_blocks", Kind::Gauge, help, blocks);
    let counters = [
        ("ruvllm_kv_migrations_total", "Blocks written anew in a smaller codec.", kv.migrations),
        (
            "ruvllm_kv_migrations_ahead_total",
            "Those of them that were written before their step.",
            kv.migrations_ahead,
        ),
        (
            "ruvllm_kv_packed_early_total",
            "Those of them that were not old yet, to make room.",
            kv.packed_early,
        ),
        ("ruvllm_kv_spills_total", "Blocks written to disk.", kv.spills),
        ("ruvllm_kv_spill_failures_total", "Spills that failed.", kv.spill_failures),
        ("ruvllm_kv_restores_total", "Blocks read back from disk.", kv.restores),
        ("ruvllm_kv_evictions_total", "Blocks given up.", kv.evictions),
        ("ruvllm_kv_recomputed_tokens_total", "Tokens computed again.", kv.recomputed_tokens),
        (
            "ruvllm_prefix_hit_tokens_total",
            "Prompt tokens found in the cache.",
            kv.prefix_hit_tokens,
        ),
        (
            "ruvllm_prefix_miss_tokens_total",
            "Prompt tokens not found in it.",
            kv.prefix_miss_tokens,
        ),
    ];
    for (name, help, value) in counters {
        text.single(name, Kind::Counter, help, value as f64);
    }
}

fn write_kernels(stats: &[OpStats], text: &mut Text) {
    type Figure = (&'static str, Kind, &'static str, fn(&OpStats) -> f64);
    type Counts =
        (&'static str, &'static str, &'static str, fn(&OpStats) -> &BTreeMap<&'static str, u64>);
    let figures: [Figure; 5] = [
        ("ruvllm_kernel_calls_total", Kind::Counter, "Calls that a kernel answered.", |op| {
            op.calls as f64
        }),
        (
            "ruvllm_kernel_seconds_total",
            Kind::Counter,
            "Time that those took; of brief ones a sample stands for the others.",
            |op| op.nanos as f64 / 1e9,
        ),
        (
            "ruvllm_kernel_fallbacks_total",
            Kind::Counter,
            "Calls that it failed and that the next candidate answered.",
            |op| op.fallbacks as f64,
        ),
        (
            "ruvllm_kernel_traps_total",
            Kind::Counter,
            "Failed calls that ended in a trap or at the deadline.",
            |op| op.traps as f64,
        ),
        (
            "ruvllm_kernel_quarantined",
            Kind::Gauge,
            "Whether the kernel is out of service for its failures.",
            |op| f64::from(u8::from(op.quarantined)),
        ),
    ];
    let labels = |op: &OpStats| {
        [
            ("op", op.op.to_string()),
            ("kernel", op.kernel.clone()),
            ("pack", op.pack.clone()),
            ("pack_version", op.pack_version.clone()),
            ("generation", op.generation.to_string()),
        ]
    };
    for (name, kind, help, value) in figures {
        text.metric(name, kind, help, stats.iter().map(|op| (labels(op), value(op))));
    }
    let counts: [Counts; 2] = [
        (
            "ruvllm_kernel_failures_total",
            "Failed calls by what went wrong, `kernel_status` for a status that the kernel returned.",
            "code",
            |op| &op.failures,
        ),
        (
            "ruvllm_kernel_traps_by_kind_total",
            "Traps by what went wrong, those of kernel_cleanup among them; kinds that occurred.",
            "kind",
            |op| &op.trap_kinds,
        ),
    ];
    for (name, help, label, counts) in counts {
        let counted = stats.iter().flat_map(|op| {
            let [a, b, c, d, e] = labels(op);
            counts(op).iter().map(move |(of, &count)| {
                let of = (label, (*of).to_owned());
                ([a.clone(), b.clone(), c.clone(), d.clone(), e.clone(), of], count as f64)
            })
        });
        text.metric(name, Kind::Counter, help, counted);
    }
}
