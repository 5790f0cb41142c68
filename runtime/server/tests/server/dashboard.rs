//! The page at `/`, as a browser gets it and in a headless browser, where there is one: Chromium, driven
//! by the package of `tests/clients/package.json` as `.ci/run` installs it.

use std::fs::File;
use std::process::{Command, Output};

use ruvllm_server::ApiKey;
use ruvllm_tests::wat::Module;

use crate::admin::Place;
use crate::clients::{node, works};
use crate::common::{Service, repository};

/// A server that asks for keys.
fn guarded() -> Service {
    let (_, entry) = ApiKey::generate("tester").unwrap();
    Service::start(&["--api-key", &entry.to_string()])
}

#[test]
fn the_page_needs_no_key_and_may_load_from_its_server_alone() {
    let service = guarded();
    let page = service.get("/");
    assert_eq!(page.status, 200);
    assert_eq!(page.header("content-type"), Some("text/html; charset=utf-8"));
    let policy = page.header("content-security-policy").unwrap();
    assert!(
        policy.starts_with("default-src 'none'; script-src 'self'; style-src 'self';"),
        "{policy}"
    );
    assert!(!policy.contains("unsafe") && policy.contains("frame-ancestors 'none'"), "{policy}");
    assert_eq!(page.header("x-content-type-options"), Some("nosniff"));
    assert_eq!(page.header("referrer-policy"), Some("no-referrer"));
    for (name, kind) in [("main.js", "text/javascript"), ("style.css", "text/css")] {
        assert!(page.text.contains(&format!("\"dashboard/{name}\"")), "{name}");
        let file = service.get(&format!("/dashboard/{name}"));
        assert_eq!(file.status, 200, "{name}");
        assert_eq!(file.header("content-type"), Some(&*format!("{kind}; charset=utf-8")));
    }
    assert_eq!(service.get("/v1/models").status, 401);
}

#[test]
fn every_module_that_another_names_is_there() {
    let service = guarded();
    let mut names = vec!["main.js".to_owned()];
    let mut at = 0;
    while let Some(name) = names.get(at) {
        let file = service.get(&format!("/dashboard/{name}"));
        assert_eq!(file.status, 200, "{name}");
        for line in file.text.lines().filter(|line| line.starts_with("import ")) {
            let name = line.split("\"./").nth(1).unwrap().trim_end_matches("\";").to_owned();
            if !names.contains(&name) {
                names.push(name);
            }
        }
        at += 1;
    }
    assert!(names.len() > 10, "{names:?}");
    service.get("/dashboard/none.js").refused(404, None, "unknown_url");
    service.get("/dashboard/mod.rs").refused(404, None, "unknown_url");
}

#[test]
fn a_file_that_the_browser_has_is_not_sent_again() {
    let service = guarded();
    let tag = service.get("/").header("etag").unwrap().to_owned();
    let again = service.agent.get(service.url("/")).header("if-none-match", tag).call().unwrap();
    assert_eq!(again.status(), 304);
    let other =
        service.agent.get(service.url("/")).header("if-none-match", "\"else\"").call().unwrap();
    assert_eq!(other.status(), 200);
}

/// Runs the script that uses the page.
fn browse(url: &str, key: &str, pack: &[&str]) {
    if !works(node().args(["-e", "require('puppeteer-core')"])) {
        eprintln!("skipped: no Node with the puppeteer-core package (tests/clients/package.json)");
        return;
    }
    if !works(Command::new("chromium").arg("--version")) {
        eprintln!("skipped: no Chromium");
        return;
    }
    let script = repository().join("tests/clients/dashboard.mjs");
    let Output { status, stdout, stderr } =
        node().arg(script).args([url, key]).args(pack).output().unwrap();
    let [stdout, stderr] = [stdout, stderr].map(|text| String::from_utf8_lossy(&text).into_owned());
    assert!(status.success(), "{stdout}\n{stderr}");
}

#[test]
fn clients_chat_and_watch_in_a_browser() {
    let (secret, entry) = ApiKey::generate("tester").unwrap();
    let service = Service::start(&["--api-key", &entry.to_string()]);
    browse(&service.url("/"), &secret, &[]);
}

#[test]
fn administrators_stage_try_activate_and_roll_back_in_a_browser() {
    let place = Place::new();
    let console = place.serve(&[]);
    let dir = tempfile::tempdir().unwrap();
    let archive = dir.path().join("norms.rkp");
    let pack = place.pack(1, &Module::default());
    pack.read().unwrap().write_archive(File::create(&archive).unwrap()).unwrap();
    browse(&console.url("/"), &place.secret, &[archive.to_str().unwrap(), "test-kernels 1.0.0"]);
}
