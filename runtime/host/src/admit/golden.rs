//! Inputs that every kernel of an operation must get right before it is published.
//!
//! Some are unkind: odd shapes, a single row, tiny and huge magnitudes, zeros, subnormal numbers, ties
//! of the quantiser's rounding, rotations of part of a head. Others are what a model would ask for. All
//! numbers, and the shapes of the latter, are drawn anew for each admission: none can be known by heart.

use crate::compare::LARGEST_INPUT;
use crate::op::call::{LoraDims, OpCall, Operand, Resident, RopeDims, Words};
use crate::op::plan::CallPlan;
use crate::random::Random;
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

    /// The second operand as models have theirs, most of which are constants.
    pub(crate) fn constant(&self) -> Resident {
        Resident::from_bytes(&self.b)
    }

    /// The call with its second operand kept in place.
    pub(crate) fn call_with<'a>(&'a self, constant: &'a Resident) -> OpCall<'a> {
        let mut call = self.call();
        if !constant.is_empty() {
            call.b = Operand::Resident(constant, 0..constant.len());
        }
        call
    }
}

/// Cases of shapes that are drawn.
const DRAWN: usize = 4;

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

/// `n` numbers of a kind. `huge` is the magnitude that the operation can still square, multiply or
/// store.
fn fill(random: &mut Random, n: usize, kind: Kind, dtype: DType, huge: f32) -> Vec<f32> {
    let half = dtype != DType::F32;
    (0..n)
        .map(|i| match kind {
            Kind::Normal => random.normal(),
            Kind::Tiny => random.uniform() * if half { 1e-3 } else { 1e-20 },
            Kind::Huge => random.uniform() * huge,
            Kind::Zeros => {
                if i % 2 == 0 {
                    0.0
                } else {
                    -0.0
                }
            }
            Kind::Subnormal => random.uniform() * if half { 2e-5 } else { 1e-39 },
            Kind::Spikes if random.below(17) == 0 => 20.0 * random.normal(),
            Kind::Spikes => 0.02 * random.normal(),
            // With 127 in the block the step is 1, and halves are exact ties.
            Kind::Ties if i % 32 == 0 => {
                if i % 64 == 0 {
                    127.0
                } else {
                    -127.0
                }
            }
            Kind::Ties => random.below(253) as f32 / 2.0 - 63.0,
        })
        .collect()
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

/// The cases of a catalogue operation, in an order that is drawn. Those whose shapes are drawn too move
/// `room` bytes at most.
pub(crate) fn cases(
    (op, plan): (Op, &CallPlan),
    inputs: &[DType],
    output: DType,
    room: usize,
    random: &mut Random,
) -> Result<Vec<Case>, String> {
    let mut make = Maker { random, op, inputs, cases: Vec::new() };
    match op {
        Op::RmsNorm => {
            for (rows, dim) in [(1, 1), (2, 7), (3, 33), (1, 897), (5, 64), (1, 2048)] {
                make.rows(
                    rows,
                    dim,
                    if inputs[0] == DType::F16 { 3e4 } else { LARGEST_INPUT },
                    KINDS,
                )?;
            }
        }
        Op::SwiGlu => {
            for (rows, dim) in [(1, 1), (2, 7), (3, 33), (2, 256), (1, 1411)] {
                make.rows(
                    rows,
                    dim,
                    if inputs[0] == DType::F16 { 200.0 } else { LARGEST_INPUT },
                    KINDS,
                )?;
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
                DType::F32 => LARGEST_INPUT,
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
            let huge = if inputs[0] == DType::F16 { 100.0 } else { LARGEST_INPUT };
            for (rows, in_dim, rank, out_dim) in shapes {
                make.lora(LoraDims { rows, in_dim, rank, out_dim }, huge)?;
            }
        }
    }
    let Maker { random, mut cases, .. } = make;
    // Not all shapes fit, even by a single row.
    for _ in 0..DRAWN {
        let words = (0..8).find_map(|_| plan.within(drawn_words(op, random), room));
        cases.extend(words.and_then(|words| live_case((op, plan), inputs, output, words, random)));
    }
    random.shuffle(&mut cases);
    Ok(cases)
}

/// Words of a call as a model of some size makes it: of one row, as often as not.
fn drawn_words(op: Op, random: &mut Random) -> Words {
    let rows = if random.below(2) == 0 { 1 } else { 2 + random.below(15) };
    let dim = 64 * (8 + random.below(41));
    let none = || Operand::None;
    match op {
        Op::RmsNorm => {
            OpCall::rmsnorm(none(), none(), rows, dim, random.one_of([1e-5, 1e-6])).words
        }
        Op::SwiGlu => OpCall::swiglu(none(), none(), rows, dim).words,
        Op::KvPack => OpCall::kv_pack(none(), rows, dim).words,
        Op::KvUnpack => OpCall::kv_unpack(none(), rows, dim).words,
        Op::Rope => {
            let (heads, dim) = (1 + random.below(16), random.one_of([64, 96, 128]));
            let dims = RopeDims { batch: 1, seq: rows, heads, dim, dim_half: dim / 2 };
            let theta = random.one_of([10_000.0, 100_000.0, 500_000.0, 1_000_000.0]);
            OpCall::rope(none(), none(), dims, theta, random.below(2) == 0).words
        }
        Op::LoraApply => {
            let rank = random.one_of([4, 8, 16]);
            let out_dim = 64 * (8 + random.below(9));
            let dims = LoraDims { rows, in_dim: 64 * (8 + random.below(9)), rank, out_dim };
            OpCall::lora(none(), none(), dims, random.one_of([0.25, 0.5, 1.0, 2.0])).words
        }
    }
}

struct Maker<'a> {
    random: &'a mut Random,
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
            let a = fill(self.random, n, kind, self.inputs[0], huge);
            let (b, words) = match self.op {
                Op::RmsNorm => {
                    let weight = fill(self.random, dim as usize, Kind::Normal, DType::F32, 1.0);
                    let eps: f32 = if i % 2 == 0 { 1e-5 } else { 1e-6 };
                    (weight, Words::of([rows, dim, eps.to_bits()]))
                }
                Op::SwiGlu => {
                    let up = fill(self.random, n, kind, self.inputs[1], huge);
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
        let theta = 10_000f32;
        for kind in KINDS {
            let freqs = rotations(self.random, seq, dim_half, theta);
            let x = fill(self.random, n, kind, self.inputs[0], huge);
            let none = || Operand::None;
            let words = OpCall::rope(none(), none(), dims, theta, interleaved).words;
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
            let x = fill(self.random, (rows * in_dim) as usize, kind, self.inputs[0], huge);
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
                        ab.push(if inside { self.random.uniform() } else { 0.0 });
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

/// The cosines and sines that `seq` positions in a row turn `dim_half` pairs by.
fn rotations(random: &mut Random, seq: u32, dim_half: u32, theta: f32) -> Vec<f32> {
    let from = random.below(4096);
    let pairs = (0..seq).flat_map(|s| (0..dim_half).map(move |pair| (from + s, pair)));
    let angle = |(position, pair): (u32, u32)| {
        f64::from(position) * f64::from(theta).powf(-f64::from(pair) / f64::from(dim_half))
    };
    pairs.map(angle).flat_map(|angle| [angle.cos() as f32, angle.sin() as f32]).collect()
}

/// A call of a catalogue operation in the shape that these words give, on numbers like a model's.
/// `None` where the words are none of the operation's.
pub(crate) fn live_case(
    (op, plan): (Op, &CallPlan),
    inputs: &[DType],
    output: DType,
    words: Words,
    random: &mut Random,
) -> Option<Case> {
    let mut make = Maker { random, op, inputs, cases: Vec::new() };
    let bytes = plan.bytes(words.as_slice()).ok()?;
    let elems = |dtype: DType, bytes: usize| bytes / dtype.layout().bytes * dtype.layout().elems;
    let kind = make.random.one_of([Kind::Normal, Kind::Spikes]);
    let a = fill(make.random, elems(*inputs.first()?, bytes.a), kind, inputs[0], 1.0);
    let mut floor = 1.0;
    let b = match (op, words.as_slice()) {
        (Op::LoraApply, &[rows, in_dim, _, rank, out_dim, ..]) => {
            floor = lora_floor(inputs[0], in_dim, rank);
            make.factors(LoraDims { rows, in_dim, rank, out_dim })
        }
        (Op::Rope, &[_, seq, _, _, dim_half, theta, ..]) => {
            rotations(make.random, seq, dim_half, f32::from_bits(theta))
        }
        _ => match inputs.get(1) {
            Some(&dtype) => fill(make.random, elems(dtype, bytes.b), Kind::Normal, dtype, 1.0),
            None => Vec::new(),
        },
    };
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
pub(crate) fn custom_cases(plan: &CallPlan, random: &mut Random) -> Vec<Case> {
    let mut cases = Vec::new();
    for extent in [1u32, 32, 64, 256] {
        let mut words = vec![extent; plan.symbols.len()];
        words.extend(plan.params.iter().map(|p| p.default.map_or(1, |v| v.to_word())));
        let Some(words) = Words::new(&words) else { continue };
        let Ok(bytes) = plan.bytes(words.as_slice()) else { continue };
        if bytes.total() == 0 || bytes.total() > 4 << 20 {
            continue;
        }
        let mut operand = |i: usize, size: usize| {
            let Some(dtype) = plan.inputs.get(i).map(|tensor| tensor.dtype) else {
                return Some(Vec::new());
            };
            let layout = dtype.layout();
            let n = size / layout.bytes * layout.elems;
            match dtype {
                DType::F32 | DType::F16 | DType::Q8_0 | DType::Q4_0 => {
                    encode(dtype, &fill(random, n, Kind::Normal, dtype, 1.0)).ok()
                }
                // Small integers in any width, and blocks with small scales.
                _ => Some(
                    (0..size).map(|j| if j % 4 == 0 { (j / 4 % 7) as u8 } else { 0 }).collect(),
                ),
            }
        };
        if let (Some(a), Some(b)) = (operand(0, bytes.a), operand(1, bytes.b)) {
            let what = format!("every extent {extent}");
            cases.push(Case { what, a, b, words, row: 1, floor: 1.0 });
        }
    }
    cases
}
