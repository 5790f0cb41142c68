//! `explain` and `inspect` on packs that are in order and packs that are not.

use std::ffi::OsStr;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use ruvllm_signing::VersionFloor;
use semver::Version;
use serde_json::Value;

fn core_pack() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../kernel-packs/core/dist")
}

fn tool(args: &[&dyn AsRef<OsStr>]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_ruvllm-pack"));
    command.args(args.iter().map(|arg| arg.as_ref())).output().expect("the tool runs")
}

fn json(output: &Output) -> Value {
    serde_json::from_slice(&output.stdout).expect("one JSON document on standard output")
}

/// The verdict of a gate, of the pack or of a kernel.
fn verdict<'v>(gates: &'v Value, name: &str) -> &'v str {
    let gates = gates["gates"].as_array().expect("gates");
    let gate = gates.iter().find(|gate| gate["gate"] == name).expect("a gate of that name");
    gate["verdict"].as_str().expect("a verdict")
}

fn codes(gates: &Value) -> Vec<&str> {
    let gates = gates["gates"].as_array().expect("gates");
    let findings = gates.iter().flat_map(|gate| gate["findings"].as_array().expect("findings"));
    findings.map(|finding| finding["code"].as_str().expect("a code")).collect()
}

fn copy_of_core(dir: &Path) {
    let mut pending = vec![PathBuf::new()];
    while let Some(below) = pending.pop() {
        fs::create_dir_all(dir.join(&below)).expect("made");
        for entry in fs::read_dir(core_pack().join(&below)).expect("a directory").flatten() {
            let path = below.join(entry.file_name());
            if entry.path().is_dir() {
                pending.push(path);
            } else {
                fs::copy(entry.path(), dir.join(path)).expect("a copy");
            }
        }
    }
}

#[test]
fn the_core_pack_passes_every_gate() {
    let output = tool(&[&"explain", &"--json", &core_pack()]);
    let report = json(&output);
    assert_eq!(output.status.code(), Some(0), "{report:#}");
    assert_eq!(report["admitted"], true);
    for gate in ["read", "signatures", "validity", "scope", "manifest", "files", "compatibility"] {
        assert_eq!(verdict(&report, gate), "passed", "{gate}");
    }
    for kernel in report["kernels"].as_array().expect("kernels") {
        // Variants for deterministic hosts, and for those without SIMD, stand back on others.
        let id = kernel["kernel"].as_str().expect("an id");
        if id.ends_with("_plain") || id.ends_with("_scalar") {
            assert_eq!(verdict(kernel, "compatibility"), "left_out", "{}", kernel["kernel"]);
            continue;
        }
        for gate in ["compatibility", "module", "compile", "numbers"] {
            assert_eq!(verdict(kernel, gate), "passed", "{}: {gate}", kernel["kernel"]);
        }
    }
}

#[test]
fn a_pack_by_nobody_that_is_trusted_is_refused_but_looked_at_to_the_end() {
    let dir = tempfile::tempdir().expect("a temporary directory");
    let key = dir.path().join("key.pem");
    let made = json(&tool(&[&"keygen", &"--json", &"--out", &key]));
    let policy = dir.path().join("trust.toml");
    let public = made["public_key"].as_str().expect("a key");
    let text = format!(
        "version = 1\n[[publishers]]\nname = \"me\"\nkey = \"{public}\"\npacks = [\"mine\"]\n"
    );
    fs::write(&policy, text).expect("written");
    let output = tool(&[&"explain", &"--json", &"--trust", &policy, &core_pack()]);
    let report = json(&output);
    assert_eq!(output.status.code(), Some(1));
    assert_eq!(verdict(&report, "signatures"), "refused");
    assert_eq!(codes(&report), ["signature_unknown_key"]);
    assert_eq!(verdict(&report, "scope"), "not_reached");
    assert_eq!(verdict(&report, "files"), "passed");
    assert_eq!(verdict(&report["kernels"][0], "numbers"), "passed");

    // Signed by the publisher, who may not sign packs of that name.
    let copy = dir.path().join("copy");
    copy_of_core(&copy);
    assert!(tool(&[&"sign", &"--key", &key, &copy]).status.success());
    let report = json(&tool(&[&"explain", &"--json", &"--trust", &policy, &copy]));
    assert_eq!(verdict(&report, "signatures"), "passed");
    assert_eq!(verdict(&report, "scope"), "refused");
    assert!(codes(&report).contains(&"publisher_out_of_scope"), "{report:#}");
}

