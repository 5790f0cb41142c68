//! The KV cache from the command line: tiers, endless texts, saved sessions, budgets.

use crate::program::{Run, ruvllm};
use std::path::Path;

const PROMPT: &str = "Once upon a time";

/// A greedy text of `tokens` tokens that goes past the model's end of text.
fn long(tokens: &str, extra: &[&str]) -> Run {
    let base = ["run", PROMPT, "--temperature", "0", "--ignore-eos", "-n", tokens];
    ruvllm(&[&base, extra, &["--stats", "json"]].concat())
}

#[test]
fn tiers_are_packed_by_the_pack_and_shown_in_the_figures() {
    let run = long("250", &["--kv", "f16:32+q8_0:32+q4_0"]);
    run.text();
    let stats = run.stats();
    assert_eq!(stats["kv"], "f16:32+q8_0:32+q4_0");
    let kv = &stats["memory"]["kv"];
    assert!(kv["migrations"].as_u64().unwrap() > 6, "{kv}");
    assert!(kv["migrations_ahead"].as_u64().unwrap() > 6, "{kv}");
    assert_eq!(kv["block_tokens"], 32);
    for codec in ["f16", "q8_0", "q4_0"] {
        assert!(kv["bytes"][codec].as_u64().unwrap() > 0, "{codec}: {kv}");
    }
    assert!(kv["bytes"]["q4_0"].as_u64() > kv["bytes"]["q8_0"].as_u64(), "{kv}");
    let pool = &stats["memory"]["pool"];
    assert!(pool["used"].as_u64().unwrap() <= pool["budget"].as_u64().unwrap());
    assert_eq!(pool["holders"][0]["kind"], "scratch");
    let ops = stats["ops"].as_array().unwrap();
    for op in ["kv_pack(f32)->q8_0", "kv_pack(f32)->q4_0", "kv_unpack(q8_0)->f32"] {
        let used = ops.iter().find(|o| o["op"] == op).unwrap_or_else(|| panic!("{op}: {stats}"));
        assert!(used["calls"].as_u64().unwrap() > 0, "{op}");
        assert_eq!(used["pack"], "ruvllm-core-kernels", "{op}");
    }
}

#[test]
fn an_endless_text_is_refused_where_the_same_bits_are_wanted() {
    for command in ["run", "chat"] {
        for endless in ["--endless", "--endless=8"] {
            let run = ruvllm(&[command, "--deterministic", endless]);
            assert_eq!(run.code, Some(2), "{command}: {}", run.stderr);
            let names = ["--deterministic", "--endless"];
            assert!(names.iter().all(|name| run.stderr.contains(name)), "{}", run.stderr);
            assert!(run.stderr.contains("cannot be used with"), "{}", run.stderr);
        }
    }
}

#[test]
fn an_endless_text_goes_on_where_others_end() {
    let ended = long("700", &[]);
    ended.text();
    assert_eq!(ended.stats()["finish"], "context_full");
    let endless = long("700", &["--endless"]);
    assert_eq!(endless.stats()["finish"], "max_tokens");
    assert_eq!(endless.stats()["generated_tokens"], 700);
    let (endless, ended) = (endless.text(), ended.text());
    // Up to where the context was full nothing differs.
    assert!(endless.starts_with(ended.trim_end_matches('\u{fffd}')));
    // What follows are words still, as many different ones.
    let words = |text: &str| {
        let words: std::collections::BTreeSet<_> = text.split_whitespace().collect();
        words.len() as f64 / text.split_whitespace().count() as f64
    };
    let rest = &endless[ended.len()..];
    assert!(words(rest) > 0.5 * words(ended), "{rest}");
}

fn key(dir: &Path) -> String {
    let path = dir.join("key");
    std::fs::write(&path, "00112233445566778899aabbccddeeff00112233445566778899aabbccddeeff\n")
        .unwrap();
    #[cfg(unix)]
    {
        use std::os::unix::fs::PermissionsExt as _;
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o600)).unwrap();
    }
    path.display().to_string()
}

