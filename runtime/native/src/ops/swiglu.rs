//! The gated unit of Shazeer, arXiv 2002.05202.

use super::simd::{Elem, Simd, SimdOp, dispatch, math};
use crate::{Isa, NativeError};
use half::f16;

/// `y = gate * sigmoid(gate) * up`, element by element.
///
/// Within 1e-6 relative of the f64 definition where `gate > -87`; below that the sigmoid fades to
/// zero through the subnormals, an absolute error of at most 2e-43 times `|up|`, times `|gate|`. Finite
/// inputs give NaN only where infinity meets zero: a `gate` of -infinity counts as a sigmoid of zero.
///
/// # Errors
/// [`NativeError::Shape`] where the lengths differ.
pub fn swiglu(isa: Isa, gate: &[f32], up: &[f32], y: &mut [f32]) -> Result<(), NativeError> {
    call(isa, SwiGlu { gate, up, y })
}

/// [`swiglu`] on binary16: computed in f32, rounded once more at the end.
///
/// # Errors
/// As [`swiglu`].
pub fn swiglu_f16(isa: Isa, gate: &[f16], up: &[f16], y: &mut [f16]) -> Result<(), NativeError> {
    call(isa, SwiGlu { gate, up, y })
}

struct SwiGlu<'a, T> {
    gate: &'a [T],
    up: &'a [T],
    y: &'a mut [T],
}

fn call<T: Elem>(isa: Isa, op: SwiGlu<'_, T>) -> Result<(), NativeError> {
    NativeError::check("swiglu: up elements", op.gate.len(), op.up.len())?;
    NativeError::check("swiglu: y elements", op.gate.len(), op.y.len())?;
    match isa {
        Isa::Scalar => {
            for ((gate, up), y) in op.gate.iter().zip(op.up).zip(op.y) {
                *y = T::put(silu(gate.get()) * up.get());
            }
        }
        _ => dispatch(isa, op),
    }
    Ok(())
}

/// `g * sigmoid(g)` without an intermediate that overflows.
fn silu(g: f32) -> f32 {
    let e = (-g.abs()).exp();
    let sigmoid = if g >= 0.0 { 1.0 / (1.0 + e) } else { e / (1.0 + e) };
    if g == f32::NEG_INFINITY { -0.0 } else { g * sigmoid }
}

impl<T: Elem> SimdOp for SwiGlu<'_, T> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        gated::<T, S, Silu>(s, self.gate, self.up, self.y);
    }
}

/// A function of a gate. A closure would be one of its own in the program, without the instructions of `S`: each
/// of its operations a call.
pub(super) trait Activation {
    fn of<S: Simd>(s: S, gate: S::F) -> S::F;
}

struct Silu;

impl Activation for Silu {
    #[inline(always)]
    fn of<S: Simd>(s: S, gate: S::F) -> S::F {
        math::silu(s, gate)
    }
}

/// `y = activation(gate) * up`, a vector at a time.
#[inline(always)]
pub(super) fn gated<T: Elem, S: Simd, A: Activation>(s: S, gate: &[T], up: &[T], y: &mut [T]) {
    let mut gate = gate.chunks_exact(S::LANES);
    let mut up = up.chunks_exact(S::LANES);
    let mut y = y.chunks_exact_mut(S::LANES);
    for ((gate, up), y) in (&mut gate).zip(&mut up).zip(&mut y) {
        T::store(s, s.mul(A::of(s, T::load(s, gate)), T::load(s, up)), y);
    }
    let y = y.into_remainder();
    if !y.is_empty() {
        let active = A::of(s, T::load_partial(s, gate.remainder()));
        T::store_partial(s, s.mul(active, T::load_partial(s, up.remainder())), y);
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
                for (name, gate) in ranges(n, n as u64) {
                    let mut y = vec![f32::NAN; n];
                    swiglu(isa, &gate, &up, &mut y).unwrap();
                    let want = oracle::swiglu(&gate, &up);
                    close(&format!("{isa} {n} {name}"), &y, &want, 1e-6, 1e-44);
                }
                let gate: Vec<f32> = noise(n, 4).iter().map(|g| g * 110.0).collect();
                let mut y = vec![f32::NAN; n];
                swiglu(isa, &gate, &up, &mut y).unwrap();
                close(&format!("{isa} {n}"), &y, &oracle::swiglu(&gate, &up), 1e-6, 2e-41);
            }
        }
    }

    #[test]
    fn saturates_instead_of_giving_nan() {
        let gate = [f32::MIN, f32::NEG_INFINITY, f32::MAX, f32::INFINITY, -1000.0, 0.0, 100.0];
        let up = [2.0, 2.0, 0.5, 0.5, f32::MAX, 3.0, -1.0];
        for isa in Isa::every() {
            let mut y = [f32::NAN; 7];
            swiglu(isa, &gate, &up, &mut y).unwrap();
            assert_eq!(y, [0.0, 0.0, f32::MAX / 2.0, f32::INFINITY, 0.0, 0.0, -100.0], "{isa}");
            assert!(y[0].is_sign_negative() && y[1].is_sign_negative(), "{isa}");
            swiglu(isa, &[f32::NAN; 7], &up, &mut y).unwrap();
            assert!(y.iter().all(|y| y.is_nan()), "{isa}");
        }
    }

    #[test]
    fn f16_agrees_with_the_oracle_to_half_an_ulp_of_f16() {
        for isa in Isa::every() {
            for n in LENGTHS {
                let half = |seed| noise(n, seed).iter().map(|&x| f16::put(x * 6.0)).collect();
                let (gate, up): (Vec<f16>, Vec<f16>) = (half(1), half(2));
                let mut y = vec![f16::NAN; n];
                swiglu_f16(isa, &gate, &up, &mut y).unwrap();
                let wide = |x: &[f16]| x.iter().map(|x| x.get()).collect::<Vec<_>>();
                let want = oracle::swiglu(&wide(&gate), &wide(&up));
                close(&format!("{isa} {n}"), &wide(&y), &want, 4.95e-4, 3.1e-8);
            }
        }
    }

    #[test]
    fn lengths_must_agree() {
        assert!(swiglu(Isa::Scalar, &[0.0; 3], &[0.0; 2], &mut [0.0; 3]).is_err());
        assert!(swiglu(Isa::Scalar, &[0.0; 3], &[0.0; 3], &mut [0.0; 2]).is_err());
    }
}
