//! Changing the kernels of a live server, as an operator does it.

use crate::program::{Run, caches, ruvllm};
use crate::serving::Serving;
use ruvllm::signing::SecretKey;
use ruvllm_tests::wat::{Module, but_for, rmsnorm_f32};
use ruvllm_tests::{PackBuilder, TestPack};
use serde_json::Value;
use std::collections::{BTreeMap, BTreeSet};
use std::fs::{self, File};
use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};
use tempfile::TempDir;

/// An operator: the key of an administrator, the key of a publisher, and a place for a server's state.
struct Operator {
    dir: TempDir,
    publisher: SecretKey,
    /// What the server knows of the administrator's key.
    entry: String,
}

/// A server that the operator has started.
struct Live<'o> {
    operator: &'o Operator,
    serving: Serving,
}

impl Operator {
    fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let made = ruvllm(&["serve", "--new-key", "me"]);
        let (secret, entry) = made.text().split_once('\n').unwrap();
        let operator =
            Self { publisher: SecretKey::generate().unwrap(), entry: entry.to_owned(), dir };
        operator.write_key("admin.key", secret);
        fs::copy(operator.pack(1).policy_file(), operator.path("trust.toml")).unwrap();
        fs::create_dir(operator.path("packs")).unwrap();
        operator
    }

    fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    fn write_key(&self, name: &str, secret: &str) {
        fs::write(self.path(name), secret).unwrap();
        #[cfg(unix)]
        {
            use std::os::unix::fs::PermissionsExt as _;
            fs::set_permissions(self.path(name), fs::Permissions::from_mode(0o600)).unwrap();
        }
    }

    /// A good pack of this version.
    fn pack(&self, version: u64) -> TestPack {
        self.pack_of(version, &Module::default())
    }

    fn pack_of(&self, version: u64, module: &Module) -> TestPack {
        let key = SecretKey::parse(self.publisher.to_pem().unwrap().as_bytes()).unwrap();
        PackBuilder::new()
            .kernel("rmsnorm_f32", rmsnorm_f32(module))
            .manifest(|manifest| manifest.version = format!("{version}.0.0").parse().unwrap())
            .key(key)
            .build()
    }

    /// A server whose health windows last so long, with further options. How often kernels are called is not
    /// what its tests are about.
    fn serve(&self, window: &str, options: &[&str]) -> Live<'_> {
        self.judging(window, &[&["--health-calls", "0"], options].concat())
    }

    /// As [`Operator::serve`], with a server that wants to see as many calls as it does by default.
    fn judging(&self, window: &str, options: &[&str]) -> Live<'_> {
        let (state, trust) = (self.path("state"), self.path("trust.toml"));
        let mut args = vec!["--admin-listen", "127.0.0.1:0", "--admin-key", &self.entry];
        args.extend(["--state-dir", state.to_str().unwrap(), "--trust", trust.to_str().unwrap()]);
        args.extend(["--health-window", window]);
        args.extend(options);
        Live { operator: self, serving: Serving::start(&args) }
    }
}

impl Live<'_> {
    fn url(&self) -> String {
        format!("http://{}", self.serving.admin.as_deref().expect("an admin listener"))
    }

    /// What the admin listener answers at a route.
    fn get(&self, route: &str) -> String {
        let address = self.serving.admin.as_deref().expect("an admin listener");
        let key = fs::read_to_string(self.operator.path("admin.key")).unwrap();
        let mut stream = TcpStream::connect(address).unwrap();
        let key = key.trim();
        write!(
            stream,
            "GET {route} HTTP/1.1\r\nhost: {address}\r\nconnection: close\r\nauthorization: Bearer {key}\r\n\r\n"
        )
        .unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).unwrap();
        let (head, body) = answer.split_once("\r\n\r\n").unwrap();
        assert!(head.starts_with("HTTP/1.1 200"), "{route}: {head}");
        body.to_owned()
    }

    /// Runs `ruvllm kernels` with these arguments and the administrator's key.
    fn kernels<S: AsRef<Path>>(&self, args: &[S]) -> Run {
        self.kernels_with_key(args, "admin.key")
    }

    fn kernels_with_key<S: AsRef<Path>>(&self, args: &[S], key: &str) -> Run {
        let mut all = vec![PathBuf::from("kernels")];
        all.extend(args.iter().map(|arg| arg.as_ref().to_owned()));
        all.extend(["--server".into(), self.url().into(), "--key-file".into()]);
        all.push(self.operator.path(key));
        ruvllm(&all)
    }

    fn json(&self, args: &[&str]) -> Value {
        let args: Vec<&str> = args.iter().copied().chain(["--json"]).collect();
        serde_json::from_str(self.kernels(&args).text()).unwrap()
    }

    /// Stages a pack, as an archive, and activates it.
    fn activate(&self, pack: &TestPack) {
        let archive = self.operator.path("pack.rkp");
        pack.read().unwrap().write_archive(File::create(&archive).unwrap()).unwrap();
        let staged = self.kernels(&[Path::new("stage"), &archive, Path::new("--json")]);
        let staged: Value = serde_json::from_str(staged.text()).unwrap();
        self.json(&["activate", &staged["id"].to_string()]);
    }

    /// The versions of the test's packs that are active.
    fn active(&self) -> Vec<String> {
        let report = self.json(&["list"]);
        let generations = report["generations"].as_array().unwrap().iter();
        let active = generations.filter(|generation| generation["state"] == "active");
        let packs = active.flat_map(|generation| generation["packs"].as_array().unwrap());
        let ours = packs.filter(|pack| pack["name"] == "test-kernels");
        ours.map(|pack| pack["version"].as_str().unwrap().to_owned()).collect()
    }

    /// What was done, oldest first.
    fn events(&self) -> Vec<String> {
        let history = self.json(&["history", "--limit", "1000"]);
        let entries = history["entries"].as_array().unwrap().iter().rev();
        entries.map(|entry| entry["event"].as_str().unwrap().to_owned()).collect()
    }

    /// Waits until the history ends with an event.
    fn wait_for(&self, event: &str) {
        soon(event, || self.events().last().is_some_and(|last| last == event));
    }
}

