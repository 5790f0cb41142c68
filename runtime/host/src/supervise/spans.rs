//! Spans of changes of kernels, for whoever collects traces, and the target of what is logged of them.

use crate::pack::PackId;
use tracing::Span;
use tracing::field::Empty;

/// Under which activations (info) and what is taken back (error) are logged, and changes are traced.
pub(super) const LOG: &str = "ruvllm::swap";

/// The span of something that changes the kernels of a host; `operator` is empty for what the host does by
/// itself.
pub(super) fn change(action: &str, operator: &str) -> Span {
    tracing::info_span!(
        target: LOG,
        "change",
        otel.name = format!("kernels {action}"),
        otel.status_code = Empty,
        error.type = Empty,
        ruvllm.operator = operator,
        ruvllm.pack.name = Empty,
        ruvllm.pack.version = Empty,
        ruvllm.pack.digest = Empty,
        ruvllm.generation = Empty,
        ruvllm.reason = Empty,
    )
}

/// Notes which pack it is about.
pub(super) fn note_pack(span: &Span, pack: &PackId) {
    span.record("ruvllm.pack.name", &pack.name);
    span.record("ruvllm.pack.version", &pack.version);
    span.record("ruvllm.pack.digest", &pack.digest);
}

/// Notes that it did not come to pass, with the code of the error.
pub(super) fn failed(span: &Span, code: &str) {
    span.record("error.type", code);
    span.record("otel.status_code", "error");
}
