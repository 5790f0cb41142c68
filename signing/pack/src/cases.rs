//! Calls to test and time a kernel with, built from the contract of its operation.

use ruvllm_abi::contract::{Dim, ParamType};
use ruvllm_abi::{DType, Op, OpContract};
use ruvllm_host::{ParamValue, Tensor};
use ruvllm_manifest::KernelEntry;
use ruvllm_native::quant;

/// What the numbers of a case are like.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    Normal,
    Tiny,
    Huge,
    Zeros,
    Subnormal,
    Spikes,
    /// Some NaN and infinities: nothing is expected but that the kernel returns.
    NonFinite,
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

/// One call of a kernel.
pub(crate) struct Case {
    /// Kind and extents, for messages.
    pub(crate) what: String,
    pub(crate) kind: Kind,
    pub(crate) inputs: Vec<Tensor>,
    /// The params block: extents of the contract's symbols, then parameters.
    pub(crate) words: Vec<u32>,
    /// Elements of a row of the output, and of all of it.
    pub(crate) row: usize,
    pub(crate) elems: usize,
}

/// Shapes and parameters for the words of the params block, in the contract's order.
struct Shape(Vec<u32>);

/// A known operation with the element types of one kernel.
#[derive(Clone, Copy)]
pub(crate) struct Subject<'a> {
    pub(crate) op: Op,
    pub(crate) inputs: &'a [DType],
    pub(crate) output: DType,
}

