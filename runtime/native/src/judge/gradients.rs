//! Gradients held against their definition, and against differences of the operation itself.

use super::{Called, Judge, Verdict, Wrong};
use crate::NativeError;
use crate::oracle;
use crate::oracle::backward::Gradient;
use crate::random::Random;
use crate::twin::view;
use ruvllm_abi::contract::Variant;

/// What an element may be off by, as a share of the magnitudes of what it is the sum of.
const SHARE: f64 = 1e-5;

/// What it may be off by whatever its terms are: products end in the smallest numbers of binary32, and what is
/// lost there may be divided by a small root afterwards.
const FLOOR: f64 = 4096.0 / (1u64 << 63) as f64 / (1u64 << 63) as f64 / (1u64 << 23) as f64;

/// The step of differences, and the share of what they vary by that they may be off.
const STEP: f32 = 1.0 / 1024.0;
const DIFFERENCE: f64 = 2e-3;

impl Judge {
    /// Holds the gradients of a call against the f64 oracle's, given that of its output; the second is empty
    /// where the operation has none.
    ///
    /// An element may be off by 1e-5 of the magnitudes of the terms that add up to it. Where an input is not
    /// finite, or beyond [`LARGEST_INPUT`](super::LARGEST_INPUT), nothing is said.
    ///
    /// # Errors
    /// [`Wrong`].
    pub fn check_gradients(
        &self,
        call: Called<'_>,
        grad_output: &[u8],
        gradients: [&[u8]; 2],
    ) -> Result<Verdict, Wrong> {
        let Variant { inputs, output, .. } = *self.variant;
        if !self.in_range(call) || !self.in_range(Called { a: grad_output, ..call }) {
            return Ok(Verdict::Unjudged);
        }
        let truth = oracle::backward(self.op, inputs, output, call, grad_output)?;
        let mut worst = 0f64;
        for (input, (truth, got)) in truth.iter().zip(gradients).enumerate() {
            let name = self.op.contract().inputs.get(input).map_or("", |tensor| tensor.name);
            worst = worst.max(check(name, truth, &view::<f32>(got)?)?);
        }
        Ok(Verdict::Right(Some(worst)))
    }

    /// Holds the gradients of a call against a central difference of the definition, in f64, along a direction
    /// that is drawn. The call is one of [`differentiable_case`](super::differentiable_case).
    ///
    /// # Errors
    /// [`Wrong`].
    pub fn check_differences(
        &self,
        call: Called<'_>,
        grad_output: &[u8],
        gradients: [&[u8]; 2],
        random: &mut Random,
    ) -> Result<(), Wrong> {
        let Variant { inputs, output, .. } = *self.variant;
        let dy = view::<f32>(grad_output)?;
        for &input in self.op.contract().gradients {
            let of = view::<f32>(if input == 0 { call.a } else { call.b })?;
            let sign = |random: &mut Random| if random.below(2) == 0 { STEP } else { -STEP };
            let steps: Vec<f32> = of.iter().map(|_| sign(random)).collect();
            let moved = |by: f32| -> Vec<f32> {
                of.iter().zip(&steps).map(|(x, step)| x + by * step).collect()
            };
            let (ahead, behind) = (moved(1.0), moved(-1.0));
            let loss = |x: &[f32]| -> Result<f64, NativeError> {
                let x = bytemuck::cast_slice(x);
                let (a, b) = if input == 0 { (x, call.b) } else { (call.a, x) };
                let y = oracle::run(self.op, inputs, output, a, b, call.words)?;
                Ok(y.iter().zip(&*dy).map(|(y, dy)| y * f64::from(*dy)).sum())
            };
            let difference = loss(&ahead)? - loss(&behind)?;
            let got = view::<f32>(gradients[input])?;
            NativeError::check("judge: elements of a gradient", of.len(), got.len())?;
            // By the points that binary32 has.
            let parts = ahead.iter().zip(&behind).zip(&*got).map(|((ahead, behind), got)| {
                (f64::from(*ahead) - f64::from(*behind)) * f64::from(*got)
            });
            let (sum, squares) =
                parts.fold((0.0, 0.0), |(sum, squares), part| (sum + part, squares + part * part));
            let off = (sum - difference).abs();
            let allowed = DIFFERENCE * (squares.sqrt() + difference.abs());
            if off.is_nan() || off > allowed {
                let name = self.op.contract().inputs[input].name;
                let detail = format!(
                    "along a small step the gradient by {name} says {sum:e}, and the operation changes by \
                     {difference:e}: off by {off:.2e}, {allowed:.2e} is allowed"
                );
                return Err(Wrong::Mismatch { detail });
            }
        }
        Ok(())
    }
}

