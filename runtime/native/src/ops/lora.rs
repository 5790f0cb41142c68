//! The low-rank update of Hu et al., arXiv 2106.09685, over interleaved factors.

use super::product;
use super::simd::{Elem, MAX_LANES, Simd, SimdOp, dispatch};
use crate::{Isa, NativeError};
use half::f16;

/// Dimensions of a call: `x` is `[rows, in_dim]`, `ab` `[groups, rank, 4]` as
/// [`lora_interleave`] builds it, `y` `[rows, out_dim]`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct LoraShape {
    /// Rows of `x` and `y`.
    pub rows: usize,
    /// Columns of `x`.
    pub in_dim: usize,
    /// Rank of the update.
    pub rank: usize,
    /// Columns of `y`.
    pub out_dim: usize,
    /// Multiplies the update; usually alpha / rank.
    pub scale: f32,
}

impl LoraShape {
    /// Groups of four columns that hold `A`.
    pub fn in_groups(&self) -> usize {
        self.in_dim.div_ceil(4)
    }

    /// All groups of `ab`: those of `A`, then those of `B`.
    pub fn groups(&self) -> usize {
        self.in_groups() + self.out_dim.div_ceil(4)
    }

    pub(super) fn check(&self, x: usize, ab: usize, y: usize) -> Result<(), NativeError> {
        NativeError::check("lora: x elements", product("lora: x", &[self.rows, self.in_dim])?, x)?;
        let factors = product("lora: ab", &[self.groups(), self.rank, 4])?;
        NativeError::check("lora: ab elements", factors, ab)?;
        NativeError::check("lora: y elements", product("lora: y", &[self.rows, self.out_dim])?, y)
    }
}

/// `y = scale * (x A^T) B^T`. Overwrites `y`; rank 0 gives zeros. Allocates only above rank 64.
///
/// Within 4e-6 of the f64 definition, relative to the sum of the magnitudes of the products.
///
/// # Errors
/// [`NativeError::Shape`] where a buffer does not fit `shape`.
pub fn lora_apply(
    isa: Isa,
    shape: &LoraShape,
    x: &[f32],
    ab: &[f32],
    y: &mut [f32],
) -> Result<(), NativeError> {
    call(isa, shape, x, ab, y)
}

/// [`lora_apply`] on binary16: computed in f32, rounded once more at the end.
///
/// # Errors
/// As [`lora_apply`].
pub fn lora_apply_f16(
    isa: Isa,
    shape: &LoraShape,
    x: &[f16],
    ab: &[f16],
    y: &mut [f16],
) -> Result<(), NativeError> {
    call(isa, shape, x, ab, y)
}

/// Interleaves `a` `[rank, in_dim]` and `b` `[out_dim, rank]` into the `ab` of [`lora_apply`]:
/// group `g` holds for each rank `r` the elements `A[r][4g..4g + 4]`, and the groups after those of
/// `A` hold `B[4h..4h + 4][r]`. Rows and columns beyond the true dimension are zero.
///
/// # Errors
/// [`NativeError::Shape`] where `a` or `b` does not fit `shape`; its `rows` and `scale` are unused.
pub fn lora_interleave(shape: &LoraShape, a: &[f32], b: &[f32]) -> Result<Vec<f32>, NativeError> {
    let LoraShape { in_dim, rank, out_dim, .. } = *shape;
    NativeError::check("lora: a elements", product("lora: a", &[rank, in_dim])?, a.len())?;
    NativeError::check("lora: b elements", product("lora: b", &[out_dim, rank])?, b.len())?;
    let mut ab = vec![0.0; product("lora: ab", &[shape.groups(), rank, 4])?];
    if rank == 0 {
        return Ok(ab);
    }
    let (a_groups, b_groups) = ab.split_at_mut(shape.in_groups() * rank * 4);
    for (g, group) in a_groups.chunks_exact_mut(4 * rank).enumerate() {
        for (r, four) in group.chunks_exact_mut(4).enumerate() {
            let row = &a[r * in_dim..][..in_dim];
            four.iter_mut().zip(&row[4 * g..]).for_each(|(y, x)| *y = *x);
        }
    }
    for (h, group) in b_groups.chunks_exact_mut(4 * rank).enumerate() {
        for (i, row) in b.chunks_exact(rank).skip(4 * h).take(4).enumerate() {
            row.iter().enumerate().for_each(|(r, x)| group[4 * r + i] = *x);
        }
    }
    Ok(ab)
}

