//! Shapes of a call: how the words of the params block size its tensors, and how it is split.
//!
//! A [`CallPlan`] is made once per kernel from the catalogue's contract or the manifest. It checks
//! a call before any kernel sees it, so that a caller's mistake is an error of the call and never
//! counts against a kernel, and it cuts calls that are too large into runs of rows.

use crate::op::call::{Gradients, OpCall, Operand, Output, Words};
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

/// Bytes of one run of a call for gradients, where what all rows share is not larger than that: like
/// [`TILE_BYTES`](crate::instance::TILE_BYTES), but the sums over rows have to be worth their copying.
const BACKWARD_TILE_BYTES: usize = 256 << 10;

/// Sizes in bytes of the tensors of one call.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct CallBytes {
    pub(crate) a: usize,
    pub(crate) b: usize,
    /// Of a call for gradients, that of the output, which is handed in.
    pub(crate) gradient: usize,
    /// Of the output; of a call for gradients, of that of the first input.
    pub(crate) out: usize,
    /// Of the gradient of the second input.
    pub(crate) out_b: usize,
}

impl CallBytes {
    pub(crate) fn total(self) -> usize {
        let Self { a, b, gradient, out, out_b } = self;
        [b, gradient, out, out_b].into_iter().fold(a, usize::saturating_add)
    }

