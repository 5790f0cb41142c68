//! Compiling in a process of its own, with limits on memory and time.
//!
//! A module can be small and still cost its compiler much. The gate bounds what it may look like;
//! where that is not enough, as for publishers whom nobody knows well, the compiler runs in a child
//! process that the system stops at its limits. The child has no environment, opens no file and
//! starts no thread.
//!
//! This guards the host's time and memory. It is no guard against a module that takes the
//! compiler itself over: what the child returns is loaded.

use super::compile::{CodeSettings, compile_alone};
use super::executor::{Artifact, CompileError};
use crate::config::CompilerProcess;
use crate::process::{self, Limits};
use std::io::{self, Read, Write};
use std::process::ExitCode;
use std::sync::mpsc::{self, RecvTimeoutError};
use std::thread;
use std::time::Duration;

/// The first bytes of a request; the number is the protocol's.
const MAGIC: [u8; 8] = *b"RVCOMP03";
/// The longest answer that is read: code is some ten times as long as its module.
const MAX_ANSWER: u64 = 64 << 20;
/// The longest module that a compiler process reads. The gate's cap is lower.
const MAX_MODULE: u64 = 64 << 20;

/// What precedes the module in a request, in little-endian order.
struct Request {
    code: CodeSettings,
    memory_bytes: u64,
    cpu_seconds: u64,
    module_bytes: u64,
}

impl Request {
    const SIZE: usize = 8 + 7 * 8;

    fn to_bytes(&self) -> [u8; Self::SIZE] {
        let mut bytes = [0; Self::SIZE];
        bytes[..8].copy_from_slice(&MAGIC);
        let CodeSettings { deterministic, memory_reservation, memory_guard, threads } = self.code;
        let words = [
            u64::from(deterministic),
            memory_reservation,
            memory_guard,
            u64::from(threads),
            self.memory_bytes,
            self.cpu_seconds,
            self.module_bytes,
        ];
        for (to, word) in bytes[8..].chunks_exact_mut(8).zip(words) {
            to.copy_from_slice(&word.to_le_bytes());
        }
        bytes
    }

    fn read(input: &mut impl Read) -> Result<Self, String> {
        let mut bytes = [0; Self::SIZE];
        input.read_exact(&mut bytes).map_err(|e| format!("cannot read the request: {e}"))?;
        if bytes[..8] != MAGIC {
            return Err("this is no request to compile: the program runs this itself".to_owned());
        }
        let mut words = bytes[8..]
            .chunks_exact(8)
            .map(|b| b.iter().rev().fold(0u64, |word, &byte| word << 8 | u64::from(byte)));
        let mut word = || words.next().unwrap_or(0);
        Ok(Self {
            code: CodeSettings {
                deterministic: word() != 0,
                memory_reservation: word(),
                memory_guard: word(),
                threads: word() != 0,
            },
            memory_bytes: word(),
            cpu_seconds: word(),
            module_bytes: word(),
        })
    }
}

/// Compiles a module in a child process.
pub(super) fn compile(
    limits: &CompilerProcess,
    code: CodeSettings,
    wasm: &[u8],
) -> Result<Artifact, CompileError> {
    let error = |code, detail| Err(CompileError { code, detail });
    let request = Request {
        code,
        memory_bytes: limits.memory_bytes,
        // The parent's clock is the limit; the child's own is for a parent that is gone.
        cpu_seconds: limits.time.as_secs().saturating_add(1),
        module_bytes: wasm.len() as u64,
    };
    let (mut child, mut input, output) = match process::spawn(&limits.program, &limits.args, &[]) {
        Ok(started) => started,
        Err(e) => {
            let program = limits.program.display();
            return error(
                "compiler_unavailable",
                format!("cannot start {program} to compile in a process of its own: {e}"),
            );
        }
    };
    let mut answer = Vec::new();
    let (late, ended) = thread::scope(|scope| {
        scope.spawn(move || {
            // A child that stops reading has met a limit; how it ended tells.
            let _ = input.write_all(&request.to_bytes()).and_then(|()| input.write_all(wasm));
        });
        let (read, was_read) = mpsc::channel::<()>();
        let watch = scope.spawn(move || {
            let late = was_read.recv_timeout(limits.time) == Err(RecvTimeoutError::Timeout);
            // It is done or late. Ending it lets the others end.
            let _ = child.kill();
            (late, child.wait())
        });
        // Here, because the answer is large, and what a new thread needs of the heap may stay behind in
        // an arena of its own.
        if output.take(MAX_ANSWER + 1).read_to_end(&mut answer).is_err() {
            answer.clear();
        }
        drop(read);
        watch.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
    });
    if late {
        let limit = limits.time;
        return error("compile_timeout", format!("compiling takes longer than {limit:?}"));
    }
    match answer.split_first() {
        Some((1, code)) if answer.len() as u64 <= MAX_ANSWER => Ok(Artifact(code.to_vec())),
        Some((2, message)) => {
            error("kernel_compile", String::from_utf8_lossy(message).into_owned())
        }
        _ => {
            let memory = limits.memory_bytes >> 20;
            let how = ended.map_or_else(|e| e.to_string(), |status| status.to_string());
            error(
                "compile_limit",
                format!("the compiler process gave no code ({how}): it may use {memory} MiB"),
            )
        }
    }
}

