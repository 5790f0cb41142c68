//! Spans of requests and their sequences, for whoever collects traces.
//!
//! They are spans of `tracing`: where nobody collects any, they cost a look at a flag. Names and attributes
//! are those of OpenTelemetry's conventions for HTTP and for generative AI, as far as these go. What a
//! prompt or an answer says is in none of them, unless the operator has prompts logged.

use ruvllm_engine::GenerateOptions;
use ruvllm_engine::scheduler::Update;
use tracing::Span;
use tracing::field::Empty;

use crate::sequences::Operation;

/// Under which spans can be told from those of other crates.
const TARGET: &str = "ruvllm::spans";

/// The span of a request, from its head to the last byte of its answer. It ends when the last clone is
/// dropped, and must not be entered, since it would be taken to end where it is left.
pub(crate) fn request(method: &str, route: Option<&str>) -> Span {
    tracing::info_span!(
        target: TARGET,
        "request",
        otel.name = route.map_or_else(|| method.to_owned(), |route| format!("{method} {route}")),
        otel.kind = "server",
        otel.status_code = Empty,
        http.request.method = method,
        http.route = route,
        http.response.status_code = Empty,
        error.type = Empty,
        ruvllm.request = Empty,
        ruvllm.client = Empty,
        ruvllm.prompt = Empty,
    )
}

/// The spans of one sequence: of the whole, and in it of the wait, the prompt and the text, one after
/// the other.
pub(crate) struct SequenceSpans {
    whole: Span,
    phase: Span,
    generating: bool,
}

impl SequenceSpans {
    /// For a sequence that is submitted at this moment.
    pub(crate) fn new(
        request: &Span,
        model: &str,
        operation: Operation,
        prompt_tokens: usize,
        options: &GenerateOptions,
    ) -> SequenceSpans {
        let (name, sampling) = (operation.name(), &options.sampling);
        // What an embedding has no use for is left out.
        let text = operation != Operation::Embeddings;
        let limit = Some(options.max_tokens).filter(|&most| text && most != usize::MAX);
        let whole = tracing::info_span!(
            target: TARGET,
            parent: request,
            "sequence",
            otel.name = format!("{name} {model}"),
            otel.status_code = Empty,
            error.type = Empty,
            gen_ai.operation.name = name,
            gen_ai.provider.name = "ruvllm",
            gen_ai.request.model = model,
            gen_ai.request.max_tokens = limit,
            gen_ai.request.temperature = text.then_some(f64::from(sampling.temperature)),
            gen_ai.request.top_p = text.then_some(f64::from(sampling.top_p)),
            gen_ai.usage.input_tokens = prompt_tokens,
            gen_ai.usage.output_tokens = Empty,
            gen_ai.usage.cache_read.input_tokens = Empty,
        );
        let phase = tracing::info_span!(target: TARGET, parent: &whole, "queue");
        SequenceSpans { whole, phase, generating: false }
    }

    /// The span of the whole.
    pub(crate) fn whole(&self) -> &Span {
        &self.whole
    }

    /// Notes what the scheduler says of the sequence, when it says it.
    pub(crate) fn see(&mut self, update: &Update) {
        let Self { whole, phase, generating } = self;
        match update {
            Update::Started(started) => {
                whole.record("gen_ai.usage.cache_read.input_tokens", started.cached_tokens);
                *phase = tracing::info_span!(target: TARGET, parent: &*whole, "prompt");
            }
            Update::Token(_) if !*generating => {
                *generating = true;
                *phase = tracing::info_span!(target: TARGET, parent: &*whole, "generation");
            }
            Update::Token(_) | Update::Prefill { .. } | Update::Prompt(_) => {}
            Update::Done(finished) => {
                whole.record("gen_ai.usage.output_tokens", finished.usage.completion_tokens);
                #[cfg(feature = "otel")]
                crate::otlp::finish_reason(whole, finished.reason.name());
            }
            Update::Failed(error) => failed(whole, error.code()),
            Update::Embedding(_) => {}
        }
    }
}

/// Notes the code of the error that ended what a span is of.
pub(crate) fn failed(span: &Span, code: &str) {
    span.record("error.type", code);
    span.record("otel.status_code", "error");
}
