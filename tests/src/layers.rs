//! The layers of a crate: its modules in an order in which each uses those before it and none behind, so that
//! no two use each other; and in the directory of a module none that use each other in a circle.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

/// A file of a crate's sources.
struct Source {
    /// Its name below `src`, without its ending.
    file: PathBuf,
    /// The path of its module in the crate.
    module: Vec<String>,
    /// The paths in the crate that its code names, from the root on.
    named: Vec<Vec<String>>,
}

/// What a crate's sources, in `src`, have against its modules lying in the order of `layers`: a module that uses
/// one behind it, one that is not in the list, one of the list that there is not, and modules further down that
/// use each other in a circle. Tests may use everything.
///
/// # Errors
/// What the system says about reading the sources.
pub fn violations(src: &Path, layers: &[&str]) -> io::Result<Vec<String>> {
    let origins = origins(&fs::read_to_string(src.join("lib.rs"))?);
    let place = |module: &str| layers.iter().position(|layer| *layer == module);
    let sources = sources(src)?;
    let mut found = Vec::new();
    let mut there = vec![false; layers.len()];
    for Source { file, module, named } in &sources {
        let Some(mine) = module.first().and_then(|name| place(name)) else {
            found.push(format!("{}: not in the list of layers", file.display()));
            continue;
        };
        there[mine] = true;
        for word in named.iter().filter_map(|path| path.first()) {
            let module = origins.get(word).unwrap_or(word);
            if place(module).is_some_and(|uses| uses > mine) {
                found.push(format!("{} uses {module} ({word})", file.display()));
            }
        }
    }
    let absent = layers.iter().zip(there).filter(|(_, there)| !there);
    found.extend(absent.map(|(layer, _)| format!("{layer}: there is no such module")));
    found.extend(circles(&sources));
    Ok(found)
}

/// The modules of one parent, the root aside, that use each other in a circle, or lie between two circles. What is
/// named through a `use` of the parent's own is not seen.
fn circles(sources: &[Source]) -> Vec<String> {
    let modules: BTreeSet<&[String]> = sources.iter().map(|source| &source.module[..]).collect();
    let mut uses: BTreeMap<&[String], BTreeSet<[&str; 2]>> = BTreeMap::new();
    for Source { module, named, .. } in sources {
        for path in named {
            let used =
                (0..=path.len()).rev().map(|n| &path[..n]).find(|path| modules.contains(path));
            let used = used.unwrap_or_default();
            let same = module.iter().zip(used).take_while(|(mine, other)| mine == other).count();
            if let (1.., Some(mine), Some(other)) = (same, module.get(same), used.get(same)) {
                uses.entry(&module[..same]).or_default().insert([mine, other]);
            }
        }
    }
    let mut found = Vec::new();
    for (parent, mut uses) in uses {
        // What nobody uses, and what uses nobody, is in no circle.
        loop {
            let ends = |i: usize| uses.iter().map(|pair| pair[i]).collect::<BTreeSet<_>>();
            let (users, used) = (ends(0), ends(1));
            let before = uses.len();
            uses.retain(|[mine, other]| used.contains(mine) && users.contains(other));
            if uses.len() == before {
                break;
            }
        }
        let pairs: Vec<_> =
            uses.iter().map(|[mine, other]| format!("{mine} uses {other}")).collect();
        if !pairs.is_empty() {
            found.push(format!("{}: a circle: {}", parent.join("::"), pairs.join(", ")));
        }
    }
    found
}

/// The files below a directory that are no tests, the crate's root aside.
fn sources(src: &Path) -> io::Result<Vec<Source>> {
    let mut files = Vec::new();
    list_files(src, &mut files)?;
    files.sort_unstable();
    let mut sources = Vec::new();
    for path in files {
        let file = path.strip_prefix(src).unwrap_or(&path).with_extension("");
        let mut module: Vec<String> =
            file.iter().map(|name| name.to_string_lossy().into_owned()).collect();
        module.pop_if(|name| *name == "mod");
        if module.iter().any(|name| name == "tests") || module == ["lib"] {
            continue;
        }
        let named = named(&fs::read_to_string(&path)?, &module);
        sources.push(Source { file, module, named });
    }
    Ok(sources)
}

