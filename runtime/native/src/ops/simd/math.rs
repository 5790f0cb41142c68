//! Elementary functions on vectors.
//!
//! `exp` follows Cody and Waite: `x = n ln 2 + r` with `ln 2` in two parts, a polynomial of degree 6
//! on `|r| <= ln 2 / 2` interpolated at Chebyshev nodes (relative error 1.0e-8 with its coefficients
//! rounded to f32), and an exact scaling by `2^n`. Measured: at most 2 ulp where the result is normal.

use super::Simd;

// 355 / 512: nine bits, so that its product with any `n` here is exact.
const LN2_HI: f32 = 355.0 / 512.0;
const LN2_LO: f32 = -2.121_944_4e-4;

/// (e^r - 1) / r on [-ln 2 / 2, ln 2 / 2], constant term first.
const EXP: [f32; 6] = [1.0, 0.5, 0.166_665_05, 0.041_666_463, 0.008_369_184, 0.001_393_368_6];

/// (2^r - 1) / r on [-1/2, 1/2], constant term first.
const EXP2: [f32; 6] = [
    std::f32::consts::LN_2,
    0.240_226_5,
    0.055_503_57,
    0.009_618_083,
    0.001_339_086_3,
    0.000_154_531_63,
];

#[inline(always)]
fn one_plus_r_times<S: Simd>(s: S, r: S::F, c: [f32; 6]) -> S::F {
    let mut q = s.splat(c[5]);
    for i in (0..5).rev() {
        q = s.fma(q, r, s.splat(c[i]));
    }
    s.fma(q, r, s.splat(1.0))
}

/// `e^x`; 0 below -104 and infinite above 88.8; NaN stays NaN.
#[inline(always)]
pub(crate) fn exp<S: Simd>(s: S, x: S::F) -> S::F {
    // The constant comes first so that a NaN in x survives.
    let x = s.min(s.splat(89.0), s.max(s.splat(-105.0), x));
    let n = s.round_small(s.mul(x, s.splat(std::f32::consts::LOG2_E)));
    let r = s.fma(n, s.splat(-LN2_HI), x);
    let r = s.fma(n, s.splat(-LN2_LO), r);
    s.scale_pow2(one_plus_r_times(s, r, EXP), n)
}

/// The logarithm to base 2 of the least weight of a softmax that counts.
pub(crate) const LEAST_WEIGHT: f32 = -100.0;

/// `2^x`, what a score weighs in a softmax that is `x <= 0` more than the largest, in base 2; 0 up to [`LEAST_WEIGHT`].
/// NaN stays NaN.
///
/// Beside the 1 that the largest weighs, such a weight changes nothing. But its products can be smaller than normal
/// numbers, which take some processors a hundred cycles each.
#[inline(always)]
pub(crate) fn weight<S: Simd>(s: S, x: S::F) -> S::F {
    let least = s.splat(LEAST_WEIGHT);
    let inside = s.max(least, x);
    let n = s.round_small(inside);
    let weight = s.scale_pow2(one_plus_r_times(s, s.sub(inside, n), EXP2), n);
    s.select_le(x, least, s.splat(0.0), weight)
}

/// `g * sigmoid(g)`, of relative error at most 4 ulp where the sigmoid is normal (`g > -87`).
///
/// Below that it fades to zero through the subnormals; -infinity gives -0 and NaN stays NaN.
#[inline(always)]
pub(crate) fn silu<S: Simd>(s: S, g: S::F) -> S::F {
    s.mul(s.max(s.splat(f32::MIN), g), sigmoid(s, g))
}

/// `1 / (1 + e^-x)`.
#[inline(always)]
pub(crate) fn sigmoid<S: Simd>(s: S, x: S::F) -> S::F {
    // With e = exp(-|x|) in [0, 1] nothing overflows: it is 1 / (1 + e) above zero and e / (1 + e) below.
    let one = s.splat(1.0);
    let zero = s.splat(0.0);
    let e = exp(s, s.sub(zero, s.abs(x)));
    s.div(s.select_le(zero, x, one, e), s.add(one, e))
}

/// `2 sqrt(2 / pi)`, and 0.044715 times that: `gelu(x) = x * sigmoid(GELU_LINEAR x + GELU_CUBIC x^3)`.
pub(crate) const GELU_LINEAR: f32 = 1.595_769_2;
pub(crate) const GELU_CUBIC: f32 = 0.071_354_82;

/// GELU in its approximation by tanh; -infinity gives -0 and NaN stays NaN.
#[inline(always)]
pub(crate) fn gelu<S: Simd>(s: S, x: S::F) -> S::F {
    let slope = s.fma(s.mul(x, x), s.splat(GELU_CUBIC), s.splat(GELU_LINEAR));
    s.mul(s.max(s.splat(f32::MIN), x), sigmoid(s, s.mul(x, slope)))
}
