//! The gradients of activations, alone and as gates.

use super::super::simd::math::{self, GELU_CUBIC, GELU_LINEAR};
use super::super::simd::{Simd, SimdOp, dispatch};
use super::{load, store};
use crate::{Isa, NativeError};

/// The gradients of [`swiglu`](super::super::swiglu()) by `gate` and by `up`.
///
/// # Errors
/// [`NativeError::Shape`] where the lengths differ.
pub fn swiglu_backward(
    isa: Isa,
    gate: &[f32],
    up: &[f32],
    dy: &[f32],
    [dgate, dup]: [&mut [f32]; 2],
) -> Result<(), NativeError> {
    call(isa, Gated { of: Silu, gate, up: Some((up, dup)), dy, dgate })
}

/// The gradients of [`geglu`](super::super::geglu()) by `gate` and by `up`.
///
/// # Errors
/// As [`swiglu_backward`].
pub fn geglu_backward(
    isa: Isa,
    gate: &[f32],
    up: &[f32],
    dy: &[f32],
    [dgate, dup]: [&mut [f32]; 2],
) -> Result<(), NativeError> {
    call(isa, Gated { of: Gelu, gate, up: Some((up, dup)), dy, dgate })
}

/// The gradient of [`gelu`](super::super::gelu()).
///
/// # Errors
/// As [`swiglu_backward`].
pub fn gelu_backward(isa: Isa, x: &[f32], dy: &[f32], dx: &mut [f32]) -> Result<(), NativeError> {
    call(isa, Gated { of: Gelu, gate: x, up: None, dy, dgate: dx })
}

/// A function of one number, with its slope.
trait Activation: Copy {
    /// Value and slope.
    fn scalar(self, x: f32) -> [f32; 2];
    /// As [`Activation::scalar`].
    fn vector<S: Simd>(self, s: S, x: S::F) -> [S::F; 2];
}

/// `x s` for the sigmoid `s` of `x`.
#[derive(Clone, Copy)]
struct Silu;

/// GELU in its approximation by tanh: `x s` for the sigmoid `s` of `x (a + b x^2)`.
#[derive(Clone, Copy)]
struct Gelu;

/// Beyond, the sigmoid in GELU is 0 or 1 and its slope 0, which what it is multiplied by must not turn into NaN.
const GELU_BENDS: f32 = 12.0;

fn sigmoid(x: f32) -> f32 {
    let e = (-x.abs()).exp();
    if x >= 0.0 { 1.0 / (1.0 + e) } else { e / (1.0 + e) }
}

impl Activation for Silu {
    fn scalar(self, x: f32) -> [f32; 2] {
        let s = sigmoid(x);
        [x * s, s * (1.0 + x * (1.0 - s))]
    }

    #[inline(always)]
    fn vector<S: Simd>(self, s: S, x: S::F) -> [S::F; 2] {
        let one = s.splat(1.0);
        let share = math::sigmoid(s, x);
        [s.mul(x, share), s.mul(share, s.fma(x, s.sub(one, share), one))]
    }
}

impl Activation for Gelu {
    fn scalar(self, x: f32) -> [f32; 2] {
        let s = sigmoid(x * (GELU_LINEAR + GELU_CUBIC * x * x));
        let near = x.clamp(-GELU_BENDS, GELU_BENDS);
        let steep = GELU_LINEAR + 3.0 * GELU_CUBIC * near * near;
        [x * s, s + near * s * (1.0 - s) * steep]
    }

    #[inline(always)]
    fn vector<S: Simd>(self, s: S, x: S::F) -> [S::F; 2] {
        let slope = s.fma(s.mul(x, x), s.splat(GELU_CUBIC), s.splat(GELU_LINEAR));
        let share = math::sigmoid(s, s.mul(x, slope));
        let near = s.min(s.splat(GELU_BENDS), s.max(s.splat(-GELU_BENDS), x));
        let steep = s.fma(s.mul(near, near), s.splat(3.0 * GELU_CUBIC), s.splat(GELU_LINEAR));
        let bend = s.mul(s.mul(near, share), s.mul(s.sub(s.splat(1.0), share), steep));
        [s.mul(x, share), s.add(share, bend)]
    }
}

struct Gated<'a, A> {
    of: A,
    gate: &'a [f32],
    /// What the activation is multiplied by, and its gradient; 1 where there is none.
    up: Option<(&'a [f32], &'a mut [f32])>,
    dy: &'a [f32],
    dgate: &'a mut [f32],
}

fn call<A: Activation>(isa: Isa, gated: Gated<'_, A>) -> Result<(), NativeError> {
    let n = gated.gate.len();
    NativeError::check("unit: dy elements", n, gated.dy.len())?;
    NativeError::check("unit: elements of the gradient by the gate", n, gated.dgate.len())?;
    if let Some((up, dup)) = &gated.up {
        NativeError::check("unit: up elements", n, up.len())?;
        NativeError::check("unit: elements of the gradient by up", n, dup.len())?;
    }
    match isa {
        Isa::Scalar => {
            let Gated { of, gate, mut up, dy, dgate } = gated;
            for (i, dgate) in dgate.iter_mut().enumerate() {
                let [value, slope] = of.scalar(gate[i]);
                *dgate = dy[i] * slope;
                if let Some((up, dup)) = &mut up {
                    *dgate = dy[i] * up[i] * slope;
                    dup[i] = dy[i] * value;
                }
            }
        }
        _ => dispatch(isa, gated),
    }
    Ok(())
}

impl<A: Activation> SimdOp for Gated<'_, A> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        let Gated { of, gate, mut up, dy, dgate } = self;
        for at in (0..gate.len()).step_by(S::LANES) {
            let [value, slope] = of.vector(s, load(s, gate, at));
            let dy = load(s, dy, at);
            match &mut up {
                None => store(s, s.mul(dy, slope), dgate, at),
                Some((up, dup)) => {
                    store(s, s.mul(s.mul(dy, load(s, up, at)), slope), dgate, at);
                    store(s, s.mul(dy, value), dup, at);
                }
            }
        }
    }
}
