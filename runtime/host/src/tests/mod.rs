//! Behaviour of the host as a whole, on kernels written for the purpose.

mod admission;
mod backward;
mod caching;
mod classes;
#[cfg(feature = "supervisor")]
mod crashing;
#[cfg(feature = "supervisor")]
mod delivering;
mod executors;
mod faults;
#[cfg(all(unix, feature = "supervisor"))]
mod full_disk;
mod generic;
mod isolation;
mod layers;
mod learning;
mod lifecycle;
mod memory;
mod model;
mod running;
#[cfg(feature = "supervisor")]
mod supervising;
mod swapping;
mod team;
mod threads;

use crate::{
    CallError, DeviceClass, ExecutorKind, Host, HostConfig, OpCall, OpKey, OpStats, Operand,
    RegistrySnapshot, Scope, WamrConfig, Worker,
};
use ruvllm_abi::{DType, Op};
use ruvllm_native::judge::{Called, Judge, Tolerance, Verdict};
use ruvllm_tests::wat::{Module, but_for, rmsnorm_f32};
use ruvllm_tests::{PackBuilder, TestPack, wamr};

/// The configuration of a host, on the executor that this run of the tests is for.
fn config() -> HostConfig {
    if !wamr::is_taken() {
        return HostConfig::default();
    }
    HostConfig {
        executor: Some(ExecutorKind::Wamr),
        wamr: WamrConfig { library: wamr::library(), compiler: wamr::compiler() },
        // As much memory as on Wasmtime, so that calls are cut in the same places.
        instance_memory: None,
        ..DeviceClass::Embedded.config()
    }
}

const BUILD: wamr::Build =
    wamr::Build { wamr: cfg!(feature = "wamr"), bundled: cfg!(feature = "wamr-bundled") };

#[test]
fn what_holds_on_wasmtime_holds_on_wamr() {
    again_on_wamr(wamr::Mode::Interpreted);
}

#[test]
fn what_holds_on_wasmtime_holds_of_compiled_kernels_on_wamr() {
    again_on_wamr(wamr::Mode::Compiled);
}

fn again_on_wamr(mode: wamr::Mode) {
    // Not `isolation`, which looks into memories that are set back, nor what knows no executors: `layers`, `learning`,
    // `swapping`, `supervising`, `delivering`.
    let files =
        ["admission", "backward", "caching", "classes", "faults", "generic", "memory", "running"]
            .map(|file| format!("tests::{file}::"));
    let files: Vec<&str> = files.iter().map(String::as_str).collect();
    // WAMR tells no functions and no addresses, and has other versions than Wasmtime.
    let mut except = vec![
        "a_trap_is_told_with_its_function",
        "a_trap_tells_the_access",
        "kernels_for_other_executors",
        // A deterministic host makes no other code there, and chooses among no kernels with vectors.
        "whatever_changes_the_code_or_its_limits",
        "deterministic_mode_takes_the_variant",
    ];
    if mode == wamr::Mode::Compiled {
        // Compiled code runs in less time than it takes to make an instance.
        except.push("a_kernel_that_is_fast_in");
    }
    wamr::run_again(BUILD, mode, &files, &except);
}

/// A pack with one kernel `rmsnorm_f32`.
fn pack(module: &Module) -> TestPack {
    PackBuilder::new().kernel("rmsnorm_f32", rmsnorm_f32(module)).build()
}

/// A kernel that is right, but for calls of `dim` columns, where it does something in the end.
fn spoiled_for(dim: u32, instructions: &str) -> Module {
    let epilogue =
        format!("(if (i32.eq (local.get $dim) (i32.const {dim})) (then {instructions}))");
    Module { epilogue, ..Module::default() }
}

fn host(config: HostConfig, pack: &TestPack) -> Host {
    let host = Host::new(config).unwrap();
    host.install(pack.verify().unwrap()).unwrap();
    host
}

fn refusal(pack: &TestPack) -> &'static str {
    let host = Host::new(config()).unwrap();
    let error = host.install(pack.verify().unwrap()).unwrap_err();
    assert_eq!(host.generation(), 1, "a refused pack opens no generation");
    error.code()
}

/// Rows of distinct numbers.
fn input(rows: u32, dim: u32) -> (Vec<f32>, Vec<f32>) {
    let x = (0..rows * dim).map(|i| ((i * 37 % 101) as f32 - 50.0) / 25.0).collect();
    let weight = (0..dim).map(|i| 0.5 + (i % 7) as f32 / 4.0).collect();
    (x, weight)
}

/// The scope of calls that a kernel may remember, as those of one client.
const ONE: Scope = Scope::of(&[1; 32]);

/// Calls `rmsnorm` on [`input`] and holds the result against the oracle.
fn rmsnorm(
    worker: &mut Worker,
    snap: &RegistrySnapshot,
    rows: u32,
    dim: u32,
) -> Result<(), CallError> {
    let (x, weight) = input(rows, dim);
    rmsnorm_with(worker, snap, rows, dim, Operand::f32(&x), Operand::f32(&weight))
}

fn rmsnorm_with(
    worker: &mut Worker,
    snap: &RegistrySnapshot,
    rows: u32,
    dim: u32,
    x: Operand<'_>,
    weight: Operand<'_>,
) -> Result<(), CallError> {
    let slot = snap.slot(&OpKey::rmsnorm_f32()).unwrap();
    let call = OpCall::rmsnorm(x, weight, rows, dim, 1e-5).within(ONE);
    let mut got = vec![0; (rows * dim * 4) as usize];
    worker.call(snap, slot, &call, &mut got)?;
    assert_rmsnorm(&call, &got);
    Ok(())
}

/// Holds what a call of `rmsnorm` gave against the oracle.
#[track_caller]
fn assert_rmsnorm(call: &OpCall<'_>, got: &[u8]) {
    let (op, f32s) = (Op::RmsNorm, [DType::F32; 2]);
    let variant = op.contract().variants.iter().find(|variant| variant.inputs == f32s).unwrap();
    let (a, b) = (call.a.bytes().unwrap(), call.b.bytes().unwrap());
    let judge = Judge::new(op, variant).with_author(Some(Tolerance { rel: 1e-5, abs: 0.0 }));
    let verdict = judge.check(Called { a, b, words: call.words.as_slice() }, got);
    assert!(matches!(verdict, Ok(Verdict::Right(_))), "{verdict:?}");
}

fn stats(host: &Host, kernel: &str) -> OpStats {
    host.stats().into_iter().rev().find(|stats| stats.kernel == kernel).unwrap()
}
