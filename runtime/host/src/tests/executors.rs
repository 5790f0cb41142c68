//! Which executor runs a kernel, which variant of it that gets, and what is particular to WAMR.

use super::*;
use crate::exec::Offer;
use crate::gate;
use crate::{Tensor, Words};
use ruvllm_manifest::{ExecutorGate, WamrPlatform};
use ruvllm_native::judge;
use ruvllm_native::random::Random;
use ruvllm_signing::{PackLimits, TrustPolicy, UnverifiedPack, VerifiedPack};
use ruvllm_tests::{custom_entry, wat};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

fn core_pack() -> VerifiedPack {
    let dist = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../kernel-packs/core/dist");
    let pack = UnverifiedPack::read_dir(&dist, &PackLimits::default()).unwrap();
    pack.verify(&TrustPolicy::builtin(), None).unwrap()
}

/// An executor that is there, with these features.
fn offer(executor: ExecutorKind, features: &[&str], compiles: bool) -> Offer {
    let features = features.iter().map(|name| (*name).to_owned()).collect();
    let version = semver::Version::new(u64::MAX, 0, 0);
    Offer { executor, gate: Ok(ExecutorGate { kind: executor, version, features, compiles }) }
}

/// Wasmtime, with all that it has.
fn wasmtime() -> Offer {
    let features: Vec<&str> = crate::kernel_features(DeviceClass::Server).collect();
    offer(ExecutorKind::Wasmtime, &features, true)
}

/// The ids of the kernels of a pack that are taken, each with what runs it.
fn taken(
    pack: &VerifiedPack,
    config: &HostConfig,
    offers: &[Offer],
) -> Vec<(String, ExecutorKind)> {
    let gated = gate::pass(pack, config, offers, usize::MAX, None);
    let gated = gated.unwrap_or_else(|refusals| panic!("{refusals:?}"));
    let kernel =
        |kernel: &gate::GatedKernel<'_>| (kernel.id().to_owned(), kernel.decision().executor);
    gated.kernels.iter().map(kernel).collect()
}

/// Those that WAMR is given where it is alone.
fn on_wamr(pack: &VerifiedPack, features: &[&str], deterministic: bool) -> Vec<String> {
    let executor = Some(ExecutorKind::Wamr);
    let config = HostConfig { deterministic, executor, ..HostConfig::default() };
    let kernels = taken(pack, &config, &[offer(ExecutorKind::Wamr, features, false)]);
    assert!(kernels.iter().all(|(_, executor)| *executor == ExecutorKind::Wamr));
    kernels.into_iter().map(|(id, _)| id).collect()
}

#[test]
fn an_executor_without_simd_gets_every_kernel_of_the_core_pack_in_its_scalar_variant() {
    let pack = core_pack();
    let kernels = on_wamr(&pack, &["bulk-memory"], false);
    assert!(kernels.iter().all(|id| id.ends_with("_scalar")), "{kernels:?}");
    assert_eq!(kernels.len(), Op::ALL.iter().map(|op| op.contract().variants.len()).sum::<usize>());
    assert_eq!(on_wamr(&pack, &[], true), kernels, "nor do they need bulk memory");
}

#[test]
fn an_executor_with_simd_gets_none_of_them_and_one_without_relaxed_simd_the_plain_ones() {
    let pack = core_pack();
    for deterministic in [false, true] {
        let kernels = on_wamr(&pack, &["simd", "bulk-memory"], deterministic);
        assert!(kernels.iter().all(|id| !id.ends_with("_scalar")), "{kernels:?}");
        assert!(kernels.contains(&"rmsnorm_f32_plain".to_owned()));
        assert!(kernels.contains(&"layernorm_f32".to_owned()));
    }
}

