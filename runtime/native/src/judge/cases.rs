//! The calls that a kernel is tried on.
//!
//! Some are unkind: odd shapes, a single row or none, tiny and huge magnitudes, zeros, subnormal numbers,
//! NaN and infinities, ties of the quantiser's rounding, rotations of part of a head. Others are what a
//! model would ask for. All numbers, and the shapes of the latter, follow from a seed: who does not know
//! it can know none by heart.

use crate::catalogue::{Second, layout, row};
use crate::random::Random;
use crate::twin::sizes;
use crate::{NativeError, quant};
use half::f16;
use ruvllm_abi::contract::{ParamType, Variant};
use ruvllm_abi::{DType, Op};

/// One call with its operands.
#[derive(Clone, Debug)]
pub struct Case {
    /// What its numbers are like, and its extents, for messages.
    pub what: String,
    /// Its extents and parameters that are counts, such as `rows 1, dim 2048`.
    pub shape: String,
    /// The first input.
    pub a: Vec<u8>,
    /// The second; empty where there is none.
    pub b: Vec<u8>,
    /// The gradient of the output, in a case for gradients; else empty.
    pub gradient: Vec<u8>,
    /// The params block.
    pub words: Vec<u32>,
    /// Bytes of the output.
    pub output: usize,
}

/// What the numbers of a case are like.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Around zero with a deviation of one.
    Normal,
    /// Far below one.
    Tiny,
    /// As large as the operation takes them.
    Huge,
    /// Of both signs.
    Zeros,
    /// Below the smallest normal number.
    Subnormal,
    /// Mostly small, some large.
    Spikes,
    /// Some NaN and infinities.
    NonFinite,
    /// Halfway between two steps of a block.
    Ties,
}

const KINDS: [Kind; 7] = [
    Kind::Normal,
    Kind::Tiny,
    Kind::Huge,
    Kind::Zeros,
    Kind::Subnormal,
    Kind::Spikes,
    Kind::NonFinite,
];

/// Cases of shapes that are drawn.
const DRAWN: usize = 4;

/// `n` numbers of a kind that a tensor of `dtype` can hold. `huge` is the largest magnitude of huge ones.
pub fn fill(random: &mut Random, n: usize, kind: Kind, dtype: DType, huge: f32) -> Vec<f32> {
    let narrow = dtype != DType::F32;
    (0..n)
        .map(|i| match kind {
            Kind::Normal => random.normal(),
            Kind::Tiny => random.uniform() * if narrow { 1e-3 } else { 1e-20 },
            Kind::Huge => random.uniform() * huge,
            Kind::Zeros if i % 2 == 0 => 0.0,
            Kind::Zeros => -0.0,
            Kind::Subnormal => random.uniform() * if narrow { 2e-5 } else { 1e-39 },
            Kind::Spikes if random.below(17) == 0 => 20.0 * random.normal(),
            Kind::Spikes => 0.02 * random.normal(),
            Kind::NonFinite => match random.below(5) {
                0 => f32::NAN,
                1 => f32::INFINITY,
                2 => f32::NEG_INFINITY,
                _ => random.uniform(),
            },
            // With 127 in the block the step is 1, and halves are exact ties.
            Kind::Ties if i % 64 == 0 => 127.0,
            Kind::Ties if i % 32 == 0 => -127.0,
            Kind::Ties => random.below(253) as f32 / 2.0 - 63.0,
        })
        .collect()
}

/// Numbers in a format: of blocks, what GGML's reference makes of them.
///
/// # Errors
/// [`NativeError`] where they do not fill blocks, or nothing writes the format.
pub fn encode(dtype: DType, values: &[f32]) -> Result<Vec<u8>, NativeError> {
    let what = "encode: elements in whole blocks";
    let (expected, actual) = (values.len().next_multiple_of(dtype.layout().elems), values.len());
    let size = dtype.bytes_for(values.len());
    let mut bytes = vec![0; size.ok_or(NativeError::Shape { what, expected, actual })?];
    match dtype {
        DType::U32 => bytes = values.iter().flat_map(|x| (*x as u32).to_le_bytes()).collect(),
        DType::I32 => bytes = values.iter().flat_map(|x| (*x as i32).to_le_bytes()).collect(),
        DType::U8 => bytes = values.iter().map(|x| *x as u8).collect(),
        _ => quant::quantize_row(dtype, values, &mut bytes)?,
    }
    Ok(bytes)
}

