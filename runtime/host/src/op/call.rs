//! What a caller hands over: operands, and the words of the params block.

use ruvllm_abi::{MAX_PARAM_WORDS, REGION_ALIGN};
use std::fmt;
use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Weak};

/// Whose numbers a call computes with.
///
/// Nothing of a call reaches a later one of another scope: before it, whatever the kernel could
/// write is set back to what a new instance has. Within a scope that is left out.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct Scope(u128);

impl Scope {
    /// A scope that no other call of this process has: what is not known to belong together.
    pub fn unique() -> Self {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        Self(NEXT.fetch_add(1, Ordering::Relaxed).into())
    }

    /// The scope of a digest: the same for the same digest, and no [`Scope::unique`].
    pub const fn of(digest: &[u8; 32]) -> Self {
        let mut bits = 0;
        let mut i = 0;
        while i < size_of::<u128>() {
            bits = bits << 8 | digest[i] as u128;
            i += 1;
        }
        Self(bits | 1 << 127)
    }
}

impl fmt::Debug for Scope {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Scope({:032x})", self.0)
    }
}

/// Who constants belong to that not every call may see, such as an adapter of one tenant. An instance
/// that holds constants of an owner holds none of another.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Owner(u64);

impl Owner {
    /// An owner that no other constants have.
    pub fn unique() -> Self {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        Self(NEXT.fetch_add(1, Ordering::Relaxed))
    }
}

/// Constant bytes that many calls use: a norm's weight, a rotation table, LoRA factors.
///
/// A worker uploads them into an instance's memory on first use and passes only their address
/// afterwards, as far as the kernel's memory limit allows; where it does not, they are copied for
/// every call like any other operand. Cloning shares the bytes. When the last clone goes, workers
/// may reuse the room.
#[derive(Clone)]
pub struct Resident(Arc<ResidentBytes>);

/// The bytes behind a [`Resident`].
pub(crate) struct ResidentBytes {
    id: u64,
    /// `None` where calls of every scope may see them.
    owner: Option<Owner>,
    /// Longer than the bytes, so that they can start on a multiple of [`REGION_ALIGN`]: native
    /// twins read them with aligned loads.
    buffer: Box<[u8]>,
    start: usize,
    len: usize,
}

impl Resident {
    /// Copies the bytes, which calls of every scope may see: a model's, for example.
    pub fn from_bytes(bytes: &[u8]) -> Self {
        Self::new(bytes, None)
    }

    /// Copies binary32 numbers, which calls of every scope may see.
    pub fn from_f32(values: &[f32]) -> Self {
        Self::new(bytemuck::cast_slice(values), None)
    }

    /// Copies binary32 numbers of an owner.
    pub fn owned_f32(values: &[f32], owner: Owner) -> Self {
        Self::new(bytemuck::cast_slice(values), Some(owner))
    }

    fn new(bytes: &[u8], owner: Option<Owner>) -> Self {
        static NEXT: AtomicU64 = AtomicU64::new(1);
        let len = bytes.len();
        let mut buffer = vec![0; len + REGION_ALIGN - 1].into_boxed_slice();
        let address = buffer.as_ptr() as usize;
        let start = address.next_multiple_of(REGION_ALIGN) - address;
        buffer[start..start + len].copy_from_slice(bytes);
        let id = NEXT.fetch_add(1, Ordering::Relaxed);
        Self(Arc::new(ResidentBytes { id, owner, buffer, start, len }))
    }

    /// The bytes.
    pub fn bytes(&self) -> &[u8] {
        &self.0.buffer[self.0.start..self.0.start + self.0.len]
    }

    /// Length in bytes.
    pub fn len(&self) -> usize {
        self.0.len
    }

    /// Whether there are no bytes.
    pub fn is_empty(&self) -> bool {
        self.0.len == 0
    }

    /// All of it as an operand.
    #[inline]
    pub fn all(&self) -> Operand<'_> {
        Operand::Resident(self, 0..self.0.len)
    }

    /// A number that no other `Resident` of this process has or will have; clones share it.
    pub(crate) fn id(&self) -> u64 {
        self.0.id
    }

    /// Whose they are; `None` where calls of every scope may see them.
    pub(crate) fn owner(&self) -> Option<Owner> {
        self.0.owner
    }

    /// Inverse of [`Resident::downgrade`], while any clone lives.
    pub(crate) fn upgrade(weak: &Weak<ResidentBytes>) -> Option<Self> {
        weak.upgrade().map(Self)
    }

    pub(crate) fn downgrade(&self) -> Weak<ResidentBytes> {
        Arc::downgrade(&self.0)
    }
}

impl fmt::Debug for Resident {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Resident(#{}, {} bytes)", self.0.id, self.0.len)
    }
}

