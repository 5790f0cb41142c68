//! What a call through the host costs beyond the kernel itself.
//!
//! Four measures, warm, on one thread: an entry point that copies its 64 bytes (the host's own
//! overhead: checks, descriptor, copies, the count; of calls as brief as that one in 64
//! is timed); the least that the engine needs for the same, which is the floor under it; RMSNorm of
//! one row of 2048 through the pack's kernel with a resident weight, and the native twin of the same
//! call, which the policy `native-only` gives. The difference between the last two is what the
//! sandbox costs.

use criterion::{Criterion, criterion_group, criterion_main};
use ruvllm_abi::{DType, KernelDescriptor, MAX_PARAM_WORDS, Region};
use ruvllm_benches::COPY;
use ruvllm_host::{Host, HostConfig, OpCall, OpKey, Operand, Policy, Resident, Scope, Words};
use ruvllm_signing::{PackLimits, TrustPolicy, UnverifiedPack};
use ruvllm_tests::{PackBuilder, custom_entry, wat};
use std::hint::black_box;
use std::path::Path;

const DIM: usize = 2048;

/// The engine alone, with the host's settings: a deadline is set, a descriptor, a params block and an
/// operand are written, the entry point is called, and the result is copied out.
fn engine_alone(c: &mut Criterion) {
    let mut settings = wasmtime::Config::new();
    settings.concurrency_support(false).epoch_interruption(true);
    let engine = wasmtime::Engine::new(&settings).expect("an engine");
    let module = wasmtime::Module::new(&engine, wat::assemble(COPY)).expect("a module");
    let mut store = wasmtime::Store::new(&engine, ());
    store.set_epoch_deadline(2);
    let instance = wasmtime::Instance::new(&mut store, &module, &[]).expect("an instance");
    let memory = instance.get_memory(&mut store, "memory").expect("a memory");
    let run = instance.get_typed_func::<u32, i32>(&mut store, "run").expect("the entry point");
    let region = |offset, size| Region { offset, size };
    let regions = KernelDescriptor {
        input_a: region(1024, 64),
        output: region(2048, 64),
        params: region(128, 4 * MAX_PARAM_WORDS as u32),
        ..KernelDescriptor::from_words([0; 10])
    };
    let descriptor = regions.to_words().map(u32::to_le_bytes).concat();
    let (params, x, mut y) = ([0u8; 4 * MAX_PARAM_WORDS], [1u8; 64], [0u8; 64]);
    c.bench_function("the engine alone, 16 floats", |b| {
        b.iter(|| {
            store.set_epoch_deadline(2);
            let bytes = memory.data_mut(&mut store);
            bytes[64..64 + descriptor.len()].copy_from_slice(&descriptor);
            bytes[128..128 + params.len()].copy_from_slice(&params);
            bytes[1024..1088].copy_from_slice(black_box(&x));
            let status = run.call(&mut store, 64).expect("it returns");
            y.copy_from_slice(&memory.data(&store)[2048..2112]);
            black_box(&mut y);
            status
        });
    });
}

/// The same through the host.
fn copy(c: &mut Criterion) {
    let module = wat::assemble(COPY);
    let pack = PackBuilder::new().entry(custom_entry("copy", "copy", "run"), module).build();
    let host = Host::new(HostConfig::default()).expect("a host");
    host.install(pack.verify().expect("a valid pack")).expect("an admissible kernel");
    let snap = host.snapshot();
    let slot = snap.slot(&OpKey::new("copy", [DType::F32], DType::F32)).expect("the kernel");
    let mut worker = host.worker().expect("a worker");
    let (x, mut y) = ([1f32; 16], [0u8; 64]);
    let scope = Some(Scope::unique());
    c.bench_function("copying kernel, 16 floats", |b| {
        b.iter(|| {
            let (a, b, words) = (Operand::f32(&x), Operand::None, Words::of([16]));
            let call = OpCall { scope, ..OpCall::new(a, b, words) };
            worker.call(&snap, slot, &call, &mut y)
        });
    });
}

/// RMSNorm of one row, by policy.
fn rmsnorm(c: &mut Criterion) {
    let dist = Path::new(env!("CARGO_MANIFEST_DIR")).join("../kernel-packs/core/dist");
    let policies = [("core pack", Policy::SandboxFirst), ("native twin", Policy::NativeOnly)];
    for (name, policy) in policies {
        let host = Host::new(HostConfig { policy, ..HostConfig::default() }).expect("a host");
        let pack = UnverifiedPack::read_dir(&dist, &PackLimits::default())
            .and_then(|pack| pack.verify(&TrustPolicy::builtin(), None))
            .expect("the committed core pack");
        host.install(pack).expect("an admissible pack");
        let snap = host.snapshot();
        let slot = snap.slot(&OpKey::rmsnorm_f32()).expect("the operation");
        let mut worker = host.worker().expect("a worker");
        let x: Vec<f32> = (0..DIM).map(|i| (i % 17) as f32 - 8.0).collect();
        let weight = Resident::from_f32(&vec![1.0; DIM]);
        let mut y = vec![0u8; DIM * 4];
        let scope = Scope::unique();
        c.bench_function(&format!("rmsnorm 1x{DIM}, {name}"), |b| {
            b.iter(|| {
                let x = Operand::f32(&x);
                let call = OpCall::rmsnorm(x, weight.all(), 1, DIM as u32, 1e-5).within(scope);
                worker.call(&snap, slot, &call, &mut y)
            });
        });
    }
}

criterion_group!(benches, engine_alone, copy, rmsnorm);
criterion_main!(benches);
