//! Shapes of a call: how the words of the params block size its tensors, and how it is split.
//!
//! A [`CallPlan`] is made once per kernel from the catalogue's contract or the manifest. It checks
//! a call before any kernel sees it, so that a caller's mistake is an error of the call and never
//! counts against a kernel, and it cuts calls that are too large into runs of rows.

use crate::op::call::{OpCall, Operand, Words};
use ruvllm_abi::contract::{Dim, ParamType, TensorContract};
use ruvllm_abi::{DType, MAX_INPUTS, MAX_PARAM_WORDS, Op};
use ruvllm_manifest::{Dim as ManifestDim, KernelEntry, ParamValue, TensorSpec};
use std::ops::Range;

/// One extent: the index of the word that binds it, or a constant.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Extent {
    Word(usize),
    Fixed(u32),
}

/// The shape of one tensor in terms of the words.
#[derive(Clone, Debug)]
pub(crate) struct TensorPlan {
    pub(crate) name: String,
    pub(crate) dtype: DType,
    extents: Vec<Extent>,
    /// The product of the extents: of the constant ones, and the words that bind the others.
    constant: usize,
    factors: Vec<usize>,
    block_shift: u32,
    block_bytes: usize,
    /// How many of the innermost dimensions make a row that blocks may span. Blocks of rotated
    /// heads span the heads of a position, as those of a cached key do; all others keep to the
    /// innermost dimension.
    row_dims: usize,
}

/// A parameter of a call: its name, type and default word.
#[derive(Clone, Debug)]
pub(crate) struct ParamPlan {
    pub(crate) name: String,
    pub(crate) ty: ParamType,
    pub(crate) default: Option<ParamValue>,
}

/// Sizes in bytes of the tensors of one call.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct CallBytes {
    pub(crate) a: usize,
    pub(crate) b: usize,
    pub(crate) out: usize,
}

impl CallBytes {
    pub(crate) fn total(self) -> usize {
        self.a.saturating_add(self.b).saturating_add(self.out)
    }

    /// A bit that stands for calls of about these sizes, input by input, so that many short rows
    /// are told from a few long ones.
    #[inline]
    pub(crate) fn class(self) -> u64 {
        let log = |bytes: usize| (bytes | 1).ilog2();
        1u64.rotate_left(log(self.a) + 7 * log(self.b))
    }
}

/// How the calls of one kernel are shaped.
#[derive(Clone, Debug)]
pub(crate) struct CallPlan {
    pub(crate) symbols: Vec<String>,
    pub(crate) params: Vec<ParamPlan>,
    pub(crate) inputs: Vec<TensorPlan>,
    pub(crate) output: TensorPlan,
    /// Words that a call must have: of the symbols, then of the params.
    pub(crate) words: usize,
    /// How many of the first words have extents that may be cut into runs, outermost first. Only the
    /// catalogue's operations are known to compute each row on its own.
    split: usize,
}

/// A run of rows of a larger call.
pub(crate) struct Tile<'a> {
    pub(crate) call: OpCall<'a>,
    pub(crate) bytes: CallBytes,
    pub(crate) out: Range<usize>,
}

impl CallPlan {
    /// The plan of a catalogue operation in a variant.
    pub(crate) fn of_op(op: Op, inputs: &[DType], output: DType) -> Self {
        let contract = op.contract();
        let symbols: Vec<String> = contract.symbols().map(str::to_owned).collect();
        let tensor = |t: &TensorContract, dtype| {
            let extents = t.shape.iter().map(|dim| match dim {
                Dim::Sym(name) => word_of(&symbols, name),
                Dim::Fixed(n) => Extent::Fixed(*n),
            });
            TensorPlan::new(t.name, dtype, extents.collect(), Some(op))
        };
        let inputs = contract.inputs.iter().zip(inputs).map(|(t, &d)| tensor(t, d)).collect();
        let output = tensor(&contract.output, output);
        let params = contract.params.iter().map(|p| ParamPlan {
            name: p.name.to_owned(),
            ty: p.ty,
            default: None,
        });
        Self::new(symbols, params.collect(), inputs, output, contract.row_dims)
    }