/// One input of a call.
#[derive(Clone, Debug, Default)]
pub enum Operand<'a> {
    /// The operation has no such input.
    #[default]
    None,
    /// Bytes that this call copies into the kernel's memory.
    Bytes(&'a [u8]),
    /// A byte range of constant bytes.
    Resident(&'a Resident, Range<usize>),
}

impl<'a> Operand<'a> {
    /// Binary32 numbers that this call copies.
    #[inline]
    pub fn f32(values: &'a [f32]) -> Self {
        Operand::Bytes(bytemuck::cast_slice(values))
    }

    /// The bytes, or `None` for a range outside of its [`Resident`].
    #[inline]
    pub(crate) fn bytes(&self) -> Option<&'a [u8]> {
        match self {
            Operand::None => Some(&[]),
            Operand::Bytes(bytes) => Some(bytes),
            Operand::Resident(resident, range) => resident.bytes().get(range.clone()),
        }
    }

    /// The same operand narrowed to a byte range of itself.
    pub(crate) fn slice(&self, range: Range<usize>) -> Operand<'a> {
        match self {
            Operand::None => Operand::None,
            Operand::Bytes(bytes) => Operand::Bytes(&bytes[range]),
            Operand::Resident(resident, all) => {
                Operand::Resident(resident, all.start + range.start..all.start + range.end)
            }
        }
    }
}

/// The words of a params block, held inline so that building a call allocates nothing.
#[derive(Clone, Copy)]
pub struct Words {
    words: [u32; MAX_PARAM_WORDS],
    len: u32,
}

impl Words {
    /// Bytes of the longest params block.
    pub(crate) const BYTES: usize = MAX_PARAM_WORDS * size_of::<u32>();

    /// The words of the slice, or `None` where they are more than [`MAX_PARAM_WORDS`].
    pub fn new(words: &[u32]) -> Option<Self> {
        let mut all = [0; MAX_PARAM_WORDS];
        all.get_mut(..words.len())?.copy_from_slice(words);
        Some(Self { words: all, len: words.len() as u32 })
    }

    /// The words of an array whose length is known to fit.
    #[inline]
    pub const fn of<const N: usize>(words: [u32; N]) -> Self {
        const { assert!(N <= MAX_PARAM_WORDS) };
        let mut all = [0; MAX_PARAM_WORDS];
        let mut i = 0;
        while i < N {
            all[i] = words[i];
            i += 1;
        }
        Self { words: all, len: N as u32 }
    }

    /// The words as a slice.
    #[inline]
    pub fn as_slice(&self) -> &[u32] {
        &self.words[..self.len as usize]
    }

    /// The bytes of a params block of the longest kind: the words, then zeros.
    #[inline]
    pub(crate) fn block(&self) -> &[u8] {
        bytemuck::cast_slice(&self.words)
    }

    /// The same words with one replaced; no change where there is no such word.
    pub(crate) fn with(mut self, index: usize, word: u32) -> Self {
        if let Some(slot) = self.words[..self.len as usize].get_mut(index) {
            *slot = word;
        }
        self
    }
}

impl fmt::Debug for Words {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.as_slice()).finish()
    }
}

/// Where the result of a call goes.
pub enum Output<'a> {
    /// Into these bytes.
    Bytes(&'a mut [u8]),
    /// To a reader, from where the kernel left it, which saves copying it.
    Read {
        /// Bytes of the result.
        len: usize,
        /// Receives runs of whole rows: the offset of the first byte in the result, and the bytes,
        /// which start on a multiple of four. Where a kernel fails between two runs, the next
        /// candidate's come after those that it gave, from the first on.
        read: &'a mut dyn FnMut(usize, &[u8]),
    },
    /// Those of a call for gradients.
    Gradients(Gradients<'a>),
}

/// Where the gradients by the inputs of a call go, each in the shape and layout of its input.
///
/// They are written, not added to what is there: whoever goes through a batch in several calls adds them up.
pub struct Gradients<'a> {
    /// By the first input.
    pub a: &'a mut [f32],
    /// By the second input, summed over the rows of the call where all rows share it. `None` where the
    /// operation has none, or where nobody wants it, as of a norm's weight that is not trained.
    pub b: Option<&'a mut [f32]>,
}

impl<'a, B: AsMut<[u8]> + ?Sized> From<&'a mut B> for Output<'a> {
    #[inline]
    fn from(bytes: &'a mut B) -> Self {
        Output::Bytes(bytes.as_mut())
    }
}

