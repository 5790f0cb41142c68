//! The layers of a crate: its modules in an order in which each uses those before it and none behind, so that
//! no two use each other.

use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

/// What a crate's sources, in `src`, have against its modules lying in the order of `layers`: a module that uses
/// one behind it, one that is not in the list, and one of the list that there is not. Tests may use everything.
///
/// # Errors
/// What the system says about reading the sources.
pub fn violations(src: &Path, layers: &[&str]) -> io::Result<Vec<String>> {
    let root = fs::read_to_string(src.join("lib.rs"))?;
    let origins = origins(&root);
    let place = |module: &str| layers.iter().position(|layer| *layer == module);
    let mut files = Vec::new();
    sources(src, &mut files)?;
    files.sort_unstable();
    let mut found = Vec::new();
    let mut there = vec![false; layers.len()];
    for path in files {
        let file = path.strip_prefix(src).unwrap_or(&path).with_extension("");
        let mut names = file.iter().filter_map(|name| name.to_str());
        if names.clone().any(|name| name == "tests") || file == Path::new("lib") {
            continue;
        }
        let Some(mine) = names.next().and_then(place) else {
            found.push(format!("{}: not in the list of layers", file.display()));
            continue;
        };
        there[mine] = true;
        for word in words(&fs::read_to_string(&path)?) {
            let module = origins.get(&word).unwrap_or(&word);
            if place(module).is_some_and(|uses| uses > mine) {
                found.push(format!("{} uses {module} ({word})", file.display()));
            }
        }
    }
    let absent = layers.iter().zip(there).filter(|(_, there)| !there);
    found.extend(absent.map(|(layer, _)| format!("{layer}: there is no such module")));
    Ok(found)
}

fn sources(directory: &Path, found: &mut Vec<PathBuf>) -> io::Result<()> {
    for entry in fs::read_dir(directory)? {
        let entry = entry?.path();
        match entry.is_dir() {
            true => sources(&entry, found)?,
            false => found.push(entry),
        }
    }
    Ok(())
}

const fn no_word(c: char) -> bool {
    !(c.is_ascii_alphanumeric() || c == '_')
}

/// Which module has what the crate's root gives names of its own.
fn origins(root: &str) -> BTreeMap<String, String> {
    let mut origins = BTreeMap::new();
    for shared in root.split("pub use ").skip(1) {
        let path = shared.split(';').next().unwrap_or_default();
        let mut names = path.split(no_word).filter(|name| !name.is_empty());
        let origin = names.next().unwrap_or_default().to_owned();
        origins.extend(names.map(|name| (name.to_owned(), origin.clone())));
    }
    origins
}

/// What a file's code names of its crate, without its comments and unit tests.
fn words(text: &str) -> Vec<String> {
    let code = text.split("#[cfg(test)]\nmod tests").next().unwrap_or_default();
    let lines = code.lines().map(|line| line.split("//").next().unwrap_or_default());
    let code = lines.collect::<Vec<_>>().join("\n");
    let mut words = Vec::new();
    for path in code.split("crate::").skip(1) {
        let Some(list) = path.strip_prefix('{') else {
            words.extend(path.split(no_word).next().map(str::to_owned));
            continue;
        };
        // `crate::{a::{B, C}, D}` names a and D.
        let (mut depth, mut begins) = (1, true);
        for part in list.split_inclusive(['{', '}', ',']) {
            let word = part.trim_start().split(no_word).next().unwrap_or_default();
            if begins && !word.is_empty() {
                words.push(word.to_owned());
            }
            depth += i32::from(part.ends_with('{')) - i32::from(part.ends_with('}'));
            begins = depth == 1 && part.ends_with(',');
            if depth == 0 {
                break;
            }
        }
    }
    words
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_are_what_a_path_begins_with() {
        let named = |code: &str| words(code).join(" ");
        assert_eq!(named("use crate::op::call::{Words, Plan};\nuse std::fmt;"), "op");
        assert_eq!(
            named("use crate::{\n    Host, exec::{Spec, Offer}, gate::Gated,\n};"),
            "Host exec gate"
        );
        assert_eq!(named("fn f(x: crate::a::B, y: crate::C<crate::d::E>) {}"), "a C d");
        assert_eq!(
            named("use crate::a; // crate::b\n#[cfg(test)]\nmod tests { use crate::c; }"),
            "a"
        );
    }

    #[test]
    fn a_module_that_uses_one_behind_it_is_told() {
        let dir = tempfile::tempdir().unwrap();
        let put = |file: &str, code: &str| fs::write(dir.path().join(file), code).unwrap();
        fs::create_dir(dir.path().join("low")).unwrap();
        put("lib.rs", "mod high;\nmod low;\npub use high::{High, Tall};\n");
        put("high.rs", "use crate::low::Low;\n");
        put("low.rs", "mod part;\npub struct Low;\n");
        put("low/part.rs", "");
        let check = |layers: &[&str]| violations(dir.path(), layers).unwrap();
        assert_eq!(check(&["low", "high"]), [""; 0]);
        assert_eq!(check(&["high", "low"]), ["high uses low (low)"]);
        assert_eq!(check(&["low"]), ["high: not in the list of layers"]);
        assert_eq!(check(&["low", "high", "top"]), ["top: there is no such module"]);
        put("low/part.rs", "use crate::{Tall, low::Low};\n");
        assert_eq!(check(&["low", "high"]), ["low/part uses high (Tall)"]);
    }
}