#[test]
fn of_two_executors_each_class_of_devices_takes_its_own_with_the_variants_for_it() {
    let pack = core_pack();
    let offers = [wasmtime(), offer(ExecutorKind::Wamr, &["bulk-memory"], false)];
    let server = taken(&pack, &DeviceClass::Server.config(), &offers);
    assert!(server.contains(&("rmsnorm_f32".to_owned(), ExecutorKind::Wasmtime)));
    let small = taken(&pack, &DeviceClass::Embedded.config(), &offers);
    assert!(small.contains(&("rmsnorm_f32_scalar".to_owned(), ExecutorKind::Wamr)));
    assert_eq!((server.len(), small.len()), (19, 19), "one of each operation");
    let absent = Offer { executor: ExecutorKind::Wamr, gate: Err("has no library".to_owned()) };
    let small = taken(&pack, &DeviceClass::Embedded.config(), &[absent, wasmtime()]);
    assert_eq!(small, server);
}

#[test]
fn kernels_for_one_executor_alone_run_there_beside_those_for_the_other() {
    let mine = PackBuilder::new()
        .kernel("rmsnorm_f32", rmsnorm_f32(&Module::default()))
        .manifest(|manifest| manifest.kernels[0].platforms.wamr = None)
        .build();
    let offers = [offer(ExecutorKind::Wamr, &[], false), wasmtime()];
    let kernels = taken(&mine.verify().unwrap(), &DeviceClass::Embedded.config(), &offers);
    assert_eq!(kernels, [("rmsnorm_f32".to_owned(), ExecutorKind::Wasmtime)]);
}

#[test]
fn a_host_that_compiles_leaves_out_what_may_not_be_compiled() {
    let mine = PackBuilder::new()
        .kernel("rmsnorm_f32", rmsnorm_f32(&Module::default()))
        .manifest(|manifest| {
            let min_version = semver::Version::new(0, 0, 0);
            manifest.kernels[0].platforms.wamr =
                Some(WamrPlatform { min_version, aot_available: false });
        })
        .build();
    let pack = mine.verify().unwrap();
    assert_eq!(on_wamr(&pack, &[], false), ["rmsnorm_f32"]);
    let config = HostConfig { executor: Some(ExecutorKind::Wamr), ..HostConfig::default() };
    let compiling = [offer(ExecutorKind::Wamr, &[], true)];
    let refused = gate::pass(&pack, &config, &compiling, usize::MAX, None);
    assert_eq!(refused.err().unwrap()[0].code, "aot_unavailable");
}

/// A pack with three variants of a kernel, of these modules: with relaxed SIMD, for Wasmtime alone; with SIMD, whose
/// id ends in `_plain`; and one that ends in `_scalar`. Those two are for WAMR too, of this platform.
fn variants([relaxed, plain, scalar]: [Module; 3], platform: &WamrPlatform) -> TestPack {
    let vectors = "(func (param v128) (result v128) (v128.not (local.get 0)))";
    let plain = Module { fields: plain.fields + vectors, ..plain };
    let small = PackBuilder::new().kernel("rmsnorm_f32", rmsnorm_f32(&Module::default())).build();
    let entry = |suffix: &str, features: &[&str]| {
        let mut entry = small.manifest.kernels[0].clone();
        entry.id += suffix;
        entry.path = format!("test/{}.wasm", entry.id).parse().unwrap();
        let wasmtime = entry.platforms.wasmtime.as_mut().unwrap();
        wasmtime.features = features.iter().map(|name| (*name).to_owned()).collect();
        entry.platforms.wamr = Some(platform.clone()).filter(|_| !suffix.is_empty());
        entry
    };
    PackBuilder::new()
        .entry(entry("", &["simd", "relaxed-simd"]), rmsnorm_f32(&relaxed))
        .entry(entry("_plain", &["simd"]), rmsnorm_f32(&plain))
        .entry(entry("_scalar", &[]), rmsnorm_f32(&scalar))
        .build()
}

/// A module that begins with more memory than a small device gives it.
fn large() -> Module {
    Module { memory: "(memory (export \"memory\") 3 256)".into(), ..Module::default() }
}

const ANY_WAMR: WamrPlatform =
    WamrPlatform { min_version: semver::Version::new(0, 0, 0), aot_available: true };

