//! What the format refuses.

use crate::{EXAMPLE, edited, example, findings, findings_in};
use ruvllm_manifest::{Dim, MAX_MANIFEST_BYTES, Manifest, ParamValue};
use serde_json::{Value, json};

/// A second kernel, of a custom op.
fn custom() -> Value {
    let mut kernel = example()["kernels"][0].clone();
    kernel["id"] = json!("scale_f32");
    kernel["op"] = json!("scale");
    kernel["path"] = json!("scale/scale_f32.wasm");
    kernel["entry_point"] = json!("scale_forward");
    kernel.as_object_mut().unwrap().remove("backward");
    kernel.as_object_mut().unwrap().remove("threads");
    kernel
}

fn with_second(edit: impl FnOnce(&mut Value)) -> Value {
    let mut kernel = custom();
    edit(&mut kernel);
    edited(|m| m["kernels"].as_array_mut().unwrap().push(kernel))
}

#[test]
fn the_example_means_what_it_says_and_writes_back() {
    let manifest = Manifest::parse(EXAMPLE.as_bytes()).unwrap();
    let kernel = manifest.kernel("rope_f32").unwrap();
    assert_eq!(kernel.inputs[1].shape[2], Dim::Fixed(2));
    assert_eq!(kernel.threads, 4);
    assert_eq!(kernel.params["theta"].default, Some(ParamValue::F32(10000.0)));
    assert_eq!(kernel.params.keys().collect::<Vec<_>>(), ["theta", "interleaved"]);
    assert_eq!(kernel.symbols(), ["batch", "seq", "heads", "dim", "dim_half"]);
    let written = manifest.to_json().unwrap();
    assert_eq!(Manifest::parse(written.as_bytes()).unwrap(), manifest);
    assert_eq!(serde_json::from_str::<Value>(&written).unwrap(), example());
}

#[test]
fn what_is_optional_may_be_left_out() {
    let json = edited(|m| {
        let m = m.as_object_mut().unwrap();
        for field in ["$schema", "max_runtime_version", "fallbacks"] {
            m.remove(field);
        }
        m["author"].as_object_mut().unwrap().remove("email");
        let kernel = m["kernels"][0].as_object_mut().unwrap();
        kernel.remove("backward");
        kernel.remove("threads");
        kernel.remove("tolerance");
        kernel.remove("benchmarks");
        kernel["params"]["theta"].as_object_mut().unwrap().remove("default");
        kernel["platforms"].as_object_mut().unwrap().remove("wamr");
        kernel["platforms"].as_object_mut().unwrap().remove("native");
    });
    assert_eq!(findings(&json), [""; 0]);
    let again = Manifest::parse(json.to_string().as_bytes()).unwrap().to_json().unwrap();
    assert!(!again.contains("null"));
}

#[test]
fn everything_else_is_required() {
    for (at, object) in [
        ("", example()),
        ("/author", example()["author"].clone()),
        ("/kernels/0", example()["kernels"][0].clone()),
        ("/kernels/0/inputs/0", example()["kernels"][0]["inputs"][0].clone()),
        ("/kernels/0/resource_limits", example()["kernels"][0]["resource_limits"].clone()),
        ("/kernels/0/platforms/wasmtime", example()["kernels"][0]["platforms"]["wasmtime"].clone()),
        ("/kernels/0/platforms/wamr", example()["kernels"][0]["platforms"]["wamr"].clone()),
        ("/kernels/0/tolerance", example()["kernels"][0]["tolerance"].clone()),
    ] {
        let optional = [
            "$schema",
            "max_runtime_version",
            "fallbacks",
            "email",
            "backward",
            "threads",
            "tolerance",
            "benchmarks",
        ];
        for field in object.as_object().unwrap().keys() {
            let json = edited(|m| {
                m.pointer_mut(at).unwrap().as_object_mut().unwrap().remove(field);
            });
            let found = findings(&json);
            if optional.contains(&field.as_str()) {
                assert!(found.is_empty(), "{at} {field}: {found:?}");
            } else {
                assert!(found[0].starts_with("missing_field@"), "{at} {field}: {found:?}");
                assert!(found[0].ends_with(field), "{at} {field}: {found:?}");
            }
        }
    }
}

#[test]
fn unknown_fields_are_refused_at_every_level() {
    for at in [
        "",
        "/author",
        "/kernels/0",
        "/kernels/0/inputs/0",
        "/kernels/0/params/theta",
        "/kernels/0/resource_limits",
        "/kernels/0/platforms",
        "/kernels/0/platforms/wasmtime",
        "/kernels/0/platforms/wamr",
        "/kernels/0/platforms/native",
        "/kernels/0/platforms/native/targets/x86_64-linux",
        "/kernels/0/tolerance",
        "/kernels/0/benchmarks/seq_512_dim_128",
    ] {
        let json = edited(|m| m.pointer_mut(at).unwrap()["surprise"] = json!(1));
        let found = findings(&json);
        assert_eq!(found.len(), 1, "{at}: {found:?}");
        assert!(found[0].starts_with("unknown_field@") && found[0].ends_with("surprise"));
    }
}

