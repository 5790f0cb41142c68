use super::packed::{BLOCK, LINE, Layout, PANEL};
use super::*;
use crate::judge::team::{TeamBuffers, check_product};
use crate::judge::{Wrong, encode, random_blocks, scales};
use crate::ops::testing::noise;
use crate::quant::{self, CHUNK, Unpacked, chunk_bytes, dequantize_row_with};
use crate::random::Random;
use ruvllm_abi::team::GROUP;

/// Weights of a type: blocks of random bits, or numbers within ±1.
fn random_weights(dtype: DType, elems: usize, seed: u64) -> Vec<u8> {
    let blocks = random_blocks(&mut Random::new(seed), elems, dtype);
    blocks.unwrap_or_else(|| encode(dtype, &noise(elems, seed)).unwrap())
}

/// How a product is computed in a test.
#[derive(Clone, Copy)]
enum Path {
    /// As callers do.
    Dispatched(Isa),
    /// As a processor with other 8-bit dot products would, from panels or not.
    Variant(&'static Variant, bool),
    /// As callers do who allow products as bf16.
    Bf16,
    /// From panels, as callers do where that is supported.
    Packed(Isa),
}

/// 8-bit dot products that no processor of this machine's has: what they compute, in other steps.
struct Variant {
    name: &'static str,
    isa: Isa,
    run: fn(&ThreadPool, &mut [Product<'_>]),
}

#[cfg(target_arch = "x86_64")]
const VARIANTS: &[Variant] = &[
    Variant { name: "avx512-vnni", isa: Isa::Avx512, run: x86_avx512::run_model },
    Variant { name: "avx2-vnni", isa: Isa::Avx2, run: x86_avx2::run_model },
];
#[cfg(not(target_arch = "x86_64"))]
const VARIANTS: &[Variant] = &[];

/// Has the judge look at every element of a product, by weights that are decoded without vectors. Where activations
/// are read as bf16 the weights are rounded too, as the code under test does: of weights that are not, the judge
/// forgives the rounding, and errors as large as it.
fn judge(
    w: &Weights<'_>,
    act: &Activations,
    form: ActForm,
    y: &[f32],
    stride: usize,
) -> Result<(), Wrong> {
    let mut numbers = vec![0.0; w.rows() * w.cols()];
    for (i, row) in numbers.chunks_exact_mut(w.cols()).enumerate() {
        dequantize_row_with(Isa::Scalar, w.dtype(), w.row(i), row)?;
    }
    let dtype = if form == ActForm::Pairs { DType::BF16 } else { DType::F32 };
    let bytes = encode(dtype, &numbers)?;
    let w = Weights::new(dtype, w.rows(), w.cols(), &bytes)?;
    let mut buffers = TeamBuffers::default();
    let mut elements = (0..act.rows()).flat_map(|row| (0..w.rows()).map(move |col| [row, col]));
    elements.try_for_each(|at| {
        check_product(&w, act, form, at, y[at[0] * stride + at[1]], &mut buffers)
    })
}

/// Holds activations against those that they were made of: the same, rounded to bf16, or within half a step, with
/// what the rounding of the scale and of the quotient adds.
#[track_caller]
fn check_read(act: &Activations, form: ActForm, x: &[f32]) {
    let k = act.cols();
    let mut read = vec![0.0; k];
    for (row, x) in x.chunks(k).enumerate() {
        act.read_row(form, row, &mut read).unwrap();
        for (j, (read, x)) in read.iter().zip(x).enumerate() {
            let is_right = match form {
                ActForm::Floats => read == x,
                ActForm::Pairs => *read == half::bf16::from_f32(*x).to_f32(),
                ActForm::Ints => {
                    let chunk = &act.chunks()[row * act.chunk_stride() + j / CHUNK];
                    (read - x).abs() <= chunk.scale[j % CHUNK / GROUP] * 0.500_01 + 1e-43
                }
            };
            assert!(is_right, "{form:?}, row {row}, {j}: {x} became {read}");
        }
    }
}

/// Computes one product and has every element judged, and every activation that it reads.
#[track_caller]
fn check(pool: &ThreadPool, path: Path, dtype: DType, (m, n, k): (usize, usize, usize), seed: u64) {
    // One byte in front, so that nothing is aligned.
    let mut data = vec![0];
    data.extend(random_weights(dtype, n * k, seed));
    let mut x = noise(m * k, seed + 1);
    x.iter_mut().enumerate().for_each(|(i, x)| *x *= 10f32.powi((i / 32 % 5) as i32 - 2));

    let w = Weights::new(dtype, n, k, &data[1..]).unwrap();
    let mut act = Activations::new();
    let stride = n + 3;
    let mut y = vec![-7.5; (m - 1) * stride + n];
    let (form, name) = match path {
        Path::Dispatched(isa) => {
            act.prepare(pool, isa, &x, m, k, act.forms(isa, m, &[dtype])).unwrap();
            matmul(pool, isa, &w, &act, MatMut { data: &mut y, stride }).unwrap();
            (Plan::of(dtype, isa, m, false).form(), isa.name())
        }
        Path::Bf16 => {
            let isa = Isa::detect();
            act.allow_bf16(true);
            act.prepare(pool, isa, &x, m, k, act.forms(isa, m, &[dtype])).unwrap();
            matmul(pool, isa, &w, &act, MatMut { data: &mut y, stride }).unwrap();
            (Plan::of(dtype, isa, m, true).form(), "bf16")
        }
        Path::Variant(variant, from_panels) => {
            act.prepare(pool, variant.isa, &x, m, k, act.forms(variant.isa, m, &[DType::Q4_0]))
                .unwrap();
            let packed = PackedWeights::arranged(pool, false, &w).unwrap();
            let w = if from_panels { w.with_packed(&packed).unwrap() } else { w };
            let (isa, plan, job) = (variant.isa, Plan::Ints, Job { w, act: &act });
            let out = Out::new(MatMut { data: &mut y, stride }, m, n).unwrap();
            (variant.run)(pool, &mut [Product { isa, plan, job, out }]);
            (ActForm::Ints, variant.name)
        }
        Path::Packed(isa) => {
            let packed = PackedWeights::new(pool, isa, &w).unwrap();
            let w = w.with_packed(&packed).unwrap();
            act.prepare(pool, isa, &x, m, k, act.forms(isa, m, &[dtype])).unwrap();
            matmul(pool, isa, &w, &act, MatMut { data: &mut y, stride }).unwrap();
            (ActForm::Ints, "packed")
        }
    };

    let what = format!("{dtype} {name} m={m} n={n} k={k}");
    check_read(&act, form, &x);
    assert_eq!(judge(&w, &act, form, &y, stride), Ok(()), "{what}");
    let mut between = y.chunks(stride).flat_map(|row| row.get(n..).unwrap_or_default());
    assert!(between.all(|y| *y == -7.5), "{what}: wrote between the rows");
}

fn depths(dtype: DType) -> &'static [usize] {
    match dtype.layout().elems {
        1 => &[1, 63, 300, 1100],
        32 => &[32, 288, 512],
        _ => &[256, 768],
    }
}

#[test]
fn every_type_and_instruction_set_agrees_with_f64_for_odd_shapes() {
    let mut seed = 0;
    for threads in 1..=3 {
        let pool = ThreadPool::new(threads);
        for dtype in weight_types() {
            for &k in depths(dtype) {
                for &isa in Isa::available() {
                    for (m, n) in [(1, 37), (2, 5), (3, 1), (4, 16), (7, 19), (15, 33), (31, 70)] {
                        seed += 1;
                        check(&pool, Path::Dispatched(isa), dtype, (m, n, k), seed);
                    }
                }
            }
        }
    }
}

#[test]
fn panels_longer_than_the_cache_and_wide_batches_agree_with_f64() {
    let pool = ThreadPool::new(2);
    for (i, dtype) in
        [DType::Q8_0, DType::Q4_K, DType::Q6_K, DType::F16, DType::BF16].into_iter().enumerate()
    {
        for &isa in &Isa::available()[1..] {
            check(&pool, Path::Dispatched(isa), dtype, (45, 130, 3584), i as u64);
            if PackedWeights::pays(dtype, isa) {
                check(&pool, Path::Packed(isa), dtype, (45, 130, 3584), i as u64);
            }
        }
    }
}

#[test]
fn dot_products_that_the_dispatch_passes_over_agree_with_f64() {
    let pool = ThreadPool::new(2);
    let blocked = || weight_types().filter(|dtype| dtype.is_quantized());
    for variant in VARIANTS.iter().filter(|variant| variant.isa.is_available()) {
        for (i, dtype) in blocked().enumerate() {
            for &k in depths(dtype) {
                for (m, n) in [(1, 5), (3, 18), (8, 33), (33, 21)] {
                    for packed in [false, true] {
                        let path = Path::Variant(variant, packed);
                        check(&pool, path, dtype, (m, n, k), i as u64);
                    }
                }
            }
        }
    }
}

#[test]
fn products_as_bf16_agree_with_f64_of_rounded_numbers() {
    let pool = ThreadPool::new(2);
    let shapes = [(1, 5, 64), (6, 37, 63), (12, 32, 300), (31, 70, 1100), (45, 130, 2304)];
    for dtype in [DType::BF16, DType::F16] {
        for (i, shape) in shapes.into_iter().enumerate() {
            check(&pool, Path::Bf16, dtype, shape, i as u64);
        }
    }
}

#[test]
fn products_from_panels_agree_with_f64_for_odd_shapes() {
    let mut seed = 1000;
    for threads in 1..=3 {
        let pool = ThreadPool::new(threads);
        for dtype in weight_types().filter(|dtype| dtype.is_quantized()) {
            for &k in depths(dtype) {
                let shapes = [
                    (1, 37),
                    (1, 130),
                    (2, 5),
                    (5, 1),
                    (6, 33),
                    (7, 16),
                    (11, 17),
                    (15, 33),
                    (16, 17),
                    (31, 70),
                    (43, 33),
                ];
                for (m, n) in shapes {
                    seed += 1;
                    for &isa in Isa::available() {
                        check(&pool, Path::Packed(isa), dtype, (m, n, k), seed);
                    }
                }
            }
        }
    }
}

/// Element `e` of the row in `lane` of a panel, as an unsigned number: what the notes of `packed` say, perhaps of
/// two blocks side by side.
fn packed_element(dtype: DType, side_by_side: bool, panel: &[u8], lane: usize, e: usize) -> u8 {
    let layout = Layout::of(dtype);
    let (unit, e) = (e / (layout.blocks * BLOCK), e % (layout.blocks * BLOCK));
    let (block, e) = (e / BLOCK, e % BLOCK);
    let (group, byte) = (e / 4, 4 * lane + e % 4);
    let start = unit * layout.unit_bytes() + layout.header + block * layout.block_bytes();
    let line = |i: usize| panel[start + i * LINE + byte];
    if layout.low == 8 {
        return line(group);
    }
    if side_by_side {
        let start = start - block % 2 * layout.block_bytes() + group * LINE + 4 * lane;
        return panel[start + block % 2 * 2 + e % 2] >> (e % 4 / 2 * 4) & 15;
    }
    if layout.low == 6 {
        let line = |i: usize| line(group / 4 * 3 + i);
        return match group % 4 {
            3 => line(0) >> 6 | line(1) >> 6 << 2 | line(2) >> 6 << 4,
            i => line(i) & 63,
        };
    }
    let low = line(group / 2) >> (4 * (group % 2)) & 15;
    if layout.high == 0 { low } else { low | (line(4) >> group & 1) << 4 }
}

#[test]
fn a_panel_has_the_elements_of_its_rows() {
    let of_one = weight_types().filter(|dtype| dtype.is_quantized()).map(|dtype| (dtype, false));
    for (dtype, side_by_side) in of_one.chain([(DType::Q4_K, true)]) {
        for (rows, cols) in [(3, depths(dtype)[0]), (16, depths(dtype)[1])] {
            let data = random_weights(dtype, rows * cols, 5);
            let w = Weights::new(dtype, rows, cols, &data).unwrap();
            let packed = PackedWeights::arranged(&ThreadPool::new(1), side_by_side, &w).unwrap();
            let bytes = chunk_bytes(dtype);
            for lane in 0..PANEL {
                let row = w.row(lane.min(rows - 1));
                for from in (0..cols).step_by(CHUNK) {
                    let (mut chunk, mut unpacked) = (vec![0; bytes], Unpacked::ZERO);
                    let rest = &row[from / CHUNK * bytes..];
                    let there = rest.len().min(bytes);
                    chunk[..there].copy_from_slice(&rest[..there]);
                    quant::unpack(dtype, &chunk, &mut unpacked);
                    for (i, q) in unpacked.q.iter().enumerate().take(cols - from) {
                        let bias = if dtype == DType::Q8_0 { 128 } else { 0 };
                        let element =
                            packed_element(dtype, side_by_side, packed.panel(0), lane, from + i);
                        assert_eq!(i16::from(element), i16::from(*q) + bias, "{dtype} {lane} {i}");
                    }
                }
            }
            assert!(rows < 16 || packed.bytes() <= data.len() * 5 / 4, "{dtype}");
        }
    }
}

/// The bits of a deterministic product with `m` rows of activations: for all numbers of rows and threads
/// the same, of each row by itself.
fn bits_alike(isa: Isa, w: &Weights<'_>, x: &[f32], m: usize, pattern: ReadPattern) -> Vec<u32> {
    let (n, k) = (w.rows(), w.cols());
    let mut act = Activations::new();
    act.allow_bf16(true);
    act.set_deterministic(true);
    let mut product = |pool: &ThreadPool, x: &[f32]| {
        let rows = x.len() / k;
        pool.set_read_pattern(pattern);
        act.prepare(pool, isa, x, rows, k, act.forms(isa, rows, &[w.dtype()])).unwrap();
        let mut y = vec![0.0; rows * n];
        matmul(pool, isa, w, &act, MatMut { data: &mut y, stride: n }).unwrap();
        y.into_iter().map(f32::to_bits).collect::<Vec<_>>()
    };
    let one = ThreadPool::new(1);
    let alone: Vec<u32> = x[..m * k].chunks(k).flat_map(|x| product(&one, x)).collect();
    for threads in [1, 3] {
        let pool = ThreadPool::new(threads);
        for rows in (2..=17).chain([24, 33, m]) {
            let y = product(&pool, &x[..rows * k]);
            assert!(y == alone[..rows * n], "{} {isa} {threads} {rows}", w.dtype());
        }
    }
    alone
}

#[test]
fn rows_streams_and_threads_change_no_bit_of_a_deterministic_product() {
    let (n, k, m) = (83, 768, 41);
    let x = noise(m * k, 11);
    for dtype in weight_types() {
        let data = random_weights(dtype, n * k, 12);
        let w = Weights::new(dtype, n, k, &data).unwrap();
        for &isa in Isa::available() {
            bits_alike(isa, &w, &x, m, ReadPattern::default());
            if !PackedWeights::pays(dtype, isa) {
                continue;
            }
            let packed = PackedWeights::new(&ThreadPool::new(1), isa, &w).unwrap();
            let w = w.with_packed(&packed).unwrap();
            let results = ReadPattern::ALL.map(|(_, of)| bits_alike(isa, &w, &x, m, of));
            assert!(results.iter().all(|bits| *bits == results[0]), "{dtype} {isa}");
        }
    }
}

#[cfg(target_arch = "x86_64")]
#[test]
fn products_of_bytes_have_the_same_bits_by_floats_or_by_strassens_algorithm_whatever_a_thread_takes_for_zero()
 {
    use super::kernels::int::sums;

    let (n, k, pool) = (37, 576, ThreadPool::new(1));
    let random = random_weights(DType::Q8_0, n * k, 21);
    // By their row and their place in it; halves of blocks, and rows that are multiplied together, may differ in sign.
    type Number<T> = Option<fn(usize, usize) -> T>;
    let bytes: [Number<u8>; 6] = [
        None,
        Some(|_, _| 0x00),
        Some(|_, _| 0x7f),
        Some(|_, _| 0x80),
        Some(|_, _| 0xff),
        Some(|row, at| if row / 8 % 2 == 1 && at / 16 % 2 == 1 { 0x80 } else { 0x7f }),
    ];
    let signs: [Number<f32>; 4] = [
        None,
        Some(|_, _| 1.0),
        Some(|_, _| -1.0),
        Some(|row, at| if row % 2 == 1 && at / 16 % 2 == 0 { 1.0 } else { -1.0 }),
    ];
    for (b, byte) in bytes.into_iter().enumerate() {
        let mut data = random.clone();
        for (i, block) in data.chunks_exact_mut(DType::Q8_0.layout().bytes).enumerate() {
            for (at, to) in block[2..].iter_mut().enumerate() {
                *to = byte.map_or(*to, |byte| byte(i / (k / 32), at));
            }
        }
        let w = Weights::new(DType::Q8_0, n, k, &data).unwrap();
        for (s, sign) in signs.into_iter().enumerate() {
            for m in [17, 18, 20, 23, 41] {
                let mut x = noise(m * k, 22);
                for (i, to) in x.iter_mut().enumerate() {
                    *to = sign.map_or(*to, |sign| sign(i / k, i % k));
                }
                let mut act = Activations::new();
                let forms = act.forms(Isa::Avx2, m, &[DType::Q8_0]);
                act.prepare(&pool, Isa::Avx2, &x, m, k, forms).unwrap();
                let product = |kind| {
                    x86::SUMS.set(Some(kind));
                    let mut y = vec![0.0; m * n];
                    let out = MatMut { data: &mut y, stride: n };
                    matmul(&pool, Isa::Avx2, &w, &act, out).unwrap();
                    x86::SUMS.set(None);
                    y.into_iter().map(f32::to_bits).collect::<Vec<_>>()
                };
                let integers = product(sums::WIDE);
                for kind in [sums::FLOATS, sums::STRASSEN] {
                    assert!(product(kind) == integers, "kind {kind}, bytes {b}, signs {s}, {m}");
                    let flushed = x86::flushed_to_zero(|| product(kind));
                    assert!(flushed == integers, "kind {kind}, bytes {b}, signs {s}, {m}, flushed");
                }
            }
        }
    }
}

#[test]
fn the_largest_sums_of_a_block_are_exact() {
    let (pool, mut act) = (ThreadPool::new(1), Activations::new());
    let k = 512;
    // 127 times the largest scale that is a whole number of steps, 62, and one that is rounded up to 63.
    let (exact, rounded) = (127.0 * 62.0, 127.0 * 62.9);
    for (largest, form) in [
        (exact, ActForm::Floats),
        (-exact, ActForm::Floats),
        (rounded, ActForm::Ints),
        (-rounded, ActForm::Ints),
    ] {
        // As large as 8 bits hold, of one sign or of both in turn.
        for alternating in [false, true] {
            let x: Vec<f32> = (0..k)
                .map(|i| if alternating && i % 2 == 1 { -largest } else { largest })
                .collect();
            for dtype in weight_types().filter(|dtype| dtype.is_quantized()) {
                for byte in [0x00, 0xff, 0x80, 0x7f, 0x0f, 0xf0] {
                    let layout = dtype.layout();
                    let mut data = vec![byte; dtype.bytes_for(k).unwrap()];
                    for block in data.chunks_exact_mut(layout.bytes) {
                        for at in scales(dtype) {
                            block[*at..at + 2].copy_from_slice(&[0x00, 0x3c]);
                        }
                        if matches!(dtype, DType::Q4_K | DType::Q5_K) {
                            // The largest scales of blocks, too.
                            block[4..16].fill(0xff);
                        }
                    }
                    let w = Weights::new(dtype, 1, k, &data).unwrap();
                    for (isa, m) in Isa::available().iter().flat_map(|isa| [(*isa, 1), (*isa, 40)])
                    {
                        let packed = PackedWeights::new(&pool, isa, &w).unwrap();
                        let panels = w.with_packed(&packed).unwrap();
                        let x = x.repeat(m);
                        let forms = act.forms(isa, m, &[dtype]).and(ActForm::Floats.into());
                        act.prepare(&pool, isa, &x, m, k, forms).unwrap();
                        for w in [w, panels] {
                            let mut y = vec![0.0; m];
                            matmul(&pool, isa, &w, &act, MatMut { data: &mut y, stride: 1 })
                                .unwrap();
                            // What 8 bits hold exactly are the activations themselves.
                            let judged = judge(&w, &act, form, &y, 1);
                            assert_eq!(judged, Ok(()), "{dtype} {isa} {m} {byte:x}");
                        }
                    }
                }
            }
        }
    }
}

#[test]
fn read_patterns_are_measured_and_named() {
    for (name, pattern) in ReadPattern::ALL {
        assert_eq!((ReadPattern::named(name), pattern.name()), (Some(pattern), name));
    }
    assert_eq!(ReadPattern::named("3-near"), None);
    let pool = ThreadPool::new(2);
    let of = |isa, dtype| ReadRates::uniform_of(&pool, isa, dtype, 1 << 20);
    assert!(of(Isa::Scalar, DType::Q4_0).is_err());
    for dtype in [DType::Q4_0, DType::Q4_K, DType::Q8_0] {
        let rates = of(Isa::detect(), dtype).unwrap();
        assert!(rates.iter().all(|(_, rate)| rate > 1e4), "{rates:?}");
        assert!(rates.iter().any(|(pattern, _)| pattern == rates.best()));
    }
    assert_eq!(pool.read_pattern(), ReadPattern::default());
}

#[test]
fn every_pattern_reads_several_parts_of_the_weights_and_the_fastest_all_of_them() {
    let pool = ThreadPool::new(1);
    let fast = ReadPattern::named("4-near").unwrap();
    let mut read = Vec::new();
    let rates = ReadRates::measure(&pool, &[30 << 20; 7], |i| {
        read.push((pool.read_pattern().name(), i));
        if pool.read_pattern() != fast {
            std::thread::sleep(std::time::Duration::from_millis(2));
        }
        Ok::<(), ()>(())
    });
    assert_eq!(rates.unwrap().best(), fast);
    // The first only wakes the threads.
    assert_eq!(read.remove(0), (ReadPattern::default().name(), 0));
    for (name, _) in ReadPattern::ALL {
        let times =
            [0, 1, 2, 3, 4].map(|part| read.iter().filter(|at| **at == (name, part)).count());
        let all: usize = times.iter().sum();
        let enough =
            if all == 3 { times.iter().all(|n| *n <= 1) } else { times.iter().all(|n| *n >= 1) };
        assert!(enough && matches!(all, 3 | 9), "{name}: {times:?}");
        assert!(all == 9 || name != fast.name(), "{read:?}");
    }
    // Four other parts come between, or five.
    for (i, (_, part)) in read.iter().enumerate() {
        assert!(read[i + 1..].iter().take(4).all(|(_, other)| other != part), "{read:?}");
    }
    assert_eq!(pool.read_pattern(), ReadPattern::default());

    assert_eq!(ReadRates::measure(&pool, &[1], |_| Err("refused")).unwrap_err(), "refused");
    assert_eq!(pool.read_pattern(), ReadPattern::default());
    let nothing = ReadRates::measure(&pool, &[], |_| Ok::<(), ()>(())).unwrap();
    assert_eq!(nothing.best(), ReadPattern::default());
}

#[test]
fn panels_of_other_weights_are_refused() {
    let pool = ThreadPool::new(1);
    let (a, b) = ([0; 72], [0; 144]);
    let w = Weights::new(DType::Q4_0, 4, 32, &a).unwrap();
    let isa = Isa::detect();
    let packed = PackedWeights::new(&pool, isa, &w).unwrap();
    assert!(w.with_packed(&packed).is_ok());
    for other in [
        Weights::new(DType::Q4_0, 2, 64, &a).unwrap(),
        Weights::new(DType::Q4_0, 8, 32, &b).unwrap(),
    ] {
        assert_eq!(other.with_packed(&packed).unwrap_err().code(), "native_unsupported");
    }
    let w = Weights::new(DType::F32, 1, 18, &a).unwrap();
    assert_eq!(PackedWeights::new(&pool, isa, &w).unwrap_err().code(), "native_unsupported");
    assert!(!PackedWeights::pays(DType::F32, isa));
}

#[test]
fn weights_that_were_packed_for_other_instructions_are_refused() {
    let (pool, mut act) = (ThreadPool::new(1), Activations::new());
    let data = random_weights(DType::Q4_K, CHUNK, 1);
    let w = Weights::new(DType::Q4_K, 1, CHUNK, &data).unwrap();
    for (isa, side_by_side) in Isa::available().iter().flat_map(|isa| [(*isa, false), (*isa, true)])
    {
        let packed = PackedWeights::arranged(&pool, side_by_side, &w).unwrap();
        let w = w.with_packed(&packed).unwrap();
        act.prepare(&pool, isa, &[1.0; CHUNK], 1, CHUNK, act.forms(isa, 1, &[w.dtype()])).unwrap();
        let mut y = [7.0];
        let result = matmul(&pool, isa, &w, &act, MatMut { data: &mut y, stride: 1 });
        if side_by_side == PackedWeights::takes_side_by_side(w.dtype(), isa) {
            assert_eq!(result, Ok(()));
        } else {
            assert_eq!(result.unwrap_err().code(), "native_unsupported");
            assert_eq!(y, [7.0], "{isa} {side_by_side}");
        }
    }
}

#[test]
fn activations_serve_several_types_and_are_reused() {
    let pool = ThreadPool::new(2);
    let isa = Isa::detect();
    let mut act = Activations::new();
    for (m, k) in [(40, 512), (1, 256), (14, 768)] {
        let x = noise(m * k, 9);
        let types = [DType::Q4_K, DType::F16, DType::Q8_0];
        act.prepare(&pool, isa, &x, m, k, act.forms(isa, m, &types)).unwrap();
        assert_eq!((act.rows(), act.cols()), (m, k));
        for dtype in types {
            let data = random_weights(dtype, 20 * k, 10);
            let w = Weights::new(dtype, 20, k, &data).unwrap();
            let (mut shared, mut alone) = (vec![0.0; m * 20], vec![1.0; m * 20]);
            matmul(&pool, isa, &w, &act, MatMut { data: &mut shared, stride: 20 }).unwrap();
            let mut own = Activations::new();
            own.prepare(&pool, isa, &x, m, k, own.forms(isa, m, &[dtype])).unwrap();
            matmul(&pool, isa, &w, &own, MatMut { data: &mut alone, stride: 20 }).unwrap();
            assert_eq!(shared, alone);
        }
    }
}

#[test]
fn products_read_the_activations_that_they_are_given() {
    let (n, k, pool, isa) = (40, 512, ThreadPool::new(2), Isa::detect());
    let data = random_weights(DType::Q8_0, n * k, 12);
    let w = Weights::new(DType::Q8_0, n, k, &data).unwrap();
    for m in [1, 3, 40] {
        let product = |act: &Activations| {
            let mut y = vec![0.0; m * n];
            matmul(&pool, isa, &w, act, MatMut { data: &mut y, stride: n }).unwrap();
            y
        };
        let mut act = Activations::new();
        act.prepare(&pool, isa, &noise(m * k, 1), m, k, act.forms(isa, m, &[DType::Q8_0])).unwrap();
        let (first, copy) = (product(&act), act.clone());
        act.prepare(&pool, isa, &noise(m * k, 2), m, k, act.forms(isa, m, &[DType::Q8_0])).unwrap();
        let second = product(&act);
        assert_ne!(first, second);
        // What was laid out for the last product is for these no longer.
        assert_eq!((product(&copy), product(&act), product(&act)), (first, second.clone(), second));
    }
}

#[test]
fn products_have_the_same_bits_together_and_alone() {
    let k = 512;
    let matrices: Vec<(DType, usize, Vec<u8>)> = [
        (DType::Q8_0, 100),
        (DType::Q8_0, 1),
        (DType::Q4_K, 40),
        (DType::Q4_K, 333),
        (DType::Q6_K, 16),
        (DType::F16, 70),
        (DType::F32, 3),
        (DType::Q4_0, 33),
    ]
    .map(|(dtype, n)| (dtype, n, random_weights(dtype, n * k, n as u64)))
    .into();
    let weights: Vec<Weights<'_>> = matrices
        .iter()
        .map(|(dtype, n, data)| Weights::new(*dtype, *n, k, data).unwrap())
        .collect();
    let types: Vec<DType> = weights.iter().map(Weights::dtype).collect();
    let pools = [1, 3].map(ThreadPool::new);
    for &isa in Isa::available() {
        let packed: Vec<Option<PackedWeights>> = weights
            .iter()
            .map(|w| PackedWeights::new(&pools[0], isa, w).ok().filter(|_| isa != Isa::Scalar))
            .collect();
        let packed: Vec<Weights<'_>> = weights
            .iter()
            .zip(&packed)
            .map(|(w, packed)| packed.as_ref().map_or(*w, |of| w.with_packed(of).unwrap()))
            .collect();
        let check = |pool: &ThreadPool, weights: &[Weights<'_>], act: &Activations| {
            let m = act.rows();
            let [mut together, mut alone] = [(); 2].map(|()| -> Vec<Vec<f32>> {
                weights.iter().map(|w| vec![-7.5; m * (w.rows() + 2)]).collect()
            });
            let outputs = weights.iter().zip(&mut together);
            let mut products: Vec<Product<'_>> = outputs
                .map(|(w, y)| {
                    let y = MatMut { data: y, stride: w.rows() + 2 };
                    Product::new(isa, *w, act, y).unwrap()
                })
                .collect();
            matmul_all(pool, &mut products);
            for (w, y) in weights.iter().zip(&mut alone) {
                matmul(pool, isa, w, act, MatMut { data: y, stride: w.rows() + 2 }).unwrap();
            }
            let bits = |all: &[Vec<f32>]| -> Vec<u32> {
                all.iter().flatten().map(|y| y.to_bits()).collect()
            };
            assert!(bits(&together) == bits(&alone), "{isa} {} threads, {m} rows", pool.threads());
        };
        for (bf16, deterministic) in [(false, false), (true, false), (false, true)] {
            let mut act = Activations::new();
            act.allow_bf16(bf16);
            act.set_deterministic(deterministic);
            for m in [0, 1, 3, 16, 40] {
                let x = noise(m * k, 12);
                act.prepare(&pools[0], isa, &x, m, k, act.forms(isa, m, &types)).unwrap();
                for pool in &pools {
                    check(pool, &weights, &act);
                    for (_, pattern) in ReadPattern::ALL.iter().filter(|_| m == 1) {
                        pool.set_read_pattern(*pattern);
                        check(pool, &packed, &act);
                    }
                    check(pool, &packed, &act);
                }
            }
        }
    }
}

#[test]
fn activations_that_come_a_few_rows_at_a_time_are_those_that_come_at_once() {
    let pool = ThreadPool::new(2);
    let (mut act, mut parts) = (Activations::new(), Activations::new());
    for bf16 in [false, true] {
        act.allow_bf16(bf16);
        parts.allow_bf16(bf16);
        for (m, k) in [(40, 512), (1, 256), (14, 96)] {
            let x = noise(m * k, 10);
            let types = [DType::Q8_0, DType::F16, DType::F32];
            for &isa in Isa::available() {
                act.prepare(&pool, isa, &x, m, k, act.forms(isa, m, &types)).unwrap();
                let mut rest = parts.rows_mut(isa, m, k, parts.forms(isa, m, &types)).unwrap();
                let mut front = rest.split_off_front(m / 3);
                assert_eq!((front.rows(), rest.rows()), (m / 3, m - m / 3));
                let (x_front, x_rest) = x.split_at(m / 3 * k);
                rest.put(0, x_rest).unwrap();
                for (i, x) in x_front.chunks(4 * k).enumerate() {
                    front.put(4 * i, x).unwrap();
                }
                for dtype in types {
                    let data = random_weights(dtype, 20 * k, 11);
                    let w = Weights::new(dtype, 20, k, &data).unwrap();
                    let (mut want, mut got) = (vec![0.0; m * 20], vec![1.0; m * 20]);
                    matmul(&pool, isa, &w, &act, MatMut { data: &mut want, stride: 20 }).unwrap();
                    matmul(&pool, isa, &w, &parts, MatMut { data: &mut got, stride: 20 }).unwrap();
                    assert_eq!(got, want, "{isa} {dtype} {m}x{k}");
                }
            }
        }
    }
}

#[test]
fn every_instruction_set_quantises_activations_alike() {
    let pool = ThreadPool::new(1);
    let mut x = noise(2 * 700, 3);
    x.iter_mut().enumerate().for_each(|(i, x)| *x *= 2f32.powi(i as i32 / 16 - 40));
    x[..40].fill(0.0);
    x[64] = 1e-40;
    let prepared = |isa| {
        let mut act = Activations::new();
        act.prepare(&pool, isa, &x, 2, 700, act.forms(isa, 2, &[DType::Q8_0])).unwrap();
        act
    };
    let expected = prepared(Isa::Scalar);
    for &isa in Isa::available() {
        let act = prepared(isa);
        assert_eq!(act.chunks().len(), expected.chunks().len());
        for (a, b) in act.chunks().iter().zip(expected.chunks()) {
            assert_eq!((a.q, a.scale, a.sum, a.block_sum), (b.q, b.scale, b.sum, b.block_sum));
            assert_eq!((a.total, a.block_total), (b.total, b.block_total));
        }
    }
    check_read(&expected, ActForm::Ints, &x);
}

#[test]
fn scales_are_at_most_63_times_a_power_of_two_that_a_chunk_has_in_common() {
    let (pool, mut act) = (ThreadPool::new(1), Activations::new());
    // Largest scales from 32 to 64 times a power of two, beside others that are up to a million times smaller.
    for largest in (0..=4096).map(|i| 127.0 * (32.0 + i as f32 / 128.0)) {
        let mut x = noise(CHUNK, largest.to_bits().into());
        x.iter_mut().enumerate().for_each(|(i, x)| *x *= largest * 8f32.powi(-(i as i32 / 32)));
        x[17] = largest;
        act.prepare(&pool, Isa::detect(), &x, 1, CHUNK, ActForm::Ints.into()).unwrap();
        let [chunk] = act.chunks() else { panic!("{} chunks", act.chunks().len()) };
        let step = act::scale_step(&chunk.scale);
        assert_eq!(step.to_bits() << 9, 0, "{step} is no power of two");
        let steps = chunk.scale.map(|scale| scale / step);
        assert!(steps.iter().all(|n| n.fract() == 0.0 && (1.0..=63.0).contains(n)), "{steps:?}");
        assert!(steps[0] >= 32.0, "{steps:?}");
        check_read(&act, ActForm::Ints, &x);
    }
    // Nothing but zeros, and numbers that are as good as that.
    for (x, scale) in [(0.0, 0.0), (1e-40, 2f32.powi(-105))] {
        act.prepare(&pool, Isa::detect(), &[x; CHUNK], 1, CHUNK, ActForm::Ints.into()).unwrap();
        assert_eq!(act.chunks()[0].scale, [scale; CHUNK / GROUP]);
        assert_eq!(act::scale_step(&act.chunks()[0].scale), 2f32.powi(-105));
    }
}

#[test]
fn pairs_are_the_same_with_and_without_instructions_for_them() {
    let (pool, mut act) = (ThreadPool::new(2), Activations::new());
    let unkind = [f32::NAN, f32::INFINITY, f32::MIN, 1e-40, -1e-40, -0.0, f32::MIN_POSITIVE];
    for (m, k) in [(1, 1), (3, 63), (2, 700), (40, 257), (1, unkind.len())] {
        let x = if k == unkind.len() { unkind.to_vec() } else { noise(m * k, k as u64) };
        act.prepare(&pool, Isa::detect(), &x, m, k, ActForm::Pairs.into()).unwrap();
        let mut plain = vec![7; act.pair_stride()];
        for (x, pairs) in x.chunks(k).zip(act.pairs().chunks(act.pair_stride())) {
            act::round_plainly(x, &mut plain);
            assert_eq!(plain, pairs, "{m}x{k}");
        }
        if k != unkind.len() {
            check_read(&act, ActForm::Pairs, &x);
        }
    }
}

#[test]
fn a_form_that_was_not_asked_for_is_empty_and_not_what_an_earlier_input_left() {
    let (pool, mut act) = (ThreadPool::new(1), Activations::new());
    let forms = [ActForm::Floats, ActForm::Ints, ActForm::Pairs];
    let lengths = |act: &Activations| [act.floats().len(), act.chunks().len(), act.pairs().len()];
    assert_eq!(lengths(&act), [0; 3]);
    for form in forms.into_iter().chain(forms) {
        act.prepare(&pool, Isa::detect(), &noise(2 * 700, 1), 2, 700, form.into()).unwrap();
        for (other, length) in forms.into_iter().zip(lengths(&act)) {
            assert_eq!((length > 0, act.has(other)), (other == form, other == form));
        }
    }
}

#[test]
fn numbers_that_are_not_finite_do_not_panic() {
    let pool = ThreadPool::new(1);
    let several =
        [f32::NAN, f32::INFINITY, f32::NEG_INFINITY, f32::MAX, 1.0, -0.0, 1e-40, 2.0].repeat(32);
    // Rounded, each is -128.
    let least = vec![f32::from_bits(0x7fc0_0080); 256];
    for &isa in Isa::available() {
        for dtype in weight_types() {
            let data = vec![0xff; dtype.bytes_for(256).unwrap()];
            let w = Weights::new(dtype, 1, 256, &data).unwrap();
            let mut act = Activations::new();
            for x in [&several, &least] {
                act.prepare(&pool, isa, x, 1, 256, act.forms(isa, 1, &[dtype])).unwrap();
                matmul(&pool, isa, &w, &act, MatMut { data: &mut [0.0], stride: 1 }).unwrap();
            }
        }
    }
}

#[test]
fn hostile_sizes_are_refused() {
    let code = |result: Result<(), NativeError>| result.unwrap_err().code();
    let new = |dtype, rows, cols, len| Weights::new(dtype, rows, cols, &[0; 72][..len]).map(drop);
    assert_eq!(code(new(DType::Q4_0, 2, 64, 71)), "native_shape");
    assert_eq!(code(new(DType::Q4_0, 2, 65, 72)), "native_shape");
    assert_eq!(code(new(DType::Q4_0, 0, 64, 0)), "native_shape");
    assert_eq!(code(new(DType::F32, 1, 0, 0)), "native_shape");
    assert_eq!(code(new(DType::U8, 1, 64, 64)), "native_unsupported");
    assert_eq!(code(new(DType::F32, usize::MAX, usize::MAX, 72)), "native_shape");
    assert_eq!(code(new(DType::Q8_0, usize::MAX / 32, 32, 72)), "native_shape");

    let (pool, isa) = (ThreadPool::new(1), Isa::detect());
    let w = Weights::new(DType::Q4_0, 2, 64, &[0; 72]).unwrap();
    assert!(w.row(2).is_empty() && w.row(1).len() == 36);
    let mut act = Activations::new();
    assert_eq!(code(act.prepare(&pool, isa, &[0.0; 9], 3, 4, ActForms::NONE)), "native_shape");
    assert_eq!(code(act.prepare(&pool, isa, &[], usize::MAX, 4, ActForms::NONE)), "native_shape");
    assert_eq!(code(act.rows_mut(isa, usize::MAX, 4, ActForms::NONE).map(drop)), "native_shape");
    assert_eq!(
        code(act.rows_mut(isa, 0, usize::MAX, act.forms(isa, 0, &[DType::F32])).map(drop)),
        "native_shape"
    );
    let mut rows = act.rows_mut(isa, 3, 64, act.forms(isa, 3, &[DType::F32, DType::Q4_0])).unwrap();
    assert_eq!(rows.split_off_front(9).rows(), 3);
    assert_eq!(code(rows.put(0, &[0.0; 64])), "native_shape");
    let mut rows = act.rows_mut(isa, 3, 64, act.forms(isa, 3, &[DType::F32, DType::Q4_0])).unwrap();
    assert_eq!(code(rows.put(0, &[0.0; 65])), "native_shape");
    assert_eq!(code(rows.put(2, &[0.0; 128])), "native_shape");
    assert_eq!(code(rows.put(usize::MAX, &[0.0; 64])), "native_shape");
    act.rows_mut(isa, 3, 0, act.forms(isa, 3, &[DType::F32])).unwrap().put(0, &[]).unwrap();
    act.prepare(&pool, isa, &[0.0; 192], 3, 64, act.forms(isa, 3, &[DType::F32])).unwrap();
    let mut y = [0.0; 6];
    let mut product = |act: &Activations, len: usize, stride| {
        matmul(&pool, isa, &w, act, MatMut { data: &mut y[..len], stride })
    };
    assert_eq!(code(product(&act, 6, 2)), "native_unsupported");
    act.prepare(&pool, isa, &[0.0; 192], 3, 64, act.forms(isa, 3, &[DType::Q4_0])).unwrap();
    assert_eq!(product(&act, 6, 2), Ok(()));
    assert_eq!(code(product(&act, 5, 2)), "native_shape");
    assert_eq!(code(product(&act, 6, 1)), "native_shape");
    assert_eq!(code(product(&act, 6, usize::MAX)), "native_shape");
    act.prepare(&pool, isa, &[0.0; 192], 6, 32, act.forms(isa, 6, &[DType::Q4_0])).unwrap();
    assert_eq!(code(product(&act, 6, 2)), "native_shape");
    act.prepare(&pool, isa, &[], 0, 64, act.forms(isa, 0, &[DType::Q4_0])).unwrap();
    assert_eq!(product(&act, 0, 2), Ok(()));
}
