//! What becomes of generations of kernels.

use ruvllm_host::{GenerationState, Health, HealthFailure, Supervisor};

use super::text::{Kind, Text};

pub(super) fn write(supervisor: &Supervisor, text: &mut Text) {
    let host = supervisor.host();
    let (mut active, mut canary, mut draining, mut drained) = (0, 0, 0, 0);
    let mut trial = 0.0;
    for generation in host.generations() {
        match generation.state {
            GenerationState::Active => active += 1,
            GenerationState::Canary { share } => {
                canary += 1;
                trial = share;
            }
            GenerationState::Draining => draining += 1,
            GenerationState::Drained => drained += 1,
        }
    }
    let states =
        [("active", active), ("canary", canary), ("draining", draining), ("drained", drained)];
    let states = states.map(|(state, count)| ([("state", state.to_owned())], f64::from(count)));
    let help = "Generations of kernels: active, on trial, held by steps, kept for going back.";
    text.metric("ruvllm_kernel_generations", Kind::Gauge, help, states);
    let health = supervisor.health();
    let unproven = health.iter().filter(|report| report.health == Health::Unproven).count();
    let left = health.iter().filter_map(|report| match report.health {
        Health::Watching { left } => Some(left.as_secs_f64()),
        _ => None,
    });
    for (name, help, value) in [
        ("ruvllm_kernel_packs_staged", "Packs that are staged.", host.staged().len() as f64),
        ("ruvllm_kernel_packs_barred", "Packs that are barred.", host.barred().len() as f64),
        (
            "ruvllm_kernel_canary_share",
            "Share of the steps that runs on the generation on trial.",
            trial,
        ),
        (
            "ruvllm_kernel_health_window_seconds",
            "What is left of the health window that ends last.",
            left.fold(0.0, f64::max),
        ),
        (
            "ruvllm_kernel_windows_unproven",
            "Health windows that ended with too little seen to tell, of packs that still serve.",
            unproven as f64,
        ),
    ] {
        text.single(name, Kind::Gauge, help, value);
    }
    let counters = supervisor.counters();
    let events = [
        ("staged", counters.staged),
        ("refused", counters.refused),
        ("activated", counters.activated),
        ("rolled_back", counters.rolled_back),
    ];
    let events = events.map(|(event, count)| ([("event", event.to_owned())], count as f64));
    let help =
        "Packs staged, refused and activated, and returns to earlier generations by operators.";
    text.metric("ruvllm_kernel_swaps_total", Kind::Counter, help, events);
    let reasons = HealthFailure::CODES.map(|code| {
        let count = counters.taken_back.get(code).copied().unwrap_or_default();
        ([("reason", code.to_owned())], count as f64)
    });
    let help = "Generations that were taken back by themselves.";
    text.metric("ruvllm_kernel_taken_back_total", Kind::Counter, help, reasons);
}
