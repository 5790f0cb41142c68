//! The least that a program for a small device needs: a host that admits a signed pack and calls its
//! kernels on WAMR. There is no engine, no server and no compiler in it.
//!
//! ```text
//! cargo build --release -p ruvllm-host --example embedded-host --no-default-features --features wamr
//! target/release/examples/embedded-host kernel-packs/core/dist /usr/lib/libiwasm.so
//! ```
//!
//! With the feature `wamr-bundled` it needs no library, and `--profile small` in place of `--release` makes it a third
//! smaller. It prints what it has of memory after each step, where the system tells.
#![forbid(unsafe_code)]

use ruvllm_host::{
    DeviceClass, ExecutorKind, Host, HostConfig, OpCall, OpKey, Operand, Resident, Scope,
    WamrConfig,
};
use ruvllm_signing::{PackLimits, TrustPolicy, UnverifiedPack};
use std::error::Error;
use std::path::{Path, PathBuf};
use std::time::Instant;

/// Columns of the rows that are normalised.
const DIM: u32 = 1024;

fn main() -> Result<(), Box<dyn Error>> {
    let mut args = std::env::args_os().skip(1);
    let Some(pack) = args.next() else {
        return Err("usage: embedded-host PACK-DIRECTORY [LIBIWASM]".into());
    };
    let library = args.next().map(PathBuf::from);
    if library.is_none() && !cfg!(feature = "wamr-bundled") {
        return Err(
            "there is no WAMR in this build: give the path of a libiwasm behind the pack".into()
        );
    }
    report("at the start");

    let wamr = WamrConfig { library, compiler: None };
    // A strict host has no native code stand in for a kernel that fails.
    let host = Host::new(HostConfig {
        executor: Some(ExecutorKind::Wamr),
        wamr,
        strict: true,
        ..DeviceClass::Embedded.config()
    })?;
    report("with a host");

    let read = UnverifiedPack::read_dir(Path::new(&pack), &PackLimits::default())?;
    let installed = host.install(read.verify(&TrustPolicy::builtin(), None)?)?;
    println!("{} kernels of {} admitted", installed.kernels.len(), installed.pack);
    report("with the pack");

    // A worker belongs to a thread. Weights are uploaded to an instance once; rows of one client are one
    // scope.
    let (mut worker, snapshot) = (host.worker()?, host.snapshot());
    let slot = snapshot.slot(&OpKey::rmsnorm_f32()).ok_or("the pack has no rmsnorm")?;
    let x: Vec<f32> = (0..DIM).map(|i| (i % 17) as f32 - 8.0).collect();
    let weight = Resident::from_f32(&[1.0; DIM as usize]);
    let scope = Scope::unique();
    let mut y = vec![0; x.len() * 4];
    let mut times = Vec::new();
    for _ in 0..64 {
        let constant = Operand::Resident(&weight, 0..y.len());
        let call = OpCall::rmsnorm(Operand::f32(&x), constant, 1, DIM, 1e-5).within(scope);
        let begun = Instant::now();
        worker.call(&snapshot, slot, &call, &mut y)?;
        times.push(begun.elapsed());
    }
    times.sort();
    println!(
        "rmsnorm of {DIM} numbers: {:?} a call, first number {}",
        times[32],
        f32::from_le_bytes([y[0], y[1], y[2], y[3]])
    );
    report("after calls");
    Ok(())
}

/// Prints the resident set, and what of it is no file.
fn report(when: &str) {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let field = |name: &str| {
        let line = status.lines().find_map(|line| line.strip_prefix(name))?;
        Some(line.trim().to_owned())
    };
    if let (Some(resident), Some(own)) = (field("VmRSS:"), field("RssAnon:")) {
        println!("{when}: {resident} resident, {own} of it not from files");
    }
}
