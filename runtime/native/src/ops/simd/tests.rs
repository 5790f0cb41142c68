//! Each instruction set against plain Rust.

use super::*;

/// Runs a unary vector function over a slice whose length is a multiple of [`MAX_LANES`].
struct Map<'a, F>(&'a [f32], F);

trait Unary {
    fn call<S: Simd>(&self, s: S, x: S::F) -> S::F;
}

impl<F: Unary> SimdOp for Map<'_, F> {
    type Output = Vec<f32>;

    #[inline(always)]
    fn run<S: Simd>(self, s: S) -> Vec<f32> {
        let mut y = vec![0.0; self.0.len()];
        for (x, y) in self.0.chunks_exact(S::LANES).zip(y.chunks_exact_mut(S::LANES)) {
            s.store(self.1.call(s, s.load(x)), y);
        }
        y
    }
}

struct Exp;
impl Unary for Exp {
    #[inline(always)]
    fn call<S: Simd>(&self, s: S, x: S::F) -> S::F {
        math::exp(s, x)
    }
}

struct Weight;
impl Unary for Weight {
    #[inline(always)]
    fn call<S: Simd>(&self, s: S, x: S::F) -> S::F {
        math::weight(s, x)
    }
}

struct Silu;
impl Unary for Silu {
    #[inline(always)]
    fn call<S: Simd>(&self, s: S, x: S::F) -> S::F {
        math::silu(s, x)
    }
}

/// The distance of `got` from `want` in units of the last place of `want` as f32.
fn ulps(got: f32, want: f64) -> f64 {
    let ulp = (want.abs() as f32).max(f32::MIN_POSITIVE);
    let ulp = f64::from(f32::from_bits(ulp.to_bits() + 1)) - f64::from(ulp);
    (f64::from(got) - want).abs() / ulp
}

fn sweep(low: f32, high: f32) -> Vec<f32> {
    let n = 64 * 1024;
    (0..n).map(|i| low + (high - low) * i as f32 / n as f32).collect()
}

#[test]
fn exp_is_within_two_ulp_where_normal_and_fades_below() {
    for isa in Isa::every() {
        let x = sweep(-87.3, 88.7);
        let worst = x.iter().zip(dispatch(isa, Map(&x, Exp)));
        let worst = worst.map(|(&x, y)| ulps(y, f64::from(x).exp())).fold(0.0, f64::max);
        assert!(worst <= 2.0, "{isa}: {worst} ulp");
        let x = sweep(-0.7, 0.0);
        let worst = x.iter().zip(dispatch(isa, Map(&x, Exp)));
        let worst = worst.map(|(&x, y)| ulps(y, f64::from(x).exp())).fold(0.0, f64::max);
        assert!(worst <= 2.0, "{isa}: {worst} ulp near zero");
        let x = sweep(-99.9, 0.0);
        let worst = x.iter().zip(dispatch(isa, Map(&x, Weight)));
        let worst = worst.map(|(&x, y)| ulps(y, f64::from(x).exp2())).fold(0.0, f64::max);
        assert!(worst <= 2.0, "{isa}: weight {worst} ulp");
        // Subnormal results: within two of the smallest number.
        let x = sweep(-110.0, -87.0);
        for (&x, y) in x.iter().zip(dispatch(isa, Map(&x, Exp))) {
            let error = (f64::from(y) - f64::from(x).exp()).abs();
            assert!(error <= 4e-45 + f64::from(y) * 2.4e-7, "{isa}: exp({x}) = {y}");
        }
    }
}

#[test]
fn exp_and_silu_saturate_at_infinity_and_keep_nan() {
    let mut x = [0.0; MAX_LANES];
    x[..8].copy_from_slice(&[
        f32::INFINITY,
        f32::NEG_INFINITY,
        f32::NAN,
        f32::MAX,
        f32::MIN,
        0.0,
        -0.0,
        1e-40,
    ]);
    for isa in Isa::every() {
        let y = dispatch(isa, Map(&x, Exp));
        assert_eq!(y[..2], [f32::INFINITY, 0.0], "{isa}");
        assert!(y[2].is_nan(), "{isa}");
        assert_eq!(y[3..8], [f32::INFINITY, 0.0, 1.0, 1.0, 1.0], "{isa}");
        let less = [f32::NEG_INFINITY, -200.0, -100.0, f32::NAN, 0.0, -0.0, -1.0, -99.0];
        let y = dispatch(isa, Map(&less.repeat(2), Weight));
        assert_eq!(y[..3], [0.0; 3], "{isa}");
        assert!(y[3].is_nan(), "{isa}");
        assert_eq!(y[4..8], [1.0, 1.0, 0.5, 2.0f32.powi(-99)], "{isa}");
        let y = dispatch(isa, Map(&x, Silu));
        assert_eq!(y[..2], [f32::INFINITY, 0.0], "{isa}");
        assert!(y[2].is_nan(), "{isa}");
        assert_eq!(y[3..7], [f32::MAX, 0.0, 0.0, 0.0], "{isa}");
        assert!((y[7] - 5e-41).abs() < 3e-45, "{isa}");
    }
}

#[test]
fn silu_is_within_four_ulp_where_the_sigmoid_is_normal() {
    for isa in Isa::every() {
        for x in [sweep(-87.0, 90.0), sweep(-1.0, 1.0)] {
            for (&x, y) in x.iter().zip(dispatch(isa, Map(&x, Silu))) {
                let want = f64::from(x) / (1.0 + (-f64::from(x)).exp());
                assert!(ulps(y, want) <= 4.0, "{isa}: silu({x}) = {y}, want {want}");
            }
        }
    }
}

