//! The low-rank update of arXiv 2106.09685: `y = scale * (x A^T) B^T`.
//!
//! Both factors lie in one tensor in groups of four, so that each step is one multiply-add of a
//! vector of `ab`: group `g` of `A` holds `A[r][4g .. 4g + 4]` for every rank `r`, group `h` of `B`
//! holds `B[4h .. 4h + 4][r]`.

use ruvllm_kernel_sdk::prelude::*;
use ruvllm_kernel_sdk::unroll;

/// Elements of a group.
const GROUP: usize = 4;
/// Ranks that are summed at once: as many as leave registers for the operands.
const RANKS: usize = 8;

/// The extents of a call.
#[derive(Clone, Copy, Debug)]
pub struct LoraShape {
    /// Rows of `x` and `y`.
    pub rows: usize,
    /// Columns of `x`.
    pub in_dim: usize,
    /// The rank of the update.
    pub rank: usize,
    /// Columns of `y`.
    pub out_dim: usize,
}

impl LoraShape {
    /// How many groups `ab` must have.
    pub fn groups(&self) -> usize {
        self.in_dim.div_ceil(GROUP).saturating_add(self.out_dim.div_ceil(GROUP))
    }
}

/// Computes every row.
///
/// `ab` is `[groups, rank, 4]`; a shorter one reads as zeros.
///
/// # Errors
/// [`Status::OutOfMemory`] when the scratch does not hold `rank` floats.
pub fn lora_apply<T: Lanes>(
    shape: &LoraShape,
    scale: f32,
    x: &[T],
    ab: &[T],
    y: &mut [T],
    scratch: &mut Scratch<'_>,
) -> Result<(), Status> {
    let LoraShape { rows, in_dim, rank, out_dim } = *shape;
    let low = scratch.take::<f32>(rank)?;
    let (ab, _) = ab.as_chunks::<GROUP>();
    let split = in_dim.div_ceil(GROUP).saturating_mul(rank);
    let (a, b) = ab.split_at_checked(split).unwrap_or((ab, &[]));
    for row in 0..rows {
        let x = window(x, row * in_dim, in_dim);
        let Some(y) = y.get_mut(row * out_dim..).and_then(|y| y.get_mut(..out_dim)) else { break };
        project(x, a, low);
        for t in low.iter_mut() {
            *t *= scale;
        }
        expand(low, b, y);
    }
    Ok(())
}

/// The gradients of [`lora_apply`] by `x` and by `ab`, in its layout, given that of its output: with
/// `u = scale * dy B` and `t = scale * x A^T`, `dx = u A`, `dA = u^T x` and `dB = dy^T t`.
///
/// # Errors
/// [`Status::OutOfMemory`] when the scratch does not hold `2 * rank` floats, [`Status::InvalidParams`] when
/// `ab` is too short.
pub fn lora_backward(
    shape: &LoraShape,
    scale: f32,
    [x, ab]: [&[f32]; 2],
    dy: &[f32],
    [dx, dab]: [&mut [f32]; 2],
    scratch: &mut Scratch<'_>,
) -> Result<(), Status> {
    let LoraShape { rows, in_dim, rank, out_dim } = *shape;
    let (t, u) = (scratch.take::<f32>(rank)?, scratch.take::<f32>(rank)?);
    let split = in_dim.div_ceil(GROUP).saturating_mul(rank);
    let (a, b) = ab.as_chunks::<GROUP>().0.split_at_checked(split).ok_or(Status::InvalidParams)?;
    let (dab, _) = dab.as_chunks_mut::<GROUP>();
    dab.fill([0.0; GROUP]);
    let (da, db) = dab.split_at_mut_checked(split).ok_or(Status::InvalidParams)?;
    for row in 0..rows {
        let (x, dy) = (window(x, row * in_dim, in_dim), window(dy, row * out_dim, out_dim));
        let Some(dx) = dx.get_mut(row * in_dim..).and_then(|dx| dx.get_mut(..in_dim)) else {
            break;
        };
        project(x, a, t);
        project(dy, b, u);
        for low in t.iter_mut().chain(u.iter_mut()) {
            *low *= scale;
        }
        // The layout of A is that of B with its columns for rows.
        expand(u, a, dx);
        add_outer(u, x, da);
        add_outer(t, dy, db);
    }
    Ok(())
}