    /// Whether there is nothing to compute: no output, or no gradient of it that could be other than zero.
    #[inline]
    pub(crate) fn is_empty(self, is_backward: bool) -> bool {
        self.out == 0 || is_backward && self.gradient == 0
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
    /// The inputs that the operation is differentiated by.
    gradients: &'static [usize],
}

/// A run of rows of a larger call.
pub(crate) struct Tile<'a> {
    pub(crate) call: OpCall<'a>,
    pub(crate) bytes: CallBytes,
    pub(crate) out: Range<usize>,
    /// Where the run's part of the second gradient begins; `None` where it is a part of a sum.
    pub(crate) second: Option<usize>,
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
        let plan = Self::new(symbols, params.collect(), inputs, output, contract.row_dims);
        plan.differentiated(op)
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
        let plan = Self::new(symbols, params.collect(), inputs, output, split);
        match entry.known_op() {
            Some(op) => plan.differentiated(op),
            None => plan,
        }
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
        let words = symbols.len() + params.len();
        Self { words, symbols, params, inputs, output, split, gradients: &[] }
    }

    fn differentiated(self, op: Op) -> Self {
        let inputs: Vec<DType> = self.inputs.iter().map(|tensor| tensor.dtype).collect();
        Self { gradients: op.contract().gradients_of(&inputs, self.output.dtype), ..self }
    }

    /// The inputs that it has gradients by, the first ones.
    pub(crate) fn gradients(&self) -> &'static [usize] {
        self.gradients
    }

    /// Whether the operation has gradients in these element types.
    pub(crate) fn has_gradients(&self) -> bool {
        !self.gradients.is_empty()
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
        shapes.extend((0..symbols).map(|word| vec![Extent::Word(word); 2]));
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

    /// The words with no extent above this.
    pub(crate) fn with_extents_up_to(&self, most: u32, words: Words) -> Words {
        let extents = words.as_slice().iter().take(self.symbols.len()).enumerate();
        extents.fold(words, |smaller, (word, extent)| smaller.with(word, (*extent).min(most)))
    }

    /// The words with other extents for those that are 1 or as large as a later one: so different shapes have
    /// different sizes.
    pub(crate) fn with_extents_apart(&self, words: Words) -> Words {
        (0..self.symbols.len()).fold(words, |apart, word| {
            let extents = &apart.as_slice()[..self.symbols.len()];
            let own = extents[word];
            if own > 1 && !extents[word + 1..].contains(&own) {
                return apart;
            }
            let other = (3..).step_by(2).find(|extent| !extents.contains(extent));
            apart.with(word, other.unwrap_or(own))
        })
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
        Ok(CallBytes { a: size(0)?, b: size(1)?, out, ..CallBytes::default() })
    }

    /// What a kernel is tried on of which nothing is known but its manifest: every symbol at the same extent, params
    /// at their defaults or one, where that is a call of some operands. Gives the extent, the words, and the sizes.
    pub(crate) fn trials(&self) -> impl Iterator<Item = (u32, Words, CallBytes)> {
        /// The most that such a call moves.
        const MOST: usize = 4 << 20;
        let params = || self.params.iter().map(|p| p.default.map_or(1, |v| v.to_word()));
        let trial = move |extent| {
            let words = vec![extent; self.symbols.len()].into_iter().chain(params());
            let words = Words::new(&words.collect::<Vec<_>>())?;
            let bytes = self.bytes(words.as_slice()).ok()?;
            (1..=MOST).contains(&bytes.total()).then_some((extent, words, bytes))
        };
        [1, 32, 64, 256].into_iter().filter_map(trial)
    }

    /// The sizes of a call for gradients, where those of the forward call are these.
    fn backward(&self, forward: CallBytes) -> CallBytes {
        let CallBytes { a, b, out: gradient, .. } = forward;
        let out_b = if self.gradients.contains(&1) { b } else { 0 };
        CallBytes { a, b, gradient, out: a, out_b }
    }

    /// The sizes that a call has by its words.
    pub(crate) fn bytes_of(&self, call: &OpCall<'_>) -> Result<CallBytes, &TensorPlan> {
        let forward = self.bytes(call.words.as_slice())?;
        Ok(if call.is_backward() { self.backward(forward) } else { forward })
    }

    /// The sizes of a call, or `None` where it does not have those that its words call for.
    #[inline]
    pub(crate) fn check(&self, call: &OpCall<'_>, out: &Output<'_>) -> Option<CallBytes> {
        let words = call.words.as_slice();
        if words.len() != self.words {
            return None;
        }
        let bytes = self.bytes(words).ok()?;
        let fits = |operand: &Operand<'_>, want| operand.bytes().is_some_and(|b| b.len() == want);
        if !fits(&call.a, bytes.a) || !fits(&call.b, bytes.b) {
            return None;
        }
        let Output::Gradients(Gradients { b, .. }) = out else {
            return (out.len() == bytes.out && !call.is_backward()).then_some(bytes);
        };
        let bytes = self.backward(bytes);
        let second = b.as_ref().is_none_or(|b| size_of_val(&**b) == bytes.out_b);
        let sound = self.has_gradients() && call.is_backward() && second;
        (sound && out.len() == bytes.out && fits(&call.gradient, bytes.gradient)).then_some(bytes)
    }

    /// What [`CallPlan::check`] has against a call: a sentence that names the operand and both
    /// sizes.
    #[cold]
    pub(crate) fn objection(&self, call: &OpCall<'_>, out: &Output<'_>) -> String {
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
        let Output::Gradients(Gradients { b, .. }) = out else {
            if call.is_backward() {
                return "gradients go to an output of gradients".to_owned();
            }
            return self.mismatch(MAX_INPUTS, Some(out.len()), bytes.out, words);
        };
        if !self.has_gradients() {
            return "the operation has no gradient in these element types".to_owned();
        }
        let CallBytes { gradient, out: first, out_b, .. } = self.backward(bytes);
        let given = call.gradient.bytes().map_or(0, <[u8]>::len);
        if given != gradient {
            return format!(
                "the gradient of {} got {given} bytes instead of {gradient}",
                self.output.name
            );
        }
        let second = b.as_ref().map_or(out_b, |b| size_of_val(&**b));
        format!(
            "the gradients of the inputs got {} and {second} bytes instead of {first} and {out_b}",
            out.len()
        )
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
        let (first, second, output) = (self.inputs.first(), self.inputs.get(1), Some(&self.output));
        let (a, b) = (per_row(first, bytes.a), per_row(second, bytes.b));
        let (gradient, out) = match call.is_backward() {
            true => (per_row(output, bytes.gradient), per_row(first, bytes.out)),
            false => (0, per_row(output, bytes.out)),
        };
        let out_b = per_row(second, bytes.out_b);
        if out == 0 {
            return None;
        }
        let whole = |row: usize, all: usize, copied: bool| if row == 0 && copied { all } else { 0 };
        let fixed = whole(a, bytes.a, copied[0]) + whole(b, bytes.b, copied[1]);
        let fixed = fixed + whole(out_b, bytes.out_b, true);
        let run = (budget.saturating_sub(fixed) / (a + b + gradient + out + out_b)).max(1);
        let cut = |operand: &Operand<'a>, row: usize, from: usize, n: usize| {
            if row == 0 { operand.clone() } else { operand.slice(from * row..(from + n) * row) }
        };
        Some((0..rows).step_by(run).map(move |from| {
            let n = run.min(rows - from);
            let call = OpCall {
                a: cut(&call.a, a, from, n),
                b: cut(&call.b, b, from, n),
                gradient: cut(&call.gradient, gradient, from, n),
                words: call.words.with(word, n as u32),
                scope: call.scope,
            };
            let size = |row: usize, all: usize| if row == 0 { all } else { n * row };
            let bytes = CallBytes {
                a: size(a, bytes.a),
                b: size(b, bytes.b),
                gradient: n * gradient,
                out: n * out,
                out_b: size(out_b, bytes.out_b),
            };
            let second = (out_b > 0).then_some(from * out_b);
            Tile { call, bytes, out: from * out..(from + n) * out, second }
        }))
    }

    /// Cuts a call for gradients into runs of rows, as [`CallPlan::tiles`] does any other, but into such
    /// that depend on the call alone: sums over rows are to be the same wherever its operands lie.
    pub(crate) fn backward_tiles<'a>(
        &'a self,
        call: &'a OpCall<'a>,
        bytes: &CallBytes,
    ) -> Option<impl Iterator<Item = Tile<'a>>> {
        let word = self.split_word(call.words.as_slice())?;
        let is_shared = self.inputs.get(1).is_some_and(|tensor| !tensor.has(word));
        // What all rows share is copied, written and summed for each run: it is half of that at most.
        let shared = if is_shared { bytes.b.saturating_add(bytes.out_b) } else { 0 };
        let budget = BACKWARD_TILE_BYTES.max(shared.saturating_mul(2));
        (bytes.total() > budget).then(|| self.tiles(call, bytes, budget, [true; 2])).flatten()
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
mod tests;
