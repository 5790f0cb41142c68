//! Where kernels are compiled, and what is kept of that.

use crate::program::{caches, ruvllm};
use ruvllm::host::{Compiler, CompilerProcess, DeviceClass, Host, HostConfig, InstallReport};
use ruvllm_tests::wat::{Module, rmsnorm_f32};
use ruvllm_tests::{PackBuilder, TestPack};
use std::time::Duration;

fn process() -> CompilerProcess {
    CompilerProcess {
        program: env!("CARGO_BIN_EXE_ruvllm").into(),
        args: vec!["compile-kernel".into()],
        memory_bytes: 1 << 30,
        time: Duration::from_secs(60),
    }
}

fn install(process: CompilerProcess, pack: &TestPack) -> Result<InstallReport, &'static str> {
    let config = HostConfig { compiler: Compiler::Process(process), ..HostConfig::default() };
    let host = Host::new(config).unwrap();
    let report = host.install(pack.verify().unwrap()).map_err(|error| error.code());
    assert_eq!(host.generation(), 1 + u64::from(report.is_ok()));
    report
}

fn pack(fields: String) -> TestPack {
    let module = Module { fields, ..Module::default() };
    PackBuilder::new().kernel("rmsnorm_f32", rmsnorm_f32(&module)).build()
}

/// Functions as large as the gate lets through, of code that the compiler likes least: one long
/// chain of values that all stay alive.
fn slow_to_compile() -> TestPack {
    let values = 3000;
    let function = |n: usize| {
        let get = |i: usize| format!("(f64.load offset={} (i32.const {n}))", i * 8);
        let gets: String = (0..values).map(get).collect();
        format!("(func (result f64) {gets} {})", "(f64.add)".repeat(values - 1))
    };
    pack((0..30).map(function).collect())
}

#[test]
fn a_process_of_its_own_compiles_a_pack() {
    let report = install(process(), &pack(String::new())).unwrap();
    assert_eq!(report.kernels, ["rmsnorm_f32"]);
}

#[test]
fn it_compiles_kernels_with_threads_for_the_class_that_has_them() {
    let module = rmsnorm_f32(&Module::threaded());
    let pack = PackBuilder::new().kernel("rmsnorm_f32", module).threads(4).build();
    let config =
        HostConfig { compiler: Compiler::Process(process()), ..DeviceClass::Threads.config() };
    let report = Host::new(config).unwrap().install(pack.verify().unwrap()).unwrap();
    assert_eq!(report.kernels, ["rmsnorm_f32"]);
}

#[test]
fn a_module_that_takes_the_compiler_too_long_is_refused() {
    let pack = slow_to_compile();
    let limited = CompilerProcess { time: Duration::from_millis(50), ..process() };
    assert_eq!(install(limited, &pack).unwrap_err(), "compile_timeout");
}

#[test]
fn a_module_that_takes_the_compiler_too_much_memory_is_refused() {
    // The program itself is larger with some features; the rest is enough for a small kernel.
    let program = std::fs::metadata(process().program).unwrap().len();
    let limited = CompilerProcess { memory_bytes: program + (8 << 20), ..process() };
    install(limited.clone(), &pack(String::new())).unwrap();
    assert_eq!(install(limited, &slow_to_compile()).unwrap_err(), "compile_limit");
}

#[test]
fn a_compiler_that_is_not_there_refuses_the_pack_by_name() {
    let missing = CompilerProcess { program: "/no/such/program".into(), ..process() };
    assert_eq!(install(missing, &pack(String::new())).unwrap_err(), "compiler_unavailable");
}

#[test]
fn what_is_no_request_gets_an_answer_and_no_code() {
    let run = ruvllm(&["compile-kernel"]);
    assert!(run.stdout.starts_with('\u{2}'), "{:?}", run.stdout);
}