    /// The plan of a manifest's kernel, whose operation need not be in the catalogue.
    pub(crate) fn of_entry(entry: &KernelEntry) -> Self {
        let symbols: Vec<String> = entry.symbols().into_iter().map(str::to_owned).collect();
        let tensor = |t: &TensorSpec| {
            let extents = t.shape.iter().map(|dim| match dim {
                ManifestDim::Symbol(name) => word_of(&symbols, name),
                ManifestDim::Fixed(n) => Extent::Fixed(*n),
            });
            TensorPlan::new(&t.name, t.dtype, extents.collect(), entry.known_op())
        };
        let inputs = entry.inputs.iter().map(tensor).collect();
        let output = match entry.outputs.first() {
            Some(output) => tensor(output),
            None => TensorPlan::new("", DType::U8, vec![Extent::Fixed(0)], None),
        };
        let params = entry.params.iter().map(|(name, p)| ParamPlan {
            name: name.clone(),
            ty: p.ty,
            default: p.default,
        });
        let split = entry.known_op().map_or(0, |op| op.contract().row_dims);
        Self::new(symbols, params.collect(), inputs, output, split)
    }

    /// The plan of an operation that nobody answers.
    pub(crate) fn none() -> Self {
        let output = TensorPlan::new("", DType::U8, vec![Extent::Fixed(0)], None);
        let (symbols, params, inputs) = (Vec::new(), Vec::new(), Vec::new());
        Self::new(symbols, params, inputs, output, 0)
    }

    fn new(
        symbols: Vec<String>,
        params: Vec<ParamPlan>,
        inputs: Vec<TensorPlan>,
        output: TensorPlan,
        split: usize,
    ) -> Self {
        Self { words: symbols.len() + params.len(), symbols, params, inputs, output, split }
    }

    /// What its calls are made of, in one line: names, types, shapes and defaults, such as
    /// `(x: f32[rows, dim], weight: f32[dim], eps: f32 = 0x3727c5ac) -> y: f32[rows, dim]`. Entries of the cache are keyed by it, so it changes with nothing else.
    pub(crate) fn signature(&self) -> String {
        let tensor = |tensor: &TensorPlan| format!("{}: {}", tensor.name, self.type_of(tensor));
        let param = |param: &ParamPlan| {
            let default = param.default.map(|value| format!(" = {:#x}", value.to_word()));
            format!("{}: {}{}", param.name, param.ty.name(), default.unwrap_or_default())
        };
        let inputs = self.inputs.iter().map(tensor).chain(self.params.iter().map(param));
        let inputs: Vec<String> = inputs.collect();
        format!("({}) -> {}", inputs.join(", "), tensor(&self.output))
    }

    /// Type and shape of a tensor, such as `f32[rows, dim]`.
    pub(crate) fn type_of(&self, tensor: &TensorPlan) -> String {
        self.type_text(tensor.dtype, &tensor.extents)
    }

    fn type_text(&self, dtype: DType, extents: &[Extent]) -> String {
        let extent = |extent: &Extent| match extent {
            Extent::Word(word) => self.symbols[*word].clone(),
            Extent::Fixed(n) => n.to_string(),
        };
        let extents: Vec<String> = extents.iter().map(extent).collect();
        format!("{dtype}[{}]", extents.join(", "))
    }

