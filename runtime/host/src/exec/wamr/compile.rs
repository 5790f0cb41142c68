//! Compiling a module ahead of time, by a `wamrc` of the user's.

use crate::config::{Compiler, CompilerProcess};
use crate::exec::executor::CompileError;
use std::fs;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

/// What the first bytes of a module are that was compiled ahead of time.
pub(super) const COMPILED: &[u8] = b"\0aot";

/// Checks of memory and of the stack in code rather than by page faults, which would need signal handlers.
const OPTIONS: [&str; 2] = ["--bounds-checks=1", "--stack-bounds-checks=1"];

/// How long a compiler may take where nothing else is configured.
const TIME: Duration = Duration::from_secs(60);

/// How often is looked whether it is done.
const LOOK: Duration = Duration::from_millis(5);

/// What machine code depends on beside module and compiler.
pub(super) fn target() -> String {
    format!("{}-{} {}", std::env::consts::ARCH, std::env::consts::OS, OPTIONS.join(" "))
}

/// Compiles a module in a process of its own, which may take as long as compiler processes are configured to.
///
/// # Errors
/// `compiler_unavailable`, `compile_timeout`, and `kernel_compile` with what the compiler says.
pub(super) fn compile(
    wamrc: &Path,
    limits: &Compiler,
    wasm: &[u8],
) -> Result<Vec<u8>, CompileError> {
    let error = |code, detail| CompileError { code, detail };
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
    let mut child = command.spawn().map_err(unavailable)?;
    let time = match limits {
        Compiler::InProcess => TIME,
        Compiler::Process(CompilerProcess { time, .. }) => *time,
    };
    let begun = Instant::now();
    let status = loop {
        match child.try_wait().map_err(unavailable)? {
            Some(status) => break status,
            None if begun.elapsed() < time => std::thread::sleep(LOOK),
            None => {
                // It is late, and whoever waits for it gets its remains.
                let _ = child.kill().and_then(|()| child.wait().map(|_| ()));
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
            Err(error(
                "kernel_compile",
                format!("{} gave no code ({status}): {said}", wamrc.display()),
            ))
        }
    }
}
