//! `new`: a pack that builds, tests and benches at once.
//!
//! A Rust pack gets a copy of the SDK's sources and a lock file: it depends on nothing that is not
//! in its own directory, so it builds offline, and the same bytes for as long as it is kept. A C
//! pack gets the one header. Nothing is ever overwritten: the directory must not exist, or be empty.

mod templates;

use std::fmt;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use ruvllm_abi::Op;
use ruvllm_manifest::{PackName, Timestamp};
use serde::Serialize;

use crate::sign::public_key;
use crate::{Lang, Report, ToolError};
use templates::Worked;

/// A key that nobody has: what a manifest names until its author has made one.
pub(crate) const NO_KEY: &str = "ed25519:AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA=";

/// What a new pack is to hold.
#[derive(Clone, Debug)]
pub struct Options {
    /// Where it goes; the last part is the pack's name.
    pub directory: PathBuf,
    /// The language of its kernels.
    pub lang: Lang,
    /// A worked kernel for each of these operations.
    pub ops: Vec<Op>,
    /// And one of an operation of its own.
    pub custom: bool,
    /// Who makes it.
    pub author: Option<String>,
    /// The public key that will sign it: its text in any form, or a file with it.
    pub signing_key: Option<String>,
}

/// A pack that was begun.
#[derive(Clone, Debug, Serialize)]
pub struct NewReport {
    /// Where it is.
    pub directory: PathBuf,
    /// Its name.
    pub name: String,
    /// The language of its kernels.
    pub lang: Lang,
    /// The ids of its kernels.
    pub kernels: Vec<String>,
    /// Its files, relative to the directory.
    pub files: Vec<String>,
}

impl Report for NewReport {}

impl fmt::Display for NewReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let directory = self.directory.display();
        writeln!(f, "made {directory}: {} in {}", self.kernels.join(", "), self.lang.title())?;
        writeln!(f, "next: cd {directory}; ruvllm-pack build; ruvllm-pack test; ruvllm-pack bench")
    }
}

/// Writes a new pack crate.
///
/// # Errors
/// [`ToolError::New`] where the name is none for a pack, a value does not fit its file or the
/// directory holds something already; [`ToolError::Pack`] where the key is none; [`ToolError::Io`].
pub fn new(options: &Options) -> Result<NewReport, ToolError> {
    let directory = &options.directory;
    let name = directory.file_name().and_then(|name| name.to_str()).unwrap_or_default();
    let name: PackName = name
        .parse()
        .map_err(|e| ToolError::New { message: format!("{name:?} cannot name a pack: {e}") })?;
    let occupied = fs::read_dir(directory).is_ok_and(|mut entries| entries.next().is_some());
    if occupied || directory.is_file() {
        let message = format!("{} is not empty: choose another name", directory.display());
        return Err(ToolError::New { message });
    }
    let kernels = chosen(options);
    let values = values(options, name.as_str(), &kernels)?;
    let files = match options.lang {
        Lang::Rust => rust_files(&kernels, &values),
        Lang::C => c_files(&kernels, &values),
    };
    for (path, text) in &files {
        let path = directory.join(path);
        if let Some(parent) = path.parent() {
            fs::create_dir_all(parent).map_err(ToolError::io("create", parent))?;
        }
        fs::write(&path, text).map_err(ToolError::io("write", &path))?;
    }
    Ok(NewReport {
        directory: directory.clone(),
        name: name.to_string(),
        lang: options.lang,
        kernels: kernels.iter().map(|kernel| kernel.id.to_owned()).collect(),
        files: files.into_iter().map(|(path, _)| path).collect(),
    })
}

/// The worked kernels that were asked for, in the catalogue's order; RMS norm where none was.
fn chosen(options: &Options) -> Vec<&'static Worked> {
    let all = templates::WORKED.iter();
    let wanted = |worked: &&Worked| match worked.op {
        Some(op) if options.ops.is_empty() => op == Op::RmsNorm && !options.custom,
        Some(op) => options.ops.contains(&op),
        None => options.custom,
    };
    all.filter(wanted).collect()
}

