//! Texts of model files that try to steer the terminal of who reads about them, and readers who go away.

use crate::program::{Run, demo_with, ruvllm, ruvllm_with_input};
#[cfg(unix)]
use crate::pty::Terminal;
use ruvllm_abi::DType;
use ruvllm_engine::gguf::TensorView;
use ruvllm_tests::PackBuilder;
use ruvllm_tests::wat::{Module, rmsnorm_f32};
use serde_json::{Value, json};
use std::fs::File;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

/// A title, a cleared screen, a colour by a C1 control, text that reads backwards, a line begun anew.
const EVIL: &str = "\u{1b}]0;owned\u{7}\u{1b}[2J\u{9b}31m\u{202e}\r";

/// Asserts that nothing was printed that steers a terminal, and that what was printed is about `part`.
fn harmless(run: &Run, part: &str) {
    for text in [&run.stdout, &run.stderr] {
        let safe = |c: char| c == '\n' || c == '\t' || !(c.is_control() || c == '\u{202e}');
        assert!(text.chars().all(safe), "{text:?}");
    }
    let all = format!("{}{}", run.stdout, run.stderr);
    assert!(all.contains(part) && all.contains("0;owned"), "no {part:?} with the text in: {all}");
    assert!(!all.contains("panicked"), "{all}");
}

#[test]
fn a_reader_who_goes_away_wants_no_more_which_is_no_failure() {
    for args in [
        &["bench", "-p", "4", "-n", "2", "-r", "1"][..],
        &["bench", "-p", "4", "-n", "2", "-r", "1", "-o", "json"],
        &["serve", "--print-config"],
        &["doctor"],
        &["kernels", "list"],
        &["completions", "bash"],
        &["tokenize"],
        &["run", "-n", "2"],
        &["--help"],
    ] {
        let mut child = Command::new(env!("CARGO_BIN_EXE_ruvllm"))
            .args(args)
            .env("XDG_CACHE_HOME", crate::program::caches())
            .env("XDG_STATE_HOME", crate::program::caches().join("state"))
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        // Before anything is written.
        drop(child.stdout.take());
        let output = child.wait_with_output().unwrap();
        let stderr = String::from_utf8_lossy(&output.stderr);
        assert!(!stderr.contains("panicked") && output.status.success(), "{args:?}: {stderr}");
    }
}

#[test]
fn no_error_about_a_gguf_file_holds_a_control_character_of_it() {
    let dir = tempfile::tempdir().unwrap();
    let refusal = format!("{{{{ raise_exception('{EVIL}') }}}}");
    for (texts, part) in [
        (&[("general.architecture", EVIL)][..], "architecture"),
        (&[("tokenizer.ggml.model", EVIL)], "tokenizer model"),
        (&[("tokenizer.ggml.model", "gpt2"), ("tokenizer.ggml.pre", EVIL)], "pre-tokenizer"),
        (&[("llama.rope.scaling.type", EVIL)], "rope.scaling.type"),
        (&[("tokenizer.chat_template", &refusal)], "template"),
    ] {
        let path = demo_with(texts, &[], dir.path());
        let run = ruvllm(&["run", "-n", "1", "-m", path.to_str().unwrap()]);
        assert_eq!(run.code, Some(1), "{part}: {}", run.stderr);
        harmless(&run, part);
    }
    let empty = TensorView { name: EVIL, dtype: DType::F32, shape: &[0], bytes: &[] };
    let path = demo_with(&[], &[empty], dir.path());
    let run = ruvllm(&["run", "-n", "1", "-m", path.to_str().unwrap()]);
    assert_eq!(run.code, Some(1), "{}", run.stderr);
    harmless(&run, "tensor");
}

#[cfg(unix)]
#[test]
fn no_figures_of_a_model_hold_a_control_character_of_its_names() {
    let dir = tempfile::tempdir().unwrap();
    let path = demo_with(&[("general.name", EVIL)], &[], dir.path());
    // An archive of models names its files, too.
    let named = dir.path().join(format!("{EVIL}.gguf"));
    std::fs::rename(path, &named).unwrap();
    let named = named.to_str().unwrap();
    harmless(&ruvllm(&["serve", "--check", "-m", named]), "in order");
    harmless(&ruvllm(&["run", "-n", "1", "--stats", "text", "-m", named]), "generated tokens");
    let run = ruvllm(&["run", "-n", "1", "--stats", "json", "-m", named]);
    harmless(&run, "generated_tokens");
    // In JSON it is the same name all the same.
    assert_eq!(run.stats()["model"], named);
}

#[test]
fn no_error_about_a_hugging_face_directory_holds_a_control_character_of_it() {
    let fixture = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/fixtures/models/llama2");
    let json = |name: &str| -> Value {
        serde_json::from_slice(&std::fs::read(fixture.join(name)).unwrap()).unwrap()
    };
    let split = json!({"type": "Split", "pattern": {"Regex": EVIL}, "behavior": "Isolated", "invert": false});
    for (file, key, value, part) in [
        ("config.json", "model_type", json!(EVIL), "architecture"),
        ("config.json", "hidden_act", json!(EVIL), "hidden_act"),
        ("config.json", "rope_scaling", json!({"rope_type": EVIL, "factor": 2.0}), "rope"),
        ("tokenizer.json", "pre_tokenizer", split, "Split"),
        ("tokenizer.json", "normalizer", json!({"type": EVIL}), "unknown variant"),
    ] {
        let dir = tempfile::tempdir().unwrap();
        for name in ["config.json", "model.safetensors", "tokenizer.json"] {
            std::fs::copy(fixture.join(name), dir.path().join(name)).unwrap();
        }
        let mut altered = json(file);
        altered[key] = value;
        std::fs::write(dir.path().join(file), altered.to_string()).unwrap();
        let run = ruvllm(&["run", "-n", "1", "-m", dir.path().to_str().unwrap()]);
        assert_eq!(run.code, Some(1), "{file}, {key}: {}", run.stderr);
        harmless(&run, part);
    }
}

