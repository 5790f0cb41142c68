//! `ruvllm serve` as an operator starts and stops it.

use crate::program::ruvllm;
use crate::serving::Serving;
use std::process::{Child, Command};

const REFERENCE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../server/ruvllm.toml");

#[test]
fn the_reference_of_the_configuration_is_what_the_program_prints() {
    let written = std::fs::read_to_string(REFERENCE).unwrap();
    let printed = ruvllm(&["serve", "--print-config"]).stdout;
    // The reference is of a program without optional features; what these add comes last.
    let (printed, traces) = printed.split_once("\n[traces]\n").unwrap_or((&printed, ""));
    assert_eq!(traces.contains("# otlp-endpoint = "), cfg!(feature = "otel"));
    let (printed, graphs) = printed.split_once("\n[graphs]\n").unwrap_or((printed, ""));
    assert_eq!(graphs.contains("# embedding-model = "), cfg!(feature = "graphs"));
    let printed = printed.replace(" wasi-nn\n", "\n");
    assert_eq!(
        written, printed,
        "stale: run `ruvllm serve --print-config > runtime/server/ruvllm.toml`"
    );
}

#[test]
fn a_printed_configuration_has_the_values_of_the_device_class() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("server.toml");
    for (class, values) in [
        ("server", ["  stack               512 KiB", "  instance memory     as the kernel asks"]),
        ("embedded", ["  stack               32 KiB", "  instance memory     128 KiB"]),
        ("threads", ["  stack               512 KiB", "  threads of a kernel "]),
    ] {
        let run = ruvllm(&["serve", "--print-config", "--device-class", class]);
        let set = format!("\ndevice-class = \"{class}\"\n");
        assert_eq!(run.text().contains(&set), class != "server", "{}", run.stdout);
        for value in [&format!("# Values of {class}:\n"), values[0], values[1]] {
            assert!(run.stdout.contains(value), "{class}: no {value:?} in {}", run.stdout);
        }
        // All that `doctor` shows of the class.
        let report = ruvllm(&["doctor", "--json", "--device-class", class]);
        let report: serde_json::Value = serde_json::from_str(report.text()).expect("JSON");
        let shown = report["class_values"].as_array().expect("values");
        assert!(shown.len() > 9, "{shown:?}");
        for row in shown {
            let [name, value] = ["name", "value"].map(|field| row[field].as_str().expect("text"));
            let line = format!("\n#   {name:<19} {value}\n");
            assert!(run.stdout.contains(&line), "{class}: no {line:?} in {}", run.stdout);
        }
        std::fs::write(&path, &run.stdout).unwrap();
        let file = path.to_str().unwrap();
        let check = ["serve", "--config", file, "--check", "--no-cache", "--kernels", "native"];
        ruvllm(&check).text();
    }
    let run = ruvllm(&["serve", "--print-config", "--strict"]);
    assert_eq!(run.code, Some(2));
    assert!(run.stderr.contains("--print-config cannot be used with --strict"), "{}", run.stderr);
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
    let admin =
        format!("[admin]\nadmin-listen = '127.0.0.1:0'\nadmin-key = ['{}']\n", entry.trim());
    check(&admin).text();
    check("[admin]\nadmin-listen = '127.0.0.1:0'").refused(&["--admin-key", "--new-key"]);
    let probe = dir.path().join("probe.txt");
    let probed = format!("{admin}probe-text = '{}'", probe.display());
    check(&probed).refused(&["probe.txt"]);
    std::fs::write(&probe, "Once upon a time").unwrap();
    check(&probed).refused(&["probe.txt", "needs at least 64"]);
    std::fs::write(&probe, "Once upon a time there was a cat. ".repeat(20)).unwrap();
    check(&probed).text();
}

