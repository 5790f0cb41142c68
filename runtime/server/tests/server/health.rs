//! What `/health` and `/ready` say while requests are not answered.

use std::io::{Read as _, Write as _};
use std::net::TcpStream;
use std::path::Path;
use std::time::{Duration, Instant};

use ruvllm_engine::chat::Renderer;
use ruvllm_host::process::HelperProcess;
use ruvllm_server::Served;
use ruvllm_tests::wat::Module;

use crate::admin::Place;
use crate::common::{Service, engine, soon};

/// A renderer that answers when it is started, and never again.
fn hanging() -> Renderer {
    // To its limits, its template and a text, three empty answers as the protocol has them: a tag and a
    // length. Its output stays open.
    let script = r"printf '\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0'; exec cat 3>&1 >/dev/null";
    Renderer::Process(HelperProcess {
        program: "/bin/sh".into(),
        args: ["-c", script].map(Into::into).to_vec(),
        processes: 1,
        memory_bytes: 64 << 20,
        time: Duration::from_secs(600),
    })
}

/// A client that has asked for a chat, `pause` after it announced that, and waits.
fn ask(service: &Service, pause: Duration) -> TcpStream {
    let body = r#"{"messages": [{"role": "user", "content": "Hello"}]}"#;
    let mut stream = TcpStream::connect(service.server.address()).unwrap();
    write!(
        stream,
        "POST /v1/chat/completions HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\ncontent-length: {}\r\n\r\n",
        body.len()
    )
    .unwrap();
    std::thread::sleep(pause);
    stream.write_all(body.as_bytes()).unwrap();
    stream
}

/// Options with a chat template for [`hanging`].
fn with_template(dir: &Path) -> [String; 2] {
    let template = dir.join("template.jinja");
    std::fs::write(&template, "what the renderer makes of it").unwrap();
    ["--chat-template".to_owned(), template.to_str().unwrap().to_owned()]
}

#[test]
fn costly_requests_that_keep_the_helpers_busy_are_seen_and_hold_up_no_administrator() {
    let dir = tempfile::tempdir().unwrap();
    let args = with_template(dir.path());
    let args = args.each_ref().map(String::as_str);
    let place = Place::new();
    let console = place.serve_with(&args, None, hanging());
    let service = &console.service;
    assert_eq!((service.get("/health").status, service.get("/ready").status), (200, 200));
    let clients: Vec<TcpStream> = (0..20).map(|_| ask(service, Duration::ZERO)).collect();
    for path in ["/health", "/ready"] {
        soon(path, || service.get(path).status == 503);
        let begun = Instant::now();
        service.get(path).refused(503, None, "helpers_busy");
        assert!(begun.elapsed() < Duration::from_secs(5), "{path}: {:?}", begun.elapsed());
    }
    let id = console.staged(&place.pack(1, &Module::default()));
    console.activate(id);
    service.get("/health").refused(503, None, "helpers_busy");
    drop(clients);
    for path in ["/ready", "/health"] {
        soon(path, || service.get(path).status == 200);
    }
}

#[test]
fn the_time_of_a_request_runs_from_its_beginning_and_not_anew_for_each_part() {
    let dir = tempfile::tempdir().unwrap();
    let args = with_template(dir.path());
    let args = [&args[0], &args[1], "--request-timeout", "3"];
    let service = Service::of(Served { renderer: hanging(), ..engine().into() }, &args);
    let begun = Instant::now();
    let mut answer = [0; 12];
    ask(&service, Duration::from_secs(2)).read_exact(&mut answer).unwrap();
    assert!(!answer.ends_with(b"200"));
    // Three seconds for the template alone would be five in all.
    assert!(begun.elapsed() < Duration::from_millis(4500), "{:?}", begun.elapsed());
}
