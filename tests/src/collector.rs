//! A collector of OpenTelemetry traces on loopback: OTLP over HTTP, as protobuf.

use opentelemetry_proto::tonic::collector::trace::v1::ExportTraceServiceRequest;
use opentelemetry_proto::tonic::common::v1::any_value::Value;
use opentelemetry_proto::tonic::common::v1::{AnyValue, KeyValue};
use opentelemetry_proto::tonic::trace::v1::{Span, Status, span::SpanKind};
use prost::Message as _;
use std::collections::BTreeMap;
use std::io::{self, BufRead as _, BufReader, Read as _, Write as _};
use std::net::{TcpListener, TcpStream};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::Duration;

/// A span as it arrived.
#[derive(Clone, Debug, Default)]
pub struct CollectedSpan {
    /// The trace, in hexadecimal digits.
    pub trace: String,
    /// Its id, in hexadecimal digits.
    pub id: String,
    /// The id of its parent; empty where it has none.
    pub parent: String,
    /// Its name.
    pub name: String,
    /// Whether it is of a request to a server.
    pub is_server: bool,
    /// Whether its status is an error.
    pub is_error: bool,
    /// Begin and end, in nanoseconds since 1970.
    pub time: (u64, u64),
    /// Attributes, those of its process included, as text.
    pub attributes: BTreeMap<String, String>,
}

/// A collector that keeps what it is sent.
pub struct Collector {
    url: String,
    kept: Arc<Kept>,
}

#[derive(Default)]
struct Kept {
    sent: Mutex<Sent>,
    arrived: Condvar,
}

#[derive(Default)]
struct Sent {
    spans: Vec<CollectedSpan>,
    bytes: Vec<u8>,
}

impl Collector {
    /// Listens on a free port of loopback, until the process ends.
    ///
    /// # Errors
    /// What the system says.
    pub fn start() -> io::Result<Collector> {
        let listener = TcpListener::bind("127.0.0.1:0")?;
        let url = format!("http://{}", listener.local_addr()?);
        let kept = Arc::<Kept>::default();
        let keeps = Arc::clone(&kept);
        thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                let keeps = Arc::clone(&keeps);
                thread::spawn(move || serve(stream, &keeps));
            }
        });
        Ok(Collector { url, kept })
    }

    /// The base URL.
    pub fn url(&self) -> &str {
        &self.url
    }

    /// All spans that have arrived once `enough` of them have, or within a minute.
    ///
    /// # Panics
    /// After that minute.
    pub fn wait_for(&self, enough: impl Fn(&[CollectedSpan]) -> bool) -> Vec<CollectedSpan> {
        let waited = self.kept.arrived.wait_timeout_while(
            self.kept.sent(),
            Duration::from_secs(60),
            |sent| !enough(&sent.spans),
        );
        let (sent, timeout) = waited.unwrap_or_else(PoisonError::into_inner);
        assert!(!timeout.timed_out(), "what was waited for did not arrive: {:#?}", sent.spans);
        sent.spans.clone()
    }

    /// Whether these bytes are anywhere in what has arrived.
    pub fn has_received(&self, bytes: &[u8]) -> bool {
        self.kept.sent().bytes.windows(bytes.len()).any(|window| window == bytes)
    }
}

impl Kept {
    fn sent(&self) -> MutexGuard<'_, Sent> {
        self.sent.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Takes what comes over one connection until it ends.
fn serve(stream: TcpStream, kept: &Kept) -> io::Result<()> {
    let mut reader = BufReader::new(stream.try_clone()?);
    let mut stream = stream;
    loop {
        let (mut line, mut length, mut path) = (String::new(), 0, None);
        while reader.read_line(&mut line)? > 2 {
            path.get_or_insert_with(|| line.split(' ').nth(1).unwrap_or_default().to_owned());
            let (name, value) = line.split_once(':').unwrap_or_default();
            if name.eq_ignore_ascii_case("content-length") {
                length = value.trim().parse().map_err(io::Error::other)?;
            }
            line.clear();
        }
        let Some(path) = path else { return Ok(()) };
        let mut body = vec![0; length];
        reader.read_exact(&mut body)?;
        let status = if path == "/v1/traces" { "200 OK" } else { "404 Not Found" };
        if path == "/v1/traces" {
            let request = ExportTraceServiceRequest::decode(&body[..]).map_err(io::Error::other)?;
            let mut sent = kept.sent();
            sent.spans.extend(spans(request));
            sent.bytes.extend_from_slice(&body);
            kept.arrived.notify_all();
        }
        write!(stream, "HTTP/1.1 {status}\r\ncontent-length: 0\r\n\r\n")?;
    }
}

fn spans(request: ExportTraceServiceRequest) -> Vec<CollectedSpan> {
    let mut spans = Vec::new();
    for resource in request.resource_spans {
        let process = attributes(resource.resource.unwrap_or_default().attributes);
        for span in resource.scope_spans.into_iter().flat_map(|scope| scope.spans) {
            let is_error = span.status.as_ref().is_some_and(|s: &Status| s.code == 2);
            let Span { trace_id, span_id, parent_span_id, name, attributes: own, .. } = span;
            spans.push(CollectedSpan {
                trace: hex(&trace_id),
                id: hex(&span_id),
                parent: hex(&parent_span_id),
                name,
                is_server: span.kind == SpanKind::Server as i32,
                is_error,
                time: (span.start_time_unix_nano, span.end_time_unix_nano),
                attributes: process.clone().into_iter().chain(attributes(own)).collect(),
            });
        }
    }
    spans
}

fn attributes(list: Vec<KeyValue>) -> BTreeMap<String, String> {
    list.into_iter().map(|KeyValue { key, value, .. }| (key, text(value))).collect()
}

fn text(value: Option<AnyValue>) -> String {
    match value.and_then(|value| value.value) {
        Some(Value::StringValue(text)) => text,
        Some(Value::BoolValue(is)) => is.to_string(),
        Some(Value::IntValue(number)) => number.to_string(),
        Some(Value::DoubleValue(number)) => number.to_string(),
        Some(Value::ArrayValue(list)) => {
            list.values.into_iter().map(|value| text(Some(value))).collect::<Vec<_>>().join(",")
        }
        other => format!("{other:?}"),
    }
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}
