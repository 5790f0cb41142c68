//! What there is of each operation beside its contract, one row each: its definition, its native code,
//! what its results may be off by, and the calls that a kernel of it is tried on.
//!
//! Whoever adds an operation adds its contract to [`ruvllm_abi::contract`]; the compiler then asks for a
//! row here, and a row for everything in it. All else (the twin that answers by contract, the oracle,
//! admission, `ruvllm-pack test` and `bench`, deadlines, the tests of all of these) is made from the row.

mod backward;

pub(crate) use backward::Backward;

use crate::judge::{Kind, LARGEST_INPUT, Tolerance, fill};
use crate::ops::{self, LoraShape, RopeShape};
use crate::random::Random;
use crate::twin::{Call, view, write};
use crate::{Isa, NativeError, oracle};
use half::f16;
use ruvllm_abi::contract::{Dim, TensorContract, Variant};
use ruvllm_abi::{DType, Op, OpContract};

/// What the operation has beside its contract.
pub(crate) struct Row {
    /// What its words must be, beyond what sizes tensors.
    pub(crate) check: fn(&[u32]) -> Result<(), NativeError>,
    /// The definition, in f64: one number for each element of the output, before it is rounded to the
    /// output's type. Blocks are what GGML's reference makes of the result.
    pub(crate) oracle: fn(&Call<'_>) -> Result<Vec<f64>, NativeError>,
    /// The native code, for an output of the right size.
    pub(crate) native: fn(Isa, &Call<'_>, &mut [u8]) -> Result<(), NativeError>,
    /// The gradients that the contract names.
    pub(crate) backward: Option<Backward>,
    /// How far from the definition an output of a type may be; `None` where its bytes must be exact.
    pub(crate) tolerance: fn(DType) -> Option<Tolerance>,
    /// How many roundings to the input's type add up in an element.
    pub(crate) roundings: fn(&Variant, &[u32]) -> f64,
    /// Elements of the first input below this have a sigmoid smaller than twice the smallest normal number of
    /// binary32: a kernel may take it for zero, whatever it is multiplied by.
    pub(crate) vanishing: f32,
    /// The second operand.
    pub(crate) second: Second,
    /// The largest magnitude of an input that the operation can still square, multiply or store.
    pub(crate) huge: fn(&Variant) -> f32,
    /// Whether numbers halfway between two steps of a block are tried: where the operation quantises.
    pub(crate) ties: bool,
    /// Extents of calls that every kernel is tried on: odd, single and no rows, parts of heads.
    pub(crate) extents: fn(&Variant) -> &'static [&'static [u32]],
    /// Parameters that those are tried with in turns.
    pub(crate) params: &'static [&'static [u32]],
    /// The words of a call as a model of some size makes it, of so many rows.
    pub(crate) drawn: fn(&mut Random, u32) -> Vec<u32>,
    /// Extents of calls as models make them for one token: what kernels are timed with.
    pub(crate) bench: &'static [&'static [u32]],
    /// Extents of a call of one row of so many elements, heads or blocks.
    pub(crate) long: fn(u32) -> Vec<u32>,
    /// Extents of a call of some thousand elements, by which a machine is measured.
    pub(crate) sample: &'static [u32],
    /// The word that says how often the first input and the output are gone through.
    pub(crate) repeats: Option<usize>,
}

/// The second operand of an operation.
pub(crate) enum Second {
    /// There is none.
    None,
    /// Numbers like those of the first.
    Activations,
    /// A constant of the model: so many numbers for a call of these words.
    Constant(fn(&mut Random, &[u32], usize) -> Vec<f32>),
}

pub(crate) const fn row(op: Op) -> &'static Row {
    match op {
        Op::Rope => &ROPE,
        Op::RmsNorm => &RMS_NORM,
        Op::SwiGlu => &SWIGLU,
        Op::KvPack => &KV_PACK,
        Op::KvUnpack => &KV_UNPACK,
        Op::LoraApply => &LORA_APPLY,
        Op::Gelu => &GELU,
        Op::GeGlu => &GEGLU,
        Op::LayerNorm => &LAYER_NORM,
    }
}

/// Extents of rows of single elements.
const ROWS: &[&[u32]] = &[&[1, 1], &[2, 7], &[3, 33], &[5, 64], &[1, 897], &[1, 2048], &[0, 33]];

/// Extents of rows of blocks.
const BLOCKS: &[&[u32]] = &[&[1, 32], &[3, 96], &[2, 256], &[1, 1056], &[0, 96]];