#[test]
fn the_second_start_compiles_nothing_and_says_the_same() {
    let directory = tempfile::tempdir().unwrap();
    let cache = directory.path().join("cache");
    let run = || {
        let cache = cache.to_str().unwrap();
        ruvllm(&["run", "--temperature", "0", "-n", "24", "--cache-dir", cache]).text().to_owned()
    };
    let entries = || std::fs::read_dir(&cache).unwrap().count();
    let first = run();
    let (kept, modified) = (entries(), std::fs::metadata(&cache).unwrap().modified().unwrap());
    assert!(kept > 1);
    assert_eq!(run(), first);
    assert_eq!(std::fs::metadata(&cache).unwrap().modified().unwrap(), modified);
    assert_eq!(entries(), kept);
}

#[cfg(unix)]
#[test]
fn a_cache_that_others_can_write_is_named_and_not_used() {
    use std::os::unix::fs::PermissionsExt as _;
    let directory = tempfile::tempdir().unwrap();
    std::fs::set_permissions(directory.path(), std::fs::Permissions::from_mode(0o770)).unwrap();
    let cache = directory.path().to_str().unwrap();
    let run = ruvllm(&["run", "--temperature", "0", "-n", "4", "--cache-dir", cache]);
    assert_eq!(run.code, Some(0));
    assert!(run.stderr.contains("open to others"), "{}", run.stderr);
    assert_eq!(std::fs::read_dir(directory.path()).unwrap().count(), 0);
}

#[test]
fn the_default_place_is_the_users_cache_directory() {
    assert_eq!(ruvllm(&["kernels", "list"]).code, Some(0));
    assert!(caches().join("ruvllm/host.key").is_file());
}

#[test]
fn the_fastest_kernels_give_the_same_text() {
    let text = |kernels: &str| {
        let args = ["run", "--temperature", "0", "-n", "48", "--kernels", kernels];
        ruvllm(&args).text().to_owned()
    };
    assert_eq!(text("fastest"), text("sandbox"));
    let explained = ruvllm(&["kernels", "explain", "rmsnorm", "--kernels", "fastest"]);
    assert!(explained.text().contains("rmsnorm_f32 first (measured: "), "{}", explained.stdout);
}

#[test]
fn a_pin_that_names_nothing_is_refused_with_the_nearest_name() {
    for (pin, nearest) in [
        ("rmsnrom=rmsnorm_f32", "\"rmsnorm\""),
        ("rmsnorm(f32,f32)->f31=rmsnorm_f32", "\"rmsnorm(f32,f32)->f32\""),
        ("rmsnorm=rmsnrom_f32", "\"rmsnorm_f32\""),
        ("rmsnorm=native:rmsnorm_f23", "\"native:rmsnorm_f32\""),
        // Of another operation.
        ("rmsnorm=swiglu_f32", "rmsnorm_f32"),
    ] {
        for command in [
            &["run", "-n", "1"][..],
            &["run", "-n", "1", "--strict"],
            &["kernels", "list"],
            &["serve", "--check"],
            &["bench"],
        ] {
            ruvllm(&[command, &["--pin", pin]].concat()).refused(&[pin, nearest]);
        }
    }
}

#[test]
fn a_pinned_kernel_is_asked_first() {
    let pin = ["kernels", "explain", "swiglu", "--pin", "swiglu=native:swiglu_f32"];
    let run = ruvllm(&pin);
    let first = run.text().lines().find(|line| line.contains("selected")).unwrap();
    assert!(first.contains("native:swiglu_f32"), "{}", run.stdout);
}

/// The candidate of an operation that is asked first, with its reasons.
fn selected(op: &str, options: &[&str]) -> String {
    let explained = ruvllm(&[&["kernels", "explain", op], options].concat());
    let lines = explained.text().lines().skip_while(|line| !line.starts_with("  selected"));
    let reasons = lines.clone().skip(1).take_while(|line| line.starts_with("     "));
    lines.take(1).chain(reasons).collect::<Vec<_>>().join("\n")
}

