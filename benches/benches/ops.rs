//! Native operations on every instruction set of this machine, at the shapes that a 1.1B model has
//! for one token, and attention over its cache. `cargo bench -p ruvllm-benches --bench ops`.
#![allow(missing_docs, reason = "criterion's macros make public functions")]

use criterion::{BatchSize, BenchmarkId, Criterion, Throughput, criterion_group, criterion_main};
use half::f16;
use ruvllm_abi::DType;
use ruvllm_native::attention::{AttnScratch, AttnShape, KvLayout, KvRows, KvSegment, attention};
use ruvllm_native::ops::{self, LoraShape, RopeShape};
use ruvllm_native::{Isa, ThreadPool};
use std::hint::black_box;

fn noise(n: usize) -> Vec<f32> {
    let mut state = 1u32;
    let mut next = || {
        state = state.wrapping_mul(747_796_405).wrapping_add(2_891_336_453);
        (state >> 8) as f32 / (1 << 23) as f32 - 1.0
    };
    (0..n).map(|_| next()).collect()
}

/// One benchmark per instruction set; `elems` is what throughput counts.
fn on_every_isa(c: &mut Criterion, group: &str, shape: &str, elems: usize, mut f: impl FnMut(Isa)) {
    let mut group = c.benchmark_group(group);
    group.throughput(Throughput::Elements(elems as u64));
    for &isa in Isa::available() {
        group.bench_function(BenchmarkId::new(isa.name(), shape), |b| b.iter(|| f(isa)));
    }
    group.finish();
}

fn norms(c: &mut Criterion) {
    for dim in [2048, 4096] {
        let (x, weight, mut y) = (noise(dim), noise(dim), vec![0.0; dim]);
        let shape = dim.to_string();
        on_every_isa(c, "rmsnorm_f32", &shape, dim, |isa| {
            ops::rmsnorm(isa, black_box(&x), &weight, 1e-5, &mut y).unwrap();
        });
        on_every_isa(c, "layernorm_f32", &shape, dim, |isa| {
            ops::layernorm(isa, black_box(&x), &weight, None, 1e-5, &mut y).unwrap();
        });
        let half: Vec<f16> = x.iter().map(|&x| f16::from_f32(x)).collect();
        let mut y = half.clone();
        on_every_isa(c, "rmsnorm_f16", &shape, dim, |isa| {
            ops::rmsnorm_f16(isa, black_box(&half), &weight, 1e-5, &mut y).unwrap();
        });
    }
}

fn rope(c: &mut Criterion) {
    for dim in [64, 128] {
        let (x, freqs, mut y) = (noise(32 * dim), noise(dim), vec![0.0; 32 * dim]);
        for (name, interleaved) in [("rope_f32", false), ("rope_f32_interleaved", true)] {
            let shape =
                RopeShape { batch: 1, seq: 1, heads: 32, dim, dim_half: dim / 2, interleaved };
            on_every_isa(c, name, &format!("32x{dim}"), 32 * dim, |isa| {
                ops::rope(isa, &shape, black_box(&x), &freqs, &mut y).unwrap();
            });
        }
    }
}

fn activations(c: &mut Criterion) {
    for n in [5632, 11008] {
        let (gate, up, mut y) = (noise(n), noise(n), vec![0.0; n]);
        on_every_isa(c, "swiglu_f32", &n.to_string(), n, |isa| {
            ops::swiglu(isa, black_box(&gate), &up, &mut y).unwrap();
        });
    }
    let row = noise(4096);
    let mut group = c.benchmark_group("softmax");
    group.throughput(Throughput::Elements(4096));
    for &isa in Isa::available() {
        group.bench_function(BenchmarkId::new(isa.name(), 4096), |b| {
            b.iter_batched_ref(
                || row.clone(),
                |x| ops::softmax(isa, x).unwrap(),
                BatchSize::SmallInput,
            );
        });
    }
    group.finish();
}

fn cache(c: &mut Criterion) {
    const N: usize = 4096;
    let (x, mut y) = (noise(N), vec![0.0; N]);
    let mut q8 = vec![0; DType::Q8_0.bytes_for(N).unwrap()];
    let mut q4 = vec![0; DType::Q4_0.bytes_for(N).unwrap()];
    on_every_isa(c, "kv_pack_q8", "4096", N, |isa| {
        ops::kv_pack_q8(isa, black_box(&x), &mut q8).unwrap();
    });
    on_every_isa(c, "kv_pack_q4", "4096", N, |isa| {
        ops::kv_pack_q4(isa, black_box(&x), &mut q4).unwrap();
    });
    on_every_isa(c, "kv_unpack_q8", "4096", N, |isa| {
        ops::kv_unpack_q8(isa, black_box(&q8), &mut y).unwrap();
    });
    on_every_isa(c, "kv_unpack_q4", "4096", N, |isa| {
        ops::kv_unpack_q4(isa, black_box(&q4), &mut y).unwrap();
    });
}

fn lora(c: &mut Criterion) {
    for rank in [2, 8, 16] {
        let shape = LoraShape { rows: 1, in_dim: 2048, rank, out_dim: 2048, scale: 1.0 };
        let ab = ops::lora_interleave(&shape, &noise(rank * 2048), &noise(rank * 2048)).unwrap();
        let (x, mut y) = (noise(2048), vec![0.0; 2048]);
        on_every_isa(c, "lora_apply_f32", &format!("2048 rank {rank}"), 2048, |isa| {
            ops::lora_apply(isa, &shape, black_box(&x), &ab, &mut y).unwrap();
        });
    }
}

