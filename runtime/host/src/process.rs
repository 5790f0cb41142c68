//! Child processes with limits, for work on what nobody vouches for.
//!
//! The child is a program that calls the work's own entry point at the top of `main`, and puts itself
//! under its [`Limits`] before it reads anything else. Its environment has nothing of its parent's, and its
//! process group nobody but itself: Ctrl-C at a terminal is for its parent to answer.
//!
//! Memory is bounded where the system counts address space: on Unix except macOS. Elsewhere the parent's
//! clock is the only limit, and a child that crashes is all that is lost.

mod pool;

use std::ffi::OsString;
use std::io;
use std::path::Path;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};

pub use pool::{Failure, HelperProcess, Pool, answer_requests};

/// Starts a program with pipes for its input and output, and these variables alone in its environment.
///
/// # Errors
/// What the system says where it cannot be started.
pub fn spawn(
    program: &Path,
    args: &[OsString],
    variables: &[(&str, &str)],
) -> io::Result<(Child, ChildStdin, ChildStdout)> {
    let mut command = Command::new(program);
    command.args(args).env_clear().envs(variables.iter().copied());
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

/// What a process may use for the rest of its life.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// Address space, in bytes.
    pub memory_bytes: u64,
    /// Time on processors; no limit when absent.
    pub cpu_seconds: Option<u64>,
    /// The largest file that it may write, in bytes.
    pub file_bytes: u64,
}

impl Limits {
    /// Puts this process under the limits.
    ///
    /// # Errors
    /// What the system says where it does not take one.
    #[cfg(unix)]
    pub fn apply(&self) -> Result<(), String> {
        self.each(rustix::process::setrlimit).map_err(|e| format!("cannot limit this process: {e}"))
    }

    /// Elsewhere the parent's clock is the only limit.
    ///
    /// # Errors
    /// None.
    #[cfg(not(unix))]
    pub fn apply(&self) -> Result<(), String> {
        Ok(())
    }

    /// Puts a process under the limits that was just started and does not do so itself. What it does before
    /// they are there is to begin: it holds for a program that takes much only of what it has then read.
    ///
    /// # Errors
    /// What the system says where it does not take one.
    #[cfg(all(feature = "wamr", target_os = "linux"))]
    pub(crate) fn put_on(&self, child: &Child) -> Result<(), String> {
        let process = i32::try_from(child.id()).ok().and_then(rustix::process::Pid::from_raw);
        self.each(|resource, limit| rustix::process::prlimit(process, resource, limit).map(|_| ()))
            .map_err(|e| format!("cannot limit its process: {e}"))
    }

    /// Elsewhere the parent's clock is the only limit of a process that does not put itself under them.
    ///
    /// # Errors
    /// None.
    #[cfg(all(feature = "wamr", not(target_os = "linux")))]
    pub(crate) fn put_on(&self, _: &Child) -> Result<(), String> {
        Ok(())
    }

    #[cfg(unix)]
    fn each(
        &self,
        put: impl Fn(rustix::process::Resource, rustix::process::Rlimit) -> rustix::io::Result<()>,
    ) -> rustix::io::Result<()> {
        use rustix::process::{Resource, Rlimit};
        let memory = (!cfg!(target_vendor = "apple")).then_some((Resource::As, self.memory_bytes));
        let time = self.cpu_seconds.map(|seconds| (Resource::Cpu, seconds));
        let files = [(Resource::Fsize, self.file_bytes), (Resource::Core, 0)];
        memory.into_iter().chain(time).chain(files).try_for_each(|(resource, most)| {
            put(resource, Rlimit { current: Some(most), maximum: Some(most) })
        })
    }
}