/// The largest error as a share of what is allowed.
fn check(name: &str, truth: &[Gradient], got: &[f32]) -> Result<f64, Wrong> {
    NativeError::check("judge: elements of a gradient", truth.len(), got.len())?;
    let mut worst = 0f64;
    for (index, (&Gradient { value, magnitude }, &got)) in truth.iter().zip(got).enumerate() {
        // What binary32 cannot hold, or what is on the way to it.
        if magnitude > f64::from(f32::MAX) {
            continue;
        }
        if !got.is_finite() {
            return Err(Wrong::NonFinite { index });
        }
        let (off, allowed) = ((f64::from(got) - value).abs(), SHARE * magnitude + FLOOR);
        if off > allowed {
            let detail = format!(
                "element {index} of the gradient by {name} is {got:e} instead of {value:e}: off by \
                 {off:.2e}, {allowed:.2e} is allowed"
            );
            return Err(Wrong::Mismatch { detail });
        }
        worst = worst.max(off / allowed);
    }
    Ok(worst)
}

#[cfg(test)]
mod tests {
    use super::super::{differentiable_case, sample};
    use super::*;
    use ruvllm_abi::Op;

    #[test]
    fn one_wrong_element_a_lost_term_and_a_turned_sign_are_found() {
        for op in Op::ALL {
            let variant = &op.contract().variants[0];
            let gradients = op.contract().gradients_of(variant.inputs, variant.output);
            let mut random = Random::new(5);
            let case = differentiable_case(op, variant, &sample(op), &mut random);
            let (Some(case), false) = (case, gradients.is_empty()) else { continue };
            let (of, out) = (variant.inputs, variant.output);
            let truth = oracle::backward(op, of, out, case.called(), &case.gradient).unwrap();
            let right = truth.map(|g| g.iter().map(|g| g.value as f32).collect::<Vec<f32>>());
            let judge = Judge::new(op, variant);
            let mut judged = |got: &[Vec<f32>; 2]| {
                let bytes = got.each_ref().map(|g| bytemuck::cast_slice(g));
                let exact = judge.check_gradients(case.called(), &case.gradient, bytes);
                let (called, dy) = (case.called(), &case.gradient);
                (exact.map(|_| ()), judge.check_differences(called, dy, bytes, &mut random))
            };
            assert_eq!(judged(&right), (Ok(()), Ok(())), "{op}");
            for &input in gradients {
                let last = right[input].len() - 1;
                let mut nan = right.clone();
                nan[input][0] = f32::NAN;
                assert_eq!(judged(&nan).0, Err(Wrong::NonFinite { index: 0 }), "{op}");
                assert!(judged(&nan).1.is_err(), "{op}");
                let mut off = right.clone();
                off[input][last / 2] += 0.5;
                assert!(judged(&off).0.is_err(), "{op}");
                let mut turned = right.clone();
                turned[input].iter_mut().for_each(|x| *x = -*x);
                let (exact, differences) = judged(&turned);
                assert!(exact.is_err() && differences.is_err(), "{op}");
            }
        }
    }

    #[test]
    fn the_floor_is_a_few_of_the_smallest_numbers() {
        assert_eq!(FLOOR, 4096.0 * 2f64.powi(-149));
    }
}