impl Output<'_> {
    /// Bytes of the result.
    #[inline]
    pub(crate) fn len(&self) -> usize {
        match self {
            Output::Bytes(bytes) => bytes.len(),
            Output::Read { len, .. } => *len,
            Output::Gradients(Gradients { a, .. }) => size_of_val(*a),
        }
    }

    /// Hands over a run of the result, of which it is the bytes from `at` on.
    #[inline]
    pub(crate) fn put(&mut self, at: usize, run: &[u8]) {
        match self {
            Output::Bytes(bytes) => bytes[at..at + run.len()].copy_from_slice(run),
            Output::Read { read, .. } => read(at, run),
            Output::Gradients(Gradients { a, .. }) => {
                bytemuck::cast_slice_mut(a)[at..at + run.len()].copy_from_slice(run);
            }
        }
    }

    /// Hands over a run of the second gradient, of which it is the numbers from byte `at` on, or, where every
    /// run gives a part of one sum, adds it to those of earlier runs.
    pub(crate) fn put_second(&mut self, at: Option<usize>, is_first: bool, run: &[u8]) {
        let Output::Gradients(Gradients { b: Some(b), .. }) = self else { return };
        let numbers = run.as_chunks::<4>().0.iter().map(|bytes| f32::from_le_bytes(*bytes));
        let to = b.iter_mut().skip(at.unwrap_or(0) / size_of::<f32>()).zip(numbers);
        match at.is_some() || is_first {
            true => to.for_each(|(to, x)| *to = x),
            false => to.for_each(|(to, x)| *to += x),
        }
    }

    /// All gradients of a call that has no rows: zeros.
    pub(crate) fn clear(&mut self) {
        if let Output::Gradients(Gradients { a, b }) = self {
            a.fill(0.0);
            b.iter_mut().for_each(|b| b.fill(0.0));
        }
    }
}

impl<'a> From<Gradients<'a>> for Output<'a> {
    fn from(gradients: Gradients<'a>) -> Self {
        Output::Gradients(gradients)
    }
}

/// A call of an operation: its inputs and the words of its params block, which hold the bound
/// shape symbols in order of first appearance, then the parameters.
///
/// The constructors build calls of the catalogue's operations; sizes of the operands are checked
/// against the words when the call is made.
#[derive(Clone, Debug)]
pub struct OpCall<'a> {
    /// The first input.
    pub a: Operand<'a>,
    /// The second input.
    pub b: Operand<'a>,
    /// The gradient of the output, in a call for the gradients of the operation; else none.
    pub gradient: Operand<'a>,
    /// The params block.
    pub words: Words,
    /// Whose numbers the operands are. `None` is a scope of its own for each call.
    pub scope: Option<Scope>,
}

/// Extents of a rotation: `x` and `y` are `[batch, seq, heads, dim]`, `freqs` `[seq, dim_half, 2]`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RopeDims {
    /// Sequences.
    pub batch: u32,
    /// Positions of each.
    pub seq: u32,
    /// Heads at a position.
    pub heads: u32,
    /// Elements of a head.
    pub dim: u32,
    /// Pairs of a head that are rotated.
    pub dim_half: u32,
}

/// Extents of a low-rank update: `x` is `[rows, in_dim]`, `y` is `[rows, out_dim]`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LoraDims {
    /// Rows.
    pub rows: u32,
    /// Columns of the input.
    pub in_dim: u32,
    /// Rank of the update.
    pub rank: u32,
    /// Columns of the output.
    pub out_dim: u32,
}

impl<'a> OpCall<'a> {
    /// The same call of a scope.
    #[inline]
    pub fn within(mut self, scope: Scope) -> Self {
        self.scope = Some(scope);
        self
    }

    /// The call for the gradients of this one: given that of some number by its output, that number's gradients
    /// by its inputs. [`Worker::backward`](crate::Worker::backward) makes it.
    #[inline]
    pub fn backward(mut self, gradient: Operand<'a>) -> Self {
        self.gradient = gradient;
        self
    }

    /// Whether it is a call for gradients.
    #[inline]
    pub(crate) fn is_backward(&self) -> bool {
        !matches!(self.gradient, Operand::None)
    }

    /// A call of any operation, with its operands in order and the words of its params block.
    #[inline]
    pub fn new(a: Operand<'a>, b: Operand<'a>, words: Words) -> Self {
        Self { a, b, gradient: Operand::None, words, scope: None }
    }

    /// `rope` of `x` by the (cos, sin) pairs in `freqs`; `theta` is information only.
    #[inline]
    pub fn rope(
        x: Operand<'a>,
        freqs: Operand<'a>,
        dims: RopeDims,
        theta: f32,
        interleaved: bool,
    ) -> Self {
        let RopeDims { batch, seq, heads, dim, dim_half } = dims;
        let words = [batch, seq, heads, dim, dim_half, theta.to_bits(), u32::from(interleaved)];
        Self::new(x, freqs, Words::of(words))
    }