    /// What a kernel may take a tensor for that has another size than this plan gives it: with each type
    /// and shape the bytes, the likeliest first. Shapes are made of the same extents.
    pub(crate) fn alternatives(&self, tensor: &TensorPlan, words: &[u32]) -> Vec<(String, usize)> {
        // Shapes of more than so many different extents are beyond what anybody reads.
        const SYMBOLS: usize = 6;
        let symbols = self.symbols.len().min(SYMBOLS);
        let fixed: Vec<Extent> =
            tensor.extents.iter().copied().filter(|e| matches!(e, Extent::Fixed(_))).collect();
        let mut shapes = vec![tensor.extents.clone()];
        for chosen in 0..1usize << symbols {
            let of_words = (0..symbols).filter(|word| chosen & (1 << word) != 0).map(Extent::Word);
            let shape: Vec<Extent> = of_words.collect();
            if !fixed.is_empty() {
                shapes.push([&shape[..], &fixed].concat());
            }
            shapes.push(shape);
        }
        let own = [tensor.dtype];
        let others = DType::ALL.into_iter().filter(|dtype| *dtype != tensor.dtype);
        let candidates = others
            .map(|dtype| (dtype, &shapes[0]))
            .chain(own.iter().flat_map(|dtype| shapes.iter().map(|shape| (*dtype, shape))))
            .chain(DType::ALL.iter().flat_map(|dtype| shapes.iter().map(|shape| (*dtype, shape))));
        let mut found: Vec<(String, usize)> = Vec::new();
        for (dtype, shape) in candidates {
            let mut elems = shape.iter().map(|extent| extent.get(words));
            let elems = elems.try_fold(1usize, |n, extent| n.checked_mul(extent));
            let Some(bytes) = elems.and_then(|elems| dtype.bytes_for(elems)) else { continue };
            let known = found.iter().any(|(_, known)| *known == bytes);
            if !known && tensor.bytes(words) != Some(bytes) {
                found.push((self.type_text(dtype, shape), bytes));
            }
        }
        found
    }

    /// Whether calls of one are calls of the other, whatever the names.
    pub(crate) fn same(&self, other: &CallPlan) -> bool {
        self.inputs.len() == other.inputs.len()
            && self.inputs.iter().zip(&other.inputs).all(|(a, b)| a.same(b))
            && self.output.same(&other.output)
            && self.params.iter().map(|p| p.ty).eq(other.params.iter().map(|p| p.ty))
    }

    /// Whether descriptor and params block have room for it.
    pub(crate) fn fits_abi(&self) -> bool {
        self.inputs.len() <= MAX_INPUTS && self.words <= MAX_PARAM_WORDS
    }

    /// The sizes that the words call for, or the tensor that has none: a row that does not fill
    /// whole blocks, or a size beyond the address space.
    #[inline]
    pub(crate) fn bytes(&self, words: &[u32]) -> Result<CallBytes, &TensorPlan> {
        let size = |i: usize| match self.inputs.get(i) {
            Some(tensor) => tensor.bytes(words).ok_or(tensor),
            None => Ok(0),
        };
        let out = self.output.bytes(words).ok_or(&self.output)?;
        Ok(CallBytes { a: size(0)?, b: size(1)?, out })
    }

    /// The sizes of a call, or `None` where it does not have those that its words call for.
    #[inline]
    pub(crate) fn check(&self, call: &OpCall<'_>, out: usize) -> Option<CallBytes> {
        let words = call.words.as_slice();
        if words.len() != self.words {
            return None;
        }
        let bytes = self.bytes(words).ok()?;
        let fits = |operand: &Operand<'_>, want| operand.bytes().is_some_and(|b| b.len() == want);
        (fits(&call.a, bytes.a) && fits(&call.b, bytes.b) && out == bytes.out).then_some(bytes)
    }

    /// What [`CallPlan::check`] has against a call: a sentence that names the operand and both
    /// sizes.
    #[cold]
    pub(crate) fn objection(&self, call: &OpCall<'_>, out: usize) -> String {
        let words = call.words.as_slice();
        if words.len() != self.words {
            let (got, want) = (words.len(), self.words);
            return format!("the params block has {got} words instead of {want}");
        }
        let bytes = match self.bytes(words) {
            Ok(bytes) => bytes,
            Err(tensor) => {
                let (name, dtype, shape) = (&tensor.name, tensor.dtype, tensor.shape(words));
                return format!("{name} {shape:?} has no size in {dtype}: use whole blocks");
            }
        };
        for (operand, want, i) in [(&call.a, bytes.a, 0), (&call.b, bytes.b, 1)] {
            let got = operand.bytes().map(<[u8]>::len);
            if got != Some(want) {
                return self.mismatch(i, got, want, words);
            }
        }
        self.mismatch(MAX_INPUTS, Some(out), bytes.out, words)
    }