#[test]
fn duplicate_keys_are_refused_at_every_level() {
    for (needle, place) in [
        ("\"abi_version\": 1,", "abi_version"),
        ("\"id\": \"rope_f32\",", "kernels[0].id"),
        ("\"rope_f32\": \"rope_reference\"", "fallbacks.rope_f32"),
        ("\"latency_us\": 45.0,", "kernels[0].benchmarks.seq_512_dim_128.latency_us"),
    ] {
        let comma = if needle.ends_with(',') { "" } else { "," };
        let doubled = EXAMPLE.replacen(needle, &format!("{needle}{comma}{needle}"), 1);
        assert_ne!(doubled, EXAMPLE);
        assert_eq!(findings_in(doubled.as_bytes()), [format!("duplicate_key@{place}")]);
    }
}

#[test]
fn everything_wrong_is_reported_at_once_and_in_order() {
    let json = with_second(|kernel| {
        kernel["hash"] = json!("sha256:00");
        kernel["path"] = json!("../x.wasm");
    });
    let json = {
        let mut json = json;
        json["name"] = json!("Upper");
        json["created_at"] = json!("yesterday");
        json["kernels"][0]["inputs"][0]["dtype"] = json!("f64");
        json["surprise"] = json!(null);
        json
    };
    assert_eq!(
        findings(&json),
        [
            "pack_name_invalid@name",
            "timestamp_invalid@created_at",
            "dtype_unknown@kernels[0].inputs[0].dtype",
            "path_escapes@kernels[1].path",
            "hash_invalid@kernels[1].hash",
            "unknown_field@surprise",
        ]
    );
}

