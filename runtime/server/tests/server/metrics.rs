//! What Prometheus is told.

use std::collections::{HashMap, HashSet};
use std::io::Write as _;
use std::process::{Command, Stdio};
use std::sync::Arc;

use ruvllm_abi::DType;
use ruvllm_engine::{Engine, EngineConfig};
use ruvllm_host::{
    EmbedProvider, Host, HostConfig, PreparedEmbed, Provider, ProviderPack, Team, Version,
};
use ruvllm_native::Isa;
use ruvllm_native::gemm::Weights;
use ruvllm_native::quant::dequantize_row;
use serde_json::{Value, json};

use ruvllm_tests::PackBuilder;
use ruvllm_tests::wat::{but_for, rmsnorm_f32};

use crate::admin::Place;
use crate::common::{Service, demo, engine, repository, served, soon};

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
        ("ruvllm_step_sequences_bucket{le=\"1\"}", 20.0),
        ("ruvllm_step_sequences_sum", 20.0),
        ("ruvllm_step_tokens_bucket{le=\"1\"}", 19.0),
        ("ruvllm_step_tokens_count", 20.0),
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

/// A server with a kernel that does something before a call of the demo model, and what it told after its first request.
fn served_with_failing(instructions: &str) -> (Service, String) {
    let engine = engine();
    let failing = but_for(demo().config().dim as u32, instructions);
    let pack = PackBuilder::new().kernel("rmsnorm_f32", rmsnorm_f32(&failing)).build();
    engine.host().install(pack.verify().unwrap()).unwrap();
    let service = Service::of(served(engine), &[]);
    ask(&service);
    let text = service.get("/metrics").text;
    check(&text);
    (service, text)
}

/// A figure of that kernel.
fn of_failing(service: &Service, name: &str, more: &str) -> f64 {
    let labels = "op=\"rmsnorm(f32,f32)->f32\",kernel=\"rmsnorm_f32\",pack=\"test-kernels\",\
                  pack_version=\"1.0.0\",generation=\"2\"";
    service.metric(&format!("ruvllm_kernel_{name}_total{{{labels}{more}}}"))
}

#[test]
fn a_status_is_counted_as_what_went_wrong_and_as_no_trap() {
    let (service, text) = served_with_failing("(return (i32.const 77))");
    let figure = |name: &str, more: &str| of_failing(&service, name, more);
    // Until it was out of service.
    assert_eq!(figure("failures", ",code=\"kernel_status\""), 3.0, "{text}");
    assert_eq!((figure("fallbacks", ""), figure("traps", "")), (3.0, 0.0), "{text}");
    assert!(!text.contains("ruvllm_kernel_traps_by_kind_total{"), "{text}");
}

#[test]
fn traps_are_counted_by_kind_and_team_operations_by_who_computes_them() {
    let (service, text) = served_with_failing("(drop (i64.load (i32.const 0x7fffffff)))");
    let figure = |name: &str, more: &str| of_failing(&service, name, more);
    let trapped = figure("traps_by_kind", ",kind=\"out_of_bounds\"");
    // Until it was out of service.
    assert_eq!((trapped, figure("traps", ""), figure("fallbacks", "")), (3.0, 3.0, 3.0), "{text}");
    assert_eq!(figure("failures", ",code=\"kernel_trap\""), 3.0, "{text}");
    let kinds = text.lines().filter(|line| line.starts_with("ruvllm_kernel_traps_by_kind_total{"));
    assert_eq!(kinds.count(), 1, "{text}");
    for op in ["matmul", "attention", "embed"] {
        let begin = format!("ruvllm_kernel_calls_total{{op=\"{op}(");
        let mut counted = text.lines().filter(|line| line.starts_with(&begin));
        let by = "kernel=\"native:";
        let by = |line: &str| {
            line.contains(by) && line.contains("generation=\"1\"} ") && !line.ends_with(" 0")
        };
        assert!(counted.any(by), "{op}: {text}");
    }
}

/// Gathers rows as the host's own code does.
struct Gathers;