/// The reasons for which each kernel that is not taken is left out on a small device.
fn left_out(pack: &TestPack, config: &HostConfig, offers: &[Offer]) -> Vec<(String, String)> {
    let pack = pack.verify().unwrap();
    let gated = gate::pass(&pack, config, offers, usize::MAX, None);
    let gated = gated.unwrap_or_else(|refusals| panic!("{refusals:?}"));
    let skipped = gated.skipped.into_iter();
    skipped.map(|skipped| (skipped.kernel, skipped.reasons.join("; "))).collect()
}

#[test]
fn a_variant_that_lacks_memory_leaves_its_place_to_another() {
    let pack = variants([large(), large(), Module::default()], &ANY_WAMR);
    let offers = [offer(ExecutorKind::Wamr, &["simd"], false), wasmtime()];
    let config = DeviceClass::Embedded.config();
    let kernels = taken(&pack.verify().unwrap(), &config, &offers);
    assert_eq!(kernels, [("rmsnorm_f32_scalar".to_owned(), ExecutorKind::Wamr)]);
    for (kernel, reasons) in left_out(&pack, &config, &offers) {
        assert!(reasons.contains("begins with 196608 bytes"), "{kernel}: {reasons}");
    }
}

#[test]
fn where_all_that_are_for_an_executor_lack_memory_that_is_the_reason_and_none_is_refused() {
    let pack = variants([large(), large(), large()], &ANY_WAMR);
    let config =
        HostConfig { executor: Some(ExecutorKind::Wamr), ..DeviceClass::Embedded.config() };
    let left_out = left_out(&pack, &config, &[offer(ExecutorKind::Wamr, &["simd"], false)]);
    let reasons: Vec<&str> = left_out.iter().map(|(_, reasons)| reasons.as_str()).collect();
    assert!(reasons[0].contains("was not made for wamr"), "{reasons:?}");
    assert!(reasons[1..].iter().all(|why| why.contains("begins with 196608")), "{reasons:?}");
}

#[test]
fn a_variant_that_stands_back_tells_what_keeps_it_from_the_executor_that_is_preferred() {
    let config = DeviceClass::Embedded.config();
    let version = semver::Version::new(2, 4, 5);
    let wamr = |compiles| {
        let Offer { executor, gate } = offer(ExecutorKind::Wamr, &["simd"], compiles);
        let gate = gate.map(|gate| ExecutorGate { version: version.clone(), ..gate });
        [Offer { executor, gate }, wasmtime()]
    };
    let newer = WamrPlatform { min_version: semver::Version::new(3, 0, 0), ..ANY_WAMR };
    let interpreted = WamrPlatform { aot_available: false, ..ANY_WAMR };
    for (platform, compiles, told) in [
        (newer, false, "needs wamr 3.0.0"),
        (interpreted, true, "may not be compiled ahead of time"),
    ] {
        let pack = variants(Default::default(), &platform);
        let kernels = taken(&pack.verify().unwrap(), &config, &wamr(compiles));
        assert_eq!(kernels, [("rmsnorm_f32".to_owned(), ExecutorKind::Wasmtime)]);
        let left_out = left_out(&pack, &config, &wamr(compiles));
        assert_eq!(left_out.len(), 2);
        for (kernel, reasons) in left_out {
            assert!(reasons.contains(told), "{kernel}: {reasons}");
        }
    }
}

/// Why a host does not take a pack.
fn refusal_of(config: HostConfig) -> String {
    let host = Host::new(config).unwrap();
    let error = host.install(pack(&Module::default()).verify().unwrap()).unwrap_err();
    assert_eq!(error.code(), "executor_unavailable");
    error.to_string()
}