const ROPE: Row = Row {
    check: |words| {
        let [_, _, _, dim, dim_half] = *words.first_chunk().unwrap_or(&[0; 5]);
        let (expected, actual) = (dim as usize / 2, dim_half as usize);
        match expected < actual {
            true => Err(NativeError::Shape { what: "rope: dim_half", expected, actual }),
            false => Ok(()),
        }
    },
    oracle: |call| {
        let y = oracle::rope(&rope_shape(call)?, &call.numbers_a()?, &call.numbers_b()?);
        if call.variant.output != DType::Q8_0 {
            return Ok(y);
        }
        oracle::kv_pack_q8(&y.iter().map(|&y| y as f32).collect::<Vec<_>>())
    },
    native: |isa, call, y| {
        let shape = rope_shape(call)?;
        let (a, freqs) = (call.a, view(call.b)?);
        match call.variant.inputs[0] {
            DType::F32 => write(y, |y| ops::rope(isa, &shape, &view(a)?, &freqs, y)),
            DType::F16 => write(y, |y| ops::rope_f16(isa, &shape, &view::<f16>(a)?, &freqs, y)),
            _ => ops::rope_q8(isa, &shape, a, &freqs, y),
        }
    },
    backward: Some(backward::ROPE),
    tolerance: usual,
    vanishing: f32::NEG_INFINITY,
    roundings: |_, _| 1.0,
    second: Second::Constant(|random, words, _| {
        let [_, seq, _, _, dim_half, theta] = *words.first_chunk().unwrap_or(&[0; 6]);
        rotations(random, seq, dim_half, f32::from_bits(theta))
    }),
    huge: |variant| match variant.inputs[0] {
        DType::F32 => LARGEST_INPUT,
        DType::F16 => 3e4,
        _ => 4e6,
    },
    ties: false,
    // Whole and part heads, odd sizes, and heads that are narrower than a block.
    extents: |variant| match variant.inputs[0] {
        DType::Q8_0 => &[
            &[1, 1, 4, 64, 32],
            &[1, 3, 4, 8, 4],
            &[2, 2, 2, 48, 16],
            &[1, 2, 2, 48, 17],
            &[1, 5, 2, 128, 64],
            &[1, 2, 1, 1024, 512],
            &[1, 0, 4, 64, 32],
        ],
        _ => &[
            &[1, 1, 4, 64, 32],
            &[1, 3, 2, 7, 3],
            &[2, 2, 3, 16, 5],
            &[1, 5, 2, 128, 64],
            &[1, 2, 2, 256, 128],
            &[1, 1, 1, 1001, 500],
            &[0, 3, 2, 64, 32],
        ],
    },
    params: &[&[10_000f32.to_bits(), 0], &[10_000f32.to_bits(), 1]],
    drawn: |random, rows| {
        let (heads, dim) = (1 + random.below(16), random.one_of([64, 96, 128]));
        let theta: f32 = random.one_of([10_000.0, 100_000.0, 500_000.0, 1_000_000.0]);
        vec![1, rows, heads, dim, dim / 2, theta.to_bits(), random.below(2)]
    },
    bench: &[&[1, 1, 32, 64, 32], &[1, 1, 32, 128, 64]],
    long: |heads| vec![1, 1, heads, 64, 32],
    sample: &[1, 8, 8, 64, 32],
    repeats: None,
};

const RMS_NORM: Row = Row {
    check: |_| Ok(()),
    oracle: |call| {
        let [_, _, eps] = call.words()?;
        Ok(oracle::rmsnorm(&call.numbers_a()?, &call.numbers_b()?, f32::from_bits(eps)))
    },
    native: |isa, call, y| {
        let [_, _, eps] = call.words()?;
        let (a, weight, eps) = (call.a, view(call.b)?, f32::from_bits(eps));
        match call.variant.inputs[0] {
            DType::F16 => write(y, |y| ops::rmsnorm_f16(isa, &view::<f16>(a)?, &weight, eps, y)),
            _ => write(y, |y| ops::rmsnorm(isa, &view(a)?, &weight, eps, y)),
        }
    },
    backward: Some(backward::RMS_NORM),
    tolerance: usual,
    vanishing: f32::NEG_INFINITY,
    roundings: |_, _| 1.0,
    second: Second::Constant(ordinary),
    huge: |variant| if variant.inputs[0] == DType::F16 { 3e4 } else { LARGEST_INPUT },
    ties: false,
    extents: |_| ROWS,
    params: &[&[1e-5f32.to_bits()], &[1e-6f32.to_bits()]],
    drawn: |random, rows| {
        let eps: f32 = random.one_of([1e-5, 1e-6]);
        vec![rows, width(random), eps.to_bits()]
    },
    bench: &[&[1, 2048], &[1, 4096]],
    long: |n| vec![1, n],
    sample: &[16, 256],
    repeats: None,
};