/// The compiler process: reads one module from standard input and writes machine code to standard
/// output, under the limits that the request names.
///
/// A program whose [`HostConfig::compiler`](crate::HostConfig::compiler) names itself calls this at
/// the top of `main` when it sees the arguments that it chose, before it starts a thread.
pub fn compiler_process() -> ExitCode {
    let mut output = io::stdout().lock();
    let (tag, bytes) = match answer(&mut io::stdin().lock()) {
        Ok(code) => (1, code),
        Err(message) => (2, message.into_bytes()),
    };
    match output.write_all(&[tag]).and_then(|()| output.write_all(&bytes)) {
        Ok(()) => ExitCode::SUCCESS,
        Err(_) => ExitCode::FAILURE,
    }
}

fn answer(input: &mut impl Read) -> Result<Vec<u8>, String> {
    let request = Request::read(input)?;
    let Request { memory_bytes, cpu_seconds, .. } = request;
    Limits { memory_bytes, cpu_seconds: Some(cpu_seconds), file_bytes: 0 }.apply()?;
    if request.module_bytes > MAX_MODULE {
        return Err(format!("the module has more than {MAX_MODULE} bytes"));
    }
    let mut wasm = Vec::new();
    input
        .take(request.module_bytes)
        .read_to_end(&mut wasm)
        .map_err(|e| format!("cannot read the module: {e}"))?;
    compile_alone(&wasm, request.code)
}

impl CompilerProcess {
    /// The argument on which a program that is its own compiler process becomes one.
    pub const COMMAND: &str = "compile-kernel";
}

impl Default for CompilerProcess {
    /// This program itself, run with [`CompilerProcess::COMMAND`], for at most 10 s and 1 GiB a module.
    fn default() -> Self {
        Self {
            program: std::env::current_exe().unwrap_or_default(),
            args: vec![Self::COMMAND.into()],
            memory_bytes: 1 << 30,
            time: Duration::from_secs(10),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const CODE: CodeSettings = CodeSettings {
        deterministic: true,
        memory_reservation: 4 << 30,
        memory_guard: 64 << 10,
        threads: true,
    };

    #[test]
    fn a_request_reads_back_and_anything_else_is_refused() {
        let request =
            Request { code: CODE, memory_bytes: 1 << 33, cpu_seconds: 7, module_bytes: 3 };
        let read = Request::read(&mut &request.to_bytes()[..]).unwrap();
        assert_eq!(read.code, CODE);
        assert_eq!((read.memory_bytes, read.cpu_seconds, read.module_bytes), (1 << 33, 7, 3));
        assert!(Request::read(&mut &b"(module)"[..]).is_err());
        assert!(Request::read(&mut &[b'x'; 64][..]).is_err());
    }

    #[test]
    fn a_program_that_cannot_be_started_is_named() {
        let process = CompilerProcess { program: "no-such-program".into(), ..Default::default() };
        let error = compile(&process, CODE, b"").err().unwrap();
        assert_eq!(error.code, "compiler_unavailable");
        assert!(error.detail.contains("no-such-program"));
    }

    #[cfg(unix)]
    #[test]
    fn a_process_that_gives_nothing_or_never_ends_is_stopped() {
        let run = |program: &str, args: &[&str], time| {
            let process = CompilerProcess {
                program: program.into(),
                args: args.iter().map(Into::into).collect(),
                time,
                ..CompilerProcess::default()
            };
            compile(&process, CODE, b"").err().unwrap().code
        };
        // Only what never ends may meet its limit: on a busy machine even `true` may take longer than the short one.
        let (short, long) = (Duration::from_millis(300), Duration::from_secs(60));
        assert_eq!(run("/bin/sleep", &["1000"], short), "compile_timeout");
        assert_eq!(run("/bin/true", &[], long), "compile_limit");
        assert_eq!(run("/bin/echo", &["hello"], long), "compile_limit");
    }
}