#[test]
fn a_changed_module_and_a_stray_file_are_found_at_their_gates() {
    let dir = tempfile::tempdir().expect("a temporary directory");
    copy_of_core(dir.path());
    let module = dir.path().join("normalization/rmsnorm_f32.wasm");
    let mut bytes = fs::read(&module).expect("a module");
    bytes[200] ^= 1;
    fs::write(&module, bytes).expect("written");
    let report = json(&tool(&[&"explain", &"--json", &dir.path()]));
    assert_eq!(verdict(&report, "files"), "refused");
    assert_eq!(codes(&report), ["file_hash_mismatch"]);
    assert_eq!(verdict(&report, "compatibility"), "not_reached");

    fs::write(dir.path().join("bad name"), "").expect("written");
    let output = tool(&[&"explain", &dir.path()]);
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(text.contains("read           REFUSED") && text.contains("not reached"), "{text}");
}

#[test]
fn floors_and_locks_are_gates_where_they_are_named() {
    let dir = tempfile::tempdir().expect("a temporary directory");
    let report = json(&tool(&[&"explain", &"--json", &core_pack()]));
    assert_eq!([verdict(&report, "floor"), verdict(&report, "lock")], ["not_asked"; 2]);

    let floors = dir.path().join("floors");
    let floor = VersionFloor::open(&floors).expect("a directory");
    let name = "ruvllm-core-kernels".parse().expect("a name");
    floor.raise_to(&name, &Version::new(99, 0, 0)).expect("raised");
    let lock = dir.path().join("packs.lock");
    assert!(tool(&[&"lock", &"--out", &lock, &core_pack()]).status.success());
    let arguments: [&dyn AsRef<OsStr>; 7] =
        [&"explain", &"--json", &"--floors", &floors, &"--lock", &lock, &core_pack()];
    let report = json(&tool(&arguments));
    assert_eq!(report["admitted"], false);
    assert_eq!([verdict(&report, "floor"), verdict(&report, "lock")], ["refused", "passed"]);
    assert_eq!(codes(&report), ["version_below_floor"]);

    fs::write(floors.join("ruvllm-core-kernels.floor"), "?").expect("written");
    fs::write(&lock, "version = 1\n[packs]\n").expect("written");
    let report = json(&tool(&arguments));
    assert_eq!([verdict(&report, "floor"), verdict(&report, "lock")], ["refused"; 2]);
    assert_eq!(codes(&report), ["floor_damaged", "pack_not_locked"]);
    assert_eq!(verdict(&report["kernels"][0], "numbers"), "passed");
}

#[test]
fn inspecting_shows_who_signed_until_when_and_for_what() {
    let dir = tempfile::tempdir().expect("a temporary directory");
    let pack = dir.path().join("pack");
    copy_of_core(&pack);
    let key = dir.path().join("key.pem");
    let made = json(&tool(&[&"keygen", &"--json", &"--out", &key]));
    assert!(tool(&[&"sign", &"--key", &key, &pack]).status.success());
    let policy = dir.path().join("trust.toml");
    let public = made["public_key"].as_str().expect("a key");
    let text = format!(
        "version = 1\n[[publishers]]\nname = \"me\"\nkey = \"{public}\"\npacks = [\"ruvllm-*\"]\n\
         not_after = \"2099-01-01T00:00:00Z\"\n"
    );
    fs::write(&policy, text).expect("written");
    let report = json(&tool(&[&"inspect", &"--json", &"--trust", &policy, &pack]));
    let publisher = &report["publishers"][0];
    assert_eq!((&publisher["name"], &publisher["key"]), (&"me".into(), &public.into()));
    assert_eq!(publisher["not_after"], "2099-01-01T00:00:00Z");
    assert_eq!(publisher["packs"][0], "ruvllm-*");
    assert_eq!(publisher["key_id"], made["key_id"]);
    let text = tool(&[&"inspect", &"--trust", &policy, &pack]);
    let text = String::from_utf8_lossy(&text.stdout);
    assert!(text.contains("to 2099-01-01T00:00:00Z"), "{text}");
}
