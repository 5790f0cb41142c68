//! Kernels that are changed while texts are computed.

use std::io::Read as _;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, mpsc};
use std::thread;
use std::time::Duration;

use ruvllm_engine::chat::Renderer;
use ruvllm_host::{HealthLimits, Probe, Supervisor, SupervisorConfig};
use ruvllm_server::{ApiKey, Reloader, Served, Server};
use ruvllm_signing::{SecretKey, TrustPolicy};
use ruvllm_tests::wat::{Module, but_for, rmsnorm_f32};
use ruvllm_tests::{PackBuilder, TestPack};
use serde_json::{Value, json};

use crate::common::{Answer, Service, engine, events, options, read, served, soon};

/// One publisher's packs, a directory, an administrator, and a clock that stands still unless told.
pub(crate) struct Place {
    dir: tempfile::TempDir,
    publisher: SecretKey,
    seconds: Arc<AtomicU64>,
    pub(crate) secret: String,
    entry: String,
}

/// A server whose kernels the administrator `root` can change.
pub(crate) struct Console {
    pub(crate) service: Service,
    supervisor: Arc<Supervisor>,
    seconds: Arc<AtomicU64>,
    secret: String,
}

impl Place {
    pub(crate) fn new() -> Place {
        let (secret, entry) = ApiKey::generate("root").unwrap();
        Place {
            dir: tempfile::tempdir().unwrap(),
            publisher: SecretKey::generate().unwrap(),
            seconds: Arc::default(),
            secret,
            entry: entry.to_string(),
        }
    }

    /// The publisher's kernel for norms, in version `n`.0.0.
    pub(crate) fn pack(&self, n: u64, module: &Module) -> TestPack {
        let key = SecretKey::parse(self.publisher.to_pem().unwrap().as_bytes()).unwrap();
        PackBuilder::new()
            .kernel("rmsnorm_f32", rmsnorm_f32(module))
            .manifest(|manifest| manifest.version = semver::Version::new(n, 0, 0))
            .key(key)
            .build()
    }

    /// A server that takes this publisher's packs.
    pub(crate) fn serve(&self, args: &[&str]) -> Console {
        self.serve_with(args, None, Renderer::InProcess)
    }

    pub(crate) fn serve_with(
        &self,
        args: &[&str],
        probe: Option<Probe>,
        renderer: Renderer,
    ) -> Console {
        self.serve_all(args, probe, renderer, None)
    }

    /// As [`Place::serve`]; what is read anew comes from there.
    pub(crate) fn serve_reloading(&self, args: &[&str], reloader: Reloader) -> Console {
        self.serve_all(args, None, Renderer::InProcess, Some(reloader))
    }

    /// The options of the admin listener.
    pub(crate) fn admin(&self) -> [String; 4] {
        ["--admin-listen", "127.0.0.1:0", "--admin-key", &self.entry].map(str::to_owned)
    }

    /// Trust in the publisher.
    pub(crate) fn policy(&self) -> TrustPolicy {
        self.pack(1, &Module::default()).policy()
    }

    /// Trust in somebody else.
    pub(crate) fn other_policy(&self) -> TrustPolicy {
        Place::new().policy()
    }

    fn serve_all(
        &self,
        args: &[&str],
        probe: Option<Probe>,
        renderer: Renderer,
        reloader: Option<Reloader>,
    ) -> Console {
        let engine = engine();
        let seconds = Arc::clone(&self.seconds);
        let trust = self.policy();
        let config = SupervisorConfig {
            clock: Arc::new(move || Duration::from_secs(seconds.load(Relaxed))),
            // The kernels of these tests are correct and slow, and seldom called.
            limits: HealthLimits {
                latency_ratio: f64::INFINITY,
                evidence_calls: 0,
                ..HealthLimits::default()
            },
            probe,
            ..SupervisorConfig::new(self.dir.path().join("swap"), trust)
        };
        let supervisor = Arc::new(Supervisor::open(engine.host().clone(), config).unwrap());
        let supervised = Some(Arc::clone(&supervisor));
        let served = Served { supervisor: supervised, renderer, reloader, ..served(engine) };
        let admin = self.admin();
        let admin = admin.each_ref().map(String::as_str);
        Console {
            service: Service::of(served, &[&admin, args].concat()),
            supervisor,
            seconds: Arc::clone(&self.seconds),
            secret: self.secret.clone(),
        }
    }
}

impl Console {
    pub(crate) fn url(&self, path: &str) -> String {
        format!("http://{}{path}", self.service.server.admin_address().unwrap())
    }

