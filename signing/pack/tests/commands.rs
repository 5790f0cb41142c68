//! The commands as their users see them: output, JSON, exit codes.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use serde_json::Value;

fn core_pack() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../kernel-packs/core")
}

fn tool(args: &[&dyn AsRef<std::ffi::OsStr>]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_ruvllm-pack"));
    command.args(args.iter().map(|arg| arg.as_ref()));
    command.output().expect("the tool runs")
}

fn json(output: &Output) -> Value {
    serde_json::from_slice(&output.stdout).expect("one JSON document on standard output")
}

/// A copy of the built core pack that a test may spoil.
fn copy_of_core() -> tempfile::TempDir {
    let copy = tempfile::tempdir().expect("a temporary directory");
    copy_tree(&core_pack().join("dist"), copy.path());
    copy
}

fn copy_tree(from: &Path, to: &Path) {
    fs::create_dir_all(to).expect("a directory");
    for entry in fs::read_dir(from).expect("a readable directory").flatten() {
        let to = to.join(entry.file_name());
        if entry.path().is_dir() {
            copy_tree(&entry.path(), &to);
        } else {
            fs::copy(entry.path(), to).expect("a copy");
        }
    }
}

#[test]
fn the_committed_core_pack_is_trusted_and_holds_the_catalogue() {
    let output = tool(&[&"verify", &"--json", &core_pack()]);
    assert_eq!(output.status.code(), Some(0), "{}", String::from_utf8_lossy(&output.stdout));
    let report = json(&output);
    assert_eq!(report["ok"], true);
    assert_eq!(report["name"], "ruvllm-core-kernels");
    let report = json(&tool(&[&"inspect", &"--json", &core_pack()]));
    let kernels = report["kernels"].as_array().expect("kernels");
    let ids: Vec<&str> = kernels.iter().map(|k| k["id"].as_str().expect("an id")).collect();
    let contracts = ruvllm_abi::Op::ALL.iter().flat_map(|op| op.contract().variants);
    let catalogue: Vec<&str> = contracts.map(|variant| variant.kernel).collect();
    assert_eq!(catalogue.len(), 19);
    for id in &catalogue {
        assert!(ids.contains(id), "{id} is missing");
    }
    // Whatever else there is, is a variant for deterministic hosts or for those without SIMD.
    for kernel in kernels {
        let features = kernel["declared_features"].as_array().expect("features");
        let relaxed = features.iter().any(|feature| feature == "relaxed-simd");
        let id = kernel["id"].as_str().expect("an id");
        if let Some(of) = id.strip_suffix("_scalar") {
            assert!(catalogue.contains(&of) && features.is_empty(), "{id}");
            continue;
        }
        match id.strip_suffix("_plain") {
            Some(of) => assert!(catalogue.contains(&of) && !relaxed, "{id}"),
            None => assert_eq!(relaxed, ids.contains(&format!("{id}_plain").as_str()), "{id}"),
        }
    }
}

#[test]
fn the_core_pack_has_gradients_and_measurements_of_what_models_call() {
    let text = fs::read(core_pack().join("dist/kernels.json")).expect("a manifest");
    let manifest: Value = serde_json::from_slice(&text).expect("JSON");
    let kernels = manifest["kernels"].as_array().expect("kernels");
    let base = |id: &str| id.trim_end_matches("_plain").trim_end_matches("_scalar").to_owned();
    for kernel in kernels {
        let id = base(kernel["id"].as_str().expect("an id"));
        let differentiable =
            ["rope", "rmsnorm", "layernorm", "swiglu", "geglu", "gelu", "lora_apply"]
                .map(|op| format!("{op}_f32"));
        assert_eq!(kernel["backward"] == true, differentiable.contains(&id), "{id}");
        let measured = kernel["benchmarks"].as_object().expect("benchmarks");
        let shapes: &[&str] = match id.rsplit_once('_').expect("a type").0 {
            "rope" => &["seq_1_heads_32_dim_128", "seq_512_heads_1_dim_128"],
            "rmsnorm" | "layernorm" | "kv_pack" | "kv_unpack" => &["rows_1_dim_4096"],
            "swiglu" | "geglu" => &["rows_1_dim_11008"],
            "gelu" => &["rows_1_dim_8192"],
            "lora_apply" => &["rank_4_", "rank_8_", "rank_16_"],
            op => panic!("{op} is not known here"),
        };
        for shape in shapes {
            assert!(measured.keys().any(|name| name.contains(shape)), "{id} has no {shape}");
        }
        assert!(measured.values().all(|of| of["latency_us"].as_f64() > Some(0.0)), "{id}");
    }
    let ids: Vec<String> = kernels.iter().map(|k| base(k["id"].as_str().expect("an id"))).collect();
    for op in ["rope", "rmsnorm", "layernorm", "swiglu", "geglu", "lora_apply"] {
        assert!(ids.contains(&format!("{op}_f32")), "{op}");
    }
}

