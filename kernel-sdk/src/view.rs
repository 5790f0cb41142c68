//! From offsets in linear memory to typed slices.
//!
//! [`Call::open`] and [`BackwardCall::open`] are the only places where an offset becomes a pointer. They
//! check that every region lies in linear memory above the kernel's own data and stack, and that outputs and
//! scratch overlap nothing; what they hand out are ordinary slices with the lifetime of the call. From there on
//! casts check alignment and length, and element types accept every bit pattern.
//!
//! Regions are asked only for the natural alignment of their elements: a host may pass a slice of a
//! resident tensor that starts anywhere in it.

use core::marker::PhantomData;
use core::ops::Range;
use core::{ptr, slice};

use ruvllm_abi::{
    ABI_VERSION, BackwardDescriptor, DType, KernelDescriptor, KernelInfo, REGION_ALIGN, Region,
    Status,
};

use crate::element::{BlockQ4_0, BlockQ8_0, F16};

/// A type that tensors in linear memory are made of: one element, or one block of them.
///
/// # Safety
/// The type has no padding and no invalid bit pattern, and its layout is that of [`Self::DTYPE`].
pub unsafe trait Element: Copy {
    /// The element type in manifests.
    const DTYPE: DType;
}

// SAFETY: plain binary32.
unsafe impl Element for f32 {
    const DTYPE: DType = DType::F32;
}

// SAFETY: a transparent `u16`.
unsafe impl Element for F16 {
    const DTYPE: DType = DType::F16;
}

// SAFETY: plain integer.
unsafe impl Element for u32 {
    const DTYPE: DType = DType::U32;
}

// SAFETY: plain integer.
unsafe impl Element for i32 {
    const DTYPE: DType = DType::I32;
}

// SAFETY: plain integer.
unsafe impl Element for u8 {
    const DTYPE: DType = DType::U8;
}

// SAFETY: `repr(C)` of a `u16` and 32 bytes: 34 bytes, alignment 2, no padding.
unsafe impl Element for BlockQ8_0 {
    const DTYPE: DType = DType::Q8_0;
}

// SAFETY: `repr(C)` of a `u16` and 16 bytes: 18 bytes, alignment 2, no padding.
unsafe impl Element for BlockQ4_0 {
    const DTYPE: DType = DType::Q4_0;
}

const _: () = {
    assert!(size_of::<BlockQ8_0>() == DType::Q8_0.layout().bytes);
    assert!(size_of::<BlockQ4_0>() == DType::Q4_0.layout().bytes);
};

/// The memory that a call may name: `floor..len` of a linear memory that starts at `base`.
pub struct Memory<'m> {
    /// An address, not a pointer: that of linear memory is zero, and a null pointer with an offset
    /// is not one that may be read through.
    base: usize,
    floor: usize,
    len: usize,
    lifetime: PhantomData<&'m mut [u8]>,
}

impl<'m> Memory<'m> {
    /// This instance's linear memory above `__heap_base`, where nothing of the kernel's own lies.
    ///
    /// # Safety
    /// No other value made by this function, nor a view from one, is in use, and nothing else
    /// accesses that memory for `'m`. An entry point satisfies this: the host calls it alone, and a
    /// kernel has no allocator.
    #[cfg(target_family = "wasm")]
    #[inline]
    pub unsafe fn linear() -> Self {
        unsafe extern "C" {
            static __heap_base: u8;
        }
        const PAGE: usize = 65_536;
        Memory {
            base: 0,
            floor: (&raw const __heap_base).addr(),
            len: core::arch::wasm32::memory_size::<0>().saturating_mul(PAGE),
            lifetime: PhantomData,
        }
    }

    /// A byte slice as linear memory: how a kernel is called off wasm.
    ///
    /// Regions are then offsets into `bytes`, whose start should be aligned as a host aligns.
    pub fn over(bytes: &'m mut [u8]) -> Self {
        let base = bytes.as_mut_ptr().expose_provenance();
        Memory { base, floor: 0, len: bytes.len(), lifetime: PhantomData }
    }

