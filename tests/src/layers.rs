//! The layers of a crate: its modules in an order in which each uses those before it and none behind, so that
//! no two use each other; and in the directory of a module none that use each other in a circle, nor the
//! module itself. Who calls a method of a type that several files have methods of uses the file that has it.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

/// A path in a crate, from its root on.
type ModulePath = Vec<String>;

/// A file of a crate's sources.
struct Source {
    /// Its name below `src`, without its ending.
    file: PathBuf,
    /// The path of its module in the crate.
    module: ModulePath,
    /// What its code names, itself or by calling a method.
    named: BTreeSet<ModulePath>,
}

/// What a crate's sources, in `src`, have against its modules lying in the order of `layers`: a module that uses
/// one behind it, one that is not in the list, one of the list that there is not, and modules further down that
/// use each other in a circle. Tests may use everything.
///
/// # Errors
/// What the system says about reading the sources.
pub fn violations(src: &Path, layers: &[&str]) -> io::Result<Vec<String>> {
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
        for path in named {
            if path.first().and_then(|module| place(module)).is_some_and(|uses| uses > mine) {
                found.push(format!("{} uses {}", file.display(), path.join("::")));
            }
        }
    }
    let absent = layers.iter().zip(there).filter(|(_, there)| !there);
    found.extend(absent.map(|(layer, _)| format!("{layer}: there is no such module")));
    found.extend(circles(&sources));
    Ok(found)
}