/// Adds the product of each `low[r]` with each `x[i]` to its place in a factor's gradient.
#[inline(never)]
fn add_outer(low: &[f32], x: &[f32], factor: &mut [[f32; GROUP]]) {
    let (quads, tail) = x.as_chunks::<GROUP>();
    let mut last = [0.0; GROUP];
    last.iter_mut().zip(tail).for_each(|(to, from)| *to = *from);
    let quads = quads.iter().chain((!tail.is_empty()).then_some(&last));
    for (x, group) in quads.zip(factor.chunks_exact_mut(low.len().max(1))) {
        let x = F32x4::load(x);
        for (low, to) in low.iter().zip(group) {
            F32x4::splat(*low).madd(x, F32x4::load(to)).store(to);
        }
    }
}

/// `low[r] = sum over i of A[r][i] * x[i]`. Kept as one function: gradients take it once for each factor.
#[inline(never)]
fn project<T: Lanes>(x: &[T], a: &[[T; GROUP]], low: &mut [f32]) {
    let rank = low.len();
    let (blocks, rest) = low.as_chunks_mut::<RANKS>();
    for (i, block) in blocks.iter_mut().enumerate() {
        *block = project_ranks::<T, RANKS>(x, a, rank, i * RANKS);
    }
    let done = blocks.len() * RANKS;
    let (blocks, rest) = rest.as_chunks_mut::<4>();
    for (i, block) in blocks.iter_mut().enumerate() {
        *block = project_ranks::<T, 4>(x, a, rank, done + i * 4);
    }
    let done = done + blocks.len() * 4;
    for (i, t) in rest.iter_mut().enumerate() {
        let [sum] = project_ranks::<T, 1>(x, a, rank, done + i);
        *t = sum;
    }
}

/// The sums of `R` neighbouring ranks from `first` on.
#[inline(always)]
fn project_ranks<T: Lanes, const R: usize>(
    x: &[T],
    a: &[[T; GROUP]],
    rank: usize,
    first: usize,
) -> [f32; R] {
    let mut acc = [F32x4::ZERO; R];
    let mut at = first;
    let (quads, tail) = x.as_chunks::<GROUP>();
    let (blocks, quads) = quads.as_chunks::<4>();
    for block in blocks {
        unroll!(4, i => {
            acc = add_group(&block[i], a, at, acc);
            at += rank;
        });
    }
    for quad in quads {
        acc = add_group(quad, a, at, acc);
        at += rank;
    }
    if !tail.is_empty() {
        let mut quad = [T::ZERO; GROUP];
        quad.iter_mut().zip(tail).for_each(|(to, from)| *to = *from);
        acc = add_group(&quad, a, at, acc);
    }
    acc.map(F32x4::sum)
}

#[inline(always)]
fn add_group<T: Lanes, const R: usize>(
    x: &[T; GROUP],
    a: &[[T; GROUP]],
    at: usize,
    mut acc: [F32x4; R],
) -> [F32x4; R] {
    if let Some(a) = a.get(at..).and_then(<[_]>::first_chunk::<R>) {
        let x = T::load4(x);
        for (acc, a) in acc.iter_mut().zip(a) {
            *acc = T::load4(a).madd(x, *acc);
        }
    }
    acc
}

/// `y[o] = sum over r of low[r] * B[o][r]`. Kept as one function, as [`project`] is.
#[inline(never)]
fn expand<T: Lanes>(low: &[f32], b: &[[T; GROUP]], y: &mut [T]) {
    // The usual ranks in straight lines, several groups between two back-edges.
    if let Ok(low) = <&[f32; 4]>::try_from(low) {
        return expand_by(b.as_chunks::<4>().0, y, |b| combine_4(low, b));
    }
    if let Ok(low) = <&[f32; 8]>::try_from(low) {
        return expand_by(b.as_chunks::<8>().0, y, |b| combine_8(low, b, F32x4::ZERO));
    }
    let mut rest = b;
    let (quads, tail) = y.as_chunks_mut::<GROUP>();
    for quad in quads {
        let (group, after) = rest.split_at_checked(low.len()).unwrap_or((rest, &[]));
        T::store4(combine(low, group), quad);
        rest = after;
    }
    store(combine(low, window(rest, 0, low.len())), tail);
}

