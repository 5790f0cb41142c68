//! Inputs that every kernel of an operation must get right before it is published.
//!
//! They are deterministic, small, and unkind: odd shapes, a single row, tiny and huge magnitudes,
//! zeros, subnormal numbers, ties of the quantiser's rounding, rotations of part of a head.

use crate::call::{LoraDims, OpCall, Operand, RopeDims, Words};
use crate::plan::CallPlan;
use ruvllm_abi::{DType, Op, f32_to_f16};
use ruvllm_native::{Isa, twin};

/// One call with owned operands.
#[derive(Clone)]
pub(crate) struct Case {
    pub(crate) what: String,
    pub(crate) a: Vec<u8>,
    pub(crate) b: Vec<u8>,
    pub(crate) words: Words,
    /// Elements of a row of the output.
    pub(crate) row: usize,
    /// Factor on the output format's smallest step: how many roundings add up.
    pub(crate) floor: f64,
}

impl Case {
    pub(crate) fn call(&self) -> OpCall<'_> {
        let operand = |bytes: &'_ [u8]| -> bool { !bytes.is_empty() };
        OpCall {
            a: if operand(&self.a) { Operand::Bytes(&self.a) } else { Operand::None },
            b: if operand(&self.b) { Operand::Bytes(&self.b) } else { Operand::None },
            words: self.words,
            scope: None,
        }
    }
}

/// What the numbers of a case are like.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Normal,
    Tiny,
    Huge,
    Zeros,
    Subnormal,
    Spikes,
    Ties,
}

const KINDS: [Kind; 6] =
    [Kind::Normal, Kind::Tiny, Kind::Huge, Kind::Zeros, Kind::Subnormal, Kind::Spikes];

/// SplitMix64 (Steele, Lea and Flood 2014): enough for test data, and the same everywhere.
struct Numbers(u64);

impl Numbers {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let z = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// Uniform in [-1, 1), in steps that binary16 holds too.
    fn unit(&mut self) -> f32 {
        (self.next() >> 53) as f32 / 1024.0 - 1.0
    }

    /// `n` numbers of a kind. `huge` is the magnitude that the operation can still square,
    /// multiply or store.
    fn fill(&mut self, n: usize, kind: Kind, dtype: DType, huge: f32) -> Vec<f32> {
        let half = dtype != DType::F32;
        (0..n)
            .map(|i| match kind {
                Kind::Normal => 2.0 * self.unit() + 0.001 * self.unit(),
                Kind::Tiny => self.unit() * if half { 1e-3 } else { 1e-20 },
                Kind::Huge => self.unit() * huge,
                Kind::Zeros => {
                    if i % 2 == 0 {
                        0.0
                    } else {
                        -0.0
                    }
                }
                Kind::Subnormal => self.unit() * if half { 2e-5 } else { 1e-39 },
                Kind::Spikes if self.next().is_multiple_of(17) => 40.0 * self.unit(),
                Kind::Spikes => 0.01 * self.unit(),
                // With 127 in the block the step is 1, and halves are exact ties.
                Kind::Ties if i % 32 == 0 => {
                    if i % 64 == 0 {
                        127.0
                    } else {
                        -127.0
                    }
                }
                Kind::Ties => (self.next() % 253) as f32 / 2.0 - 63.0,
            })
            .collect()
    }
}

/// Numbers in a format; block formats by the reference quantiser.
fn encode(dtype: DType, values: &[f32]) -> Result<Vec<u8>, String> {
    let to_bytes = |values: &[f32]| values.iter().flat_map(|x| x.to_le_bytes()).collect();
    match dtype {
        DType::F32 => Ok(to_bytes(values)),
        DType::F16 => Ok(values.iter().flat_map(|&x| f32_to_f16(x).to_le_bytes()).collect()),
        _ => {
            let x: Vec<u8> = to_bytes(values);
            let size = dtype.bytes_for(values.len()).ok_or("rows do not fill blocks")?;
            let mut blocks = vec![0; size];
            let words = [1, values.len() as u32];
            twin::run(Isa::Scalar, Op::KvPack, &[DType::F32], dtype, &x, &[], &words, &mut blocks)
                .map_err(|e| e.to_string())?;
            Ok(blocks)
        }
    }
}