#[test]
fn single_values_have_their_own_codes() {
    let kernel = |field: &str, value: Value| {
        edited(|m| *m.pointer_mut(&format!("/kernels/0/{field}")).unwrap() = value)
    };
    let long = "x".repeat(300);
    let cases = [
        (edited(|m| m["version"] = json!("1.0")), "version_invalid@version"),
        (edited(|m| m["version"] = json!(1)), "wrong_type@version"),
        (edited(|m| m["abi_version"] = json!(0)), "abi_version_invalid@abi_version"),
        (edited(|m| m["abi_version"] = json!(1.0)), "wrong_type@abi_version"),
        (edited(|m| m["description"] = json!("a\u{1b}[2J")), "control_character@description"),
        (edited(|m| m["description"] = json!("x".repeat(5000))), "string_length@description"),
        (edited(|m| m["author"]["name"] = json!("")), "string_length@author.name"),
        (
            edited(|m| m["author"]["signing_key"] = json!("ed25519:AAAA")),
            "author_key_invalid@author.signing_key",
        ),
        (edited(|m| m["kernels"] = json!([])), "kernel_count@kernels"),
        (edited(|m| m["kernels"] = json!({})), "wrong_type@kernels"),
        (
            edited(|m| m["max_runtime_version"] = json!("0.1.0")),
            "runtime_range@max_runtime_version",
        ),
        (edited(|m| m["min_runtime_version"] = json!("v1")), "version_invalid@min_runtime_version"),
        (kernel("id", json!("a/b")), "name_invalid@kernels[0].id"),
        (kernel("id", json!("")), "name_invalid@kernels[0].id"),
        (kernel("id", json!(long)), "string_length@kernels[0].id"),
        (kernel("op", json!("RoPE")), "name_invalid@kernels[0].op"),
        (kernel("path", json!("/etc/passwd")), "path_escapes@kernels[0].path"),
        (kernel("path", json!("a/../../b")), "path_escapes@kernels[0].path"),
        (kernel("path", json!("C:/x")), "path_escapes@kernels[0].path"),
        (kernel("path", json!("a:b")), "path_escapes@kernels[0].path"),
        (kernel("path", json!("ab:c")), "path_invalid@kernels[0].path"),
        (kernel("path", json!("a\\b")), "path_invalid@kernels[0].path"),
        (kernel("path", json!("a\u{0}b")), "path_invalid@kernels[0].path"),
        (kernel("path", json!("KERNELS.json")), "path_reserved@kernels[0].path"),
        (kernel("path", json!("kernels.json.sig")), "path_reserved@kernels[0].path"),
        (kernel("path", json!("kernels.json/x")), "path_reserved@kernels[0].path"),
        (kernel("size", json!(0)), "size_out_of_range@kernels[0].size"),
        (kernel("size", json!(-1)), "size_out_of_range@kernels[0].size"),
        (kernel("size", json!(1u64 << 40)), "size_out_of_range@kernels[0].size"),
        (kernel("hash", json!("SHA256:00")), "hash_invalid@kernels[0].hash"),
        (kernel("entry_point", json!("a b")), "name_invalid@kernels[0].entry_point"),
        (kernel("entry_point", json!("memory")), "entry_point_reserved@kernels[0].entry_point"),
        (kernel("outputs", json!([])), "tensor_count@kernels[0].outputs"),
        (kernel("inputs/0/shape", json!([])), "shape_rank@kernels[0].inputs[0].shape"),
        (kernel("inputs/1/shape/2", json!(0)), "dim_out_of_range@kernels[0].inputs[1].shape[2]"),
        (kernel("inputs/1/shape/0", json!("S")), "name_invalid@kernels[0].inputs[1].shape[0]"),
        (
            kernel("params/theta/type", json!("f64")),
            "param_type_unknown@kernels[0].params.theta.type",
        ),
        (
            kernel("params/theta/default", json!(1e300)),
            "param_default_invalid@kernels[0].params.theta.default",
        ),
        (
            kernel("params/interleaved/default", json!(-1)),
            "param_default_invalid@kernels[0].params.interleaved.default",
        ),
        (
            kernel("resource_limits/max_memory_pages", json!(65537)),
            "limit_out_of_range@kernels[0].resource_limits.max_memory_pages",
        ),
        (
            kernel("resource_limits/max_epoch_ticks", json!(0)),
            "limit_out_of_range@kernels[0].resource_limits.max_epoch_ticks",
        ),
        (kernel("threads", json!(0)), "threads_out_of_range@kernels[0].threads"),
        (kernel("threads", json!(5)), "threads_out_of_range@kernels[0].threads"),
        (kernel("threads", json!("4")), "wrong_type@kernels[0].threads"),
        (kernel("platforms", json!({})), "platform_missing@kernels[0].platforms"),
        (
            kernel("platforms/wasmtime/features", json!(["simd", "simd"])),
            "feature_duplicate@kernels[0].platforms.wasmtime.features[1]",
        ),
        (
            kernel("platforms/wamr/aot_available", json!(0)),
            "wrong_type@kernels[0].platforms.wamr.aot_available",
        ),
        (kernel("tolerance/rel", json!(-0.1)), "tolerance_invalid@kernels[0].tolerance.rel"),
        (
            kernel("benchmarks/seq_512_dim_128/latency_us", json!("fast")),
            "wrong_type@kernels[0].benchmarks.seq_512_dim_128.latency_us",
        ),
        (
            edited(|m| m["fallbacks"] = json!({"nobody": "x"})),
            "fallback_unknown_kernel@fallbacks.nobody",
        ),
        (
            edited(|m| m["fallbacks"] = json!({"rope_f32": "a b"})),
            "name_invalid@fallbacks.rope_f32",
        ),
        (
            edited(|m| m["fallbacks"] = json!({"rope_f32": "rope_f32"})),
            "fallback_cycle@fallbacks.rope_f32",
        ),
    ];
    for (json, expected) in cases {
        let found = findings(&json);
        assert_eq!(found.first().map(String::as_str), Some(expected), "{found:?}");
    }
}

#[test]
fn rules_between_kernels_ignore_case() {
    assert_eq!(findings(&with_second(|_| ())), [""; 0]);
    let found = findings(&with_second(|k| k["id"] = json!("ROPE_f32")));
    assert_eq!(found, ["kernel_id_duplicate@kernels[1].id"]);
    let found = findings(&with_second(|k| k["path"] = json!("Rope/ROPE_f32.wasm")));
    assert_eq!(found, ["path_duplicate@kernels[1].path"]);
    let found = findings(&with_second(|k| k["path"] = json!("rope/rope_f32.wasm/inner")));
    assert_eq!(found, ["path_duplicate@kernels[1].path"]);
}