#[test]
fn an_executor_that_was_asked_for_and_is_not_there_is_an_error_that_says_what_to_do() {
    let wamr = WamrConfig { library: Some(PathBuf::from("no/such/libiwasm.so")), compiler: None };
    let told = if cfg!(feature = "wamr") { "no/such/libiwasm.so" } else { "the feature `wamr`" };
    // Whoever names a library asks for it.
    let why = refusal_of(HostConfig { wamr, ..HostConfig::default() });
    assert!(why.contains(told), "{why}");
    if !BUILD.bundled {
        let executor = Some(ExecutorKind::Wamr);
        let why = refusal_of(HostConfig { executor, ..HostConfig::default() });
        // Whoever uses the host as a library has no options.
        let told = match BUILD.wamr {
            true => ["--wamr-lib", "`WamrConfig::library`"],
            false => ["build with the feature `wamr`"; 2],
        };
        assert!(told.into_iter().all(|told| why.contains(told)), "{why}");
    }
}

#[cfg(feature = "wasmtime")]
#[test]
fn an_explanation_says_which_executor_runs_a_kernel_and_why() {
    let absent = if BUILD.wamr { "wamr has no library" } else { "wamr is not in this build" };
    let embedded = format!("the device class embedded has others before it, but {absent}");
    let named =
        HostConfig { executor: Some(ExecutorKind::Wasmtime), ..DeviceClass::Embedded.config() };
    let mut cases = vec![
        (DeviceClass::Server.config(), "runs on wasmtime, which the device class server prefers"),
        (named, "runs on wasmtime, which the configuration names"),
    ];
    if !BUILD.bundled {
        cases.push((DeviceClass::Embedded.config(), &embedded));
    }
    for (config, reason) in cases {
        let host = host(config, &pack(&Module::default()));
        let explanation = host.explain(&OpKey::rmsnorm_f32()).to_string();
        assert!(explanation.contains(reason), "{explanation}");
    }
}

/// A host for a small device with WAMR; `None` where there is none, which is said.
fn small() -> Option<HostConfig> {
    let wamr = WamrConfig { library: wamr::library(), compiler: None };
    let is_there = wamr::is_there(BUILD, wamr::Mode::Interpreted);
    is_there.then(|| HostConfig { wamr, ..DeviceClass::Embedded.config() })
}

#[test]
fn the_core_pack_is_admitted_on_wamr_and_computes_there() {
    let Some(config) = small() else { return };
    let host = Host::new(HostConfig { strict: true, cross_check_every: 1, ..config }).unwrap();
    let report = host.install(core_pack()).unwrap();
    assert_eq!(report.kernels.len(), 19);
    let (snap, mut worker) = (host.snapshot(), host.worker().unwrap());
    for dim in [1, 64, 2048] {
        rmsnorm(&mut worker, &snap, 3, dim).unwrap();
    }
    let explanation = host.explain(&OpKey::rmsnorm_f32());
    assert_eq!(explanation.candidates[0].executor, "wamr", "{explanation}");
    let told = "runs on wamr, which the device class embedded prefers";
    assert!(explanation.to_string().contains(told), "{explanation}");
    let relaxed = explanation.candidates.iter().find(|other| other.kernel == "rmsnorm_f32");
    let why = if cfg!(feature = "wasmtime") { "preferred here" } else { "not made for wamr" };
    assert!(relaxed.unwrap().reasons[0].contains(why), "{explanation}");
    assert!(host.take_incidents().0.is_empty());
}

#[test]
fn every_kernel_of_the_core_pack_answers_calls_of_models_on_wamr() {
    let Some(config) = small() else { return };
    // Calls as those of large models, which 128 KiB do not hold.
    let config = HostConfig { strict: true, instance_memory: None, ..config };
    let host = Host::new(config).unwrap();
    host.install(core_pack()).unwrap();
    let (snap, mut worker) = (host.snapshot(), host.worker().unwrap());
    let mut answered = 0;
    for op in Op::ALL {
        for variant in op.contract().variants {
            let key = OpKey::new(op.name(), variant.inputs.to_vec(), variant.output);
            let cases = judge::bench_cases(op, variant, &mut Random::new(7));
            let case = cases.into_iter().next().unwrap_or_else(|| panic!("no call of {key}"));
            let words = Words::new(&case.words).unwrap();
            let second = match case.b.is_empty() {
                true => Operand::None,
                false => Operand::Bytes(&case.b),
            };
            let call = OpCall::new(Operand::Bytes(&case.a), second, words).within(ONE);
            let mut out = vec![0xa5; case.output];
            worker.call(&snap, snap.slot(&key).unwrap(), &call, &mut out).unwrap();
            let called = Called { a: &case.a, b: &case.b, words: &case.words };
            let verdict = Judge::new(op, variant).check(called, &out);
            assert!(matches!(verdict, Ok(Verdict::Right(_))), "{key}: {verdict:?}");
            let kernel = host.explain(&key).selected.unwrap();
            assert!(!kernel.starts_with("native:"), "{key}: {kernel}");
            let mine = stats(&host, &kernel);
            assert_eq!((mine.calls, mine.fallbacks, mine.executor), (1, 0, "wamr"), "{key}");
            answered += 1;
        }
    }
    assert_eq!(answered, 19);
    assert!(host.take_incidents().0.is_empty());
}