/// The golden cases of a catalogue operation.
pub(crate) fn cases(op: Op, inputs: &[DType], output: DType) -> Result<Vec<Case>, String> {
    let mut make =
        Maker { numbers: Numbers(0x5eed_0000 + op as u64), op, inputs, cases: Vec::new() };
    match op {
        Op::RmsNorm => {
            for (rows, dim) in [(1, 1), (2, 7), (3, 33), (1, 897), (5, 64), (1, 2048)] {
                make.rows(rows, dim, if inputs[0] == DType::F16 { 3e4 } else { 1e15 }, KINDS)?;
            }
        }
        Op::SwiGlu => {
            for (rows, dim) in [(1, 1), (2, 7), (3, 33), (2, 256), (1, 1411)] {
                make.rows(rows, dim, if inputs[0] == DType::F16 { 200.0 } else { 1e15 }, KINDS)?;
            }
        }
        Op::KvPack | Op::KvUnpack => {
            let format = if op == Op::KvPack { output } else { inputs[0] };
            let huge = if format == DType::Q4_0 { 4e5 } else { 8e6 };
            for (rows, dim) in [(1, 32), (3, 96), (2, 256), (1, 1056)] {
                make.rows(rows, dim, huge, KINDS)?;
                make.rows(rows, dim, huge, [Kind::Ties])?;
            }
        }
        Op::Rope => {
            let quantized = inputs[0].is_quantized();
            // (batch, seq, heads, dim, dim_half): whole and part heads, odd sizes, and heads that
            // are narrower than a block.
            let plain = [(1, 1, 4, 64, 32), (1, 3, 2, 7, 3), (2, 2, 3, 16, 5), (1, 5, 2, 128, 64)];
            let blocks =
                [(1, 1, 4, 64, 32), (1, 3, 4, 8, 4), (2, 2, 2, 48, 16), (1, 5, 2, 128, 64)];
            let huge = match inputs[0] {
                DType::F32 => 1e15,
                DType::F16 => 3e4,
                _ => 4e6,
            };
            for shape in if quantized { blocks } else { plain } {
                for interleaved in [false, true] {
                    make.rope(shape, interleaved, huge)?;
                }
            }
        }
        Op::LoraApply => {
            let shapes = [(1, 1, 1, 1), (2, 7, 3, 5), (3, 33, 4, 30), (1, 256, 8, 320)];
            let huge = if inputs[0] == DType::F16 { 100.0 } else { 1e15 };
            for (rows, in_dim, rank, out_dim) in shapes {
                make.lora(LoraDims { rows, in_dim, rank, out_dim }, huge)?;
            }
        }
    }
    Ok(make.cases)
}

struct Maker<'a> {
    numbers: Numbers,
    op: Op,
    inputs: &'a [DType],
    cases: Vec<Case>,
}

impl Maker<'_> {
    /// Operations of `[rows, dim]`.
    fn rows(
        &mut self,
        rows: u32,
        dim: u32,
        huge: f32,
        kinds: impl IntoIterator<Item = Kind>,
    ) -> Result<(), String> {
        let n = (rows * dim) as usize;
        for (i, kind) in kinds.into_iter().enumerate() {
            let a = self.numbers.fill(n, kind, self.inputs[0], huge);
            let (b, words) = match self.op {
                Op::RmsNorm => {
                    let weight = self.numbers.fill(dim as usize, Kind::Normal, DType::F32, 1.0);
                    let eps: f32 = if i % 2 == 0 { 1e-5 } else { 1e-6 };
                    (weight, Words::of([rows, dim, eps.to_bits()]))
                }
                Op::SwiGlu => {
                    let up = self.numbers.fill(n, kind, self.inputs[1], huge);
                    (up, Words::of([rows, dim]))
                }
                _ => (Vec::new(), Words::of([rows, dim])),
            };
            let what = format!("{kind:?} numbers of [{rows}, {dim}]").to_lowercase();
            self.push(what, &a, &b, words, dim as usize, 1.0)?;
        }
        Ok(())
    }

    fn rope(
        &mut self,
        (batch, seq, heads, dim, dim_half): (u32, u32, u32, u32, u32),
        interleaved: bool,
        huge: f32,
    ) -> Result<(), String> {
        let dims = RopeDims { batch, seq, heads, dim, dim_half };
        let n = (batch * seq * heads * dim) as usize;
        let theta = 10_000f64;
        let angle = |position: u32, pair: u32| {
            f64::from(position) * theta.powf(-f64::from(pair) / f64::from(dim_half))
        };
        for kind in KINDS {
            let from = (self.numbers.next() % 4096) as u32;
            let pairs = (0..seq).flat_map(|s| (0..dim_half).map(move |i| (from + s, i)));
            let freqs: Vec<f32> = pairs
                .flat_map(|(position, pair)| {
                    let angle = angle(position, pair);
                    [angle.cos() as f32, angle.sin() as f32]
                })
                .collect();
            let x = self.numbers.fill(n, kind, self.inputs[0], huge);
            let none = || Operand::None;
            let words = OpCall::rope(none(), none(), dims, theta as f32, interleaved).words;
            let layout = if interleaved { "interleaved" } else { "split" };
            let what = format!(
                "{kind:?} numbers of [{batch}, {seq}, {heads}, {dim}], {dim_half} {layout} pairs"
            );
            self.push(what.to_lowercase(), &x, &freqs, words, dim as usize, 1.0)?;
        }
        Ok(())
    }

    fn lora(&mut self, dims: LoraDims, huge: f32) -> Result<(), String> {
        let LoraDims { rows, in_dim, rank, out_dim } = dims;
        for kind in KINDS {
            let x = self.numbers.fill((rows * in_dim) as usize, kind, self.inputs[0], huge);
            let ab = self.factors(dims);
            let words = OpCall::lora(Operand::None, Operand::None, dims, 0.5).words;
            let what = format!("{kind:?} numbers of [{rows}, {in_dim}], rank {rank} to {out_dim}");
            let sums = lora_floor(self.inputs[0], in_dim, rank);
            self.push(what.to_lowercase(), &x, &ab, words, out_dim as usize, sums)?;
        }
        Ok(())
    }

    /// Random factors in the interleaved layout of the contract, zero beyond the true dimensions.
    fn factors(&mut self, dims: LoraDims) -> Vec<f32> {
        let half = |dim: u32| dim.div_ceil(4);
        let mut ab = Vec::new();
        for width in [dims.in_dim, dims.out_dim] {
            for group in 0..half(width) {
                for _rank in 0..dims.rank {
                    for lane in 0..4 {
                        let inside = group * 4 + lane < width;
                        ab.push(if inside { self.numbers.unit() } else { 0.0 });
                    }
                }
            }
        }
        ab
    }

    fn push(
        &mut self,
        what: String,
        a: &[f32],
        b: &[f32],
        words: Words,
        row: usize,
        floor: f64,
    ) -> Result<(), String> {
        let a = encode(self.inputs[0], a)?;
        let b = match self.inputs.get(1) {
            Some(&dtype) => encode(dtype, b)?,
            None => Vec::new(),
        };
        self.cases.push(Case { what, a, b, words, row, floor });
        Ok(())
    }
}

