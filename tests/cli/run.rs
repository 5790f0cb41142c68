//! Generation from the built-in model.

use crate::program::{ruvllm, ruvllm_with_input};

const GREEDY: [&str; 6] = ["run", "--temperature", "0", "-n", "96", "Once upon a time"];

/// Whether an entry of the statistics is about this operation, of whichever element types.
fn is(entry: &serde_json::Value, op: &str) -> bool {
    entry["op"].as_str().is_some_and(|key| key.split('(').next() == Some(op))
}

fn greedy(extra: &[&str]) -> crate::program::Run {
    ruvllm(&[&GREEDY[..], extra].concat())
}

#[test]
fn the_first_command_of_the_readme_prints_a_story_through_the_signed_pack() {
    let run = ruvllm(&["run", "Once upon a time", "--stats", "json", "--seed", "7"]);
    let words = run.text().split_whitespace().count();
    assert!(words >= 40, "only {words} words: {}", run.stdout);
    let stats = run.stats();
    let ops = stats["ops"].as_array().unwrap();
    for op in ["rmsnorm", "rope", "swiglu"] {
        let used: Vec<_> =
            ops.iter().filter(|o| is(o, op) && o["calls"].as_u64().unwrap() > 0).collect();
        assert_eq!(used.len(), 1, "{op}: {ops:?}");
        assert_eq!(used[0]["pack"], "ruvllm-core-kernels", "{op}");
        assert_eq!(used[0]["fallbacks"], 0, "{op}");
        assert!(used[0]["generation"].as_u64().unwrap() > 0, "{op}");
    }
}

#[test]
fn the_prompt_may_come_from_a_pipe_or_a_file() {
    const SHORT: [&str; 6] = ["run", "--temperature", "0", "-n", "12", "--raw"];
    let with = |extra: &[&str], input: &str| {
        let run = ruvllm_with_input(&[&SHORT[..], extra].concat(), input);
        run.text().to_owned()
    };
    let expected = with(&["The little cat"], "");
    assert_ne!(expected, with(&[], ""), "an empty pipe is no prompt");
    assert_eq!(expected, with(&[], "The little cat\n"));
    assert_eq!(expected, with(&["-"], "The little cat\r\n"));
    // One line's end is not part of it; further ones are.
    assert_ne!(expected, with(&["-"], "The little cat\n\n"));
    // An argument is the prompt, whatever else there is to read.
    assert_eq!(expected, with(&["The little cat"], "Another prompt"));

    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("prompt.txt");
    std::fs::write(&file, "The little cat\n").unwrap();
    let file = file.to_str().unwrap();
    assert_eq!(expected, with(&["-f", file], "Another prompt"));
    assert_eq!(expected, with(&["-f", "-"], "The little cat\n"));
    assert_eq!(ruvllm(&["run", "-f", file, "A prompt"]).code, Some(2));
    ruvllm(&["run", "-f", "no/such/file"]).refused(&["no/such/file"]);
    std::fs::write(file, b"\xff").unwrap();
    ruvllm(&["run", "-f", file]).refused(&[file, "UTF-8"]);
}

#[test]
fn a_text_to_measure_may_come_from_standard_input() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("text.txt");
    let text =
        "Once upon a time, there was a little girl named Wren. She loved to dance. ".repeat(4);
    std::fs::write(&file, &text).unwrap();
    let measured = |file: &str| {
        let args = ["perplexity", "--json", "-c", "32", "-f", file];
        let run = ruvllm_with_input(&args, &text);
        let measured: serde_json::Value = serde_json::from_str(run.text()).unwrap();
        measured["perplexity"].as_f64().unwrap()
    };
    assert_eq!(measured("-"), measured(file.to_str().unwrap()));
}

#[test]
fn a_model_in_the_prompts_place_is_shown_its_own() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("model.gguf");
    std::fs::write(&file, "").unwrap();
    let file = file.to_str().unwrap();
    for args in [&["run", "model", "Once upon a time"][..], &["run", file]] {
        let run = ruvllm(args);
        assert_eq!(run.code, Some(2), "{}", run.stderr);
        assert!(run.stderr.contains(&format!("ruvllm run -m {} ", args[1])), "{}", run.stderr);
    }
    for command in ["chat", "serve", "bench", "perplexity", "tokenize"] {
        let run = ruvllm(&[command, file]);
        assert_eq!(run.code, Some(2), "{}", run.stderr);
        assert!(run.stderr.contains(&format!("ruvllm {command} -m {file}")), "{}", run.stderr);
    }
    let run = ruvllm(&["chat", "--modell"]);
    assert!(run.stderr.contains("unexpected argument '--modell'"), "{}", run.stderr);
}