/// The modules of one parent, the root aside, and the parent itself, that use each other in a circle, or lie
/// between two circles.
fn circles(sources: &[Source]) -> Vec<String> {
    let modules: BTreeSet<&[String]> = sources.iter().map(|source| &source.module[..]).collect();
    let mut uses: BTreeMap<&[String], BTreeSet<[&str; 2]>> = BTreeMap::new();
    for Source { module, named, .. } in sources {
        for path in named {
            let used =
                (0..=path.len()).rev().map(|n| &path[..n]).find(|path| modules.contains(path));
            let used = used.unwrap_or_default();
            let same = module.iter().zip(used).take_while(|(mine, other)| mine == other).count();
            if same > 0 && module != used {
                uses.entry(&module[..same]).or_default().insert(
                    [&module[..], used].map(|path| path.get(same).map_or("self", |name| name)),
                );
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
    let mut texts = Vec::new();
    for path in files {
        let file = path.strip_prefix(src).unwrap_or(&path).with_extension("");
        let mut module: ModulePath =
            file.iter().map(|name| name.to_string_lossy().into_owned()).collect();
        module.pop_if(|name| *name == "mod");
        if module == ["lib"] {
            module.clear();
        }
        if module.iter().all(|name| name != "tests") {
            texts.push((file, module, code(&fs::read_to_string(&path)?)));
        }
    }
    let modules: BTreeSet<ModulePath> = texts.iter().map(|(_, module, _)| module.clone()).collect();
    let methods = Methods::of(&texts);
    let mut shared = BTreeMap::new();
    let mut sources = Vec::new();
    for (file, module, code) in texts {
        let (reexports, code) = split_reexports(&code);
        let reexports = named(&reexports, &module, &modules);
        for path in &reexports {
            if let Some(name) = path.last() {
                let name = module.iter().chain([name]).cloned().collect::<ModulePath>();
                shared.insert(name, path.clone());
            }
        }
        let mut named = named(&code, &module, &modules);
        // That a module shares what lies in it is no use of it.
        named.extend(reexports.into_iter().filter(|path| !path.starts_with(&module)));
        named.extend(methods.called(&code, &module));
        sources.push(Source { file, module, named: named.into_iter().collect() });
    }
    sources.retain(|source| !source.module.is_empty());
    for source in &mut sources {
        source.named = source.named.iter().map(|path| origin(path, &shared)).collect();
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

/// The word that a text begins with.
fn word(text: &str) -> &str {
    text.split(no_word).next().unwrap_or_default()
}

/// A module's code without comments and unit tests.
fn code(text: &str) -> String {
    let code = text.split("#[cfg(test)]\nmod tests {").next().unwrap_or_default();
    let lines = code.lines().map(|line| line.split("//").next().unwrap_or_default());
    lines.collect::<Vec<_>>().join("\n")
}

/// What a module shares of others under names of its own, and the rest of its code.
fn split_reexports(code: &str) -> (String, String) {
    let (mut reexports, mut rest) = (String::new(), String::new());
    for statement in code.split_inclusive(';') {
        let shares = |at: &usize| {
            let tail = &statement[at + "pub".len()..];
            let visibility = ["(crate)", "(super)"].iter().find_map(|v| tail.strip_prefix(v));
            visibility.unwrap_or(tail).starts_with(" use ")
        };
        let at = statement.rfind("pub").filter(shares).unwrap_or(statement.len());
        rest.push_str(&statement[..at]);
        reexports.push_str(&statement[at..]);
    }
    (reexports, rest)
}

/// Where something is defined that is named by a path, which may lead through modules that share it.
fn origin(path: &[String], shared: &BTreeMap<ModulePath, ModulePath>) -> ModulePath {
    let mut path = path.to_vec();
    // No module shares what it has from itself, so this ends; a bound is for code that does not compile.
    for _ in 0..8 {
        let ends = (1..=path.len()).find(|&end| shared.contains_key(&path[..end]));
        let Some(end) = ends else { break };
        path = shared[&path[..end]].iter().chain(&path[end..]).cloned().collect();
    }
    path
}

/// The inherent methods of a crate's types, by type and name, with the modules that have one.
struct Methods(BTreeMap<[String; 2], BTreeSet<ModulePath>>);

impl Methods {
    fn of(texts: &[(PathBuf, ModulePath, String)]) -> Methods {
        let mut methods: BTreeMap<_, BTreeSet<_>> = BTreeMap::new();
        for (_, module, code) in texts {
            for Impl { name, body, .. } in impls(code).iter().filter(|block| !block.of_trait) {
                // Functions inside of methods stand further in.
                for line in body.lines().filter(|line| line.len() - line.trim_start().len() == 4) {
                    let Some((before, method)) = line.split_once("fn ") else { continue };
                    if before.ends_with(' ') {
                        let method = [name, word(method)].map(str::to_owned);
                        methods.entry(method).or_default().insert(module.clone());
                    }
                }
            }
        }
        Methods(methods)
    }

    /// The methods that a module's code calls by `self.`, `Self::` or the name of the type and another module has. Which of several
    /// it is that have one of the same name is not told.
    fn called(&self, code: &str, module: &[String]) -> Vec<ModulePath> {
        let mut found = Vec::new();
        for Impl { name, body, .. } in impls(code) {
            let receivers = ["self", "Self", name];
            for (at, receiver) in receivers.iter().flat_map(|name| body.match_indices(name)) {
                let rest = body[at + receiver.len()..].trim_start();
                let rest = rest.strip_prefix('.').or_else(|| rest.strip_prefix("::"));
                let Some(rest) = rest.filter(|_| body[..at].ends_with(no_word)) else { continue };
                let method = word(rest);
                let is_field = receiver == "self" && !rest[method.len()..].starts_with(['(', ':']);
                let having = self.0.get(&[name, method].map(str::to_owned));
                let mut having = having.into_iter().flatten().filter(|_| !is_field);
                if let (Some(other), None) = (having.next(), having.next())
                    && *other != module
                {
                    found.push(other.iter().cloned().chain([method.to_owned()]).collect());
                }
            }
        }
        found
    }
}

/// An `impl` block: of which type, and what is in it.
struct Impl<'a> {
    name: &'a str,
    of_trait: bool,
    body: &'a str,
}

fn impls(code: &str) -> Vec<Impl<'_>> {
    let mut found = Vec::new();
    for (at, begin) in code.match_indices("\nimpl") {
        let block = &code[at + begin.len()..];
        let block = &block[..block.find("\n}").unwrap_or(block.len())];
        let Some((head, body)) = block.split_once('{') else { continue };
        // Behind the generics, which may be none.
        let mut depth = 0;
        let end = head.find(|c| {
            depth += i32::from(c == '<') - i32::from(c == '>');
            depth == 0
        });
        let head = head[end.unwrap_or_default()..].trim_start_matches('>');
        let (head, of_trait) = head.split_once(" for ").map_or((head, false), |(_, of)| (of, true));
        let path = head.split('<').next().unwrap_or_default().trim();
        let name = word(path.rsplit("::").next().unwrap_or_default());
        found.push(Impl { name, of_trait, body });
    }
    found
}

/// The paths in its crate that the code of a module names.
fn named(code: &str, module: &[String], modules: &BTreeSet<ModulePath>) -> Vec<ModulePath> {
    let mut found = Vec::new();
    for (at, _) in code.match_indices("::") {
        let before = code[..at].rsplit(no_word).next().unwrap_or_default();
        // This one is inside a path that was read from its start.
        let begins = &code[..at - before.len()];
        // Nor does a `pub(in path)` use what it names.
        if begins.ends_with("::") || begins.ends_with("pub(in ") {
            continue;
        }
        let child = || module.iter().cloned().chain([before.to_owned()]).collect::<ModulePath>();
        let base = match before {
            "crate" => Vec::new(),
            "self" => module.to_vec(),
            "super" => module[..module.len().saturating_sub(1)].to_vec(),
            _ if modules.contains(&child()) => child(),
            _ => continue,
        };
        follow(base, &code[at + 2..], &mut found);
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
            let child = ["op", "call", "child"].map(str::to_owned).to_vec();
            let named = named(&super::code(code), &module, &[child].into()).into_iter();
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
        assert_eq!(
            paths("use child::A;\nuse other::B;\npub(in crate::c) fn f() {}"),
            "op.call.child.A"
        );
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
        assert_eq!(check(&["high", "low"]), ["high uses low::Low"]);
        assert_eq!(check(&["low"]), ["high: not in the list of layers"]);
        assert_eq!(check(&["low", "high", "top"]), ["top: there is no such module"]);
        put("low/part.rs", "use crate::{Tall, low::Low};\n");
        assert_eq!(check(&["low", "high"]), ["low/part uses high::Tall"]);
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

    #[test]
    fn a_module_and_what_lies_in_it_use_each_other_in_no_circle() {
        let dir = tempfile::tempdir().unwrap();
        let put = |file: &str, code: &str| put(dir.path(), file, code);
        put("lib.rs", "mod all;\n");
        put("all.rs", "mod a;\nmod b;\nuse a::A;\npub struct Mine;\n");
        put("all/a.rs", "use super::Mine;\n");
        put("all/b.rs", "pub struct B;\n");
        let check = || violations(dir.path(), &["all"]).unwrap();
        assert_eq!(check(), ["all: a circle: a uses self, self uses a"]);
        // What is only shared there lies where it is defined.
        put("all.rs", "mod a;\nmod b;\nuse a::A;\npub(crate) use b::B;\n");
        put("all/a.rs", "use super::B;\n");
        assert_eq!(check(), [""; 0]);
        put("all/b.rs", "use crate::all::a::A;\n");
        assert_eq!(check(), ["all: a circle: a uses b, b uses a"]);
    }

    #[test]
    fn files_that_call_each_other_by_methods_of_one_type_are_told() {
        let dir = tempfile::tempdir().unwrap();
        let put = |file: &str, code: &str| put(dir.path(), file, code);
        put("lib.rs", "mod all;\n");
        put("all.rs", "mod a;\nmod b;\n");
        let of = |body: &str| format!("\nimpl<'a, T: Into<u8>> A<'a, T> {{\n    {body}\n}}\n");
        put("all/a.rs", &of("pub(super) fn low(&self) {}"));
        put("all/b.rs", &of("fn high(&self) { self.low() }"));
        let check = || violations(dir.path(), &["all"]).unwrap();
        assert_eq!(check(), [""; 0]);
        let circle = ["all: a circle: a uses b, b uses a"];
        put("all/a.rs", &of("fn low(&self) { self\n        .high() }"));
        assert_eq!(check(), circle);
        put("all/a.rs", &of("fn low(&self) { f(Self::high) }"));
        assert_eq!(check(), circle);
        // A field of that name, a method of another type, and one that both have.
        put("all/a.rs", &of("fn low(&self) { self.high + self.other.high() }"));
        assert_eq!(check(), [""; 0]);
        put("all/a.rs", &of("fn low(&self) { self.high() }\n    fn high(&self) {}"));
        assert_eq!(check(), [""; 0]);
    }
}
