//! Clients that go away, time that runs out, servers that stop, and HTTPS.

use std::io::{BufRead as _, BufReader, Read as _};
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use ureq::tls::{Certificate, RootCerts, TlsConfig};

use crate::common::{Service, agent, engine, events, options, read};

/// A few seconds of work.
fn long(stream: bool) -> Value {
    json!({"prompt": "Once", "max_tokens": 450, "n": 16, "ignore_eos": true, "stream": stream})
}

/// Waits for something that must happen soon.
fn soon(what: &str, mut happened: impl FnMut() -> bool) {
    let start = Instant::now();
    while !happened() {
        assert!(start.elapsed() < Duration::from_secs(20), "{what}");
        thread::sleep(Duration::from_millis(5));
    }
}

const RUNNING: &str = "ruvllm_sequences{state=\"running\"}";
const WAITING: &str = "ruvllm_sequences{state=\"waiting\"}";
const CANCELLED: &str = "ruvllm_sequences_total{outcome=\"cancelled\"}";

#[test]
fn a_client_that_goes_away_takes_its_sequences_with_it() {
    let service = Service::start(&[]);
    let response = service.send("/v1/completions", &long(true).to_string());
    let mut reader = BufReader::new(response.into_body().into_reader());
    let mut line = String::new();
    reader.read_line(&mut line).unwrap();
    assert!(line.starts_with("data: {"), "{line}");
    drop(reader);
    soon("the stream's sequences end", || service.metric(CANCELLED) == 16.0);
    // Nor does anybody wait for an answer in one piece.
    let config = ureq::Agent::config_builder().timeout_global(Some(Duration::from_millis(200)));
    let hasty: ureq::Agent = config.build().into();
    let request = hasty.post(service.url("/v1/completions")).content_type("application/json");
    assert!(request.send(long(false).to_string()).is_err());
    soon("the answer's sequences end", || service.metric(CANCELLED) == 32.0);
    assert_eq!((service.metric(RUNNING), service.metric(WAITING)), (0.0, 0.0));
}

#[test]
fn a_request_that_takes_too_long_ends_with_an_error() {
    let service = Service::start(&["--request-timeout", "0.1"]);
    let answer = service.post("/v1/completions", &long(false));
    answer.refused(504, None, "timeout");
    assert_eq!(answer.header("x-should-retry"), Some("false"));
    let answer = service.post("/v1/completions", &long(true));
    assert_eq!(answer.status, 200);
    let last = answer.text.trim_end().rsplit("data: ").next().unwrap();
    let last: Value = serde_json::from_str(last).unwrap();
    assert_eq!(last["error"]["code"], "timeout");
    soon("nothing goes on", || service.metric(RUNNING) == 0.0);
}

#[test]
fn a_server_that_stops_finishes_what_was_begun_and_takes_nothing_new() {
    let service = Service::start(&[]);
    let response = service.send("/v1/completions", &long(true).to_string());
    let (ready, completions) = (service.url("/ready"), service.url("/v1/completions"));
    let server = service.server;
    let stopping = thread::spawn(move || server.stop());
    let refused = |answer: crate::common::Answer| {
        if answer.status == 200 {
            return false;
        }
        answer.refused(503, None, "draining");
        assert_eq!(answer.header("retry-after"), Some("1"));
        true
    };
    soon("readiness ends", || refused(read(agent().get(&ready).call().unwrap())));
    let request = agent().post(&completions).content_type("application/json");
    assert!(refused(read(request.send("{\"prompt\": \"a\"}").unwrap())));
    let mut text = String::new();
    response.into_body().into_reader().read_to_string(&mut text).unwrap();
    let ended =
        events(&text).iter().filter(|e| !e["choices"][0]["finish_reason"].is_null()).count();
    assert_eq!(ended, 16);
    stopping.join().unwrap().unwrap();
    assert!(agent().get(&ready).call().is_err());
}

#[test]
fn a_server_that_stops_waits_no_longer_than_it_was_told() {
    let service = Service::start(&["--drain-timeout", "0.05"]);
    let response = service.send("/v1/completions", &long(true).to_string());
    service.server.stop().unwrap();
    let mut text = String::new();
    let _ = response.into_body().into_reader().read_to_string(&mut text);
    assert!(!text.contains("[DONE]"));
}

#[test]
fn https_is_served_with_the_operators_certificate() {
    let made = rcgen::generate_simple_self_signed(["localhost".to_owned()]).unwrap();
    let dir = tempfile::tempdir().unwrap();
    let (cert, key) = (dir.path().join("cert.pem"), dir.path().join("key.pem"));
    std::fs::write(&cert, made.cert.pem()).unwrap();
    std::fs::write(&key, made.signing_key.serialize_pem()).unwrap();
    let (cert, key) = (cert.to_str().unwrap(), key.to_str().unwrap());
    let service = Service::start(&["--tls-cert", cert, "--tls-key", key]);
    let tls = TlsConfig::builder()
        .root_certs(RootCerts::new_with_certs(&[Certificate::from_der(made.cert.der()).to_owned()]))
        .unversioned_rustls_crypto_provider(Arc::new(rustls::crypto::ring::default_provider()))
        .build();
    let https: ureq::Agent = ureq::Agent::config_builder().tls_config(tls).build().into();
    let url = format!("https://localhost:{}/v1/models", service.server.address().port());
    assert_eq!(read(https.get(&url).call().unwrap()).json()["object"], "list");
    assert!(service.agent.get(service.url("/health")).call().is_err());
    // The certificate in place of the key.
    let wrong = options(&["--tls-cert", cert, "--tls-key", cert]);
    assert_eq!(ruvllm_server::Server::start(engine().into(), wrong).err().unwrap().code(), "tls");
}