/// Waits for something that must happen soon.
fn soon(what: &str, mut happened: impl FnMut() -> bool) {
    let start = Instant::now();
    while !happened() {
        assert!(start.elapsed() < Duration::from_secs(60), "{what}");
        thread::sleep(Duration::from_millis(100));
    }
}

#[test]
fn what_a_trap_was_is_in_the_log_and_in_the_explanation_of_a_live_server() {
    let operator = Operator::new();
    // As many as the demo model's hidden states have.
    let beyond = but_for(256, "(drop (i64.load (i32.const 0x7fffffff)))");
    let pack = operator.pack_of(1, &beyond);
    let live = operator.serve("300", &["--pack", pack.path().to_str().unwrap()]);
    live.serving.complete(r#"{"prompt": "Once", "max_tokens": 8}"#);
    let told = "trapped: read 8 bytes at 0x7fffffff, beyond its memory of 0x";
    let explained = live.kernels(&["explain", "rmsnorm"]);
    for part in [told, " out_of_bounds", "in rmsnorm_forward at 0x"] {
        assert!(explained.text().contains(part), "no {part:?} in {}", explained.stdout);
    }
    let logged = live.serving.log.iter().find(|line| line.contains("kernel rmsnorm_f32 of"));
    let event: Value = serde_json::from_str(&logged.unwrap()).unwrap();
    assert_eq!(event["level"], "WARN", "{event}");
    let message = event["message"].as_str().unwrap();
    for part in [told, "rmsnorm(f32,f32)->f32 (generation ", "in rmsnorm_forward at 0x"] {
        assert!(message.contains(part), "no {part:?} in {message}");
    }
}

#[test]
fn a_pinned_kernel_may_come_with_a_pack_that_is_activated_later() {
    let operator = Operator::new();
    let pin = ["--pin", "rmsnorm=test-kernels/rmsnorm_f32"];
    let to_come = |line: &str| line.contains(pin[1]) && line.contains("is activated later");
    let selected = |live: &Live<'_>| {
        let explained = live.kernels(&["explain", "rmsnorm"]);
        explained.text().lines().find(|line| line.contains("selected")).unwrap().to_owned()
    };
    let live = operator.serve("1", &pin);
    assert!(live.serving.before.iter().any(|line| to_come(line)), "{:?}", live.serving.before);
    assert!(!selected(&live).contains("test-kernels"));
    live.activate(&operator.pack(1));
    live.wait_for("healthy");
    drop(live);
    // Brought back before its kernels are looked for.
    let live = operator.serve("1", &pin);
    assert!(!live.serving.before.iter().any(|line| to_come(line)), "{:?}", live.serving.before);
    assert!(selected(&live).contains("test-kernels 1.0.0"));
    assert!(live.kernels(&["explain", "rmsnorm"]).text().contains("pinned by the configuration"));
    drop(live);

    let (packs, state) = (operator.path("packs"), operator.path("state"));
    let serve = ["serve", "--check", "--state-dir", state.to_str().unwrap()];
    let later = [&serve[..], &["--watch-packs", packs.to_str().unwrap()]].concat();
    let checked = ruvllm(&[&later[..], &pin].concat());
    assert!(checked.code == Some(0) && to_come(&checked.stderr), "{}", checked.stderr);
    // No pack brings an operation that models would call.
    let wrong = ["--pin", "rmsnrom=test-kernels/rmsnorm_f32"];
    ruvllm(&[&later[..], &wrong].concat())
        .refused(&["no operation", "nearest name is \"rmsnorm\""]);
    // Where none comes later, it is missing for good.
    ruvllm(&[&serve[..], &pin].concat()).refused(&[pin[1], "nearest name is"]);
}

