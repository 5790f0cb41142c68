//! A configuration that is read anew while the server runs.

use std::path::Path;
use std::sync::{Arc, Mutex};

use ruvllm_host::Acceptance;
use ruvllm_server::{ApiKey, Configuration, Reloader, Served};
use ruvllm_signing::TrustPolicy;
use ruvllm_tests::PackBuilder;
use ruvllm_tests::wat::{Module, rmsnorm_f32};
use serde_json::json;
use ureq::tls::{Certificate, RootCerts, TlsConfig};

use crate::admin::{Console, Place};
use crate::common::{Answer, Service, engine, options, read, served};

/// What a test lets the server read.
#[derive(Clone)]
struct Sources(Arc<Mutex<Result<Configuration, String>>>);

impl Sources {
    fn new(args: &[&str], acceptance: Acceptance) -> Sources {
        let options = options(args);
        let read = Configuration { options, acceptance, restart: Vec::new() };
        Sources(Arc::new(Mutex::new(Ok(read))))
    }

    fn reloader(&self) -> Reloader {
        let sources = self.clone();
        Arc::new(move || sources.0.lock().unwrap().clone())
    }

    fn change(&self, change: impl FnOnce(&mut Configuration)) {
        change(self.0.lock().unwrap().as_mut().unwrap());
    }
}

fn reload(console: &Console) -> Answer {
    console.post("/admin/v1/reload", &json!({}))
}

fn builtin() -> Acceptance {
    Acceptance { trust: TrustPolicy::builtin(), lock: None }
}

#[test]
fn keys_are_read_anew_all_of_them_or_none() {
    let place = Place::new();
    let [(alice, alices), (bob, bobs), (carol, carols)] = ["alice", "bob", "carol"].map(|name| {
        let (secret, entry) = ApiKey::generate(name).unwrap();
        (secret, entry.to_string())
    });
    let admin = place.admin();
    let args = |entries: &[&str]| -> Vec<String> {
        let keys = entries.iter().flat_map(|entry| ["--api-key".to_owned(), (*entry).to_owned()]);
        admin.iter().cloned().chain(keys).collect()
    };
    let parse = |entries: &[&str]| {
        let args = args(entries);
        options(&args.iter().map(String::as_str).collect::<Vec<_>>())
    };
    let acceptance = Acceptance { trust: place.policy(), lock: None };
    let sources = Sources::new(&[], acceptance);
    sources.change(|read| read.options = parse(&[&alices, &bobs]));
    let mut console =
        place.serve_reloading(&["--api-key", &alices, "--api-key", &bobs], sources.reloader());
    let opens = |console: &mut Console, key: &str| {
        console.service.key = Some(key.to_owned());
        console.service.get("/v1/models").status == 200
    };
    let unchanged = reload(&console);
    assert_eq!(unchanged.json(), json!({"changed": [], "restart": []}), "{}", unchanged.text);
    assert!(opens(&mut console, &alice) && !opens(&mut console, &carol));

    sources.change(|read| {
        read.options = parse(&[&format!("{bobs},priority=3"), &carols]);
        read.restart = vec!["queue".to_owned()];
    });
    let changed = json!(["API keys (new: carol; gone: alice; different: bob)"]);
    assert_eq!(reload(&console).json(), json!({"changed": changed, "restart": ["queue"]}));
    assert!(opens(&mut console, &carol) && opens(&mut console, &bob));
    assert!(!opens(&mut console, &alice));
    assert_eq!(console.history("?limit=1"), [("reloaded".to_owned(), "root".to_owned())]);
    // A grammar needs a turn of the client's own, whom nobody knew at the start.
    let format =
        json!({"type": "json_schema", "json_schema": {"name": "n", "schema": {"type": "null"}}});
    let body = json!({"messages": [], "response_format": format, "max_tokens": 5});
    console.service.key = Some(carol.clone());
    assert_ne!(console.service.post("/v1/chat/completions", &body).status, 500);

    let good = sources.0.lock().unwrap().clone();
    let trust = place.other_policy();
    for (entries, code) in [
        (&[][..], "reload_keys"),
        (&[&*alices, &*alices], "api_key_twice"),
        (&[&*admin[3].replace("root", "client")], "api_key_shared"),
    ] {
        sources.change(|read| {
            read.options = parse(entries);
            read.acceptance.trust = trust.clone();
        });
        reload(&console).refused(422, None, code);
    }
    *sources.0.lock().unwrap() = Err("server.toml: line 7".to_owned());
    let refused = reload(&console);
    refused.refused(422, None, "reload");
    assert!(refused.text.contains("nothing was changed") && refused.text.contains("line 7"));
    assert!(opens(&mut console, &carol) && !opens(&mut console, &alice));
    assert_eq!(console.stage(&place.pack(1, &Module::default())).status, 201, "trust is as it was");
    *sources.0.lock().unwrap() = good;
    assert_eq!(reload(&console).json()["changed"], json!([]));
    assert_eq!(console.history("").iter().filter(|(event, _)| event == "reloaded").count(), 1);
}

