//! The gradients of the low-rank update.

use super::super::lora::{LoraShape, four, from_low_rank, to_low_rank};
use super::super::simd::{Simd, SimdOp, dispatch};
use super::{load, store};
use crate::{Isa, NativeError};

/// The gradients of [`lora_apply`](super::super::lora_apply) by `x`, `[rows, in_dim]`, and by both factors, in the
/// layout of `ab`. Allocates eight numbers of each rank.
///
/// # Errors
/// [`NativeError::Shape`] where a buffer does not fit `shape`.
pub fn lora_backward(
    isa: Isa,
    shape: &LoraShape,
    x: &[f32],
    ab: &[f32],
    dy: &[f32],
    [dx, dab]: [&mut [f32]; 2],
) -> Result<(), NativeError> {
    shape.check(x.len(), ab.len(), dy.len())?;
    NativeError::check("lora: dx elements", x.len(), dx.len())?;
    NativeError::check("lora: elements of the gradient by ab", ab.len(), dab.len())?;
    dab.fill(0.0);
    if shape.rank == 0 || shape.in_dim == 0 || shape.out_dim == 0 {
        dx.fill(0.0);
        return Ok(());
    }
    let mut low = vec![0.0; 8 * shape.rank];
    let (t, u) = low.split_at_mut(4 * shape.rank);
    let call = Lora { shape: *shape, x, ab, dy, dx, dab, t, u };
    match isa {
        Isa::Scalar => reference(call),
        _ => dispatch(isa, call),
    }
    Ok(())
}

struct Lora<'a> {
    shape: LoraShape,
    x: &'a [f32],
    ab: &'a [f32],
    dy: &'a [f32],
    dx: &'a mut [f32],
    dab: &'a mut [f32],
    /// `scale x A^T` and `scale dy B` of a row, four copies of each number.
    t: &'a mut [f32],
    u: &'a mut [f32],
}

fn reference(call: Lora<'_>) {
    let Lora { shape: LoraShape { in_dim, rank, out_dim, scale, .. }, x, ab, dy, dx, dab, t, u } =
        call;
    let first_b = in_dim.div_ceil(4);
    // Where column `i` of a factor has its element of rank `r`.
    let at = |group: usize, r: usize, i: usize| ((group + i / 4) * rank + r) * 4 + i % 4;
    for ((x, dy), dx) in
        x.chunks_exact(in_dim).zip(dy.chunks_exact(out_dim)).zip(dx.chunks_exact_mut(in_dim))
    {
        dx.fill(0.0);
        for r in 0..rank {
            let sum = |x: &[f32], group| -> f32 {
                x.iter().enumerate().map(|(i, x)| x * ab[at(group, r, i)]).sum()
            };
            (t[r], u[r]) = (scale * sum(x, 0), scale * sum(dy, first_b));
            for (i, (x, dx)) in x.iter().zip(&mut *dx).enumerate() {
                *dx += u[r] * ab[at(0, r, i)];
                dab[at(0, r, i)] += u[r] * x;
            }
            for (j, dy) in dy.iter().enumerate() {
                dab[at(first_b, r, j)] += dy * t[r];
            }
        }
    }
}

impl SimdOp for Lora<'_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        let LoraShape { in_dim, rank, out_dim, scale, .. } = self.shape;
        let split = self.shape.in_groups() * rank * 4;
        let (a, b) = self.ab.split_at(split);
        let (da, db) = self.dab.split_at_mut(split);
        let rows = self.x.chunks_exact(in_dim).zip(self.dy.chunks_exact(out_dim));
        for ((x, dy), dx) in rows.zip(self.dx.chunks_exact_mut(in_dim)) {
            to_low_rank(s, x, a, rank, scale, self.t);
            to_low_rank(s, dy, b, rank, scale, self.u);
            from_low_rank(s, self.u, a, dx);
            add_outer(s, self.u, x, da);
            add_outer(s, self.t, dy, db);
        }
    }
}

/// Adds the products of every number of a rank, in four copies, with every element of `x` to a factor's gradient.
#[inline(always)]
fn add_outer<S: Simd>(s: S, low: &[f32], x: &[f32], factor: &mut [f32]) {
    for (x, group) in x.chunks(4).zip(factor.chunks_exact_mut(low.len())) {
        let x = s.splat4(four(x));
        for at in (0..low.len()).step_by(S::LANES) {
            store(s, s.fma(load(s, low, at), x, load(s, group, at)), group, at);
        }
    }
}