/// `n` numbers of a kind as an operand of an operation that is not in the catalogue. Normal integers, which may be
/// indices, are 0 to 6, huge numbers are up to 1e4. Where nothing here writes the format of its blocks, they are
/// [`random_blocks`]. `None` where the numbers do not fill blocks.
pub fn custom_operand(random: &mut Random, n: usize, kind: Kind, dtype: DType) -> Option<Vec<u8>> {
    let numbers = match (kind, dtype) {
        (Kind::Normal, DType::U32 | DType::I32 | DType::U8) => {
            (0..n).map(|i| (i % 7) as f32).collect()
        }
        _ => fill(random, n, kind, dtype, 1e4),
    };
    encode(dtype, &numbers).ok().or_else(|| random_blocks(random, n, dtype))
}

/// `n` numbers in blocks of random bits, so that elements are all that their format has, with scales and offsets
/// within ±0.05. `None` where they do not fill blocks, or the type has none.
pub fn random_blocks(random: &mut Random, n: usize, dtype: DType) -> Option<Vec<u8>> {
    let size = dtype.bytes_for(n).filter(|_| dtype.is_quantized())?;
    let mut bytes: Vec<u8> = (0..size).map(|_| random.next() as u8).collect();
    for block in bytes.chunks_exact_mut(dtype.layout().bytes) {
        for at in scales(dtype) {
            let scale = f16::from_f32(0.05 * random.uniform());
            block[*at..at + 2].copy_from_slice(&scale.to_le_bytes());
        }
    }
    Some(bytes)
}

/// Where a block has numbers of 16 bits, its scale and its offset.
pub(crate) fn scales(dtype: DType) -> &'static [usize] {
    match dtype {
        DType::Q8_0 | DType::Q4_0 | DType::Q5_0 => &[0],
        DType::Q6_K => &[208],
        DType::Q4_1 | DType::Q5_1 | DType::Q4_K | DType::Q5_K => &[0, 2],
        _ => &[],
    }
}

/// The cases of a kernel of this variant, in an order that is drawn. Those whose shapes are drawn too
/// move `room` bytes at most.
///
/// # Errors
/// [`NativeError`] where the catalogue's row has extents that the operation does not take.
pub fn cases(
    op: Op,
    variant: &Variant,
    room: usize,
    random: &mut Random,
) -> Result<Vec<Case>, NativeError> {
    made(Maker { op, variant, random, backward: false }, room)
}

/// The cases for gradients of a kernel of this variant, as [`cases`] are: none where it has no gradients.
///
/// # Errors
/// As [`cases`].
pub fn backward_cases(
    op: Op,
    variant: &Variant,
    room: usize,
    random: &mut Random,
) -> Result<Vec<Case>, NativeError> {
    if op.contract().gradients_of(variant.inputs, variant.output).is_empty() {
        return Ok(Vec::new());
    }
    // Gradients go out as the inputs come in.
    made(Maker { op, variant, random, backward: true }, room / 2)
}

/// A case for gradients in the shape that these words give, on numbers around which the operation is smooth, so
/// that differences can be taken. `None` where the words are none of the operation's or it has no gradients.
pub fn differentiable_case(
    op: Op,
    variant: &Variant,
    words: &[u32],
    random: &mut Random,
) -> Option<Case> {
    if op.contract().gradients_of(variant.inputs, variant.output).is_empty() {
        return None;
    }
    let mut maker = Maker { op, variant, random, backward: true };
    maker.make(words.to_vec(), [Kind::Normal; 2], 1.0).ok()
}

fn made(mut maker: Maker<'_>, room: usize) -> Result<Vec<Case>, NativeError> {
    let (op, variant) = (maker.op, maker.variant);
    let row = row(op);
    let mut cases = Vec::new();
    for (shape, extents) in (row.extents)(variant).iter().enumerate() {
        let kinds = KINDS.into_iter().chain(row.ties.then_some(Kind::Ties));
        for (number, kind) in kinds.enumerate() {
            // In turns, so that every kind of numbers meets all parameters, if not in every shape.
            let params = row.params[(shape + number) % row.params.len()];
            let case = maker.make([*extents, params].concat(), [kind; 2], (row.huge)(variant))?;
            let empty = case.output == 0;
            cases.push(case);
            if empty {
                // Of whatever kind they are, there are no numbers.
                break;
            }
        }
    }
    if let (Second::Constant(_), false) = (&row.second, maker.backward) {
        // NaN in a row of the first operand hides what a kernel makes of one in the second.
        let extents =
            (row.extents)(variant).iter().max_by_key(|extents| extents.iter().product::<u32>());
        let words = first_params(op, extents.copied().unwrap_or_default().to_vec());
        cases.push(maker.make(words, [Kind::Normal, Kind::NonFinite], 1.0)?);
    }
    for _ in 0..DRAWN {
        // Not all shapes fit, even by a single row.
        let words = (0..8).find_map(|_| {
            let rows = if maker.random.below(2) == 0 { 1 } else { 2 + maker.random.below(15) };
            let words = (row.drawn)(maker.random, rows);
            within(op, variant, words, room)
        });
        cases.extend(words.and_then(|words| maker.live(words).ok()));
    }
    maker.random.shuffle(&mut cases);
    Ok(cases)
}

