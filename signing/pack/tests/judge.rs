//! `ruvllm-pack test` and a host say the same of a kernel, whatever is wrong with it.

use std::borrow::Cow;
use std::fs;
use std::path::Path;

use ruvllm_host::{Host, HostConfig};
use ruvllm_native::random::Random;
use ruvllm_pack::{Report, oracle_test};
use ruvllm_signing::{
    PackLimits, Publisher, SecretKey, TrustPolicy, UnverifiedPack, sign_manifest,
};
use serde_json::{Value, json};
use sha2::{Digest, Sha256};
use wasmparser::{Parser, Payload};

fn core() -> std::path::PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../kernel-packs/core/dist")
}

/// A pack of one kernel of the core pack, with a module of its own and a change of its entry.
fn pack(id: &str, wasm: &[u8], change: impl Fn(&mut Value)) -> Vec<(String, Vec<u8>)> {
    let text = fs::read(core().join("kernels.json")).expect("a manifest");
    let mut manifest: Value = serde_json::from_slice(&text).expect("JSON");
    let kernels = manifest["kernels"].as_array().expect("kernels");
    let mut entry = kernels.iter().find(|k| k["id"] == id).expect("a kernel").clone();
    let hash: String = Sha256::digest(wasm).iter().map(|byte| format!("{byte:02x}")).collect();
    entry["size"] = json!(wasm.len());
    entry["hash"] = json!(format!("sha256:{hash}"));
    change(&mut entry);
    let path = entry["path"].as_str().expect("a path").to_owned();
    manifest["fallbacks"] = json!({});
    manifest["kernels"] = json!([entry]);
    let manifest = serde_json::to_vec(&manifest).expect("JSON");
    vec![("kernels.json".to_owned(), manifest), (path, wasm.to_vec())]
}

/// The code of the first refusal of a host that trusts the author and draws from this seed.
fn host_says(files: &[(String, Vec<u8>)], seed: u64) -> Result<(), &'static str> {
    let key = SecretKey::generate().expect("a key");
    let publisher = Publisher {
        name: "author".to_owned(),
        key: key.public_key(),
        packs: vec!["*".parse().expect("a pattern")],
        native: false,
        threads: false,
        wasi_nn: false,
        not_before: None,
        not_after: None,
    };
    let signature = sign_manifest(&files[0].1, &[&key]).expect("signed").to_json().into_bytes();
    let files = files.iter().cloned().chain([("kernels.json.sig".to_owned(), signature)]);
    let files: Vec<(String, Cow<'static, [u8]>)> =
        files.map(|(path, bytes)| (path, Cow::Owned(bytes))).collect();
    let policy = TrustPolicy::new(vec![publisher], 1).expect("a policy");
    let pack = UnverifiedPack::from_files(files, &PackLimits::default()).expect("a pack");
    let pack = pack.verify(&policy, None).expect("a pack that is signed");
    let config = HostConfig { admission_seed: Some(seed), ..HostConfig::default() };
    let host = Host::new(config).expect("a host");
    host.install(pack).map(|_| ()).map_err(|error| error.code())
}

/// Whether `ruvllm-pack test` passes, drawing from this seed.
fn tool_says(files: &[(String, Vec<u8>)], seed: u64) -> Result<(), String> {
    let dir = tempfile::tempdir().expect("a temporary directory");
    for (path, bytes) in files {
        let path = dir.path().join(path);
        fs::create_dir_all(path.parent().expect("a parent")).expect("made");
        fs::write(path, bytes).expect("written");
    }
    match oracle_test::test(dir.path(), Some(seed)) {
        // Authors are also told what no host tries, as what a kernel does with a full memory.
        Ok(report) if report.kernels.iter().all(|one| one.failed == one.failed_beyond_hosts) => {
            assert_eq!(report.passed(), !report.to_string().contains("hosts admit this pack"));
            Ok(())
        }
        Ok(report) => Err(report.to_string()),
        Err(error) => Err(error.to_string()),
    }
}

/// The module with one byte of its code changed.
fn mutant(wasm: &[u8], random: &mut Random) -> Vec<u8> {
    let code = Parser::new(0).parse_all(wasm).find_map(|payload| match payload.expect("valid") {
        Payload::CodeSectionStart { range, .. } => Some(range),
        _ => None,
    });
    let code = code.expect("a module with code");
    let at = code.start + random.below(code.len() as u32) as usize;
    let mut mutant = wasm.to_vec();
    // A neighbour, which is often an instruction of the same shape, or any other byte.
    mutant[at] = match random.below(3) {
        0 => mutant[at].wrapping_add(1),
        1 => mutant[at].wrapping_sub(1),
        _ => random.next() as u8,
    };
    mutant
}

#[test]
fn a_pack_that_passes_the_test_is_admitted_and_one_that_fails_is_refused() {
    let mut random = Random::new(34);
    let (mut admitted, mut wrong, mut wrong_gradients) = (0, 0, 0);
    for (id, path, mutants) in [
        ("rmsnorm_f32_plain", "normalization", 120),
        ("swiglu_f16_plain", "activation", 120),
        ("kv_pack_q8_plain", "kv_cache", 120),
        ("kv_unpack_q4", "kv_cache", 12),
        ("rope_f32_plain", "positional_encoding", 12),
        ("lora_apply_f32_plain", "adapter", 12),
        ("gelu_f32_plain", "activation", 12),
        ("geglu_f32_plain", "activation", 12),
        ("layernorm_f32", "normalization", 12),
    ] {
        let wasm = fs::read(core().join(format!("{path}/{id}.wasm"))).expect("a module");
        for i in 0..mutants {
            let module = if i == 0 { wasm.clone() } else { mutant(&wasm, &mut random) };
            let (files, seed) = (pack(id, &module, |_| {}), u64::from(random.next()));
            let host = host_says(&files, seed);
            let tool = tool_says(&files, seed);
            assert_eq!(tool.is_ok(), host.is_ok(), "{id}, mutant {i}: {host:?}, {tool:?}");
            assert!(i > 0 || host.is_ok(), "{id}: {host:?}");
            admitted += usize::from(host.is_ok());
            wrong += usize::from(matches!(host, Err("kernel_mismatch" | "kernel_non_finite")));
            wrong_gradients += usize::from(tool.is_err_and(|why| why.contains("the gradient by ")));
        }
    }
    // Of each there are enough to mean something.
    assert!(
        admitted >= 10 && wrong >= 30 && wrong_gradients >= 5,
        "{admitted} were admitted, {wrong} were wrong, {wrong_gradients} in gradients"
    );
}

#[test]
fn an_author_who_promises_more_is_held_to_it_by_both() {
    let id = "rmsnorm_f32_plain";
    let wasm = fs::read(core().join(format!("normalization/{id}.wasm"))).expect("a module");
    let promise = |abs: f64| pack(id, &wasm, |k| k["tolerance"] = json!({"rel": 0.0, "abs": abs}));
    let exact = promise(0.0);
    assert_eq!(host_says(&exact, 5), Err("kernel_mismatch"));
    assert!(tool_says(&exact, 5).is_err());
    let loose = promise(1e-6);
    assert_eq!(host_says(&loose, 5), Ok(()));
    assert!(tool_says(&loose, 5).is_ok());
}