    /// Where `region` starts, if all of it may be named.
    #[inline]
    fn locate(&self, region: Region) -> Option<*mut u8> {
        let end = region.end()? as usize;
        let start = region.offset as usize;
        let inside = start >= self.floor && end <= self.len;
        inside.then(|| ptr::with_exposed_provenance_mut(self.base.wrapping_add(start)))
    }

    /// The words of a descriptor at `offset`.
    #[inline]
    fn words<const N: usize>(&self, offset: usize) -> Option<[u32; N]> {
        let region = Region::new(u32::try_from(offset).ok()?, size_of::<[u32; N]>() as u32);
        let start = self.locate(region)?;
        // SAFETY: `locate` has checked that the bytes lie in memory this value stands for, and the
        // read asks for no alignment. `[u32; N]` is valid for every bit pattern.
        let words: [u32; N] = unsafe { start.cast::<[u32; N]>().read_unaligned() };
        Some(words.map(u32::from_le))
    }

    /// The bytes of a region that is read; an absent one has none.
    ///
    /// # Safety
    /// No exclusive slice of the same memory that this value hands out may overlap the region.
    #[inline]
    unsafe fn shared(&self, region: Region, status: Status) -> Result<&'m [u8], Status> {
        if region.size == 0 {
            return Ok(&[]);
        }
        let start = self.locate(region).ok_or(status)?;
        // SAFETY: the bytes lie in memory that nothing else uses for `'m` (`Memory`), and nothing
        // mutable overlaps them (the caller); a byte needs no alignment and has no invalid value.
        Ok(unsafe { slice::from_raw_parts(start, region.size as usize) })
    }

    /// The bytes of a region that is written; an absent one has none.
    ///
    /// # Safety
    /// Nothing else that this value hands out may overlap the region.
    #[inline]
    unsafe fn exclusive(&self, region: Region, status: Status) -> Result<&'m mut [u8], Status> {
        if region.size == 0 {
            return Ok(&mut []);
        }
        let start = self.locate(region).ok_or(status)?;
        // SAFETY: as for `shared`, and nothing at all overlaps them (the caller).
        Ok(unsafe { slice::from_raw_parts_mut(start, region.size as usize) })
    }
}

/// Checks that each written region, and the scratch, overlaps no other region.
#[inline]
fn apart(readable: &[Region], written: &[Region], scratch: Region) -> Result<(), Status> {
    for (i, output) in written.iter().enumerate() {
        if readable.iter().chain(&written[i + 1..]).any(|r| overlap(*output, *r)) {
            return Err(Status::InvalidOutput);
        }
    }
    if readable.iter().chain(written).any(|r| overlap(scratch, *r)) {
        return Err(Status::OutOfMemory);
    }
    Ok(())
}

/// Whether two regions share a byte.
#[inline]
fn overlap(a: Region, b: Region) -> bool {
    let disjoint = a.offset.saturating_add(a.size) <= b.offset
        || b.offset.saturating_add(b.size) <= a.offset
        || a.size == 0
        || b.size == 0;
    !disjoint
}

/// A checked call: everything that the host passed, each part usable on its own.
pub struct Call<'m> {
    /// The inputs in the order of the manifest.
    pub inputs: Inputs<'m>,
    /// The bytes of the output, of those rows that are this thread's; [`TensorMut::new`] gives them a type and shape.
    pub output: &'m mut [u8],
    /// Working memory.
    pub scratch: Scratch<'m>,
    /// The params block.
    pub params: Params<'m>,
    /// The thread that computes a part of the call; the only one unless the kernel has threads.
    pub thread: Thread,
}

impl<'m> Call<'m> {
    /// Reads the descriptor at `desc` and checks every region it names.
    ///
    /// # Errors
    /// [`Status::InternalError`] when the descriptor itself lies outside memory; otherwise the
    /// status of the first region that leaves memory, and [`Status::InvalidOutput`] or
    /// [`Status::OutOfMemory`] when the output or the scratch overlaps another region.
    #[inline]
    pub fn open(memory: Memory<'m>, desc: usize) -> Result<Self, Status> {
        let words = memory.words(desc).ok_or(Status::InternalError)?;
        let desc = KernelDescriptor::from_words(words);
        let KernelDescriptor { input_a, input_b, output, scratch, params } = desc;
        apart(&[input_a, input_b, params], &[output], scratch)?;
        // SAFETY: output and scratch overlap nothing, and no other thread has a part of the call.
        unsafe { Self::of(memory, desc, Thread::ONLY) }
    }

