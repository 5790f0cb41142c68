//! What is refused, and how.

use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::TcpStream;

use ruvllm_server::{ApiKey, Server};
use serde_json::json;

use crate::common::{Service, engine, options, read, soon};

#[test]
fn a_key_that_a_body_has_twice_is_refused() {
    let service = Service::start(&[]);
    for body in [
        r#"{"prompt": "a", "max_tokens": 1, "max_tokens": 2}"#,
        r#"{"prompt": "a", "response_format": {"type": "text", "type": "json_object"}}"#,
    ] {
        let answer = service.post_text("/v1/completions", body);
        answer.refused(400, None, "invalid_json");
    }
}

#[test]
fn every_bad_parameter_is_named() {
    let service = Service::start(&["--max-tokens", "100", "--max-choices", "4"]);
    for (field, value, param, code) in [
        ("temperature", json!(3), "temperature", "invalid_value"),
        ("temperature", json!("hot"), "temperature", "invalid_type"),
        ("top_p", json!(-1), "top_p", "invalid_value"),
        ("presence_penalty", json!(5), "presence_penalty", "invalid_value"),
        ("max_tokens", json!(101), "max_tokens", "invalid_value"),
        ("max_tokens", json!(-1), "max_tokens", "invalid_type"),
        ("n", json!(0), "n", "invalid_value"),
        ("n", json!(5), "n", "invalid_value"),
        ("stop", json!([1]), "stop[0]", "invalid_type"),
        ("logit_bias", json!({"x": 1}), "logit_bias", "invalid_value"),
        ("logit_bias", json!({"5": 1000}), "logit_bias", "invalid_value"),
        ("logprobs", json!(21), "logprobs", "invalid_value"),
        ("prompt", json!(null), "prompt", "missing_required_parameter"),
        ("prompt", json!([["a"]]), "prompt[0][0]", "invalid_type"),
        ("prompt", json!([[1], [99999999]]), "prompt[1]", "invalid_value"),
        ("prompt", json!([]), "prompt", "prompt_empty"),
        ("stream", json!("yes"), "stream", "invalid_type"),
        ("echo", json!("yes"), "echo", "invalid_type"),
        ("best_of", json!(2), "best_of", "unsupported_parameter"),
        ("suffix", json!("end"), "suffix", "unknown_parameter"),
        ("temprature", json!(0), "temprature", "unknown_parameter"),
    ] {
        let mut body = json!({"prompt": "a", "max_tokens": 1});
        body[field] = value;
        service.post("/v1/completions", &body).refused(400, Some(param), code);
    }
    for (field, value, param, code) in [
        ("messages", json!([]), "messages", "invalid_value"),
        ("messages", json!([{"role": 1}]), "messages[0].role", "invalid_type"),
        (
            "messages",
            json!([{"role": "user"}]),
            "messages[0].content",
            "missing_required_parameter",
        ),
        (
            "messages",
            json!([{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x"}}]}]),
            "messages[0].content[0]",
            "invalid_value",
        ),
        (
            "messages",
            json!([{"role": "user", "content": "a", "audio": {"id": 1}}]),
            "messages[0].audio",
            "unknown_parameter",
        ),
        ("top_logprobs", json!(2), "top_logprobs", "invalid_value"),
        ("reasoning_effort", json!("high"), "reasoning_effort", "unknown_parameter"),
        ("echo", json!(true), "echo", "unsupported_parameter"),
        ("modalities", json!(["audio"]), "modalities", "unsupported_parameter"),
        ("response_format", json!({"type": "xml"}), "response_format.type", "invalid_value"),
        ("tools", json!([{"type": "retrieval"}]), "tools[0].type", "invalid_value"),
    ] {
        let mut body = json!({"messages": [{"role": "user", "content": "a"}], "max_tokens": 1});
        body[field] = value;
        service.post("/v1/chat/completions", &body).refused(400, Some(param), code);
    }
    // Of other types altogether.
    for (field, value) in [
        ("response_format", json!("json")),
        ("response_format", json!({"type": "json_schema", "json_schema": "x"})),
        ("tool_choice", json!([1])),
        ("tools", json!(["f"])),
        ("messages", json!("Hello")),
        ("messages", json!([{"role": "assistant", "tool_calls": ["f"]}])),
    ] {
        let mut body = json!({"messages": [{"role": "user", "content": "a"}], "max_tokens": 1});
        body[field] = value;
        assert_eq!(service.post("/v1/chat/completions", &body).status, 400, "{body}");
    }
    let body = json!({"prompt": "a", "max_tokens": 1, "stream": true, "stream_options": "usage"});
    assert_eq!(service.post("/v1/completions", &body).status, 200);
    let body = json!({"input": "a", "dimensions": 5});
    service.post("/v1/embeddings", &body).refused(400, Some("dimensions"), "unsupported_parameter");
    // All that there are.
    let body = json!({"input": "a", "dimensions": 256});
    let vector = service.ok("/v1/embeddings", &body)["data"][0]["embedding"].clone();
    assert_eq!(vector.as_array().unwrap().len(), 256);
}

#[test]
fn fields_that_change_nothing_are_accepted() {
    let service = Service::start(&[]);
    let body = json!({
        "messages": [{"role": "user", "content": "a", "name": "x"}], "max_tokens": 1,
        "user": "u", "metadata": {"a": "b"}, "store": false, "service_tier": "auto",
        "parallel_tool_calls": true, "tools": [], "tool_choice": "none", "logit_bias": null,
        "modalities": ["text"], "response_format": {"type": "text"}, "suffix": null,
    });
    service.ok("/v1/chat/completions", &body);
}

#[test]
fn bodies_must_be_small_json_of_the_right_type() {
    let service = Service::start(&["--max-body", "1K"]);
    read(service.send("/tokenize", "{")).refused(400, None, "invalid_json");
    read(service.send("/tokenize", "[]")).refused(400, None, "invalid_json");
    let body = json!({"content": "a".repeat(2000)});
    service.post("/tokenize", &body).refused(413, None, "request_too_large");
    // A page of another origin can send this without asking.
    let request = service.agent.post(service.url("/tokenize")).content_type("text/plain");
    read(request.send("{}").unwrap()).refused(415, None, "unsupported_media_type");
}

#[test]
fn keys_are_asked_for_and_their_holders_told_apart() {
    let (alice, entry) = ApiKey::generate("alice").unwrap();
    let (_, other) = ApiKey::generate("bob").unwrap();
    let args = [format!("--api-key={entry}"), format!("--api-key={other}")];
    let mut service = Service::start(&args.each_ref().map(String::as_str));
    assert_eq!(service.get("/health").status, 200);
    for path in ["/v1/models", "/metrics"] {
        let answer = service.get(path);
        answer.refused(401, None, "invalid_api_key");
        assert_eq!(answer.header("www-authenticate"), Some(r#"Bearer realm="api""#));
    }
    service.key = Some(format!("{alice}0"));
    service.get("/v1/models").refused(401, None, "invalid_api_key");
    service.key = Some(alice);
    assert_eq!(service.get("/v1/models").status, 200);
}

/// 128 sequences, one after the other: seconds of work, on however fast a machine. The first has begun.
fn hold(service: &Service) -> impl Sized + use<> {
    let long = json!({
        "prompt": vec!["Once"; 8], "max_tokens": 450, "n": 16, "ignore_eos": true, "stream": true,
    });
    let response = service.send("/v1/completions", &long.to_string());
    let mut reader = BufReader::new(response.into_body().into_reader());
    let mut line = String::new();
    reader.read_line(&mut line).unwrap();
    assert!(line.starts_with("data: {"), "{line}");
    reader
}

#[test]
fn a_key_of_a_higher_priority_goes_first() {
    let (alice, entry) = ApiKey::generate("alice").unwrap();
    let (bob, urgent) = ApiKey::generate("bob").unwrap();
    let args = [format!("--api-key={entry}"), format!("--api-key={urgent},priority=9")];
    let [alice_entry, bob_entry] = args.each_ref().map(String::as_str);
    let mut service =
        Service::start(&["--parallel", "1", "--max-choices", "128", alice_entry, bob_entry]);
    service.key = Some(alice);
    let held = hold(&service);
    service.key = Some(bob);
    // One that comes between the end of a sequence and the beginning of the next preempts nobody.
    soon("one of alice's sequences makes room", || {
        service.ok("/v1/completions", &json!({"prompt": "a", "max_tokens": 1, "ignore_eos": true}));
        service.metric("ruvllm_preemptions_total{reason=\"priority\"}") >= 1.0
    });
    assert!(service.metric("ruvllm_sequences{state=\"waiting\"}") >= 1.0, "alice's still wait");
    drop(held);
}

#[test]
fn other_machines_are_served_with_keys_alone() {
    let error = Server::start(engine().into(), options(&["--listen", "0.0.0.0:0"])).err().unwrap();
    assert_eq!(error.code(), "api_keys_required");
    let (_, entry) = ApiKey::generate("alice").unwrap();
    let args = ["--listen", "0.0.0.0:0", "--api-key", &entry.to_string()];
    Server::start(engine().into(), options(&args)).unwrap().stop().unwrap();
}

#[test]
fn all_bodies_together_may_be_as_large_as_one() {
    let small = options(&["--max-body", "64K", "--max-bodies", "63K"]);
    let error = Server::start(engine().into(), small).err().unwrap();
    assert_eq!(error.code(), "body_limits");
    assert!(error.to_string().contains("--max-bodies"), "{error}");
}

#[test]
fn a_name_that_a_page_made_point_here_opens_nothing() {
    let service = Service::start(&[]);
    let mut stream = TcpStream::connect(service.server.address()).unwrap();
    let head = "GET /v1/models HTTP/1.1\r\nhost: evil.example:80\r\nconnection: close\r\n\r\n";
    stream.write_all(head.as_bytes()).unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    assert!(answer.starts_with("HTTP/1.1 403") && answer.contains("forbidden_host"), "{answer}");
    assert!(!answer.to_ascii_lowercase().contains("access-control-allow-origin"), "{answer}");
}

#[test]
fn request_ids_are_taken_or_made() {
    let service = Service::start(&[]);
    let made = service.get("/health");
    assert_eq!(made.header("x-request-id").map(str::len), Some(32));
    let request = service.agent.get(service.url("/health")).header("x-request-id", "mine-1");
    assert_eq!(read(request.call().unwrap()).header("x-request-id"), Some("mine-1"));
}

#[test]
fn a_full_queue_says_when_to_come_again() {
    let service = Service::start(&["--parallel", "1", "--queue", "128", "--max-choices", "128"]);
    let held = hold(&service);
    let more = service.post("/v1/completions", &json!({"prompt": vec!["a"; 5], "n": 16}));
    more.refused(429, None, "queue_full");
    assert!(more.header("retry-after").unwrap().parse::<u32>().unwrap() >= 1);
    drop(held);
}

/// The answer to a request of a page, with these headers beside its origin.
fn of_page(
    service: &Service,
    method: &str,
    origin: &str,
    headers: &[(&str, &str)],
) -> crate::common::Answer {
    let mut request = ureq::http::Request::builder().method(method).uri(service.url("/v1/models"));
    request = request.header("origin", origin);
    for (name, value) in headers {
        request = request.header(*name, *value);
    }
    read(service.agent.run(request.body(()).unwrap()).unwrap())
}

#[test]
fn pages_of_named_origins_alone_may_use_the_server() {
    const ALLOWED: &str = "access-control-allow-origin";
    let (alice, entry) = ApiKey::generate("alice").unwrap();
    let args = ["--cors-origin", "https://a.example", "--cors-origin", "http://localhost:3000"];
    let service = Service::start(&[&args[..], &["--api-key", &entry.to_string()]].concat());
    let key = format!("Bearer {alice}");
    let key = key.as_str();
    let asks = [
        ("access-control-request-method", "POST"),
        ("access-control-request-headers", "authorization,content-type,x-stainless-os"),
    ];
    for origin in ["https://a.example", "http://localhost:3000"] {
        // A browser asks without a key.
        let answer = of_page(&service, "OPTIONS", origin, &asks);
        assert_eq!((answer.status, answer.header(ALLOWED)), (204, Some(origin)));
        assert_eq!(answer.header("access-control-allow-headers"), Some(asks[1].1));
        assert!(answer.header("access-control-allow-methods").unwrap().contains("POST"));
        let answer = of_page(&service, "GET", origin, &[("authorization", key)]);
        assert_eq!((answer.status, answer.header(ALLOWED)), (200, Some(origin)));
        assert_eq!(answer.header("vary"), Some("origin"));
        // A page learns why it is refused.
        let answer = of_page(&service, "GET", origin, &[]);
        assert_eq!((answer.status, answer.header(ALLOWED)), (401, Some(origin)));
    }
    for origin in ["https://b.example", "http://a.example", "https://a.example:8443", "null"] {
        let answer = of_page(&service, "OPTIONS", origin, &asks);
        assert_eq!((answer.status, answer.header(ALLOWED)), (401, None), "{origin}");
        let answer = of_page(&service, "GET", origin, &[("authorization", key)]);
        assert_eq!((answer.status, answer.header(ALLOWED)), (200, None), "{origin}");
    }
    let service = Service::start(&["--cors-origin", "*"]);
    let answer = of_page(&service, "OPTIONS", "https://any.example", &asks);
    assert_eq!((answer.status, answer.header(ALLOWED)), (204, Some("*")));
    let service = Service::start(&[]);
    let answer = of_page(&service, "GET", "https://any.example", &[]);
    assert_eq!((answer.header(ALLOWED), answer.header("vary")), (None, None));
    let any = options(&["--cors-origin", "*", "--api-key", &entry.to_string()]);
    let error = Server::start(engine().into(), any).err().unwrap();
    assert_eq!(error.code(), "cors_any");
}
