//! Whether a kernel is right: the one judge of the workspace.
//!
//! Admission, the cross-checks of calls in service, `ruvllm-pack test` and the tests of the native code
//! all ask it. [`cases`] are the calls that a kernel is tried on, the same for the same seed, and
//! [`Judge`] says what an output of such a call, or of any other, may be off by. What differs between
//! operations is in their rows of the catalogue.
//!
//! An output is held against the f64 oracle, or, where there is no time for that, against the native
//! code. The distance that is allowed at an element is `floor + abs * scale + rel * |want|`. The scale is
//! the largest magnitude of the row (of the block, for block formats), so that tiny and huge inputs are
//! judged as strictly as those around one; the floor is the format's own smallest step. Results that the
//! output's format cannot hold are not judged, and count in no scale.
//!
//! NaN and infinities among the inputs are no exception. Where the oracle gives NaN or an infinity the output
//! is one of these, which of them is left open: what is broken shows. Where it gives a number although one
//! of them went into it, as at -infinity in SwiGLU, the output is that number or one of these. Everywhere
//! else, in the other rows above all, the output is what it always is. A block format has no place for them:
//! a call that gives blocks is not judged then, and where the format defines bytes, a block that is made of
//! one of them.

mod cases;
mod compare;
mod gradients;
pub mod team;

#[cfg(test)]
pub(crate) use cases::scales;
pub use cases::{
    Case, Kind, backward_cases, bench_cases, cases, custom_operand, differentiable_case, encode,
    fill, live_case, long_case, long_extents, random_blocks,
};
#[cfg(test)]
pub(crate) use compare::close;
pub use compare::decode;

use crate::catalogue::{Second, layout, row};
use crate::{Isa, NativeError, oracle, twin};
use compare::{Comparison, exact_blocks};
use ruvllm_abi::contract::Variant;
use ruvllm_abi::{DType, Op};

/// A distance from the truth.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Tolerance {
    /// The part that grows with the element.
    pub rel: f64,
    /// The part that grows with the largest element of the row or block.
    pub abs: f64,
}

impl Tolerance {
    /// Whether a number is near enough to one that was written down as the truth, as those of golden files and of
    /// graphs are: what they are small beside is not known, so that `abs` is a distance. A NaN is near to nothing but
    /// a NaN, and an infinity to nothing but itself.
    pub fn holds(self, got: f64, want: f64) -> bool {
        if !want.is_finite() {
            return got == want || got.is_nan() && want.is_nan();
        }
        (got - want).abs() <= self.abs + self.rel * want.abs()
    }
}

/// The largest input for which a kernel answers: the sum of a row's squares is then a number of binary32.
pub const LARGEST_INPUT: f32 = 1e15;

/// Bytes that a case whose shape is drawn moves at most, where the kernel's memory holds as many.
pub const ROOM: usize = 128 << 10;

/// How much further from the oracle a sum over all of a kernel's memory may be.
pub const LONG_ROWS: f64 = 16.0;

/// The distance from the f64 definition of `op` that is allowed where the output is `dtype`. `None`
/// where the bytes must be exact.
pub fn tolerance(op: Op, output: DType) -> Option<Tolerance> {
    (row(op).tolerance)(output)
}

/// Whether the second input is a constant of a model.
pub fn has_constant(op: Op) -> bool {
    matches!(row(op).second, Second::Constant(_))
}

/// The params block of a call of some thousand elements, by which a machine is measured.
pub fn sample(op: Op) -> Vec<u32> {
    let row = row(op);
    [row.sample, row.params.first().copied().unwrap_or_default()].concat()
}

/// The word of the params block that says how often a call goes through its first input and its output;
/// `None` where it does so once.
pub fn repeats(op: Op) -> Option<usize> {
    row(op).repeats
}

/// A call of a kernel: the bytes of its inputs, `b` empty where there is one, and its params block.
#[derive(Clone, Copy, Debug)]
pub struct Called<'a> {
    /// The first input.
    pub a: &'a [u8],
    /// The second input.
    pub b: &'a [u8],
    /// The params block.
    pub words: &'a [u32],
}

/// What the judge has nothing against.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Verdict {
    /// The largest error is this share of what is allowed; `None` where bytes are exact.
    Right(Option<f64>),
    /// The inputs are out of the operation's range: what a kernel makes of them is not its own doing.
    /// Against native code that is so too where they are not finite.
    Unjudged,
}