#[test]
fn inspecting_the_core_pack_shows_modules_without_imports_and_without_trap_sites() {
    let output = tool(&[&"inspect", &"--json", &core_pack()]);
    assert_eq!(output.status.code(), Some(0));
    let report = json(&output);
    assert_eq!(report["objections"], Value::Array(Vec::new()));
    let mut total = 0;
    for kernel in report["kernels"].as_array().expect("kernels") {
        let id = &kernel["id"];
        assert_eq!(kernel["problems"], Value::Array(Vec::new()), "{id}");
        assert_eq!(kernel["module"]["imports"], Value::Array(Vec::new()), "{id}");
        assert_eq!(kernel["module"]["trap_sites"], 0, "{id} can give up with a trap");
        assert_eq!(kernel["module"]["max_memory_pages"], kernel["max_memory_pages"], "{id}");
        assert_eq!(kernel["used_features"], kernel["declared_features"], "{id}");
        let exports = kernel["module"]["exports"].as_array().expect("exports");
        let exported = |name: &str| exports.iter().any(|export| export == name);
        assert!(["memory", "__heap_base", "kernel_info"].into_iter().all(exported), "{id}");
        let backward = usize::from(exported("kernel_backward"));
        assert_eq!(exports.len(), 4 + backward, "{id} exports its entry points and nothing else");
        total += kernel["size"].as_u64().expect("a size");
    }
    // Nearly every kernel is there three times: with relaxed SIMD, without, and without any SIMD.
    assert!(total < 500_000, "the modules have {total} bytes in all");
}

#[test]
fn every_core_kernel_passes_its_oracle_tests() {
    let output = tool(&[&"test", &core_pack()]);
    assert_eq!(output.status.code(), Some(0), "{}", String::from_utf8_lossy(&output.stdout));
}

#[test]
fn a_changed_module_is_refused_with_exit_code_1_and_a_stable_code() {
    let copy = copy_of_core();
    let module = copy.path().join("normalization/rmsnorm_f32.wasm");
    let mut bytes = fs::read(&module).expect("a module");
    let last = bytes.len() - 1;
    bytes[last] ^= 1;
    fs::write(&module, bytes).expect("written");
    let output = tool(&[&"verify", &"--json", &copy.path()]);
    assert_eq!(output.status.code(), Some(1));
    let error = &json(&output)["error"];
    assert_eq!(error["code"], "pack_rejected");
    assert_eq!(error["details"][0]["code"], "file_hash_mismatch");
    let inspected = tool(&[&"inspect", &copy.path()]);
    assert!(String::from_utf8_lossy(&inspected.stdout).contains("NOT verified"));
}

#[test]
fn a_pack_whose_files_are_not_those_of_its_manifest_is_not_signed() {
    let copy = copy_of_core();
    let dir = tempfile::tempdir().expect("a temporary directory");
    let key = dir.path().join("key.pem");
    assert_eq!(tool(&[&"keygen", &"--out", &key]).status.code(), Some(0));
    let signatures = copy.path().join("kernels.json.sig");
    let before = fs::read(&signatures).expect("a file");
    let refused = |code: &str| {
        let output = tool(&[&"sign", &"--json", &"--key", &key, &copy.path()]);
        assert_eq!(output.status.code(), Some(1));
        assert_eq!(json(&output)["error"]["details"][0]["code"], code);
        assert!(fs::read(&signatures).expect("a file") == before, "nothing was signed");
    };
    let module = copy.path().join("normalization/rmsnorm_f32.wasm");
    let good = fs::read(&module).expect("a module");
    let mut bytes = good.clone();
    *bytes.last_mut().expect("a byte") ^= 1;
    fs::write(&module, bytes).expect("written");
    refused("file_hash_mismatch");
    fs::remove_file(&module).expect("removed");
    refused("file_missing");
    fs::write(&module, good).expect("written");
    fs::write(copy.path().join("notes.txt"), "").expect("written");
    refused("file_unlisted");
    fs::remove_file(copy.path().join("notes.txt")).expect("removed");
    let signed = tool(&[&"sign", &"--json", &"--key", &key, &copy.path()]);
    assert_eq!(json(&signed)["signatures"], 2);
}