impl EmbedProvider for Gathers {
    fn prepared_bytes(&self, _: &Weights<'_>, _: Isa) -> Option<usize> {
        Some(0)
    }

    fn prepare(&self, _: &Weights<'_>, _: Team<'_>) -> Result<Box<dyn PreparedEmbed>, String> {
        Ok(Box::new(Gathers))
    }
}

impl PreparedEmbed for Gathers {
    fn run(
        &self,
        table: &Weights<'_>,
        tokens: &[u32],
        y: &mut [f32],
        _: Team<'_>,
    ) -> Result<(), String> {
        let mut rows = tokens.iter().zip(y.chunks_exact_mut(table.cols()));
        rows.try_for_each(|(&token, y)| dequantize_row(table.dtype(), table.row(token as usize), y))
            .map_err(|error| error.to_string())
    }
}

#[test]
fn a_team_operation_is_counted_for_each_provider_and_generation() {
    let engine = engine();
    let host = engine.host().clone();
    let service = Service::of(served(engine), &[]);
    ask(&service);
    for version in 1..=2 {
        let pack = ProviderPack::new("tables", Version::new(version, 0, 0));
        let pack = pack.with("gathers", Provider::Embed(DType::Q8_0, Arc::new(Gathers)));
        let id = host.stage_providers(&pack).unwrap().id;
        assert_eq!(host.activate(id).unwrap().generation, version + 1);
        let body = json!({"prompt": "Once upon a time", "max_tokens": 20, "ignore_eos": true});
        service.ok("/v1/completions", &body);
        let sample = format!(
            "ruvllm_kernel_calls_total{{op=\"embed(u32,q8_0)->f32\",kernel=\"gathers\",pack=\"tables\",\
             pack_version=\"{version}.0.0\",generation=\"{}\"}}",
            version + 1
        );
        soon("the steps are counted", || service.metric(&sample) >= 20.0);
    }
    let text = service.get("/metrics").text;
    check(&text);
    let lines =
        text.lines().filter(|line| line.starts_with("ruvllm_kernel_calls_total{op=\"embed("));
    let counted: Vec<&str> = lines.filter(|line| !line.ends_with(" 0")).collect();
    assert_eq!(counted.len(), 3, "{counted:#?}");
}

#[test]
fn memory_is_told_by_owner_and_by_tier() {
    let service = Service::start(&[]);
    // Long enough for whole blocks, which are kept for requests that begin alike.
    let body = json!({"prompt": "Once upon a time", "max_tokens": 90, "ignore_eos": true});
    service.ok("/v1/completions", &body);
    let metric = |name: &str| service.metric(name);
    let held = |line: &&str| line.starts_with("ruvllm_memory_held_bytes{");
    let text = service.get("/metrics").text;
    let held = text.lines().filter(held).map(|line| line.rsplit(' ').next().unwrap());
    let held: f64 = held.map(|bytes| bytes.parse::<f64>().unwrap()).sum();
    assert!(held > 0.0 && held == metric("ruvllm_memory_used_bytes"), "{text}");
    let pages = metric("ruvllm_memory_held_bytes{use=\"kv\",owner=\"kv cache\"}");
    let tiers: f64 = ["f32", "f16", "q8_0", "q4_0"]
        .map(|codec| metric(&format!("ruvllm_kv_bytes{{codec=\"{codec}\"}}")))
        .iter()
        .sum();
    assert!(0.0 < tiers && tiers <= pages, "{text}");
    for name in ["migrations_total", "migrations_ahead_total"] {
        assert!(text.contains(&format!("\nruvllm_kv_{name} ")), "{name}");
    }
    assert!(metric("ruvllm_kv_blocks{state=\"cached\"}") > 0.0, "{text}");
}

