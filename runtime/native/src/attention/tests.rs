//! Attention against the oracle, over shapes, types, masks, segmentations and threads.

use super::*;
use crate::judge::{Tolerance, team::error_of};
use crate::ops::testing::noise;
use crate::{ops, oracle};
use ruvllm_abi::{DType, TeamOp};

/// What attention may be off by where the values that it sees are up to `largest`.
fn near(largest: f32) -> Tolerance {
    Tolerance { rel: 0.0, abs: error_of(TeamOp::Attention) * f64::from(largest) }
}

/// Stores rows of a cache in `dtype`; gives the bytes and what they stand for.
fn store(dtype: DType, x: &[f32]) -> (Vec<u8>, Vec<f32>) {
    let mut bytes = vec![0; dtype.bytes_for(x.len()).unwrap()];
    let mut back = x.to_vec();
    match dtype {
        DType::F32 => bytes.copy_from_slice(bytemuck::cast_slice(x)),
        DType::F16 => {
            for ((bytes, x), back) in bytes.as_chunks_mut().0.iter_mut().zip(x).zip(&mut back) {
                let half = ruvllm_abi::f32_to_f16(*x);
                *bytes = half.to_le_bytes();
                *back = ruvllm_abi::f16_to_f32(half);
            }
        }
        DType::Q8_0 => {
            ops::kv_pack_q8(Isa::Scalar, x, &mut bytes).unwrap();
            ops::kv_unpack_q8(Isa::Scalar, &bytes, &mut back).unwrap();
        }
        _ => {
            ops::kv_pack_q4(Isa::Scalar, x, &mut bytes).unwrap();
            ops::kv_unpack_q4(Isa::Scalar, &bytes, &mut back).unwrap();
        }
    }
    (bytes, back)
}

/// The type and the layout of keys or values.
type Kind = (DType, KvLayout);

/// Stores `[len, row]` random numbers; gives the bytes and what they stand for.
fn stored(len: usize, row: usize, (dtype, layout): Kind, seed: u64) -> (Vec<u8>, Vec<f32>) {
    if layout == KvLayout::Tokens {
        return store(dtype, &noise(len * row, seed));
    }
    // More tokens than are used: the rest of a block, and now and then another.
    let stored = match dtype.layout().elems {
        1 => len + len % 3,
        block => len.next_multiple_of(block) + len % 2 * block,
    };
    let (bytes, back) = store(dtype, &noise(row * stored, seed));
    let token = |token| back.iter().skip(token).step_by(stored.max(1)).copied();
    (bytes, (0..len).flat_map(token).collect())
}

struct Stored {
    start: usize,
    len: usize,
    k_kind: Kind,
    v_kind: Kind,
    k: Vec<u8>,
    v: Vec<u8>,
}

/// A cache in segments of `(len, kind of k, kind of v)` from position `start` on.
struct Cache {
    segments: Vec<Stored>,
    k: Vec<f32>,
    v: Vec<f32>,
    positions: Vec<usize>,
}

impl Cache {
    fn new(shape: &AttnShape, start: usize, parts: &[(usize, Kind, Kind)]) -> Cache {
        let row = shape.kv_heads * shape.head_dim;
        let mut cache = Cache { segments: vec![], k: vec![], v: vec![], positions: vec![] };
        let mut at = start;
        for &(len, k_kind, v_kind) in parts {
            let (k, k_back) = stored(len, row, k_kind, 2 * at as u64 + 1);
            let (v, v_back) = stored(len, row, v_kind, 2 * at as u64 + 2);
            cache.segments.push(Stored { start: at, len, k_kind, v_kind, k, v });
            cache.k.extend(k_back);
            cache.v.extend(v_back);
            cache.positions.extend(at..at + len);
            at += len;
        }
        cache
    }

    fn segments(&self) -> Vec<KvSegment<'_>> {
        let segment = |part| {
            let &Stored { start, len, k_kind, v_kind, ref k, ref v } = part;
            let rows = |(dtype, layout), data| KvRows::new(dtype, layout, data);
            KvSegment { start, len, keys: rows(k_kind, k), values: rows(v_kind, v) }
        };
        self.segments.iter().map(segment).collect()
    }
}

