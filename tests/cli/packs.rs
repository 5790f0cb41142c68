//! Packs that a user brings: as a directory or one file, pinned, new and old.

use crate::program::{Run, ruvllm};
use ruvllm::signing::{PackLimits, PackLock, SOURCES_FILE, Sources, UnverifiedPack};
use ruvllm_tests::wat::{Module, rmsnorm_f32};
use ruvllm_tests::{PackBuilder, TestPack};
use std::fs;
use std::path::Path;

fn version(text: &str) -> TestPack {
    PackBuilder::new()
        .kernel("rmsnorm_f32", rmsnorm_f32(&Module::default()))
        .manifest(|manifest| manifest.version = text.parse().unwrap())
        .build()
}

/// Runs eight tokens with the pack and further options.
fn run(pack: &Path, trust: &Path, options: &[&Path]) -> Run {
    let mut args: Vec<&Path> =
        ["run", "--temperature", "0", "-n", "8", "--stats", "json"].map(Path::new).to_vec();
    args.extend([Path::new("--pack"), pack, Path::new("--trust"), trust]);
    args.extend_from_slice(options);
    ruvllm(&args)
}

/// How often the kernel of the pack was called.
fn calls(run: &Run) -> u64 {
    let stats = run.stats();
    let ops = stats["ops"].as_array().unwrap().iter();
    ops.filter(|op| op["pack"] == "test-kernels").map(|op| op["calls"].as_u64().unwrap()).sum()
}

#[test]
fn one_file_is_as_good_as_a_directory() {
    let pack = version("1.0.0");
    let file = pack.outside().join("pack.rkp");
    let read = UnverifiedPack::read_dir(&pack.path(), &PackLimits::default()).unwrap();
    read.write_archive(fs::File::create(&file).unwrap()).unwrap();
    let from_file = run(&file, &pack.policy_file(), &[]);
    let from_directory = run(&pack.path(), &pack.policy_file(), &[]);
    assert_eq!(from_file.text(), from_directory.text());
    assert!(calls(&from_file) > 0);
    assert_eq!(calls(&from_file), calls(&from_directory));
}

#[test]
fn a_version_older_than_one_that_was_active_is_refused() {
    let state = tempfile::tempdir().unwrap();
    let state = [Path::new("--state-dir"), state.path()];
    let (old, new) = (version("1.0.0"), version("1.1.0"));
    assert!(calls(&run(&old.path(), &old.policy_file(), &state)) > 0);
    assert!(calls(&run(&new.path(), &new.policy_file(), &state)) > 0);
    run(&old.path(), &old.policy_file(), &state).refused(&["version_below_floor", "1.1.0"]);
    assert!(calls(&run(&new.path(), &new.policy_file(), &state)) > 0);
}

#[test]
fn a_pack_crate_stands_for_its_build_and_a_text_is_no_archive() {
    let pack = version("1.0.0");
    let named = pack.outside().join("my-kernels");
    fs::create_dir(&named).unwrap();
    fs::write(named.join("pack.toml"), "").unwrap();
    let refused = |path: &Path, what: &str| {
        let run = run(path, &pack.policy_file(), &[]);
        run.refused(&[what]);
        let of_it = run.stderr.lines().filter(|line| line.contains(what)).count();
        assert_eq!((of_it, run.stderr.trim().lines().count()), (1, 1), "{}", run.stderr);
    };
    refused(&named, "is a pack crate that has not been built: run `ruvllm-pack build`");
    let read = UnverifiedPack::read_dir(&pack.path(), &PackLimits::default()).unwrap();
    read.write_dir(&named.join("dist")).unwrap();
    assert!(calls(&run(&named, &pack.policy_file(), &[])) > 0);
    // As `ruvllm-pack build` leaves it, with what it was made from.
    let crate_path = fs::canonicalize(&named).unwrap();
    let record = Sources::read(&crate_path, &[]).unwrap().record(&crate_path).unwrap();
    fs::write(named.join(SOURCES_FILE), record).unwrap();
    assert!(calls(&run(&named, &pack.policy_file(), &[])) > 0);
    fs::write(named.join("pack.toml"), "# A change that was not built").unwrap();
    refused(&named, "is older than its sources (pack.toml has changed): run `ruvllm-pack build");
    assert!(calls(&run(&named.join("dist"), &pack.policy_file(), &[])) > 0);
    let text = pack.outside().join("notes.rkp");
    fs::write(&text, "These are my notes.\n".repeat(100)).unwrap();
    refused(&text, "is not a pack archive");
    refused(pack.outside(), "there is no kernels.json in it");
}

#[test]
fn the_same_version_with_other_bytes_is_said() {
    let state = tempfile::tempdir().unwrap();
    let state = [Path::new("--state-dir"), state.path()];
    let first = version("1.0.0");
    let other = PackBuilder::new()
        .kernel("rmsnorm_f32", rmsnorm_f32(&Module::default()))
        .manifest(|manifest| manifest.description = "another pack".to_owned())
        .manifest(|manifest| manifest.version = "1.0.0".parse().unwrap())
        .build();
    let warns = |pack: &TestPack| {
        let run = run(&pack.path(), &pack.policy_file(), &state);
        assert!(calls(&run) > 0, "{}", run.stderr);
        run.stderr.contains("warning: test-kernels 1.0.0 has other bytes than")
    };
    assert!(!warns(&first) && !warns(&first));
    assert!(warns(&other) && !warns(&other));
    let newer = version("1.0.1");
    assert!(!run(&newer.path(), &newer.policy_file(), &state).stderr.contains("other bytes"));
}

#[test]
fn a_refused_pack_raises_no_floor() {
    let state = tempfile::tempdir().unwrap();
    let state = [Path::new("--state-dir"), state.path()];
    let wrong = Module {
        epilogue: "(f32.store (local.get $out) (f32.const 9))".into(),
        ..Module::default()
    };
    let bad = PackBuilder::new()
        .kernel("rmsnorm_f32", rmsnorm_f32(&wrong))
        .manifest(|manifest| manifest.version = "9.0.0".parse().unwrap())
        .build();
    run(&bad.path(), &bad.policy_file(), &state).refused(&["kernel_mismatch"]);
    let good = version("1.0.0");
    assert!(calls(&run(&good.path(), &good.policy_file(), &state)) > 0);
}

#[test]
fn a_lock_lets_exactly_its_packs_in() {
    let (pinned, other) = (version("1.0.0"), version("1.0.0"));
    let mut lock = PackLock::new();
    lock.insert(&pinned.verify().unwrap());
    let file = pinned.outside().join("packs.lock");
    fs::write(&file, lock.to_toml().unwrap()).unwrap();
    let lock = [Path::new("--lock"), &file];
    assert!(calls(&run(&pinned.path(), &pinned.policy_file(), &lock)) > 0);
    run(&other.path(), &other.policy_file(), &lock).refused(&["lock_mismatch"]);
}