/// A call of an operation in the shape that these words give, on numbers like a model's. `None` where
/// the words are none of the operation's.
pub fn live_case(op: Op, variant: &Variant, words: &[u32], random: &mut Random) -> Option<Case> {
    Maker { op, variant, random, backward: false }.live(words.to_vec()).ok()
}

/// Calls as models make them, to time a kernel with.
pub fn bench_cases(op: Op, variant: &Variant, random: &mut Random) -> Vec<Case> {
    let row = row(op);
    let words = row.bench.iter().map(|extents| first_params(op, extents.to_vec()));
    words.filter_map(|words| live_case(op, variant, &words, random)).collect()
}

/// A call with one row that is `n` units long; a unit is one element, one head or one block.
pub fn long_case(op: Op, variant: &Variant, n: u32, random: &mut Random) -> Option<Case> {
    live_case(op, variant, &first_params(op, long_extents(op, n)), random)
}

/// The extents of [`long_case`]: along a dimension in which no call is ever cut.
pub fn long_extents(op: Op, n: u32) -> Vec<u32> {
    (row(op).long)(n)
}

/// Extents with the first parameters of the row.
fn first_params(op: Op, mut extents: Vec<u32>) -> Vec<u32> {
    extents.extend_from_slice(row(op).params.first().copied().unwrap_or_default());
    extents
}

/// The words of a call of fewer rows where they call for more than `room` bytes; `None` where no number of
/// rows is few enough, or they call for nothing.
fn within(op: Op, variant: &Variant, mut words: Vec<u32>, room: usize) -> Option<Vec<u32>> {
    for at in 0..op.contract().row_dims {
        let total: usize = sizes(op, variant, &words).ok()?.iter().sum();
        if total > room {
            words[at] = ((words[at] as usize).saturating_mul(room) / total).max(1) as u32;
        }
    }
    let [a, b, out] = sizes(op, variant, &words).ok()?;
    (out > 0 && a + b + out <= room).then_some(words)
}

struct Maker<'a> {
    op: Op,
    variant: &'a Variant,
    random: &'a mut Random,
    backward: bool,
}

impl Maker<'_> {
    fn live(&mut self, words: Vec<u32>) -> Result<Case, NativeError> {
        let kind = self.random.one_of([Kind::Normal, Kind::Spikes]);
        self.make(words, [kind, Kind::Normal], 1.0)
    }

    fn make(&mut self, words: Vec<u32>, kinds: [Kind; 2], huge: f32) -> Result<Case, NativeError> {
        let (contract, inputs) = (self.op.contract(), self.variant.inputs);
        let sizes = sizes(self.op, self.variant, &words)?;
        (row(self.op).check)(&words)?;
        let elems = |i: usize| {
            let block = inputs[i].layout();
            sizes[i] / block.bytes * block.elems
        };
        let a = fill(self.random, elems(0), kinds[0], inputs[0], huge);
        let mut a = encode(inputs[0], &a)?;
        if kinds[0] == Kind::NonFinite && self.variant.output == DType::F32 {
            self.spoil_blocks(inputs[0], &mut a);
        }
        let b = match row(self.op).second {
            Second::None => Vec::new(),
            Second::Activations => {
                encode(inputs[1], &fill(self.random, elems(1), kinds[1], inputs[1], huge))?
            }
            Second::Constant(make) => {
                let mut numbers = make(self.random, &words, elems(1));
                if kinds[1] == Kind::NonFinite {
                    self.spoil(&mut numbers);
                }
                encode(inputs[1], &numbers)?
            }
        };
        let gradient = match self.backward {
            true => {
                let elems = sizes[2] / size_of::<f32>();
                encode(DType::F32, &fill(self.random, elems, kinds[0], DType::F32, huge))?
            }
            false => Vec::new(),
        };
        let symbols: Vec<&str> = contract.symbols().collect();
        let counts = contract.params.iter().map(|param| (param.ty != ParamType::F32, param.name));
        let named = symbols.iter().map(|name| (true, *name)).chain(counts).zip(&words);
        let named = named.filter(|((shown, _), _)| *shown);
        let shape: Vec<String> = named.map(|((_, name), word)| format!("{name} {word}")).collect();
        let shape = shape.join(", ");
        let kind = match kinds {
            [Kind::Normal, Kind::NonFinite] => "normal numbers by nonfinite".to_owned(),
            _ => format!("{:?}", kinds[0]).to_lowercase(),
        };
        let of = if self.backward { "the gradients of " } else { "" };
        let what = format!("{of}{kind} numbers, {shape}");
        Ok(Case { what, shape, a, b, gradient, words, output: sizes[2] })
    }
}