/// What stands for each `{{name}}` in the templates.
type Values = Vec<(&'static str, String)>;

fn values(options: &Options, name: &str, kernels: &[&Worked]) -> Result<Values, ToolError> {
    let author = options.author.clone().unwrap_or_else(|| format!("the authors of {name}"));
    let key = match &options.signing_key {
        Some(key) => public_key(key)?.to_string(),
        None => NO_KEY.to_owned(),
    };
    if author.is_empty() || author.contains(['"', '\\']) || author.chars().any(char::is_control) {
        let message = format!("{author:?}: use neither quotes nor backslashes nor control codes");
        return Err(ToolError::New { message });
    }
    let what: Vec<&str> = kernels.iter().map(|kernel| kernel.what).collect();
    let now = Timestamp::from(SystemTime::now()).to_string();
    let second = now.split('.').next().unwrap_or_default().trim_end_matches('Z');
    let (needs, native_test, files) = match options.lang {
        Lang::Rust => (
            "a Rust that compiles to wasm32: `rustup target add wasm32-unknown-unknown`, or a \
             distribution's\nRust with its sources and a linker (Debian: `apt install rustc-web \
             cargo-web rust-web-src lld`)",
            "cargo test             # the maths, on your own machine\n",
            "| `src/` | the maths of the kernels, with its own tests |\n| `kernels/` | the kernels' \
             entry points, declared with the SDK's `kernel!` |\n| `sdk/` | a copy of the SDK, so \
             that the pack builds offline and keeps building the same bytes |\n",
        ),
        Lang::C => (
            "clang and its linker for wasm (Debian: `apt install clang lld`)",
            "",
            "| `kernels/` | the kernels, one C file each |\n| `include/ruvllm_kernel.h` | the SDK: \
             views, params, scratch, block formats |\n",
        ),
    };
    Ok(vec![
        ("name", name.to_owned()),
        ("crate", crate_name(name)),
        ("description", what.join(", ")),
        ("lang", options.lang.name().to_owned()),
        ("sdk_version", env!("CARGO_PKG_VERSION").to_owned()),
        ("created_at", format!("{second}Z")),
        ("author", author),
        ("signing_key", key),
        ("needs", needs.to_owned()),
        ("native_test", native_test.to_owned()),
        ("files", files.to_owned()),
    ])
}

/// The pack's name as cargo takes it: no dots, and a letter first.
fn crate_name(name: &str) -> String {
    let name = name.replace('.', "-");
    if name.starts_with(|c: char| c.is_ascii_alphabetic()) { name } else { format!("pack-{name}") }
}

fn fill(template: &str, values: &[(&'static str, String)]) -> String {
    values.iter().fold(template.to_owned(), |text, (name, value)| {
        text.replace(&format!("{{{{{name}}}}}"), value)
    })
}

type Files = Vec<(String, String)>;

/// What packs of both languages have.
fn common_files(kernels: &[&Worked], values: &Values) -> Files {
    let mut pack = fill(templates::PACK, values);
    kernels.iter().for_each(|kernel| pack.push_str(kernel.section));
    let mut files = vec![
        ("pack.toml".to_owned(), pack),
        ("README.md".to_owned(), fill(templates::README, values)),
        (".gitignore".to_owned(), templates::GITIGNORE.to_owned()),
    ];
    for kernel in kernels {
        files.push((format!("golden/{}/basic.json", kernel.id), kernel.golden.to_owned()));
    }
    files
}

fn rust_files(kernels: &[&Worked], values: &Values) -> Files {
    let mut files = common_files(kernels, values);
    let mut add = |path: &str, text: String| files.push((path.to_owned(), text));
    let mut cargo = fill(templates::CARGO, values);
    let mut modules = String::new();
    for kernel in kernels {
        cargo.push_str(&fill(templates::CARGO_BIN, &[("id", kernel.id.to_owned())]));
        modules.push_str(&format!("pub mod {};\n", kernel.module));
        add(&format!("src/{}.rs", kernel.module), kernel.rust_maths.to_owned());
        add(&format!("kernels/{}.rs", kernel.id), kernel.rust_kernel.to_owned());
    }
    add("Cargo.toml", cargo);
    add("Cargo.lock", lock_file(values));
    add("src/lib.rs", fill(templates::LIB, &[("modules", modules)]).trim_end().to_owned() + "\n");
    add("sdk/Cargo.toml", fill(templates::SDK_CARGO, values));
    add("sdk/abi/Cargo.toml", fill(templates::ABI_CARGO, values));
    add("sdk/README.md", fill(templates::SDK_README, values));
    for (path, text) in templates::SDK {
        add(&format!("sdk/{path}"), (*text).to_owned());
    }
    files
}

fn c_files(kernels: &[&Worked], values: &Values) -> Files {
    let mut files = common_files(kernels, values);
    for kernel in kernels {
        files.push((format!("kernels/{}.c", kernel.id), kernel.c_kernel.to_owned()));
    }
    files.push(("include/ruvllm_kernel.h".to_owned(), templates::HEADER.to_owned()));
    files
}

/// The lock file of a crate with the SDK, as cargo would write it: packages in order of name.
fn lock_file(values: &Values) -> String {
    let crate_name = values.iter().find(|(name, _)| *name == "crate").map(|(_, v)| v.as_str());
    let sdk = env!("CARGO_PKG_VERSION");
    let mut packages = [
        (crate_name.unwrap_or_default(), "0.0.0", Some("ruvllm-kernel-sdk")),
        ("ruvllm-abi", sdk, None),
        ("ruvllm-kernel-sdk", sdk, Some("ruvllm-abi")),
    ];
    packages.sort_unstable();
    let entry = |(name, version, dependency): &(&str, &str, Option<&str>)| {
        let dependency = dependency.map(|name| format!("\ndependencies = [\n \"{name}\",\n]"));
        let dependency = dependency.unwrap_or_default();
        format!("[[package]]\nname = \"{name}\"\nversion = \"{version}\"{dependency}\n")
    };
    let packages: Vec<String> = packages.iter().map(entry).collect();
    fill(templates::CARGO_LOCK, &[("packages", packages.join("\n"))]).trim_end().to_owned() + "\n"
}

/// The text of the C header, for tests that hold it against the ABI.
pub fn c_header() -> &'static str {
    templates::HEADER
}

/// Whether a directory is one that [`new`] may have made: it has a `pack.toml`.
pub(crate) fn is_pack_crate(directory: &Path) -> bool {
    directory.join(crate::spec::SPEC_FILE).is_file()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn walk(directory: &Path, below: &str, found: &mut Vec<String>) {
        for entry in fs::read_dir(directory).unwrap().flatten() {
            let name = format!("{below}{}", entry.file_name().to_str().unwrap());
            if entry.path().is_dir() {
                walk(&entry.path(), &format!("{name}/"), found);
            } else {
                found.push(name);
            }
        }
    }

    #[test]
    fn every_source_of_the_sdk_goes_along() {
        let sdk = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../kernel-sdk");
        let mut there = Vec::new();
        walk(&sdk.join("src"), "src/", &mut there);
        walk(&sdk.join("abi/src"), "abi/src/", &mut there);
        there.sort();
        let mut ours: Vec<&str> = templates::SDK.iter().map(|(path, _)| *path).collect();
        ours.sort_unstable();
        assert_eq!(ours, there, "list new files of the SDK in scaffold/templates.rs");
    }

    #[test]
    fn every_operation_of_the_catalogue_has_a_worked_kernel_that_the_core_pack_s_ids_name() {
        for op in Op::ALL {
            let worked = templates::WORKED.iter().find(|worked| worked.op == Some(op)).unwrap();
            assert!(op.contract().variants.iter().any(|v| v.kernel == worked.id), "{op}");
            assert_eq!(worked.module, op.name());
        }
    }

    #[test]
    fn nothing_is_left_to_fill_in_and_nothing_is_overwritten() {
        let dir = tempfile::tempdir().unwrap();
        for lang in [Lang::Rust, Lang::C] {
            let options = Options {
                directory: dir.path().join(format!("0.my-{}", lang.name())),
                lang,
                ops: Op::ALL.to_vec(),
                custom: true,
                author: None,
                signing_key: None,
            };
            let report = new(&options).unwrap();
            assert_eq!(report.kernels.len(), Op::ALL.len() + 1);
            for file in &report.files {
                let text = fs::read_to_string(options.directory.join(file)).unwrap();
                let names = text.split("{{").skip(1);
                let left = names.filter(|name| name.starts_with(|c: char| c.is_ascii_lowercase()));
                assert_eq!(left.count(), 0, "{file}");
                assert!(text.ends_with('\n') && !text.ends_with("\n\n"), "{file}");
            }
            crate::PackSpec::read(&options.directory).unwrap();
            assert_eq!(new(&options).unwrap_err().code(), "new_refused");
        }
    }

    #[test]
    fn names_that_cannot_be_a_pack_s_are_refused() {
        let dir = tempfile::tempdir().unwrap();
        let with = |name: &str, author: Option<&str>| Options {
            directory: dir.path().join(name),
            lang: Lang::C,
            ops: Vec::new(),
            custom: false,
            author: author.map(str::to_owned),
            signing_key: None,
        };
        assert_eq!(new(&with("Upper Case", None)).unwrap_err().code(), "new_refused");
        assert_eq!(new(&with("fine", Some("a \" b"))).unwrap_err().code(), "new_refused");
        assert_eq!(new(&with("fine", None)).unwrap().kernels, ["rmsnorm_f32"]);
    }
}