#[test]
fn how_products_are_computed_is_explained_as_the_options_have_it_and_why() {
    let q8_0 = "matmul(f32,q8_0)->f32";
    let [packed, unpacked] = ["native:matmul_q8_0 ", "native:matmul_q8_0_rows "];
    let has = |explained: &str, parts: &[&str]| {
        parts.iter().for_each(|part| assert!(explained.contains(part), "no {part:?}: {explained}"));
    };
    let best = "the fastest instructions that this processor has";
    has(&selected(q8_0, &[]), &[packed, best, "weights packed when a model is loaded", "since"]);
    let in_place = "weights rearranged in each product";
    has(&selected(q8_0, &["--no-repack"]), &[unpacked, best, in_place]);
    assert!(!selected(q8_0, &["--no-repack"]).contains("packed"));
    let pinned = selected(q8_0, &["--pin", "matmul=native:matmul_q8_0_rows"]);
    has(&pinned, &[unpacked, "pinned by the configuration", in_place]);
    let policy = selected(q8_0, &["--kernels", "native"]);
    has(&policy, &[packed, "native-only", "weights packed when a model is loaded"]);
    let scalar = selected(q8_0, &["--isa", "scalar"]);
    has(&scalar, &[unpacked, "the instructions that the configuration names"]);
    // What `doctor` says of prompts.
    let prompt = |explained: &str| explained.split_once("; of many: ").unwrap().1.to_owned();
    has(&prompt(&selected("matmul(f32,f32)->f32", &[])), &[in_place]);
    for options in [&[][..], &["--bf16"]] {
        let doctor = ["doctor", "--threads", "1", "--json"];
        let report: serde_json::Value =
            serde_json::from_str(ruvllm(&[&doctor[..], options].concat()).text()).unwrap();
        let mut weights = report["weights"].as_array().unwrap().iter();
        let f16 = weights.find(|path| path["weights"] == "f16").unwrap()["prompt"].as_str();
        let path: Vec<&str> = f16.unwrap().split(", ").collect();
        let computed = format!("{} with {}", path[1], path[0]);
        has(&prompt(&selected("matmul(f32,f16)->f32", options)), &[&computed, in_place]);
    }
}

#[test]
fn who_computes_products_embeddings_and_attention_is_explained_by_the_operations_name() {
    let types =
        ["f32", "f16", "bf16", "q8_0", "q4_0", "q4_1", "q5_0", "q5_1", "q4_k", "q5_k", "q6_k"];
    for op in ["matmul", "embed", "attention"] {
        let explained = ruvllm(&["kernels", "explain", op]);
        let keys: Vec<String> = match op {
            "matmul" => types.map(|of| format!("matmul(f32,{of})->f32")).into(),
            "embed" => types.map(|of| format!("embed(u32,{of})->f32")).into(),
            _ => vec!["attention(f32)->f32".to_owned()],
        };
        let blocks: Vec<&str> = explained.text().split("\n\n").collect();
        for key in keys {
            let block = blocks.iter().find(|block| block.starts_with(&key));
            let block = block.unwrap_or_else(|| panic!("no {key}: {}", explained.text()));
            assert!(block.contains("  selected    native:"), "{block}");
        }
    }
}

#[test]
fn deterministic_mode_runs_the_kernels_without_relaxed_simd() {
    let run =
        ruvllm(&["run", "--temperature", "0", "-n", "8", "--deterministic", "--stats", "json"]);
    assert!(!run.text().is_empty());
    let stats = run.stats();
    // Packs bring no team operations.
    let team = ["matmul(", "attention(", "embed("];
    let is_row = |op: &&serde_json::Value| {
        !team.iter().any(|name| op["op"].as_str().unwrap().starts_with(name))
    };
    for op in stats["ops"].as_array().unwrap().iter().filter(is_row) {
        assert!(op["kernel"].as_str().unwrap().ends_with("_plain"), "{op}");
        assert_eq!(op["fallbacks"], 0, "{op}");
    }
}

#[test]
fn the_log_tells_every_decision() {
    let run = ruvllm(&["kernels", "list", "--log", "debug"]);
    assert_eq!(run.code, Some(0));
    let line = run.stderr.lines().find(|line| line.contains("rmsnorm_f32_plain")).unwrap();
    for part in ["op=rmsnorm(f32,f32)->f32", "verdict=rejected", "deterministic"] {
        assert!(line.contains(part), "{line}");
    }
    assert_eq!(ruvllm(&["kernels", "list"]).stderr, "");
}
