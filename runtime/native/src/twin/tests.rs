//! Every variant of the contract before the judge, over bytes.

use super::*;
use crate::judge::{Called, Case, Judge, Tolerance, Verdict, cases};
use crate::random::Random;

/// What admission would try a kernel of this variant on.
fn tried(op: Op, variant: &Variant) -> Vec<Case> {
    cases(op, variant, 1 << 17, &mut Random::new(0x7717)).unwrap()
}

/// What native code promises beyond what kernels must keep.
fn promise(output: DType) -> Option<Tolerance> {
    let abs = match output {
        DType::F32 => 4e-6,
        DType::F16 => 5e-4,
        _ => 1.02 / 127.0,
    };
    Some(Tolerance { rel: 0.0, abs })
}

#[test]
fn every_variant_of_the_contract_is_right_on_every_instruction_set() {
    for op in Op::ALL {
        for variant in op.contract().variants {
            let (inputs, output) = (variant.inputs, variant.output);
            assert!(supports(op, inputs, output));
            let judge = Judge::new(op, variant).with_author(promise(output));
            let mut judged = 0;
            for case in tried(op, variant) {
                let Called { a, b, words } = case.called();
                let [.., size] = sizes(op, variant, words).unwrap();
                for isa in Isa::every() {
                    let mut y = vec![0xff; size];
                    run(isa, op, inputs, output, a, b, words, &mut y).unwrap();
                    let what = || format!("{} {isa}, {}", variant.kernel, case.what);
                    match judge.check(case.called(), &y) {
                        Ok(Verdict::Unjudged) => {}
                        Ok(Verdict::Right(_)) => judged += 1,
                        Err(wrong) => panic!("{}: {wrong}", what()),
                    }
                    // The same bytes from and to addresses that fit no element type.
                    let shifted = |x: &[u8]| [&[0][..], x].concat();
                    let (a, b, mut z) = (shifted(a), shifted(b), vec![0; size + 1]);
                    run(isa, op, inputs, output, &a[1..], &b[1..], words, &mut z[1..]).unwrap();
                    assert_eq!(y, z[1..], "{}", what());
                }
            }
            assert!(judged > 30, "{}", variant.kernel);
        }
    }
}

#[test]
fn calls_that_do_not_fit_are_refused_and_write_nothing() {
    for op in Op::ALL {
        for variant in op.contract().variants {
            let (inputs, output) = (variant.inputs, variant.output);
            for case in tried(op, variant).iter().filter(|case| !case.a.is_empty()) {
                let Called { a, b, words } = case.called();
                let [.., size] = sizes(op, variant, words).unwrap();
                let mut y = vec![0x5a; size];
                let mut refused = |a: &[u8], b: &[u8], words: &[u32], short: usize| {
                    let end = y.len() - short;
                    let error = run(Isa::detect(), op, inputs, output, a, b, words, &mut y[..end]);
                    assert_eq!(error.unwrap_err().code(), "native_shape", "{}", variant.kernel);
                    assert!(y.iter().all(|&y| y == 0x5a));
                };
                refused(&a[1..], b, words, 0);
                refused(a, &[b, &[0]].concat(), words, 0);
                refused(a, b, &words[1..], 0);
                refused(a, b, words, 1);
                for i in 0..op.contract().symbols().count() {
                    for value in [0, 7, u32::MAX] {
                        let mut other = words.to_vec();
                        other[i] = value;
                        if other != words {
                            refused(a, b, &other, 0);
                        }
                    }
                }
            }
        }
    }
}

#[test]
fn unknown_element_types_are_unsupported() {
    let error = run(
        Isa::detect(),
        Op::RmsNorm,
        &[DType::BF16, DType::F32],
        DType::BF16,
        &[],
        &[],
        &[0, 0, 0],
        &mut [],
    );
    let error = error.unwrap_err();
    assert_eq!(error.code(), "native_unsupported");
    assert!(error.to_string().contains("(bf16,f32)->bf16"), "{error}");
    assert!(!supports(Op::KvPack, &[DType::F16], DType::Q8_0));
}
