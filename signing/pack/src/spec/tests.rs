//! What `pack.toml` says, and what is wrong with it.

use super::*;

const MINIMAL: &str = r#"
    [pack]
    name = "p"
    version = "1.0.0"
    description = "d"
    min_runtime_version = "0.1.0"
    created_at = "2026-11-20T00:00:00Z"
    author = { name = "a", signing_key = "ed25519:AAAA" }
    [limits]
    max_memory_pages = 16
    max_epoch_ticks = 100
    max_table_elements = 0
    [wasmtime]
    min_version = "48.0.0"
    [[kernel]]
    id = "k"
    name = "K"
    op = "my_op"
    custom = true
    category = "custom"
    entry_point = "k_forward"
    inputs = [{ name = "x", dtype = "f32", shape = ["n", 2] }]
    output = { name = "y", dtype = "f16", shape = ["n"] }
    params = [{ name = "b", type = "i32", default = -1 }, { name = "a", type = "f32" }]
"#;

fn built() -> Vec<Built> {
    vec![Built { size: 9, hash: Sha256Hex::from_bytes([1; 32]), features: vec![], backward: false }]
}

#[test]
fn a_spec_becomes_a_manifest_in_its_own_order() {
    let spec = PackSpec::parse(MINIMAL).unwrap();
    let manifest = spec.try_manifest(&built(), &Figures::default()).unwrap();
    let kernel = &manifest.kernels[0];
    assert_eq!(kernel.path.as_str(), "custom/k.wasm");
    assert_eq!(kernel.params.keys().collect::<Vec<_>>(), ["b", "a"]);
    assert_eq!(kernel.params["b"].default, Some(ParamValue::I32(-1)));
    assert_eq!(kernel.inputs[0].shape[1], Dim::Fixed(2));
}

#[test]
fn a_plain_variant_is_a_kernel_of_its_own_from_the_same_source() {
    let text = MINIMAL.replace("name = \"K\"", "name = \"K\"\n        plain_variant = true");
    let spec = PackSpec::parse(&text).unwrap();
    assert_eq!(spec.kernel_ids().collect::<Vec<_>>(), ["k", "k_plain"]);
    let sources: Vec<_> = spec.sources().map(|s| (s.name, s.vectors)).collect();
    assert_eq!(sources, [("k", Vectors::Relaxed), ("k", Vectors::Plain)]);
    assert_eq!(spec.module_path("k_plain").unwrap(), "custom/k_plain.wasm");
    let c = text.replace("description = \"d\"", "description = \"d\"\n        lang = \"c\"");
    assert_eq!(PackSpec::parse(&c).unwrap().kernel_ids().count(), 2);
}

#[test]
fn a_scalar_variant_is_for_wamr() {
    let text = MINIMAL.replace("name = \"K\"", "name = \"K\"\n        scalar_variant = true");
    assert!(PackSpec::parse(&text).unwrap_err().contains("[wamr]"));
    let wamr = "[wamr]\nmin_version = \"0.0.0\"\naot_available = true\n[limits]";
    let spec = PackSpec::parse(&text.replacen("[limits]", wamr, 1)).unwrap();
    let sources: Vec<_> = spec.sources().map(|s| (s.id, s.vectors)).collect();
    assert_eq!(sources, [("k", Vectors::Relaxed), ("k_scalar", Vectors::Scalar)]);
    let simd = ["simd", "relaxed-simd"].map(str::to_owned);
    assert_eq!(spec.wamr(&simd).unwrap(), None);
    assert!(spec.wamr(&simd[..1]).unwrap().is_some_and(|wamr| wamr.aot_available));
}

#[test]
fn a_kernel_with_threads_is_for_wasmtime() {
    let with = |line: &str| PackSpec::parse(&MINIMAL.replace("name = \"K\"", line));
    let spec = with("name = \"K\"\n        threads = 4\n        plain_variant = true").unwrap();
    assert!(spec.sources().all(|source| source.threads));
    let both: Vec<Built> = built().into_iter().chain(built()).collect();
    let manifest = spec.try_manifest(&both, &Figures::default()).unwrap();
    assert!(manifest.kernels.iter().all(|kernel| kernel.threads == 4));
    for threads in [0, 5] {
        let refused = with(&format!("name = \"K\"\n        threads = {threads}")).unwrap_err();
        assert!(refused.contains("1 to 4"), "{refused}");
    }
    let wamr = "[wamr]\nmin_version = \"0.0.0\"\naot_available = true\n[limits]";
    let text = "name = \"K\"\n        threads = 2\n        scalar_variant = true";
    let text = MINIMAL.replace("name = \"K\"", text).replacen("[limits]", wamr, 1);
    assert!(PackSpec::parse(&text).unwrap_err().contains("WAMR"));
    let spec = PackSpec::parse(&text.replace("scalar_variant = true", "")).unwrap();
    assert_eq!(spec.wamr(&["threads".to_owned()]).unwrap(), None);
}

