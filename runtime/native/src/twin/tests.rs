//! Every variant of the contract against the oracle, over bytes.

use super::*;
use crate::ops::testing::noise;
use crate::oracle;

/// A call of one variant: its params block and the elements of its tensors.
struct Case {
    words: Vec<u32>,
    a: Vec<f32>,
    b: Vec<f32>,
    output: usize,
}

fn cases(op: Op) -> Vec<Case> {
    match op {
        Op::Rope => [(2, 3, 2, 48, 24, 0), (1, 5, 4, 64, 16, 1), (1, 1, 32, 64, 32, 0)]
            .into_iter()
            .map(|(batch, seq, heads, dim, dim_half, interleaved)| {
                let elems = (batch * seq * heads * dim) as usize;
                let angles = noise((seq * dim_half) as usize, 2);
                let angles = angles.iter().flat_map(|a| [(a * 3.0).cos(), (a * 3.0).sin()]);
                Case {
                    words: vec![batch, seq, heads, dim, dim_half, 1e4f32.to_bits(), interleaved],
                    a: noise(elems, 1),
                    b: angles.collect(),
                    output: elems,
                }
            })
            .collect(),
        Op::RmsNorm => [(1, 2048), (3, 33), (2, 1)]
            .into_iter()
            .map(|(rows, dim)| Case {
                words: vec![rows, dim, 1e-5f32.to_bits()],
                a: noise((rows * dim) as usize, 1),
                b: noise(dim as usize, 2),
                output: (rows * dim) as usize,
            })
            .collect(),
        Op::SwiGlu | Op::KvPack | Op::KvUnpack => [(1, 5632), (3, 96), (2, 32)]
            .into_iter()
            .map(|(rows, dim)| Case {
                words: vec![rows, dim],
                a: noise((rows * dim) as usize, 1),
                b: if op == Op::SwiGlu { noise((rows * dim) as usize, 2) } else { vec![] },
                output: (rows * dim) as usize,
            })
            .collect(),
        Op::LoraApply => [(1, 256, 8, 128), (3, 30, 3, 17), (2, 5, 1, 6)]
            .into_iter()
            .map(|(rows, in_dim, rank, out_dim): (u32, u32, u32, u32)| {
                let groups = in_dim.div_ceil(4) + out_dim.div_ceil(4);
                let shape = LoraShape {
                    rows: rows as usize,
                    in_dim: in_dim as usize,
                    rank: rank as usize,
                    out_dim: out_dim as usize,
                    scale: 0.5,
                };
                let (a, b) =
                    (noise((rank * in_dim) as usize, 3), noise((out_dim * rank) as usize, 4));
                Case {
                    words: vec![rows, in_dim, groups, rank, out_dim, 0.5f32.to_bits()],
                    a: noise((rows * in_dim) as usize, 1),
                    b: ops::lora_interleave(&shape, &a, &b).unwrap(),
                    output: (rows * out_dim) as usize,
                }
            })
            .collect(),
    }
}

fn encode(dtype: DType, x: &[f32]) -> Vec<u8> {
    let mut y = vec![0; dtype.bytes_for(x.len()).unwrap()];
    match dtype {
        DType::F32 => y = bytemuck::cast_slice(x).to_vec(),
        DType::F16 => {
            y = x.iter().flat_map(|&x| ruvllm_abi::f32_to_f16(x).to_le_bytes()).collect();
        }
        DType::Q8_0 => ops::kv_pack_q8(Isa::Scalar, x, &mut y).unwrap(),
        DType::Q4_0 => ops::kv_pack_q4(Isa::Scalar, x, &mut y).unwrap(),
        _ => unreachable!(),
    }
    y
}

fn decode(dtype: DType, x: &[u8]) -> Vec<f64> {
    match dtype {
        DType::F32 => x.as_chunks().0.iter().map(|&x| f64::from(f32::from_le_bytes(x))).collect(),
        DType::F16 => {
            let wide = |&x| f64::from(ruvllm_abi::f16_to_f32(u16::from_le_bytes(x)));
            x.as_chunks().0.iter().map(wide).collect()
        }
        DType::Q8_0 => oracle::kv_unpack_q8(x),
        DType::Q4_0 => oracle::kv_unpack_q4(x),
        _ => unreachable!(),
    }
}

/// The tolerance of an output of this type: relative to the largest element of a group of 32.
fn tolerance(op: Op, output: DType) -> f64 {
    match (op, output) {
        (Op::KvPack, _) => 0.0,
        (_, DType::F32) => 4e-6,
        (_, DType::F16) => 5e-4,
        (_, _) => 1.02 / 127.0,
    }
}

#[test]
fn every_variant_of_the_contract_agrees_with_the_oracle() {
    for op in Op::ALL {
        for variant in op.contract().variants {
            let (inputs, output) = (variant.inputs, variant.output);
            assert!(supports(op, inputs, output));
            for case in cases(op) {
                let a = encode(inputs[0], &case.a);
                let b = inputs.get(1).map_or(vec![], |&dtype| encode(dtype, &case.b));
                let want = oracle::run(op, inputs, output, &a, &b, &case.words).unwrap();
                assert_eq!(want.len(), case.output);
                let size = output.bytes_for(case.output).unwrap();
                for isa in Isa::every() {
                    let mut y = vec![0xff; size];
                    run(isa, op, inputs, output, &a, &b, &case.words, &mut y).unwrap();
                    let got = decode(output, &y);
                    for (got, want) in got.chunks(32).zip(want.chunks(32)) {
                        let largest = want.iter().fold(0.0, |m: f64, v| m.max(v.abs()));
                        let allowed = tolerance(op, output) * largest + 1e-7;
                        for (got, want) in got.iter().zip(want) {
                            assert!(
                                (got - want).abs() <= allowed,
                                "{} {isa}: {got} {want}",
                                variant.kernel
                            );
                        }
                    }
                    // The same bytes from and to addresses that fit no element type.
                    let shifted = |x: &[u8]| [&[0][..], x].concat();
                    let (a, b, mut z) = (shifted(&a), shifted(&b), vec![0; size + 1]);
                    run(isa, op, inputs, output, &a[1..], &b[1..], &case.words, &mut z[1..])
                        .unwrap();
                    assert_eq!(y, z[1..], "{} {isa}", variant.kernel);
                }
            }
        }
    }
}

#[test]
fn calls_that_do_not_fit_are_refused_and_write_nothing() {
    for op in Op::ALL {
        for variant in op.contract().variants {
            let (inputs, output) = (variant.inputs, variant.output);
            for case in cases(op) {
                let a = encode(inputs[0], &case.a);
                let b = inputs.get(1).map_or(vec![], |&dtype| encode(dtype, &case.b));
                let mut y = vec![0x5a; output.bytes_for(case.output).unwrap()];
                let mut refused = |a: &[u8], b: &[u8], words: &[u32], short: usize| {
                    let end = y.len() - short;
                    let error = run(Isa::detect(), op, inputs, output, a, b, words, &mut y[..end]);
                    assert_eq!(error.unwrap_err().code(), "native_shape", "{}", variant.kernel);
                    assert!(y.iter().all(|&y| y == 0x5a));
                };
                refused(&a[1..], &b, &case.words, 0);
                refused(&a, &[b.clone(), vec![0]].concat(), &case.words, 0);
                refused(&a, &b, &case.words[1..], 0);
                refused(&a, &b, &case.words, 1);
                for i in 0..op.contract().symbols().count() {
                    for value in [0, 7, u32::MAX] {
                        let mut words = case.words.clone();
                        words[i] = value;
                        refused(&a, &b, &words, 0);
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