#[test]
fn a_prompt_without_quotes_is_shown_with_them() {
    for words in [&["Once", "upon"][..], &["Once", "upon", "a", "time"]] {
        let run = ruvllm(&[&["run"][..], words, &["-n", "3"]].concat());
        assert_eq!(run.code, Some(2), "{}", run.stderr);
        let shown = format!("ruvllm run \"{}\"", words.join(" "));
        assert!(run.stderr.contains(&shown), "{}", run.stderr);
    }
}

#[test]
fn sandbox_and_native_kernels_give_the_same_greedy_text() {
    for kv in ["f16", "q8_0", "q4_0"] {
        let sandbox = greedy(&["--kv", kv]);
        let native = greedy(&["--kv", kv, "--kernels", "native", "--stats", "json"]);
        assert_eq!(sandbox.text(), native.text(), "KV {kv}");
        for op in native.stats()["ops"].as_array().unwrap() {
            if op["calls"].as_u64().unwrap() > 0 {
                assert!(op["kernel"].as_str().unwrap().starts_with("native:"), "{op}");
            }
        }
    }
}

#[test]
fn rearranged_weights_and_those_of_the_file_give_the_same_greedy_text() {
    assert_eq!(greedy(&[]).text(), greedy(&["--no-repack"]).text());
}

#[test]
fn any_instructions_and_read_pattern_that_there_are_can_be_asked_for() {
    let run = ruvllm(&["doctor", "--threads", "1", "--json"]);
    let report: serde_json::Value = serde_json::from_str(run.text()).expect("JSON");
    let names = |list: &str, name: &str| -> Vec<String> {
        let list = report[list].as_array().expect("a list");
        let named =
            |entry: &serde_json::Value| entry[name].as_str().or(entry.as_str()).map(str::to_owned);
        list.iter().filter_map(named).collect()
    };
    // Computed in another order, a close choice of the model's may fall otherwise.
    let first = |args: &[&str]| greedy(args).text()[..20].to_owned();
    let usual = first(&[]);
    for isa in names("available", "") {
        assert_eq!(first(&["--isa", &isa]), usual, "{isa}");
        let bench = ruvllm(&["bench", "-p", "8", "-n", "2", "-r", "1", "--isa", &isa]);
        assert!(bench.text().contains(&format!("| {isa} |")), "{}", bench.stdout);
    }
    for pattern in names("reading", "pattern") {
        let run = greedy(&["--read-pattern", &pattern, "--log", "debug"]);
        assert_eq!(run.text(), greedy(&[]).text(), "{pattern}");
        let logged = format!("read_pattern=\"{pattern}\"");
        assert!(run.stderr.contains(&logged), "{}", run.stderr);
    }
    for (option, value, why) in [
        ("--isa", "sse9", "give one of scalar"),
        ("--isa", if cfg!(target_arch = "x86_64") { "neon" } else { "avx2" }, "does not have"),
        ("--read-pattern", "3-near", "give one of 1-none"),
    ] {
        let refused = ruvllm(&["run", option, value, "Once"]);
        assert!(refused.code == Some(2) && refused.stderr.contains(why), "{}", refused.stderr);
    }
}

#[test]
fn the_text_does_not_depend_on_the_number_of_threads() {
    let one = greedy(&["-t", "1"]);
    for threads in ["2", "3"] {
        assert_eq!(greedy(&["-t", threads]).text(), one.text());
    }
}

#[test]
fn a_seed_makes_sampling_repeatable() {
    let sampled = |seed: &str| {
        ruvllm(&["run", "-n", "48", "--seed", seed, "One sunny morning"]).text().to_owned()
    };
    assert_eq!(sampled("11"), sampled("11"));
    assert_ne!(sampled("11"), sampled("12"));
}

#[test]
fn a_stop_string_ends_the_text_before_it() {
    let whole = greedy(&[]);
    let word = whole.text().split_whitespace().nth(12).unwrap();
    let stopped = greedy(&["--stop", word]);
    let expected = whole.text().split(word).next().unwrap();
    assert_eq!(stopped.text(), expected);
}