#[test]
fn a_session_is_taken_up_by_a_later_run() {
    let dir = tempfile::tempdir().unwrap();
    let (key, file) = (key(dir.path()), dir.path().join("session").display().to_string());
    let options = ["--session", &file, "--session-key", &key];
    let first = long("120", &options);
    let text = format!("{PROMPT}{}", first.text());
    assert!(first.stats()["prompt_tokens"].as_u64().unwrap() < 20);

    let go_on = |extra: &[&str]| {
        let base = ["run", &text, "--temperature", "0", "--ignore-eos", "-n", "20"];
        ruvllm(&[&base, extra, &["--stats", "json"]].concat())
    };
    let fresh = go_on(&[]);
    let second = go_on(&options);
    assert_eq!(second.text(), fresh.text());
    let prompt = |run: &Run| run.stats()["prompt_tokens"].as_u64().unwrap();
    assert!(prompt(&fresh) > 110, "{}", prompt(&fresh));
    assert!(prompt(&second) < 20, "{}", prompt(&second));

    // A damaged file costs the time to compute the prompt, no more.
    let mut bytes = std::fs::read(&file).unwrap();
    let middle = bytes.len() / 2;
    bytes[middle] ^= 1;
    std::fs::write(&file, bytes).unwrap();
    let third = go_on(&options);
    assert_eq!(third.text(), fresh.text());
    assert!(third.stderr.contains("begun anew"), "{}", third.stderr);
    assert!(third.stderr.contains("damaged"), "{}", third.stderr);
    // And it has been written anew.
    assert!(prompt(&go_on(&options)) < 30);
}

#[test]
fn what_cannot_work_is_refused_with_what_to_do() {
    let run = |options: &[&str]| ruvllm(&[&["run", "-n", "1"], options].concat());
    run(&["--memory", "4M"]).refused(&["memory budget of 4194304 bytes is too small", "--ctx"]);
    run(&["--spill-dir", "/no/such/directory"]).refused(&["/no/such/directory", "spilled"]);
    run(&["--kv", "k=f16,v=q4_0c"]).refused(&["store values by token"]);
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("session").display().to_string();
    let short = dir.path().join("short");
    std::fs::write(&short, "0011").unwrap();
    let short = short.display().to_string();
    for (options, message) in [
        (vec!["--kv", "q3_0"], "codecs are f32, f16, q8_0, q4_0"),
        (vec!["--memory", "lots"], "write a number and K, M, G or T"),
        (vec!["--session", &file], "--session-key"),
    ] {
        let run = run(&options);
        assert_eq!(run.code, Some(2), "{}", run.stderr);
        assert!(run.stderr.contains(message), "{}", run.stderr);
    }
    #[cfg(unix)]
    {
        use std::os::unix::fs::PermissionsExt as _;
        let open = |mode| std::fs::set_permissions(&short, std::fs::Permissions::from_mode(mode));
        open(0o644).unwrap();
        run(&["--session", &file, "--session-key", &short]).refused(&["chmod 600"]);
        open(0o600).unwrap();
    }
    run(&["--session", &file, "--session-key", &short]).refused(&["64 hexadecimal digits"]);
    assert!(!Path::new(&file).exists());
}

#[test]
fn a_run_within_a_budget_and_with_a_directory_to_spill_to_gives_the_same_text() {
    let dir = tempfile::tempdir().unwrap();
    let spill = dir.path().display().to_string();
    let run = long("100", &["--memory", "24M", "--spill-dir", &spill]);
    assert_eq!(run.text(), long("100", &[]).text());
    let memory = &run.stats()["memory"];
    assert_eq!(memory["pool"]["budget"], 24 << 20);
    // The kernels of the core pack are among what comes out of it.
    let holders = memory["pool"]["holders"].as_array().unwrap();
    let kernels = holders.iter().find(|holder| holder["kind"] == "kernels").unwrap();
    assert_eq!(kernels["owner"], "kernels");
    assert!(kernels["bytes"].as_u64().unwrap() > 0, "{memory}");
    assert_eq!(kernels["bytes"], memory["kernels"]["used"]);
    assert!(!run.stderr.contains("memory for an instance"), "{}", run.stderr);
    assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 0);
}