    pub(crate) fn get(&self, path: &str) -> Answer {
        self.get_as(&self.secret, path)
    }

    fn get_as(&self, key: &str, path: &str) -> Answer {
        let request = self.service.agent.get(self.url(path));
        read(request.header("authorization", format!("Bearer {key}")).call().unwrap())
    }

    fn send(&self, path: &str, kind: &str, body: &[u8]) -> Answer {
        let request = self.service.agent.post(self.url(path)).content_type(kind);
        read(request.header("authorization", format!("Bearer {}", self.secret)).send(body).unwrap())
    }

    pub(crate) fn post(&self, path: &str, body: &Value) -> Answer {
        self.send(path, "application/json", body.to_string().as_bytes())
    }

    fn delete(&self, path: &str) -> Answer {
        let request = self.service.agent.delete(self.url(path));
        read(request.header("authorization", format!("Bearer {}", self.secret)).call().unwrap())
    }

    pub(crate) fn stage(&self, pack: &TestPack) -> Answer {
        let mut archive = Vec::new();
        pack.read().unwrap().write_archive(&mut archive).unwrap();
        self.send("/admin/v1/packs", "application/octet-stream", &archive)
    }

    /// Stages a pack, and gives its number.
    pub(crate) fn staged(&self, pack: &TestPack) -> u64 {
        let answer = self.stage(pack);
        assert_eq!(answer.status, 201, "{}", answer.text);
        answer.json()["id"].as_u64().unwrap()
    }

    /// Activates a staged pack, and gives the generation.
    pub(crate) fn activate(&self, id: u64) -> u64 {
        let answer = self.post(&format!("/admin/v1/packs/{id}/activate"), &json!({}));
        assert_eq!(answer.status, 200, "{}", answer.text);
        answer.json()["generation"].as_u64().unwrap()
    }

    fn kernels(&self) -> Value {
        self.get("/admin/v1/kernels").json()
    }

    /// The versions of the active packs.
    fn active(&self) -> Vec<String> {
        let kernels = self.kernels();
        let generations = kernels["generations"].as_array().unwrap();
        let active = generations.iter().find(|generation| generation["state"] == "active").unwrap();
        assert_eq!(active["generation"], kernels["generation"]);
        let packs = active["packs"].as_array().unwrap().iter();
        packs.map(|pack| pack["version"].as_str().unwrap().to_owned()).collect()
    }

    /// Lets a health window pass.
    fn pass(&self) {
        self.seconds.fetch_add(300, Relaxed);
        self.supervisor.tick();
    }

    /// What the history says, newest first: events with their operators.
    pub(crate) fn history(&self, query: &str) -> Vec<(String, String)> {
        let history = self.get(&format!("/admin/v1/history{query}")).json();
        let text = |value: &Value| value.as_str().unwrap().to_owned();
        let entries = history["entries"].as_array().unwrap().iter();
        entries.map(|entry| (text(&entry["event"]), text(&entry["operator"]))).collect()
    }

    fn complete(&self) {
        let body = json!({"prompt": "Once upon a time", "max_tokens": 20, "ignore_eos": true});
        let usage = &self.service.ok("/v1/completions", &body)["usage"];
        assert_eq!(usage["completion_tokens"], 20);
    }
}