    fn mismatch(&self, i: usize, got: Option<usize>, want: usize, words: &[u32]) -> String {
        let got = match got {
            Some(n) => format!("{n} bytes"),
            None => "a range outside of its resident".to_owned(),
        };
        let tensor = if i == MAX_INPUTS { Some(&self.output) } else { self.inputs.get(i) };
        match tensor {
            Some(t) => format!(
                "{} got {got}; {:?} in {} takes {want} bytes",
                t.name,
                t.shape(words),
                t.dtype
            ),
            None => format!("operand {i} got {got}; the operation has no such input"),
        }
    }

    /// The extent that a call can be cut along: its word and how often it can be cut.
    pub(crate) fn split_word(&self, words: &[u32]) -> Option<usize> {
        let tensors = || self.inputs.iter().chain([&self.output]);
        (0..self.split)
            .find(|&word| words[word] > 1 && tensors().all(|tensor| tensor.outermost(word, words)))
    }

    /// The words of a call of fewer rows where they call for more than `budget` bytes; `None` where
    /// no number of rows is few enough, or they call for nothing.
    pub(crate) fn within(&self, words: Words, budget: usize) -> Option<Words> {
        let total = |words: &Words| self.bytes(words.as_slice()).ok().map(CallBytes::total);
        let mut words = words;
        for at in 0..self.split {
            let bytes = total(&words)?;
            if bytes > budget {
                let rows = words.as_slice()[at] as usize;
                words = words.with(at, (rows.saturating_mul(budget) / bytes).max(1) as u32);
            }
        }
        let bytes = self.bytes(words.as_slice()).ok()?;
        (bytes.out > 0 && bytes.total() <= budget).then_some(words)
    }

    /// Cuts a call into runs of rows whose operands and output together take about `budget`
    /// bytes, at least one row each. An operand that every run needs whole counts where it is
    /// `copied` for each. `None` where the operation cannot be cut.
    pub(crate) fn tiles<'a>(
        &'a self,
        call: &'a OpCall<'a>,
        bytes: &CallBytes,
        budget: usize,
        copied: [bool; 2],
    ) -> Option<impl Iterator<Item = Tile<'a>>> {
        let words = call.words.as_slice();
        let word = self.split_word(words)?;
        let rows = words[word] as usize;
        let per_row = |tensor: Option<&TensorPlan>, total: usize| match tensor {
            Some(tensor) if tensor.has(word) => total / rows,
            _ => 0,
        };
        let a = per_row(self.inputs.first(), bytes.a);
        let b = per_row(self.inputs.get(1), bytes.b);
        let out = per_row(Some(&self.output), bytes.out);
        if out == 0 {
            return None;
        }
        let whole = |row: usize, all: usize, copied: bool| if row == 0 && copied { all } else { 0 };
        let fixed = whole(a, bytes.a, copied[0]) + whole(b, bytes.b, copied[1]);
        let run = (budget.saturating_sub(fixed) / (a + b + out)).max(1);
        let cut = |operand: &Operand<'a>, row: usize, from: usize, n: usize| {
            if row == 0 { operand.clone() } else { operand.slice(from * row..(from + n) * row) }
        };
        Some((0..rows).step_by(run).map(move |from| {
            let n = run.min(rows - from);
            let call = OpCall {
                a: cut(&call.a, a, from, n),
                b: cut(&call.b, b, from, n),
                words: call.words.with(word, n as u32),
                scope: call.scope,
            };
            let size = |row: usize, all: usize| if row == 0 { all } else { n * row };
            let bytes = CallBytes { a: size(a, bytes.a), b: size(b, bytes.b), out: n * out };
            Tile { call, bytes, out: from * out..(from + n) * out }
        }))
    }
}