    /// [`open`](Self::open) for one of the threads that compute a call together: of the output and of the scratch
    /// it has a part of its own. The output has as many rows as the word of the params block says that `rows` is
    /// the index of, and each thread the same number of them, or one more.
    ///
    /// # Errors
    /// As `open`; [`Status::InvalidParams`] where there is no such word, and [`Status::InvalidOutput`] where that
    /// many rows do not fill the output.
    #[inline]
    pub fn open_part(
        memory: Memory<'m>,
        desc: usize,
        thread: Thread,
        rows: usize,
    ) -> Result<Self, Status> {
        let words = memory.words(desc).ok_or(Status::InternalError)?;
        let desc = KernelDescriptor::from_words(words);
        let KernelDescriptor { input_a, input_b, output, scratch, params } = desc;
        apart(&[input_a, input_b, params], &[output], scratch)?;
        // SAFETY: `apart` has found that output and scratch, which are written, do not overlap the params.
        let mut words = Params { rest: unsafe { memory.shared(params, Status::InvalidParams)? } };
        for _ in 0..rows {
            words.take::<u32>()?;
        }
        let output = thread.part_of(output, words.take()?).ok_or(Status::InvalidOutput)?;
        let scratch = thread.part_of_scratch(scratch);
        // SAFETY: the parts lie in regions that overlap nothing, and those of a thread with another index do not
        // overlap them.
        unsafe { Self::of(memory, KernelDescriptor { output, scratch, ..desc }, thread) }
    }

    /// The call that a descriptor describes.
    ///
    /// # Safety
    /// Output and scratch overlap no other region, and no other value of this type has them, or a part of them.
    #[inline]
    unsafe fn of(
        memory: Memory<'m>,
        desc: KernelDescriptor,
        thread: Thread,
    ) -> Result<Self, Status> {
        let KernelDescriptor { input_a, input_b, output, scratch, params } = desc;
        // SAFETY: the caller's.
        unsafe {
            Ok(Call {
                thread,
                inputs: Inputs {
                    a: memory.shared(input_a, Status::InvalidInput)?,
                    b: memory.shared(input_b, Status::InvalidInput)?,
                    taken: 0,
                },
                params: Params { rest: memory.shared(params, Status::InvalidParams)? },
                output: memory.exclusive(output, Status::InvalidOutput)?,
                scratch: Scratch { rest: memory.exclusive(scratch, Status::OutOfMemory)? },
            })
        }
    }
}

/// One of the threads that compute a call together. Each has a part of the rows, in the order of their indices.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Thread {
    index: u32,
    count: u32,
}

impl Thread {
    /// The thread that computes all alone.
    pub const ONLY: Thread = Thread { index: 0, count: 1 };

    /// Thread `index`, from 0 on, of `count`; where there is none such, the only one.
    #[inline]
    pub const fn new(index: u32, count: u32) -> Thread {
        if index < count { Thread { index, count } } else { Thread::ONLY }
    }

    /// Its rows, of so many that there are.
    #[inline]
    pub fn rows(self, rows: usize) -> Range<usize> {
        let (index, count) = (self.index as usize, self.count as usize);
        let (each, more) = (rows / count, rows % count);
        let first = each * index + index.min(more);
        first..first + each + usize::from(index < more)
    }

    /// Its part of a region that `rows` rows fill.
    #[inline]
    fn part_of(self, region: Region, rows: u32) -> Option<Region> {
        let row = region.size.checked_div(rows).unwrap_or(0);
        if row * rows != region.size {
            return None;
        }
        let part = self.rows(rows as usize);
        let at = region.offset.checked_add(part.start as u32 * row)?;
        Some(Region::new(at, part.len() as u32 * row))
    }

    /// Its part of the scratch: the same for each, a multiple of what regions are aligned at.
    #[inline]
    fn part_of_scratch(self, region: Region) -> Region {
        let align = REGION_ALIGN as u32;
        let each = region.size / self.count / align * align;
        let at = region.offset.saturating_add(self.index * each);
        // The end, where the host looks for a message, is the last one's.
        let is_last = self.index + 1 == self.count;
        Region::new(at, if is_last { region.size - self.index * each } else { each })
    }
}

