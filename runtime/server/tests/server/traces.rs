//! What a collector of traces sees.

use std::net::TcpListener;
use std::sync::LazyLock;
use std::time::{Duration, Instant};

use ruvllm_host::{Host, HostConfig, Supervisor, SupervisorConfig};
use ruvllm_server::TraceExport;
use ruvllm_tests::collector::{CollectedSpan, Collector};
use ruvllm_tests::{PackBuilder, wat};
use serde_json::{Value, json};
use tracing_subscriber::layer::SubscriberExt as _;
use tracing_subscriber::util::SubscriberInitExt as _;

use crate::common::{Service, model, read};

/// The collector of this process; spans of other tests arrive there, too.
static COLLECTOR: LazyLock<Collector> = LazyLock::new(|| {
    let collector = Collector::start().expect("a collector");
    let export = TraceExport::start(collector.url()).expect("an address");
    tracing_subscriber::registry().with(export.layer()).init();
    // It lives as long as the process does.
    std::mem::forget(export);
    collector
});

const PARENT: &str = "00f067aa0ba902b7";

/// Asks within a trace of its own, and gives the spans of that trace once its request has ended.
fn traced(service: &Service, trace: u128, path: &str, body: &Value) -> (u16, Vec<CollectedSpan>) {
    let trace = format!("{trace:032x}");
    let collector = &*COLLECTOR;
    let request = service.agent.post(service.url(path)).content_type("application/json");
    let request = request.header("traceparent", format!("00-{trace}-{PARENT}-01"));
    let answer = read(request.header("x-request-id", "mine").send(body.to_string()).unwrap());
    let ours = |span: &&CollectedSpan| span.trace == trace;
    let spans = collector.wait_for(|spans| spans.iter().filter(ours).any(|s| s.parent == PARENT));
    (answer.status, spans.iter().filter(ours).cloned().collect())
}

fn find<'a>(spans: &'a [CollectedSpan], name: &str) -> &'a CollectedSpan {
    let found = spans.iter().find(|span| span.name == name);
    found.unwrap_or_else(|| panic!("no span {name} in {spans:#?}"))
}

fn assert_attributes(span: &CollectedSpan, expected: &[(&str, &str)]) {
    for (name, value) in expected {
        let found = span.attributes.get(*name).map(String::as_str);
        assert_eq!(found, Some(*value), "{name} of {span:#?}");
    }
}

#[test]
fn a_trace_of_a_client_goes_on_through_request_sequence_and_phases() {
    let service = Service::start(&[]);
    let body = json!({
        "prompt": "Once upon a secret", "max_tokens": 7, "n": 2, "ignore_eos": true,
        "temperature": 0.5, "stream": true,
    });
    let (status, spans) = traced(&service, 0xa1, "/v1/completions", &body);
    assert_eq!((status, spans.len()), (200, 9), "{spans:#?}");
    let request = find(&spans, "POST /v1/completions");
    assert!(request.is_server && !request.is_error);
    let of_request = [
        ("service.name", "ruvllm"),
        ("http.request.method", "POST"),
        ("http.route", "/v1/completions"),
        ("http.response.status_code", "200"),
        ("ruvllm.request", "mine"),
    ];
    assert_attributes(request, &of_request);
    let name = format!("text_completion {}", model());
    let sequences: Vec<_> = spans.iter().filter(|span| span.name == name).collect();
    assert_eq!(sequences.len(), 2);
    for sequence in sequences {
        assert_eq!(sequence.parent, request.id);
        assert!(sequence.time.0 >= request.time.0 && sequence.time.1 <= request.time.1);
        let expected = [
            ("gen_ai.operation.name", "text_completion"),
            ("gen_ai.provider.name", "ruvllm"),
            ("gen_ai.request.model", model()),
            ("gen_ai.request.max_tokens", "7"),
            ("gen_ai.request.temperature", "0.5"),
            ("gen_ai.usage.output_tokens", "7"),
            ("gen_ai.response.finish_reasons", "max_tokens"),
        ];
        assert_attributes(sequence, &expected);
        let prompt_tokens: usize =
            sequence.attributes["gen_ai.usage.input_tokens"].parse().unwrap();
        assert!(prompt_tokens > 3 && prompt_tokens < 20, "{sequence:#?}");
        assert!(sequence.attributes.contains_key("gen_ai.usage.cache_read.input_tokens"));
        let phases: Vec<_> = spans.iter().filter(|span| span.parent == sequence.id).collect();
        let phases = ["queue", "prompt", "generation"]
            .map(|name| *phases.iter().find(|span| span.name == name).expect(name));
        assert!(phases.windows(2).all(|pair| pair[0].time.1 <= pair[1].time.1), "{phases:#?}");
        assert!(phases[2].time.1 <= sequence.time.1 && phases[0].time.0 >= sequence.time.0);
    }
    assert!(!COLLECTOR.has_received(b"secret"));
}

#[test]
fn prompts_are_in_traces_where_the_operator_logs_them() {
    let service = Service::start(&["--log-prompts"]);
    let body = json!({"input": "A mystery"});
    let (_, spans) = traced(&service, 0xa2, "/v1/embeddings", &body);
    let request = find(&spans, "POST /v1/embeddings");
    assert_attributes(request, &[("ruvllm.prompt", "\"A mystery\"")]);
    let sequence = find(&spans, &format!("embeddings {}", model()));
    assert_eq!(sequence.parent, request.id);
    assert_eq!(sequence.attributes.get("gen_ai.request.temperature"), None);
}