/// A call of a catalogue operation in the shape that these words give, on fresh numbers. `None`
/// where the words are none of the operation's.
pub(crate) fn live_case(
    (op, plan): (Op, &CallPlan),
    inputs: &[DType],
    output: DType,
    words: Words,
) -> Option<Case> {
    let seed = words.as_slice().iter().fold(0x5eed_11fe, |seed: u64, &word| {
        seed.wrapping_mul(0x9e37_79b9_7f4a_7c15).wrapping_add(u64::from(word))
    });
    let mut make = Maker { numbers: Numbers(seed), op, inputs, cases: Vec::new() };
    let bytes = plan.bytes(words.as_slice()).ok()?;
    let elems = |dtype: DType, bytes: usize| bytes / dtype.layout().bytes * dtype.layout().elems;
    let a = make.numbers.fill(elems(*inputs.first()?, bytes.a), Kind::Spikes, inputs[0], 1.0);
    let (mut b, mut floor) = (Vec::new(), 1.0);
    if let Some(&dtype) = inputs.get(1) {
        b = make.numbers.fill(elems(dtype, bytes.b), Kind::Normal, dtype, 1.0);
    }
    if let (Op::LoraApply, &[rows, in_dim, _, rank, out_dim, ..]) = (op, words.as_slice()) {
        b = make.factors(LoraDims { rows, in_dim, rank, out_dim });
        floor = lora_floor(inputs[0], in_dim, rank);
    }
    let shape: Vec<_> = plan.inputs.iter().map(|tensor| tensor.shape(words.as_slice())).collect();
    let what = format!("numbers of the live shape {shape:?} in {output}");
    make.push(what, &a, &b, words, plan.output_row(words.as_slice()), floor).ok()?;
    make.cases.pop()
}

/// How many roundings add up in a low-rank update: sums run in binary32 whatever the format, so only
/// there do small steps add up.
fn lora_floor(dtype: DType, in_dim: u32, rank: u32) -> f64 {
    if dtype == DType::F32 { f64::from(in_dim) * f64::from(rank) } else { 1.0 }
}

/// Cases of a custom operation: every symbol at the same extent, params at their defaults or one.
/// There is no truth to hold the output against, only the kernel's manners.
pub(crate) fn custom_cases(plan: &CallPlan) -> Vec<Case> {
    let mut numbers = Numbers(0x5eed_c057);
    let mut cases = Vec::new();
    for extent in [1u32, 32, 64, 256] {
        let mut words = vec![extent; plan.symbols.len()];
        words.extend(plan.params.iter().map(|p| p.default.map_or(1, |v| v.to_word())));
        let Some(words) = Words::new(&words) else { continue };
        let Ok(bytes) = plan.bytes(words.as_slice()) else { continue };
        if bytes.total() == 0 || bytes.total() > 4 << 20 {
            continue;
        }
        let mut fill = |i: usize, size: usize| {
            let Some(dtype) = plan.inputs.get(i).map(|tensor| tensor.dtype) else {
                return Some(Vec::new());
            };
            let layout = dtype.layout();
            let n = size / layout.bytes * layout.elems;
            match dtype {
                DType::F32 | DType::F16 | DType::Q8_0 | DType::Q4_0 => {
                    encode(dtype, &numbers.fill(n, Kind::Normal, dtype, 1.0)).ok()
                }
                // Small integers in any width, and blocks with small scales.
                _ => Some(
                    (0..size).map(|j| if j % 4 == 0 { (j / 4 % 7) as u8 } else { 0 }).collect(),
                ),
            }
        };
        if let (Some(a), Some(b)) = (fill(0, bytes.a), fill(1, bytes.b)) {
            let what = format!("every extent {extent}");
            cases.push(Case { what, a, b, words, row: 1, floor: 1.0 });
        }
    }
    cases
}
