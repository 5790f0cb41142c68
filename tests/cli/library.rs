//! The library that a host application builds in: what it brings along; and what builds have in common.

use std::collections::BTreeSet;
use std::process::Command;

/// The lines of `cargo tree`.
fn tree(options: &[&str]) -> BTreeSet<String> {
    let mut cargo = Command::new(env!("CARGO"));
    cargo.args(["tree", "--offline", "--locked", "--prefix", "none"]).args(options);
    // From the workspace, so that its default members are what Cargo takes where no package is named.
    let workspace = concat!(env!("CARGO_MANIFEST_DIR"), "/../..");
    let output = cargo.current_dir(workspace).output().expect("cargo starts");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let tree = String::from_utf8(output.stdout).expect("UTF-8");
    tree.lines().map(|line| line.trim_end_matches(" (*)").to_owned()).collect()
}

/// The crates that become part of a program with `ruvllm` in it, as `NAME VERSION`. What runs only while
/// compiling is not among them.
fn crates(options: &[&str]) -> BTreeSet<String> {
    let common = ["--package", "ruvllm", "--edges", "normal,no-proc-macro", "--format", "{p}"];
    tree(&[&common, options].concat())
        .iter()
        .filter_map(|line| {
            let mut words = line.split_whitespace();
            Some(format!("{} {}", words.next()?, words.next()?))
        })
        .collect()
}

fn names(crates: &BTreeSet<String>) -> BTreeSet<&str> {
    crates.iter().filter_map(|name| name.split(' ').next()).collect()
}

#[test]
fn it_brings_no_server_no_tls_and_no_terminal() {
    let library = crates(&["--no-default-features"]);
    let names = names(&library);
    for absent in [
        "axum",
        "clap",
        "clap_complete",
        "clap_mangen",
        "ctrlc",
        "futures-core",
        "llguidance",
        "plotters",
        "rustls",
        "rustyline",
        "signal-hook",
        "tokenizers",
        "tokio",
        "ureq",
    ] {
        assert!(!names.contains(absent), "{absent} is part of the library");
    }
    // What does the same is in the tree anyway, or in the standard library.
    for double in ["ahash", "num_cpus", "rand", "rand_chacha", "time"] {
        assert!(!names.contains(double), "{double} is part of the library");
    }
    assert!(names.contains("wasmtime"));
    assert!(library.len() < 120, "{} crates: {library:#?}", library.len());
}

#[test]
fn each_feature_brings_its_crates_and_the_program_has_all() {
    let (library, program) = (crates(&["--no-default-features"]), crates(&[]));
    for (feature, its) in [
        ("async", "futures-core"),
        ("chat-templates", "minijinja"),
        ("encryption", "chacha20poly1305"),
        ("openssh", "ssh-key"),
        ("pem", "pkcs8"),
        ("server", "axum"),
        ("toml", "toml"),
    ] {
        let with = crates(&["--no-default-features", "--features", feature]);
        assert!(!names(&library).contains(its), "{its} is part of the library");
        assert!(names(&with).contains(its), "`{feature}` does not bring {its}");
        assert!(names(&program).contains(its), "the program has no `{feature}`");
    }
}

#[test]
fn all_tests_take_over_the_crates_that_the_program_was_built_from() {
    let format = ["--format", "{p} [{f}]"];
    let program = tree(&[&["--edges", "normal,build"], &format[..]].concat());
    let tests = tree(&[&["--workspace", "--edges", "normal,build,dev"], &format[..]].concat());
    let again: Vec<_> = program.difference(&tests).collect();
    // Another set of features is another crate, and so is all that depends on it.
    assert!(again.is_empty(), "compiled a second time, with other features: {again:#?}");
}

/// The documentation of a type, as its source has it.
fn documentation(source: &str, kind: &str) -> Option<String> {
    let at = ["struct", "enum"].iter().find_map(|word| {
        let line = format!("\npub {word} {kind}");
        let follows = |at: usize| !source[at + line.len()..].starts_with(char::is_alphanumeric);
        source.match_indices(&line).map(|(at, _)| at).find(|&at| follows(at))
    })?;
    let above = source[..at].lines().rev();
    let above = above.take_while(|line| line.starts_with("///") || line.starts_with("#["));
    Some(above.collect::<Vec<_>>().join("\n"))
}

#[test]
fn every_type_that_a_host_application_meets_first_has_an_example() {
    let root = concat!(env!("CARGO_MANIFEST_DIR"), "/..");
    let sources: Vec<String> = [
        "ruvllm/src/error.rs",
        "ruvllm/src/kernels.rs",
        "ruvllm/src/report.rs",
        "ruvllm/src/runtime.rs",
        "ruvllm/src/stream.rs",
        "engine/src/adapter/mod.rs",
        "engine/src/chat.rs",
        "engine/src/chat/message.rs",
        "engine/src/engine.rs",
        "engine/src/generate.rs",
        "engine/src/kv_policy.rs",
        "engine/src/model.rs",
        "engine/src/rope.rs",
        "engine/src/sampler.rs",
        "engine/src/scheduler/mod.rs",
        "engine/src/sealed/key.rs",
        "engine/src/session.rs",
    ]
    .map(|file| std::fs::read_to_string(format!("{root}/{file}")).expect(file))
    .into();
    for kind in [
        "Runtime",
        "RuntimeBuilder",
        "Prompt",
        "Conversation",
        "Completion",
        "FinishReason",
        "Usage",
        "Timings",
        "RunReport",
        "LoadProgress",
        "Embedding",
        "TextStream",
        "Error",
        "KernelSet",
        "KernelSetBuilder",
        "ChangedPack",
        "Message",
        "Renderer",
        "GenerateOptions",
        "SamplingOptions",
        "Session",
        "SessionOptions",
        "SessionKey",
        "KvPolicy",
        "Adapter",
        "Model",
        "RopeExtension",
        "EngineConfig",
        "Scheduler",
    ] {
        let found = sources.iter().find_map(|source| documentation(source, kind));
        let text = found.unwrap_or_else(|| panic!("where is {kind}?"));
        assert!(text.contains("/// ```"), "{kind} has no example");
    }
}

/// What the first build makes, without what a feature adds. Packages with a program that have a profile of their own
/// would keep their symbols, which are a fifth of it.
#[test]
#[cfg(not(any(feature = "graphs", feature = "otel", feature = "wamr")))]
fn the_program_takes_less_than_40_megabytes() {
    if cfg!(debug_assertions) {
        return;
    }
    let program = std::fs::metadata(env!("CARGO_BIN_EXE_ruvllm")).unwrap();
    assert!(program.len() < 40_000_000, "{} bytes", program.len());
}
