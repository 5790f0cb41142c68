//! The gradients of the operations, in f64: what `kernel_backward` is held against.
//!
//! Each function takes the inputs of the operation and the gradient of some number by its output, and gives
//! that number's gradients by the inputs, in their layouts. With each element comes what its terms add up to in
//! magnitude, because that is what rounding errors grow with: terms may cancel.

use super::{dot, wide};
use crate::ops::{LoraShape, RopeShape};

/// An element of a gradient.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Gradient {
    /// Its value.
    pub value: f64,
    /// The sum of the magnitudes of its terms, which whoever computes it rounds.
    pub magnitude: f64,
}

/// By both inputs; empty where the operation is not differentiated by one.
pub type Gradients = [Vec<Gradient>; 2];

/// What a sigmoid may be off by on its way to zero, as a share of what is allowed of its product: numbers of
/// binary32 end there.
const VANISHING: f64 = 1e-30;

impl Gradient {
    fn new(value: f64, magnitude: f64) -> Self {
        Self { value, magnitude }
    }

    fn add(&mut self, term: f64, magnitude: f64) {
        self.value += term;
        self.magnitude += magnitude;
    }
}

fn mean(terms: impl Iterator<Item = f64>, n: f64) -> f64 {
    terms.sum::<f64>() / n
}

/// Of [`rope`](super::rope): the rotation by the angles turned round. There is none by `freqs`.
///
/// # Panics
/// Where `dy` or `freqs` is shorter than `shape` says.
pub fn rope(shape: &RopeShape, freqs: &[f32], dy: &[f32]) -> Gradients {
    let turned: Vec<f32> =
        freqs.iter().enumerate().map(|(i, x)| if i % 2 == 0 { *x } else { -x }).collect();
    let values = super::rope(shape, dy, &turned);
    let magnitudes: Vec<f32> = dy.iter().map(|x| x.abs()).collect();
    // Of a pair of magnitudes a and b: a |cos| + b |sin| and a |sin| + b |cos|, by a rotation of its own.
    let steep = |(i, x): (usize, &f32)| if i % 2 == 0 { x.abs() } else { -x.abs() };
    let one: Vec<f32> = freqs.iter().enumerate().map(steep).collect();
    let other: Vec<f32> = freqs.iter().map(|x| x.abs()).collect();
    let magnitudes = super::rope(shape, &magnitudes, &one)
        .into_iter()
        .zip(super::rope(shape, &magnitudes, &other))
        .map(|(one, other)| one.max(other));
    [values.into_iter().zip(magnitudes).map(|(v, m)| Gradient::new(v, m)).collect(), Vec::new()]
}

/// Of [`rmsnorm`](super::rmsnorm), by `x` and by `weight`: with `n = x / root`,
/// `dx = (dy weight - n mean(dy weight n)) / root`, and `dweight` the sum of `dy n` over the rows.
pub fn rmsnorm(x: &[f32], weight: &[f32], eps: f32, dy: &[f32]) -> Gradients {
    let n = weight.len();
    let (mut dx, mut dweight) = (Vec::with_capacity(x.len()), vec![Gradient::default(); n]);
    for (x, dy) in x.chunks(n.max(1)).zip(dy.chunks(n.max(1))) {
        let root = (mean(wide(x).map(|x| x * x), n as f64) + f64::from(eps)).sqrt();
        let scaled: Vec<f64> = wide(dy).zip(wide(weight)).map(|(dy, w)| dy * w).collect();
        let normal: Vec<f64> = wide(x).map(|x| x / root).collect();
        let along = |(d, n): (&f64, &f64)| d * n;
        let terms = || scaled.iter().zip(&normal).map(along);
        let (along, most) = (mean(terms(), n as f64), mean(terms().map(f64::abs), n as f64));
        for (i, dy) in wide(dy).enumerate() {
            let (d, n) = (scaled[i], normal[i]);
            dx.push(Gradient::new((d - n * along) / root, (d.abs() + n.abs() * most) / root));
            dweight[i].add(dy * n, (dy * n).abs());
        }
    }
    [dx, dweight]
}