/// A checked call for gradients: everything that the host passed, each part usable on its own.
pub struct BackwardCall<'m> {
    /// The inputs of the forward call in the order of the manifest.
    pub inputs: Inputs<'m>,
    /// The bytes of the gradient of the output; [`TensorView::new`] gives them a type and shape.
    pub grad_output: &'m [u8],
    /// The gradients of the inputs.
    pub grad_inputs: GradInputs<'m>,
    /// Working memory.
    pub scratch: Scratch<'m>,
    /// The params block of the forward call.
    pub params: Params<'m>,
}

impl<'m> BackwardCall<'m> {
    /// Reads the descriptor at `desc` and checks every region it names.
    ///
    /// # Errors
    /// As [`Call::open`]; the gradients of the inputs are outputs, that of the output is an input.
    #[inline]
    pub fn open(memory: Memory<'m>, desc: usize) -> Result<Self, Status> {
        let words = memory.words(desc).ok_or(Status::InternalError)?;
        let BackwardDescriptor { input_a, input_b, grad_output, scratch, params, grad_a, grad_b } =
            BackwardDescriptor::from_words(words);
        apart(&[input_a, input_b, grad_output, params], &[grad_a, grad_b], scratch)?;
        // SAFETY: `apart` has found that both gradients and the scratch overlap nothing.
        unsafe {
            Ok(BackwardCall {
                inputs: Inputs {
                    a: memory.shared(input_a, Status::InvalidInput)?,
                    b: memory.shared(input_b, Status::InvalidInput)?,
                    taken: 0,
                },
                grad_output: memory.shared(grad_output, Status::InvalidInput)?,
                params: Params { rest: memory.shared(params, Status::InvalidParams)? },
                grad_inputs: GradInputs {
                    a: memory.exclusive(grad_a, Status::InvalidOutput)?,
                    b: memory.exclusive(grad_b, Status::InvalidOutput)?,
                },
                scratch: Scratch { rest: memory.exclusive(scratch, Status::OutOfMemory)? },
            })
        }
    }
}

/// The gradients that a call gives, in the order of the inputs.
pub struct GradInputs<'m> {
    a: &'m mut [u8],
    b: &'m mut [u8],
}

impl<'m> GradInputs<'m> {
    /// The next gradient as a tensor of `shape`, that of its input.
    ///
    /// # Errors
    /// [`Status::InvalidOutput`] when the region has another size or alignment, as an absent one has.
    #[inline]
    pub fn take<T: Element>(&mut self, shape: &[usize]) -> Result<TensorMut<'m, T>, Status> {
        let next = core::mem::take(&mut self.b);
        TensorMut::new(core::mem::replace(&mut self.a, next), shape)
    }
}

/// Writes [`KernelInfo`] at `out`: what the `kernel_info` export does.
#[inline]
pub fn write_info(memory: Memory<'_>, out: usize, revision: u32) -> Status {
    let Ok(offset) = u32::try_from(out) else { return Status::InvalidOutput };
    let Some(start) = memory.locate(Region::new(offset, KernelInfo::SIZE as u32)) else {
        return Status::InvalidOutput;
    };
    let info = KernelInfo { abi_version: ABI_VERSION, revision, flags: 0, reserved: 0 };
    // SAFETY: `locate` has checked that the 16 bytes lie in memory that this value stands for
    // alone; the write asks for no alignment.
    unsafe { start.cast::<KernelInfo>().write_unaligned(info) };
    Status::Ok
}

/// How many `T` a tensor of `shape` has, or `None` where that overflows or does not fill blocks.
#[inline]
fn extent<T: Element>(shape: &[usize]) -> Option<usize> {
    let elems = shape.iter().try_fold(1usize, |n, dim| n.checked_mul(*dim))?;
    let block = T::DTYPE.layout().elems;
    elems.is_multiple_of(block).then_some(elems / block)
}

