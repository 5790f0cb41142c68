//! What the core pack costs a starting host: read, verify, gate, compile, admit, publish.
//!
//! *Cold* compiles and proves every kernel; *warm* takes them from the cache of machine code, which
//! is what every start but the first does.

use criterion::{Criterion, criterion_group, criterion_main};
use ruvllm_host::{Host, HostConfig};
use ruvllm_signing::{PackLimits, TrustPolicy, UnverifiedPack};
use std::path::{Path, PathBuf};
use std::time::Duration;

fn install(cache_dir: Option<PathBuf>) -> Host {
    let dist = Path::new(env!("CARGO_MANIFEST_DIR")).join("../kernel-packs/core/dist");
    let host = Host::new(HostConfig { cache_dir, ..HostConfig::default() }).expect("a host");
    let pack = UnverifiedPack::read_dir(&dist, &PackLimits::default()).expect("a readable pack");
    let pack = pack.verify(&TrustPolicy::builtin(), None).expect("a signed pack");
    host.install(pack).expect("admissible kernels");
    host
}

fn start(c: &mut Criterion) {
    let mut group = c.benchmark_group("core pack");
    group.sample_size(10).measurement_time(Duration::from_secs(10));
    group.bench_function("cold", |b| b.iter(|| install(None)));
    let directory = tempfile::tempdir().expect("a directory");
    let cache = directory.path().join("cache");
    install(Some(cache.clone()));
    group.bench_function("warm", |b| b.iter(|| install(Some(cache.clone()))));
    group.finish();
}

criterion_group!(benches, start);
criterion_main!(benches);
