//! The path of a new kernel author: from nothing to a signed kernel that answers in `ruvllm run`, and that a live
//! server finds healthy.
//!
//! Nothing but commands, as somebody types them who has read the README. Where there is no compiler
//! for wasm32, or `ruvllm-pack` has not been built beside `ruvllm`, this says so and passes.

use crate::live_kernels::is_found_healthy;
use crate::program::{pack_tool, ruvllm};
use std::path::Path;
use std::process::Command;

/// Runs `ruvllm-pack` and gives what it says as JSON.
fn pack(tool: &Path, args: &[&str]) -> serde_json::Value {
    let output = Command::new(tool).args(args).arg("--json").output().expect("the tool starts");
    let report: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap_or_default();
    let missing = report["error"]["code"] == "toolchain_missing";
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success() || missing, "{args:?}: {report:#}\n{stderr}");
    report
}

fn from_nothing_to_a_kernel_that_answers(lang: &str, op: &str, kernel: &str) {
    let Some(tool) = pack_tool() else { return };
    let dir = tempfile::tempdir().expect("a temporary directory");
    let at = |name: &str| dir.path().join(name).to_str().expect("UTF-8").to_owned();
    let (crate_dir, key, trust) = (at("my-kernels"), at("key.pem"), at("trust.toml"));

    pack(&tool, &["new", &crate_dir, "--lang", lang, "--op", op]);
    let built = pack(&tool, &["build", &crate_dir]);
    if built["ok"] == false {
        eprintln!("skipped: {}", built["error"]["message"]);
        return;
    }
    assert_eq!(pack(&tool, &["test", &crate_dir])["ok"], true);
    let benched = pack(&tool, &["bench", &crate_dir, "--time", "5"]);
    assert!(benched["lines"][0]["ratio"].as_f64().expect("a ratio") > 0.0);
    let made = pack(&tool, &["keygen", "--out", &key]);
    let public = made["public_key"].as_str().expect("a key");
    pack(&tool, &["sign", "--key", &key, &crate_dir]);
    let policy = format!(
        "version = 1\n[[publishers]]\nname = \"me\"\nkey = \"{public}\"\npacks = [\"my-*\"]\n"
    );
    std::fs::write(&trust, policy).expect("written");
    assert_eq!(pack(&tool, &["explain", "--trust", &trust, &crate_dir])["admitted"], true);

    let dist = format!("{crate_dir}/dist");
    let kernels = ["--pack", &dist, "--trust", &trust];
    let args = ["run", "--temperature", "0", "-n", "24", "--stats", "json", "Once upon a time"];
    let run = ruvllm(&[&args[..], &kernels].concat());
    assert!(run.text().split_whitespace().count() > 5, "{}", run.stdout);
    let stats = run.stats();
    let ours = stats["ops"].as_array().expect("operations").iter();
    let ours = ours.clone().find(|op| op["kernel"] == kernel && op["pack"] == "my-kernels");
    let ours = ours.unwrap_or_else(|| panic!("{kernel} is in {stats:#}"));
    assert!(ours["calls"].as_u64().expect("a number") > 0, "{ours}");
    assert_eq!(ours["fallbacks"], 0, "{ours}");

    let list = ruvllm(&[&["kernels", "list", "--json"][..], &kernels].concat());
    let list: serde_json::Value = serde_json::from_str(list.text()).expect("JSON");
    let ours = list.as_array().expect("kernels").iter().find(|k| k["pack"] == "my-kernels");
    let ours = ours.unwrap_or_else(|| panic!("the pack is in {list:#}"));
    assert_eq!((&ours["id"], &ours["selected"]), (&kernel.into(), &true.into()), "{ours}");
    is_found_healthy(&crate_dir, &trust, op);
}

#[test]
fn a_new_author_of_a_kernel_in_rust() {
    from_nothing_to_a_kernel_that_answers("rust", "rmsnorm", "rmsnorm_f32");
}

#[test]
fn a_new_author_of_a_kernel_in_c() {
    from_nothing_to_a_kernel_that_answers("c", "swiglu", "swiglu_f32");
}
