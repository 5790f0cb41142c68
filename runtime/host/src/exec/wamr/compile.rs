//! Compiling a module ahead of time, by a `wamrc` of the user's.

use crate::config::{Compiler, CompilerProcess};
use crate::exec::executor::CompileError;
use crate::process::Limits;
use std::fs;
use std::path::Path;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// What the first bytes of a module are that was compiled ahead of time.
pub(super) const COMPILED: &[u8] = b"\0aot";

/// Checks of memory and of the stack in code rather than by page faults, which would need signal handlers.
const OPTIONS: [&str; 2] = ["--bounds-checks=1", "--stack-bounds-checks=1"];

/// How long a compiler may take where nothing else is configured.
const TIME: Duration = Duration::from_secs(60);

/// The address space that a compiler may take where nothing else is configured.
const MEMORY: u64 = 1 << 30;

/// The largest file that a compiler may write: code is some ten times as long as its module.
const MAX_CODE: u64 = 64 << 20;

/// How often is looked whether it is done.
const LOOK: Duration = Duration::from_millis(5);

/// What machine code depends on beside module and compiler.
pub(super) fn target() -> String {
    format!("{}-{} {}", std::env::consts::ARCH, std::env::consts::OS, OPTIONS.join(" "))
}

/// Whether compilers are to end, and no more to start.
static STOPPED: AtomicBool = AtomicBool::new(false);

/// As [`crate::stop_compilers`].
pub(in crate::exec) fn stop() {
    STOPPED.store(true, Ordering::Relaxed);
}

/// Compiles a module in a process of its own, which may take the time and memory that compiler processes are
/// configured to. It is in a process group of its own, so that Ctrl-C at a terminal is for its parent to answer.
///
/// # Errors
/// `compiler_unavailable`, `compile_timeout`, `compile_limit` where a signal ends the compiler, as memory that it
/// does not get may, `compile_stopped` after [`stop`], and `kernel_compile` with what the compiler says.
pub(super) fn compile(
    wamrc: &Path,
    limits: &Compiler,
    wasm: &[u8],
) -> Result<Vec<u8>, CompileError> {
    compile_unless(&STOPPED, wamrc, limits, wasm)
}

fn compile_unless(
    stopped: &AtomicBool,
    wamrc: &Path,
    limits: &Compiler,
    wasm: &[u8],
) -> Result<Vec<u8>, CompileError> {
    let error = |code, detail| CompileError { code, detail };
    let is_stopped = || stopped.load(Ordering::Relaxed);
    let told = || error("compile_stopped", "the program was asked to stop".to_owned());
    if is_stopped() {
        return Err(told());
    }
    let unavailable =
        |e| error("compiler_unavailable", format!("cannot run {}: {e}", wamrc.display()));
    let directory = tempfile::tempdir().map_err(unavailable)?;
    let [module, code, said] =
        ["kernel.wasm", "kernel.aot", "said"].map(|name| directory.path().join(name));
    fs::write(&module, wasm).map_err(unavailable)?;
    let output = fs::File::create(&said).map_err(unavailable)?;
    let mut command = Command::new(wamrc);
    command.args(OPTIONS).arg("-o").arg(&code).arg(&module).env_clear();
    command.stdin(Stdio::null()).stderr(output.try_clone().map_err(unavailable)?).stdout(output);
    #[cfg(unix)]
    std::os::unix::process::CommandExt::process_group(&mut command, 0);
    let (time, memory_bytes) = match limits {
        Compiler::InProcess => (TIME, MEMORY),
        Compiler::Process(CompilerProcess { time, memory_bytes, .. }) => (*time, *memory_bytes),
    };
    let limits = Limits {
        memory_bytes,
        // The parent's clock is the limit; the child's own is for a parent that is gone.
        cpu_seconds: Some(time.as_secs().saturating_add(1)),
        file_bytes: MAX_CODE,
    };
    let mut child = command.spawn().map_err(unavailable)?;
    if let Err(detail) = limits.put_on(&child) {
        end(&mut child);
        return Err(error("compiler_unavailable", format!("{}: {detail}", wamrc.display())));
    }
    let begun = Instant::now();
    let status = loop {
        match child.try_wait().map_err(unavailable)? {
            Some(status) => break status,
            None if is_stopped() => {
                end(&mut child);
                return Err(told());
            }
            None if begun.elapsed() < time => std::thread::sleep(LOOK),
            None => {
                end(&mut child);
                return Err(error(
                    "compile_timeout",
                    format!("compiling takes longer than {time:?}"),
                ));
            }
        }
    };
    match fs::read(&code) {
        Ok(bytes) if status.success() && bytes.starts_with(COMPILED) => Ok(bytes),
        _ => {
            let said = fs::read(&said).unwrap_or_default();
            let said = String::from_utf8_lossy(&said);
            let said: String = said.trim().chars().take(512).collect();
            let (wamrc, memory) = (wamrc.display(), memory_bytes >> 20);
            Err(match is_ended_by_signal(status) {
                true => error(
                    "compile_limit",
                    format!(
                        "{wamrc} gave no code ({status}); it may use {memory} MiB of memory: {said}"
                    ),
                ),
                false => {
                    error("kernel_compile", format!("{wamrc} gave no code ({status}): {said}"))
                }
            })
        }
    }
}