/// What is wrong with an output.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Wrong {
    /// A number is not finite although the truth is.
    #[error("a number that is not finite at element {index}")]
    NonFinite {
        /// Index of the first one.
        index: usize,
    },
    /// A number is further from the truth than is allowed.
    #[error("a wrong number: {detail}")]
    Mismatch {
        /// Where and by how much.
        detail: String,
    },
    /// The call is none of the operation's, so there is no truth.
    #[error("no truth: {0}")]
    Refused(#[from] NativeError),
}

/// Buffers of [`Judge::against_native`], kept so that a check allocates nothing.
#[derive(Default)]
pub struct Buffers {
    gates: Vec<f32>,
    want: Vec<u8>,
    got: Vec<f32>,
    native: Vec<f32>,
    truth: Vec<f64>,
}

/// Holds the outputs of kernels of one operation and variant against the truth.
#[derive(Clone, Copy, Debug)]
pub struct Judge {
    op: Op,
    variant: &'static Variant,
    /// The manifest's own, which is absolute for rows of magnitude up to one.
    author: Option<Tolerance>,
    slack: f64,
}

impl Judge {
    /// The judge of a variant of an operation.
    pub fn new(op: Op, variant: &'static Variant) -> Self {
        Self { op, variant, author: None, slack: 1.0 }
    }

    /// One that also holds kernels to what their author promises, `abs + rel * |want|`, where that is
    /// stricter. Only against the oracle: what an author promises says nothing of the distance to native code.
    #[must_use]
    pub fn with_author(self, author: Option<Tolerance>) -> Self {
        Self { author, ..self }
    }

    /// One that allows so many times as much, as for rows of any length ([`LONG_ROWS`]).
    #[must_use]
    pub fn with_slack(self, slack: f64) -> Self {
        Self { slack, ..self }
    }

    /// Holds the output of a call against the f64 oracle, or, where the format defines bytes, against its
    /// reference.
    ///
    /// # Errors
    /// [`Wrong`].
    pub fn check(&self, call: Called<'_>, output: &[u8]) -> Result<Verdict, Wrong> {
        let (op, Variant { inputs, output: dtype, .. }) = (self.op, *self.variant);
        if !self.has_truth(call) {
            return Ok(Verdict::Unjudged);
        }
        let Called { a, b, words } = call;
        let Some(tolerance) = tolerance(op, dtype) else {
            let mut want = vec![0; output.len()];
            twin::run(Isa::Scalar, op, inputs, dtype, a, b, words, &mut want)?;
            exact_blocks(dtype, a, output, &want)?;
            return Ok(Verdict::Right(None));
        };
        let mut want = oracle::run(op, inputs, dtype, a, b, words)?;
        let mut got = Vec::new();
        decode(dtype, output, &mut got)?;
        let (nan_a, nan_b) = (with_nan(inputs.first(), a), with_nan(inputs.get(1), b));
        if nan_a.is_some() || nan_b.is_some() {
            if dtype.layout().elems > 1 {
                return Ok(Verdict::Unjudged);
            }
            let (a, b) = (nan_a.as_deref().unwrap_or(a), nan_b.as_deref().unwrap_or(b));
            // What is no number now had something to do with what was not finite.
            let touched = oracle::run(op, inputs, dtype, a, b, words)?;
            for ((want, touched), got) in want.iter_mut().zip(touched).zip(&got) {
                if !touched.is_finite() && !got.is_finite() {
                    *want = f64::NAN;
                }
            }
        }
        self.accept_vanished(a, &got, &mut want, &mut Vec::new())?;
        let floor = (row(op).roundings)(self.variant, words);
        let comparison =
            Comparison { author: self.author, floor, ..self.comparison(tolerance, words) };
        comparison.check(&got, &want)?;
        Ok(Verdict::Right(Some(comparison.worst(&got, &want))))
    }