#[test]
fn packs_are_staged_activated_and_gone_back_from_while_texts_go_on() {
    let place = Place::new();
    let console = place.serve(&[]);
    let long =
        json!({"prompt": "Once", "max_tokens": 450, "n": 16, "ignore_eos": true, "stream": true});
    let stream = console.service.send("/v1/completions", &long.to_string());
    let report = console.stage(&place.pack(1, &Module::default()));
    assert_eq!(report.status, 201, "{}", report.text);
    let report = report.json();
    assert_eq!((&report["id"], &report["name"]), (&json!(1), &json!("test-kernels")));
    assert_eq!(report["kernels"], json!(["rmsnorm_f32"]));
    let kernels = console.kernels();
    assert_eq!((&kernels["generation"], &kernels["staged"]), (&json!(1), &json!([report])));
    assert_eq!((&kernels["previous"], &kernels["first"]), (&Value::Null, &json!(1)));
    assert_eq!(kernels["window_seconds"], 300.0);
    assert_eq!(console.activate(1), 2);
    let mut text = String::new();
    stream.into_body().into_reader().read_to_string(&mut text).unwrap();
    let ended = |event: &&Value| event["choices"][0]["finish_reason"] == "length";
    assert_eq!(events(&text).iter().filter(ended).count(), 16);
    console.complete();
    let status = console.get("/status").json();
    assert_eq!((&status["generation"], &status["server"]["admin"]), (&json!(2), &json!(true)));
    let is_new = |op: &&Value| op["pack"] == "test-kernels";
    let op = status["kernels"].as_array().unwrap().iter().find(is_new).unwrap();
    assert!(op["calls"].as_u64() > Some(0) && op["fallbacks"] == 0, "{op}");
    assert_eq!(op["state"], "selected", "{op}");
    let kernels = console.kernels();
    assert_eq!(kernels["previous"], 1);
    let health = &kernels["health"][0];
    assert_eq!((&health["generation"], &health["loss_margin"]), (&json!(2), &json!(0.02)));
    assert!(health["health"]["watching"]["left"]["secs"].is_u64(), "{health}");
    // The first generation drains behind the first step with the second, which may still run.
    let drained = "ruvllm_kernel_generations{state=\"drained\"}";
    soon("the first drains", || console.service.metric(drained) == 1.0);
    for (sample, value) in [
        ("ruvllm_kernel_generations{state=\"active\"}", 1.0),
        ("ruvllm_kernel_swaps_total{event=\"activated\"}", 1.0),
        ("ruvllm_kernel_health_window_seconds", 300.0),
        ("ruvllm_kernel_packs_staged", 0.0),
    ] {
        assert_eq!(console.service.metric(sample), value, "{sample}");
    }
    console.pass();
    assert_eq!(console.kernels()["health"], json!([]));
    assert_eq!(console.active(), ["1.0.0"]);

    let id = console.staged(&place.pack(2, &Module::default()));
    let trial = console.post(&format!("/admin/v1/packs/{id}/activate"), &json!({"share": 0.5}));
    assert_eq!(trial.json()["generation"], 3, "{}", trial.text);
    assert_eq!(console.kernels()["generations"][0]["state"], json!({"canary": {"share": 0.5}}));
    let next = console.staged(&place.pack(3, &Module::default()));
    let activate = format!("/admin/v1/packs/{next}/activate");
    console.post(&activate, &json!({})).refused(409, None, "canary_running");
    assert_eq!(console.post("/admin/v1/trial/promote", &json!({})).json()["generation"], 3);
    assert_eq!(console.active(), ["2.0.0"]);
    console.post(&activate, &json!({"share": 1})).json();
    assert_eq!(console.delete("/admin/v1/trial").json()["generation"], 4);
    console.complete();
    let back = console.post("/admin/v1/rollback", &json!({})).json();
    assert_eq!((&back["generation"], &back["restores"]), (&json!(5), &json!(2)));
    assert_eq!(console.active(), ["1.0.0"]);
    let back = console.post("/admin/v1/rollback", &json!({"to": 3})).json();
    assert_eq!(back["restores"], 3);
    assert_eq!(console.active(), ["2.0.0"]);
    let id = console.staged(&place.pack(4, &Module::default()));
    assert_eq!(console.delete(&format!("/admin/v1/packs/{id}")).status, 204);
    console.delete(&format!("/admin/v1/packs/{id}")).refused(404, None, "not_staged");

    let entries = console.history("");
    let own = |event: &str| matches!(event, "started" | "healthy");
    assert!(entries.iter().all(|(event, operator)| own(event) || operator == "root"));
    let of = |event: &str| entries.iter().filter(|(e, _)| e == event).count();
    let counts = ["staged", "activated", "on_trial", "trial_ended", "rolled_back", "discarded"];
    assert_eq!(counts.map(of), [4, 2, 2, 1, 2, 1]);
    assert_eq!(console.history("?limit=1"), [("discarded".to_owned(), "root".to_owned())]);
    let newest = console.get("/admin/v1/history?limit=1").json()["entries"][0]["number"].clone();
    let after = newest.as_u64().unwrap() - 2;
    assert_eq!(console.history(&format!("?after={after}")).len(), 2);
    let explained = console.get("/admin/v1/kernels/explain?op=rmsnorm").json();
    assert_eq!(explained[0]["selected"], "rmsnorm_f32");
    let typed = console.get("/admin/v1/kernels/explain?op=rmsnorm(f32,f32)-%3Ef32").json();
    assert_eq!(typed, json!([explained[0]]));
    assert!(console.get("/admin/v1/kernels/explain").json().as_array().unwrap().len() > 1);
}

