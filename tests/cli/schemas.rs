//! Schemas that try to take the server's memory, its time, or its threads from others.

use crate::program::ruvllm;
use crate::serving::Serving;
use serde_json::{Value, json};
use std::io::ErrorKind;
use std::thread;
use std::time::{Duration, Instant};

/// A request for an answer of this schema.
fn request(schema: &Value) -> String {
    json!({
        "messages": [{"role": "user", "content": "Once upon a time"}],
        "max_tokens": 8,
        "response_format": {"type": "json_schema", "json_schema": {"name": "x", "schema": schema}},
    })
    .to_string()
}

/// Schemas that are short for what they cost, or that no text can be.
fn hostile() -> Vec<(&'static str, Value)> {
    let divisors = |divisors: [u64; 4]| -> Vec<Value> {
        divisors.map(|p| json!({"type": "integer", "multipleOf": p})).into()
    };
    let optional = |n: usize| -> Value {
        let property = |i| (format!("p{i}"), json!({"type": "string"}));
        json!({"type": "object", "properties": (0..n).map(property).collect::<serde_json::Map<_, _>>()})
    };
    let alternatives = |n: usize| -> Value {
        let one = |i| json!({"type": "object", "properties": {(format!("k{i}")): {"type": "integer"}}, "required": [format!("k{i}")]});
        json!({"anyOf": (0..n).map(one).collect::<Vec<_>>()})
    };
    vec![
        ("a divisor", json!({"type": "integer", "multipleOf": 999_983})),
        ("a greater divisor", json!({"type": "integer", "multipleOf": 99_999_989})),
        (
            "four divisors of a member",
            json!({"type": "object", "properties": {"x": {"allOf": divisors([9_999_991, 9_999_973, 9_999_971, 9_999_943])}}, "required": ["x"]}),
        ),
        (
            "four divisors",
            json!({"allOf": divisors([4_294_967_291, 4_294_967_279, 4_294_967_231, 4_294_967_197])}),
        ),
        ("itself", json!({"$ref": "#"})),
        ("optional members", optional(5000)),
        ("fewer of them", optional(500)),
        ("alternatives", alternatives(3000)),
    ]
}

/// The most memory that the process has had, in MiB.
#[cfg(target_os = "linux")]
fn peak_memory(process: u32) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{process}/status")).unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).unwrap();
    line.trim().trim_end_matches(" kB").parse::<u64>().unwrap() >> 10
}

#[test]
fn a_schema_that_costs_too_much_is_refused_with_what_was_too_large() {
    let server = Serving::start(&["--kernels", "native"]);
    #[cfg(target_os = "linux")]
    let before = peak_memory(server.child.id());
    for (name, schema) in hostile() {
        let begun = Instant::now();
        let answer = server.post("/v1/chat/completions", &request(&schema));
        eprintln!("{name}: {:?} {answer}", begun.elapsed());
        assert!(answer.starts_with("HTTP/1.1 400"), "{name}: {answer}");
        let codes = ["schema_too_complex", "invalid_schema"];
        assert!(codes.iter().any(|code| answer.contains(code)), "{name}: {answer}");
        assert!(answer.contains("response_format"), "{name}: {answer}");
        assert!(answer.len() < 3000, "{name}: {answer}");
        // The limit on trial is two seconds, for each of two processes.
        assert!(begun.elapsed() < Duration::from_secs(10), "{name}: {:?}", begun.elapsed());
    }
    #[cfg(target_os = "linux")]
    {
        let grown = peak_memory(server.child.id()) - before;
        assert!(grown < 100, "{grown} MiB");
    }
    let schema =
        json!({"type": "object", "properties": {"a": {"type": "integer", "multipleOf": 7}}});
    let answer = server.post("/v1/chat/completions", &request(&schema));
    assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
}

/// A new API key: the client's secret and the server's entry.
fn key(name: &str) -> (String, String) {
    let made = ruvllm(&["serve", "--new-key", name]);
    let (secret, entry) = made.text().split_once('\n').unwrap();
    (secret.to_owned(), entry.trim().to_owned())
}

#[test]
fn costly_schemas_of_one_client_hold_up_no_other_request() {
    let [(hostile, first), (honest, second)] = ["hostile", "honest"].map(key);
    let server =
        Serving::start(&["--kernels", "native", "--api-key", &first, "--api-key", &second]);
    let costly = request(&json!({"type": "integer", "multipleOf": 99_999_989}));
    let small = request(&json!({"type": "object", "properties": {"a": {"type": "integer"}}}));
    // More than there are helper threads.
    let bearer = format!("authorization: Bearer {hostile}\r\n");
    let waiting: Vec<_> =
        (0..24).map(|_| server.send(&bearer, "/v1/chat/completions", &costly)).collect();
    thread::sleep(Duration::from_millis(300));
    let ask = |key: &str, route: &str, body: &str| loop {
        let answer = server.post_as(key, route, body);
        // A process for grammars that does not get ready, on a busy machine, is no answer.
        if !answer.starts_with("HTTP/1.1 503") {
            assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
            return;
        }
    };
    ask(&honest, "/tokenize", r#"{"content": "Once upon a time"}"#);
    ask(&honest, "/v1/completions", r#"{"prompt": "Once upon a time", "max_tokens": 2}"#);
    // There is a second process for grammars, which a client with one in work does not get.
    ask(&honest, "/v1/chat/completions", &small);
    // Two seconds of work each: most of them have not had a turn by now.
    let silent = waiting.iter().filter(|stream| {
        stream.set_nonblocking(true).unwrap();
        stream.peek(&mut [0]).is_err_and(|error| error.kind() == ErrorKind::WouldBlock)
    });
    let silent = silent.count();
    assert!(silent > 12, "{silent} of 24 wait");
    // Nobody waits for them any more: the first ends soon, and those behind it never begin.
    drop(waiting);
    let begun = Instant::now();
    ask(&hostile, "/v1/chat/completions", &small);
    assert!(begun.elapsed() < Duration::from_secs(15), "{:?}", begun.elapsed());
}
