//! Starting the program and reading what it said.

use ruvllm_engine::gguf::{self, GgufFile, TensorView, Value};
use std::fs::File;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::sync::LazyLock;
use tempfile::TempDir;

/// Where the runs of one test process keep compiled kernels and what they remember, so that they do
/// not touch the user's.
static CACHES: LazyLock<TempDir> = LazyLock::new(|| TempDir::new().expect("a directory"));

/// What one run of the program gave.
pub(crate) struct Run {
    /// Exit code; `None` for a signal.
    pub(crate) code: Option<i32>,
    /// Standard output.
    pub(crate) stdout: String,
    /// Standard error.
    pub(crate) stderr: String,
}

impl Run {
    /// The JSON object on the last line of standard error: what `--stats json` prints.
    pub(crate) fn stats(&self) -> serde_json::Value {
        let line = self.stderr.lines().last().unwrap_or_default();
        serde_json::from_str(line).unwrap_or_else(|error| panic!("{error} in: {}", self.stderr))
    }

    /// Asserts success and gives the text without the final newline.
    pub(crate) fn text(&self) -> &str {
        assert_eq!(self.code, Some(0), "{}", self.stderr);
        self.stdout.strip_suffix('\n').expect("the text ends with a newline")
    }

    /// Asserts a refusal: exit code 1, one `error:` line that holds every one of `parts`, no panic.
    pub(crate) fn refused(&self, parts: &[&str]) {
        assert_eq!(self.code, Some(1), "stdout: {}\nstderr: {}", self.stdout, self.stderr);
        assert!(self.stderr.contains("error: "), "{}", self.stderr);
        assert!(!self.stderr.contains("panicked"), "{}", self.stderr);
        for part in parts {
            assert!(self.stderr.contains(part), "no {part:?} in: {}", self.stderr);
        }
    }
}

/// Where the runs of this test process keep compiled kernels.
pub(crate) fn caches() -> &'static Path {
    CACHES.path()
}

/// `ruvllm-pack` beside the program under test, where `cargo test --workspace` puts it.
pub(crate) fn pack_tool() -> Option<PathBuf> {
    let name = format!("ruvllm-pack{}", std::env::consts::EXE_SUFFIX);
    let tool = Path::new(env!("CARGO_BIN_EXE_ruvllm")).with_file_name(name);
    if tool.is_file() {
        return Some(tool);
    }
    eprintln!("skipped: ruvllm-pack is not built; `cargo test --workspace` builds it");
    None
}

/// Runs `ruvllm` with these arguments and an empty standard input.
pub(crate) fn ruvllm<S: AsRef<std::ffi::OsStr>>(args: &[S]) -> Run {
    ruvllm_with_input(args, "")
}

/// Runs `ruvllm` with these arguments and this standard input.
pub(crate) fn ruvllm_with_input<S: AsRef<std::ffi::OsStr>>(args: &[S], input: &str) -> Run {
    let mut child = Command::new(env!("CARGO_BIN_EXE_ruvllm"))
        .args(args)
        .env("XDG_CACHE_HOME", CACHES.path())
        .env("XDG_STATE_HOME", CACHES.path().join("state"))
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("the program starts");
    let mut stdin = child.stdin.take().expect("piped");
    let input = input.to_owned();
    // A program that refuses its arguments may not read its input: a broken pipe is fine.
    let writer = std::thread::spawn(move || drop(stdin.write_all(input.as_bytes())));
    let Output { status, stdout, stderr } = child.wait_with_output().expect("the program ends");
    writer.join().expect("the writer ends");
    Run {
        code: status.code(),
        stdout: String::from_utf8(stdout).expect("standard output is UTF-8"),
        stderr: String::from_utf8_lossy(&stderr).into_owned(),
    }
}

/// The directory of the whole project.
pub(crate) fn repository() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

/// The demo model with other texts in its metadata, and with more tensors.
pub(crate) fn demo_with(
    texts: &[(&str, &str)],
    added: &[TensorView<'_>],
    directory: &Path,
) -> PathBuf {
    let demo = Path::new(env!("CARGO_MANIFEST_DIR")).join("demo/tales-q8_0.gguf");
    let demo = GgufFile::open(&demo).unwrap();
    let mut metadata = demo.metadata().clone();
    for (key, text) in texts {
        metadata.insert((*key).to_owned(), Value::String((*text).to_owned()));
    }
    let tensors = [&demo.tensors(), added].concat();
    let metadata = metadata.iter().map(|(key, value)| (key.as_str(), value));
    let path = directory.join("model.gguf");
    gguf::write(&mut File::create(&path).unwrap(), metadata, &tensors).unwrap();
    path
}
