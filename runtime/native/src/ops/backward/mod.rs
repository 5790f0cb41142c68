//! The gradients of the operations, in binary32: native twins of `kernel_backward`.
//!
//! Each function takes the inputs of its operation and the gradient of the output, and overwrites the gradients
//! of the inputs. Those of parameters that all rows share are sums over the rows, in their order. Within 1e-5 of
//! the f64 definition ([`oracle::backward`](crate::oracle::backward)), relative to the magnitudes of what is added
//! up; the definitions are in the documentation there. That of `rope` is a rotation and stands with it.

mod lora;
mod norms;
mod units;

pub use lora::lora_backward;
pub use norms::{layernorm_backward, rmsnorm_backward};
pub use units::{geglu_backward, gelu_backward, swiglu_backward};

use super::simd::Simd;

/// A vector of `x` from `at` on; lanes beyond its end are zero.
#[inline(always)]
fn load<S: Simd>(s: S, x: &[f32], at: usize) -> S::F {
    match x.get(at..at + S::LANES) {
        Some(whole) => s.load(whole),
        None => s.load_partial(&x[at..]),
    }
}

/// Writes a vector to `y` from `at` on, as far as that goes.
#[inline(always)]
fn store<S: Simd>(s: S, v: S::F, y: &mut [f32], at: usize) {
    match y.get_mut(at..at + S::LANES) {
        Some(whole) => s.store(v, whole),
        None => s.store_partial(v, &mut y[at..]),
    }
}

#[cfg(test)]
mod tests {
    use crate::Isa;
    use crate::judge::{Judge, ROOM, backward_cases, differentiable_case};
    use crate::random::Random;
    use crate::twin;
    use ruvllm_abi::Op;

    fn gradients(op: Op, lens: [usize; 2]) -> [Vec<f32>; 2] {
        let second = if op.contract().gradients.contains(&1) { lens[1] / 4 } else { 0 };
        [vec![f32::NAN; lens[0] / 4], vec![f32::NAN; second]]
    }

    #[test]
    fn every_instruction_set_agrees_with_the_oracle_and_with_differences() {
        for op in Op::ALL {
            for variant in op.contract().variants {
                if op.contract().gradients_of(variant.inputs, variant.output).is_empty() {
                    continue;
                }
                let judge = Judge::new(op, variant);
                let mut random = Random::new(11);
                let mut cases = backward_cases(op, variant, ROOM, &mut random).unwrap();
                let smooth =
                    differentiable_case(op, variant, &crate::judge::sample(op), &mut random);
                cases.extend(smooth);
                for isa in Isa::every() {
                    for (i, case) in cases.iter().enumerate() {
                        let mut got = gradients(op, [case.a.len(), case.b.len()]);
                        let to = got.each_mut().map(Vec::as_mut_slice);
                        let (of, out) = (variant.inputs, variant.output);
                        let called = case.called();
                        twin::backward(isa, op, of, out, called, &case.gradient, to).unwrap();
                        let bytes = got.each_ref().map(|g| bytemuck::cast_slice(g.as_slice()));
                        let what = format!("{isa} {op}: {}", case.what);
                        judge
                            .check_gradients(called, &case.gradient, bytes)
                            .unwrap_or_else(|wrong| panic!("{what}: {wrong}"));
                        if i + 1 == cases.len() {
                            judge
                                .check_differences(called, &case.gradient, bytes, &mut random)
                                .unwrap_or_else(|wrong| panic!("{what}: {wrong}"));
                        }
                    }
                }
            }
        }
    }

    #[test]
    fn what_does_not_fit_is_refused_and_rows_of_nothing_give_zeros() {
        let op = Op::RmsNorm;
        let variant = &op.contract().variants[0];
        let case = differentiable_case(op, variant, &[2, 4, 0], &mut Random::new(1)).unwrap();
        let refused = |gradient: &[u8], sizes: [usize; 2]| {
            let mut to = sizes.map(|n| vec![0.0; n]);
            let to = to.each_mut().map(Vec::as_mut_slice);
            let (of, out) = (variant.inputs, variant.output);
            twin::backward(Isa::Scalar, op, of, out, case.called(), gradient, to).is_err()
        };
        assert!(!refused(&case.gradient, [8, 4]));
        assert!(refused(&case.gradient[4..], [8, 4]));
        assert!(refused(&case.gradient, [7, 4]) && refused(&case.gradient, [8, 0]));
        for isa in Isa::every() {
            let mut dweight = [9.0; 3];
            let to = [&mut [][..], &mut dweight];
            super::rmsnorm_backward(isa, &[], &[1.0; 3], 0.0, &[], to).unwrap();
            assert_eq!(dweight, [0.0; 3]);
        }
    }
}