fn word_of(symbols: &[String], name: &str) -> Extent {
    match symbols.iter().position(|symbol| symbol == name) {
        Some(word) => Extent::Word(word),
        // Symbols are collected from the same shapes, so this is an extent that nothing binds.
        None => Extent::Fixed(0),
    }
}

impl TensorPlan {
    fn new(name: &str, dtype: DType, extents: Vec<Extent>, op: Option<Op>) -> Self {
        let layout = dtype.layout();
        let constants = extents.iter().filter_map(|extent| match extent {
            Extent::Fixed(n) => Some(*n as usize),
            Extent::Word(_) => None,
        });
        let factors = extents.iter().filter_map(|extent| match extent {
            Extent::Word(word) => Some(*word),
            Extent::Fixed(_) => None,
        });
        Self {
            name: name.to_owned(),
            dtype,
            // Saturated, no operand is as long.
            constant: constants.fold(1, usize::saturating_mul),
            factors: factors.collect(),
            extents,
            block_shift: layout.elems.trailing_zeros(),
            block_bytes: layout.bytes,
            row_dims: op.map_or(1, |op| {
                let contract = op.contract();
                contract.output.shape.len() - contract.row_dims
            }),
        }
    }

    /// Bytes of the tensor. Block formats need rows of whole blocks.
    #[inline]
    fn bytes(&self, words: &[u32]) -> Option<usize> {
        let mut elems = self.constant;
        for &word in &self.factors {
            elems = elems.checked_mul(words[word] as usize)?;
        }
        if self.block_shift > 0 {
            let row = self.extents.iter().rev().take(self.row_dims);
            let row: usize = row.map(|extent| extent.get(words)).product();
            if row & ((1 << self.block_shift) - 1) != 0 {
                return None;
            }
        }
        (elems >> self.block_shift).checked_mul(self.block_bytes)
    }

    /// Whether the same words give the same sizes, whatever the names.
    fn same(&self, other: &TensorPlan) -> bool {
        self.dtype == other.dtype && self.extents == other.extents
    }

    /// The shape that the words give.
    pub(crate) fn shape(&self, words: &[u32]) -> Vec<usize> {
        self.extents.iter().map(|extent| extent.get(words)).collect()
    }

    /// Number of dimensions.
    pub(crate) fn rank(&self) -> usize {
        self.extents.len()
    }

    /// The word that binds dimension `i`, or its constant.
    pub(crate) fn binding(&self, i: usize) -> Result<usize, u32> {
        match self.extents[i] {
            Extent::Word(word) => Ok(word),
            Extent::Fixed(n) => Err(n),
        }
    }

    fn has(&self, word: usize) -> bool {
        self.extents.contains(&Extent::Word(word))
    }

    /// Whether a run along `word` is one range of bytes: all dimensions outside of it are 1.
    fn outermost(&self, word: usize, words: &[u32]) -> bool {
        match self.extents.iter().position(|&extent| extent == Extent::Word(word)) {
            Some(at) => {
                self.extents[..at].iter().all(|extent| extent.get(words) == 1)
                    && !self.extents[at + 1..].contains(&Extent::Word(word))
            }
            None => true,
        }
    }
}