/// Ends a compiler, and what it may have started, which is in its process group.
fn end(child: &mut Child) {
    #[cfg(unix)]
    if let Some(group) = i32::try_from(child.id()).ok().and_then(rustix::process::Pid::from_raw) {
        let _ = rustix::process::kill_process_group(group, rustix::process::Signal::KILL);
    }
    // Whoever waits for it gets its remains.
    let _ = child.kill().and_then(|()| child.wait().map(|_| ()));
}

fn is_ended_by_signal(status: ExitStatus) -> bool {
    !status.success() && status.code().is_none()
}

#[cfg(target_os = "linux")]
#[cfg(test)]
mod tests {
    use super::*;
    use ruvllm_tests::wamr::COMPILER;
    use std::os::unix::fs::PermissionsExt;
    use std::path::PathBuf;

    /// What a compiler says of a module, under these limits.
    fn refusal(wamrc: &Path, memory_bytes: u64, time: Duration) -> CompileError {
        let process = CompilerProcess { memory_bytes, time, ..CompilerProcess::default() };
        compile(wamrc, &Compiler::Process(process), b"").err().unwrap()
    }

    /// A program of the shell in the place of a compiler.
    fn script(directory: &Path, text: &str) -> PathBuf {
        let path = directory.join("wamrc");
        fs::write(&path, format!("#!/bin/sh\n{text}\n")).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o700)).unwrap();
        path
    }

    #[test]
    fn a_compiler_has_limits_on_memory_files_and_time_and_a_process_group_of_its_own() {
        let directory = tempfile::tempdir().unwrap();
        // The limits are put on it while it starts, these two last. `ulimit -f` counts blocks of 512 bytes.
        let last = format!("files {} core 0", MAX_CODE / 512);
        let text = format!(
            "until [ \"files $(ulimit -f) core $(ulimit -c)\" = '{last}' ]; do /bin/sleep 0.05; done
            read -r stat < /proc/$$/stat; group=$(set -- $stat; echo $5)
            echo memory $(ulimit -v) files $(ulimit -f) core $(ulimit -c) time $(ulimit -t)
            [ $group = $$ ] && echo a group of its own; exit 1"
        );
        let error = refusal(&script(directory.path(), &text), 300 << 20, Duration::from_secs(60));
        assert_eq!(error.code, "kernel_compile");
        let limits = format!("memory {} {last} time 61", 300 << 10);
        assert!(error.detail.contains(&limits), "{}", error.detail);
        assert!(error.detail.contains("a group of its own"), "{}", error.detail);
    }

    #[test]
    fn a_compiler_that_is_late_is_ended_with_what_it_has_started() {
        let directory = tempfile::tempdir().unwrap();
        let alive = directory.path().join("alive");
        let text = format!("(/bin/sleep 1; echo yes > '{}') & wait", alive.display());
        let wamrc = script(directory.path(), &text);
        assert_eq!(refusal(&wamrc, 1 << 30, Duration::from_millis(300)).code, "compile_timeout");
        std::thread::sleep(Duration::from_millis(1500));
        assert!(!alive.exists());
    }

    #[test]
    fn a_compiler_ends_when_it_is_stopped_and_none_starts_after_that() {
        let directory = tempfile::tempdir().unwrap();
        let started = directory.path().join("started");
        let wamrc =
            script(directory.path(), &format!("echo x >> '{}'; /bin/sleep 60", started.display()));
        let stopped = AtomicBool::new(false);
        let compile = || compile_unless(&stopped, &wamrc, &Compiler::InProcess, b"").err().unwrap();
        let begun = Instant::now();
        std::thread::scope(|scope| {
            let compiling = scope.spawn(compile);
            while !started.exists() && !compiling.is_finished() {
                std::thread::sleep(LOOK);
            }
            stopped.store(true, Ordering::Relaxed);
            assert_eq!(compiling.join().unwrap().code, "compile_stopped");
        });
        assert!(begun.elapsed() < Duration::from_secs(30), "not at its limit of a minute");
        assert_eq!(compile().code, "compile_stopped");
        assert_eq!(fs::read_to_string(&started).unwrap(), "x\n");
    }

    #[test]
    fn a_compiler_that_a_signal_ends_met_a_limit() {
        let directory = tempfile::tempdir().unwrap();
        let wamrc = script(directory.path(), "echo no memory; kill -ABRT $$");
        let error = refusal(&wamrc, 300 << 20, Duration::from_secs(60));
        assert_eq!(error.code, "compile_limit");
        let said = "it may use 300 MiB of memory: no memory";
        assert!(error.detail.contains(said), "{}", error.detail);
    }

    #[test]
    fn wamrc_compiles_within_the_memory_that_it_may_use_and_not_beyond() {
        let Some(wamrc) = std::env::var_os(COMPILER).map(PathBuf::from) else {
            println!("skipped: no WAMR compiler: name a wamrc in {COMPILER}");
            return;
        };
        let module = crate::exec::meter::simd_probe();
        let within = |memory_bytes| {
            let process = CompilerProcess {
                memory_bytes,
                time: Duration::from_secs(60),
                ..CompilerProcess::default()
            };
            compile(&wamrc, &Compiler::Process(process), &module)
        };
        assert!(within(1 << 30).is_ok_and(|code| code.starts_with(COMPILED)));
        assert!(compile(&wamrc, &Compiler::InProcess, &module).is_ok());
        assert!(within(8 << 20).is_err());
    }
}