#[test]
fn statistics_as_json_name_every_figure() {
    let stats = greedy(&["--stats", "json"]).stats();
    for key in [
        "load_ms",
        "time_to_first_token_ms",
        "prefill_tokens_per_second",
        "decode_tokens_per_second",
    ] {
        assert!(stats[key].as_f64().unwrap() > 0.0, "{key}: {stats}");
    }
    assert_eq!(stats["generated_tokens"], 96);
}

#[test]
fn chat_answers_each_line_and_ends_with_its_input() {
    let run = ruvllm_with_input(
        &["chat", "-n", "16", "--temperature", "0"],
        "Once upon a time\nThe next day\n",
    );
    assert_eq!(run.code, Some(0), "{}", run.stderr);
    assert_eq!(run.stdout.lines().count(), 2, "{}", run.stdout);
}

#[test]
fn bench_prints_rows_with_the_fields_of_llama_bench() {
    let run =
        ruvllm(&["bench", "-p", "32", "-n", "8", "-d", "40", "-r", "2", "-t", "1", "-o", "json"]);
    assert_eq!(run.code, Some(0), "{}", run.stderr);
    let rows: serde_json::Value = serde_json::from_str(&run.stdout).unwrap();
    let rows = rows.as_array().unwrap();
    let shapes: Vec<_> = rows.iter().map(|r| (r["n_prompt"].clone(), r["n_gen"].clone())).collect();
    assert_eq!(shapes, [(32.into(), 0.into()), (0.into(), 8.into())]);
    for row in rows {
        assert_eq!((&row["n_threads"], &row["n_depth"]), (&1.into(), &40.into()));
        assert!(row["avg_ts"].as_f64().unwrap() > 0.0);
        assert!(row["stddev_ts"].as_f64().unwrap() >= 0.0);
        assert_eq!(row["samples_ts"].as_array().unwrap().len(), 2);
    }
}

#[test]
fn bench_decodes_several_sequences_together() {
    let args = ["bench", "-p", "0", "-n", "4", "-r", "1", "-t", "1", "--parallel", "1,3"];
    let run = ruvllm(&args);
    let tests: Vec<&str> =
        run.text().lines().skip(2).filter_map(|l| l.split(" | ").nth(6)).collect();
    assert_eq!(tests, ["tg4", "tg4 x3"], "{}", run.stdout);
    let run = ruvllm(&[&args[..], &["-o", "json"]].concat());
    let rows: serde_json::Value = serde_json::from_str(run.text()).unwrap();
    assert_eq!((&rows[0]["n_parallel"], &rows[1]["n_parallel"]), (&1.into(), &3.into()));
    assert_eq!(ruvllm(&["bench", "--parallel", "0"]).code, Some(2));
}

#[test]
fn the_doctor_names_the_machine_and_what_runs_on_it() {
    let run = ruvllm(&["doctor", "--threads", "1", "--json"]);
    let report: serde_json::Value = serde_json::from_str(run.text()).expect("JSON");
    assert_eq!(report["architecture"], std::env::consts::ARCH);
    assert_eq!(report["sandbox"]["kernels_selected"], 19);
    let weights = report["weights"].as_array().expect("weight types");
    assert_eq!(weights.len(), 11);
    let q4_0 = weights.iter().find(|paths| paths["weights"] == "q4_0").expect("q4_0");
    assert!(q4_0["decode"].as_str().is_some_and(|path| path.contains("int8")), "{q4_0}");
    let memory = report["memory"].as_array().expect("measurements");
    assert!(memory.len() == 1 && memory[0]["gb_per_second"].as_f64() > Some(0.1), "{memory:?}");
    assert!([1, 2, 4, 8].map(Some).contains(&memory[0]["streams"].as_u64()), "{memory:?}");
    let reading = report["reading"].as_array().expect("measurements");
    assert!(reading.iter().any(|pattern| pattern["chosen"] == true), "{reading:?}");
    let products = report["int8_products"].as_array().expect("measurements");
    assert!(products.len() <= 1, "{products:?}");
    if q4_0["prompt"].as_str().is_some_and(|path| path.contains("vnni")) {
        assert!(products[0]["giga_per_second"].as_f64() > Some(1.0), "{products:?}");
    }
    let run = ruvllm(&["doctor", "--threads", "1", "--bf16"]);
    assert!(
        run.text().contains("memory reads") && run.text().contains("19 kernels"),
        "{}",
        run.stdout
    );
    let features = report["features"].as_array().expect("features");
    let has_bf16 = features.iter().any(|f| f["name"] == "avx512bf16" && f["present"] == true);
    // Intel's processors have the instructions, and are slower with them.
    let pays = !report["processor"].as_str().is_some_and(|name| name.contains("Intel"));
    let uses_bf16 = has_bf16
        && pays
        && report["instructions"].as_str().is_some_and(|name| name.starts_with("avx512"));
    let arithmetic = if uses_bf16 { "bf16" } else { "f32" };
    let f16 = run.text().lines().find(|line| line.starts_with("  f16 ")).expect("f16");
    assert!(f16.ends_with(&format!("{arithmetic}, panels")), "{f16}");
}

