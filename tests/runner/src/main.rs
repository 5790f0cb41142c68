//! Runs all tests of the workspace, and says at the end what `cargo test` does not: which tests were
//! skipped and why, and which took longest.
//!
//! A test that cannot run for want of a tool prints a line `skipped: REASON` and passes. Whoever has
//! installed the tool says so with `--never-skip=TEXT`: a reason with that text is a failure then.
#![forbid(unsafe_code)]

mod output;

use std::fmt::Arguments;
use std::io::{self, BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, ExitStatus, Stdio};
use std::sync::{Mutex, PoisonError};
use std::thread;
use std::time::Instant;

use output::{Outcome, Reader};

const HELP: &str = "\
Runs all tests: cargo run --release -p ruvllm-test [-- [--never-skip=TEXT]... [FILTER]]

  --never-skip=TEXT  a test that is skipped for a reason with this text in it has failed
  FILTER             only tests with this text in their names";

/// Tests whose times are shown at the end.
const SLOWEST: usize = 10;

struct Options {
    never_skip: Vec<String>,
    filter: Option<String>,
}

fn options() -> Result<Options, String> {
    let mut options = Options { never_skip: Vec::new(), filter: None };
    for arg in std::env::args().skip(1) {
        if let Some(text) = arg.strip_prefix("--never-skip=") {
            options.never_skip.push(text.to_owned());
        } else if arg.starts_with('-') {
            return Err(format!("unknown option {arg}\n{HELP}"));
        } else if options.filter.is_some() {
            return Err(format!("more than one filter\n{HELP}"));
        } else {
            options.filter = Some(arg);
        }
    }
    Ok(options)
}

/// A program of tests, and the directory of its package, where it runs.
struct Program {
    executable: PathBuf,
    directory: PathBuf,
}

/// The text of a field in a line of JSON that cargo wrote; none where it is null.
fn field<'a>(line: &'a str, name: &str) -> Option<&'a str> {
    let (_, rest) = line.split_once(&format!("\"{name}\":\""))?;
    rest.split_once('"').map(|(text, _)| text)
}

fn cargo() -> Command {
    let mut cargo = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    cargo.args(["test", "--release", "--workspace"]);
    // What `cargo run` says of this package. Some build scripts look at it, so with it they and all that depends
    // on them would be built anew.
    for (name, _) in std::env::vars_os() {
        let text = name.to_string_lossy();
        if text.starts_with("CARGO_PKG_") || text.starts_with("CARGO_MANIFEST_") {
            cargo.env_remove(&name);
        }
    }
    cargo
}

/// Runs a command and hands over what it prints, line by line.
fn read(command: &mut Command, mut line: impl FnMut(&str)) -> Result<ExitStatus, String> {
    let named = |error: io::Error, command: &Command| {
        format!("{}: {error}", command.get_program().display())
    };
    let mut child =
        command.stdout(Stdio::piped()).spawn().map_err(|error| named(error, command))?;
    for printed in child.stdout.take().into_iter().flat_map(|out| BufReader::new(out).lines()) {
        line(&printed.map_err(|error| named(error, command))?);
    }
    child.wait().map_err(|error| named(error, command))
}

/// Builds all tests and lists their programs.
fn build() -> Result<Vec<Program>, String> {
    let mut programs = Vec::new();
    let mut build = cargo();
    build.args(["--no-run", "--message-format=json-render-diagnostics"]);
    let status = read(&mut build, |line| {
        // A program that has tests is built without them, too.
        let tests =
            line.split("\"profile\":").nth(1).is_some_and(|rest| rest.contains("\"test\":true}"));
        let (Some(executable), Some(manifest)) =
            (field(line, "executable"), field(line, "manifest_path"))
        else {
            return;
        };
        if tests && let Some(directory) = Path::new(manifest).parent() {
            programs.push(Program { executable: executable.into(), directory: directory.into() });
        }
    })?;
    match status.success() && !programs.is_empty() {
        true => Ok(programs),
        false => Err("the tests do not build".to_owned()),
    }
}

/// Prints a line. A reader may go away; the tests run on, and the exit code tells.
fn say(line: Arguments<'_>) {
    let _ = writeln!(io::stdout(), "{line}");
}

/// Runs one program of tests, or what else prints as one does, and shows what it has printed when it is done.
fn run(title: Arguments<'_>, command: &mut Command) -> Result<Outcome, String> {
    let mut outcome = Outcome::default();
    let mut shown = title.to_string();
    let mut reader = Reader::new(&mut outcome);
    let status = read(command, |line| {
        if reader.shown(line) {
            shown.push('\n');
            shown.push_str(line);
        }
    })?;
    say(format_args!("\n{shown}"));
    // One that ends with a failure and names no failed test, as after a crash.
    if !status.success() && outcome.failed.is_empty() {
        outcome.failed.push(format!("{}: {status}", command.get_program().display()));
    }
    Ok(outcome)
}

/// Runs programs, as many at a time as there are processors and each on one thread: many tests wait, for a clock or for
/// other processes, and many a program has one that takes far longer than its others.
fn run_all(programs: Vec<Program>, filter: Option<&String>) -> Result<Outcome, String> {
    let programs = Mutex::new(programs.into_iter());
    let next = || programs.lock().unwrap_or_else(PoisonError::into_inner).next();
    let worker = || {
        let mut outcome = Outcome::default();
        while let Some(Program { executable, directory }) = next() {
            let mut command = Command::new(&executable);
            command.current_dir(&directory).env("CARGO_MANIFEST_DIR", &directory);
            command.args(filter).args(["--show-output", "--test-threads=1"]);
            // Times of tests are unstable in the harness of the standard library, which takes this variable
            // for leave to print them.
            command.args(["-Zunstable-options", "--report-time"]).env("RUSTC_BOOTSTRAP", "1");
            outcome.add(run(format_args!("{}", executable.display()), &mut command)?);
        }
        Ok::<_, String>(outcome)
    };
    let mut outcome = Outcome::default();
    thread::scope(|scope| {
        let processors = thread::available_parallelism().map_or(1, usize::from);
        let workers: Vec<_> = (0..processors).map(|_| scope.spawn(worker)).collect();
        for worker in workers {
            outcome.add(
                worker.join().map_err(|_| "a thread that runs tests has panicked".to_owned())??,
            );
        }
        Ok(outcome)
    })
}

fn all(options: &Options) -> Result<bool, String> {
    let start = Instant::now();
    let programs = build()?;
    say(format_args!("built in {} s", start.elapsed().as_secs()));
    let start = Instant::now();
    let mut outcome = run_all(programs, options.filter.as_ref())?;
    let mut examples = cargo();
    examples.arg("--doc").arg("--").args(&options.filter);
    outcome.add(run(format_args!("examples in documentation"), &mut examples)?);
    say(format_args!("\n{}", outcome.summary(SLOWEST, start.elapsed())));
    let complaints = outcome.complaints(&options.never_skip);
    complaints.iter().for_each(|complaint| say(format_args!("failed: {complaint}")));
    Ok(complaints.is_empty())
}

fn main() -> ExitCode {
    if std::env::args().any(|arg| arg == "--help" || arg == "-h") {
        say(format_args!("{HELP}"));
        return ExitCode::SUCCESS;
    }
    match options().and_then(|options| all(&options)) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("error: {error}");
            ExitCode::FAILURE
        }
    }
}
