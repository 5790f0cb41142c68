//! Traces for an OpenTelemetry collector: spans as protobuf over HTTP.
//!
//! A thread of its own sends finished spans every few seconds. Invariants: whoever ends a span never waits
//! for the collector; no more than [`MOST`] spans are held for it, and what comes beyond is counted and
//! let go, as are spans that the collector does not take. Not promised: that what a killed process
//! held arrives.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering::Relaxed};
use std::time::Duration;

use async_trait::async_trait;
use axum::http::{HeaderMap, Request, Response};
use opentelemetry::propagation::TextMapPropagator as _;
use opentelemetry::trace::{TraceContextExt as _, TracerProvider as _};
use opentelemetry::{Array, Context, KeyValue, Value};
use opentelemetry_http::{Bytes, HeaderExtractor, HttpClient, HttpError};
use opentelemetry_otlp::{
    SpanExporter as OtlpExporter, WithExportConfig as _, WithHttpConfig as _,
};
use opentelemetry_sdk::Resource;
use opentelemetry_sdk::error::OTelSdkResult;
use opentelemetry_sdk::propagation::TraceContextPropagator;
use opentelemetry_sdk::resource::EnvResourceDetector;
use opentelemetry_sdk::trace::{
    BatchConfigBuilder, BatchSpanProcessor, SdkTracerProvider, Span as SdkSpan, SpanData,
    SpanExporter, SpanProcessor,
};
use tracing::{Span, Subscriber};
use tracing_opentelemetry::OpenTelemetrySpanExt as _;
use tracing_subscriber::Layer;
use tracing_subscriber::filter::{FilterFn, LevelFilter};
use tracing_subscriber::registry::LookupSpan;
use ureq::tls::{RootCerts, TlsConfig};

use crate::error::ServerError;

/// Spans that are held until the collector has taken them.
const MOST: usize = 4096;
/// Time for the collector to answer, its connection included.
const ANSWER: Duration = Duration::from_secs(10);
/// The longest answer that is read of it.
const ANSWER_BYTES: u64 = 64 << 10;
/// Time for what is held to be sent when the process ends.
const FLUSH: Duration = Duration::from_secs(5);

/// What became of the spans of this process.
static SPANS: Counts = Counts::new();

/// How many spans went where.
struct Counts {
    /// Those that the collector has taken.
    sent: AtomicU64,
    /// Those that it did not take.
    failed: AtomicU64,
    /// Those that found too many others waiting.
    dropped: AtomicU64,
}

impl Counts {
    const fn new() -> Counts {
        Counts { sent: AtomicU64::new(0), failed: AtomicU64::new(0), dropped: AtomicU64::new(0) }
    }
}