impl Extent {
    #[inline]
    fn get(self, words: &[u32]) -> usize {
        match self {
            Extent::Word(i) => words[i] as usize,
            Extent::Fixed(n) => n as usize,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{OpKey, RopeDims};

    fn plan(key: &OpKey) -> CallPlan {
        let (op, _) = key.known().unwrap();
        CallPlan::of_op(op, &key.inputs, key.output)
    }

    #[test]
    fn sizes_follow_from_the_words() {
        let bytes = plan(&OpKey::rmsnorm_f32()).bytes(&[3, 10, 0]).unwrap();
        assert_eq!(bytes, CallBytes { a: 120, b: 40, out: 120 });
        let pack = plan(&OpKey::kv_pack(DType::Q8_0));
        assert_eq!(pack.bytes(&[2, 64]).unwrap(), CallBytes { a: 512, b: 0, out: 136 });
        assert!(pack.bytes(&[32, 33]).is_err());
        assert!(pack.bytes(&[0, 64]).is_ok_and(|bytes| bytes.total() == 0));
    }

    #[test]
    fn a_signature_says_what_calls_are_made_of() {
        let mut plan = plan(&OpKey::rmsnorm_f32());
        let signature = "(x: f32[rows, dim], weight: f32[dim], eps: f32) -> y: f32[rows, dim]";
        assert_eq!(plan.signature(), signature);
        plan.params[0].default = Some(ParamValue::F32(1e-5));
        assert_eq!(plan.signature(), signature.replace("eps: f32", "eps: f32 = 0x3727c5ac"));
    }

    #[test]
    fn wrong_sizes_are_named() {
        let plan = plan(&OpKey::rmsnorm_f32());
        let (x, w) = ([0f32; 8], [0f32; 3]);
        let call = OpCall::rmsnorm(Operand::f32(&x), Operand::f32(&w), 2, 4, 1e-5);
        assert!(plan.check(&call, 32).is_none());
        let message = plan.objection(&call, 32);
        assert_eq!(message, "weight got 12 bytes; [4] in f32 takes 16 bytes");
        let call = OpCall::kv_pack(Operand::f32(&x), 2, 4);
        assert!(plan.check(&call, 32).is_none());
        assert!(plan.objection(&call, 32).contains("2 words instead of 3"));
    }

    #[test]
    fn calls_are_cut_into_runs_of_rows() {
        let plan = plan(&OpKey::rmsnorm_f32());
        let (x, w) = ([0f32; 40], [0f32; 4]);
        let call = OpCall::rmsnorm(Operand::f32(&x), Operand::f32(&w), 10, 4, 1e-5);
        let bytes = plan.check(&call, 160).unwrap();
        // 16 bytes of weight, 32 bytes a row: three rows fit 112 bytes.
        let tiles: Vec<_> = plan.tiles(&call, &bytes, 112, [true; 2]).unwrap().collect();
        let rows: Vec<_> = tiles.iter().map(|t| t.call.words.as_slice()[0]).collect();
        assert_eq!(rows, [3, 3, 3, 1]);
        assert_eq!(tiles[3].out, 144..160);
        for tile in &tiles {
            assert_eq!(plan.check(&tile.call, tile.out.len()), Some(tile.bytes));
        }
        assert_eq!(plan.tiles(&call, &bytes, 40, [true; 2]).unwrap().count(), 10);
    }

    #[test]
    fn words_are_cut_to_a_budget() {
        let plan = plan(&OpKey::rmsnorm_f32());
        let rows = |rows, budget| Some(plan.within(Words::of([rows, 4, 0]), budget)?.as_slice()[0]);
        assert_eq!(rows(10, 1000), Some(10));
        assert_eq!(rows(10, 100), Some(2));
        assert_eq!(rows(10, 40), None);
        assert_eq!(rows(0, 40), None);
    }

    #[test]
    fn a_rotation_is_cut_by_position_with_its_angles() {
        let plan = plan(&OpKey::rope_f32());
        let dims = RopeDims { batch: 1, seq: 4, heads: 2, dim: 8, dim_half: 4 };
        let (x, f) = ([0f32; 64], [0f32; 32]);
        let call = OpCall::rope(Operand::f32(&x), Operand::f32(&f), dims, 1e4, false);
        let bytes = plan.check(&call, 256).unwrap();
        let tiles: Vec<_> = plan.tiles(&call, &bytes, 330, [true; 2]).unwrap().collect();
        assert_eq!(tiles.len(), 2);
        assert_eq!(tiles[1].call.words.as_slice()[..2], [1, 2]);
        assert_eq!(tiles[1].call.b.bytes().unwrap().len(), 64);
        let batched = OpCall { words: call.words.with(0, 2).with(1, 2), ..call };
        assert_eq!(plan.split_word(batched.words.as_slice()), Some(0));
    }
}