impl Subject<'_> {
    /// Cases that must come out right: odd shapes, no rows, all kinds of numbers.
    pub(crate) fn test_cases(self) -> Vec<Case> {
        let mut numbers = Numbers(0x7e57);
        let mut cases = Vec::new();
        for shape in self.test_shapes() {
            for kind in KINDS {
                cases.extend(self.case(&shape, kind, &mut numbers));
            }
        }
        cases
    }

    /// Cases with the shapes of real models.
    pub(crate) fn bench_cases(self) -> Vec<Case> {
        let mut numbers = Numbers(0xbe4c);
        let shapes = match self.op {
            Op::Rope => vec![vec![1, 1, 32, 64, 32], vec![1, 1, 32, 128, 64]],
            Op::RmsNorm => vec![vec![1, 2048], vec![1, 4096]],
            Op::SwiGlu => vec![vec![1, 5632], vec![1, 11008]],
            Op::KvPack | Op::KvUnpack => vec![vec![1, 4096]],
            Op::LoraApply => vec![lora(1, 2048, 8, 2048), lora(1, 2048, 16, 2048)],
        };
        let with_params = shapes.into_iter().map(|shape| self.with_params(shape, 0));
        with_params.filter_map(|shape| self.case(&shape, Kind::Normal, &mut numbers)).collect()
    }

    /// A case with one row that is `n` units long; a unit is one element, one head or one block.
    pub(crate) fn long_case(self, n: u32) -> Option<Case> {
        let shape = self.with_params(self.long_extents(n), 0);
        self.case(&shape, Kind::Normal, &mut Numbers(0x10a6))
    }

    /// The extents of [`Subject::long_case`]: along a dimension in which no call is ever cut.
    pub(crate) fn long_extents(self, n: u32) -> Vec<u32> {
        match self.op {
            Op::Rope => vec![1, 1, n, 64, 32],
            Op::RmsNorm | Op::SwiGlu => vec![1, n],
            Op::KvPack | Op::KvUnpack => vec![1, n.saturating_mul(32)],
            Op::LoraApply => lora(1, 4, 1, n),
        }
    }

    fn contract(self) -> &'static OpContract {
        self.op.contract()
    }

    /// Whether some tensor is made of blocks, so that rows come in whole ones.
    fn has_blocks(self) -> bool {
        self.output.is_quantized() || self.inputs.iter().any(|dtype| dtype.is_quantized())
    }

    fn test_shapes(self) -> Vec<Shape> {
        let shapes: Vec<Vec<u32>> = match self.op {
            Op::Rope if self.has_blocks() => vec![
                vec![1, 1, 4, 64, 32],
                vec![2, 3, 4, 8, 4],
                vec![1, 2, 2, 48, 17],
                vec![1, 2, 1, 2048, 1024],
                vec![1, 0, 4, 64, 32],
            ],
            Op::Rope => vec![
                vec![1, 1, 32, 64, 32],
                vec![2, 3, 2, 7, 3],
                vec![1, 2, 3, 16, 5],
                vec![1, 2, 2, 256, 128],
                vec![1, 1, 1, 5001, 2500],
                vec![0, 3, 2, 64, 32],
            ],
            _ if self.op == Op::LoraApply => vec![
                lora(1, 1, 1, 1),
                lora(2, 7, 3, 5),
                lora(3, 33, 4, 30),
                lora(1, 576, 8, 1536),
                lora(1, 255, 19, 257),
                lora(0, 16, 4, 16),
            ],
            _ if self.has_blocks() => {
                vec![vec![1, 32], vec![3, 96], vec![1, 1056], vec![5, 576], vec![0, 64]]
            }
            _ => vec![
                vec![1, 1],
                vec![2, 3],
                vec![3, 7],
                vec![2, 33],
                vec![1, 127],
                vec![3, 576],
                vec![1, 2051],
                vec![0, 64],
            ],
        };
        let variants = if self.op == Op::Rope { 2 } else { 1 };
        let with = |shape: Vec<u32>| (0..variants).map(move |v| self.with_params(shape.clone(), v));
        shapes.into_iter().flat_map(with).collect()
    }

    /// Appends the parameters to the extents.
    fn with_params(self, mut extents: Vec<u32>, variant: u32) -> Shape {
        match self.op {
            Op::Rope => extents.extend([10_000f32.to_bits(), variant]),
            Op::RmsNorm => extents.push(1e-5f32.to_bits()),
            Op::LoraApply => extents.push(0.5f32.to_bits()),
            Op::SwiGlu | Op::KvPack | Op::KvUnpack => {}
        }
        Shape(extents)
    }

    fn case(self, shape: &Shape, kind: Kind, numbers: &mut Numbers) -> Option<Case> {
        let symbols: Vec<&str> = self.contract().symbols().collect();
        let extent = |dim: &Dim| match dim {
            Dim::Fixed(n) => *n as usize,
            Dim::Sym(name) => {
                symbols.iter().position(|symbol| symbol == name).map_or(0, |i| shape.0[i] as usize)
            }
        };
        let mut inputs = Vec::new();
        for (i, (tensor, dtype)) in self.contract().inputs.iter().zip(self.inputs).enumerate() {
            let dims: Vec<usize> = tensor.shape.iter().map(extent).collect();
            let n = dims.iter().product();
            let values = match (self.op, i) {
                (Op::Rope, 1) => angles(n, numbers),
                // Constants of a model have ordinary values.
                (Op::RmsNorm | Op::LoraApply, 1) => numbers.fill(n, Kind::Normal, *dtype, 1.0),
                _ => numbers.fill(n, kind, *dtype, self.huge()),
            };
            inputs.push(encode(*dtype, dims, &values)?);
        }
        let out: Vec<usize> = self.contract().output.shape.iter().map(extent).collect();
        let extents: Vec<String> =
            symbols.iter().zip(&shape.0).map(|(name, n)| format!("{name} {n}")).collect();
        let params: Vec<String> = self
            .contract()
            .params
            .iter()
            .zip(&shape.0[symbols.len()..])
            .filter(|(param, _)| param.ty != ParamType::F32)
            .map(|(param, word)| format!("{} {word}", param.name))
            .collect();
        let what = [extents, params].concat().join(", ");
        Some(Case {
            what: format!("{kind:?} numbers, {what}"),
            kind,
            inputs,
            words: shape.0.clone(),
            row: out.last().copied().unwrap_or(1),
            elems: out.iter().product(),
        })
    }

    /// The largest magnitude that the operation can still square, multiply or store.
    fn huge(self) -> f32 {
        match (self.op, self.inputs[0], self.output) {
            (_, _, DType::Q4_0) | (_, DType::Q4_0, _) => 4e5,
            (_, _, DType::Q8_0) | (_, DType::Q8_0, _) => 4e6,
            (_, DType::F32, _) => 1e15,
            (Op::SwiGlu, ..) => 200.0,
            (Op::LoraApply, ..) => 50.0,
            _ => 3e4,
        }
    }
}

/// Extents of a low-rank update, `groups` among them.
fn lora(rows: u32, in_dim: u32, rank: u32, out_dim: u32) -> Vec<u32> {
    vec![rows, in_dim, in_dim.div_ceil(4) + out_dim.div_ceil(4), rank, out_dim]
}