#[test]
fn traces_tell_what_went_wrong() {
    let service = Service::start(&["--request-timeout", "0.1"]);
    let body = json!({"prompt": "Once", "max_tokens": 450, "n": 16, "ignore_eos": true});
    let (status, spans) = traced(&service, 0xa3, "/v1/completions", &body);
    assert_eq!(status, 504);
    let request = find(&spans, "POST /v1/completions");
    assert!(request.is_error);
    assert_attributes(request, &[("error.type", "timeout"), ("http.response.status_code", "504")]);
    let (status, spans) = traced(&service, 0xa4, "/v1/completions", &json!({"prompt": []}));
    assert_eq!((status, spans.len()), (400, 3));
    let sequence = find(&spans, &format!("text_completion {}", model()));
    assert!(sequence.is_error && !find(&spans, "POST /v1/completions").is_error);
}

#[test]
fn a_client_that_wants_no_trace_has_none_and_probes_never_have() {
    let collector = &*COLLECTOR;
    let service = Service::start(&[]);
    let unsampled = format!("00-{:032x}-{PARENT}-00", 0xa5);
    let request = service.agent.get(service.url("/v1/models")).header("traceparent", unsampled);
    assert_eq!(read(request.call().unwrap()).status, 200);
    let probe = format!("00-{:032x}-{PARENT}-01", 0xa6);
    let request = service.agent.get(service.url("/health")).header("traceparent", probe);
    assert_eq!(read(request.call().unwrap()).status, 200);
    // What comes later has arrived.
    traced(&service, 0xa7, "/tokenize", &json!({"content": "a"}));
    let spans = collector.wait_for(|_| true);
    let unwanted = [0xa5, 0xa6].map(|trace| format!("{trace:032x}"));
    assert!(spans.iter().all(|span| !unwanted.contains(&span.trace)));
}

#[test]
fn changes_of_kernels_are_traces_of_their_own() {
    let collector = &*COLLECTOR;
    let dir = tempfile::tempdir().unwrap();
    let name = "traced-kernels".parse().unwrap();
    let pack = PackBuilder::new()
        .kernel("rmsnorm_f32", wat::rmsnorm_f32(&wat::Module::default()))
        .manifest(|manifest| manifest.name = name)
        .build();
    let host = Host::new(HostConfig::default()).unwrap();
    let config = SupervisorConfig::new(dir.path().join("swap"), pack.policy());
    let supervisor = Supervisor::open(host, config).unwrap();
    let staged = supervisor.stage(pack.read().unwrap(), "alice").unwrap();
    let activated = supervisor.activate(staged.id, "alice").unwrap();
    let back = supervisor.roll_back(None, "bob").unwrap();
    pack.write("extra.txt", b"hello");
    let refused = supervisor.stage(pack.read().unwrap(), "mallory").unwrap_err();
    let by = |operator: &str, spans: &[CollectedSpan]| -> Vec<CollectedSpan> {
        let by = |span: &&CollectedSpan| {
            span.attributes.get("ruvllm.operator").is_some_and(|o| o == operator)
        };
        spans.iter().filter(by).cloned().collect()
    };
    let spans = collector.wait_for(|spans| !by("mallory", spans).is_empty());
    let by_alice = by("alice", &spans);
    let digest = staged.pack.digest.as_str();
    let of_pack = [("ruvllm.pack.name", "traced-kernels"), ("ruvllm.pack.digest", digest)];
    assert_attributes(find(&by_alice, "kernels stage"), &of_pack);
    let activation = find(&by_alice, "kernels activate");
    assert_attributes(activation, &of_pack);
    assert_attributes(activation, &[("ruvllm.generation", &activated.generation.to_string())]);
    let by_bob = by("bob", &spans);
    let generation = back.generation.to_string();
    assert_attributes(find(&by_bob, "kernels roll back"), &[("ruvllm.generation", &generation)]);
    let by_mallory = by("mallory", &spans);
    let stage = find(&by_mallory, "kernels stage");
    assert!(stage.is_error);
    assert_attributes(stage, &[("error.type", refused.code())]);
}

#[test]
fn a_collector_that_never_answers_holds_up_nothing() {
    // Connections are taken by the system; nobody reads from them.
    let silent = TcpListener::bind("127.0.0.1:0").unwrap();
    let export = TraceExport::start(&format!("http://{}", silent.local_addr().unwrap())).unwrap();
    let subscriber = tracing_subscriber::registry().with(export.layer());
    let begun = Instant::now();
    tracing::subscriber::with_default(subscriber, || {
        for _ in 0..100_000 {
            drop(tracing::info_span!(target: "ruvllm::test", "span"));
        }
    });
    assert!(begun.elapsed() < Duration::from_secs(5), "{:?}", begun.elapsed());
    let service = Service::start(&[]);
    assert!(service.metric("ruvllm_trace_spans_total{outcome=\"dropped\"}") > 90_000.0);
    let begun = Instant::now();
    drop(export);
    assert!(begun.elapsed() < Duration::from_secs(8), "{:?}", begun.elapsed());
}

#[test]
fn an_address_without_a_scheme_is_refused() {
    for endpoint in ["collector:4318", "", "http://", "http://a b"] {
        let error = TraceExport::start(endpoint).map(drop).unwrap_err();
        assert_eq!(error.code(), "trace_endpoint", "{endpoint}: {error}");
    }
}