/// Whether `bytes` holds exactly `shape` of aligned `T`.
#[inline]
fn holds<T: Element>(bytes: &[u8], shape: &[usize]) -> bool {
    let expected = extent::<T>(shape).and_then(|n| n.checked_mul(size_of::<T>()));
    expected == Some(bytes.len()) && (bytes.is_empty() || bytes.as_ptr().cast::<T>().is_aligned())
}

/// The inputs of a call.
pub struct Inputs<'m> {
    a: &'m [u8],
    b: &'m [u8],
    taken: usize,
}

impl<'m> Inputs<'m> {
    /// The next input as a tensor of `shape`.
    ///
    /// # Errors
    /// [`Status::InvalidInput`] when the region has another size or alignment, and after the
    /// second input.
    #[inline]
    pub fn take<T: Element>(&mut self, shape: &[usize]) -> Result<TensorView<'m, T>, Status> {
        let bytes = match self.taken {
            0 => self.a,
            1 => self.b,
            _ => return Err(Status::InvalidInput),
        };
        self.taken += 1;
        TensorView::new(bytes, shape)
    }
}

/// A tensor that a kernel reads, row-major.
#[derive(Clone, Copy)]
pub struct TensorView<'a, T> {
    data: &'a [T],
}

impl<'a, T: Element> TensorView<'a, T> {
    /// Views `bytes` as a tensor of `shape`, which counts elements, not blocks.
    ///
    /// # Errors
    /// [`Status::InvalidInput`] when the size or the alignment is another.
    #[inline]
    pub fn new(bytes: &'a [u8], shape: &[usize]) -> Result<Self, Status> {
        if !holds::<T>(bytes, shape) {
            return Err(Status::InvalidInput);
        }
        if bytes.is_empty() {
            return Ok(TensorView { data: &[] });
        }
        // SAFETY: size and alignment have been checked; `Element` admits every bit pattern; the
        // lifetime is that of the borrowed bytes.
        let data = unsafe {
            slice::from_raw_parts(bytes.as_ptr().cast::<T>(), bytes.len() / size_of::<T>())
        };
        Ok(TensorView { data })
    }

    /// The part of a thread, of a tensor of `rows` rows, which its elements or blocks fill.
    ///
    /// # Errors
    /// [`Status::InvalidInput`] where they do not.
    #[inline]
    pub fn part(self, thread: Thread, rows: usize) -> Result<Self, Status> {
        let row = self.data.len().checked_div(rows).unwrap_or(0);
        if row * rows != self.data.len() {
            return Err(Status::InvalidInput);
        }
        let Range { start, end } = thread.rows(rows);
        let data = self.data.get(start * row..end * row).ok_or(Status::InvalidInput)?;
        Ok(TensorView { data })
    }

    /// All elements, or blocks, in row-major order.
    #[inline]
    pub fn as_slice(&self) -> &'a [T] {
        self.data
    }

    /// Consecutive rows of `elems` elements each; none where `elems` is zero.
    #[inline]
    pub fn rows(&self, elems: usize) -> Rows<'a, T> {
        Rows { rest: self.data, len: elems / T::DTYPE.layout().elems }
    }
}

/// The tensor that a kernel writes, row-major.
pub struct TensorMut<'a, T> {
    data: &'a mut [T],
}

impl<'a, T: Element> TensorMut<'a, T> {
    /// Views `bytes` as a tensor of `shape`, which counts elements, not blocks.
    ///
    /// # Errors
    /// [`Status::InvalidOutput`] when the size or the alignment is another.
    #[inline]
    pub fn new(bytes: &'a mut [u8], shape: &[usize]) -> Result<Self, Status> {
        if !holds::<T>(bytes, shape) {
            return Err(Status::InvalidOutput);
        }
        if bytes.is_empty() {
            return Ok(TensorMut { data: &mut [] });
        }
        // SAFETY: as in `TensorView::new`; the bytes are borrowed mutably, and `Element` has no
        // padding, so that any value written is valid as bytes.
        let data = unsafe {
            slice::from_raw_parts_mut(bytes.as_mut_ptr().cast::<T>(), bytes.len() / size_of::<T>())
        };
        Ok(TensorMut { data })
    }

    /// All elements, or blocks, in row-major order.
    #[inline]
    pub fn as_mut_slice(&mut self) -> &mut [T] {
        self.data
    }

