//! GELU in its approximation by tanh (Hendrycks and Gimpel, arXiv 1606.08415), alone and as the gate of
//! GEGLU (Shazeer, arXiv 2002.05202).
//!
//! `(1 + tanh(u)) / 2` is the sigmoid of `2 u`.

use super::simd::math::{self, GELU_CUBIC, GELU_LINEAR};
use super::simd::{Elem, Simd, SimdOp, dispatch};
use super::swiglu::{Activation, gated};
use crate::{Isa, NativeError};
use half::f16;

/// `y = x / 2 * (1 + tanh(sqrt(2 / pi) * (x + 0.044715 * x^3)))`, element by element.
///
/// Within 2e-5 relative of the f64 definition, most of it the rounding of the exponential's argument, and
/// 2e-44 absolute where results are subnormal. Infinities give infinity and -0.
///
/// # Errors
/// [`NativeError::Shape`] where the lengths differ.
pub fn gelu(isa: Isa, x: &[f32], y: &mut [f32]) -> Result<(), NativeError> {
    call(isa, Gelu { x, up: None, y })
}

/// [`gelu`] on binary16: computed in f32, rounded once more at the end.
///
/// # Errors
/// As [`gelu`].
pub fn gelu_f16(isa: Isa, x: &[f16], y: &mut [f16]) -> Result<(), NativeError> {
    call(isa, Gelu { x, up: None, y })
}

/// `y = gelu(gate) * up`, element by element, to the precision of [`gelu`].
///
/// # Errors
/// [`NativeError::Shape`] where the lengths differ.
pub fn geglu(isa: Isa, gate: &[f32], up: &[f32], y: &mut [f32]) -> Result<(), NativeError> {
    call(isa, Gelu { x: gate, up: Some(up), y })
}

/// [`geglu`] on binary16: computed in f32, rounded once more at the end.
///
/// # Errors
/// As [`geglu`].
pub fn geglu_f16(isa: Isa, gate: &[f16], up: &[f16], y: &mut [f16]) -> Result<(), NativeError> {
    call(isa, Gelu { x: gate, up: Some(up), y })
}

struct Gelu<'a, T> {
    x: &'a [T],
    up: Option<&'a [T]>,
    y: &'a mut [T],
}

fn call<T: Elem>(isa: Isa, op: Gelu<'_, T>) -> Result<(), NativeError> {
    let n = op.x.len();
    NativeError::check("geglu: up elements", n, op.up.map_or(n, <[T]>::len))?;
    NativeError::check("gelu: y elements", n, op.y.len())?;
    match isa {
        Isa::Scalar => {
            for (i, (x, y)) in op.x.iter().zip(op.y).enumerate() {
                let up = op.up.map_or(1.0, |up| up[i].get());
                *y = T::put(reference(x.get()) * up);
            }
        }
        _ => dispatch(isa, op),
    }
    Ok(())
}

/// `x * sigmoid(2 u)` without an intermediate that turns infinity into NaN.
fn reference(x: f32) -> f32 {
    let twice_u = x * (GELU_LINEAR + GELU_CUBIC * x * x);
    let e = (-twice_u.abs()).exp();
    let sigmoid = if x >= 0.0 { 1.0 / (1.0 + e) } else { e / (1.0 + e) };
    x.max(f32::MIN) * sigmoid
}

impl<T: Elem> SimdOp for Gelu<'_, T> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        match self.up {
            None => map(s, self.x, self.y),
            Some(up) => gated::<T, S, Self>(s, self.x, up, self.y),
        }
    }
}

impl<T> Activation for Gelu<'_, T> {
    #[inline(always)]
    fn of<S: Simd>(s: S, gate: S::F) -> S::F {
        math::gelu(s, gate)
    }
}

#[inline(always)]
fn map<T: Elem, S: Simd>(s: S, x: &[T], y: &mut [T]) {
    let mut x = x.chunks_exact(S::LANES);
    let mut y = y.chunks_exact_mut(S::LANES);
    for (x, y) in (&mut x).zip(&mut y) {
        T::store(s, math::gelu(s, T::load(s, x)), y);
    }
    let y = y.into_remainder();
    if !y.is_empty() {
        T::store_partial(s, math::gelu(s, T::load_partial(s, x.remainder())), y);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ops::testing::{LENGTHS, close, noise, ranges};
    use crate::oracle;

    #[test]
    fn agrees_with_the_oracle_over_lengths_and_ranges() {
        for isa in Isa::every() {
            for n in LENGTHS {
                let up = noise(n, 9);
                let wide = noise(n, 4).iter().map(|x| x * 15.0).collect();
                for (name, x) in ranges(n, n as u64).into_iter().chain([("wide", wide)]) {
                    let what = format!("{isa} {n} {name}");
                    let mut y = vec![f32::NAN; n];
                    gelu(isa, &x, &mut y).unwrap();
                    close(&what, &y, &oracle::gelu(&x), 2e-5, 2e-44);
                    geglu(isa, &x, &up, &mut y).unwrap();
                    close(&what, &y, &oracle::geglu(&x, &up), 2e-5, 2e-44);
                }
            }
        }
    }

    #[test]
    fn saturates_instead_of_giving_nan() {
        let x = [f32::MIN, f32::NEG_INFINITY, f32::MAX, f32::INFINITY, -1000.0, 0.0, 100.0];
        for isa in Isa::every() {
            let mut y = [f32::NAN; 7];
            gelu(isa, &x, &mut y).unwrap();
            assert_eq!(y, [0.0, 0.0, f32::MAX, f32::INFINITY, 0.0, 0.0, 100.0], "{isa}");
            assert!(y[0].is_sign_negative() && y[1].is_sign_negative(), "{isa}");
            gelu(isa, &[f32::NAN; 7], &mut y).unwrap();
            assert!(y.iter().all(|y| y.is_nan()), "{isa}");
        }
    }

    #[test]
    fn binary16_rounds_the_same_result_once() {
        let x: Vec<f16> = noise(515, 7).iter().map(|x| f16::from_f32(x * 8.0)).collect();
        let up: Vec<f16> = noise(515, 8).iter().map(|x| f16::from_f32(*x)).collect();
        let wide = |x: &[f16]| x.iter().map(|x| x.to_f32()).collect::<Vec<f32>>();
        for isa in Isa::every() {
            let (mut y, mut want) = (vec![f16::NAN; 515], vec![f32::NAN; 515]);
            geglu_f16(isa, &x, &up, &mut y).unwrap();
            geglu(isa, &wide(&x), &wide(&up), &mut want).unwrap();
            assert!(y.iter().zip(want).all(|(y, want)| *y == f16::from_f32(want)), "{isa}");
        }
    }

    #[test]
    fn lengths_must_agree() {
        assert!(gelu(Isa::Scalar, &[0.0; 3], &mut [0.0; 2]).is_err());
        assert!(geglu(Isa::Scalar, &[0.0; 3], &[0.0; 2], &mut [0.0; 3]).is_err());
    }
}