#[track_caller]
fn check(shape: &AttnShape, m: usize, q_pos: usize, start: usize, parts: &[(usize, Kind, Kind)]) {
    let cache = Cache::new(shape, start, parts);
    let row = shape.heads * shape.head_dim;
    let q: Vec<f32> = noise(m * row, 99).iter().map(|q| q * 4.0).collect();
    let want = oracle::attention(shape, &q, q_pos, &cache.k, &cache.v, &cache.positions);
    let largest = cache.v.iter().fold(0.0, |max: f32, v| max.max(v.abs()));
    // Rows further apart than they are long, with NaN between.
    let stride = row + 3;
    let mut spread = vec![f32::NAN; m * stride];
    for (to, q) in spread.chunks_mut(stride).zip(q.chunks(row)) {
        to[..row].copy_from_slice(q);
    }
    for isa in Isa::without_products() {
        for (threads, deterministic) in [(1, false), (2, false), (3, false), (2, true)] {
            let pool = ThreadPool::new(threads);
            let shape = &AttnShape { deterministic, ..*shape };
            let mut scratch = AttnScratch::new();
            // Twice with the same scratch: nothing of the first call may show.
            let rounds = if threads == 3 { 2 } else { 1 };
            for _ in 0..rounds {
                let mut y = vec![f32::NAN; m * row];
                attention(
                    &pool,
                    isa,
                    shape,
                    &spread,
                    stride,
                    q_pos,
                    &cache.segments(),
                    &mut y,
                    &mut scratch,
                )
                .unwrap();
                for (i, (y, want)) in y.iter().zip(&want).enumerate() {
                    assert!(
                        near(largest).holds(f64::from(*y), *want),
                        "{isa} x{threads} {shape:?} m={m} {parts:?}: element {i} is {y}, want {want}"
                    );
                }
            }
        }
    }
}

fn shape(heads: usize, kv_heads: usize, head_dim: usize, window: Option<usize>) -> AttnShape {
    AttnShape {
        heads,
        kv_heads,
        head_dim,
        scale: 1.0 / (head_dim as f32).sqrt(),
        window,
        deterministic: false,
    }
}

const F32: Kind = (DType::F32, KvLayout::Tokens);
const F16: Kind = (DType::F16, KvLayout::Tokens);
const Q8: Kind = (DType::Q8_0, KvLayout::Tokens);
const Q4: Kind = (DType::Q4_0, KvLayout::Tokens);

/// The same type by channels.
const fn channels((dtype, _): Kind) -> Kind {
    (dtype, KvLayout::Channels)
}

#[test]
fn decoding_agrees_with_the_oracle_for_every_grouping_and_head_size() {
    for (heads, kv_heads) in [(1, 1), (4, 4), (6, 2), (9, 3), (14, 2), (8, 1), (32, 4)] {
        for head_dim in [8, 33, 64, 80, 96, 128, 256] {
            for context in [1, 5, 64, 130] {
                check(
                    &shape(heads, kv_heads, head_dim, None),
                    1,
                    context - 1,
                    0,
                    &[(context, F16, F16)],
                );
            }
        }
    }
}

#[test]
fn every_pair_of_stored_types_works_in_place() {
    for k in [F32, F16, Q8, Q4] {
        for v in [F32, F16, Q8, Q4] {
            check(&shape(8, 2, 64, None), 1, 149, 0, &[(150, k, v)]);
            check(&shape(8, 2, 64, None), 20, 130, 0, &[(150, k, v)]);
        }
    }
}

#[test]
fn prefill_agrees_with_the_oracle_from_a_few_queries_to_many() {
    for (heads, kv_heads, head_dim) in [(8, 1, 64), (3, 3, 40), (9, 3, 64), (4, 2, 17)] {
        for m in [2, 3, 7, 16, 33, 100] {
            check(&shape(heads, kv_heads, head_dim, None), m, 0, 0, &[(m, F16, F16)]);
            check(&shape(heads, kv_heads, head_dim, None), m, 50, 0, &[(50 + m, F16, F16)]);
        }
    }
    check(&shape(2, 1, 64, None), 300, 0, 0, &[(300, F16, F16)]);
}

