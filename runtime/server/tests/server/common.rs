//! A server in this process, and a plain client for it.

use std::io::Read as _;
use std::path::{Path, PathBuf};
use std::sync::{Arc, LazyLock};
use std::thread;
use std::time::{Duration, Instant};

use clap::Parser;
use ruvllm_engine::chat::Renderer;
use ruvllm_engine::{Engine, EngineConfig, Model};
use ruvllm_host::{Host, HostConfig};
use ruvllm_server::{GrammarCompiler, Served, Server, ServerOptions};
use serde_json::Value;
use ureq::Agent;
use ureq::http::Response;

/// The options as the command line has them.
#[derive(Parser)]
struct Cli {
    #[command(flatten)]
    options: ServerOptions,
}

pub(crate) fn options(args: &[&str]) -> ServerOptions {
    let listen = ["test", "--listen", "127.0.0.1:0"];
    let given = args.contains(&"--listen");
    Cli::parse_from(listen.iter().take(if given { 1 } else { 3 }).chain(args)).options
}

pub(crate) fn repository() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

static MODEL: LazyLock<Arc<Model>> = LazyLock::new(|| {
    let path = repository().join("runtime/ruvllm/demo/tales-q8_0.gguf");
    Arc::new(Model::open(&path).expect("the demo model"))
});

/// The demo model.
pub(crate) fn demo() -> Arc<Model> {
    Arc::clone(&MODEL)
}

pub(crate) fn engine() -> Engine {
    let host = Host::new(HostConfig::default()).expect("a host");
    let memory = Some(256 << 20);
    let config = EngineConfig { threads: 1, memory, ..EngineConfig::default() };
    Engine::new(Arc::clone(&MODEL), host, config).expect("an engine")
}

/// What is served: the engine, with the demo model's template and the grammars of tests, which are trusted.
pub(crate) fn served(engine: Engine) -> Served {
    let grammars = GrammarCompiler::InProcess;
    Served { renderer: Renderer::InProcess, grammars, ..engine.into() }
}

/// The demo model's id.
pub(crate) fn model() -> &'static str {
    MODEL.id()
}

/// A server, and a client that talks to it.
pub(crate) struct Service {
    pub(crate) server: Server,
    pub(crate) agent: Agent,
    pub(crate) key: Option<String>,
}

/// An answer, read to its end.
pub(crate) struct Answer {
    pub(crate) status: u16,
    pub(crate) headers: ureq::http::HeaderMap,
    pub(crate) text: String,
}

impl Answer {
    pub(crate) fn json(&self) -> Value {
        serde_json::from_str(&self.text).unwrap_or_else(|error| panic!("{error} in {}", self.text))
    }

    /// Asserts an error: status, parameter and code, in OpenAI's form.
    pub(crate) fn refused(&self, status: u16, param: Option<&str>, code: &str) {
        let error = &self.json()["error"];
        let found = (self.status, error["param"].as_str(), error["code"].as_str());
        assert_eq!(found, (status, param, Some(code)), "{}", self.text);
        assert!(error["message"].is_string() && error["type"].is_string(), "{}", self.text);
    }

    pub(crate) fn header(&self, name: &str) -> Option<&str> {
        self.headers.get(name).and_then(|value| value.to_str().ok())
    }
}

/// An agent that gives answers of every status.
pub(crate) fn agent() -> Agent {
    let config = Agent::config_builder().http_status_as_error(false);
    config.timeout_global(Some(Duration::from_secs(120))).build().into()
}

impl Service {
    /// Starts one with these options over the defaults.
    pub(crate) fn start(args: &[&str]) -> Service {
        Service::of(served(engine()), args)
    }

    /// Starts one that serves this.
    pub(crate) fn of(served: Served, args: &[&str]) -> Service {
        let server = Server::start(served, options(args)).expect("a server");
        Service { server, agent: agent(), key: None }
    }

    pub(crate) fn url(&self, path: &str) -> String {
        format!("http://{}{path}", self.server.address())
    }

    pub(crate) fn get(&self, path: &str) -> Answer {
        let mut request = self.agent.get(self.url(path));
        if let Some(key) = &self.key {
            request = request.header("authorization", format!("Bearer {key}"));
        }
        read(request.call().expect("an answer"))
    }

    /// Sends a body and gives the answer as it comes.
    pub(crate) fn send(&self, path: &str, body: &str) -> Response<ureq::Body> {
        let mut request = self.agent.post(self.url(path)).content_type("application/json");
        if let Some(key) = &self.key {
            request = request.header("authorization", format!("Bearer {key}"));
        }
        request.send(body).expect("an answer")
    }

    pub(crate) fn post(&self, path: &str, body: &Value) -> Answer {
        read(self.send(path, &body.to_string()))
    }

    /// The answer to a body as it stands.
    pub(crate) fn post_text(&self, path: &str, body: &str) -> Answer {
        read(self.send(path, body))
    }

    /// Asserts success and gives the body.
    pub(crate) fn ok(&self, path: &str, body: &Value) -> Value {
        let answer = self.post(path, body);
        assert_eq!(answer.status, 200, "{}", answer.text);
        answer.json()
    }

    /// The value of a metric's sample, 0 where there is none.
    pub(crate) fn metric(&self, sample: &str) -> f64 {
        let [value] = self.metrics([sample]);
        value
    }

    /// The values of several samples at one moment.
    pub(crate) fn metrics<const N: usize>(&self, samples: [&str; N]) -> [f64; N] {
        let text = self.get("/metrics").text;
        samples.map(|sample| {
            let line = text.lines().find_map(|line| line.strip_prefix(sample)?.strip_prefix(' '));
            line.map_or(0.0, |value| value.parse().expect("a number"))
        })
    }
}

/// Waits for something that must happen soon.
pub(crate) fn soon(what: &str, mut happened: impl FnMut() -> bool) {
    let start = Instant::now();
    while !happened() {
        assert!(start.elapsed() < Duration::from_secs(20), "{what}");
        thread::sleep(Duration::from_millis(5));
    }
}

pub(crate) fn read(response: Response<ureq::Body>) -> Answer {
    let (head, body) = response.into_parts();
    let mut text = String::new();
    body.into_reader().read_to_string(&mut text).expect("a body");
    Answer { status: head.status.as_u16(), headers: head.headers, text }
}

/// The events of a stream, without the last, which must be `[DONE]`.
pub(crate) fn events(text: &str) -> Vec<Value> {
    let mut events: Vec<&str> =
        text.lines().filter_map(|line| line.strip_prefix("data: ")).collect();
    assert_eq!(events.pop(), Some("[DONE]"), "{text}");
    events.iter().map(|event| serde_json::from_str(event).expect("JSON")).collect()
}
