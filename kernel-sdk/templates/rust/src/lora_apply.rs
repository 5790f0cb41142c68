//! The low-rank update of Hu et al., arXiv 2106.09685.
//!
//! The factors come in groups of four: a group of `A` has for each rank the elements
//! `A[r][4g .. 4g + 4]`, a group of `B` the elements `B[4h .. 4h + 4][r]`. What lies beyond the true
//! dimension is zero. So each step is one multiply-add of a vector.

use ruvllm_kernel_sdk::prelude::*;
use ruvllm_kernel_sdk::unroll;

/// `y = scale * (x A^T) B^T` for one row; `low` has room for a number of each rank.
pub fn lora_row(
    x: &[f32],
    a: &[[f32; 4]],
    b: &[[f32; 4]],
    scale: f32,
    low: &mut [f32],
    y: &mut [f32],
) {
    let rank = low.len();
    // As many ranks at once as leave registers for the operands.
    let (blocks, rest) = low.as_chunks_mut::<8>();
    for (i, block) in blocks.iter_mut().enumerate() {
        *block = project::<8>(x, a, rank, 8 * i);
    }
    let done = 8 * blocks.len();
    let (blocks, rest) = rest.as_chunks_mut::<4>();
    for (i, block) in blocks.iter_mut().enumerate() {
        *block = project::<4>(x, a, rank, done + 4 * i);
    }
    let done = done + 4 * blocks.len();
    for (i, low) in rest.iter_mut().enumerate() {
        [*low] = project::<1>(x, a, rank, done + i);
    }
    low.iter_mut().for_each(|low| *low *= scale);
    // The usual ranks in straight lines.
    if let Ok(low) = <&[f32; 4]>::try_from(&*low) {
        return expand(b.as_chunks::<4>().0, y, |b| combine_4(low, b));
    }
    if let Ok(low) = <&[f32; 8]>::try_from(&*low) {
        return expand(b.as_chunks::<8>().0, y, |b| combine_8(low, b, F32x4::ZERO));
    }
    let mut groups = b.chunks_exact(rank.max(1));
    let (quads, tail) = y.as_chunks_mut::<4>();
    for (y, b) in quads.iter_mut().zip(groups.by_ref()) {
        combine(low, b).store(y);
    }
    if let Some(b) = groups.next() {
        store_some(combine(low, b), tail);
    }
}

/// `sum over i of A[r][i] * x[i]` for the ranks `first .. first + R`.
#[inline(always)]
fn project<const R: usize>(x: &[f32], a: &[[f32; 4]], rank: usize, first: usize) -> [f32; R] {
    let mut sums = [F32x4::ZERO; R];
    let mut from = first;
    let (quads, tail) = x.as_chunks::<4>();
    let (blocks, quads) = quads.as_chunks::<4>();
    // Every turn of a loop asks whether there is time left: four groups for each turn.
    for block in blocks {
        unroll!(4, i => {
            sums = add_group(&block[i], a, from, sums);
            from += rank;
        });
    }
    for quad in quads {
        sums = add_group(quad, a, from, sums);
        from += rank;
    }
    if !tail.is_empty() {
        let mut quad = [0.0; 4];
        quad.iter_mut().zip(tail).for_each(|(to, x)| *to = *x);
        sums = add_group(&quad, a, from, sums);
    }
    sums.map(F32x4::sum)
}

#[inline(always)]
fn add_group<const R: usize>(
    x: &[f32; 4],
    a: &[[f32; 4]],
    from: usize,
    mut sums: [F32x4; R],
) -> [F32x4; R] {
    if let Some(a) = a.get(from..).and_then(<[_]>::first_chunk::<R>) {
        let x = F32x4::load(x);
        for (sum, a) in sums.iter_mut().zip(a) {
            *sum = F32x4::load(a).madd(x, *sum);
        }
    }
    sums
}

/// Every group of the output by a function of its group of `B`.
#[inline(always)]
fn expand<const R: usize>(
    groups: &[[[f32; 4]; R]],
    y: &mut [f32],
    combine: impl Fn(&[[f32; 4]; R]) -> F32x4,
) {
    let (quads, tail) = y.as_chunks_mut::<4>();
    let (whole, last) = groups.split_at_checked(quads.len()).unwrap_or((groups, &[]));
    let (group_blocks, groups) = whole.as_chunks::<4>();
    let (blocks, quads) = quads.as_chunks_mut::<4>();
    for (y, b) in blocks.iter_mut().zip(group_blocks) {
        unroll!(4, i => {
            combine(&b[i]).store(&mut y[i]);
        });
    }
    for (y, b) in quads.iter_mut().zip(groups) {
        combine(b).store(y);
    }
    if let [b, ..] = last {
        store_some(combine(b), tail);
    }
}