impl Case {
    /// Every extent and parameter by the name that the manifest of the kernel has for it.
    pub(crate) fn params<'e>(&self, entry: &'e KernelEntry) -> Vec<(&'e str, ParamValue)> {
        let symbols = entry.symbols();
        let (extents, values) = self.words.split_at(symbols.len().min(self.words.len()));
        let extents = symbols.iter().zip(extents).map(|(name, n)| (*name, ParamValue::U32(*n)));
        let params = entry.params.iter().zip(values).map(|((name, spec), word)| {
            let value = match spec.ty {
                ParamType::F32 => ParamValue::F32(f32::from_bits(*word)),
                ParamType::U32 => ParamValue::U32(*word),
                ParamType::I32 => ParamValue::I32(word.cast_signed()),
            };
            (name.as_str(), value)
        });
        extents.chain(params).collect()
    }

    /// Its extents, such as `rows 1, dim 2048`.
    pub(crate) fn shape(&self) -> &str {
        self.what.split_once(", ").map_or("", |(_, shape)| shape)
    }

    /// The bytes of an input; none where there is no such input.
    pub(crate) fn bytes(&self, input: usize) -> &[u8] {
        self.inputs.get(input).map_or(&[], |tensor| tensor.bytes())
    }

    /// How many roundings add up in an element: a factor on the smallest step of the format.
    pub(crate) fn roundings(&self, op: Op) -> f64 {
        match (op, self.words.as_slice()) {
            (Op::LoraApply, [_, in_dim, _, rank, ..]) => f64::from(in_dim * rank),
            _ => 1.0,
        }
    }
}

/// Numbers in a format; `None` where the shape has no size in it, or nothing writes the format.
pub(crate) fn encode(dtype: DType, shape: Vec<usize>, values: &[f32]) -> Option<Tensor> {
    let bytes = match dtype {
        DType::U32 => values.iter().flat_map(|x| (*x as u32).to_le_bytes()).collect(),
        DType::I32 => values.iter().flat_map(|x| (*x as i32).to_le_bytes()).collect(),
        DType::U8 => values.iter().map(|x| *x as u8).collect(),
        _ => {
            let mut bytes = vec![0; dtype.bytes_for(values.len())?];
            quant::quantize_row(dtype, values, &mut bytes).ok()?;
            bytes
        }
    };
    Tensor::new(dtype, shape, bytes)
}

/// (cos, sin) of random angles.
fn angles(n: usize, numbers: &mut Numbers) -> Vec<f32> {
    (0..n / 2)
        .flat_map(|_| {
            let (sin, cos) = (f64::from(numbers.unit()) * std::f64::consts::PI).sin_cos();
            [cos as f32, sin as f32]
        })
        .collect()
}

/// SplitMix64 (Steele, Lea and Flood 2014): enough for test data, and the same everywhere.
pub(crate) struct Numbers(pub(crate) u64);

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

    /// `n` numbers of a kind; `huge` is the largest magnitude of huge ones.
    pub(crate) fn fill(&mut self, n: usize, kind: Kind, dtype: DType, huge: f32) -> Vec<f32> {
        let narrow = dtype != DType::F32;
        (0..n)
            .map(|i| match kind {
                Kind::Normal => 2.0 * self.unit(),
                Kind::Tiny => self.unit() * if narrow { 1e-3 } else { 1e-20 },
                Kind::Huge => self.unit() * huge,
                Kind::Zeros if i % 2 == 0 => 0.0,
                Kind::Zeros => -0.0,
                Kind::Subnormal => self.unit() * if narrow { 2e-5 } else { 1e-39 },
                Kind::Spikes if self.next().is_multiple_of(17) => 40.0 * self.unit(),
                Kind::Spikes => 0.01 * self.unit(),
                Kind::NonFinite => match self.next() % 5 {
                    0 => f32::NAN,
                    1 => f32::INFINITY,
                    2 => f32::NEG_INFINITY,
                    _ => self.unit(),
                },
            })
            .collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_variant_has_cases_that_fit_its_contract() {
        for op in Op::ALL {
            for variant in op.contract().variants {
                let subject = Subject { op, inputs: variant.inputs, output: variant.output };
                let (test, bench) = (subject.test_cases(), subject.bench_cases());
                assert!(test.len() >= 5 * KINDS.len(), "{}", variant.kernel);
                assert!(!bench.is_empty());
                for case in test.iter().chain(&bench) {
                    assert_eq!(case.words.len(), op.contract().param_words());
                    assert_eq!(case.inputs.len(), op.contract().inputs.len());
                }
                assert!(test.iter().any(|case| case.elems == 0), "{}", variant.kernel);
            }
        }
    }
}