#[test]
fn a_window_hides_what_lies_before_it() {
    for window in [1, 2, 17, 64, 100, 1000] {
        for m in [1, 2, 30, 90] {
            check(&shape(8, 2, 32, Some(window)), m, 110, 0, &[(110 + m, F16, F32)]);
        }
    }
    check(&shape(2, 1, 32, Some(0)), 3, 4, 0, &[(7, F32, F32)]);
}

#[test]
fn segments_of_mixed_types_and_lengths_are_one_cache() {
    let parts = [
        (40, Q4, Q4),
        (64, Q8, Q4),
        (1, F16, F16),
        (33, F16, F32),
        (16, F32, F32),
        (0, F16, F16),
        (7, F16, F16),
    ];
    let context: usize = parts.iter().map(|part| part.0).sum();
    for m in [1, 4, 40] {
        check(&shape(8, 2, 64, None), m, context - m, 0, &parts);
        check(&shape(8, 2, 64, Some(50)), m, context - m, 0, &parts);
    }
    let pages = vec![(16, F16, F16); 20];
    check(&shape(4, 4, 32, None), 1, 319, 0, &pages);
    check(&shape(4, 4, 32, None), 70, 250, 0, &pages);
}

#[test]
fn every_type_works_by_channels_for_every_head_size() {
    for kind in [F32, F16, Q8, Q4] {
        for head_dim in [8, 32, 33, 64, 80, 128] {
            let shape = shape(8, 2, head_dim, None);
            for (m, context) in [(1, 130), (1, 160), (20, 149), (20, 160), (130, 149)] {
                check(&shape, m, context - m, 0, &[(context, channels(kind), F16)]);
                check(&shape, m, context - m, 0, &[(context, F16, channels(kind))]);
            }
        }
    }
}

#[test]
fn a_cache_of_blocks_by_channels_may_end_in_a_tail_by_tokens() {
    // Blocks of 32 tokens, the last of which are still plain.
    let (k8, k4) = (channels(Q8), channels(Q4));
    for head_dim in [32, 64, 128] {
        let mut parts = vec![(16, F16, F16), (32, k4, Q4), (32, k8, Q4), (32, k4, k4)];
        parts.extend([(7, k8, Q8), (32, k4, Q8), (32, Q4, Q4), (5, F16, F16)]);
        let context: usize = parts.iter().map(|part| part.0).sum();
        for window in [None, Some(1), Some(50), Some(101)] {
            for m in [1, 3, 40, 150] {
                check(&shape(8, 2, head_dim, window), m, context - m, 0, &parts);
            }
            check(&shape(8, 2, head_dim, window), 20, 70, 0, &parts);
        }
    }
    let f16 = [(32, channels(F16), F16), (32, F16, channels(F16)), (9, channels(F16), F16)];
    check(&shape(8, 2, 80, None), 1, 72, 0, &f16);
    check(&shape(8, 2, 80, Some(30)), 40, 33, 0, &f16);
}