/// Attention of one layer: 32 query heads over 4 KV heads of 64 elements.
fn attend(c: &mut Criterion) {
    let shape = AttnShape {
        heads: 32,
        kv_heads: 4,
        head_dim: 64,
        scale: 0.125,
        window: None,
        deterministic: false,
    };
    let (row, kv_row) = (shape.heads * shape.head_dim, shape.kv_heads * shape.head_dim);
    // Where scores lie far apart, most weights are too small to count.
    for (m, context, apart) in [(1, 512, 1.0), (1, 2000, 1.0), (512, 512, 1.0), (512, 512, 50.0)] {
        let shape = AttnShape { scale: shape.scale * apart, ..shape };
        let rows = noise(context * kv_row);
        let half: Vec<u8> = rows.iter().flat_map(|&x| f16::from_f32(x).to_le_bytes()).collect();
        let mut q8 = vec![0; DType::Q8_0.bytes_for(rows.len()).unwrap()];
        ops::kv_pack_q8(Isa::detect(), &rows, &mut q8).unwrap();
        let (q, mut y) = (noise(m * row), vec![0.0; m * row]);
        for (dtype, bytes) in [(DType::F16, &half), (DType::Q8_0, &q8)] {
            let kv = [KvSegment::tokens(dtype, context, bytes, bytes)];
            for threads in [1, 2] {
                let pool = ThreadPool::new(threads);
                let mut scratch = AttnScratch::new();
                let far = if apart == 1.0 { "" } else { " scores far apart" };
                let shape_name = format!("{dtype} m={m} context={context} threads={threads}{far}");
                on_every_isa(c, "attention 32/4 x 64", &shape_name, m, |isa| {
                    let (q, start) = (black_box(&q), context - m);
                    attention(&pool, isa, &shape, q, row, start, &kv, &mut y, &mut scratch)
                        .unwrap();
                });
            }
        }
    }
}

/// A cache in segments of `len` tokens; keys and values are the same bytes.
fn segments(
    dtype: DType,
    k_layout: KvLayout,
    len: usize,
    kv_row: usize,
    data: &[u8],
) -> Vec<KvSegment<'_>> {
    let pages = data.chunks(dtype.bytes_for(len * kv_row).unwrap()).enumerate();
    let segment = |(i, page)| KvSegment {
        start: i * len,
        len,
        keys: KvRows::new(dtype, k_layout, page),
        values: KvRows::new(dtype, KvLayout::Tokens, page),
    };
    pages.map(segment).collect()
}

/// The same over a cache in segments of 32 tokens, as a paged one has, and of several types.
fn attend_segments(c: &mut Criterion) {
    const DEPTH: usize = 4096;
    const BLOCK: usize = 32;
    let shape = AttnShape {
        heads: 32,
        kv_heads: 4,
        head_dim: 64,
        scale: 0.125,
        window: None,
        deterministic: false,
    };
    let (row, kv_row) = (shape.heads * shape.head_dim, shape.kv_heads * shape.head_dim);
    let rows = noise(DEPTH * kv_row);
    let half: Vec<u8> = rows.iter().flat_map(|&x| f16::from_f32(x).to_le_bytes()).collect();
    let mut q8 = vec![0; DType::Q8_0.bytes_for(rows.len()).unwrap()];
    ops::kv_pack_q8(Isa::detect(), &rows, &mut q8).unwrap();
    let mut q4 = vec![0; DType::Q4_0.bytes_for(rows.len()).unwrap()];
    ops::kv_pack_q4(Isa::detect(), &rows, &mut q4).unwrap();
    let (tokens, channels) = (KvLayout::Tokens, KvLayout::Channels);
    let plain = segments(DType::F16, tokens, BLOCK, kv_row, &half);
    let by_channels = segments(DType::Q4_0, channels, BLOCK, kv_row, &q4);
    let split = plain.len() - 4;
    let caches = [
        ("f16 in one", segments(DType::F16, tokens, DEPTH, kv_row, &half)),
        ("q4_0 by channels, then f16", [&by_channels[..split], &plain[split..]].concat()),
        ("f16", plain),
        ("q8_0", segments(DType::Q8_0, tokens, BLOCK, kv_row, &q8)),
        ("q4_0", segments(DType::Q4_0, tokens, BLOCK, kv_row, &q4)),
        ("q4_0 by channels", by_channels),
    ];
    let pool = ThreadPool::new(2);
    let mut scratch = AttnScratch::new();
    for m in [1, 512] {
        let (q, mut y) = (noise(m * row), vec![0.0; m * row]);
        for (name, kv) in &caches {
            let shape_name = format!("{name} m={m} context={DEPTH} threads=2");
            on_every_isa(c, "attention in segments 32/4 x 64", &shape_name, m, |isa| {
                let (q, start) = (black_box(&q), DEPTH - m);
                attention(&pool, isa, &shape, q, row, start, kv, &mut y, &mut scratch).unwrap();
            });
        }
    }
}

fn short() -> Criterion {
    // Thirty samples of half a second: the whole file runs in a few minutes.
    Criterion::default()
        .sample_size(30)
        .warm_up_time(std::time::Duration::from_millis(200))
        .measurement_time(std::time::Duration::from_millis(500))
}

criterion_group! {
    name = benches;
    config = short();
    targets = norms, rope, activations, cache, lora, attend, attend_segments
}
criterion_main!(benches);