#[test]
fn the_doctor_shows_each_value_of_the_device_class() {
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    let threads = cores.min(4).to_string();
    let wasmtime = [
        ("executors", "wasmtime, then wamr where a library is given"),
        ("compilation", "parallel, on all cores"),
        ("threads", "all cores"),
        ("threads of a kernel", "1"),
        ("stack", "512 KiB"),
        ("instance memory", "as the kernel asks, 256 MiB at most"),
        ("reserved addresses", "4 GiB"),
        ("guarded addresses", "64 KiB"),
        ("code", "optimised for speed"),
        ("clock", "looked at every 5ms"),
        ("longest call", "10s, of a known operation no longer than its size takes"),
    ];
    let embedded = [
        ("executors", "wamr where a library is given, then wasmtime"),
        ("compilation", "one kernel after the other"),
        ("threads", "1"),
        ("threads of a kernel", "1"),
        ("stack", "32 KiB"),
        ("instance memory", "128 KiB"),
        ("reserved addresses", "4 GiB, on wasmtime"),
        ("guarded addresses", "64 KiB, on wasmtime"),
        ("code", "interpreted, on wasmtime optimised for speed"),
        ("clock", "looked at every 5ms, on wasmtime"),
        ("longest call", "100ms, of a known operation no longer than its size takes"),
    ];
    for (class, values, has, has_not) in [
        ("server", wasmtime, "simd relaxed-simd bulk-memory multi-value", "threads"),
        ("embedded", embedded, "bulk-memory multi-value simd", "relaxed-simd threads"),
        ("threads", wasmtime, "simd relaxed-simd bulk-memory multi-value threads", ""),
    ] {
        let args = ["doctor", "--threads", "1", "--device-class", class];
        let run = ruvllm(&[&args[..], &["--json"]].concat());
        let report: serde_json::Value = serde_json::from_str(run.text()).expect("JSON");
        assert_eq!(report["device_class"], class);
        let shown: Vec<(&str, &str)> = report["class_values"]
            .as_array()
            .expect("values")
            .iter()
            .map(|row| (row["name"].as_str().unwrap(), row["value"].as_str().unwrap()))
            .collect();
        for expected in values {
            let expected = match (class, expected.0) {
                ("threads", "executors") => (expected.0, "wasmtime"),
                ("threads", "threads of a kernel") => (expected.0, &*threads),
                _ => expected,
            };
            assert!(shown.contains(&expected), "{class}: no {expected:?} in {shown:?}");
        }
        assert!(shown.contains(&("tick", "1ms")), "{class}: no tick in {shown:?}");
        let features = shown.iter().find(|(name, _)| *name == "features").expect("features").1;
        let named: Vec<&str> = features.split([' ', ',']).collect();
        assert!(has.split(' ').all(|feature| named.contains(&feature)), "{class}: {features}");
        assert!(!has_not.split(' ').any(|feature| named.contains(&feature) && !feature.is_empty()));
        if class == "embedded" {
            let text = ruvllm(&args);
            assert!(text.text().contains("\ndevice class  embedded\n"), "{}", text.stdout);
            for (name, value) in shown {
                let line = format!("\n  {name:<19} {value}\n");
                assert!(text.stdout.contains(&line), "no {line:?} in {}", text.stdout);
            }
        }
    }
}