#[test]
fn a_deterministic_query_is_the_same_bits_whatever_is_computed_beside_it() {
    const M: usize = 45;
    for (heads, kv_heads, window) in [(6, 2, None), (8, 1, Some(530)), (4, 4, Some(37))] {
        let shape = AttnShape { deterministic: true, ..shape(heads, kv_heads, 64, window) };
        let kinds = [(channels(Q4), Q4), (Q8, Q8), (F16, F16)];
        let blocks: Vec<_> = (0..20).map(|i| (32, kinds[i / 7].0, kinds[i / 7].1)).collect();
        let cache = Cache::new(&shape, 0, &blocks);
        let (row, first) = (heads * 64, 20 * 32 - M);
        let q: Vec<f32> = noise(M * row, 7);
        let all = cache.segments();
        // What queries at these positions may be given: whole blocks, and none that they do not see.
        let seen = |from: usize, end: usize| {
            let low = window.map_or(0, |window| (from + 1).saturating_sub(window)) / 32;
            &all[low..end.div_ceil(32)]
        };
        for isa in Isa::without_products() {
            let run = |threads, chunk: usize, others: usize| {
                let (pool, mut scratch) = (ThreadPool::new(threads), AttnScratch::new());
                let mut y = vec![f32::NAN; M * row];
                let mut other = vec![0.0; others * row];
                for (i, y) in y.chunks_mut(chunk * row).enumerate() {
                    let (from, m) = (i * chunk, y.len() / row);
                    let (q_pos, q) = (first + from, &q[from * row..(from + m) * row]);
                    let kv = seen(q_pos, q_pos + m);
                    if others == 0 {
                        attention(&pool, isa, &shape, q, row, q_pos, kv, y, &mut scratch).unwrap();
                        continue;
                    }
                    let mut sequences = vec![AttnSequence { q, q_pos, kv, y }];
                    for (j, y) in other.chunks_mut(row).enumerate() {
                        let (q_pos, kv) = (100 * j, &all[..1 + 4 * j]);
                        let beside = AttnSequence { q: &q[..row], q_pos, kv, y };
                        sequences.insert(j % 2, beside);
                    }
                    attention_batch(&pool, isa, &shape, &mut sequences, &mut scratch).unwrap();
                }
                y.into_iter().map(f32::to_bits).collect::<Vec<_>>()
            };
            let want = run(1, M, 0);
            for (threads, chunk, others) in
                [(2, M, 0), (3, M, 2), (1, 1, 0), (2, 1, 0), (5, 1, 3), (3, 7, 0), (2, 32, 1)]
            {
                let got = run(threads, chunk, others);
                assert!(
                    got == want,
                    "{isa} {shape:?} x{threads}, {chunk} at once, {others} beside"
                );
            }
        }
    }
}

#[test]
fn a_cache_may_start_late_and_end_early() {
    // Queries before the first key see nothing and give zeros; keys after a query are not seen.
    check(&shape(4, 2, 32, None), 20, 0, 10, &[(30, F16, F16)]);
    check(&shape(4, 2, 32, None), 20, 100, 10, &[(30, F16, F16)]);
    check(&shape(4, 2, 32, None), 1, 3, 10, &[(30, F16, F16)]);
    check(&shape(4, 2, 32, Some(5)), 20, 100, 10, &[(30, F16, F16)]);
    check(&shape(4, 2, 32, None), 2, 3, 0, &[]);
    check(&shape(8, 2, 32, None), 0, 3, 0, &[(4, F16, F16)]);
}

