//! The layers of the host, as ARCHITECTURE.md lists them: each uses those before it and none behind.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

const LAYERS: [&str; 13] = [
    "op",
    "team",
    "exec",
    "stats",
    "instance",
    "pack",
    "gate",
    "admit",
    "code",
    "registry",
    "call",
    "swap",
    "supervise",
];

fn sources(directory: &Path, found: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(directory).unwrap().map(|entry| entry.unwrap().path()) {
        match entry.is_dir() {
            true => sources(&entry, found),
            false => found.push(entry),
        }
    }
}

fn layer(name: &str) -> Option<usize> {
    LAYERS.iter().position(|layer| *layer == name)
}

/// The words of a file's code, without its comments and unit tests.
fn words(path: &Path) -> Vec<String> {
    let text = fs::read_to_string(path).unwrap();
    let code = text.split("#[cfg(test)]\nmod tests").next().unwrap_or_default();
    let lines = code.lines().map(|line| line.split("//").next().unwrap_or_default());
    let word = |c: char| !(c.is_alphanumeric() || c == '_');
    let code = lines.collect::<Vec<_>>().join("\n").replace("::{", "::");
    // `crate::{A, b::C}` names A and b.
    let mut words = Vec::new();
    for path in code.split("crate::").skip(1) {
        let list = path.split([';', ')', '>', '<', '(']).next().unwrap_or_default();
        let first = list.split(word).find(|word| !word.is_empty()).unwrap_or_default();
        words.push(first.to_owned());
        if first.starts_with(char::is_uppercase) {
            let others = list.split([',', '}']).map(str::trim);
            words.extend(others.filter_map(|other| other.split(word).next()).map(str::to_owned));
        }
    }
    words
}

#[test]
fn layers_use_those_before_them_and_none_behind() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
    // What the crate's root gives names of its own.
    let mut origins = BTreeMap::new();
    let lib = fs::read_to_string(root.join("lib.rs")).unwrap();
    for shared in lib.split("pub use ").skip(1) {
        let path = shared.split(';').next().unwrap_or_default();
        let word = |c: char| !(c.is_alphanumeric() || c == '_');
        let mut names = path.split(word).filter(|name| !name.is_empty());
        let origin = names.next().unwrap_or_default().to_owned();
        origins.extend(names.map(|name| (name.to_owned(), origin.clone())));
    }
    assert_eq!(origins["Host"], "swap");
    let mut files = Vec::new();
    sources(&root, &mut files);
    let mut seen = [false; LAYERS.len()];
    for path in files {
        let place = path.strip_prefix(&root).unwrap().with_extension("");
        let name = place.iter().next().unwrap().to_str().unwrap();
        let Some(mine) = layer(name) else { continue };
        seen[mine] = true;
        for word in words(&path) {
            let module = origins.get(&word).unwrap_or(&word);
            let uses = layer(module);
            assert!(uses.is_none_or(|uses| uses <= mine), "{}: {module} ({word})", place.display());
        }
    }
    assert_eq!(seen, [true; LAYERS.len()]);
}