#[test]
fn a_pack_is_accepted_once_its_publisher_is_trusted() {
    let place = Place::new();
    let admin = place.admin();
    let args: Vec<&str> = admin.iter().map(String::as_str).collect();
    let acceptance = Acceptance { trust: place.policy(), lock: None };
    let sources = Sources::new(&args, acceptance);
    let console = place.serve_reloading(&[], sources.reloader());
    let stranger =
        PackBuilder::new().kernel("rmsnorm_f32", rmsnorm_f32(&Module::default())).build();
    console.stage(&stranger).refused(422, None, "pack_rejected");
    let publishers =
        [place.pack(1, &Module::default()).publisher("test"), stranger.publisher("new")];
    sources.change(|read| read.acceptance.trust = TrustPolicy::new(publishers.into(), 1).unwrap());
    assert_eq!(reload(&console).json()["changed"], json!(["trust policy with new"]));
    assert_eq!(console.stage(&stranger).status, 201);
}

#[test]
fn the_certificate_is_another_from_the_next_connection_on() {
    let dir = tempfile::tempdir().unwrap();
    let (cert, key) = (dir.path().join("cert.pem"), dir.path().join("key.pem"));
    let renew = || {
        let made = rcgen::generate_simple_self_signed(["localhost".to_owned()]).unwrap();
        std::fs::write(&cert, made.cert.pem()).unwrap();
        std::fs::write(&key, made.signing_key.serialize_pem()).unwrap();
        Certificate::from_der(made.cert.der()).to_owned()
    };
    let name = |path: &Path| path.to_str().unwrap().to_owned();
    let args = ["--tls-cert".to_owned(), name(&cert), "--tls-key".to_owned(), name(&key)];
    let args: Vec<&str> = args.iter().map(String::as_str).collect();
    let first = renew();
    let sources = Sources::new(&args, builtin());
    let served = Served { reloader: Some(sources.reloader()), ..served(engine()) };
    let service = Service::of(served, &args);
    let url = format!("https://localhost:{}/health", service.server.address().port());
    // A new connection each.
    let accepts = |certificate: &Certificate<'static>| {
        let tls = TlsConfig::builder()
            .root_certs(RootCerts::new_with_certs(std::slice::from_ref(certificate)))
            .unversioned_rustls_crypto_provider(Arc::new(rustls::crypto::ring::default_provider()))
            .build();
        let agent: ureq::Agent = ureq::Agent::config_builder().tls_config(tls).build().into();
        agent.get(&url).call().is_ok_and(|answer| read(answer).status == 200)
    };
    assert!(accepts(&first));
    assert!(service.server.reload("me").unwrap().changed.is_empty());
    let second = renew();
    assert_eq!(service.server.reload("me").unwrap().changed, ["certificate of TLS"]);
    assert!(accepts(&second) && !accepts(&first));
    std::fs::write(&key, "no key").unwrap();
    assert_eq!(service.server.reload("me").unwrap_err().code(), "tls");
    sources.change(|read| (read.options.tls_cert, read.options.tls_key) = (None, None));
    assert_eq!(service.server.reload("me").unwrap_err().code(), "reload_tls");
    assert!(accepts(&second));
    let plain = Service::start(&[]);
    assert_eq!(plain.server.reload("me").unwrap_err().code(), "reload");
}