#[test]
fn options_may_come_from_the_environment() {
    let check = |variables: &[(&str, &str)], options: &[&str]| {
        let fixed = ["serve", "--check", "--no-cache", "--kernels", "native"];
        let mut program = Command::new(env!("CARGO_BIN_EXE_ruvllm"));
        let output = program.args(fixed).args(options).envs(variables.iter().copied()).output();
        let output = output.expect("the program runs");
        (output.status.code(), String::from_utf8(output.stderr).expect("UTF-8"))
    };
    for (name, value, part) in [
        ("RUVLLM_MODEL", "none.gguf", "none.gguf"),
        ("RUVLLM_LISTEN", "0.0.0.0:8080", "needs API keys"),
        ("RUVLLM_LISTEN", "nowhere", "RUVLLM_LISTEN"),
        ("RUVLLM_CONFIG", "none.toml", "none.toml"),
        ("RUVLLM_ADMIN_KEYS", "alice=sk-1", "RUVLLM_ADMIN_KEYS"),
    ] {
        let (code, said) = check(&[(name, value)], &[]);
        assert!(code == Some(1) && said.contains(part), "{name}: {code:?}, {said}");
    }
    // The command line wins. The secret of an administrator, and where an orchestrator says the service is,
    // are none of the server's options.
    let variables = [
        ("RUVLLM_LISTEN", "0.0.0.0:8080"),
        ("RUVLLM_ADMIN_KEY", "sk-1"),
        ("RUVLLM_PORT", "tcp://10.0.0.1:8080"),
        ("RUVLLM_CACHE_DIR", "none"),
    ];
    let (code, said) = check(&variables, &["--listen", "127.0.0.1:0"]);
    assert_eq!(code, Some(0), "{said}");
}

#[test]
fn a_server_answers_with_the_adapter() {
    let adapter = concat!(env!("CARGO_MANIFEST_DIR"), "/demo/adapters/pirate");
    let serving = Serving::start(&["--kernels", "native", "--lora", adapter]);
    let body = r#"{"prompt": "Once upon a time", "max_tokens": 20, "temperature": 0}"#;
    let answer = serving.complete(body);
    assert!(answer.contains("salty sea"), "{answer}");
}