impl Maker<'_> {
    /// Makes about one number in eight NaN or infinite, and at least one; zeros may be padding and stay.
    fn spoil(&mut self, numbers: &mut [f32]) {
        let one = self.random.below(numbers.len().max(1) as u32) as usize;
        for (i, number) in numbers.iter_mut().enumerate() {
            if *number != 0.0 && (i == one || self.random.below(8) == 0) {
                *number = self.random.one_of([f32::NAN, f32::INFINITY, f32::NEG_INFINITY]);
            }
        }
    }

    /// Gives about one block in three a scale that is infinite and integers that are not zero, as no encoder does: of
    /// infinities that makes NaN.
    fn spoil_blocks(&mut self, dtype: DType, bytes: &mut [u8]) {
        if !matches!(dtype, DType::Q8_0 | DType::Q4_0) {
            return;
        }
        for block in bytes.chunks_exact_mut(dtype.layout().bytes) {
            let (scale, integers) = block.split_at_mut(size_of::<f16>());
            if self.random.below(3) == 0 {
                scale.copy_from_slice(&f16::INFINITY.to_le_bytes());
                integers.fill_with(|| self.random.below(256) as u8);
            }
        }
    }
}

impl Case {
    /// What the judge is asked about.
    pub fn called(&self) -> super::Called<'_> {
        super::Called { a: &self.a, b: &self.b, words: &self.words }
    }

    /// The shape of an input of the operation.
    pub fn input_shape(&self, op: Op, input: usize) -> Vec<usize> {
        layout(op).inputs[input].shape(&self.words)
    }

    /// The shape of the output of the operation.
    pub fn output_shape(&self, op: Op) -> Vec<usize> {
        layout(op).output.shape(&self.words)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_variant_has_cases_that_fit_its_contract_and_follow_from_the_seed() {
        for op in Op::ALL {
            for variant in op.contract().variants {
                let cases = |seed| cases(op, variant, 1 << 17, &mut Random::new(seed)).unwrap();
                let made = cases(1);
                assert!(made.len() > 4 * KINDS.len() + DRAWN, "{}", variant.kernel);
                for case in &made {
                    let [a, b, _] = sizes(op, variant, &case.words).unwrap();
                    assert_eq!((case.a.len(), case.b.len()), (a, b), "{}", case.what);
                }
                assert!(made.iter().any(|case| case.a.is_empty()), "{}", variant.kernel);
                let same = |a: &[Case], b: &[Case]| {
                    a.iter().zip(b).all(|(a, b)| (&a.words, &a.a) == (&b.words, &b.a))
                };
                assert!(same(&made, &cases(1)) && !same(&made, &cases(2)), "{}", variant.kernel);
                assert!(!bench_cases(op, variant, &mut Random::new(1)).is_empty());
                assert!(long_case(op, variant, 9, &mut Random::new(1)).is_some());
            }
        }
    }

    #[test]
    fn random_blocks_are_finite_and_use_every_bit() {
        for dtype in DType::ALL {
            let blocks = |n| random_blocks(&mut Random::new(1), n, dtype);
            assert_eq!(blocks(512).is_some(), dtype.is_quantized(), "{dtype}");
            assert!(blocks(257).is_none());
            let Some(bytes) = blocks(512) else { continue };
            let mut numbers = vec![0.0; 512];
            quant::dequantize_row(dtype, &bytes, &mut numbers).unwrap();
            assert!(numbers.iter().all(|x| x.abs() < 256.0), "{dtype}");
            assert_eq!(bytes.iter().fold([0, 255], |[any, all], b| [any | b, all & b]), [255, 0]);
        }
    }

    #[test]
    fn drawn_calls_are_cut_to_the_room_that_there_is() {
        let variant = &Op::RmsNorm.contract().variants[0];
        let rows = |rows, room| Some(within(Op::RmsNorm, variant, vec![rows, 4, 0], room)?[0]);
        assert_eq!(rows(10, 1000), Some(10));
        assert_eq!(rows(10, 100), Some(2));
        assert_eq!(rows(10, 40), None);
        assert_eq!(rows(0, 40), None);
    }
}