struct Lora<'a, T> {
    shape: LoraShape,
    x: &'a [T],
    ab: &'a [T],
    y: &'a mut [T],
    /// Four copies of each of the `rank` products.
    t: &'a mut [f32],
}

/// Ranks up to this need no allocation.
const STACK_RANK: usize = 64;

fn call<T: Elem>(
    isa: Isa,
    shape: &LoraShape,
    x: &[T],
    ab: &[T],
    y: &mut [T],
) -> Result<(), NativeError> {
    shape.check(x.len(), ab.len(), y.len())?;
    if shape.rank == 0 || shape.in_dim == 0 {
        y.fill(T::put(0.0));
        return Ok(());
    }
    if y.is_empty() {
        return Ok(());
    }
    let mut stack = [0.0; 4 * STACK_RANK];
    let mut heap = Vec::new();
    let t = if shape.rank <= STACK_RANK {
        &mut stack[..4 * shape.rank]
    } else {
        heap.resize(4 * shape.rank, 0.0);
        &mut heap[..]
    };
    match isa {
        Isa::Scalar => reference(shape, x, ab, y, t),
        _ => dispatch(isa, Lora { shape: *shape, x, ab, y, t }),
    }
    Ok(())
}

fn reference<T: Elem>(shape: &LoraShape, x: &[T], ab: &[T], y: &mut [T], t: &mut [f32]) {
    let (a, b) = ab.split_at(shape.in_groups() * shape.rank * 4);
    let t = &mut t[..shape.rank];
    for (x, y) in x.chunks_exact(shape.in_dim).zip(y.chunks_exact_mut(shape.out_dim)) {
        t.fill(0.0);
        for (x, group) in x.chunks(4).zip(a.chunks_exact(4 * shape.rank)) {
            for (t, four) in t.iter_mut().zip(group.chunks_exact(4)) {
                *t += x.iter().zip(four).map(|(x, a)| x.get() * a.get()).sum::<f32>();
            }
        }
        t.iter_mut().for_each(|t| *t *= shape.scale);
        for (y, group) in y.chunks_mut(4).zip(b.chunks_exact(4 * shape.rank)) {
            for (i, y) in y.iter_mut().enumerate() {
                let sum: f32 =
                    t.iter().zip(group.chunks_exact(4)).map(|(t, four)| t * four[i].get()).sum();
                *y = T::put(sum);
            }
        }
    }
}

impl<T: Elem> SimdOp for Lora<'_, T> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        let LoraShape { in_dim, rank, out_dim, scale, .. } = self.shape;
        let (a, b) = self.ab.split_at(self.shape.in_groups() * rank * 4);
        for (x, y) in self.x.chunks_exact(in_dim).zip(self.y.chunks_exact_mut(out_dim)) {
            to_low_rank(s, x, a, rank, scale, self.t);
            from_low_rank(s, self.t, b, y);
        }
    }
}

/// `scale` times the products of `x` with every row of a factor, four copies of each.
#[inline(always)]
pub(super) fn to_low_rank<S: Simd, T: Elem>(
    s: S,
    x: &[T],
    factor: &[T],
    rank: usize,
    scale: f32,
    t: &mut [f32],
) {
    // In whole vectors over (rank, 4), as many at a time as there are.
    let ranks = S::LANES / 4;
    let mut r = 0;
    while r + 4 * ranks <= rank {
        project::<S, T, 4>(s, x, factor, rank, r, t);
        r += 4 * ranks;
    }
    if r + 2 * ranks <= rank {
        project::<S, T, 2>(s, x, factor, rank, r, t);
        r += 2 * ranks;
    }
    if r + ranks <= rank {
        project::<S, T, 1>(s, x, factor, rank, r, t);
        r += ranks;
    }
    for r in r..rank {
        let sum = project_one(x, factor, rank, r);
        t[4 * r..4 * r + 4].fill(sum);
    }
    t.iter_mut().for_each(|t| *t *= scale);
}