    /// `rmsnorm` of `x`, `[rows, dim]`, with `weight`, `[dim]`.
    #[inline]
    pub fn rmsnorm(x: Operand<'a>, weight: Operand<'a>, rows: u32, dim: u32, eps: f32) -> Self {
        Self::new(x, weight, Words::of([rows, dim, eps.to_bits()]))
    }

    /// `swiglu` of `gate` and `up`, both `[rows, dim]`.
    #[inline]
    pub fn swiglu(gate: Operand<'a>, up: Operand<'a>, rows: u32, dim: u32) -> Self {
        Self::new(gate, up, Words::of([rows, dim]))
    }

    /// `gelu` of `x`, `[rows, dim]`.
    #[inline]
    pub fn gelu(x: Operand<'a>, rows: u32, dim: u32) -> Self {
        Self::new(x, Operand::None, Words::of([rows, dim]))
    }

    /// `geglu` of `gate` and `up`, both `[rows, dim]`.
    #[inline]
    pub fn geglu(gate: Operand<'a>, up: Operand<'a>, rows: u32, dim: u32) -> Self {
        Self::new(gate, up, Words::of([rows, dim]))
    }

    /// `layernorm` of `x`, `[rows, dim]`; `weight_and_bias` is `[2, dim]`.
    #[inline]
    pub fn layernorm(
        x: Operand<'a>,
        weight_and_bias: Operand<'a>,
        rows: u32,
        dim: u32,
        eps: f32,
    ) -> Self {
        Self::new(x, weight_and_bias, Words::of([rows, dim, eps.to_bits()]))
    }

    /// `kv_pack` of `x`, `[rows, dim]`.
    #[inline]
    pub fn kv_pack(x: Operand<'a>, rows: u32, dim: u32) -> Self {
        Self::new(x, Operand::None, Words::of([rows, dim]))
    }

    /// `kv_unpack` of blocks, `[rows, dim]`.
    #[inline]
    pub fn kv_unpack(x: Operand<'a>, rows: u32, dim: u32) -> Self {
        Self::new(x, Operand::None, Words::of([rows, dim]))
    }

    /// `lora_apply` of `x` by the interleaved factors `ab`.
    #[inline]
    pub fn lora(x: Operand<'a>, ab: Operand<'a>, dims: LoraDims, scale: f32) -> Self {
        let LoraDims { rows, in_dim, rank, out_dim } = dims;
        let groups = in_dim.div_ceil(4) + out_dim.div_ceil(4);
        let words = [rows, in_dim, groups, rank, out_dim, scale.to_bits()];
        Self::new(x, ab, Words::of(words))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use ruvllm_abi::Op;

    #[test]
    fn constructors_agree_with_the_contracts() {
        let dims = RopeDims { batch: 1, seq: 2, heads: 3, dim: 8, dim_half: 4 };
        let lora = LoraDims { rows: 1, in_dim: 6, rank: 2, out_dim: 5 };
        let none = || Operand::None;
        let words = |op: Op, call: OpCall<'_>| {
            assert_eq!(call.words.as_slice().len(), op.contract().param_words(), "{op}");
            call.words.as_slice().to_vec()
        };
        words(Op::Rope, OpCall::rope(none(), none(), dims, 1e4, true));
        words(Op::RmsNorm, OpCall::rmsnorm(none(), none(), 1, 2, 1e-5));
        words(Op::SwiGlu, OpCall::swiglu(none(), none(), 1, 2));
        words(Op::Gelu, OpCall::gelu(none(), 1, 2));
        words(Op::GeGlu, OpCall::geglu(none(), none(), 1, 2));
        words(Op::LayerNorm, OpCall::layernorm(none(), none(), 1, 2, 1e-5));
        words(Op::KvPack, OpCall::kv_pack(none(), 1, 32));
        words(Op::KvUnpack, OpCall::kv_unpack(none(), 1, 32));
        let got = words(Op::LoraApply, OpCall::lora(none(), none(), lora, 2.0));
        assert_eq!(got, [1, 6, 4, 2, 5, 2f32.to_bits()]);
    }

    #[test]
    fn residents_are_aligned_and_have_distinct_ids() {
        let a = Resident::from_f32(&[1.0, 2.0, 3.0]);
        let b = Resident::from_bytes(&[7; 65]);
        assert_eq!(a.bytes(), bytemuck::cast_slice::<f32, u8>(&[1.0, 2.0, 3.0]));
        assert_eq!((b.len(), b.bytes()[64]), (65, 7));
        assert_eq!(b.bytes().as_ptr() as usize % 64, 0);
        assert_ne!(a.id(), b.id());
        assert_eq!(a.clone().id(), a.id());
        assert!(Operand::Resident(&b, 60..66).bytes().is_none());
    }
}