#[test]
fn going_back_waits_for_no_probe_text() {
    let place = Place::new();
    let (let_go, held) = mpsc::channel::<()>();
    let (held, calls) = (Mutex::new(held), Arc::new(AtomicU64::new(0)));
    let count = Arc::clone(&calls);
    let probe = move || {
        if count.fetch_add(1, Relaxed) > 0 {
            // Until the sender goes.
            let _ = held.lock().unwrap().recv();
        }
        Ok(2.0)
    };
    let console = place.serve_with(&[], Some(Arc::new(probe)), Renderer::InProcess);
    console.activate(console.staged(&place.pack(1, &Module::default())));
    let id = console.staged(&place.pack(2, &Module::default()));
    thread::scope(|scope| {
        let activate = format!("/admin/v1/packs/{id}/activate");
        let console = &console;
        let second = scope.spawn(move || console.post(&activate, &json!({})));
        while calls.load(Relaxed) < 2 {
            thread::sleep(Duration::from_millis(1));
        }
        assert_eq!(console.post("/admin/v1/rollback", &json!({"to": 1})).status, 200);
        assert!(console.active().is_empty());
        drop(let_go);
        second.join().unwrap().refused(409, None, "change_overtaken");
    });
    assert!(console.active().is_empty());
}

#[test]
fn keys_of_clients_and_administrators_open_nothing_for_each_other() {
    let place = Place::new();
    let (alice, entry) = ApiKey::generate("alice").unwrap();
    let mut console = place.serve(&["--api-key", &entry.to_string()]);
    for path in ["/admin/v1/kernels", "/v1/models", "/status", "/metrics", "/nowhere"] {
        for key in [&alice, "sk-", ""] {
            let refused = console.get_as(key, path);
            refused.refused(401, None, "invalid_api_key");
            // The page asks for an admin key by it.
            let challenge = refused.header("www-authenticate").unwrap();
            assert!(challenge.starts_with(r#"Bearer realm="admin""#), "{challenge}");
        }
        assert_ne!(console.get(path).status, 401, "{path}");
    }
    console.service.key = Some(place.secret.clone());
    let refused = console.service.get("/status");
    refused.refused(401, None, "invalid_api_key");
    let challenge = refused.header("www-authenticate");
    assert_eq!(challenge, Some(r#"Bearer realm="api", error="invalid_token""#));
    console.service.key = Some(alice.clone());
    console.service.get("/admin/v1/kernels").refused(404, None, "unknown_url");
    let status = console.service.get("/status").json();
    assert_eq!(status["server"]["admin"], false);
    assert_eq!(status["server"]["model"], console.service.server.model());
    assert!(status["memory"]["pool"]["budget"].is_u64() && status["scheduler"]["steps"].is_u64());
    assert_eq!(console.get_as("", "/health").status, 200);
    assert_eq!(console.get_as("", "/ready").status, 200);
    let answer = console.post("/v1/completions", &json!({"prompt": "Once", "max_tokens": 3}));
    assert_eq!(answer.json()["usage"]["completion_tokens"], 3);
}

#[test]
fn what_cannot_be_done_is_refused_with_its_reason() {
    let place = Place::new();
    let console = place.serve(&[]);
    let octets = "application/octet-stream";
    console.send("/admin/v1/packs", octets, b"no pack").refused(400, None, "pack_rejected");
    console.send("/admin/v1/packs", "text/plain", b"").refused(415, None, "unsupported_media_type");
    let stranger = PackBuilder::new().kernel("rmsnorm_f32", rmsnorm_f32(&Module::default()));
    console.stage(&stranger.build()).refused(422, None, "pack_rejected");
    assert_eq!(console.history("")[0], ("refused".to_owned(), "root".to_owned()));
    let wrong = Module { epilogue: "(unreachable)".into(), ..Module::default() };
    console.stage(&place.pack(1, &wrong)).refused(422, None, "kernel_trap");
    assert_eq!(console.get("/admin/v1/history").json()["counters"]["refused"], 2);
    let none = json!({});
    console.post("/admin/v1/packs/7/activate", &none).refused(404, None, "not_staged");
    console.post("/admin/v1/packs/x/activate", &none).refused(400, Some("id"), "invalid_value");
    console.post("/admin/v1/trial/promote", &none).refused(404, None, "no_canary");
    console.delete("/admin/v1/trial").refused(404, None, "no_canary");
    console.post("/admin/v1/rollback", &none).refused(409, None, "no_earlier_generation");
    console.post("/admin/v1/rollback", &json!({"to": 9})).refused(404, None, "generation_not_kept");
    console.post("/admin/v1/rollback", &json!({"to": -1})).refused(400, Some("to"), "invalid_type");
    console.post("/admin/v1/rollback", &json!([])).refused(400, None, "invalid_json");
    console.delete("/admin/v1/barred/sha256:0").refused(404, None, "not_barred");
    console.get("/admin/v1/history?limit=x").refused(400, None, "invalid_query");
    console.get("/admin/v1/kernels/explain?op=none").refused(404, Some("op"), "unknown_op");
    console.get("/admin/v1/packs").refused(405, None, "method_not_allowed");
    for n in 1..5 {
        let id = console.staged(&place.pack(n, &Module::default()));
        let share = json!({"share": 2});
        let activate = format!("/admin/v1/packs/{id}/activate");
        console.post(&activate, &share).refused(400, None, "canary_share");
        let unknown = json!({"shares": 0.5});
        console.post(&activate, &unknown).refused(400, Some("shares"), "unknown_parameter");
    }
    console.stage(&place.pack(5, &Module::default())).refused(409, None, "stage_full");
    assert_eq!(console.kernels()["generation"], 1);
}

#[test]
fn what_did_harm_is_barred_until_it_is_cleared() {
    let place = Place::new();
    let console = place.serve(&[]);
    let bad = place.pack(1, &but_for(engine().model().config().dim as u32, "(unreachable)"));
    console.activate(console.staged(&bad));
    console.complete();
    console.supervisor.tick();
    assert!(console.active().is_empty());
    let kernels = console.kernels();
    assert_eq!(kernels["counters"]["taken_back"], json!({"traps": 1}));
    let sample = "ruvllm_kernel_taken_back_total{reason=\"traps\"}";
    assert_eq!(console.service.metric(sample), 1.0);
    let digest = kernels["barred"][0]["digest"].as_str().unwrap();
    assert!(kernels["barred"][0]["reason"].as_str().unwrap().contains("trapped"), "{kernels}");
    console.stage(&bad).refused(409, None, "pack_barred");
    // As the page shows it.
    assert_eq!(console.delete(&format!("/admin/v1/barred/{}", &digest[7..19])).status, 204);
    console.delete(&format!("/admin/v1/barred/{digest}")).refused(404, None, "not_barred");
    // It has been seen by now on which shapes it traps.
    console.stage(&bad).refused(422, None, "kernel_trap");
}

#[test]
fn a_server_that_starts_again_has_what_was_found_healthy() {
    let place = Place::new();
    let console = place.serve(&[]);
    console.activate(console.staged(&place.pack(1, &Module::default())));
    console.pass();
    console.activate(console.staged(&place.pack(2, &Module::default())));
    let Console { service, supervisor, .. } = console;
    service.server.stop().unwrap();
    drop(supervisor);
    let console = place.serve(&[]);
    assert_eq!(console.active(), ["1.0.0"]);
    console.complete();
    assert_eq!(console.history("?limit=1")[0].0, "started");
}

#[test]
fn administration_needs_keys_of_its_own_and_https_beyond_this_machine() {
    let entry = |name: &str| ApiKey::generate(name).unwrap().1.to_string();
    let (root, client) = (entry("root"), entry("client"));
    let refused = |args: &[&str]| options(args).check().unwrap_err().code();
    let listen = ["--admin-listen", "127.0.0.1:0"];
    assert_eq!(refused(&listen), "admin_keys_required");
    let key = ["--admin-key", &root];
    assert_eq!(refused(&key), "pointless_option");
    assert_eq!(refused(&["--probe-text", "text"]), "pointless_option");
    assert_eq!(refused(&["--watch-share", "0.5"]), "pointless_option");
    let good = [listen, key].concat();
    assert_eq!(refused(&[&good[..], &key].concat()), "api_key_twice");
    let shared = root.replace("root", "client");
    assert_eq!(refused(&[&good[..], &["--api-key", &shared]].concat()), "api_key_shared");
    assert_eq!(refused(&["--admin-listen", "0.0.0.0:0", key[0], key[1]]), "admin_tls_required");
    let good = options(&[&good[..], &["--api-key", &client]].concat());
    good.check().unwrap();
    assert!(good.admin.supervised() && !options(&[]).admin.supervised());
    let error = Server::start(engine().into(), good).err().unwrap();
    assert_eq!(error.code(), "supervisor_required");
}