#[test]
fn no_error_about_an_adapter_holds_a_control_character_of_it() {
    let dir = tempfile::tempdir().unwrap();
    for (texts, part) in [
        (&[("general.type", EVIL)][..], "general.type"),
        (&[("general.type", "adapter"), ("adapter.type", EVIL)], "adapter.type"),
    ] {
        let path = demo_with(texts, &[], dir.path());
        let run = ruvllm(&["run", "-n", "1", "--lora", path.to_str().unwrap()]);
        assert_eq!(run.code, Some(1), "{}", run.stderr);
        harmless(&run, part);
    }
}

/// The demo model's answers are its own; a prompt comes back as it was typed, and figures are JSON.
#[test]
fn figures_stay_json_and_lines_stay_lines() {
    let run = ruvllm(&["run", "a\tb", "-n", "1", "--stats", "json"]);
    assert!(run.stats()["model"].is_string());
    let run = ruvllm_with_input(&["tokenize"], "a\nb");
    assert_eq!(run.text().lines().count(), 1);
}

/// A load waits for the lock on the versions of packs, which the test holds until the program has said that it goes on.
#[cfg(target_os = "linux")]
#[test]
fn a_load_of_more_than_a_second_says_that_it_goes_on_and_shows_a_bar() {
    let (pack, state) = (PackBuilder::new(), tempfile::tempdir().unwrap());
    let pack = pack.kernel("rmsnorm_f32", rmsnorm_f32(&Module::default())).build();
    let (path, trust) = (pack.path(), pack.policy_file());
    let pack = ["--pack", path.to_str().unwrap(), "--trust", trust.to_str().unwrap()];
    let state_dir = ["--state-dir", state.path().to_str().unwrap()];
    let args = [&["run", "Once", "-n", "1"], &pack[..], &state_dir].concat();
    let quick = ruvllm(&args);
    assert!(quick.code == Some(0) && !quick.stderr.contains("loading"), "{}", quick.stderr);
    let lock = state.path().join("floors/.lock").canonicalize().unwrap();
    let held = File::open(&lock).unwrap();
    held.lock().unwrap();
    let mut terminal = Terminal::start(&args);
    let files = format!("/proc/{}/fd", terminal.child.id());
    let waits = || {
        let mut files = std::fs::read_dir(&files).unwrap().flatten();
        files.any(|file| std::fs::read_link(file.path()).is_ok_and(|path| path == lock))
    };
    let start = Instant::now();
    while !waits() {
        assert!(start.elapsed() < Duration::from_secs(60), "it does not load");
        std::thread::sleep(Duration::from_millis(10));
    }
    let goes_on = "\r\u{1b}[Kloading ...";
    assert_eq!(terminal.wait_for(goes_on), goes_on, "something came before it");
    held.unlock().unwrap();
    let bar = "\r\u{1b}[Kloading [........................] 0/";
    assert_eq!(terminal.wait_for(bar), bar, "something came before it");
    // The last thing that is done with it is to clear its line.
    terminal.wait_for(" MiB\r\u{1b}[K");
    assert_eq!(terminal.ended(), Some(0));
}

#[cfg(unix)]
#[test]
fn perplexity_draws_its_progress_at_a_terminal_alone_and_its_table_goes_to_standard_output() {
    let dir = tempfile::tempdir().unwrap();
    let text = dir.path().join("text");
    let tales = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/fixtures/parity/tales.txt");
    let tales = std::fs::read_to_string(tales).unwrap();
    std::fs::write(&text, &tales[..tales.floor_char_boundary(4000)]).unwrap();
    let caches = ["--kv", "f16", "--kv", "q8_0"];
    let args = ["perplexity", "-c", "128", "-f", text.to_str().unwrap()];
    let args = [&args[..], &caches].concat();
    let run = ruvllm(&args);
    let table = |out: &str| {
        let lines: Vec<&str> = out.lines().collect();
        let begins = ["| KV |", "|---|", "| f16 |", "| q8_0 |"];
        begins
            .iter()
            .zip(&lines)
            .for_each(|(begin, line)| assert!(line.starts_with(begin), "{out}"));
        assert!(!out.contains('\u{1b}') && !out.contains('['), "{out}");
    };
    table(run.text());
    let said: Vec<&str> = run.stderr.lines().collect();
    assert!(said.len() == 2 && !run.stderr.contains(['[', '\r']), "{}", run.stderr);
    assert!(said[0].starts_with("f16: ") && said[1].starts_with("q8_0: "), "{}", run.stderr);

    let out = dir.path().join("out");
    let mut terminal = Terminal::writing(&args, Some(File::create(&out).unwrap()));
    for kv in ["f16", "q8_0"] {
        let drawn = terminal.wait_for("] 1/");
        assert!(drawn.contains(&format!("\r\u{1b}[K{kv} [#")), "{drawn:?}");
        // Cleared before the figure of the whole.
        terminal.wait_for(&format!("\r\u{1b}[K{kv}: "));
    }
    assert_eq!(terminal.ended(), Some(0));
    table(&std::fs::read_to_string(out).unwrap());
}
