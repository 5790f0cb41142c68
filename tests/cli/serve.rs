//! `ruvllm serve` as an operator starts and stops it.

use crate::program::{caches, ruvllm};
use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::TcpStream;
use std::process::{Command, Stdio};

const REFERENCE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../server/ruvllm.toml");

#[test]
fn the_reference_of_the_configuration_is_what_the_program_prints() {
    let written = std::fs::read_to_string(REFERENCE).unwrap();
    let printed = ruvllm(&["serve", "--print-config"]).stdout;
    assert_eq!(
        written, printed,
        "stale: run `ruvllm serve --print-config > runtime/server/ruvllm.toml`"
    );
}

#[test]
fn a_configuration_is_checked_without_serving() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("server.toml");
    let path = path.to_str().unwrap();
    let check = |text: &str| {
        std::fs::write(path, text).unwrap();
        ruvllm(&["serve", "--config", path, "--check", "--no-cache", "--kernels", "native"])
    };
    check(&std::fs::read_to_string(REFERENCE).unwrap()).text();
    let open = "[server]\nlisten = '0.0.0.0:8080'\n";
    check(open).refused(&["needs API keys", "--new-key"]);
    let made = ruvllm(&["serve", "--new-key", "alice"]);
    let (secret, entry) = made.stdout.split_once('\n').unwrap();
    assert!(secret.starts_with("sk-") && entry.starts_with("alice=sha256:"), "{}", made.stdout);
    check(&format!("{open}api-key = ['{}']\n", entry.trim())).text();
    check(&format!("{open}api-key = ['alice={secret}']\n")).refused(&["NAME=sha256:HEX", path]);
    check("[server]\nport = 80").refused(&["[server] has no option `port`", "listen"]);
    check("[server]\ntls-cert = 'none'\ntls-key = 'none'").refused(&["certificate"]);
    check("[model]\nmodel = 'none.gguf'").refused(&["none.gguf"]);
}

/// A process that ends with its test.
struct Ended(std::process::Child);

impl Drop for Ended {
    fn drop(&mut self) {
        let _ = self.0.kill();
    }
}

#[cfg(unix)]
#[test]
fn a_server_logs_requests_without_prompts_and_ends_at_a_signal() {
    let mut child = Ended(
        Command::new(env!("CARGO_BIN_EXE_ruvllm"))
            .args([
                "serve",
                "--listen",
                "127.0.0.1:0",
                "--log-format",
                "json",
                "--kernels",
                "native",
            ])
            .arg("--cache-dir")
            .arg(caches())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap(),
    );
    let mut log = BufReader::new(child.0.stderr.take().unwrap());
    // Warnings that are no log may come first.
    let serving = loop {
        let mut line = String::new();
        assert!(log.read_line(&mut line).unwrap() > 0, "the program ended");
        match serde_json::from_str::<serde_json::Value>(&line) {
            Ok(event) if event["message"] == "serving" => break event,
            _ => eprint!("{line}"),
        }
    };
    let address = serving["url"].as_str().unwrap().strip_prefix("http://").unwrap();
    let body = r#"{"prompt": "Once upon a secret", "max_tokens": 3}"#;
    let mut stream = TcpStream::connect(address).unwrap();
    write!(
        stream,
        "POST /v1/completions HTTP/1.1\r\nhost: {address}\r\nconnection: close\r\nx-request-id: mine\r\n\
         content-type: application/json\r\ncontent-length: {}\r\n\r\n{body}",
        body.len()
    )
    .unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
    let killed = Command::new("kill").arg(child.0.id().to_string()).status().unwrap();
    assert!(killed.success());
    assert_eq!(child.0.wait().unwrap().code(), Some(0));
    let mut rest = String::new();
    log.read_to_string(&mut rest).unwrap();
    let lines: Vec<serde_json::Value> =
        rest.lines().filter_map(|line| serde_json::from_str(line).ok()).collect();
    let answered =
        lines.iter().find(|line| line["message"] == "answer").expect("a line of the answer");
    assert_eq!((&answered["request"], &answered["completion"]), (&"mine".into(), &3.into()));
    assert!(
        lines.iter().any(|line| line["message"] == "request" && line["status"] == 200),
        "{rest}"
    );
    assert!(!rest.contains("secret"), "{rest}");
}