const SWIGLU: Row = Row {
    check: |_| Ok(()),
    oracle: |call| Ok(oracle::swiglu(&call.numbers_a()?, &call.numbers_b()?)),
    native: |isa, call, y| {
        let (gate, up) = (call.a, call.b);
        match call.variant.inputs[0] {
            DType::F16 => {
                write(y, |y| ops::swiglu_f16(isa, &view::<f16>(gate)?, &view::<f16>(up)?, y))
            }
            _ => write(y, |y| ops::swiglu(isa, &view(gate)?, &view(up)?, y)),
        }
    },
    backward: Some(backward::SWIGLU),
    tolerance: usual,
    vanishing: -87.0,
    roundings: |_, _| 1.0,
    second: Second::Activations,
    huge: |variant| if variant.inputs[0] == DType::F16 { 200.0 } else { LARGEST_INPUT },
    ties: false,
    extents: |_| ROWS,
    params: &[&[]],
    drawn: |random, rows| vec![rows, width(random)],
    bench: &[&[1, 5632], &[1, 11008]],
    long: |n| vec![1, n],
    sample: &[16, 256],
    repeats: None,
};

const KV_PACK: Row = Row {
    check: |_| Ok(()),
    oracle: |call| match call.variant.output {
        DType::Q8_0 => oracle::kv_pack_q8(&view::<f32>(call.a)?),
        _ => oracle::kv_pack_q4(&view::<f32>(call.a)?),
    },
    native: |isa, call, y| match call.variant.output {
        DType::Q8_0 => ops::kv_pack_q8(isa, &view(call.a)?, y),
        _ => ops::kv_pack_q4(isa, &view(call.a)?, y),
    },
    backward: None,
    tolerance: |_| None,
    second: Second::None,
    vanishing: f32::NEG_INFINITY,
    roundings: |_, _| 1.0,
    huge: |variant| largest_in_blocks(variant.output),
    ties: true,
    extents: |_| BLOCKS,
    params: &[&[]],
    drawn: |random, rows| vec![rows, width(random)],
    bench: &[&[1, 4096]],
    long: |blocks| vec![1, blocks.saturating_mul(32)],
    sample: &[16, 256],
    repeats: None,
};

const KV_UNPACK: Row = Row {
    oracle: |call| {
        Ok(match call.variant.inputs[0] {
            DType::Q8_0 => oracle::kv_unpack_q8(call.a),
            _ => oracle::kv_unpack_q4(call.a),
        })
    },
    native: |isa, call, y| match call.variant.inputs[0] {
        DType::Q8_0 => write(y, |y| ops::kv_unpack_q8(isa, call.a, y)),
        _ => write(y, |y| ops::kv_unpack_q4(isa, call.a, y)),
    },
    // A product of two numbers that binary32 holds: one rounding.
    tolerance: |_| Some(Tolerance { rel: 1e-7, abs: 0.0 }),
    huge: |variant| largest_in_blocks(variant.inputs[0]),
    ..KV_PACK
};