    /// Holds an output against the native code, which is as far from the truth as a kernel may be.
    ///
    /// # Errors
    /// [`Wrong`]; [`Wrong::Refused`] says nothing against the kernel.
    pub fn against_native(
        &self,
        isa: Isa,
        call: Called<'_>,
        output: &[u8],
        buffers: &mut Buffers,
    ) -> Result<Verdict, Wrong> {
        let (op, Variant { inputs, output: dtype, .. }) = (self.op, *self.variant);
        if !self.in_range(call) {
            return Ok(Verdict::Unjudged);
        }
        let Called { a, b, words } = call;
        let Buffers { gates, want, got, native, truth } = buffers;
        want.clear();
        want.resize(output.len(), 0);
        twin::run(isa, op, inputs, dtype, a, b, words, want)?;
        let Some(tolerance) = tolerance(op, dtype) else {
            exact_blocks(dtype, a, output, want)?;
            return Ok(Verdict::Right(None));
        };
        decode(dtype, output, got)?;
        decode(dtype, want, native)?;
        truth.clear();
        truth.extend(native.iter().map(|&x| f64::from(x)));
        self.accept_vanished(a, got, truth, gates)?;
        let comparison = Comparison {
            slack: 2.0,
            floor: 1024.0,
            by_oracle: false,
            ..self.comparison(tolerance, words)
        };
        comparison.check(got, truth)?;
        Ok(Verdict::Right(None))
    }

    /// Where the sigmoid of a gate is so small that a kernel may take it for zero, all between zero and the
    /// truth is right.
    fn accept_vanished(
        &self,
        a: &[u8],
        got: &[f32],
        want: &mut [f64],
        gates: &mut Vec<f32>,
    ) -> Result<(), Wrong> {
        let vanishing = row(self.op).vanishing;
        if vanishing == f32::NEG_INFINITY {
            return Ok(());
        }
        decode(self.variant.inputs[0], a, gates)?;
        for ((want, &got), &mut gate) in want.iter_mut().zip(got).zip(gates) {
            let got = f64::from(got);
            if gate < vanishing && got >= want.min(0.0) && got <= want.max(0.0) {
                *want = got;
            }
        }
        Ok(())
    }

    fn comparison(&self, tolerance: Tolerance, words: &[u32]) -> Comparison {
        let row = layout(self.op).output.row(words);
        let (dtype, slack) = (self.variant.output, self.slack);
        let by_oracle = true;
        Comparison { dtype, tolerance, author: None, row, floor: 1.0, slack, by_oracle }
    }

    /// Whether no input is a finite number beyond those for which a kernel answers: sums of those may
    /// overflow where the oracle's do not.
    fn has_truth(&self, call: Called<'_>) -> bool {
        let inputs = self.variant.inputs.iter().zip([call.a, call.b]);
        inputs.into_iter().all(|(&dtype, bytes)| {
            let beyond = |b: &[u8]| {
                let x = f32::from_le_bytes([b[0], b[1], b[2], b[3]]);
                x.is_finite() && x.abs() > LARGEST_INPUT
            };
            dtype != DType::F32 || !bytes.chunks_exact(4).any(beyond)
        })
    }

    /// Whether the elements of the inputs are such that native code and a kernel make the same of them.
    fn in_range(&self, call: Called<'_>) -> bool {
        let is_finite = |half: &[u8]| half[1] & 0x7c != 0x7c;
        let inputs = self.variant.inputs.iter().zip([call.a, call.b]);
        inputs.into_iter().all(|(&dtype, bytes)| match dtype {
            DType::F32 => bytes
                .chunks_exact(4)
                .all(|b| f32::from_le_bytes([b[0], b[1], b[2], b[3]]).abs() <= LARGEST_INPUT),
            DType::F16 => bytes.chunks_exact(2).all(is_finite),
            // Blocks begin with their scale.
            DType::Q8_0 | DType::Q4_0 => bytes.chunks_exact(dtype.layout().bytes).all(is_finite),
            _ => true,
        })
    }
}

