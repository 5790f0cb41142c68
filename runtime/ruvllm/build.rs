//! Lists the files of the signed core pack, so that the binary can carry them.
//!
//! The pack is embedded as it was signed and goes through the same verification as one read from
//! a directory; being built in gives it no trust.

use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::{env, fs, io};

fn main() -> io::Result<()> {
    let manifest_dir =
        PathBuf::from(env::var_os("CARGO_MANIFEST_DIR").ok_or(io::ErrorKind::NotFound)?);
    let dist = manifest_dir.join("../../kernel-packs/core/dist");
    println!("cargo:rerun-if-changed={}", dist.display());

    let mut files = Vec::new();
    collect(&dist, &dist, &mut files)?;
    files.sort();

    let mut source = String::from("&[\n");
    for (name, path) in &files {
        println!("cargo:rerun-if-changed={}", path.display());
        let _ = writeln!(source, "    ({name:?}, include_bytes!({path:?})),");
    }
    source.push(']');
    let out = PathBuf::from(env::var_os("OUT_DIR").ok_or(io::ErrorKind::NotFound)?);
    fs::write(out.join("core_pack.rs"), source)
}

/// Adds every file under `dir` as (path relative to `root` with `/`, absolute path).
fn collect(root: &Path, dir: &Path, files: &mut Vec<(String, PathBuf)>) -> io::Result<()> {
    for entry in fs::read_dir(dir)? {
        let path = entry?.path();
        if path.is_dir() {
            collect(root, &path, files)?;
        } else {
            let relative = path.strip_prefix(root).map_err(io::Error::other)?;
            let name: Vec<_> = relative.iter().map(|part| part.to_string_lossy()).collect();
            files.push((name.join("/"), path.canonicalize()?));
        }
    }
    Ok(())
}