fn list_files(directory: &Path, found: &mut Vec<PathBuf>) -> io::Result<()> {
    for entry in fs::read_dir(directory)? {
        let entry = entry?.path();
        match entry.is_dir() {
            true => list_files(&entry, found)?,
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

/// The paths in its crate that the code of a module names, without its comments and unit tests.
fn named(text: &str, module: &[String]) -> Vec<Vec<String>> {
    let code = text.split("#[cfg(test)]\nmod tests {").next().unwrap_or_default();
    let lines = code.lines().map(|line| line.split("//").next().unwrap_or_default());
    let code = lines.collect::<Vec<_>>().join("\n");
    let mut found = Vec::new();
    for (at, _) in code.match_indices("::") {
        let before = code[..at].rsplit(no_word).next().unwrap_or_default();
        // This one is inside a path that was read from its start.
        if code[..at - before.len()].ends_with("::") {
            continue;
        }
        let base = match before {
            "crate" => &[],
            "self" => module,
            "super" => &module[..module.len().saturating_sub(1)],
            _ => continue,
        };
        follow(base.to_vec(), &code[at + 2..], &mut found);
    }
    found
}

/// Follows the rest of a path behind `base`, or of each path of a list.
fn follow(mut base: Vec<String>, rest: &str, found: &mut Vec<Vec<String>>) {
    if let Some(list) = rest.strip_prefix('{') {
        // `{a::{B, C}, D}` has two.
        let (mut depth, mut begin) = (0, 0);
        for (at, c) in list.char_indices() {
            match c {
                '{' => depth += 1,
                ',' | '}' if depth == 0 => {
                    follow(base.clone(), list[begin..at].trim_start(), found);
                    begin = at + 1;
                    if c == '}' {
                        return;
                    }
                }
                '}' => depth -= 1,
                _ => {}
            }
        }
        return;
    }
    let (word, rest) = rest.split_at(rest.find(no_word).unwrap_or(rest.len()));
    match word {
        // Behind the last comma of a list.
        "" if !rest.starts_with(['*', '<']) => return,
        "" | "self" => {}
        "super" => {
            base.pop();
        }
        _ => base.push(word.to_owned()),
    }
    match rest.strip_prefix("::") {
        Some(rest) => follow(base, rest, found),
        None => found.push(base),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Writes a file of a crate's sources.
    fn put(src: &Path, file: &str, code: &str) {
        let path = src.join(file);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, code).unwrap();
    }

    #[test]
    fn paths_are_found_in_lists_and_from_where_they_stand() {
        let paths = |code: &str| {
            let module = ["op".to_owned(), "call".to_owned()];
            let named = named(code, &module).into_iter();
            named.map(|path| path.join(".")).collect::<Vec<_>>().join(" ")
        };
        assert_eq!(
            paths("use crate::op::call::{Words, Plan};\nuse std::fmt;"),
            "op.call.Words op.call.Plan"
        );
        assert_eq!(
            paths("use crate::{\n    Host, exec::{Spec, Offer}, gate::Gated,\n};"),
            "Host exec.Spec exec.Offer gate.Gated"
        );
        assert_eq!(
            paths("use crate::a::*; use super::{b::*, c}; crate::d::<E>();"),
            "a op.b op.c d"
        );
        assert_eq!(paths("fn f(x: crate::a::B, y: crate::C<crate::d::E>) {}"), "a.B C d.E");
        assert_eq!(
            paths("use super::{self, key::Key}; use self::part::Part; use super::super::a::B;"),
            "op op.key.Key op.call.part.Part a.B"
        );
        assert_eq!(
            paths("use crate::a; // crate::b\n#[cfg(test)]\nmod tests { use crate::c; }"),
            "a"
        );
        assert_eq!(paths("#[cfg(test)]\nmod tests;\nuse crate::a;"), "a");
    }

    #[test]
    fn a_module_that_uses_one_behind_it_is_told() {
        let dir = tempfile::tempdir().unwrap();
        let put = |file: &str, code: &str| put(dir.path(), file, code);
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

    #[test]
    fn modules_of_a_directory_that_use_each_other_are_told() {
        let dir = tempfile::tempdir().unwrap();
        let put = |file: &str, code: &str| put(dir.path(), file, code);
        put("lib.rs", "mod all;\n");
        put("all.rs", "mod a;\nmod b;\nmod c;\nuse a::A;\n");
        put("all/a.rs", "use super::b::B;\n");
        put("all/b.rs", "mod part;\n");
        put("all/b/part.rs", "use super::super::c::C;\n");
        put("all/c.rs", "");
        let check = || violations(dir.path(), &["all"]).unwrap();
        assert_eq!(check(), [""; 0]);
        put("all/c.rs", "use crate::all::a::{A, Other};\n");
        assert_eq!(check(), ["all: a circle: a uses b, b uses c, c uses a"]);
    }
}