const LORA_APPLY: Row = Row {
    check: |words| {
        let [_, in_dim, groups, _, out_dim] = *words.first_chunk().unwrap_or(&[0; 5]);
        let expected = in_dim.div_ceil(4) as usize + out_dim.div_ceil(4) as usize;
        NativeError::check("lora_apply: groups of ab", expected, groups as usize)
    },
    oracle: |call| {
        let shape = lora_shape(call)?;
        let (a, b) = factors(&shape, &call.numbers_b()?);
        Ok(oracle::lora(&shape, &call.numbers_a()?, &a, &b))
    },
    native: |isa, call, y| {
        let shape = lora_shape(call)?;
        let (x, ab) = (call.a, call.b);
        match call.variant.inputs[0] {
            DType::F16 => write(y, |y| {
                ops::lora_apply_f16(isa, &shape, &view::<f16>(x)?, &view::<f16>(ab)?, y)
            }),
            _ => write(y, |y| ops::lora_apply(isa, &shape, &view(x)?, &view(ab)?, y)),
        }
    },
    backward: Some(backward::LORA_APPLY),
    tolerance: |output| match output {
        DType::F32 => Some(Tolerance { rel: 1e-5, abs: 1e-5 }),
        _ => usual(output),
    },
    // Sums run in binary32 whatever the format, so only there do small steps add up.
    vanishing: f32::NEG_INFINITY,
    roundings: |variant, words| match (variant.inputs[0], words) {
        (DType::F32, &[_, in_dim, _, rank, ..]) => f64::from(in_dim) * f64::from(rank),
        _ => 1.0,
    },
    second: Second::Constant(|random, words, _| {
        let [_, in_dim, _, rank, out_dim] = *words.first_chunk().unwrap_or(&[0; 5]);
        random_factors(random, in_dim, rank, out_dim)
    }),
    huge: |variant| if variant.inputs[0] == DType::F16 { 50.0 } else { LARGEST_INPUT },
    ties: false,
    extents: |_| {
        const SHAPES: [[u32; 5]; 6] = [
            lora(1, 1, 1, 1),
            lora(2, 7, 3, 5),
            lora(3, 33, 4, 30),
            lora(1, 96, 19, 65),
            lora(1, 256, 8, 320),
            lora(0, 16, 4, 16),
        ];
        &[&SHAPES[0], &SHAPES[1], &SHAPES[2], &SHAPES[3], &SHAPES[4], &SHAPES[5]]
    },
    params: &[&[0.5f32.to_bits()]],
    drawn: |random, rows| {
        let rank = random.one_of([4, 8, 16]);
        let [out_dim, in_dim] = [(); 2].map(|()| 64 * (8 + random.below(9)));
        let scale: f32 = random.one_of([0.25, 0.5, 1.0, 2.0]);
        [&lora(rows, in_dim, rank, out_dim)[..], &[scale.to_bits()]].concat()
    },
    bench: &[&lora(1, 2048, 4, 2048), &lora(1, 2048, 8, 2048), &lora(1, 2048, 16, 2048)],
    long: |n| lora(1, 4, 1, n).to_vec(),
    sample: &lora(4, 256, 8, 256),
    // The rank: every row meets every factor.
    repeats: Some(3),
};

const GELU: Row = Row {
    oracle: |call| Ok(oracle::gelu(&call.numbers_a()?)),
    native: |isa, call, y| match call.variant.inputs[0] {
        DType::F16 => write(y, |y| ops::gelu_f16(isa, &view::<f16>(call.a)?, y)),
        _ => write(y, |y| ops::gelu(isa, &view(call.a)?, y)),
    },
    backward: Some(backward::GELU),
    // Where twice `u` is -86.85.
    vanishing: -9.98,
    second: Second::None,
    huge: |variant| if variant.inputs[0] == DType::F16 { 3e4 } else { LARGEST_INPUT },
    bench: &[&[1, 3072], &[1, 8192]],
    ..SWIGLU
};

const GEGLU: Row = Row {
    check: |_| Ok(()),
    oracle: |call| Ok(oracle::geglu(&call.numbers_a()?, &call.numbers_b()?)),
    native: |isa, call, y| {
        let (gate, up) = (call.a, call.b);
        match call.variant.inputs[0] {
            DType::F16 => {
                write(y, |y| ops::geglu_f16(isa, &view::<f16>(gate)?, &view::<f16>(up)?, y))
            }
            _ => write(y, |y| ops::geglu(isa, &view(gate)?, &view(up)?, y)),
        }
    },
    backward: Some(backward::GEGLU),
    // Where twice `u` is -86.85.
    vanishing: -9.98,
    ..SWIGLU
};

const LAYER_NORM: Row = Row {
    oracle: |call| {
        let [_, dim, eps] = call.words()?;
        let weight_and_bias = call.numbers_b()?;
        let (weight, bias) = weight_and_bias.split_at(size(dim));
        Ok(oracle::layernorm(&call.numbers_a()?, weight, Some(bias), f32::from_bits(eps)))
    },
    native: |isa, call, y| {
        let [_, dim, eps] = call.words()?;
        let (x, weight_and_bias, eps) = (call.a, view(call.b)?, f32::from_bits(eps));
        let (weight, bias) = weight_and_bias.split_at(size(dim));
        match call.variant.inputs[0] {
            DType::F16 => {
                write(y, |y| ops::layernorm_f16(isa, &view::<f16>(x)?, weight, Some(bias), eps, y))
            }
            _ => write(y, |y| ops::layernorm(isa, &view(x)?, weight, Some(bias), eps, y)),
        }
    },
    backward: Some(backward::LAYER_NORM),
    // The rounding of the mean is an absolute error of every element of its row.
    tolerance: |output| match output {
        DType::F32 => Some(Tolerance { rel: 1e-5, abs: 1e-5 }),
        _ => usual(output),
    },
    ..RMS_NORM
};