/// The tensor with NaN in place of all that is not finite; `None` where there is nothing of the kind.
fn with_nan(dtype: Option<&DType>, bytes: &[u8]) -> Option<Vec<u8>> {
    let dtype = *dtype?;
    let half = |b: &[u8]| b[1] & 0x7c == 0x7c;
    let single = |b: &[u8]| !f32::from_le_bytes([b[0], b[1], b[2], b[3]]).is_finite();
    type Spoilt = fn(&[u8]) -> bool;
    let (size, is_spoilt, nan): (usize, Spoilt, &[u8]) = match dtype {
        DType::F32 => (4, single, &[0, 0, 0xc0, 0x7f]),
        // Blocks begin with their scale.
        DType::F16 | DType::Q8_0 | DType::Q4_0 => (dtype.layout().bytes, half, &[0, 0x7e]),
        _ => return None,
    };
    let mut spoilt = bytes.chunks_exact(size).enumerate().filter(|(_, b)| is_spoilt(b)).peekable();
    spoilt.peek()?;
    let mut copy = bytes.to_vec();
    for (at, _) in spoilt {
        copy[at * size..][..nan.len()].copy_from_slice(nan);
    }
    Some(copy)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bytes(values: &[f32]) -> Vec<u8> {
        values.iter().flat_map(|x| x.to_le_bytes()).collect()
    }

    #[test]
    fn a_gate_whose_sigmoid_is_no_normal_number_may_be_taken_for_closed() {
        let judge = |op: Op| Judge::new(op, &op.contract().variants[0]);
        for (op, gate) in [(Op::SwiGlu, -90f32), (Op::GeGlu, -10.1)] {
            let (gate, up) = (bytes(&[gate]), bytes(&[1e9]));
            let call = Called { a: &gate, b: &up, words: &[1, 1] };
            let truth = oracle::run(op, &[DType::F32; 2], DType::F32, &gate, &up, &[1, 1]).unwrap();
            let truth = truth[0] as f32;
            assert!(truth < -1e-30, "{truth:e}");
            for (got, is_right) in [
                (truth, true),
                (-0.0, true),
                (0.5 * truth, true),
                (1.1 * truth, false),
                (1e-37, false),
            ] {
                let got = bytes(&[got]);
                assert_eq!(judge(op).check(call, &got).is_ok(), is_right, "{op} {got:?}");
                let native =
                    judge(op).against_native(Isa::Scalar, call, &got, &mut Buffers::default());
                assert_eq!(native.is_ok(), is_right, "{op} {got:?}");
            }
        }
        // A gate that is only narrow is judged as any other.
        let (gate, up) = (bytes(&[-80.0]), bytes(&[1e9]));
        let call = Called { a: &gate, b: &up, words: &[1, 1] };
        assert!(judge(Op::SwiGlu).check(call, &bytes(&[0.0])).is_err());
    }

    #[test]
    fn what_a_kernel_makes_of_nan_and_infinities_is_judged_by_the_oracle() {
        const NAN: f32 = f32::NAN;
        const INF: f32 = f32::INFINITY;
        let judge = Judge::new(Op::SwiGlu, &Op::SwiGlu.contract().variants[0]);
        let (gate, up) = (bytes(&[NAN, INF, -INF, 0.0]), bytes(&[1.0; 4]));
        let words = [2, 2];
        let call = Called { a: &gate, b: &up, words: &words };
        let check = |y: [f32; 4]| judge.check(call, &bytes(&y));
        for right in [[NAN, INF, 0.0, 0.0], [INF, NAN, NAN, 0.0], [NAN, INF, -INF, 0.0]] {
            assert!(matches!(check(right), Ok(Verdict::Right(Some(_)))), "{right:?}");
        }
        for wrong in [
            [0.0, INF, 0.0, 0.0],
            [NAN, 1e30, 0.0, 0.0],
            [NAN, INF, 1.0, 0.0],
            [NAN, INF, 0.0, 1.0],
        ] {
            assert!(matches!(check(wrong), Err(Wrong::Mismatch { .. })), "{wrong:?}");
        }
        // What has nothing to do with them is no exception.
        assert_eq!(check([NAN, INF, 0.0, NAN]), Err(Wrong::NonFinite { index: 3 }));

        // In a norm all of a row comes of each of its elements, and nothing of other rows.
        let judge = Judge::new(Op::RmsNorm, &Op::RmsNorm.contract().variants[0]);
        let (x, weight) = (bytes(&[NAN, 1.0, 1.0, 1.0]), bytes(&[1.0, 1.0]));
        let words = [2, 2, 0f32.to_bits()];
        let call = Called { a: &x, b: &weight, words: &words };
        let check = |y: [f32; 4]| judge.check(call, &bytes(&y)).is_ok();
        assert!(check([NAN, NAN, 1.0, 1.0]) && !check([NAN, 1.0, 1.0, 1.0]));
        assert!(!check([0.0, 0.0, 1.0, 1.0]) && !check([NAN; 4]));
    }
}
