//! Packs that are refused, and kernels that go wrong in the middle of a text.

use crate::program::{Run, ruvllm};
use ruvllm_tests::wat::{Module, rmsnorm_f32};
use ruvllm_tests::{PackBuilder, TestPack};

/// Right calls of an instance before it fails: more than admission makes, fewer than a text takes.
const GOOD_CALLS: u32 = 300;

fn greedy(pack: Option<&TestPack>) -> Run {
    let mut args: Vec<String> =
        ["run", "--temperature", "0", "-n", "96", "--stats", "json", "Once upon a time"]
            .map(String::from)
            .to_vec();
    if let Some(pack) = pack {
        args.extend(["--pack".into(), pack.path().display().to_string()]);
        args.extend(["--trust".into(), pack.policy_file().display().to_string()]);
    }
    ruvllm(&args)
}

/// A pack whose RMSNorm is right until `failure` runs instead of it.
fn failing(failure: &str) -> TestPack {
    let module = Module {
        memory: r#"(memory (export "memory") 1 64)"#.into(),
        fields: "(global $calls (mut i32) (i32.const 0))".into(),
        prologue: format!(
            "(global.set $calls (i32.add (global.get $calls) (i32.const 1)))
             (if (i32.gt_u (global.get $calls) (i32.const {GOOD_CALLS})) (then {failure}))"
        ),
        ..Module::default()
    };
    let builder = PackBuilder::new().kernel("rmsnorm_f32", rmsnorm_f32(&module));
    builder.manifest(|manifest| manifest.kernels[0].resource_limits.max_memory_pages = 64).build()
}

fn the_text_survives(failure: &str, code: &str, told: &str) {
    let expected = greedy(None);
    let run = greedy(Some(&failing(failure)));
    assert_eq!(run.text(), expected.text(), "{failure}");
    let stats = run.stats();
    let ours = stats["ops"]
        .as_array()
        .unwrap()
        .iter()
        .find(|op| op["pack"] == "test-kernels")
        .unwrap_or_else(|| panic!("the pack is in {stats}"));
    assert!(ours["calls"].as_u64().unwrap() > 0, "{ours}");
    let fallbacks = ours["fallbacks"].as_u64().unwrap();
    assert!(fallbacks > 0, "{ours}");
    assert_eq!(ours["failures"][code], fallbacks, "{ours}");
    let reported = run.stderr.lines().find(|line| line.starts_with("warning: kernel rmsnorm_f32"));
    assert!(reported.is_some_and(|line| line.contains(told)), "no {told:?} in: {}", run.stderr);
}

#[test]
fn a_kernel_that_traps() {
    the_text_survives("unreachable", "kernel_trap", "trapped: `unreachable` reached");
}

#[test]
fn a_kernel_that_loops_for_ever() {
    the_text_survives(
        "(loop $forever (br $forever))",
        "kernel_deadline",
        "ran longer than its deadline",
    );
}

#[test]
fn a_kernel_that_returns_a_status() {
    the_text_survives("(return (i32.const 6))", "kernel_status", "returned status 6");
}

#[test]
fn a_kernel_that_reads_outside_of_its_memory() {
    the_text_survives(
        "(drop (i32.load (i32.const -4)))",
        "kernel_trap",
        "trapped: read 4 bytes at 0xfffffffc, beyond",
    );
}

#[test]
fn a_kernel_that_writes_where_it_has_no_business() {
    the_text_survives(
        "(i32.store (i32.const 900000) (i32.const 1))",
        "kernel_trap",
        "trapped: wrote 4 bytes at 0xdbba0",
    );
}

#[test]
fn strict_mode_refuses_to_fall_back() {
    let pack = failing("unreachable");
    let (dir, trust) = (pack.path(), pack.policy_file());
    ruvllm(&[
        "run",
        "-n",
        "96",
        "--strict",
        "--pack",
        dir.to_str().unwrap(),
        "--trust",
        trust.to_str().unwrap(),
    ])
    .refused(&["rmsnorm"]);
}

#[test]
fn a_pack_by_an_unknown_publisher() {
    let pack = PackBuilder::new().kernel("rmsnorm_f32", rmsnorm_f32(&Module::default())).build();
    ruvllm(&["run", "--pack", pack.path().to_str().unwrap()]).refused(&["signature_unknown_key"]);
}

/// A pack, and what its refusal has to say.
fn refused(pack: &TestPack, parts: &[&str]) {
    greedy(Some(pack)).refused(parts);
}

fn good() -> TestPack {
    PackBuilder::new().kernel("rmsnorm_f32", rmsnorm_f32(&Module::default())).build()
}

#[test]
fn a_flipped_bit_wherever_it_is() {
    for (file, at) in
        [("kernels.json", 100), ("kernels.json.sig", 120), ("test/rmsnorm_f32.wasm", 200)]
    {
        let pack = good();
        pack.flip(file, at);
        let run = greedy(Some(&pack));
        assert_eq!(run.code, Some(1), "{file}: {}", run.stderr);
        assert!(run.stdout.trim().is_empty(), "{file}: {}", run.stdout);
    }
}

#[test]
fn a_file_that_the_manifest_does_not_list() {
    let pack = good();
    pack.write("extra.txt", b"hello");
    refused(&pack, &["extra.txt", "file_unlisted"]);
}

#[test]
fn a_kernel_that_imports_something() {
    let module = Module {
        imports: r#"(import "env" "open" (func (param i32) (result i32)))"#.into(),
        ..Module::default()
    };
    let pack = PackBuilder::new().kernel("rmsnorm_f32", rmsnorm_f32(&module)).build();
    refused(&pack, &["import"]);
}

#[test]
fn a_kernel_that_computes_a_wrong_number() {
    let module = Module {
        epilogue: "(if (i32.lt_u (local.get $out) (local.get $out_end))
            (then (f32.store (local.get $out) (f32.const 0.5))))"
            .into(),
        ..Module::default()
    };
    let pack = PackBuilder::new().kernel("rmsnorm_f32", rmsnorm_f32(&module)).build();
    refused(&pack, &["rmsnorm_f32"]);
}

#[test]
fn a_pack_for_another_abi() {
    let pack = good();
    pack.sign_edited(|manifest| manifest["abi_version"] = 2.into());
    refused(&pack, &["abi"]);
}

#[test]
fn a_pack_of_which_no_kernel_is_used_is_told_with_the_reasons() {
    let memory = r#"(memory (export "memory") 3 256)"#.to_owned();
    let module = rmsnorm_f32(&Module { memory, ..Module::default() });
    let pack = PackBuilder::new().kernel("rmsnorm_f32", module).build();
    let (path, trust) = (pack.path().display().to_string(), pack.policy_file());
    let trust = trust.display().to_string();
    let always = ["run", "-n", "1", "--device-class", "embedded"];
    let run = ruvllm(&[&always[..], &["--pack", &path, "--trust", &trust]].concat());
    assert_eq!(run.code, Some(0), "{}", run.stderr);
    let told = "warning: rmsnorm_f32 of test-kernels 1.0.0 is left out, as all of the pack are: it begins with 196608";
    assert!(run.stderr.contains(told), "{}", run.stderr);
    assert!(!ruvllm(&always).stderr.contains("left out"), "the core pack is used");
}