    /// Consecutive rows of `elems` elements each; none where `elems` is zero.
    #[inline]
    pub fn rows_mut(&mut self, elems: usize) -> RowsMut<'_, T> {
        RowsMut { rest: self.data, len: elems / T::DTYPE.layout().elems }
    }
}

/// The rows of a [`TensorView`]. Unlike `ChunksExact` it divides nothing, so nothing can panic.
pub struct Rows<'a, T> {
    rest: &'a [T],
    len: usize,
}

impl<'a, T> Iterator for Rows<'a, T> {
    type Item = &'a [T];

    #[inline]
    fn next(&mut self) -> Option<&'a [T]> {
        let (row, rest) = self.rest.split_at_checked(self.len)?;
        self.rest = rest;
        (!row.is_empty()).then_some(row)
    }
}

/// The rows of a [`TensorMut`].
pub struct RowsMut<'a, T> {
    rest: &'a mut [T],
    len: usize,
}

impl<'a, T> Iterator for RowsMut<'a, T> {
    type Item = &'a mut [T];

    #[inline]
    fn next(&mut self) -> Option<&'a mut [T]> {
        let (row, rest) = core::mem::take(&mut self.rest).split_at_mut_checked(self.len)?;
        self.rest = rest;
        (!row.is_empty()).then_some(row)
    }
}

/// Working memory of a call; its contents are unspecified.
pub struct Scratch<'m> {
    rest: &'m mut [u8],
}

impl<'m> Scratch<'m> {
    /// Takes room for `len` of `T`.
    ///
    /// # Errors
    /// [`Status::OutOfMemory`] when less is left.
    #[inline]
    pub fn take<T: Element>(&mut self, len: usize) -> Result<&'m mut [T], Status> {
        let rest = core::mem::take(&mut self.rest);
        let pad = rest.as_ptr().align_offset(align_of::<T>());
        let taken = len
            .checked_mul(size_of::<T>())
            .and_then(|bytes| rest.split_at_mut_checked(pad)?.1.split_at_mut_checked(bytes));
        let Some((bytes, rest)) = taken else { return Err(Status::OutOfMemory) };
        self.rest = rest;
        if len == 0 {
            return Ok(&mut []);
        }
        // SAFETY: `bytes` starts at a multiple of `T`'s alignment and holds `len` of them; it is
        // split off for good, so that no other slice reaches it; `Element` admits every pattern.
        Ok(unsafe { slice::from_raw_parts_mut(bytes.as_mut_ptr().cast::<T>(), len) })
    }
}

/// A value that takes one word of the params block.
pub trait Param: Copy {
    /// Reads the word.
    fn from_word(word: u32) -> Self;
}

impl Param for u32 {
    #[inline]
    fn from_word(word: u32) -> Self {
        word
    }
}

impl Param for i32 {
    #[inline]
    fn from_word(word: u32) -> Self {
        word.cast_signed()
    }
}

impl Param for f32 {
    #[inline]
    fn from_word(word: u32) -> Self {
        f32::from_bits(word)
    }
}

/// A bound shape symbol.
impl Param for usize {
    #[inline]
    fn from_word(word: u32) -> Self {
        word as usize
    }
}

/// The params block, read from front to back.
pub struct Params<'m> {
    rest: &'m [u8],
}

impl Params<'_> {
    /// The next word.
    ///
    /// # Errors
    /// [`Status::InvalidParams`] at the end of the block.
    #[inline]
    pub fn take<P: Param>(&mut self) -> Result<P, Status> {
        let (word, rest) = self.rest.split_first_chunk::<4>().ok_or(Status::InvalidParams)?;
        self.rest = rest;
        Ok(P::from_word(u32::from_le_bytes(*word)))
    }
}

impl Scratch<'_> {
    /// Leaves a text about a failure for whoever looks into it, in what is left of scratch, and gives the
    /// status back: `return Err(scratch.fail(Status::InvalidParams, "eps must be positive"))`.
    #[cold]
    pub fn fail(&mut self, status: Status, text: &str) -> Status {
        ruvllm_abi::message::write(self.rest, text);
        status
    }
}

#[cfg(test)]
mod tests;
