//! Bytes of model files: mapped, built into the program, or owned.
//!
//! Invariant: the bytes of a [`Storage`] never move and never change while it lives, so tensors
//! are plain ranges of it. Not protected against: another process that truncates or rewrites a
//! model file while it is mapped; a truncated page then ends the process, as with any mapping.
#![allow(unsafe_code)] // The two calls below that concern mappings; the rest of the crate denies it.

use std::ops::Range;
use std::path::Path;
use std::sync::Arc;

use bytemuck::{Pod, Zeroable};
use memmap2::Mmap;
use ruvllm_abi::DType;
use ruvllm_host::open_regular;

use crate::error::EngineError;
use crate::tensors::Naming;

/// One cache line; a vector of them is a byte buffer of that alignment.
#[repr(C, align(64))]
#[derive(Clone, Copy, Pod, Zeroable)]
struct Line([u8; 64]);

/// A growable byte buffer that starts on a cache line.
#[derive(Clone, Default)]
pub(crate) struct AlignedBytes {
    lines: Vec<Line>,
    len: usize,
}

impl AlignedBytes {
    /// Sets the length; new bytes are zero.
    pub(crate) fn resize(&mut self, len: usize) {
        self.lines.resize(len.div_ceil(64), Line([0; 64]));
        self.len = len;
    }

    /// A copy of `bytes`.
    pub(crate) fn copy_of(bytes: &[u8]) -> AlignedBytes {
        let mut copy = AlignedBytes::default();
        copy.resize(bytes.len());
        copy.as_mut_slice().copy_from_slice(bytes);
        copy
    }

    pub(crate) fn as_slice(&self) -> &[u8] {
        &bytemuck::cast_slice(&self.lines)[..self.len]
    }

    pub(crate) fn as_mut_slice(&mut self) -> &mut [u8] {
        &mut bytemuck::cast_slice_mut(&mut self.lines)[..self.len]
    }
}

/// The bytes of one file.
pub(crate) enum Storage {
    /// A file mapped read-only.
    Mapped(Mmap),
    /// Bytes built into the program.
    Static(&'static [u8]),
    /// Bytes on the heap.
    Owned(AlignedBytes),
    /// Bytes that somebody handed over, aligned as it happened.
    Given(Vec<u8>),
}

impl Storage {
    /// Maps a regular file read-only.
    ///
    /// # Errors
    /// [`EngineError::FileNotFound`] and [`EngineError::Io`].
    pub(crate) fn map(path: &Path) -> Result<Storage, EngineError> {
        let io = |e| EngineError::io(path, e);
        let file = open_regular(path).map_err(io)?;
        if file.metadata().map_err(io)?.len() == 0 {
            return Ok(Storage::Owned(AlignedBytes::default()));
        }
        // SAFETY: memmap2 asks that the file not change while it is mapped. The mapping is private
        // and read-only, this program never writes model files, and the module's note tells users
        // what happens when another process does; no Rust reference to the bytes is ever mutable.
        let map = unsafe { Mmap::map(&file) }.map_err(io)?;
        // Reading ahead only changes when pages arrive; where the system refuses, nothing is lost.
        #[cfg(unix)]
        let _ = map.advise(memmap2::Advice::WillNeed);
        Ok(Storage::Mapped(map))
    }

    /// Uses bytes of the program in place, or a copy where they lie too unevenly for tensors.
    pub(crate) fn from_static(bytes: &'static [u8]) -> Storage {
        if bytes.as_ptr().addr().is_multiple_of(32) {
            Storage::Static(bytes)
        } else {
            Storage::Owned(AlignedBytes::copy_of(bytes))
        }
    }

    pub(crate) fn bytes(&self) -> &[u8] {
        match self {
            Storage::Mapped(map) => map,
            Storage::Static(bytes) => bytes,
            Storage::Owned(bytes) => bytes.as_slice(),
            Storage::Given(bytes) => bytes,
        }
    }
}

/// The bytes of one tensor: a range of a file, or a copy where the file holds it misaligned.
#[derive(Clone)]
pub(crate) enum TensorBytes {
    InPlace { storage: Arc<Storage>, range: Range<usize> },
    Copied(Arc<AlignedBytes>),
}

impl TensorBytes {
    /// The tensor of `dtype` at `range`, which must lie within the storage.
    pub(crate) fn new(storage: &Arc<Storage>, range: Range<usize>, dtype: DType) -> TensorBytes {
        let element = if dtype.is_quantized() { 2 } else { dtype.layout().bytes };
        let bytes = &storage.bytes()[range.clone()];
        if bytes.as_ptr().addr().is_multiple_of(element) {
            TensorBytes::InPlace { storage: Arc::clone(storage), range }
        } else {
            TensorBytes::Copied(Arc::new(AlignedBytes::copy_of(bytes)))
        }
    }