/// Every element of `y`: the products, in four copies, times a group of a factor.
#[inline(always)]
pub(super) fn from_low_rank<S: Simd, T: Elem>(s: S, t: &[f32], factor: &[T], y: &mut [T]) {
    let mut groups = factor.chunks_exact(t.len());
    let mut fours = y.chunks_exact_mut(4);
    for (y, group) in (&mut fours).zip(&mut groups) {
        for (y, sum) in y.iter_mut().zip(expand(s, group, t)) {
            *y = T::put(sum);
        }
    }
    let rest = fours.into_remainder();
    if let Some(group) = groups.next() {
        for (y, sum) in rest.iter_mut().zip(expand(s, group, t)) {
            *y = T::put(sum);
        }
    }
}

/// Four elements of a row; those beyond its end are zero.
#[inline(always)]
pub(super) fn four<T: Elem>(x: &[T]) -> [f32; 4] {
    match x {
        [a, b, c, d] => [a.get(), b.get(), c.get(), d.get()],
        _ => std::array::from_fn(|i| x.get(i).map_or(0.0, |x| x.get())),
    }
}

/// The products of `x` with the rows of `A` from `r` on that fill `V` vectors, four copies of each.
#[inline(always)]
fn project<S: Simd, T: Elem, const V: usize>(
    s: S,
    x: &[T],
    a: &[T],
    rank: usize,
    r: usize,
    t: &mut [f32],
) {
    // Two sets of accumulators hide the latency of the additions at small ranks.
    let mut acc = [[s.splat(0.0); V]; 2];
    let mut pairs = a.chunks_exact(8 * rank);
    let mut eights = x.chunks_exact(8);
    for (x, pair) in (&mut eights).zip(&mut pairs) {
        add_products(s, &mut acc[0], &x[..4], &pair[4 * r..]);
        add_products(s, &mut acc[1], &x[4..], &pair[4 * (rank + r)..]);
    }
    // What is left of x is under eight elements: a last pair of groups or a last group.
    let done = x.len() / 8;
    for (x, group) in eights.remainder().chunks(4).zip(a[done * 8 * rank..].chunks_exact(4 * rank))
    {
        add_products(s, &mut acc[0], x, &group[4 * r..]);
    }
    for v in 0..V {
        let mut sums = [0.0; MAX_LANES];
        s.store(s.add(acc[0][v], acc[1][v]), &mut sums);
        let t = &mut t[4 * r + v * S::LANES..][..S::LANES];
        for (t, four) in t.chunks_exact_mut(4).zip(sums.chunks_exact(4)) {
            t.fill((four[0] + four[1]) + (four[2] + four[3]));
        }
    }
}

#[inline(always)]
fn add_products<S: Simd, T: Elem, const V: usize>(s: S, acc: &mut [S::F; V], x: &[T], group: &[T]) {
    let x = s.splat4(four(x));
    for (v, acc) in acc.iter_mut().enumerate() {
        *acc = s.fma(x, T::load(s, &group[v * S::LANES..]), *acc);
    }
}

/// The product of `x` with row `r` of `A`.
#[inline(always)]
fn project_one<T: Elem>(x: &[T], a: &[T], rank: usize, r: usize) -> f32 {
    let mut acc = [0.0; 4];
    for (x, group) in x.chunks(4).zip(a.chunks_exact(4 * rank)) {
        let (x, a) = (four(x), four(&group[4 * r..4 * r + 4]));
        for i in 0..4 {
            acc[i] += x[i] * a[i];
        }
    }
    (acc[0] + acc[1]) + (acc[2] + acc[3])
}

