//! Every kernel of the core pack against its native twin, at the shapes of real models: the twin with
//! the processor's widest vectors, and with vectors of 128 bits, which is all that WebAssembly has.
//!
//! All are called through the host, so that copies, checks and clocks cost the same: the policy
//! decides which one answers. The same comparison as a table, with ratios, is
//! `ruvllm-pack bench kernel-packs/core`.

use criterion::{BenchmarkId, Criterion, criterion_group, criterion_main};
use ruvllm_abi::Op;
use ruvllm_host::{Host, HostConfig, OpCall, OpKey, Operand, Policy, Resident, Scope, Words};
use ruvllm_native::Isa;
use ruvllm_native::judge;
use ruvllm_native::random::Random;
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

fn kernels(c: &mut Criterion) {
    let hosts = hosts();
    for op in Op::ALL {
        for variant in op.contract().variants {
            let mut group = c.benchmark_group(variant.kernel);
            for case in judge::bench_cases(op, variant, &mut Random::new(1)) {
                let constant = Resident::from_bytes(&case.b);
                let words = Words::new(&case.words).expect("a params block");
                let mut out = vec![0; case.output];
                for (name, host) in &hosts {
                    let snapshot = host.snapshot();
                    let slot = snapshot.slot(&OpKey::of(op, variant)).expect("a known operation");
                    let mut worker = host.worker().expect("a worker");
                    let b = match variant.inputs.len() {
                        2 if judge::has_constant(op) => constant.all(),
                        2 => Operand::Bytes(&case.b),
                        _ => Operand::None,
                    };
                    let a = Operand::Bytes(&case.a);
                    let call = OpCall::new(a, b, words).within(Scope::unique());
                    group.bench_function(BenchmarkId::new(*name, &case.shape), |bench| {
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