/// A kernel that takes some 0.1 ms longer than the core pack's of the same id and the native twin.
#[test]
fn a_change_of_choice_is_explained_with_its_evidence_live_and_after_the_server() {
    let operator = Operator::new();
    // As many columns as the demo model's hidden states have.
    let slow = but_for(
        256,
        "(local.set $i (i32.const 100000))
         (loop $wait (br_if $wait (local.tee $i (i32.sub (local.get $i) (i32.const 1)))))",
    );
    let pack = operator.pack_of(1, &slow);
    let (path, cache) = (pack.path(), operator.path("cache"));
    // What is learnt is kept beside compiled kernels.
    let [path, cache] = [&path, &cache].map(|path| path.to_str().unwrap());
    let options = ["--kernels", "fastest", "--pack", path, "--cache-dir", cache];
    let live = operator.serve("300", &options);
    let changes = || -> Vec<String> {
        let history = live.json(&["history", "--limit", "1000"]);
        let entries = history["entries"].as_array().unwrap().iter();
        let changes = entries.filter(|entry| entry["event"] == "choice_changed");
        let reasons = changes.map(|entry| entry["reason"].as_str().unwrap().to_owned());
        reasons.filter(|change| change.starts_with("rmsnorm(f32,f32)->f32, calls of ")).collect()
    };
    let from_ours = |change: &String| change.contains("instead of test-kernels/rmsnorm_f32: ");
    soon("another is asked first", || {
        live.serving.complete(
            r#"{"prompt": "Once", "max_tokens": 60, "n": 8, "ignore_eos": true, "temperature": 1}"#,
        );
        changes().iter().any(from_ours)
    });

    let change = changes().into_iter().find(from_ours).unwrap();
    let (_, evidence) = change.split_once(": ").unwrap();
    let faster = ["ruvllm-core-kernels/rmsnorm_f32 ", "native:rmsnorm_f32 "];
    assert!(faster.iter().any(|kernel| evidence.starts_with(kernel)), "{change}");
    let (_, evidence) = evidence.split_once(": ").unwrap();
    let numbers: Vec<f64> =
        evidence.split_whitespace().filter_map(|word| word.parse().ok()).collect();
    let [to, from, of_to, of_from] = numbers[..] else { panic!("{change}") };
    assert!(to * 1.25 < from && of_to >= 128.0 && of_from >= 128.0, "{change}");

    // The newest of each class of sizes is explained, and nothing more is called that would change one.
    let explains = |explained: &str, change: &str| {
        explained.lines().any(|line| {
            let said = line.trim().strip_prefix("changed ");
            said.is_some_and(|said| said.split_once("Z: ").is_some_and(|(_, why)| why == change))
        })
    };
    let explained = || live.kernels(&["explain", "rmsnorm"]).text().to_owned();
    soon("the newest change is explained", || explains(&explained(), &changes()[0]));
    let newest = changes().swap_remove(0);
    drop(live);
    let trust = operator.path("trust.toml");
    let explain = ["kernels", "explain", "rmsnorm", "--trust", trust.to_str().unwrap()];
    let local = ruvllm(&[&explain[..], &options].concat());
    assert!(explains(local.text(), &newest), "no {newest:?} in {}", local.stdout);
}