struct Conversions<'a>(&'a [f32]);

impl SimdOp for Conversions<'_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        for x in self.0.chunks_exact(S::LANES) {
            let mut half = [0; 2 * MAX_LANES];
            s.store_f16(s.load(x), &mut half);
            let mut back = [0.0; MAX_LANES];
            s.store(s.load_f16(&half), &mut back);
            for (i, &x) in x.iter().enumerate() {
                let bits = u16::from_le_bytes([half[2 * i], half[2 * i + 1]]);
                assert_eq!(bits, ruvllm_abi::f32_to_f16(x), "{x}");
                assert_eq!(bits, s.narrow(x));
                assert_eq!(back[i].to_bits(), ruvllm_abi::f16_to_f32(bits).to_bits());
                assert_eq!(back[i].to_bits(), s.widen(bits).to_bits());
            }
        }
    }
}

#[test]
fn f16_conversions_equal_the_abi_bit_for_bit() {
    let mut x: Vec<f32> = (0..=u16::MAX)
        .map(ruvllm_abi::f16_to_f32)
        .filter(|x| !x.is_nan())
        .flat_map(|x| [x, x * 1.000_3, f32::from_bits(x.to_bits() ^ 1)])
        .filter(|x| !x.is_nan())
        .collect();
    x.resize(x.len().next_multiple_of(MAX_LANES), 0.0);
    for isa in Isa::every() {
        dispatch(isa, Conversions(&x));
    }
}

struct Shuffles;

impl SimdOp for Shuffles {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        let n = S::LANES;
        let x: Vec<f32> = (0..2 * n).map(|i| i as f32).collect();
        let (a, b) = (s.load(&x), s.load(&x[n..]));
        let (even, odd) = s.deinterleave(a, b);
        let mut y = vec![0.0; 2 * n];
        s.store(even, &mut y);
        s.store(odd, &mut y[n..]);
        for i in 0..n {
            assert_eq!((y[i], y[n + i]), (2.0 * i as f32, 2.0 * i as f32 + 1.0));
        }
        let (first, second) = s.interleave(even, odd);
        s.store(first, &mut y);
        s.store(second, &mut y[n..]);
        assert_eq!(x, y);

        let total = (n * (n - 1) / 2) as f32;
        assert_eq!(s.sum(a), total);
        assert_eq!(s.max_lane(a), (n - 1) as f32);
        assert_eq!(s.max_lane(s.sub(s.splat(0.0), b)), -(n as f32));
        let n2 = (n * n) as f32;
        assert_eq!(s.sum4([a, b, s.splat(1.0), a]), [total, total + n2, n as f32, total]);
        let fold = s.fold4(a);
        assert_eq!(fold.iter().sum::<f32>(), total);
        assert_eq!(fold[1] - fold[0], (n / 4) as f32);
        s.store(s.splat4([1.0, 2.0, 3.0, 4.0]), &mut y);
        assert!(y[..n].chunks(4).all(|four| four == [1.0, 2.0, 3.0, 4.0]));
        assert_eq!(s.eq_bits(a, s.splat(3.0)), 8);
        s.store(s.select_le(a, s.splat(1.0), b, a), &mut y);
        assert_eq!(y[..4], [n as f32, n as f32 + 1.0, 2.0, 3.0]);

        for len in 0..=n {
            y.fill(-1.0);
            s.store(s.load_partial(&x[1..1 + len]), &mut y);
            assert!(y[..len].iter().zip(&x[1..]).all(|(y, x)| y == x));
            assert!(y[len..n].iter().all(|&y| y == 0.0));
            y.fill(-1.0);
            s.store_partial(a, &mut y[..len]);
            assert_eq!(y[..len], x[..len]);
            assert!(y[len..].iter().all(|&y| y == -1.0));
        }
    }
}

#[test]
fn shuffles_and_reductions_agree_with_their_definitions() {
    for isa in Isa::every() {
        dispatch(isa, Shuffles);
    }
}

struct Bytes;

impl SimdOp for Bytes {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        let n = S::LANES;
        for start in (0..256).step_by(n) {
            let bytes: Vec<u8> = (start..start + n).map(|b| b as u8).collect();
            let mut y = [0.0; MAX_LANES];
            s.store(s.load_i8(&bytes), &mut y);
            let mut back = vec![0; n];
            s.store_low_bytes(s.load(&y), &mut back);
            assert_eq!(back, bytes);
            assert!(y.iter().zip(&bytes).all(|(&y, &b)| y == f32::from(b as i8)));
            let (low, high) = s.load_nibbles(&bytes);
            s.store_low_bytes(s.fma(high, s.splat(16.0), low), &mut back);
            assert_eq!(back, bytes);
        }
    }
}

#[test]
fn bytes_survive_the_round_trip() {
    for isa in Isa::every() {
        dispatch(isa, Bytes);
    }
}

#[test]
fn a_foreign_isa_still_runs() {
    for isa in [Isa::Scalar, Isa::Avx2, Isa::Avx512, Isa::Neon] {
        let y = dispatch(isa, Map(&[1.0; MAX_LANES], Exp));
        assert!(ulps(y[0], 1f64.exp()) <= 2.0);
    }
}
