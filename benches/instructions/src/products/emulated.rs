//! Counts the instructions of a process by the log of QEMU, which emulates its processor.

use crate::program::{Failure, Product};
use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Command, Stdio};

const QEMU: &str = "qemu-aarch64";

/// No file has this name: a process that asks for it leaves the question in the log, which marks the start or
/// the end of what is counted.
const MARK: &str = "mark of ruvllm-instructions";

/// Calls `f`, whose instructions are counted by who reads the log.
pub(crate) fn marked(f: impl FnOnce()) {
    // Whether there is such a file does not matter.
    let _ = std::fs::exists(MARK);
    f();
    let _ = std::fs::exists(MARK);
}

/// Counts what `program`, which is this one, computes on an emulated processor.
///
/// # Errors
/// QEMU is missing, does not know the processor, or the program fails.
pub(crate) fn count(program: &Path, cpu: &str) -> Result<Vec<Product>, Failure> {
    let mut process = Command::new(QEMU)
        // A line for each block of code that runs, of one instruction each, and for each system call.
        .args(["-cpu", cpu, one_instruction()?, "-d", "exec,nochain,strace"])
        .arg(program)
        .args(std::env::args_os().skip(1))
        .arg("--marked")
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()?;
    let mut log = BufReader::new(process.stderr.take().ok_or("no log")?);
    let (mut counts, mut counting, mut steps) = (Vec::new(), false, 0);
    let (mut line, mut last) = (Vec::new(), String::new());
    while log.read_until(b'\n', &mut line)? > 0 {
        if line.starts_with(b"Trace ") {
            steps += 1;
        } else {
            last = String::from_utf8_lossy(&line).into_owned();
            if last.contains(MARK) {
                if counting {
                    counts.push(steps);
                }
                (counting, steps) = (!counting, 0);
            }
        }
        line.clear();
    }
    let output = process.wait_with_output()?;
    if !output.status.success() {
        let (program, status) = (program.display(), output.status);
        return Err(format!("{QEMU} {program}: {status}: {}", last.trim()).into());
    }
    let said = String::from_utf8(output.stdout)?;
    if said.lines().count() != counts.len() {
        return Err(
            format!("{} products in the log of {QEMU}, not as computed", counts.len()).into()
        );
    }
    said.lines().zip(counts).map(|(line, instructions)| Product::read(line, instructions)).collect()
}

/// The option that makes a block of each instruction, whose name is another in older versions.
fn one_instruction() -> Result<&'static str, Failure> {
    let help = Command::new(QEMU).arg("-h").output().map_err(|error| {
        format!("cannot start {QEMU}, which is part of QEMU's user mode emulation: {error}")
    })?;
    let names = ["-one-insn-per-tb", "-singlestep"];
    let help = String::from_utf8_lossy(&help.stdout);
    names.into_iter().find(|name| help.contains(name)).ok_or("this QEMU is too old".into())
}