/// How many spans went where, by outcome.
pub(crate) fn counts() -> [(&'static str, u64); 3] {
    let Counts { sent, failed, dropped } = &SPANS;
    let counts = [("sent", sent), ("failed", failed), ("dropped", dropped)];
    counts.map(|(outcome, count)| (outcome, count.load(Relaxed)))
}

/// Sends the spans of this process to a collector. Dropped, it sends what it holds, within seconds, and
/// nothing after that.
///
/// What OpenTelemetry has environment variables for besides the endpoint is taken from these: headers
/// (`OTEL_EXPORTER_OTLP_HEADERS`), which traces are sampled (`OTEL_TRACES_SAMPLER`), attributes of the process
/// (`OTEL_RESOURCE_ATTRIBUTES`, `OTEL_SERVICE_NAME`).
#[derive(Debug)]
pub struct TraceExport {
    provider: SdkTracerProvider,
}

impl TraceExport {
    /// Starts the thread. `endpoint` is the collector's base URL, as `http://127.0.0.1:4318`; spans go to
    /// `/v1/traces` below it. Certificates of HTTPS are compared with those that the system trusts.
    ///
    /// # Errors
    /// [`ServerError::TraceEndpoint`]. Whether there is a collector is not looked at.
    pub fn start(endpoint: &str) -> Result<TraceExport, ServerError> {
        let unusable =
            |reason: String| ServerError::TraceEndpoint { endpoint: endpoint.to_owned(), reason };
        if !["http://", "https://"].iter().any(|scheme| endpoint.starts_with(scheme)) {
            return Err(unusable("it must begin with http:// or https://".to_owned()));
        }
        let exporter = OtlpExporter::builder()
            .with_http()
            .with_http_client(Client::new())
            .with_endpoint(format!("{}/v1/traces", endpoint.trim_end_matches('/')))
            .build()
            .map_err(|error| unusable(error.to_string()))?;
        let held = Arc::new(AtomicUsize::new(0));
        let exporter =
            Counted { exporter, held: Arc::clone(&held), failing: AtomicBool::new(false) };
        let config = BatchConfigBuilder::default().with_max_queue_size(MOST).build();
        let batches = BatchSpanProcessor::builder(exporter).with_batch_config(config).build();
        let provider = SdkTracerProvider::builder()
            .with_resource(resource())
            .with_span_processor(Bounded { batches, held })
            .build();
        Ok(TraceExport { provider })
    }

    /// Takes the spans of ruvllm's crates for the collector. Events are the log's.
    pub fn layer<S>(&self) -> impl Layer<S> + use<S>
    where
        S: Subscriber + for<'a> LookupSpan<'a>,
    {
        let ours = FilterFn::new(|meta| meta.is_span() && meta.target().starts_with("ruvllm"));
        tracing_opentelemetry::layer()
            .with_tracer(self.provider.tracer("ruvllm"))
            .with_location(false)
            .with_threads(false)
            .with_target(false)
            .with_tracked_inactivity(false)
            .with_context_activation(false)
            .with_filter(ours.with_max_level_hint(LevelFilter::INFO))
    }
}

impl Drop for TraceExport {
    fn drop(&mut self) {
        if let Err(error) = self.provider.shutdown_with_timeout(FLUSH) {
            tracing::warn!("not every trace was sent: {error}");
        }
    }
}

/// What the process is called, unless the environment says otherwise.
fn resource() -> Resource {
    let named = std::env::var("OTEL_SERVICE_NAME").ok().filter(|name| !name.is_empty());
    let ours = Resource::builder_empty()
        .with_service_name("ruvllm")
        .with_attribute(KeyValue::new("service.version", env!("CARGO_PKG_VERSION")))
        .with_detector(Box::new(EnvResourceDetector::new()));
    match named {
        Some(name) => ours.with_service_name(name),
        None => ours,
    }
    .build()
}

/// Lets the span of a request go on the trace that the client names, if it names one.
pub(crate) fn continue_trace(span: &Span, headers: &HeaderMap) {
    let headers = HeaderExtractor(headers);
    let trace = TraceContextPropagator::new().extract_with_context(&Context::new(), &headers);
    if trace.span().span_context().is_valid() {
        // It is refused where nobody collects spans.
        let _ = span.set_parent(trace);
    }
}

/// Notes why a text ended; the conventions want a list, which a span of `tracing` cannot have.
pub(crate) fn finish_reason(span: &Span, reason: &'static str) {
    let list = Value::Array(Array::String(vec![reason.into()]));
    span.set_attribute("gen_ai.response.finish_reasons", list);
}

/// Passes spans on while there is room.
#[derive(Debug)]
struct Bounded {
    batches: BatchSpanProcessor,
    held: Arc<AtomicUsize>,
}

impl SpanProcessor for Bounded {
    fn on_start(&self, span: &mut SdkSpan, context: &Context) {
        self.batches.on_start(span, context);
    }

    fn on_end(&self, span: SpanData) {
        if !span.span_context.is_sampled() {
            return;
        }
        let room = |held: usize| (held < MOST).then_some(held + 1);
        if self.held.fetch_update(Relaxed, Relaxed, room).is_ok() {
            self.batches.on_end(span);
        } else if SPANS.dropped.fetch_add(1, Relaxed) == 0 {
            tracing::warn!("spans are dropped, since the collector of traces does not keep up");
        }
    }

    fn force_flush(&self) -> OTelSdkResult {
        self.batches.force_flush()
    }

    fn shutdown_with_timeout(&self, timeout: Duration) -> OTelSdkResult {
        self.batches.shutdown_with_timeout(timeout)
    }

    fn set_resource(&mut self, resource: &Resource) {
        self.batches.set_resource(resource);
    }
}

/// Counts what is sent, and says when the collector begins and ceases to fail.
#[derive(Debug)]
struct Counted {
    exporter: OtlpExporter,
    held: Arc<AtomicUsize>,
    failing: AtomicBool,
}

impl SpanExporter for Counted {
    async fn export(&self, batch: Vec<SpanData>) -> OTelSdkResult {
        let count = batch.len();
        let done = self.exporter.export(batch).await;
        self.held.fetch_sub(count, Relaxed);
        let counter = if done.is_ok() { &SPANS.sent } else { &SPANS.failed };
        counter.fetch_add(count as u64, Relaxed);
        match (&done, self.failing.swap(done.is_err(), Relaxed)) {
            (Err(error), false) => tracing::warn!("traces are lost: {error}"),
            (Ok(()), true) => tracing::info!("traces arrive again"),
            _ => {}
        }
        done
    }

    fn shutdown_with_timeout(&self, timeout: Duration) -> OTelSdkResult {
        self.exporter.shutdown_with_timeout(timeout)
    }

    fn set_resource(&mut self, resource: &Resource) {
        self.exporter.set_resource(resource);
    }
}

/// A blocking client; the thread that sends does nothing else.
#[derive(Debug)]
struct Client(ureq::Agent);

impl Client {
    fn new() -> Client {
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let tls = TlsConfig::builder()
            .root_certs(RootCerts::PlatformVerifier)
            .unversioned_rustls_crypto_provider(provider)
            .build();
        let config = ureq::Agent::config_builder()
            .tls_config(tls)
            .timeout_global(Some(ANSWER))
            .http_status_as_error(false)
            .build();
        Client(config.into())
    }
}

#[async_trait]
impl HttpClient for Client {
    async fn send_bytes(&self, request: Request<Bytes>) -> Result<Response<Bytes>, HttpError> {
        let (head, body) = request.into_parts();
        let (head, body) = self.0.run(Request::from_parts(head, &body[..]))?.into_parts();
        let body = body.into_with_config().limit(ANSWER_BYTES).read_to_vec()?;
        Ok(Response::from_parts(head, body.into()))
    }
}