#[test]
fn a_server_has_a_model_for_each_named_adapter() {
    let adapter = concat!(env!("CARGO_MANIFEST_DIR"), "/demo/adapters/pirate");
    let models = [format!("pirate={adapter}"), format!("half={adapter}=0.5")];
    let options = ["--kernels", "native", "--lora-model", &models[0], "--lora-model", &models[1]];
    let serving = Serving::start(&options);
    let answer = |model: &str| {
        let prompt = r#""prompt": "Once upon a time", "max_tokens": 20, "temperature": 0"#;
        serving.complete(&format!("{{{model}{prompt}}}"))
    };
    assert!(answer(r#""model": "pirate", "#).contains("salty sea"));
    assert!(!answer("").contains("salty sea"));
    assert!(answer(r#""model": "half", "#).contains(r#""model":"half""#));
    let refused = |model: &str, parts: &[&str]| {
        ruvllm(&["serve", "--listen", "127.0.0.1:0", "--lora-model", model]).refused(parts);
        ruvllm(&["serve", "--check", "--lora-model", model]).refused(parts);
    };
    refused("parrot=no/such.gguf", &["--lora-model parrot", "no/such.gguf"]);
    let fits =
        ["serve", "--check", "--kernels", "native", "--lora", adapter, "--lora-model", &models[0]];
    assert!(ruvllm(&fits).text().starts_with("in order"));
    // What would not start is not in order.
    let again = format!("pirate={adapter}=0.5");
    let own = format!("mine={adapter}");
    for names in [
        ["--lora-model", &models[0], "--lora-model", &again],
        ["--alias", "mine", "--lora-model", &own],
    ] {
        for check in [&["--check"][..], &["--listen", "127.0.0.1:0"]] {
            let fixed = ["serve", "--kernels", "native"];
            let args: Vec<&str> =
                fixed.into_iter().chain(check.iter().copied()).chain(names).collect();
            ruvllm(&args).refused(&["two models are named"]);
        }
    }
}

#[cfg(unix)]
#[test]
fn a_server_logs_requests_without_prompts_and_ends_at_a_signal() {
    let mut serving = Serving::start(&["--kernels", "native"]);
    serving.complete(r#"{"prompt": "Once upon a secret", "max_tokens": 3}"#);
    let killed = Command::new("kill").arg(serving.child.id().to_string()).status().unwrap();
    assert!(killed.success());
    assert_eq!(serving.child.wait().unwrap().code(), Some(0));
    let rest = serving.log.iter().collect::<Vec<_>>().join("\n");
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

#[test]
fn one_server_at_a_time_keeps_the_history_of_its_kernels() {
    let dir = tempfile::tempdir().unwrap();
    let made = ruvllm(&["serve", "--new-key", "root"]);
    let entry = made.stdout.lines().nth(1).unwrap();
    let state = dir.path().to_str().unwrap();
    let admin = ["--admin-listen", "127.0.0.1:0", "--admin-key", entry, "--state-dir", state];
    let _serving = Serving::start(&admin);
    let second = ["serve", "--listen", "127.0.0.1:0", "--no-cache", "--kernels", "native"];
    ruvllm(&[&second[..], &admin].concat()).refused(&["in use by another process"]);
}

#[test]
fn a_damaged_history_is_refused_by_name_and_begun_anew_where_the_operator_says_so() {
    let dir = tempfile::tempdir().unwrap();
    let made = ruvllm(&["serve", "--new-key", "root"]);
    let entry = made.stdout.lines().nth(1).unwrap();
    let state = dir.path().to_str().unwrap();
    let admin = ["--admin-listen", "127.0.0.1:0", "--admin-key", entry, "--state-dir", state];
    let kernels = ["--kernels", "native"];
    drop(Serving::start(&[&kernels[..], &admin].concat()));
    let history = dir.path().join("swap/history");
    let kept = dir.path().join("swap/history-damaged-1");
    let mut damaged = std::fs::read(&history).unwrap();
    damaged[100] ^= 1;
    for bytes in [&damaged[..], b""] {
        std::fs::write(&history, bytes).unwrap();
        let start = ["serve", "--listen", "127.0.0.1:0", "--no-cache", "--kernels", "native"];
        let refused = [history.to_str().unwrap(), "is damaged", "--reset-history"];
        ruvllm(&[&start[..], &admin].concat()).refused(&refused);
    }
    std::fs::write(&history, &damaged).unwrap();
    drop(Serving::start(&[&kernels[..], &admin, &["--reset-history"]].concat()));
    assert_eq!(std::fs::read(&kept).unwrap(), damaged);
    // Said where it is looked for later, too.
    let begun = std::fs::read_to_string(&history).unwrap();
    assert!(begun.contains(kept.to_str().unwrap()), "{begun}");
    drop(Serving::start(&[&kernels[..], &admin].concat()));
    ruvllm(&["serve", "--reset-history"]).refused(&["--reset-history does nothing without"]);
}

#[cfg(all(unix, feature = "otel"))]
#[test]
fn a_server_that_ends_has_sent_its_traces_without_prompts() {
    let collector = ruvllm_tests::collector::Collector::start().unwrap();
    let mut serving = Serving::start(&["--otlp-endpoint", collector.url()]);
    serving.complete(r#"{"prompt": "Once upon a secret", "max_tokens": 3}"#);
    let killed = Command::new("kill").arg(serving.child.id().to_string()).status().unwrap();
    assert!(killed.success());
    assert_eq!(serving.child.wait().unwrap().code(), Some(0));
    let spans = collector.wait_for(|spans| spans.len() >= 5);
    let request = spans.iter().find(|span| span.name == "POST /v1/completions").unwrap();
    assert!(spans.iter().any(|span| span.parent == request.id));
    assert!(!collector.has_received(b"secret"));
    ruvllm(&["serve", "--check", "--otlp-endpoint", "localhost"]).refused(&["http://"]);
}

/// The server waits for a probe text, which the test writes after it has changed another file.
#[cfg(unix)]
#[test]
fn what_is_changed_while_a_server_starts_is_noticed_when_it_reads_its_configuration_anew() {
    let dir = tempfile::tempdir().unwrap();
    let path = |name: &str| dir.path().join(name).to_str().unwrap().to_owned();
    let (config, probe, packs) = (path("server.toml"), path("probe.txt"), path("packs"));
    std::fs::create_dir(&packs).unwrap();
    std::fs::write(&config, "[limits]\nqueue = 6").unwrap();
    assert!(Command::new("mkfifo").arg(&probe).status().unwrap().success());
    let (file, changed) = (probe.clone(), config.clone());
    let change = std::thread::spawn(move || {
        let mut writer = std::fs::File::options().write(true).open(file).unwrap();
        std::fs::write(changed, "[limits]\nqueue = 7").unwrap();
        let text = "Once upon a time, there was a little girl named Wren who lived by the sea. ";
        std::io::Write::write_all(&mut writer, text.repeat(8).as_bytes()).unwrap();
    });
    let state = path("state");
    let supervised = ["--watch-packs", &packs, "--state-dir", &state, "--probe-text", &probe];
    let serving = Serving::start(&[&["--config", &config], &supervised[..]].concat());
    change.join().unwrap();
    let id = serving.child.id().to_string();
    assert!(Command::new("kill").args(["-HUP", &id]).status().unwrap().success());
    let read = serving.log.iter().find(|line| line.contains("the configuration was read anew"));
    assert!(read.is_some());
    let next = serving.log.recv_timeout(std::time::Duration::from_secs(60)).unwrap();
    let event: serde_json::Value = serde_json::from_str(&next).unwrap();
    assert_eq!(event["options"], "queue", "{next}");
}

/// Whatever hangs: here a file that never comes to an end, while the server starts.
#[cfg(unix)]
#[test]
fn a_server_that_hangs_ends_some_seconds_after_the_signal() {
    let dir = tempfile::tempdir().unwrap();
    let (fifo, packs) = (dir.path().join("probe.txt"), dir.path().join("packs"));
    std::fs::create_dir(&packs).unwrap();
    assert!(Command::new("mkfifo").arg(&fifo).status().unwrap().success());
    let start = || {
        let mut serve = Command::new(env!("CARGO_BIN_EXE_ruvllm"));
        serve.args(["serve", "--listen", "127.0.0.1:0", "--drain-timeout", "0.2", "--state-dir"]);
        serve.arg(dir.path().join("state")).env("XDG_CACHE_HOME", crate::program::caches());
        serve.arg("--watch-packs").arg(&packs).arg("--probe-text").arg(&fifo);
        serve.stderr(std::process::Stdio::piped()).spawn().unwrap()
    };
    let kill = |child: &Child| {
        let killed = Command::new("kill").arg(child.id().to_string()).status().unwrap();
        assert!(killed.success());
    };
    // Opened for writing once the server reads it, and never written to.
    let (mut one, writer) = (start(), std::fs::File::options().write(true).open(&fifo).unwrap());
    let begun = std::time::Instant::now();
    kill(&one);
    assert_eq!(one.wait().unwrap().code(), Some(124));
    let took = begun.elapsed();
    assert!((5..60).contains(&took.as_secs()), "{took:?}");
    let mut said = String::new();
    std::io::Read::read_to_string(&mut one.stderr.take().unwrap(), &mut said).unwrap();
    assert!(said.contains("not everything had stopped"), "{said}");
    drop(writer);
    // A second signal ends it at once.
    let (mut two, _writer) = (start(), std::fs::File::options().write(true).open(&fifo).unwrap());
    let begun = std::time::Instant::now();
    while two.try_wait().unwrap().is_none() {
        let _ = Command::new("kill")
            .arg(two.id().to_string())
            .stderr(std::process::Stdio::null())
            .status();
        std::thread::sleep(std::time::Duration::from_millis(200));
    }
    assert_eq!(two.wait().unwrap().code(), Some(130));
    assert!(begun.elapsed() < took, "{:?}", begun.elapsed());
}
