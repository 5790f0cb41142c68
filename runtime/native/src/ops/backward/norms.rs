//! The gradients of the norms.

use super::super::layernorm::{SMALLEST_VARIANCE, moments, sum};
use super::super::rmsnorm::{SMALLEST_MEAN, sum_of_squares};
use super::super::simd::{Simd, SimdOp, dispatch};
use super::super::whole_rows;
use super::{load, store};
use crate::{Isa, NativeError};

/// The gradients of [`rmsnorm`](super::super::rmsnorm()) by `x`, `[rows, dim]`, and by `weight`, `[dim]`.
///
/// # Errors
/// [`NativeError::Shape`] where `x` is not whole rows, or `dy` or a gradient differs in length.
pub fn rmsnorm_backward(
    isa: Isa,
    x: &[f32],
    weight: &[f32],
    eps: f32,
    dy: &[f32],
    [dx, dparams]: [&mut [f32]; 2],
) -> Result<(), NativeError> {
    call(isa, Norm { x, weight, eps, dy, dx, dparams, centred: false })
}

/// The gradients of [`layernorm`](super::super::layernorm()) by `x`, `[rows, dim]`, and by weights and biases,
/// `[2, dim]`.
///
/// # Errors
/// As [`rmsnorm_backward`].
pub fn layernorm_backward(
    isa: Isa,
    x: &[f32],
    weight: &[f32],
    eps: f32,
    dy: &[f32],
    [dx, dparams]: [&mut [f32]; 2],
) -> Result<(), NativeError> {
    call(isa, Norm { x, weight, eps, dy, dx, dparams, centred: true })
}

struct Norm<'a> {
    x: &'a [f32],
    weight: &'a [f32],
    eps: f32,
    dy: &'a [f32],
    dx: &'a mut [f32],
    /// Of the weights, then, where rows are centred, of the biases.
    dparams: &'a mut [f32],
    centred: bool,
}

/// A row: `x`, `dy` and `dx`.
type Row<'a> = (&'a [f32], &'a [f32], &'a mut [f32]);

fn call(isa: Isa, norm: Norm<'_>) -> Result<(), NativeError> {
    let dim = norm.weight.len();
    whole_rows("norm: x elements", dim, norm.x.len())?;
    NativeError::check("norm: dy elements", norm.x.len(), norm.dy.len())?;
    NativeError::check("norm: dx elements", norm.x.len(), norm.dx.len())?;
    let params = if norm.centred { 2 * dim } else { dim };
    NativeError::check("norm: elements of the gradient by params", params, norm.dparams.len())?;
    norm.dparams.fill(0.0);
    match isa {
        _ if dim == 0 => {}
        Isa::Scalar => {
            let Norm { x, weight, eps, dy, dx, dparams, centred } = norm;
            let rows = x.chunks_exact(dim).zip(dy.chunks_exact(dim)).zip(dx.chunks_exact_mut(dim));
            rows.for_each(|((x, dy), dx)| reference((x, dy, dx), weight, eps, dparams, centred));
        }
        _ => dispatch(isa, norm),
    }
    Ok(())
}

/// One row, with everything between inputs and gradients in f64.
fn reference((x, dy, dx): Row<'_>, weight: &[f32], eps: f32, dparams: &mut [f32], centred: bool) {
    let n = x.len() as f64;
    let center = if centred { x.iter().map(|x| f64::from(*x)).sum::<f64>() / n } else { 0.0 };
    let squares = x.iter().map(|x| (f64::from(*x) - center).powi(2)).sum::<f64>();
    let scale = 1.0 / (squares / n + f64::from(eps)).sqrt();
    let normal = |x: f32| (f64::from(x) - center) * scale;
    let scaled = |i: usize| f64::from(dy[i]) * f64::from(weight[i]);
    let along = x.iter().enumerate().map(|(i, x)| scaled(i) * normal(*x)).sum::<f64>() / n;
    let common = if centred { (0..x.len()).map(scaled).sum::<f64>() / n } else { 0.0 };
    for (i, (x, dx)) in x.iter().zip(dx).enumerate() {
        *dx = (scale * (scaled(i) - common - normal(*x) * along)) as f32;
        dparams[i] += (f64::from(dy[i]) * normal(*x)) as f32;
        if centred {
            dparams[weight.len() + i] += dy[i];
        }
    }
}

/// What turns the elements of a row into its normal ones.
#[derive(Clone, Copy)]
struct Normalizer<F> {
    center: F,
    correction: F,
    scale: F,
}

impl<F: Copy> Normalizer<F> {
    #[inline(always)]
    fn normal<S: Simd<F = F>>(&self, s: S, x: &[f32], at: usize) -> F {
        let centered = s.sub(s.sub(load(s, x, at), self.center), self.correction);
        s.mul(centered, self.scale)
    }
}

/// `dy * weight`, the gradient by the normal elements.
#[inline(always)]
fn product<S: Simd>(s: S, dy: &[f32], weight: &[f32], at: usize) -> S::F {
    s.mul(load(s, dy, at), load(s, weight, at))
}

impl SimdOp for Norm<'_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        let Norm { x, weight, eps, dy, dx, dparams, centred } = self;
        let dim = weight.len();
        let n = dim as f32;
        let rows = x.chunks_exact(dim).zip(dy.chunks_exact(dim)).zip(dx.chunks_exact_mut(dim));
        for ((x, dy), dx) in rows {
            // As in the forward operation: the rounded mean, and what it is off by.
            let (center, correction, spread, least) = if centred {
                let center = sum(s, x) / n;
                let (first, second) = moments(s, x, s.splat(center));
                let correction = first / n;
                (center, correction, second / n - correction * correction, SMALLEST_VARIANCE)
            } else {
                (0.0, 0.0, sum_of_squares(s, x) / n, SMALLEST_MEAN)
            };
            // Also false for the NaN that an overflow leaves.
            let in_range = (least..=f32::MAX).contains(&spread);
            let spread = spread + eps;
            if !in_range || !spread.is_finite() {
                reference((x, dy, dx), weight, eps, dparams, centred);
                continue;
            }
            let scale = s.splat(1.0 / spread.sqrt());
            let (center, correction) = (s.splat(center), s.splat(correction));
            let row = Normalizer { center, correction, scale };
            let (mut along, mut common) = (s.splat(0.0), s.splat(0.0));
            // Lanes beyond the end have no gradient, so they add nothing.
            for at in (0..dim).step_by(S::LANES) {
                let scaled = product(s, dy, weight, at);
                along = s.fma(scaled, row.normal(s, x, at), along);
                common = s.add(common, scaled);
            }
            let minus_along = s.splat(-s.sum(along) / n);
            let common = s.splat(if centred { s.sum(common) / n } else { 0.0 });
            let (dweight, dbias) = dparams.split_at_mut(dim);
            for at in (0..dim).step_by(S::LANES) {
                let normal = row.normal(s, x, at);
                let change = s.fma(minus_along, normal, s.sub(product(s, dy, weight, at), common));
                store(s, s.mul(scale, change), dx, at);
                let dy = load(s, dy, at);
                store(s, s.fma(dy, normal, load(s, dweight, at)), dweight, at);
                if centred {
                    store(s, s.add(load(s, dbias, at), dy), dbias, at);
                }
            }
        }
    }
}
