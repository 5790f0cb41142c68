//! The kernels of a pack each begin with as much memory as the gate lets them, fill it before their first
//! call, and are called on many threads.

use super::{LATER, config};
use ruvllm_host::{Host, HostConfig, OpCall, OpKey, Operand, Scope, Worker};
use ruvllm_native::judge::Tolerance;
use ruvllm_tests::wat::{Module, rmsnorm_f32};
use ruvllm_tests::{PackBuilder, TestPack};

const MIB: usize = 1 << 20;
const WORKERS: usize = 6;

/// A pack whose kernel has so many pages of memory, and writes to each.
fn greedy(pages: u32) -> TestPack {
    let bytes = pages << 16;
    let module = Module {
        memory: format!(r#"(memory (export "memory") {pages} {pages})"#),
        // Behind it lie the host's regions alone.
        heap_base: bytes - (1 << 20),
        fields: format!(
            r#"(func (export "kernel_init") (param i32 i32) (result i32) (local $at i32)
                 (loop $fill
                   (i32.store8 (local.get $at) (i32.const 1))
                   (local.set $at (i32.add (local.get $at) (i32.const 4096)))
                   (br_if $fill (i32.lt_u (local.get $at) (i32.const {bytes}))))
                 (i32.const 0))"#
        ),
        ..Module::default()
    };
    PackBuilder::new()
        .kernel("rmsnorm_f32", rmsnorm_f32(&module))
        .manifest(|m| m.kernels[0].resource_limits.max_memory_pages = pages)
        .build()
}

fn limited(kernel_memory: usize) -> Host {
    Host::new(HostConfig { kernel_memory, ..config() }).unwrap()
}

/// Calls of one row and of several by every worker, each of a client of its own, as they are answered.
fn answers(host: &Host, workers: &mut [Worker], each: &mut impl FnMut()) -> Vec<Vec<u8>> {
    let snap = host.snapshot();
    let slot = snap.slot(&OpKey::rmsnorm_f32()).unwrap();
    let x: Vec<f32> = (0..3 * LATER).map(|i| (i % 13) as f32 - 6.0).collect();
    let weight = vec![0.75; LATER as usize];
    let mut all = Vec::new();
    for worker in workers {
        for rows in [1, 3] {
            let x = &x[..(rows * LATER) as usize];
            let (a, b) = (Operand::f32(x), Operand::f32(&weight));
            let call = OpCall::rmsnorm(a, b, rows, LATER, 1e-5).within(Scope::unique());
            let mut y = vec![0; x.len() * 4];
            worker.call(&snap, slot, &call, &mut y).unwrap();
            all.push(y);
            each();
        }
    }
    all
}

#[test]
fn the_count_stays_below_the_limits_and_every_call_is_answered() {
    let host = limited(96 * MIB);
    host.install(greedy(256).verify().unwrap()).unwrap();
    let mut workers: Vec<Worker> = (0..WORKERS).map(|_| host.worker().unwrap()).collect();
    let native = limited(96 * MIB);
    let mut others: Vec<Worker> = (0..WORKERS).map(|_| native.worker().unwrap()).collect();
    let want = answers(&native, &mut others, &mut || {});
    let (mut most, near) = (0, Tolerance { rel: 1e-5, abs: 1e-6 });
    for _ in 0..3 {
        let got = answers(&host, &mut workers, &mut || most = most.max(host.kernel_memory().used));
        assert_eq!(got.len(), want.len());
        for (got, want) in got.iter().zip(&want) {
            let number = |b: &[u8]| f32::from_le_bytes([b[0], b[1], b[2], b[3]]);
            let pairs = got.chunks_exact(4).map(number).zip(want.chunks_exact(4).map(number));
            for (got, want) in pairs {
                assert!(near.holds(got.into(), want.into()), "{got} for {want}");
            }
        }
    }
    // Four instances of 16 MiB are three quarters of what all packs may have, a little less.
    let memory = host.kernel_memory();
    assert!(most > 60 * MIB && most <= memory.pack_limit, "{most} of {memory:?}");
    let kernel = host.stats().into_iter().find(|stats| stats.kernel == "rmsnorm_f32").unwrap();
    assert!(kernel.calls > 0 && kernel.failures["pack_memory_full"] > 0, "{kernel:?}");
    assert!(!kernel.quarantined, "others' memory is no fault of a kernel's");
    drop(workers);
    assert_eq!(host.kernel_memory().used, 0);
}

#[test]
fn what_never_fits_is_refused_before_it_is_compiled() {
    let error = limited(16 * MIB).install(greedy(256).verify().unwrap()).unwrap_err();
    assert_eq!(error.code(), "pack_memory_over_limit");
}

#[cfg(target_os = "linux")]
#[test]
fn the_process_takes_no_more_than_what_is_counted() {
    // Of the limit of the address space that is resident; other tests take their share meanwhile, so
    // that this one has a process of its own.
    if std::env::var_os("RUVLLM_RESIDENT").is_none() {
        let test =
            "kernels::takes_all_the_memory_it_may::the_process_takes_no_more_than_what_is_counted";
        let program = std::env::current_exe().unwrap();
        let mut child = std::process::Command::new(program);
        let run = child.args([test, "--exact"]).env("RUVLLM_RESIDENT", "1").output().unwrap();
        let said = String::from_utf8_lossy(&run.stdout);
        assert!(run.status.success() && said.contains("1 passed"), "{said}");
        return;
    }
    let resident = || {
        let status = std::fs::read_to_string("/proc/self/status").unwrap();
        let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).unwrap();
        line.trim().trim_end_matches(" kB").parse::<usize>().unwrap() << 10
    };
    let host = limited(96 * MIB);
    host.install(greedy(256).verify().unwrap()).unwrap();
    let before = resident();
    let mut workers: Vec<Worker> = (0..WORKERS).map(|_| host.worker().unwrap()).collect();
    answers(&host, &mut workers, &mut || {});
    let (more, counted) = (resident().saturating_sub(before), host.kernel_memory().used);
    assert!(more <= counted + 8 * MIB, "{more} bytes are resident, {counted} counted");
}