/// Of [`layernorm`](super::layernorm), by `x` and by the weights and biases, one after the other: with
/// `n = (x - mean) / root`, `dx = (dy weight - mean(dy weight) - n mean(dy weight n)) / root`, and the sums of
/// `dy n` and of `dy` over the rows.
pub fn layernorm(x: &[f32], weight: &[f32], eps: f32, dy: &[f32]) -> Gradients {
    let n = weight.len();
    let (mut dx, mut dparams) = (Vec::with_capacity(x.len()), vec![Gradient::default(); 2 * n]);
    for (x, dy) in x.chunks(n.max(1)).zip(dy.chunks(n.max(1))) {
        let center = mean(wide(x), n as f64);
        let spread = mean(wide(x).map(|x| (x - center).powi(2)), n as f64);
        let root = (spread + f64::from(eps)).sqrt();
        let size = mean(wide(x).map(f64::abs), n as f64);
        let scaled: Vec<f64> = wide(dy).zip(wide(weight)).map(|(dy, w)| dy * w).collect();
        let normal: Vec<f64> = wide(x).map(|x| (x - center) / root).collect();
        // What the difference was taken of.
        let sizes: Vec<f64> = wide(x).map(|x| (x.abs() + size) / root).collect();
        let common = mean(scaled.iter().copied(), n as f64);
        let common_size = mean(scaled.iter().map(|d| d.abs()), n as f64);
        let along = mean(scaled.iter().zip(&normal).map(|(d, n)| d * n), n as f64);
        let most = mean(scaled.iter().zip(&sizes).map(|(d, size)| d.abs() * size), n as f64);
        for (i, dy) in wide(dy).enumerate() {
            let magnitude = scaled[i].abs() + common_size + sizes[i] * most;
            dx.push(Gradient::new(
                (scaled[i] - common - normal[i] * along) / root,
                magnitude / root,
            ));
            dparams[i].add(dy * normal[i], dy.abs() * sizes[i]);
            dparams[n + i].add(dy, dy.abs());
        }
    }
    [dx, dparams]
}

/// An activation's value and slope at a point, and what both may be off by, relative to what is allowed.
struct Active {
    value: Gradient,
    slope: Gradient,
}

fn sigmoid(x: f64) -> f64 {
    1.0 / (1.0 + (-x).exp())
}

/// `x s` for the sigmoid `s` of `x`, and its slope `s (1 + x (1 - s))`.
fn silu_at(x: f64) -> Active {
    let (s, rest) = (sigmoid(x), sigmoid(-x));
    let vanishing = VANISHING * (1.0 + x.abs());
    Active {
        value: Gradient::new(x * s, (x * s).abs() + vanishing),
        slope: Gradient::new(s * (1.0 + x * rest), s * (1.0 + x.abs() * rest) + vanishing),
    }
}

/// `x s` for the sigmoid `s` of `u = x (a + b x^2)`, and its slope `s + x s (1 - s) (a + 3 b x^2)`.
fn gelu_at(x: f64) -> Active {
    let a = 2.0 * (2.0 / std::f64::consts::PI).sqrt();
    let b = 0.044715 * a;
    let u = x * (a + b * x * x);
    let (s, rest) = (sigmoid(u), sigmoid(-u));
    let bend = x * s * rest * (a + 3.0 * b * x * x);
    // The rounding of the sigmoid's argument.
    let (near, far) = (1.0 + u.abs() * rest, 1.0 + u.abs());
    let vanishing = VANISHING * (1.0 + x.abs());
    Active {
        value: Gradient::new(x * s, (x * s).abs() * near + vanishing),
        slope: Gradient::new(s + bend, s * near + bend.abs() * far + vanishing),
    }
}

