//! Matrix products of one weight matrix of a 1.1B model, `[5632, 2048]`, for every weight type and
//! instruction set: one activation row (a decoded token), 3 to 16 (as many sequences) and 512
//! (a prompt). Weights in blocks are read from panels, as a model's are.
//! Throughput is in weights multiplied, so that a type's lines divide to the gain over `scalar`;
//! the scalar path is measured on a few of the rows.

use criterion::{BenchmarkId, Criterion, Throughput, criterion_group, criterion_main};
use ruvllm_abi::DType;
use ruvllm_native::gemm::{Activations, MatMut, PackedWeights, Weights, matmul, weight_types};
use ruvllm_native::{Isa, ThreadPool};
use std::hint::black_box;

const ROWS: usize = 5632;
const COLS: usize = 2048;

/// Bits whose f16 and f32 readings are all finite; speed does not depend on the values.
fn weights(dtype: DType, rows: usize) -> Vec<u8> {
    let mut state = 1u32;
    let bytes = dtype.bytes_for(COLS).map_or(0, |row| row * rows);
    (0..bytes)
        .map(|_| {
            state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            (state >> 24) as u8 & 0x3f
        })
        .collect()
}

fn products(criterion: &mut Criterion) {
    let threads = std::thread::available_parallelism().map_or(1, usize::from);
    let pool = ThreadPool::new(threads);
    for m in [1, 3, 4, 5, 6, 7, 8, 12, 16, 512] {
        let x: Vec<f32> = (0..m * COLS).map(|i| (i * 7919 % 1000) as f32 / 500.0 - 1.0).collect();
        for dtype in weight_types() {
            let data = weights(dtype, ROWS);
            let mut group = criterion.benchmark_group(format!("gemm/{dtype}/m={m}"));
            group.sample_size(10);
            let mut measure = |name: &str, isa: Isa, w: &Weights<'_>| {
                let (mut act, mut y) = (Activations::new(), vec![0.0; m * w.rows()]);
                group.throughput(Throughput::Elements((m * w.rows() * COLS) as u64));
                group.bench_function(BenchmarkId::from_parameter(name), |bencher| {
                    bencher.iter(|| {
                        act.prepare(
                            &pool,
                            isa,
                            black_box(&x),
                            m,
                            COLS,
                            act.forms(isa, m, &[dtype]),
                        )
                        .and_then(|()| {
                            let y = MatMut { data: &mut y, stride: w.rows() };
                            matmul(&pool, isa, w, &act, y)
                        })
                        .expect("sizes agree");
                    });
                });
            };
            for &isa in Isa::available() {
                let rows = if isa == Isa::Scalar { ROWS / 128 } else { ROWS };
                let len = data.len() / ROWS * rows;
                let w = Weights::new(dtype, rows, COLS, &data[..len]).expect("sizes agree");
                if PackedWeights::pays(dtype, isa) {
                    let packed = PackedWeights::new(&pool, isa, &w).expect("memory");
                    measure(isa.name(), isa, &w.with_packed(&packed).expect("sizes agree"));
                } else {
                    measure(isa.name(), isa, &w);
                }
            }
        }
    }
}

criterion_group!(benches, products);
criterion_main!(benches);