/// What most operations may be off by.
fn usual(output: DType) -> Option<Tolerance> {
    let (rel, abs) = match output {
        DType::F16 => (1e-3, 1e-4),
        DType::BF16 => (8e-3, 1e-3),
        // One step of a block, for an element that rounds the other way, and what the scale's own
        // rounding does to the largest element.
        DType::Q8_0 => (0.0, 1.0 / 127.0 + 1.2e-3),
        _ => (1e-5, 1e-6),
    };
    Some(Tolerance { rel, abs })
}

/// A row of a model.
fn width(random: &mut Random) -> u32 {
    64 * (8 + random.below(41))
}

/// Constants with the values that a model's usually have.
fn ordinary(random: &mut Random, _: &[u32], n: usize) -> Vec<f32> {
    fill(random, n, Kind::Normal, DType::F32, 1.0)
}

fn largest_in_blocks(format: DType) -> f32 {
    if format == DType::Q4_0 { 4e5 } else { 8e6 }
}

fn rope_shape(call: &Call<'_>) -> Result<RopeShape, NativeError> {
    let [batch, seq, heads, dim, dim_half, _theta, interleaved] = call.words()?;
    let [batch, seq, heads, dim, dim_half] = [batch, seq, heads, dim, dim_half].map(size);
    Ok(RopeShape { batch, seq, heads, dim, dim_half, interleaved: interleaved != 0 })
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

/// Extents of a low-rank update.
const fn lora(rows: u32, in_dim: u32, rank: u32, out_dim: u32) -> [u32; 5] {
    let groups = in_dim.div_ceil(4).saturating_add(out_dim.div_ceil(4));
    [rows, in_dim, groups, rank, out_dim]
}

fn lora_shape(call: &Call<'_>) -> Result<LoraShape, NativeError> {
    let [rows, in_dim, _groups, rank, out_dim, scale] = call.words()?;
    let [rows, in_dim, rank, out_dim] = [rows, in_dim, rank, out_dim].map(size);
    Ok(LoraShape { rows, in_dim, rank, out_dim, scale: f32::from_bits(scale) })
}

/// Takes interleaved factors apart: `A` as `[rank, in_dim]` and `B` as `[out_dim, rank]`.
fn factors(shape: &LoraShape, ab: &[f32]) -> (Vec<f32>, Vec<f32>) {
    let LoraShape { in_dim, rank, out_dim, .. } = *shape;
    let at = |group: usize, r: usize, i: usize| ab[(group * rank + r) * 4 + i];
    let first_b = shape.in_groups();
    let a = (0..rank).flat_map(|r| (0..in_dim).map(move |i| at(i / 4, r, i % 4))).collect();
    let b =
        (0..out_dim).flat_map(|j| (0..rank).map(move |r| at(first_b + j / 4, r, j % 4))).collect();
    (a, b)
}

/// Random factors in the interleaved layout of the contract, zero beyond the true dimensions.
fn random_factors(random: &mut Random, in_dim: u32, rank: u32, out_dim: u32) -> Vec<f32> {
    let mut ab = Vec::new();
    for width in [in_dim, out_dim] {
        for group in 0..width.div_ceil(4) {
            for _rank in 0..rank {
                for lane in 0..4 {
                    let inside = group * 4 + lane < width;
                    ab.push(if inside { random.uniform() } else { 0.0 });
                }
            }
        }
    }
    ab
}

fn size(word: u32) -> usize {
    word as usize
}

/// One extent of a tensor: the index of the word that binds it, or a constant.
#[derive(Clone, Copy)]
enum Extent {
    Word(usize),
    Fixed(usize),
}

impl Extent {
    fn get(self, words: &[u32]) -> usize {
        match self {
            Extent::Word(word) => words[word] as usize,
            Extent::Fixed(n) => n,
        }
    }
}

/// A tensor's extents in terms of the words.
#[derive(Clone, Copy)]
pub(crate) struct Extents {
    /// Those beyond the rank are 1.
    dims: [Extent; Extents::MOST],
    rank: usize,
    /// Dimensions that count rows: those before the ones that blocks may span.
    rows: usize,
}

/// The shapes of a contract's tensors, and its number of words, found when the program is compiled.
#[derive(Clone, Copy)]
pub(crate) struct Layout {
    pub(crate) inputs: [Extents; 2],
    pub(crate) output: Extents,
    pub(crate) words: usize,
}

impl Extents {
    const MOST: usize = 4;

    /// The extent of each dimension.
    pub(crate) fn shape(&self, words: &[u32]) -> Vec<usize> {
        self.dims[..self.rank].iter().map(|extent| extent.get(words)).collect()
    }

    /// The extent of the innermost dimension.
    pub(crate) fn row(&self, words: &[u32]) -> usize {
        self.dims[self.rank - 1].get(words)
    }

    /// Elements of a row, which whole blocks must fill, and rows.
    pub(crate) fn sizes(&self, words: &[u32]) -> Result<(usize, usize), NativeError> {
        let what = "twin: elements of a tensor";
        let dims = self.dims.map(|extent| extent.get(words));
        let (rows, row) = dims.split_at(self.rows);
        Ok((ops::product(what, row)?, ops::product(what, rows)?))
    }
}

/// The layout of an operation.
pub(crate) fn layout(op: Op) -> &'static Layout {
    const LAYOUTS: [Layout; Op::ALL.len()] = {
        let mut layouts = [Layout::of(Op::ALL[0].contract()); Op::ALL.len()];
        let mut i = 0;
        while i < layouts.len() {
            layouts[i] = Layout::of(Op::ALL[i].contract());
            i += 1;
        }
        layouts
    };
    // In the order of the list, as an enum's variants are.
    &LAYOUTS[op as usize]
}

