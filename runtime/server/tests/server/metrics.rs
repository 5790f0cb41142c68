//! What Prometheus is told.

use std::collections::{HashMap, HashSet};
use std::io::Write as _;
use std::process::{Command, Stdio};

use serde_json::json;

use crate::admin::Place;
use crate::common::{Service, soon};

fn ask(service: &Service) {
    let body = json!({"prompt": "Once upon a time", "max_tokens": 20, "ignore_eos": true});
    service.ok("/v1/completions", &body);
    service.get("/v1/models/none");
    // The scheduler tells its figures when the step is over, which may be after the answer.
    let finished = "ruvllm_sequences_total{outcome=\"finished\"}";
    soon("the sequence is counted", || service.metric(finished) == 1.0);
}

#[test]
fn what_happened_is_counted() {
    let service = Service::start(&[]);
    ask(&service);
    let figures = [
        (
            "ruvllm_http_requests_total{path=\"/v1/completions\",method=\"POST\",status=\"200\"}",
            1.0,
        ),
        (
            "ruvllm_http_requests_total{path=\"/v1/models/{*id}\",method=\"GET\",status=\"404\"}",
            1.0,
        ),
        ("ruvllm_tokens_total{kind=\"generated\"}", 20.0),
        ("ruvllm_time_to_first_token_seconds_count", 1.0),
        ("ruvllm_inter_token_seconds_count", 19.0),
        ("ruvllm_sequences_total{outcome=\"finished\"}", 1.0),
    ];
    for (sample, value) in figures {
        assert_eq!(service.metric(sample), value, "{sample}\n{}", service.get("/metrics").text);
    }
    let text = service.get("/metrics").text;
    let calls =
        text.lines().find(|line| line.starts_with("ruvllm_kernel_calls_total{op=\"rmsnorm"));
    let calls = calls.expect("a line for each kernel");
    assert!(!calls.ends_with(" 0") && calls.contains("kernel=\"native:"), "{calls}");
}

#[test]
fn the_format_is_prometheus() {
    let place = Place::new();
    let service = place.serve(&[]).service;
    ask(&service);
    let answer = service.get("/metrics");
    assert!(answer.header("content-type").unwrap().starts_with("text/plain; version=0.0.4"));
    check(&answer.text);
    let promtool = Command::new("promtool")
        .args(["check", "metrics"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn();
    let Ok(mut promtool) = promtool else {
        eprintln!("skipped: there is no promtool on the path (Debian package prometheus)");
        return;
    };
    promtool.stdin.take().unwrap().write_all(answer.text.as_bytes()).unwrap();
    let said = promtool.wait_with_output().unwrap();
    let complaints = String::from_utf8_lossy(&said.stderr);
    assert!(said.status.success() && complaints.is_empty(), "{complaints}");
}

/// What `promtool` would find, in the main.
fn check(text: &str) {
    let (mut types, mut seen) = (HashMap::new(), HashSet::new());
    let mut help = None;
    for line in text.lines() {
        if let Some(rest) = line.strip_prefix("# HELP ") {
            help = rest.split_once(' ').map(|(name, text)| {
                assert!(!text.is_empty(), "{line}");
                name
            });
        } else if let Some(rest) = line.strip_prefix("# TYPE ") {
            let (name, kind) = rest.split_once(' ').unwrap();
            assert_eq!(help, Some(name), "{line}");
            assert!(types.insert(name, kind).is_none(), "{line}");
            assert_eq!(name.ends_with("_total"), kind == "counter", "{line}");
        } else {
            let (sample, value) = line.rsplit_once(' ').unwrap();
            value.parse::<f64>().unwrap();
            assert!(seen.insert(sample), "{line}");
            let name = sample.split('{').next().unwrap();
            let base = ["_bucket", "_sum", "_count"].iter().find_map(|end| name.strip_suffix(end));
            let known = types.contains_key(name)
                || base.is_some_and(|base| types.get(base) == Some(&"histogram"));
            assert!(known && name.starts_with("ruvllm_"), "{line}");
        }
    }
}