    /// Gives back the memory of a tensor that is rarely read from now on; it is read from the file
    /// again when it is.
    pub(crate) fn release(&self) {
        #[cfg(unix)]
        if let TensorBytes::InPlace { storage, range } = self
            && let Storage::Mapped(map) = &**storage
        {
            // SAFETY: the mapping is of a file and nothing is ever written to it, so its pages come
            // back with the same bytes.
            let _ = unsafe {
                let advice = memmap2::UncheckedAdvice::DontNeed;
                map.unchecked_advise_range(advice, range.start, range.len())
            };
            // A row of an embedding comes without those beside it, whose pages would be mapped with it.
            let _ = map.advise_range(memmap2::Advice::Random, range.start, range.len());
        }
    }

    /// A part of the bytes of a tensor of `dtype`, which begins and ends between elements.
    fn part(&self, part: Range<usize>, dtype: DType) -> TensorBytes {
        match self {
            TensorBytes::InPlace { storage, range } => {
                TensorBytes::new(storage, range.start + part.start..range.start + part.end, dtype)
            }
            TensorBytes::Copied(bytes) => {
                let part = AlignedBytes::copy_of(&bytes.as_slice()[part]);
                TensorBytes::Copied(Arc::new(part))
            }
        }
    }

    pub(crate) fn as_slice(&self) -> &[u8] {
        match self {
            TensorBytes::InPlace { storage, range } => &storage.bytes()[range.clone()],
            TensorBytes::Copied(bytes) => bytes.as_slice(),
        }
    }
}

/// A tensor of a file: element type, shape outermost dimension first, and its bytes.
#[derive(Clone)]
pub(crate) struct Tensor {
    pub(crate) dtype: DType,
    pub(crate) shape: Vec<usize>,
    pub(crate) bytes: TensorBytes,
}

impl Tensor {
    /// Some of the rows of a matrix that has rows, where they lie.
    pub(crate) fn rows(&self, rows: Range<usize>) -> Tensor {
        let row = self.bytes.as_slice().len() / self.shape[0];
        let bytes = self.bytes.part(rows.start * row..rows.end * row, self.dtype);
        Tensor { dtype: self.dtype, shape: vec![rows.len(), self.shape[1]], bytes }
    }
}

/// A file or directory that holds tensors.
pub(crate) trait TensorSource {
    /// What to call the source in messages.
    fn origin(&self) -> &str;

    /// Whose names its tensors have.
    fn naming(&self) -> Naming;

    /// The tensor of that name, or `None`.
    ///
    /// # Errors
    /// [`EngineError::TensorType`].
    fn find(&self, name: &str) -> Result<Option<Tensor>, EngineError>;

    /// The names of all its tensors, in no order.
    fn names(&self) -> Vec<&str>;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn growing_keeps_contents_and_alignment() {
        let mut bytes = AlignedBytes::copy_of(&[7; 100]);
        bytes.resize(5000);
        assert!(bytes.as_slice()[..100].iter().all(|&b| b == 7));
        assert!(bytes.as_slice()[100..].iter().all(|&b| b == 0));
        assert_eq!(bytes.as_slice().as_ptr().addr() % 64, 0);
    }

    #[test]
    fn bytes_that_are_given_are_used_where_they_lie() {
        let bytes = vec![1; 64];
        let (place, odd) = (bytes.as_ptr(), bytes.as_ptr().addr() % 4);
        let storage = Arc::new(Storage::Given(bytes));
        let aligned = (4 - odd) % 4;
        let tensor = TensorBytes::new(&storage, aligned..aligned + 8, DType::F32);
        assert_eq!(tensor.as_slice().as_ptr().addr(), place.addr() + aligned);
        let tensor = TensorBytes::new(&storage, aligned + 1..aligned + 9, DType::F32);
        assert!(matches!(tensor, TensorBytes::Copied(_)));
    }

    #[test]
    fn a_misaligned_tensor_is_copied_and_an_aligned_one_is_not() {
        let storage = Arc::new(Storage::Owned(AlignedBytes::copy_of(&[1; 64])));
        let at = |start: usize| TensorBytes::new(&storage, start..start + 8, DType::F32);
        assert!(matches!(at(4), TensorBytes::InPlace { .. }));
        assert!(matches!(at(2), TensorBytes::Copied(_)));
        assert_eq!(at(2).as_slice(), &[1; 8]);
    }

    #[test]
    fn rows_of_a_matrix_are_its_bytes_wherever_they_lie() {
        let bytes: Vec<u8> = (0..64).collect();
        let storage = Arc::new(Storage::Owned(AlignedBytes::copy_of(&bytes)));
        for start in [4, 2] {
            let bytes = TensorBytes::new(&storage, start..start + 48, DType::F32);
            let matrix = Tensor { dtype: DType::F32, shape: vec![6, 2], bytes };
            let rows = matrix.rows(1..3);
            assert_eq!(rows.shape, [2, 2]);
            let expected: Vec<u8> = (start as u8 + 8..start as u8 + 24).collect();
            assert_eq!(rows.bytes.as_slice(), expected);
        }
    }
}