#[test]
fn packs_are_staged_activated_explained_and_gone_back_from() {
    let operator = Operator::new();
    let live = operator.serve("300", &[]);
    let (one, two) = (operator.pack(1), operator.pack(2));
    let staged = live.kernels(&[Path::new("stage"), &one.path()]);
    let said = staged.text();
    assert!(said.contains("test-kernels 1.0.0 is staged as 1"), "{said}");
    assert!(said.contains("ruvllm kernels activate 1"), "{said}");
    let listed = live.kernels(&["list"]);
    assert!(listed.text().contains(&one.verify().unwrap().digest().to_string()));
    let activated = live.kernels(&["activate", "1"]);
    assert!(activated.text().contains("test-kernels 1.0.0 is active"), "{}", activated.stdout);
    live.serving.complete(r#"{"prompt": "Once", "max_tokens": 3}"#);
    let explained = live.kernels(&["explain", "rmsnorm"]);
    let selected = explained.text().lines().find(|line| line.contains("selected")).unwrap();
    assert!(selected.contains("test-kernels 1.0.0, wasmtime"), "{selected}");
    let listed = live.kernels(&["list"]);
    assert!(listed.text().contains("watching generation"), "{}", listed.stdout);
    live.activate(&two);
    assert_eq!(live.active(), ["2.0.0"]);
    let back = live.kernels(&["rollback"]);
    assert!(back.text().contains("with the packs of generation"), "{}", back.stdout);
    assert_eq!(live.active(), ["1.0.0"]);
    let history = live.kernels(&["history"]);
    let rolled_back = history.text().lines().find(|line| line.contains("rolled back")).unwrap();
    let time = rolled_back.split_whitespace().nth(1).unwrap();
    assert!(rolled_back.contains("  me  ") && time.ends_with('Z'), "{rolled_back}");
    let expected = ["started", "staged", "activating", "activated", "staged", "activating"];
    assert_eq!(live.events()[..6], expected);
    // Through a trial, and out of the waiting room.
    live.kernels(&[Path::new("stage"), &two.path()]).text();
    let tried = live.kernels(&["activate", "3", "--share", "0.25"]);
    assert!(tried.text().contains("on trial: 25 % of the steps"), "{}", tried.stdout);
    let listed = live.kernels(&["list"]);
    assert!(listed.text().contains("trial, 25 %"), "{}", listed.stdout);
    live.kernels(&["end-trial"]).text();
    live.kernels(&[Path::new("stage"), &two.path()]).text();
    live.kernels(&["activate", "4", "--share", "1"]).text();
    live.kernels(&["promote"]).text();
    assert_eq!(live.active(), ["2.0.0"]);
    // A pack crate stands for its build.
    let my_kernels = operator.path("my-kernels");
    fs::create_dir(&my_kernels).unwrap();
    operator.pack(3).read().unwrap().write_dir(&my_kernels.join("dist")).unwrap();
    fs::write(my_kernels.join("pack.toml"), "").unwrap();
    let staged = live.kernels(&[Path::new("stage"), &my_kernels]);
    assert!(staged.text().contains("test-kernels 3.0.0 is staged as 5"), "{}", staged.stdout);
    assert_eq!(live.kernels(&["discard", "5"]).text(), "5 is staged no longer");
}

#[test]
fn refusals_are_the_servers_own_words_and_change_nothing() {
    let operator = Operator::new();
    let live = operator.serve("300", &[]);
    live.kernels(&["activate", "7"]).refused(&["[not_staged]"]);
    live.kernels(&["rollback", "7"]).refused(&["[generation_not_kept]"]);
    live.kernels(&["promote"]).refused(&["[no_canary]"]);
    live.kernels(&["explain", "nonsense"]).refused(&["nonsense"]);
    let digest = format!("sha256:{}", "0".repeat(64));
    live.kernels(&["clear", &digest]).refused(&[&digest]);
    let stranger =
        PackBuilder::new().kernel("rmsnorm_f32", rmsnorm_f32(&Module::default())).build();
    live.kernels(&[Path::new("stage"), &stranger.path()])
        .refused(&["signature_unknown_key", "SIGHUP or POST /admin/v1/reload"]);
    let history = live.kernels(&["history", "--limit", "1"]);
    assert!(history.text().contains("refused"), "{}", history.stdout);
    operator.write_key("other.key", "sk-nobodys");
    live.kernels_with_key(&["list"], "other.key").refused(&["unknown"]);
    // The other listener has no such API, and says so to whoever tries.
    let client = format!("http://{}", live.serving.address);
    let key = operator.path("admin.key");
    let key = key.to_str().unwrap();
    ruvllm(&["kernels", "list", "--server", &client, "--key-file", key])
        .refused(&["is not the admin API"]);
    let gone = live.url();
    drop(live);
    ruvllm(&["kernels", "list", "--server", &gone, "--key-file", key])
        .refused(&["no answer from", "--admin-listen"]);
    ruvllm(&["kernels", "list", "--server", "http://192.0.2.1:1", "--key-file", key])
        .refused(&["use https"]);
    ruvllm(&["kernels", "promote", "--server", &gone]).refused(&["RUVLLM_ADMIN_KEY"]);
    for wrong in [
        &["kernels", "list", "--server", &gone, "--kernels", "native"][..],
        &["kernels", "clear", "sha256:0"],
        &["kernels", "stage"],
    ] {
        assert_eq!(ruvllm(wrong).code, Some(2), "{wrong:?}");
    }
}

#[cfg(unix)]
#[test]
fn a_key_that_others_can_read_is_not_sent() {
    use std::os::unix::fs::PermissionsExt as _;
    let operator = Operator::new();
    let key = operator.path("admin.key");
    fs::set_permissions(&key, fs::Permissions::from_mode(0o644)).unwrap();
    ruvllm(&["kernels", "history", "--key-file", key.to_str().unwrap()]).refused(&["chmod 600"]);
}

#[test]
fn certificates_are_checked() {
    let operator = Operator::new();
    let made = rcgen::generate_simple_self_signed(["localhost".to_owned()]).unwrap();
    let (cert, key) = (operator.path("cert.pem"), operator.path("key.pem"));
    fs::write(&cert, made.cert.pem()).unwrap();
    fs::write(&key, made.signing_key.serialize_pem()).unwrap();
    let (cert, key) = (cert.to_str().unwrap(), key.to_str().unwrap());
    let live = operator.serve("300", &["--tls-cert", cert, "--tls-key", key]);
    let port = live.serving.admin.as_ref().unwrap().rsplit_once(':').unwrap().1;
    let url = format!("https://localhost:{port}");
    let admin = operator.path("admin.key");
    let args = ["kernels", "list", "--server", &url, "--key-file", admin.to_str().unwrap()];
    let known = ruvllm(&[&args[..], &["--ca", cert]].concat());
    assert!(known.text().contains("is active"), "{}", known.stdout);
    ruvllm(&args).refused(&["certificate"]);
    ruvllm(&[&args[..], &["--ca", key]].concat()).refused(&["no certificate in it"]);
}

#[cfg(unix)]
#[test]
fn after_kill_9_the_last_healthy_generation_is_active() {
    let operator = Operator::new();
    let live = operator.serve("0.1", &[]);
    live.activate(&operator.pack(1));
    live.wait_for("healthy");
    drop(live);
    let live = operator.serve("300", &[]);
    assert_eq!(live.active(), ["1.0.0"]);
    live.activate(&operator.pack(2));
    assert_eq!(live.active(), ["2.0.0"]);
    // Dropping sends SIGKILL.
    drop(live);
    let live = operator.serve("300", &[]);
    assert_eq!(live.active(), ["1.0.0"]);
    let answer = live.serving.complete(r#"{"prompt": "Once", "max_tokens": 3}"#);
    assert!(answer.contains("\"completion_tokens\":3"), "{answer}");
}

#[test]
fn a_pack_that_does_harm_is_taken_back_barred_and_cleared() {
    let operator = Operator::new();
    let live = operator.serve("300", &[]);
    let key = SecretKey::parse(operator.publisher.to_pem().unwrap().as_bytes()).unwrap();
    // Right in more calls than staging makes, then never again.
    let module = Module {
        fields: "(global $calls (mut i32) (i32.const 0))".into(),
        prologue: "(global.set $calls (i32.add (global.get $calls) (i32.const 1)))
                   (if (i32.gt_u (global.get $calls) (i32.const 300)) (then unreachable))"
            .into(),
        ..Module::default()
    };
    let bad = PackBuilder::new().kernel("rmsnorm_f32", rmsnorm_f32(&module)).key(key).build();
    live.activate(&bad);
    live.serving.complete(r#"{"prompt": "Once", "max_tokens": 96, "ignore_eos": true}"#);
    live.wait_for("rolled_back");
    assert!(live.active().is_empty());
    let digest = bad.verify().unwrap().digest().to_string();
    let listed = live.kernels(&["list"]);
    assert!(
        listed.text().contains(&digest) && listed.stdout.contains("trapped"),
        "{}",
        listed.stdout
    );
    live.kernels(&[Path::new("stage"), &bad.path()]).refused(&["[pack_barred]", "trapped"]);
    live.kernels(&["clear", "0000"]).refused(&["[not_barred]"]);
    assert!(live.kernels(&["clear", &digest[7..19]]).text().contains("may be staged again"));
    live.kernels(&[Path::new("stage"), &bad.path()]).text();
}

/// Puts a pack into a live server that is used meanwhile, and asserts that it stays and answers `op`.
pub(crate) fn is_found_healthy(my_kernels: &str, trust: &str, op: &str) {
    let operator = Operator::new();
    fs::copy(trust, operator.path("trust.toml")).unwrap();
    let live = operator.judging("2", &[]);
    // Of each prompt every call is timed, which one of a single token seldom is.
    let mut prompts = 0;
    let mut use_it = || {
        for _ in 0..10 {
            let prompt = format!("{prompts} little cats went to the big house by the sea");
            live.serving.complete(&format!(r#"{{"prompt": "{prompt}", "max_tokens": 2}}"#));
            prompts += 1;
        }
    };
    // Medians are compared where there are enough calls on both sides.
    (0..6).for_each(|_| use_it());
    live.kernels(&["stage", my_kernels]).text();
    live.kernels(&["activate", "1"]).text();
    soon("it is found healthy", || {
        use_it();
        let history = live.json(&["history"]);
        let entries = history["entries"].as_array().unwrap();
        let taken_back = |entry: &&Value| entry["event"] == "rolled_back";
        assert_eq!(entries.iter().find(taken_back), None);
        entries[0]["event"] == "healthy"
    });
    let explained = live.kernels(&["explain", op]);
    let selected = explained.text().lines().find(|line| line.contains("selected")).unwrap();
    assert!(selected.contains("my-kernels 0.1.0, wasmtime"), "{selected}");
}

#[cfg(unix)]
#[test]
fn watching_shows_what_happens_and_how_new_packs_do() {
    let operator = Operator::new();
    let live = operator.serve("300", &[]);
    let mut watch = Command::new(env!("CARGO_BIN_EXE_ruvllm"))
        .args(["kernels", "watch"])
        .env("RUVLLM_ADMIN_URL", live.url())
        .env("RUVLLM_ADMIN_KEY", fs::read_to_string(operator.path("admin.key")).unwrap())
        .env("XDG_CACHE_HOME", caches())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut lines = BufReader::new(watch.stdout.take().unwrap()).lines().map(Result::unwrap);
    assert!(lines.next().unwrap().contains("started"));
    live.activate(&operator.pack(1));
    let expected = ["staged, by me", "activating, by me", "activated, by me", "s left: 0 traps"];
    for (part, line) in expected.into_iter().zip(&mut lines) {
        assert!(line.contains(part) && line.contains("test-kernels 1.0.0"), "{line}");
    }
    let interrupted = Command::new("kill").args(["-INT", &watch.id().to_string()]).status();
    assert!(interrupted.unwrap().success());
    assert_eq!(watch.wait().unwrap().code(), Some(130));
}

#[test]
fn packs_that_appear_in_a_watched_directory_become_active() {
    let operator = Operator::new();
    let packs = operator.path("packs");
    let live = operator.serve("300", &["--watch-packs", packs.to_str().unwrap()]);
    let put = |version| {
        let pack = operator.pack(version).read().unwrap();
        pack.write_archive(File::create(packs.join("pack.rkp")).unwrap()).unwrap();
    };
    put(1);
    soon("the first pack", || live.active() == ["1.0.0"]);
    put(2);
    soon("the second pack", || live.active() == ["2.0.0"]);
    let history = live.json(&["history", "--limit", "1"]);
    assert_eq!(history["entries"][0]["operator"], "directory");
    // Of its own accord it comes no more once an operator has gone back.
    live.kernels(&["rollback"]).text();
    let before = live.events();
    thread::sleep(Duration::from_secs(5));
    assert_eq!(live.active(), ["1.0.0"]);
    assert_eq!(live.events(), before);
}

#[cfg(unix)]
#[test]
fn a_signal_makes_the_server_read_trust_and_keys_anew() {
    let operator = Operator::new();
    let (packs, config) = (operator.path("packs"), operator.path("server.toml"));
    let keys = |name: &str| {
        let made = ruvllm(&["serve", "--new-key", name]);
        let (secret, entry) = made.text().split_once('\n').unwrap();
        (secret.to_owned(), format!("[server]\napi-key = ['{entry}']\n"))
    };
    let ((alice, alices), (bob, bobs)) = (keys("alice"), keys("bob"));
    fs::write(&config, alices).unwrap();
    let options = ["--watch-packs", packs.to_str().unwrap(), "--config", config.to_str().unwrap()];
    let live = operator.serve("300", &options);
    let stranger =
        PackBuilder::new().kernel("rmsnorm_f32", rmsnorm_f32(&Module::default())).build();
    stranger.read().unwrap().write_archive(File::create(packs.join("new.rkp")).unwrap()).unwrap();
    live.wait_for("refused");
    let body = r#"{"prompt": "Once", "max_tokens": 1}"#;
    let answers =
        |key: &str| live.serving.post_as(key, "/v1/completions", body).starts_with("HTTP/1.1 200");
    let hang_up = |message: &str| -> Value {
        let pid = live.serving.child.id().to_string();
        assert!(Command::new("kill").args(["-HUP", &pid]).status().unwrap().success());
        let lines = live.serving.log.iter().map(|line| serde_json::from_str::<Value>(&line));
        let said = |line: &Value| line["message"].as_str().is_some_and(|m| m.contains(message));
        lines.flatten().find(said).unwrap()
    };
    assert!(answers(&alice) && !answers(&bob));
    // The publisher of before, and a new one.
    let both = fs::read_to_string(operator.path("trust.toml")).unwrap();
    let new = fs::read_to_string(stranger.policy_file()).unwrap();
    let new = new.replace("version = 1", "").replace("\"test\"", "\"newcomer\"");
    fs::write(operator.path("trust.toml"), both.clone() + &new).unwrap();
    fs::write(&config, bobs + "[limits]\nqueue = 7\n").unwrap();
    let said = hang_up("read anew");
    let changed = "trust policy with newcomer; API keys (new: bob; gone: alice)";
    assert_eq!((&said["changed"], &said["operator"]), (&changed.into(), &"SIGHUP".into()));
    soon("the pack is delivered", || live.active() == ["1.0.0"]);
    assert!(answers(&bob) && !answers(&alice));
    assert!(live.events().contains(&"reloaded".to_owned()), "{:?}", live.events());

    fs::write(operator.path("trust.toml"), "version = 1\n[[publishers]]").unwrap();
    fs::write(&config, "[server]\n").unwrap();
    let said = hang_up("nothing was changed");
    assert!(said["message"].as_str().unwrap().contains("trust.toml"), "{said}");
    fs::write(operator.path("trust.toml"), both).unwrap();
    hang_up("no API keys any more");
    assert!(answers(&bob));
}

/// A pack that is not healthy yet when the process is killed, and no administrator who could stage it.
#[test]
fn a_pack_whose_server_was_killed_in_its_window_is_delivered_again() {
    let operator = Operator::new();
    let packs = operator.path("packs");
    let watch = ["--watch-packs", packs.to_str().unwrap()];
    let pack = operator.pack(1).read().unwrap();
    pack.write_archive(File::create(packs.join("pack.rkp")).unwrap()).unwrap();
    let live = operator.serve("300", &watch);
    soon("the pack is delivered", || live.active() == ["1.0.0"]);
    drop(live);
    let live = operator.serve("300", &watch);
    soon("the pack is delivered again", || live.active() == ["1.0.0"]);
    let activated = live.events().iter().filter(|event| *event == "activated").count();
    assert_eq!(activated, 2);
}

/// Asked to stop, a server does not count that against the packs that it watches.
#[cfg(unix)]
#[test]
fn a_server_that_is_asked_to_stop_says_so_in_the_history() {
    let operator = Operator::new();
    let packs = operator.path("packs");
    let watch = ["--watch-packs", packs.to_str().unwrap()];
    let pack = operator.pack(1).read().unwrap();
    pack.write_archive(File::create(packs.join("pack.rkp")).unwrap()).unwrap();
    let mut live = operator.serve("300", &watch);
    soon("the pack is delivered", || live.active() == ["1.0.0"]);
    let pid = live.serving.child.id().to_string();
    assert!(Command::new("kill").args(["-TERM", &pid]).status().unwrap().success());
    assert!(live.serving.child.wait().unwrap().success());
    let live = operator.serve("300", &watch);
    soon("the pack is delivered again", || live.active() == ["1.0.0"]);
    let events = live.events();
    let stopped = events.iter().position(|event| event == "stopped").unwrap();
    assert_eq!(events[stopped + 1], "started", "{events:?}");
}

#[test]
fn a_pack_crate_that_was_never_built_is_named_in_the_log() {
    let operator = Operator::new();
    let packs = operator.path("packs");
    fs::create_dir(packs.join("my-kernels")).unwrap();
    fs::write(packs.join("my-kernels/pack.toml"), "").unwrap();
    let live = operator.serve("300", &["--watch-packs", packs.to_str().unwrap()]);
    let said = |line: &String| line.contains("my-kernels is a pack crate that has not been built");
    assert!(live.serving.log.iter().any(|line| said(&line)));
    let later = Instant::now() + Duration::from_secs(5);
    while let Some(left) = later.checked_duration_since(Instant::now()) {
        let Ok(line) = live.serving.log.recv_timeout(left) else { break };
        assert!(!said(&line), "once is enough");
    }
}

#[test]
fn the_same_version_with_other_bytes_is_said_where_it_is_staged_and_activated() {
    let operator = Operator::new();
    let live = operator.serve("300", &[]);
    let key = SecretKey::parse(operator.publisher.to_pem().unwrap().as_bytes()).unwrap();
    let other = PackBuilder::new()
        .kernel("rmsnorm_f32", rmsnorm_f32(&Module::default()))
        .manifest(|manifest| manifest.description = "another pack".to_owned())
        .manifest(|manifest| manifest.version = "1.0.0".parse().unwrap())
        .key(key)
        .build();
    let warning = "warning: test-kernels 1.0.0 has other bytes than the test-kernels 1.0.0";
    let warns = |args: &[&Path]| {
        let run = live.kernels(args);
        run.text();
        run.stderr.contains(warning)
    };
    let (stage, activate) = (Path::new("stage"), Path::new("activate"));
    assert!(!warns(&[stage, &operator.pack(1).path()]));
    assert!(!warns(&[activate, Path::new("1")]));
    assert!(warns(&[stage, &other.path()]));
    assert!(warns(&[activate, Path::new("2")]));
    assert!(!warns(&[stage, &operator.pack(2).path()]));
}

/// The paths of all fields of a value.
fn fields(at: &str, value: &Value) -> Vec<String> {
    let mut found: Vec<String> = Vec::new();
    match value {
        Value::Object(object) => {
            for (name, value) in object {
                let path = if at.is_empty() { name.clone() } else { format!("{at}.{name}") };
                found.extend(fields(&path, value));
                found.push(path);
            }
        }
        Value::Array(values) => {
            let path = format!("{at}[]");
            found.extend(values.iter().flat_map(|value| fields(&path, value)));
        }
        _ => {}
    }
    found
}

/// What programs read of a line of metrics: the family of a line that gives its type, and each label of a
/// sample, with its value where the values are a few that are always the same.
fn names_of_metric(line: &str) -> Vec<String> {
    if let Some(of_type) = line.strip_prefix("# TYPE ") {
        return of_type.split_whitespace().take(1).map(str::to_owned).collect();
    }
    let sample = line.rsplit_once(' ').filter(|_| !line.starts_with('#'));
    let Some((name, labels)) = sample.and_then(|(sample, _)| sample.split_once('{')) else {
        return Vec::new();
    };
    let fixed = ["state", "event", "reason", "kind", "outcome", "use", "owner"];
    let label = |label: &str| {
        let (label, value) = label.split_once('=')?;
        let value = value.trim_end_matches('}').trim_matches('"');
        Some(match fixed.contains(&label) {
            true => format!("{name}{{{label}={value}}}"),
            false => format!("{name}{{{label}}}"),
        })
    };
    labels.split(',').filter_map(label).collect()
}

/// The state of a server of an earlier build, which had found a pack healthy, and the metrics and fields that it
/// answered with: `tests/fixtures/upgrade`.
#[test]
fn a_server_that_is_upgraded_goes_on_with_its_healthy_packs() {
    let operator = Operator::new();
    let earlier = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/fixtures/upgrade");
    let packs = operator.path("state/swap/packs");
    fs::create_dir_all(&packs).unwrap();
    let kept = "01d5606178f218e0bc5edc13e76df9acb8c611bd0f889b442e2cadf4af8efd22.rkp";
    fs::copy(earlier.join("swap/packs").join(kept), packs.join(kept)).unwrap();
    fs::copy(earlier.join("swap/history"), operator.path("state/swap/history")).unwrap();
    fs::copy(earlier.join("trust.toml"), operator.path("trust.toml")).unwrap();
    // As the server left it: nobody else may read its state, whatever a checkout of the fixture allows.
    #[cfg(unix)]
    for (private, mode) in [
        ("state", 0o700),
        ("state/swap", 0o700),
        ("state/swap/history", 0o600),
        ("state/swap/packs", 0o700),
        (&format!("state/swap/packs/{kept}"), 0o600),
    ] {
        use std::os::unix::fs::PermissionsExt as _;
        fs::set_permissions(operator.path(private), fs::Permissions::from_mode(mode)).unwrap();
    }
    let live = operator.serve("300", &[]);
    live.serving.complete(r#"{"prompt": "Once", "max_tokens": 3}"#);
    let explained = live.kernels(&["explain", "rmsnorm"]);
    let selected = explained.text().lines().find(|line| line.contains("selected")).unwrap();
    assert!(selected.contains("upgrade-norms 2.0.0, wasmtime"), "{selected}");
    let events = live.events();
    let before = ["started", "staged", "activating", "activated", "unproven", "healthy"];
    assert_eq!(events[..6], before, "the history goes on");
    assert!(events.len() > 6, "{events:?}");

    // What programs read of that build they still find.
    let known = fs::read(earlier.join("answers.json")).unwrap();
    let known: BTreeMap<String, BTreeSet<String>> = serde_json::from_slice(&known).unwrap();
    for (route, names) in known {
        let answer = live.get(&route);
        let found: BTreeSet<String> = match route.as_str() {
            "/metrics" => answer.lines().flat_map(names_of_metric).collect(),
            _ => fields("", &serde_json::from_str(&answer).unwrap()).into_iter().collect(),
        };
        let gone: Vec<&String> = names.difference(&found).collect();
        assert!(gone.is_empty(), "{route}: {gone:?} of {found:?}");
    }
}

/// A server that is in the middle of many texts when it is asked to stop.
#[cfg(unix)]
#[test]
fn a_server_that_a_second_signal_ends_was_asked_to_stop_and_its_packs_are_not_suspected() {
    let operator = Operator::new();
    let packs = operator.path("packs");
    let pack = operator.pack(1);
    pack.read().unwrap().write_archive(File::create(packs.join("pack.rkp")).unwrap()).unwrap();
    let options = ["--watch-packs", packs.to_str().unwrap(), "--threads", "1"];
    for times in 1..=2 {
        let mut live = operator.serve("300", &options);
        soon("delivered", || live.active() == ["1.0.0"]);
        let body = r#"{"prompt": "Once", "max_tokens": 500, "n": 128, "ignore_eos": true}"#;
        let _request = live.serving.send("", "/v1/completions", body);
        soon("begun", || {
            let status: Value = serde_json::from_str(&live.get("/status")).unwrap();
            status["scheduler"]["running"].as_u64().is_some_and(|running| running > 0)
        });
        let signal = || {
            let id = live.serving.child.id().to_string();
            assert!(Command::new("kill").arg(id).status().unwrap().success());
        };
        signal();
        live.serving.log.iter().find(|line| line.contains("a second signal ends at once")).unwrap();
        signal();
        assert_eq!(live.serving.child.wait().unwrap().code(), Some(130));
        let live = operator.serve("300", &[]);
        let stopped = live.events().iter().filter(|event| *event == "stopped").count();
        assert_eq!(stopped, times, "{:?}", live.events());
    }
}