#[test]
fn native_libraries_are_listed_files_with_paths_of_their_own() {
    let library = |path: &str, size: u64| json!({ "path": path, "size": size, "hash": format!("sha256:{}", "0".repeat(64)) });
    let target = "kernels[1].platforms.native.targets.x86_64-linux";
    let with = |second: Value| with_second(|k| k["platforms"]["native"]["targets"] = second);
    // The second kernel of `with_second` names the library of the first: they share it.
    let shared = with_second(|_| ());
    let manifest = Manifest::parse(shared.to_string().as_bytes()).unwrap();
    let paths: Vec<_> = manifest.files().iter().map(|file| file.path.to_string()).collect();
    assert_eq!(
        paths,
        ["rope/rope_f32.wasm", "scale/scale_f32.wasm", "native/rope_x86_64-linux.so"]
    );
    for taken in ["native/ROPE_x86_64-linux.so", "rope/rope_f32.wasm", "rope"] {
        let json = with(json!({ "x86_64-linux": library(taken, 1) }));
        assert_eq!(findings(&json), [format!("path_duplicate@{target}.path")], "{taken}");
    }
    let json = with(json!({ "x86_64-linux": library("kernels.json", 1) }));
    assert_eq!(findings(&json), [format!("path_reserved@{target}.path")]);
    let json = with(json!({ "x86_64-linux": library("/etc/x.so", 1) }));
    assert_eq!(findings(&json), [format!("path_escapes@{target}.path")]);
    let json = with(json!({ "x86_64-linux": library("a.so", 0) }));
    assert_eq!(findings(&json), [format!("size_out_of_range@{target}.size")]);
    let json = with(json!({ "X86": library("a.so", 1) }));
    assert_eq!(findings(&json), ["name_invalid@kernels[1].platforms.native.targets.X86"]);
    let json = with(json!({}));
    assert_eq!(findings(&json), ["target_count@kernels[1].platforms.native.targets"]);
    let json = with_second(|k| {
        k["platforms"].as_object_mut().unwrap().retain(|name, _| name == "native");
    });
    assert_eq!(findings(&json), ["platform_missing@kernels[1].platforms"]);
}

#[test]
fn fallback_circles_are_found_from_both_ends() {
    let mut json = with_second(|_| ());
    json["fallbacks"] = json!({"rope_f32": "scale_f32", "scale_f32": "native:rope"});
    assert_eq!(findings(&json), [""; 0]);
    json["fallbacks"] = json!({"rope_f32": "scale_f32", "scale_f32": "rope_f32"});
    assert_eq!(
        findings(&json),
        ["fallback_cycle@fallbacks.rope_f32", "fallback_cycle@fallbacks.scale_f32"]
    );
}

#[test]
fn tensors_and_params_of_a_custom_op_are_checked_on_their_own() {
    let found = findings(&with_second(|k| k["outputs"][0]["name"] = json!("x")));
    assert_eq!(found, ["tensor_name_duplicate@kernels[1].outputs[0].name"]);
    let found = findings(&with_second(|k| k["params"]["seq"] = json!({"type": "u32"})));
    assert_eq!(found, ["param_symbol_clash@kernels[1].params.seq"]);
    let found = findings(&with_second(|k| {
        k["inputs"][0]["dtype"] = json!("q8_0");
        k["inputs"][0]["shape"] = json!(["batch", "seq", "heads", 48]);
    }));
    assert_eq!(found, ["shape_block@kernels[1].inputs[0].shape"]);
    let found = findings(&with_second(|k| {
        for i in 0..20 {
            k["params"][format!("p{i}")] = json!({"type": "i32", "default": -i});
        }
    }));
    assert_eq!(found, ["param_words@kernels[1].params"]);
}

#[test]
fn documents_that_are_no_manifest_are_refused_whole() {
    assert_eq!(findings_in(b""), ["manifest_syntax"]);
    assert_eq!(findings_in(b"\xef\xbb\xbf{}"), ["manifest_syntax"]);
    assert_eq!(findings_in(format!("{EXAMPLE}x").as_bytes()), ["manifest_syntax"]);
    assert_eq!(findings_in(&[b'[', 0xff, b']']), ["manifest_syntax"]);
    assert_eq!(findings_in("[".repeat(10_000).as_bytes()), ["manifest_syntax"]);
    assert_eq!(findings_in(&vec![b' '; MAX_MANIFEST_BYTES + 1]), ["manifest_too_large"]);
    assert_eq!(findings_in(b"[]"), ["wrong_type@"]);
}

#[test]
fn a_flood_of_violations_is_cut_and_says_so() {
    let json = edited(|m| {
        for i in 0..500 {
            m[format!("x{i}")] = json!(1);
        }
    });
    let found = findings(&json);
    assert_eq!(found.len(), 201);
    assert_eq!(found.last().map(String::as_str), Some("too_many_violations@"));
}

#[test]
fn a_manifest_built_in_code_is_held_to_the_same_rules() {
    let mut manifest = Manifest::parse(EXAMPLE.as_bytes()).unwrap();
    manifest.description = "a\u{7}".to_owned();
    manifest.kernels[0].size = 0;
    let violations = manifest.to_json().unwrap_err().into_violations();
    let codes: Vec<_> = violations.iter().map(|v| v.code).collect();
    assert_eq!(codes, ["control_character", "size_out_of_range"]);
}

#[test]
fn messages_hold_no_control_characters_of_the_document() {
    let json = edited(|m| {
        m["kernels"][0]["path"] = json!("../\u{1b}]0;x\u{7}");
        m["\u{9b}31m"] = json!(0);
    });
    let error = Manifest::parse(json.to_string().as_bytes()).unwrap_err();
    assert!(error.to_string().chars().all(|c| c == '\n' || !c.is_control()));
}
