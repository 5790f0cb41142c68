//! What the program says of itself to shells and to `man`.

use crate::program::ruvllm;
use std::io::Write as _;
use std::process::{Command, Stdio};

/// What the program starts itself with.
const INTERNAL: [&str; 3] = ["compile-kernel", "render-template", "try-grammar"];

#[test]
fn completions_for_the_usual_shells_have_every_command_and_no_internal_one() {
    for shell in ["bash", "zsh", "fish", "powershell", "elvish"] {
        let run = ruvllm(&["completions", shell]);
        let script = run.text();
        for part in ["perplexity", "tokenize", "admin-listen", "kernels", "explain"] {
            assert!(script.contains(part), "{shell}: no {part}");
        }
        for internal in INTERNAL {
            assert!(!script.contains(internal), "{shell}: {internal}");
        }
        if ["bash", "zsh", "fish"].contains(&shell) {
            read_by(shell, &run.stdout);
        }
    }
    assert_eq!(ruvllm(&["completions", "cmd"]).code, Some(2));
}

/// Has a shell read a script without running it, where that is installed.
fn read_by(shell: &str, script: &str) {
    let started = Command::new(shell).arg("-n").stdin(Stdio::piped()).spawn();
    let Ok(mut child) = started else {
        eprintln!("skipped: {shell} is not installed, so nothing reads its completions");
        return;
    };
    child.stdin.take().expect("piped").write_all(script.as_bytes()).expect("a reader");
    assert!(child.wait().expect("an end").success(), "{shell} does not read its completions");
}

#[test]
fn there_is_a_manual_page_for_each_command() {
    let dir = tempfile::tempdir().unwrap();
    let place = dir.path().join("man1");
    let run = ruvllm(&["man", place.to_str().unwrap()]);
    assert_eq!(run.code, Some(0), "{}", run.stderr);
    let page = |name: &str| std::fs::read_to_string(place.join(name)).expect(name);
    for command in
        ["run", "chat", "tokenize", "perplexity", "bench", "doctor", "kernels", "completions"]
    {
        assert!(page("ruvllm.1").contains(&format!("ruvllm\\-{command}(1)")), "{command}");
        page(&format!("ruvllm-{command}.1"));
    }
    assert!(page("ruvllm-serve.1").contains("RUVLLM_LISTEN"));
    assert!(page("ruvllm-kernels-explain.1").contains("explain"));
    for entry in std::fs::read_dir(&place).unwrap() {
        let name = entry.unwrap().file_name().into_string().unwrap();
        assert!(!INTERNAL.iter().any(|internal| name.contains(internal)), "{name}");
    }
    let taken = dir.path().join("file");
    std::fs::write(&taken, "").unwrap();
    ruvllm(&["man", taken.to_str().unwrap()]).refused(&[taken.to_str().unwrap()]);
}

#[test]
fn no_help_names_an_internal_command() {
    for args in [&["--help"][..], &["help"], &["serve", "--help"]] {
        let run = ruvllm(args);
        for internal in INTERNAL {
            assert!(!run.text().contains(internal), "{args:?}: {internal}");
        }
    }
}
