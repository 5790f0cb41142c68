//! Running tests once more on WAMR.
//!
//! Whoever has a `libiwasm` names it in the variable [`LIBRARY`], and the `wamrc` of its release, for kernels that
//! are compiled ahead of time, in [`COMPILER`]; a build with the feature `wamr-bundled` has a library. A test that is
//! called `..._on_wamr` starts its own program again, which then takes WAMR for its hosts.

use std::path::PathBuf;
use std::process::Command;

/// The variable that names a `libiwasm` for tests.
pub const LIBRARY: &str = "RUVLLM_TEST_WAMR_LIB";

/// The variable that names a `wamrc` for tests.
pub const COMPILER: &str = "RUVLLM_TEST_WAMRC";

/// Set where a program of tests was started again, to how its kernels run.
const STARTED: &str = "RUVLLM_TEST_ON_WAMR";

/// How kernels run on WAMR.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    /// As they are.
    Interpreted,
    /// Compiled ahead of time.
    Compiled,
}

/// A build with WAMR, or without.
#[derive(Clone, Copy, Debug)]
pub struct Build {
    /// Whether it has the feature `wamr`.
    pub wamr: bool,
    /// Whether it has the feature `wamr-bundled`.
    pub bundled: bool,
}

impl Mode {
    fn name(self) -> &'static str {
        match self {
            Mode::Interpreted => "interpreted",
            Mode::Compiled => "compiled",
        }
    }
}

/// Whether hosts of this run are to take WAMR.
pub fn is_taken() -> bool {
    std::env::var_os(STARTED).is_some()
}

/// The `libiwasm` that the user has named.
pub fn library() -> Option<PathBuf> {
    std::env::var_os(LIBRARY).map(PathBuf::from)
}

/// The `wamrc` that the user has named, where hosts of this run are to compile kernels.
pub fn compiler() -> Option<PathBuf> {
    let is_wanted = std::env::var_os(STARTED).is_some_and(|mode| mode == Mode::Compiled.name());
    std::env::var_os(COMPILER).filter(|_| is_wanted).map(PathBuf::from)
}

/// Whether hosts can have WAMR. Says why they cannot, as a test does that is skipped.
pub fn is_there(build: Build, mode: Mode) -> bool {
    if !build.wamr {
        println!("skipped: built without the feature `wamr`");
    } else if library().is_none() && !build.bundled {
        println!("skipped: no WAMR library: name a libiwasm in {LIBRARY}");
    } else if mode == Mode::Compiled && library().and(std::env::var_os(COMPILER)).is_none() {
        println!(
            "skipped: no WAMR compiler: name a libiwasm in {LIBRARY} and its wamrc in {COMPILER}"
        );
    } else {
        return true;
    }
    false
}

/// Runs tests of this program, all whose names begin with one of `filters` but have none of `except` in them, once
/// more on WAMR. Says that they are skipped where there is none.
///
/// # Panics
/// Where one fails, or a filter matches none.
pub fn run_again(build: Build, mode: Mode, filters: &[&str], except: &[&str]) {
    if !is_there(build, mode) {
        return;
    }
    let mut again = Command::new(std::env::current_exe().unwrap());
    again.args(filters).args(except.iter().flat_map(|test| ["--skip", test]));
    let output = again.env(STARTED, mode.name()).output().unwrap();
    let printed = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{printed}{}", String::from_utf8_lossy(&output.stderr));
    let ran: Vec<&str> = printed.lines().filter(|line| line.ends_with("... ok")).collect();
    for filter in filters {
        let name = format!("test {filter}");
        assert!(ran.iter().any(|line| line.starts_with(&name)), "no {filter} has run: {printed}");
    }
}