#[test]
fn sequences_of_a_batch_agree_with_the_oracle_however_threads_share_them() {
    let shape = shape(8, 2, 32, None);
    for window in [None, Some(40)] {
        let shape = AttnShape { window, ..shape };
        for contexts in [
            vec![],
            vec![1],
            vec![50; 7],
            vec![5, 700, 1, 130, 64],
            vec![300, 2],
            (1..20).map(|i| i * 11).collect(),
        ] {
            // One query each; where there is room, sometimes three; once none.
            let queries = |i: usize| if i == 6 { 0 } else { 1 + 2 * usize::from(i % 3 == 1) };
            let m: Vec<usize> = (contexts.iter().enumerate())
                .map(|(i, &context)| queries(i).min(context))
                .collect();
            // In blocks of 32, the last of which may be short.
            let kinds = [(F16, F16), (Q8, F16), (channels(Q4), Q4)];
            let blocks = |i: usize, context: usize| {
                let (k, v) = kinds[i % kinds.len()];
                (0..context).step_by(32).map(move |at| ((context - at).min(32), k, v)).collect()
            };
            let caches: Vec<Cache> = (contexts.iter().enumerate())
                .map(|(i, &context)| {
                    let parts: Vec<_> = blocks(i, context);
                    Cache::new(&shape, 0, &parts)
                })
                .collect();
            let q: Vec<Vec<f32>> =
                m.iter().enumerate().map(|(i, m)| noise(m * 256, 7 + i as u64)).collect();
            let segments: Vec<_> = caches.iter().map(Cache::segments).collect();
            let wanted: Vec<Vec<f64>> = (caches.iter().enumerate())
                .map(|(i, Cache { k, v, positions, .. })| {
                    oracle::attention(&shape, &q[i], contexts[i] - m[i], k, v, positions)
                })
                .collect();
            for isa in Isa::without_products() {
                for threads in [1, 2, 3, 5] {
                    let (pool, mut scratch) = (ThreadPool::new(threads), AttnScratch::new());
                    let rounds = if threads == 3 { 2 } else { 1 };
                    for _ in 0..rounds {
                        let mut y: Vec<Vec<f32>> =
                            m.iter().map(|m| vec![f32::NAN; m * 256]).collect();
                        let mut sequences: Vec<AttnSequence<'_>> = (y.iter_mut().enumerate())
                            .map(|(i, y)| AttnSequence {
                                q: &q[i],
                                q_pos: contexts[i] - m[i],
                                kv: &segments[i],
                                y,
                            })
                            .collect();
                        attention_batch(&pool, isa, &shape, &mut sequences, &mut scratch).unwrap();
                        for (i, (y, cache)) in y.iter().zip(&caches).enumerate() {
                            let want = &wanted[i];
                            let largest = cache.v.iter().fold(0.0, |max: f32, v| max.max(v.abs()));
                            for (y, want) in y.iter().zip(want) {
                                assert!(
                                    near(largest).holds(f64::from(*y), *want),
                                    "{isa} x{threads} {contexts:?}: {i} gives {y}, want {want}"
                                );
                            }
                        }
                    }
                }
            }
        }
    }
}

#[test]
fn a_batch_with_a_sequence_that_does_not_fit_is_refused_whole() {
    let (pool, shape) = (ThreadPool::new(2), shape(2, 1, 32, None));
    let cache = Cache::new(&shape, 0, &[(4, F16, F16)]);
    let segments = cache.segments();
    let (q, mut good, mut bad) = ([1.0; 64], [7.0; 64], [7.0; 63]);
    let sequence = |y| AttnSequence { q: &q, q_pos: 3, kv: &segments, y };
    let mut sequences = [sequence(&mut good), sequence(&mut bad)];
    let scratch = &mut AttnScratch::new();
    let refused = attention_batch(&pool, Isa::detect(), &shape, &mut sequences, scratch);
    assert_eq!(refused.unwrap_err().code(), "native_shape");
    assert!(good.iter().all(|y| *y == 7.0));
}

#[test]
fn scores_far_apart_saturate_and_huge_ones_do_not_overflow_the_weights() {
    let pool = ThreadPool::new(2);
    for isa in Isa::without_products() {
        for (m, heads) in [(1, 1), (1, 8), (64, 1)] {
            let shape = AttnShape {
                heads,
                kv_heads: 1,
                head_dim: 8,
                scale: 1.0,
                window: None,
                deterministic: false,
            };
            let q = vec![1e15; m * heads * 8];
            let k: Vec<f32> =
                (0..100).flat_map(|i| [if i == 70 { 1e15 } else { -1e15 }; 8]).collect();
            let v: Vec<f32> = (0..100).flat_map(|i| [i as f32; 8]).collect();
            let kv = [KvSegment::tokens(
                DType::F32,
                100,
                bytemuck::cast_slice(&k),
                bytemuck::cast_slice(&v),
            )];
            let mut y = vec![f32::NAN; m * heads * 8];
            attention(&pool, isa, &shape, &q, heads * 8, 99, &kv, &mut y, &mut AttnScratch::new())
                .unwrap();
            assert!(y.iter().all(|&y| y == 70.0), "{isa} {m} {heads}: {y:?}");
        }
    }
}