#[test]
fn a_key_of_ones_own_signs_and_a_policy_trusts_it() {
    let copy = copy_of_core();
    let dir = tempfile::tempdir().expect("a temporary directory");
    let key = dir.path().join("key.pem");
    let made = tool(&[&"keygen", &"--json", &"--out", &key]);
    assert_eq!(made.status.code(), Some(0));
    let public = json(&made)["public_key"].as_str().expect("a key").to_owned();
    assert_eq!(tool(&[&"keygen", &"--out", &key]).status.code(), Some(2), "keys stay");

    fs::remove_file(copy.path().join("kernels.json.sig")).expect("removed");
    let signed = tool(&[&"sign", &"--json", &"--key", &key, &copy.path()]);
    assert_eq!(signed.status.code(), Some(0));
    assert_eq!(json(&signed)["signatures"], 1);
    assert_eq!(tool(&[&"verify", &copy.path()]).status.code(), Some(1), "nobody trusts it yet");

    let policy = dir.path().join("trust.toml");
    let text = format!(
        "version = 1\n[[publishers]]\nname = \"me\"\nkey = \"{public}\"\npacks = [\"ruvllm-*\"]\n"
    );
    fs::write(&policy, text).expect("written");
    let verified = tool(&[&"verify", &"--trust", &policy, &copy.path()]);
    assert_eq!(verified.status.code(), Some(0), "{}", String::from_utf8_lossy(&verified.stderr));
    assert!(String::from_utf8_lossy(&verified.stdout).contains("signed by me"));
}

#[test]
fn what_is_not_there_is_exit_code_2_and_help_names_the_codes() {
    let missing = core_pack().join("no-such-directory");
    for command in ["build", "verify", "inspect", "test", "bench"] {
        assert_eq!(tool(&[&command, &missing]).status.code(), Some(2), "{command}");
    }
    let help = tool(&[&"--help"]);
    assert!(String::from_utf8_lossy(&help.stdout).contains("Exit codes"));
    assert_eq!(tool(&[&"no-such-command"]).status.code(), Some(2));
}

#[test]
fn rebuilding_the_core_pack_elsewhere_gives_the_same_bytes() {
    // A copy in another place, so that a path that leaks into a module shows.
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let elsewhere = tempfile::tempdir().expect("a temporary directory");
    for part in [
        "kernel-sdk",
        "kernel-packs/core/src",
        "kernel-packs/core/kernels",
        "kernel-packs/core/dist",
    ] {
        copy_tree(&root.join(part), &elsewhere.path().join(part));
    }
    for file in [
        "Cargo.toml",
        "kernel-packs/core/Cargo.toml",
        "kernel-packs/core/Cargo.lock",
        "kernel-packs/core/pack.toml",
        "kernel-packs/core/benchmarks.toml",
    ] {
        fs::copy(root.join(file), elsewhere.path().join(file)).expect("a copy");
    }
    let crate_dir = elsewhere.path().join("kernel-packs/core");
    let output = tool(&[&"build", &"--check", &"--json", &crate_dir]);
    let report = json(&output);
    let code = report["error"]["code"].as_str().unwrap_or("none");
    if ["toolchain_missing", "toolchain_mismatch"].contains(&code) {
        eprintln!("skipped: {}", report["error"]["message"].as_str().unwrap_or_default());
        return;
    }
    assert_eq!(
        output.status.code(),
        Some(0),
        "{report:#}\n{}",
        String::from_utf8_lossy(&output.stderr)
    );
}