/// Four elements of a row of `y`: a group of `B` times the products.
#[inline(always)]
fn expand<S: Simd, T: Elem>(s: S, group: &[T], t: &[f32]) -> [f32; 4] {
    let mut acc = s.splat(0.0);
    let mut group = group.chunks_exact(S::LANES);
    let mut t = t.chunks_exact(S::LANES);
    for (group, t) in (&mut group).zip(&mut t) {
        acc = s.fma(T::load(s, group), s.load(t), acc);
    }
    let mut y = s.fold4(acc);
    for (group, t) in group.remainder().chunks_exact(4).zip(t.remainder().chunks_exact(4)) {
        for i in 0..4 {
            y[i] += group[i].get() * t[i];
        }
    }
    y
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ops::testing::{close, noise, ranges};
    use crate::oracle;

    const DIMS: [(usize, usize); 7] =
        [(1, 1), (3, 5), (4, 8), (9, 4), (33, 30), (64, 100), (1000, 130)];
    const RANKS: [usize; 12] = [0, 1, 2, 3, 4, 5, 7, 8, 16, 23, 32, 70];

    #[test]
    fn agrees_with_the_oracle_over_ranks_and_odd_dimensions() {
        for isa in Isa::every() {
            for (in_dim, out_dim) in DIMS {
                for rank in RANKS {
                    let shape = LoraShape { rows: 3, in_dim, rank, out_dim, scale: 0.7 };
                    let (a, b) = (noise(rank * in_dim, 1), noise(out_dim * rank, 2));
                    let ab = lora_interleave(&shape, &a, &b).unwrap();
                    for (name, x) in ranges(3 * in_dim, 3) {
                        let mut y = vec![f32::NAN; 3 * out_dim];
                        lora_apply(isa, &shape, &x, &ab, &mut y).unwrap();
                        let want = oracle::lora(&shape, &x, &a, &b);
                        let largest = x.iter().fold(0.0, |m: f64, x| m.max(f64::from(x.abs())));
                        let allowed = 4e-6 * 0.7 * (rank * in_dim) as f64 * largest / 4.0 + 1e-41;
                        close(&format!("{isa} {shape:?} {name}"), &y, &want, 0.0, allowed);
                    }
                }
            }
        }
    }

    #[test]
    fn f16_agrees_with_the_oracle_to_half_an_ulp_of_f16() {
        for isa in Isa::every() {
            for (in_dim, out_dim) in DIMS {
                for rank in [1, 4, 8, 9] {
                    let shape = LoraShape { rows: 2, in_dim, rank, out_dim, scale: 0.25 };
                    let half =
                        |n, seed| noise(n, seed).iter().map(|&x| f16::put(x).get()).collect();
                    let (a, b): (Vec<f32>, Vec<f32>) =
                        (half(rank * in_dim, 1), half(out_dim * rank, 2));
                    let x: Vec<f32> = half(2 * in_dim, 3);
                    let narrow = |x: &[f32]| x.iter().map(|&x| f16::put(x)).collect::<Vec<_>>();
                    let ab = narrow(&lora_interleave(&shape, &a, &b).unwrap());
                    let mut y = vec![f16::NAN; 2 * out_dim];
                    lora_apply_f16(isa, &shape, &narrow(&x), &ab, &mut y).unwrap();
                    let got: Vec<f32> = y.iter().map(|y| y.get()).collect();
                    let want = oracle::lora(&shape, &x, &a, &b);
                    let least = 1e-6 * (rank * in_dim) as f64;
                    close(&format!("{isa} {shape:?}"), &got, &want, 4.95e-4, least);
                }
            }
        }
    }

    #[test]
    fn sizes_that_do_not_fit_are_errors() {
        let shape = LoraShape { rows: 1, in_dim: 5, rank: 2, out_dim: 3, scale: 1.0 };
        let ab = lora_interleave(&shape, &[1.0; 10], &[1.0; 6]).unwrap();
        assert_eq!(ab.len(), 3 * 2 * 4);
        for isa in Isa::every() {
            assert!(lora_apply(isa, &shape, &[0.0; 4], &ab, &mut [0.0; 3]).is_err());
            assert!(lora_apply(isa, &shape, &[0.0; 5], &ab[1..], &mut [0.0; 3]).is_err());
            assert!(lora_apply(isa, &shape, &[0.0; 5], &ab, &mut [0.0; 4]).is_err());
            let empty = LoraShape { rows: 0, ..shape };
            assert!(lora_apply(isa, &empty, &[], &ab, &mut []).is_ok());
        }
        assert!(lora_interleave(&shape, &[1.0; 9], &[1.0; 6]).is_err());
        assert!(lora_interleave(&shape, &[1.0; 10], &[1.0; 7]).is_err());
    }
}