/// Of [`swiglu`](super::swiglu), by `gate` and by `up`.
pub fn swiglu(gate: &[f32], up: &[f32], dy: &[f32]) -> Gradients {
    gated(silu_at, gate, up, dy)
}

/// Of [`geglu`](super::geglu), by `gate` and by `up`.
pub fn geglu(gate: &[f32], up: &[f32], dy: &[f32]) -> Gradients {
    gated(gelu_at, gate, up, dy)
}

/// Of [`gelu`](super::gelu).
pub fn gelu(x: &[f32], dy: &[f32]) -> Gradients {
    let [dx, _] = gated(gelu_at, x, &vec![1.0; x.len()], dy);
    [dx, Vec::new()]
}

fn gated(activation: fn(f64) -> Active, gate: &[f32], up: &[f32], dy: &[f32]) -> Gradients {
    let times = |g: Gradient, by: f64| Gradient::new(by * g.value, by.abs() * g.magnitude);
    let both = wide(gate).zip(wide(up)).zip(wide(dy)).map(|((gate, up), dy)| {
        let Active { value, slope } = activation(gate);
        (times(slope, dy * up), times(value, dy))
    });
    both.unzip().into()
}

/// Of [`lora`](super::lora), by `x` and by both factors in the layout of the contract: with `u = scale dy B` and
/// `t = scale x A^T`, `dx = u A`, `dA = u^T x` and `dB = dy^T t`.
///
/// # Panics
/// Where a buffer is shorter than `shape` says.
pub fn lora(shape: &LoraShape, x: &[f32], a: &[f32], b: &[f32], dy: &[f32]) -> Gradients {
    let LoraShape { rows, in_dim, rank, out_dim, scale } = *shape;
    let scale = f64::from(scale);
    let sizes = |x: &[f32]| -> Vec<f32> { x.iter().map(|x| x.abs()).collect() };
    let (a_sizes, b_sizes) = (sizes(a), sizes(b));
    let column =
        |b: &[f32], r: usize| -> Vec<f32> { b.iter().skip(r).step_by(rank).copied().collect() };
    let mut dx = Vec::with_capacity(rows * in_dim);
    let mut da = vec![Gradient::default(); rank * in_dim];
    let mut db = vec![Gradient::default(); out_dim * rank];
    for row in 0..rows {
        let (x, dy) = (&x[row * in_dim..][..in_dim], &dy[row * out_dim..][..out_dim]);
        let (x_sizes, dy_sizes) = (sizes(x), sizes(dy));
        let by_a = |x: &[f32], a: &[f32], r: usize| scale * dot(x, &a[r * in_dim..][..in_dim]);
        let t: Vec<f64> = (0..rank).map(|r| by_a(x, a, r)).collect();
        let t_sizes: Vec<f64> = (0..rank).map(|r| by_a(&x_sizes, &a_sizes, r).abs()).collect();
        let u: Vec<f64> = (0..rank).map(|r| scale * dot(dy, &column(b, r))).collect();
        let by_b = |r: usize| (scale * dot(&dy_sizes, &column(&b_sizes, r))).abs();
        let u_sizes: Vec<f64> = (0..rank).map(by_b).collect();
        for i in 0..in_dim {
            let mut sum = Gradient::default();
            for r in 0..rank {
                let (factor, x) = (f64::from(a[r * in_dim + i]), f64::from(x[i]));
                sum.add(u[r] * factor, u_sizes[r] * factor.abs());
                da[r * in_dim + i].add(u[r] * x, u_sizes[r] * x.abs());
            }
            dx.push(sum);
        }
        for j in 0..out_dim {
            let dy = f64::from(dy[j]);
            for r in 0..rank {
                db[j * rank + r].add(dy * t[r], dy.abs() * t_sizes[r]);
            }
        }
    }
    let mut dab = vec![Gradient::default(); shape.groups() * rank * 4];
    for r in 0..rank {
        for i in 0..in_dim {
            dab[(i / 4 * rank + r) * 4 + i % 4] = da[r * in_dim + i];
        }
        for j in 0..out_dim {
            dab[((shape.in_groups() + j / 4) * rank + r) * 4 + j % 4] = db[j * rank + r];
        }
    }
    [dx, dab]
}

