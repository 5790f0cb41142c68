//! The official clients, unchanged. They are used where they are installed: `target/clients` has a
//! virtual environment with `tests/clients/requirements.txt` and the `node_modules` of
//! `tests/clients/package.json`, as `.ci/run` makes them; a system-wide Python package will do, too.

use std::path::Path;
use std::process::{Command, Output};

use ruvllm_server::ApiKey;

use crate::common::repository;
use crate::structured::{HERMES, with_template_and};

/// Runs a client's script against a server with a key.
fn run(mut client: Command, script: &str) {
    let (secret, entry) = ApiKey::generate("tester").unwrap();
    let service = with_template_and(HERMES, &["--api-key", &entry.to_string()]);
    client.arg(repository().join("tests/clients").join(script));
    let Output { status, stdout, stderr } =
        client.arg(service.url("/v1")).arg(secret).output().unwrap();
    let [stdout, stderr] = [stdout, stderr].map(|text| String::from_utf8_lossy(&text).into_owned());
    assert!(status.success(), "{stdout}\n{stderr}");
}

pub(crate) fn works(client: &mut Command) -> bool {
    client.output().is_ok_and(|output| output.status.success())
}

/// Node with the packages of `tests/clients/package.json`.
pub(crate) fn node() -> Command {
    let mut node = Command::new("node");
    node.env("NODE_PATH", repository().join("target/clients/node_modules"));
    node
}

#[test]
fn the_official_python_client_works() {
    let own = repository().join("target/clients/bin/python");
    let python = if own.exists() { own.as_path() } else { Path::new("python3") };
    if !works(Command::new(python).args(["-c", "import openai"])) {
        eprintln!("skipped: no Python with the openai package (tests/clients/requirements.txt)");
        return;
    }
    run(Command::new(python), "client.py");
}

#[test]
fn the_official_node_client_works() {
    if !works(node().args(["-e", "require('openai')"])) {
        eprintln!("skipped: no Node with the openai package (tests/clients/package.json)");
        return;
    }
    run(node(), "client.cjs");
}