/// Every group of the output by a function of its group of `B`.
#[inline(always)]
fn expand_by<T: Lanes, const R: usize>(
    groups: &[[[T; GROUP]; R]],
    y: &mut [T],
    combine: impl Fn(&[[T; GROUP]; R]) -> F32x4,
) {
    let (quads, tail) = y.as_chunks_mut::<GROUP>();
    let done = quads.len();
    let (group_blocks, groups_rest) = window(groups, 0, done).as_chunks::<4>();
    let (blocks, quads) = quads.as_chunks_mut::<4>();
    for (y, b) in blocks.iter_mut().zip(group_blocks) {
        unroll!(4, i => {
            T::store4(combine(&b[i]), &mut y[i]);
        });
    }
    for (y, b) in quads.iter_mut().zip(groups_rest) {
        T::store4(combine(b), y);
    }
    if let Some(b) = groups.get(done) {
        store(combine(b), tail);
    }
}

/// The first `len` from `at` on.
#[inline(always)]
fn window<T>(s: &[T], at: usize, len: usize) -> &[T] {
    s.get(at..).and_then(|s| s.get(..len)).unwrap_or(&[])
}

/// Stores as many lanes as there is room for.
#[inline(always)]
fn store<T: Lanes>(v: F32x4, to: &mut [T]) {
    let mut quad = [T::ZERO; GROUP];
    T::store4(v, &mut quad);
    to.iter_mut().zip(quad).for_each(|(to, from)| *to = from);
}

/// One group of the output, for any rank.
#[inline(always)]
fn combine<T: Lanes>(low: &[f32], b: &[[T; GROUP]]) -> F32x4 {
    let (ts, t_rest) = low.as_chunks::<8>();
    let (bs, b_rest) = b.as_chunks::<8>();
    let sum = ts.iter().zip(bs).fold(F32x4::ZERO, |sum, (t, b)| combine_8(t, b, sum));
    t_rest.iter().zip(b_rest).fold(sum, |sum, (t, b)| T::load4(b).madd(F32x4::splat(*t), sum))
}

/// Eight ranks of a group of the output on top of `sum`, in two chains.
#[inline(always)]
fn combine_8<T: Lanes>(low: &[f32; 8], b: &[[T; GROUP]; 8], sum: F32x4) -> F32x4 {
    let (mut even, mut odd) = (sum, F32x4::ZERO);
    unroll!(4, i => {
        even = T::load4(&b[2 * i]).madd(F32x4::splat(low[2 * i]), even);
        odd = T::load4(&b[2 * i + 1]).madd(F32x4::splat(low[2 * i + 1]), odd);
    });
    even + odd
}

/// As [`combine_8`], four ranks.
#[inline(always)]
fn combine_4<T: Lanes>(low: &[f32; 4], b: &[[T; GROUP]; 4]) -> F32x4 {
    let mut sum = F32x4::ZERO;
    unroll!(4, i => {
        sum = T::load4(&b[i]).madd(F32x4::splat(low[i]), sum);
    });
    sum
}

#[cfg(test)]
mod tests {
    extern crate std;
    use super::*;
    use crate::testing::{assert_close, noise, with_scratch};
    use std::vec;
    use std::vec::Vec;

    fn interleave(shape: &LoraShape, a: &[f32], b: &[f32]) -> Vec<f32> {
        let LoraShape { in_dim, rank, out_dim, .. } = *shape;
        let element = |m: &[f32], i: usize, inside: bool| if inside { m[i] } else { 0.0 };
        let mut ab = Vec::new();
        for g in 0..in_dim.div_ceil(4) {
            for r in 0..rank {
                ab.extend((4 * g..4 * g + 4).map(|i| element(a, r * in_dim + i, i < in_dim)));
            }
        }
        for h in 0..out_dim.div_ceil(4) {
            for r in 0..rank {
                ab.extend((4 * h..4 * h + 4).map(|o| element(b, o * rank + r, o < out_dim)));
            }
        }
        ab
    }

