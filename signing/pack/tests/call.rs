//! `call`: one kernel with inputs of one's own.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use ruvllm_native::judge::Tolerance;
use serde_json::{Value, json};

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

fn tool(dir: &Path, args: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_ruvllm-pack"));
    command.args(args).current_dir(dir).output().expect("the tool runs")
}

/// Calls a kernel of the core pack; `args` follow its id.
fn core(dir: &Path, kernel: &str, args: &[&str]) -> Output {
    let pack = root().join("kernel-packs/core/dist");
    let pack = pack.to_str().expect("a path");
    tool(dir, &[&["call", pack, kernel], args].concat())
}

#[track_caller]
fn printed(output: &Output) -> Value {
    let (stdout, stderr) =
        (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert_eq!(output.status.code(), Some(0), "{stdout}\n{stderr}");
    serde_json::from_str(&stdout).expect("JSON on standard output")
}

#[track_caller]
fn near(values: &Value, want: &[f64]) {
    let values: Vec<f64> =
        values.as_array().expect("values").iter().map(|x| x.as_f64().expect("a number")).collect();
    let near = Tolerance { rel: 0.0, abs: 1e-5 };
    let holds = values.iter().zip(want).all(|(got, want)| near.holds(*got, *want));
    assert!(values.len() == want.len() && holds, "{values:?} instead of {want:?}");
}

#[test]
fn a_golden_file_is_a_call_and_its_output_is_printed_as_json() {
    let dir = tempfile::tempdir().expect("a temporary directory");
    let golden = root().join("kernel-sdk/templates/golden/rmsnorm.json");
    let file: Value = serde_json::from_slice(&fs::read(&golden).expect("a file")).expect("JSON");
    let want: Vec<f64> = file["output"]["values"]
        .as_array()
        .expect("values")
        .iter()
        .map(|x| x.as_f64().expect("a number"))
        .collect();
    let output = core(dir.path(), "rmsnorm_f32", &["--input", golden.to_str().expect("a path")]);
    let y = printed(&output);
    assert_eq!((&y["name"], &y["dtype"]), (&json!("y"), &json!("f32")));
    assert_eq!(y["shape"], file["output"]["shape"]);
    near(&y["values"], &want);
    // A param that is given counts instead of the file's.
    let args = ["-i", golden.to_str().expect("a path"), "-p", "eps=1000000"];
    let y = printed(&core(dir.path(), "rmsnorm_f32", &args));
    assert!(y["values"][0].as_f64().expect("a number").abs() < 0.1, "{y}");
}

#[test]
fn tensors_come_and_go_as_npy_and_what_json_has_no_number_for_is_text() {
    let dir = tempfile::tempdir().expect("a temporary directory");
    let at = dir.path();
    fs::write(at.join("x.json"), r#"{"shape": [2, 2], "values": [3, 4, "NaN", 1]}"#)
        .expect("written");
    fs::write(at.join("w.json"), r#"{"shape": [2], "values": [1, 2]}"#).expect("written");
    let args = ["-i", "weight=w.json", "-i", "x.json", "-p", "eps=0", "--out", "y.npy"];
    let said = core(at, "rmsnorm_f32", &args);
    assert_eq!(String::from_utf8_lossy(&said.stdout), "wrote y.npy: y f32 [2, 2]\n");
    // What was written is an input again: of another kernel, in another format.
    let args = ["--input", "y.npy", "--input", "weight=w.json", "--param", "eps=0"];
    let y = printed(&core(at, "rmsnorm_f32", &args));
    let root = ((0.848_528f64.powi(2) + 2.262_741f64.powi(2)) / 2.0).sqrt();
    near(&json!([y["values"][0], y["values"][1]]), &[0.848_528 / root, 2.0 * 2.262_741 / root]);
    assert_eq!((&y["values"][2], &y["values"][3]), (&json!("NaN"), &json!("NaN")));

    fs::write(
        at.join("kv.json"),
        json!({ "shape": [1, 32], "values": vec![127.0; 32] }).to_string(),
    )
    .expect("written");
    let blocks = printed(&core(at, "kv_pack_q8", &["-i", "kv.json"]));
    assert_eq!(blocks["dtype"], "q8_0");
    near(&blocks["values"], &[127.0; 32]);
}

#[test]
fn gradients_are_printed_or_written_under_the_names_of_the_inputs() {
    let dir = tempfile::tempdir().expect("a temporary directory");
    let at = dir.path();
    let numbers = |name: &str, shape: &[usize], values: &[f64]| {
        let tensor = json!({ "shape": shape, "values": values });
        fs::write(at.join(name), tensor.to_string()).expect("written");
    };
    numbers("x.json", &[1, 2], &[1.0, -1.0]);
    numbers("w.json", &[2], &[2.0, 1.0]);
    numbers("dy.json", &[1, 2], &[1.0, 3.0]);
    let args = ["-i", "x.json", "-i", "w.json", "-p", "eps=0", "--backward", "dy.json"];
    let said = core(at, "rmsnorm_f32", &args);
    assert_eq!(said.status.code(), Some(0), "{}", String::from_utf8_lossy(&said.stderr));
    let lines = String::from_utf8_lossy(&said.stdout).into_owned();
    let lines: Vec<Value> =
        lines.lines().map(|line| serde_json::from_str(line).expect("JSON")).collect();
    let [x, weight] = &lines[..] else { panic!("{lines:?}") };
    assert_eq!((&x["name"], &weight["name"]), (&json!("x"), &json!("weight")));
    near(&x["values"], &[2.5, 2.5]);
    near(&weight["values"], &[1.0, -3.0]);

    let written = core(at, "rmsnorm_f32", &[&args[..], &["--out", "g.npy"]].concat());
    let said = String::from_utf8_lossy(&written.stdout).into_owned();
    assert_eq!(said, "wrote g.x.npy: x f32 [1, 2]\nwrote g.weight.npy: weight f32 [2]\n");
    let y = printed(&core(at, "rmsnorm_f32", &["-i", "g.x.npy", "-i", "g.weight.npy"]));
    assert_eq!(y["shape"], json!([1, 2]));

    let refused = |args: &[&str], what: &str| {
        let output = core(at, "rmsnorm_f32", args);
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(output.status.code() == Some(2) && said.contains(what), "{what:?}: {said}");
    };
    let args = ["-i", "x.json", "-i", "w.json", "--backward", "w.json"];
    refused(&args, "the gradient of the output is f32[2] instead of f32[1, 2]");
    let output = core(at, "kv_pack_q8", &["-i", "x.json", "--backward", "dy.json"]);
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(said.contains("kv_pack_q8 has no kernel_backward"), "{said}");
}

#[test]
fn what_does_not_fit_the_kernel_is_named() {
    let dir = tempfile::tempdir().expect("a temporary directory");
    let at = dir.path();
    fs::write(at.join("x.json"), r#"{"shape": [1, 2], "values": [3, 4]}"#).expect("written");
    fs::write(at.join("w.json"), r#"{"shape": [3], "values": [1, 2, 3]}"#).expect("written");
    fs::write(at.join("text.json"), "x").expect("written");
    fs::write(at.join("text.npy"), "x").expect("written");
    let refused = |kernel: &str, args: &[&str], what: &str| {
        let output = core(at, kernel, args);
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(2), "{said}");
        assert!(said.contains(what) && said.lines().count() == 1, "{what:?} is not in: {said}");
    };
    refused("rmsnorm_f23", &[], "did you mean `rmsnorm_f32`?");
    refused("rmsnorm_f32", &["-i", "x.json"], "`weight` is missing: give --input weight=FILE");
    let misspelt = ["-i", "x.json", "-i", "weigth=w.json"];
    refused("rmsnorm_f32", &misspelt, "no input `weigth`: did you mean `weight`?");
    refused("rmsnorm_f32", &["-i", "bias=w.json"], "no input `bias`; it has x, weight");
    refused("rmsnorm_f32", &["-i", "x.json", "-i", "x=x.json"], "`x` is given twice");
    refused("rmsnorm_f32", &["-i", "x.json", "-i", "w.json"], "weight");
    refused("rmsnorm_f32", &["-i", "x.json", "-p", "epsilon=1"], "`epsilon`");
    refused("rmsnorm_f32", &["-i", "text.json"], "text.json: expected value");
    refused("rmsnorm_f32", &["-i", "text.npy"], "text.npy: it is no .npy file");
    refused("rmsnorm_f32", &["-i", "x.txt"], ".json and .npy");
    refused("rmsnorm_f32", &["-i", "x.json", "--out", "y.bin"], ".json and .npy");
}

#[test]
fn a_custom_operation_is_called_and_a_kernel_that_declines_is_explained() {
    let dir = tempfile::tempdir().expect("a temporary directory");
    let at = dir.path();
    let new = ["new", "mine", "--lang", "c", "--custom"];
    assert_eq!(tool(at, &new).status.code(), Some(0));
    let build = || {
        let output = tool(at, &["build", "mine", "--json"]);
        let report: Value = serde_json::from_slice(&output.stdout).expect("JSON");
        let missing = report["error"]["code"] == "toolchain_missing";
        if missing {
            eprintln!("skipped: {}", report["error"]["message"]);
        }
        assert!(missing || output.status.success(), "{report:#}");
        !missing
    };
    if !build() {
        return;
    }
    fs::write(at.join("x.json"), r#"{"shape": [1, 3], "values": [1, 2, -1]}"#).expect("written");
    let args = ["call", "mine", "affine_f32", "-i", "x.json", "-p", "a=2", "-p", "b=0.5"];
    let y = printed(&tool(at, &args));
    near(&y["values"], &[2.5, 4.5, -1.5]);
    let json = printed(&tool(at, &[&args[..], &["--json"]].concat()));
    assert_eq!((&json["ok"], &json["output"]["shape"]), (&json!(true), &json!([1, 3])));

    // Its sources say another type than pack.toml: it declines, and the host finds out which.
    let source = at.join("mine/kernels/affine_f32.c");
    let text = fs::read_to_string(&source).expect("a source");
    let spoilt = text.replace(
        "const float *x = RUVLLM_INPUT(call, float, rows, dim)",
        "const float *x = (const float *)RUVLLM_INPUT(call, ruvllm_f16, rows, dim)",
    );
    assert_ne!(text, spoilt);
    fs::write(&source, spoilt).expect("written");
    assert!(build());
    let output = tool(at, &args);
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(1), "{said}");
    assert!(
        said.contains("it takes `x` as f16[rows, dim], the manifest says f32[rows, dim]"),
        "{said}"
    );
}