#[test]
fn what_moves_much_memory_at_once_ends_by_the_time_of_the_call() {
    let Some(HostConfig { wamr, .. }) = small() else { return };
    for much in [
        "(memory.fill (i32.const 1024) (i32.const 7) (i32.const 0xff00000))",
        "(memory.copy (i32.const 1024) (i32.const 0x8000000) (i32.const 0x7f00000))",
        "(memory.copy (i32.const 0x8000000) (i32.const 1024) (i32.const 0x7f00000))",
    ] {
        let module = wat::assemble(&format!(
            r#"(module
              (memory (export "memory") 4096 4096)
              (global (export "__heap_base") i32 (i32.const 64))
              (func (export "run") (param $d i32) (result i32)
                (if (i32.eq (i32.const 100) (i32.load (i32.load offset=32 (local.get $d)))) (then {much}))
                (memory.copy (i32.load offset=16 (local.get $d)) (i32.load (local.get $d))
                  (i32.load offset=20 (local.get $d)))
                (i32.const 0)))"#
        ));
        let mut entry = custom_entry("copy_f32", "copy", "run");
        entry.resource_limits.max_memory_pages = 4096;
        entry.resource_limits.max_epoch_ticks = 20;
        let min_version = semver::Version::new(0, 0, 0);
        entry.platforms.wamr = Some(WamrPlatform { min_version, aot_available: true });
        let executor = Some(ExecutorKind::Wamr);
        let config = HostConfig { executor, wamr: wamr.clone(), ..DeviceClass::Server.config() };
        let host = host(config, &PackBuilder::new().entry(entry, module).build());
        let (snap, mut worker) = (host.snapshot(), host.worker().unwrap());
        let mut call = |n: usize| {
            let x = [Tensor::from_f32([n], &vec![1.0; n]).unwrap()];
            let begun = Instant::now();
            let y = worker.call_generic(&snap, "test-kernels/copy_f32", &x, &[]);
            (y.map(|y| y[0].to_f32()), begun.elapsed())
        };
        // Also the time that making an instance takes.
        let (y, quick) = call(3);
        assert_eq!(y.unwrap(), [1.0; 3]);
        let (y, took) = call(100);
        assert_eq!(y.unwrap_err().code(), "kernel_deadline", "{much}");
        assert!(took >= Duration::from_millis(20), "{much}: {took:?}");
        assert!(took < quick * 2 + Duration::from_millis(250), "{much}: {took:?}, {quick:?}");
    }
}

#[test]
fn a_call_that_is_too_large_for_a_small_device_is_the_twins_and_nobodys_fault() {
    let Some(config) = small() else { return };
    let host = Host::new(config).unwrap();
    host.install(core_pack()).unwrap();
    let (snap, mut worker) = (host.snapshot(), host.worker().unwrap());
    let mine = host.explain(&OpKey::rmsnorm_f32()).selected.unwrap();
    rmsnorm(&mut worker, &snap, 1, 1 << 16).unwrap();
    let mine = stats(&host, &mine);
    assert_eq!((mine.calls, mine.quarantined), (0, false));
    assert_eq!(stats(&host, "native:rmsnorm_f32").calls, 1);
}
