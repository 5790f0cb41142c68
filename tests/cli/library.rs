//! The library that a host application builds in: what it brings along.

use std::collections::BTreeSet;
use std::process::Command;

/// The crates that become part of a program with `ruvllm` in it, as `NAME VERSION`. What runs only while
/// compiling is not among them.
fn crates(options: &[&str]) -> BTreeSet<String> {
    let mut cargo = Command::new(env!("CARGO"));
    cargo.args(["tree", "--offline", "--locked", "--package", "ruvllm", "--prefix", "none"]);
    cargo.args(["--edges", "normal,no-proc-macro", "--format", "{p}"]).args(options);
    let output = cargo.current_dir(env!("CARGO_MANIFEST_DIR")).output().expect("cargo starts");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let tree = String::from_utf8(output.stdout).expect("UTF-8");
    tree.lines()
        .filter_map(|line| {
            let mut words = line.split_whitespace();
            Some(format!("{} {}", words.next()?, words.next()?))
        })
        .collect()
}

#[test]
fn it_brings_no_server_no_tls_and_no_terminal() {
    let library = crates(&["--no-default-features"]);
    let names: BTreeSet<&str> = library.iter().filter_map(|name| name.split(' ').next()).collect();
    for absent in
        ["axum", "clap", "ctrlc", "llguidance", "plotters", "rustls", "ssh-key", "tokio", "ureq"]
    {
        assert!(!names.contains(absent), "{absent} is part of the library");
    }
    assert!(names.contains("wasmtime"));
    assert!(library.len() <= 155, "{} crates: {library:#?}", library.len());
    assert!(crates(&[]).len() > library.len());
}