    #[test]
    fn every_rank_and_odd_shape_matches_f64_to_1e_5_of_the_row() {
        for (rows, in_dim, out_dim) in
            [(1, 2048, 2048), (3, 7, 5), (2, 1, 1), (2, 33, 17), (1, 4, 70)]
        {
            for rank in [1, 2, 3, 4, 5, 8, 12, 16, 19] {
                let shape = LoraShape { rows, in_dim, rank, out_dim };
                let (a, b) = (noise(rank * in_dim, 0.1, 1), noise(out_dim * rank, 0.1, 2));
                let x = noise(rows * in_dim, 1.0, 3);
                let ab = interleave(&shape, &a, &b);
                assert_eq!(ab.len(), shape.groups() * rank * 4);
                let mut y = vec![9.0; rows * out_dim];
                with_scratch(|s| lora_apply(&shape, 0.5, &x, &ab, &mut y, s)).unwrap();
                for row in 0..rows {
                    let x = &x[row * in_dim..][..in_dim];
                    let dot = |p: &[f32], q: &[f32]| -> f64 {
                        p.iter().zip(q).map(|(p, q)| f64::from(*p) * f64::from(*q)).sum()
                    };
                    let low: Vec<f64> = a.chunks(in_dim).map(|a| dot(a, x)).collect();
                    let expected: Vec<f64> = b
                        .chunks(rank)
                        .map(|b| {
                            0.5 * b.iter().zip(&low).map(|(b, t)| f64::from(*b) * t).sum::<f64>()
                        })
                        .collect();
                    let peak = expected.iter().fold(0f64, |m, e| m.max(e.abs()));
                    let y = &y[row * out_dim..][..out_dim];
                    assert_close(y, &expected, 0.0, 1e-5 * peak + 1e-7);
                }
            }
        }
    }

    #[test]
    fn gradients_are_those_of_the_definition() {
        for (rows, in_dim, out_dim, rank) in
            [(1, 1, 1, 1), (3, 7, 5, 2), (2, 33, 17, 9), (2, 8, 12, 4)]
        {
            let shape = LoraShape { rows, in_dim, rank, out_dim };
            let (a, b) = (noise(rank * in_dim, 1.0, 1), noise(out_dim * rank, 1.0, 2));
            let (x, dy) = (noise(rows * in_dim, 1.0, 3), noise(rows * out_dim, 1.0, 4));
            let ab = interleave(&shape, &a, &b);
            let (mut dx, mut dab) = (vec![9.0; x.len()], vec![9.0; ab.len()]);
            let gradients = [&mut dx[..], &mut dab];
            with_scratch(|s| lora_backward(&shape, 0.5, [&x, &ab], &dy, gradients, s)).unwrap();
            let (mut want_x, mut want_a) = (vec![0.0; x.len()], vec![0.0; a.len()]);
            let mut want_b = vec![0.0; b.len()];
            for row in 0..rows {
                for r in 0..rank {
                    let t: f32 = (0..in_dim).map(|i| x[row * in_dim + i] * a[r * in_dim + i]).sum();
                    let u: f32 =
                        (0..out_dim).map(|o| dy[row * out_dim + o] * b[o * rank + r]).sum();
                    for i in 0..in_dim {
                        want_x[row * in_dim + i] += 0.5 * u * a[r * in_dim + i];
                        want_a[r * in_dim + i] += 0.5 * u * x[row * in_dim + i];
                    }
                    for o in 0..out_dim {
                        want_b[o * rank + r] += 0.5 * t * dy[row * out_dim + o];
                    }
                }
            }
            let want = [want_x, interleave(&shape, &want_a, &want_b)].concat();
            let want: Vec<f64> = want.into_iter().map(f64::from).collect();
            assert_close(&[dx, dab].concat(), &want, 0.0, 1e-5 * (in_dim + out_dim) as f64);
        }
    }

    #[test]
    fn rank_zero_gives_zero() {
        let shape = LoraShape { rows: 1, in_dim: 4, rank: 0, out_dim: 6 };
        let mut y = [9.0; 6];
        with_scratch(|s| lora_apply(&shape, 1.0, &[1.0; 4], &[], &mut y, s)).unwrap();
        assert_eq!(y, [0.0; 6]);
    }

    #[test]
    fn a_rank_beyond_the_scratch_is_refused() {
        let shape = LoraShape { rows: 1, in_dim: 4, rank: 5000, out_dim: 4 };
        let refused = with_scratch(|s| lora_apply::<f32>(&shape, 1.0, &[], &[], &mut [], s));
        assert_eq!(refused, Err(Status::OutOfMemory));
    }
}