#[cfg(test)]
mod tests {
    use crate::catalogue::row;
    use crate::judge::{Called, Case, differentiable_case};
    use crate::oracle;
    use crate::random::Random;
    use ruvllm_abi::contract::Variant;
    use ruvllm_abi::{DType, Op};

    fn numbers(bytes: &[u8]) -> Vec<f32> {
        oracle::numbers(DType::F32, bytes).unwrap()
    }

    /// The loss: the output times the gradient that it has.
    fn loss(op: Op, variant: &Variant, case: &Case, inputs: &[Vec<f32>; 2]) -> f64 {
        let bytes = |x: &[f32]| -> Vec<u8> { x.iter().flat_map(|x| x.to_le_bytes()).collect() };
        let [a, b] = [bytes(&inputs[0]), bytes(&inputs[1])];
        let y = oracle::run(op, variant.inputs, variant.output, &a, &b, &case.words).unwrap();
        y.iter().zip(numbers(&case.gradient)).map(|(y, dy)| y * f64::from(dy)).sum()
    }

    /// Central differences with two steps, by Richardson's extrapolation: the error falls with the fourth power
    /// of the step. Points are multiples of 2^-10, so that binary32 holds each of them.
    #[test]
    fn every_gradient_is_what_central_differences_of_the_definition_give() {
        const STEP: f32 = 1.0 / 64.0;
        let mut random = Random::new(3);
        let mut checked = 0;
        for op in Op::ALL {
            for variant in op.contract().variants {
                let gradients = op.contract().gradients_of(variant.inputs, variant.output);
                for extents in (row(op).extents)(variant).iter().filter(|_| !gradients.is_empty()) {
                    let elems: u64 = extents.iter().map(|&n| u64::from(n)).product();
                    if elems == 0 || elems > 20_000 {
                        continue;
                    }
                    let words = [*extents, row(op).params[0]].concat();
                    let case = differentiable_case(op, variant, &words, &mut random).unwrap();
                    let round = |x: Vec<f32>| -> Vec<f32> {
                        x.iter().map(|x| (x * 1024.0).round() / 1024.0).collect()
                    };
                    let inputs = [round(numbers(&case.a)), round(numbers(&case.b))];
                    let bytes =
                        inputs.each_ref().map(|x| -> Vec<u8> { bytemuck::cast_slice(x).to_vec() });
                    let called = Called { a: &bytes[0], b: &bytes[1], words: &case.words };
                    let (of, to) = (variant.inputs, variant.output);
                    let found = oracle::backward(op, of, to, called, &case.gradient).unwrap();
                    for &input in gradients {
                        let n = inputs[input].len();
                        assert_eq!(found[input].len(), n, "{op}");
                        for i in (0..n).step_by(1 + n / 24) {
                            let central = |step: f32| {
                                let at = |x: f32| {
                                    let mut moved = inputs.clone();
                                    moved[input][i] += x;
                                    loss(op, variant, &case, &moved)
                                };
                                (at(step) - at(-step)) / (2.0 * f64::from(step))
                            };
                            let want = (4.0 * central(STEP / 2.0) - central(STEP)) / 3.0;
                            let got = found[input][i];
                            let off = (got.value - want).abs();
                            assert!(got.magnitude >= got.value.abs() * 0.999_999, "{op} {got:?}");
                            // A norm of few elements bends sharply around zero.
                            let share = if extents[extents.len() - 1] < 8 { 1e-3 } else { 1e-6 };
                            let allowed = share * got.magnitude + 1e-9;
                            assert!(off <= allowed, "{} {i}: {got:?} {want}", case.what);
                            checked += 1;
                        }
                    }
                }
            }
        }
        assert!(checked > 500, "{checked}");
    }
}
