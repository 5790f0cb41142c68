//! Every kernel of the core pack against its native twin, at the shapes of real models: the twin with
//! the processor's widest vectors, and with vectors of 128 bits, which is all that WebAssembly has.
//!
//! All are called through the host, so that copies, checks and clocks cost the same: the policy
//! decides which one answers. The same comparison as a table, with ratios, is
//! `ruvllm-pack bench kernel-packs/core`.

use criterion::{BenchmarkId, Criterion, criterion_group, criterion_main};
use ruvllm_abi::{DType, Op};
use ruvllm_host::{
    Host, HostConfig, LoraDims, OpCall, OpKey, Operand, Policy, Resident, RopeDims, Scope, Words,
};
use ruvllm_native::{Isa, quant};
use ruvllm_signing::{PackLimits, TrustPolicy, UnverifiedPack};
use std::hint::black_box;
use std::path::Path;

/// Hosts that answer by the core pack, and by native twins.
fn hosts() -> Vec<(&'static str, Host)> {
    let mut hosts = vec![
        ("sandbox", Policy::SandboxFirst, Isa::detect()),
        ("native", Policy::NativeOnly, Isa::detect()),
    ];
    hosts.extend(Isa::narrow().map(|isa| ("native, 128 bits", Policy::NativeOnly, isa)));
    let host = |(name, policy, isa)| {
        let config = HostConfig { policy, isa, cross_check_every: 0, ..HostConfig::default() };
        let host = Host::new(config).expect("a host");
        let dist = Path::new(env!("CARGO_MANIFEST_DIR")).join("../kernel-packs/core/dist");
        let pack = UnverifiedPack::read_dir(&dist, &PackLimits::default())
            .and_then(|pack| pack.verify(&TrustPolicy::builtin(), None))
            .expect("the committed core pack");
        host.install(pack).expect("an admissible pack");
        (name, host)
    };
    hosts.into_iter().map(host).collect()
}

/// Extents of a call: its name, its params block, and elements of both inputs and the output.
struct Shape {
    name: String,
    words: Words,
    a: usize,
    b: usize,
    out: usize,
}

fn shapes(op: Op) -> Vec<Shape> {
    let none = || Operand::None;
    let row = |dim: u32, words: Words, b: usize| {
        let n = dim as usize;
        Shape { name: dim.to_string(), words, a: n, b, out: n }
    };
    match op {
        Op::RmsNorm => [2048, 4096]
            .map(|dim| row(dim, OpCall::rmsnorm(none(), none(), 1, dim, 1e-5).words, dim as usize))
            .into(),
        Op::SwiGlu => [5632, 11008]
            .map(|dim| row(dim, OpCall::swiglu(none(), none(), 1, dim).words, dim as usize))
            .into(),
        Op::KvPack => vec![row(4096, OpCall::kv_pack(none(), 1, 4096).words, 0)],
        Op::KvUnpack => vec![row(4096, OpCall::kv_unpack(none(), 1, 4096).words, 0)],
        Op::Rope => [64, 128]
            .map(|dim| {
                let dims = RopeDims { batch: 1, seq: 1, heads: 32, dim, dim_half: dim / 2 };
                let n = 32 * dim as usize;
                Shape {
                    name: format!("32 heads x {dim}"),
                    words: OpCall::rope(none(), none(), dims, 1e4, false).words,
                    a: n,
                    b: dim as usize,
                    out: n,
                }
            })
            .into(),
        Op::LoraApply => [4, 8, 16]
            .map(|rank| {
                let dims = LoraDims { rows: 1, in_dim: 2048, rank, out_dim: 2048 };
                Shape {
                    name: format!("2048 rank {rank}"),
                    words: OpCall::lora(none(), none(), dims, 0.5).words,
                    a: 2048,
                    b: 1024 * rank as usize * 4,
                    out: 2048,
                }
            })
            .into(),
    }
}

/// `n` numbers in -1..1 in a format.
fn numbers(dtype: DType, n: usize) -> Vec<u8> {
    let values: Vec<f32> = (0..n).map(|i| ((i * 7919) % 2001) as f32 / 1000.0 - 1.0).collect();
    let mut bytes = vec![0; dtype.bytes_for(n).expect("whole blocks")];
    quant::quantize_row(dtype, &values, &mut bytes).expect("a format that can be written");
    bytes
}

fn kernels(c: &mut Criterion) {
    let hosts = hosts();
    for op in Op::ALL {
        for variant in op.contract().variants {
            let mut group = c.benchmark_group(variant.kernel);
            for shape in shapes(op) {
                let a = numbers(variant.inputs[0], shape.a);
                let b = variant.inputs.get(1).map_or(Vec::new(), |dtype| numbers(*dtype, shape.b));
                let constant = Resident::from_bytes(&b);
                let mut out = vec![0; variant.output.bytes_for(shape.out).expect("whole blocks")];
                for (name, host) in &hosts {
                    let snapshot = host.snapshot();
                    let slot = snapshot.slot(&OpKey::of(op, variant)).expect("a known operation");
                    let mut worker = host.worker().expect("a worker");
                    let b = match op {
                        Op::SwiGlu => Operand::Bytes(&b),
                        Op::KvPack | Op::KvUnpack => Operand::None,
                        Op::Rope | Op::RmsNorm | Op::LoraApply => constant.all(),
                    };
                    let (a, words) = (Operand::Bytes(&a), shape.words);
                    let call = OpCall { a, b, words, scope: Some(Scope::unique()) };
                    group.bench_function(BenchmarkId::new(*name, &shape.name), |bench| {
                        bench.iter(|| {
                            worker.call(&snapshot, slot, black_box(&call), black_box(&mut out))
                        });
                    });
                }
            }
        }
    }
}

criterion_group!(benches, kernels);
criterion_main!(benches);