#[test]
fn mistakes_are_named() {
    let with = |from: &str, to: &str| {
        let spec = PackSpec::parse(&MINIMAL.replace(from, to));
        spec.and_then(|spec| spec.try_manifest(&built(), &Figures::default())).unwrap_err()
    };
    assert!(with("id = \"k\"", "id = \"../k\"").contains("`id`"));
    assert!(with("= -1", "= 0.5").contains("param `b`"));
    assert!(with("\"i32\"", "\"f64\"").contains("f32, u32 or i32"));
    assert!(with("dtype = \"f16\"", "dtype = \"f17\"").contains("tensor `y`"));
    assert!(with("name = \"K\"", "nam = \"K\"").contains("nam"));
    assert!(with("2026-11-20T00:00:00Z", "yesterday").contains("created_at"));
}

#[test]
fn a_misspelt_operation_is_an_error_with_the_right_name_and_not_a_custom_one() {
    let with = |op: &str, custom: &str| {
        let text = MINIMAL.replace("\"my_op\"", &format!("\"{op}\""));
        PackSpec::parse(&text.replace("custom = true", custom)).map(drop)
    };
    let slip = with("rmsnrom", "").unwrap_err();
    assert!(slip.contains("did you mean `rmsnorm`?") && slip.contains("`custom = true`"), "{slip}");
    let other = with("softmax", "custom = false").unwrap_err();
    assert!(other.contains("only rope, rmsnorm") && !other.contains("did you mean"), "{other}");
    for custom in ["", "custom = true"] {
        let team = with("matmul", custom).unwrap_err();
        assert!(team.contains("together") && !team.contains("custom"), "{team}");
    }
    assert!(with("rmsnorm", "custom = true").unwrap_err().contains("leave `custom` out"));
    assert_eq!(with("rmsnorm", ""), Ok(()));
    assert_eq!(with("rmsnrom", "custom = true"), Ok(()));
}

/// The fields that a place of `pack.toml` takes, by what is said of another one.
fn fields_at(place: &str) -> Vec<String> {
    let none = format!("{place}no_such_field = 1");
    let said = toml::from_str::<PackSpec>(&none).unwrap_err().to_string();
    let (_, expected) = said.split_once("unknown field `no_such_field`, expected ").expect(&said);
    expected.split('`').skip(1).step_by(2).map(str::to_owned).collect()
}

#[test]
fn the_list_of_fields_has_those_that_are_read_and_no_others() {
    let known = |name: &str| name.trim_end_matches(" ?").to_owned();
    // Of sections by their lines, and of tables in braces behind the names of their fields.
    let mut listed: IndexMap<String, Vec<String>> = IndexMap::new();
    let mut sections = Vec::new();
    for line in PACK_TOML_FIELDS.lines().skip(2) {
        if let Some(section) = line.strip_prefix("  [") {
            let section = section.split(']').next().unwrap().trim_start_matches('[');
            sections.push(section.to_owned());
            continue;
        }
        let section = sections.last().unwrap().clone();
        let (names, meaning) = line.split_at(line.len().min(4 + 20));
        let names: Vec<String> = names.trim().split(", ").map(known).collect();
        if let Some((_, braces)) = meaning.split_once("{ ") {
            let braces = braces.split(" }").next().unwrap().split(", ").map(known).collect();
            listed.insert(format!("{section}.{}", names[0]), braces);
        }
        listed.entry(section).or_default().extend(names);
    }
    // Two kinds of tools, of which a spec names one.
    let tools = listed.shift_remove("toolchain").unwrap();
    assert_eq!(tools, ["rustc", "std", "linker", "clang", "linker"]);
    listed["pack"].push("author".to_owned());
    let places = [
        ("pack", "[pack]\n"),
        ("pack.author", "[pack.author]\n"),
        ("limits", "[limits]\n"),
        ("wasmtime", "[wasmtime]\n"),
        ("wamr", "[wamr]\n"),
        ("c", "[c]\n"),
        ("kernel", "[[kernel]]\n"),
        ("kernel.inputs", "[[kernel]]\n[[kernel.inputs]]\n"),
        ("kernel.output", "[[kernel]]\n[kernel.output]\n"),
        ("kernel.params", "[[kernel]]\n[[kernel.params]]\n"),
        ("kernel.tolerance", "[[kernel]]\n[kernel.tolerance]\n"),
    ];
    for (place, text) in places {
        let fields = fields_at(text);
        assert_eq!(listed.shift_remove(place).as_ref(), Some(&fields), "{place}");
    }
    assert!(listed.is_empty(), "{listed:?}");
    let mut all = fields_at("");
    let sections: Vec<&str> =
        sections.iter().map(String::as_str).filter(|name| !name.contains('.')).collect();
    all.sort_by_key(|name| sections.iter().position(|section| section == name));
    assert_eq!(all, sections);
}