/// One group of the output, for any rank.
#[inline(always)]
fn combine(low: &[f32], b: &[[f32; 4]]) -> F32x4 {
    let (lows, low_rest) = low.as_chunks::<8>();
    let (bs, b_rest) = b.as_chunks::<8>();
    let sum = lows.iter().zip(bs).fold(F32x4::ZERO, |sum, (low, b)| combine_8(low, b, sum));
    let rest = low_rest.iter().zip(b_rest);
    rest.fold(sum, |sum, (low, b)| F32x4::load(b).madd(F32x4::splat(*low), sum))
}

/// Eight ranks of a group of the output on top of `sum`, in two chains.
#[inline(always)]
fn combine_8(low: &[f32; 8], b: &[[f32; 4]; 8], sum: F32x4) -> F32x4 {
    let (mut even, mut odd) = (sum, F32x4::ZERO);
    unroll!(4, i => {
        even = F32x4::load(&b[2 * i]).madd(F32x4::splat(low[2 * i]), even);
        odd = F32x4::load(&b[2 * i + 1]).madd(F32x4::splat(low[2 * i + 1]), odd);
    });
    even + odd
}

/// As [`combine_8`], four ranks.
#[inline(always)]
fn combine_4(low: &[f32; 4], b: &[[f32; 4]; 4]) -> F32x4 {
    let mut sum = F32x4::ZERO;
    unroll!(4, i => {
        sum = F32x4::load(&b[i]).madd(F32x4::splat(low[i]), sum);
    });
    sum
}

/// Stores as many lanes as there is room for.
#[inline(always)]
fn store_some(v: F32x4, to: &mut [f32]) {
    let mut quad = [0.0; 4];
    v.store(&mut quad);
    to.iter_mut().zip(quad).for_each(|(to, x)| *to = x);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_factors_are_applied_and_scaled() {
        // A is [1, 2], B is [3, 4] transposed.
        let (a, b) = ([[1.0, 2.0, 0.0, 0.0]], [[3.0, 4.0, 0.0, 0.0]]);
        let mut y = [9.0; 2];
        lora_row(&[1.0, 1.0], &a, &b, 0.5, &mut [7.0], &mut y);
        assert_eq!(y, [4.5, 6.0]);
    }

    #[test]
    fn any_rank_and_length_matches_the_definition() {
        for rank in [1, 3, 4, 8, 13, 16] {
            for (inputs, outputs) in [(1usize, 1usize), (7, 5), (16, 16), (37, 50)] {
                let number = |i: usize| (i * 37 % 101) as f32 / 50.0 - 1.0;
                let x: [f32; 37] = core::array::from_fn(number);
                let factor = |groups: usize, dim: usize, seed: usize| {
                    let mut all = [[0.0; 4]; 13 * 16];
                    for (i, group) in all.iter_mut().take(groups * rank).enumerate() {
                        for (lane, x) in group.iter_mut().enumerate() {
                            *x = if i / rank * 4 + lane < dim {
                                number(4 * i + lane + seed)
                            } else {
                                0.0
                            };
                        }
                    }
                    all
                };
                let (in_groups, out_groups) = (inputs.div_ceil(4), outputs.div_ceil(4));
                let (a, b) = (factor(in_groups, inputs, 3), factor(out_groups, outputs, 8));
                let (mut low, mut y) = ([9.0; 16], [9.0; 50]);
                let (x, a, b) = (&x[..inputs], &a[..in_groups * rank], &b[..out_groups * rank]);
                lora_row(x, a, b, 0.5, &mut low[..rank], &mut y[..outputs]);
                for (o, y) in y[..outputs].iter().enumerate() {
                    let mut want = 0.0;
                    for r in 0..rank {
                        let sum: f32 = (0..inputs).map(|i| x[i] * a[i / 4 * rank + r][i % 4]).sum();
                        want += 0.5 * sum * b[o / 4 * rank + r][o % 4];
                    }
                    assert!((y - want).abs() < 1e-4, "{rank} {inputs} {outputs}: {y}, {want}");
                }
            }
        }
    }
}