impl Layout {
    const fn of(contract: &OpContract) -> Self {
        let mut symbols = Symbols { names: [""; 16], len: 0 };
        let row = contract.output.shape.len() - contract.row_dims;
        let none = Extents { dims: [Extent::Fixed(1); Extents::MOST], rank: 1, rows: 0 };
        let mut inputs = [none; 2];
        let mut i = 0;
        while i < contract.inputs.len() {
            inputs[i] = symbols.bind(&contract.inputs[i], row);
            i += 1;
        }
        let output = symbols.bind(&contract.output, row);
        Self { inputs, output, words: symbols.len + contract.params.len() }
    }
}

/// The symbols of a contract so far, in order of first appearance.
struct Symbols {
    names: [&'static str; 16],
    len: usize,
}

impl Symbols {
    const fn bind(&mut self, tensor: &TensorContract, row: usize) -> Extents {
        let mut dims = [Extent::Fixed(1); Extents::MOST];
        let mut i = 0;
        while i < tensor.shape.len() {
            dims[i] = match tensor.shape[i] {
                Dim::Fixed(n) => Extent::Fixed(n as usize),
                Dim::Sym(name) => Extent::Word(self.word(name)),
            };
            i += 1;
        }
        let rank = tensor.shape.len();
        Extents { dims, rank, rows: rank.saturating_sub(row) }
    }

    const fn word(&mut self, name: &'static str) -> usize {
        let mut i = 0;
        while i < self.len {
            if same(self.names[i].as_bytes(), name.as_bytes()) {
                return i;
            }
            i += 1;
        }
        self.names[i] = name;
        self.len += 1;
        i
    }
}

const fn same(a: &[u8], b: &[u8]) -> bool {
    let mut i = 0;
    while i < a.len() && i < b.len() && a[i] == b[i] {
        i += 1;
    }
    i == a.len() && i == b.len()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn layouts_are_those_of_the_contracts() {
        for op in Op::ALL {
            let (contract, layout) = (op.contract(), layout(op));
            assert_eq!(row(op).backward.is_some(), !contract.gradients.is_empty(), "{op}");
            assert_eq!(layout.words, contract.param_words(), "{op}");
            let symbols: Vec<&str> = contract.symbols().collect();
            let tensors = contract.inputs.iter().zip(&layout.inputs);
            for (tensor, extents) in tensors.chain([(&contract.output, &layout.output)]) {
                for (dim, extent) in tensor.shape.iter().zip(extents.dims) {
                    assert!(match (*dim, extent) {
                        (Dim::Sym(name), Extent::Word(word)) => symbols[word] == name,
                        (Dim::Fixed(a), Extent::Fixed(b)) => a as usize == b,
                        _ => false,
                    });
                }
            }
        }
    }
}