#[test]
fn calls_that_do_not_fit_are_refused() {
    let pool = ThreadPool::new(1);
    let data = vec![0; 16384];
    let segment = |(k_dtype, k_layout): Kind, len: usize, bytes: usize| KvSegment {
        start: 0,
        len,
        keys: KvRows::new(k_dtype, k_layout, &data[..bytes]),
        values: KvRows::new(DType::F16, KvLayout::Tokens, &data[..len * 2 * 32 * 2]),
    };
    let run =
        |shape: AttnShape, q: usize, stride: usize, pos: usize, kv: &[KvSegment<'_>], y: usize| {
            let (q, mut y) = (vec![0.0; q], vec![0.0; y]);
            attention(
                &pool,
                Isa::detect(),
                &shape,
                &q,
                stride,
                pos,
                kv,
                &mut y,
                &mut AttnScratch::new(),
            )
            .map_err(|error| error.code())
        };
    let good = shape(4, 2, 32, None);
    let kv = [segment(F16, 3, 3 * 2 * 32 * 2)];
    assert_eq!(run(good, 128, 128, 2, &kv, 128), Ok(()));
    let (bad_shape, unsupported) = (Err("native_shape"), Err("native_unsupported"));
    assert_eq!(run(good, 127, 128, 2, &kv, 128), bad_shape);
    assert_eq!(run(good, 128, 127, 2, &kv, 128), bad_shape);
    assert_eq!(run(good, 128, 128, 2, &kv, 129), bad_shape);
    assert_eq!(run(good, 128, usize::MAX, 2, &kv, 256), bad_shape);
    assert_eq!(run(good, 128, 128, usize::MAX, &kv, 128), bad_shape);
    assert_eq!(run(AttnShape { kv_heads: 3, ..good }, 128, 128, 2, &kv, 128), bad_shape);
    assert_eq!(run(AttnShape { kv_heads: 0, ..good }, 128, 128, 2, &kv, 128), bad_shape);
    assert_eq!(run(AttnShape { heads: 0, ..good }, 128, 128, 2, &kv, 128), bad_shape);
    assert_eq!(run(AttnShape { head_dim: 7, ..good }, 28, 28, 2, &kv, 28), unsupported);
    assert_eq!(run(AttnShape { head_dim: 257, ..good }, 1028, 1028, 2, &kv, 1028), unsupported);
    assert_eq!(run(good, 128, 128, 2, &[segment(F16, 3, 383)], 128), bad_shape);
    // No codec that there is has constants.
    let [mut of_keys, mut of_values] = [segment(F16, 3, 384); 2];
    assert_eq!(run(good, 128, 128, 2, &[of_keys], 128), Ok(()));
    of_keys.keys.constants = &data[..4];
    of_values.values.constants = &data[..4];
    for kv in [of_keys, of_values] {
        assert_eq!(run(good, 128, 128, 2, &[kv], 128), bad_shape);
    }
    assert_eq!(
        run(good, 128, 128, 2, &[segment((DType::BF16, KvLayout::Tokens), 3, 384)], 128),
        unsupported
    );
    let odd = shape(4, 2, 40, None);
    assert_eq!(run(odd, 160, 160, 2, &[segment(Q8, 0, 0)], 160), unsupported);
    // 64 channels of 32 tokens in blocks of 18 bytes; any more must be another block for each.
    let q4 = channels(Q4);
    assert_eq!(run(good, 128, 128, 2, &[segment(q4, 3, 64 * 18)], 128), Ok(()));
    assert_eq!(run(good, 128, 128, 2, &[segment(q4, 3, 2 * 64 * 18)], 128), Ok(()));
    assert_eq!(run(good, 128, 128, 2, &[segment(q4, 3, 3 * 32 * 18)], 128), bad_shape);
    assert_eq!(run(good, 128, 128, 2, &[segment(q4, 3, 0)], 128), bad_shape);
    assert_eq!(run(good, 128, 128, 2, &[segment(q4, 33, 64 * 18)], 128), bad_shape);
    assert_eq!(run(good, 128, 128, 2, &[segment(channels(F16), 3, 64 * 2 * 2)], 128), bad_shape);
    // Blocks along tokens ask nothing of the size of a head.
    assert_eq!(run(odd, 160, 160, 2, &[segment(channels(Q8), 0, 80 * 34)], 160), Ok(()));
}
