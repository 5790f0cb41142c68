//! The page on threats and the corpus are one list: every test file that the page names is there and
//! is compiled, and every attack is on the page.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

/// Files here that hold no attack.
const HELPERS: [&str; 5] = ["main.rs", "mod.rs", "tar.rs", "keyrings.rs", "threat_model.rs"];

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..")
}

/// `attacks/<file>.rs` and `attacks/kernels/<file>.rs` as they lie in this folder.
fn on_disk() -> BTreeSet<String> {
    let mut found = BTreeSet::new();
    for folder in ["tests/attacks", "tests/attacks/kernels"] {
        for entry in std::fs::read_dir(root().join(folder)).unwrap().flatten() {
            let name = entry.file_name().into_string().unwrap();
            if name.ends_with(".rs") && !HELPERS.contains(&name.as_str()) {
                found.insert(format!("{folder}/{name}"));
            }
        }
    }
    found
}

/// Every file of tests on the page.
fn on_the_page() -> BTreeSet<String> {
    let page = std::fs::read_to_string(root().join("signing/THREAT-MODEL.md")).unwrap();
    page.split('`')
        .filter(|text| text.starts_with("tests/") || text.starts_with("runtime/"))
        .filter(|text| text.ends_with(".rs"))
        .map(str::to_owned)
        .collect()
}

#[test]
fn the_page_names_every_attack_and_every_test_on_the_page_exists() {
    let (page, disk) = (on_the_page(), on_disk());
    let missing: Vec<_> = disk.difference(&page).collect();
    assert!(missing.is_empty(), "not in signing/THREAT-MODEL.md: {missing:?}");
    let gone: Vec<_> = page.iter().filter(|file| !root().join(file).is_file()).collect();
    assert!(gone.is_empty(), "in signing/THREAT-MODEL.md but nowhere else: {gone:?}");
    assert!(disk.len() >= 60, "{} attacks", disk.len());
}

#[test]
fn every_attack_is_compiled() {
    for file in on_disk() {
        let path = root().join(&file);
        let name = path.file_stem().unwrap().to_str().unwrap().to_owned();
        let folder = path.parent().unwrap();
        let list = if folder.ends_with("kernels") { "mod.rs" } else { "main.rs" };
        let list = std::fs::read_to_string(folder.join(list)).unwrap();
        assert!(list.contains(&format!("mod {name};")), "{file} is wired nowhere");
    }
}

#[test]
fn every_attack_says_what_it_is_and_has_a_test() {
    for file in on_disk() {
        let text = std::fs::read_to_string(root().join(&file)).unwrap();
        assert!(text.starts_with("//! "), "{file} does not say what it is");
        assert!(text.contains("#[test]"), "{file} has no test");
    }
}