#[test]
fn blocks_that_are_packed_early_to_make_room_are_counted() {
    let kv = "f16:500+q8_0".parse().unwrap();
    let config = EngineConfig { threads: 1, kv, memory: Some(32 << 20), ..EngineConfig::default() };
    let engine = Engine::new(demo(), Host::new(HostConfig::default()).unwrap(), config).unwrap();
    let service = Service::of(served(engine.clone()), &[]);
    let packed = "ruvllm_kv_packed_early_total";
    assert_eq!(service.metric(packed), 0.0);
    // What is kept of texts that have nothing in common gives way to the next. What was written behind a prompt is
    // packed; what lies right before its end would be of no use so, and is given up.
    let mut texts = 0;
    while engine.memory().kv.packed_early == 0 {
        assert!(texts < 50, "there is room for all: {:?}", engine.memory());
        let prompt = format!("{texts} cats and dogs ");
        let body = json!({"prompt": prompt, "max_tokens": 300, "ignore_eos": true});
        service.ok("/v1/completions", &body);
        texts += 1;
    }
    let counted = || service.metric(packed) == engine.memory().kv.packed_early as f64;
    soon("they are counted", counted);
    assert!(service.metric("ruvllm_kv_migrations_total") >= service.metric(packed));
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

/// Names of metrics in a query, with the labels that stand in braces behind them.
fn asked(query: &str) -> Vec<(String, Vec<String>)> {
    let mut found = Vec::new();
    let mut rest = query;
    while let Some(at) = rest.find("ruvllm_") {
        rest = &rest[at..];
        let end = rest.find(|c: char| !(c.is_ascii_lowercase() || c == '_')).unwrap_or(rest.len());
        let (name, behind) = rest.split_at(end);
        let braces = behind.strip_prefix('{').and_then(|behind| behind.split('}').next());
        let labels = braces.unwrap_or_default().split(", ").filter(|label| !label.is_empty());
        let labels = labels.map(|label| label.split(['=', '!']).next().unwrap().to_owned());
        found.push((name.to_owned(), labels.collect()));
        rest = behind;
    }
    found
}

/// Labels that a query groups by.
fn grouped(query: &str) -> Vec<&str> {
    let groups = query.split(" by (").skip(1).filter_map(|rest| rest.split(')').next());
    groups.flat_map(|labels| labels.split(", ")).collect()
}

#[test]
fn the_dashboard_for_grafana_asks_for_metrics_and_labels_that_are_there() {
    let place = Place::new();
    let console = place.serve(&[]);
    ask(&console.service);
    let text = console.service.get("/metrics").text;
    let samples: Vec<&str> = text.lines().filter(|line| !line.starts_with('#')).collect();
    // What Prometheus adds.
    let added = ["instance", "job"];
    let has = |name: &str, label: &str| {
        let of =
            |line: &&&str| line.strip_prefix(name).is_some_and(|rest| rest.starts_with(['{', ' ']));
        let mut of = samples.iter().filter(of).peekable();
        assert!(of.peek().is_some(), "no metric {name}");
        added.contains(&label) || of.any(|line| line.contains(&format!("{label}=\"")))
    };
    let file = repository().join("runtime/server/deploy/grafana.json");
    let board: Value = serde_json::from_str(&std::fs::read_to_string(file).unwrap()).unwrap();
    let panels = board["panels"].as_array().unwrap();
    let mut queries = 0;
    for panel in panels {
        let targets = panel["targets"].as_array().into_iter().flatten();
        for query in targets.map(|target| target["expr"].as_str().unwrap()) {
            let metrics = asked(query);
            assert!(!metrics.is_empty(), "{query}");
            for (name, labels) in &metrics {
                assert!(labels.contains(&"instance".to_owned()), "of any server: {query}");
                let by = grouped(query);
                for label in labels.iter().map(String::as_str).chain(by) {
                    assert!(has(name, label), "{name} has no label {label}: {query}");
                }
            }
            queries += 1;
        }
    }
    assert!(queries > 30, "{queries}");
    for variable in board["templating"]["list"].as_array().unwrap() {
        for (name, _) in asked(variable["query"].as_str().unwrap()) {
            assert!(has(&name, "instance"));
        }
    }
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
