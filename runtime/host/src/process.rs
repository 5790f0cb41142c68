//! Child processes with limits, for work on what nobody vouches for.
//!
//! The child is a program that calls the work's own entry point at the top of `main`, and puts itself
//! under its [`Limits`] before it reads anything else. Its environment is empty, and so is its process
//! group but for itself: Ctrl-C at a terminal is for its parent to answer.
//!
//! Memory is bounded where the system counts address space: on Unix except macOS. Elsewhere the parent's
//! clock is the only limit, and a child that crashes is all that is lost.

mod pool;

use std::ffi::OsString;
use std::io;
use std::path::Path;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};

pub use pool::{Failure, HelperProcess, Pool, answer_requests};

/// Starts a program with pipes for its input and output.
///
/// # Errors
/// What the system says where it cannot be started.
pub fn spawn(program: &Path, args: &[OsString]) -> io::Result<(Child, ChildStdin, ChildStdout)> {
    let mut command = Command::new(program);
    command.args(args).env_clear();
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null());
    #[cfg(unix)]
    std::os::unix::process::CommandExt::process_group(&mut command, 0);
    let mut child = command.spawn()?;
    match (child.stdin.take(), child.stdout.take()) {
        (Some(input), Some(output)) => Ok((child, input, output)),
        // Both were asked for above.
        _ => Err(io::Error::other("the process has no pipes")),
    }
}

/// What a process may use for the rest of its life; it writes no file in any case.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// Address space, in bytes.
    pub memory_bytes: u64,
    /// Time on processors; no limit when absent.
    pub cpu_seconds: Option<u64>,
}

impl Limits {
    /// Puts this process under the limits.
    ///
    /// # Errors
    /// What the system says where it does not take one.
    #[cfg(unix)]
    pub fn apply(&self) -> Result<(), String> {
        use rustix::process::{Resource, Rlimit, setrlimit};
        let memory = (!cfg!(target_vendor = "apple")).then_some((Resource::As, self.memory_bytes));
        let time = self.cpu_seconds.map(|seconds| (Resource::Cpu, seconds));
        let files = [(Resource::Fsize, 0), (Resource::Core, 0)];
        for (resource, most) in memory.into_iter().chain(time).chain(files) {
            let limit = Rlimit { current: Some(most), maximum: Some(most) };
            setrlimit(resource, limit).map_err(|e| format!("cannot limit this process: {e}"))?;
        }
        Ok(())
    }

    /// Elsewhere the parent's clock is the only limit.
    ///
    /// # Errors
    /// None.
    #[cfg(not(unix))]
    pub fn apply(&self) -> Result<(), String> {
        Ok(())
    }
}
