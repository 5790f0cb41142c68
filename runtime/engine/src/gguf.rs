//! GGUF files: header, metadata, and tensors used in place.
//!
//! The format is that of the GGUF specification, versions 2 and 3, little endian. Every tensor's
//! range is checked against the file before the file counts as open, so that nothing later can
//! read beyond its end. Not checked: whether the weights are any good.

mod header;
mod value;
mod write;

use std::collections::HashMap;
use std::ops::Range;
use std::path::Path;
use std::sync::Arc;

use crate::error::EngineError;
use crate::storage::{Storage, Tensor, TensorBytes, TensorSource};
use crate::tensors::Naming;

use header::TensorInfo;

pub use value::{Metadata, Value};
pub use write::{TensorView, write};

/// An open GGUF file.
pub struct GgufFile {
    origin: String,
    metadata: Metadata,
    tensors: HashMap<String, Tensor>,
}

impl GgufFile {
    /// Maps and checks a GGUF file.
    ///
    /// # Errors
    /// A missing, truncated or malformed file, and a tensor of an unsupported type.
    pub fn open(path: &Path) -> Result<GgufFile, EngineError> {
        Self::new(path.display().to_string(), Storage::map(path)?)
    }

    /// Checks a GGUF file that is built into the program; `name` stands for its path in messages.
    ///
    /// # Errors
    /// As [`GgufFile::open`].
    pub fn from_static(bytes: &'static [u8], name: &str) -> Result<GgufFile, EngineError> {
        Self::new(name.to_owned(), Storage::from_static(bytes))
    }

    /// Checks a GGUF file in memory; `name` stands for its path in messages. The bytes are used where they
    /// lie; single tensors that they hold misaligned are copied.
    ///
    /// # Errors
    /// As [`GgufFile::open`].
    pub fn from_bytes(bytes: impl Into<Vec<u8>>, name: &str) -> Result<GgufFile, EngineError> {
        Self::new(name.to_owned(), Storage::Given(bytes.into()))
    }

    /// Reads the metadata alone; the tensors may be absent, cut off or of unknown types.
    ///
    /// # Errors
    /// A missing file, and a truncated or malformed header.
    pub fn read_metadata(path: &Path) -> Result<Metadata, EngineError> {
        let storage = Storage::map(path)?;
        Ok(header::read(&path.display().to_string(), storage.bytes(), false)?.metadata)
    }

    fn new(origin: String, storage: Storage) -> Result<GgufFile, EngineError> {
        let header = header::read(&origin, storage.bytes(), true)?;
        let storage = Arc::new(storage);
        let mut tensors = HashMap::with_capacity(header.tensors.len());
        let mut furthest: Option<(u64, String)> = None;
        let mut total = 0u64;
        for TensorInfo { name, dtype, shape, offset } in header.tensors {
            let malformed = |reason: String| EngineError::GgufMalformed {
                path: origin.clone(),
                reason: format!("tensor `{name}` {reason}"),
            };
            // Without elements the other dimensions could be anything, their product included.
            let size = shape
                .split_last()
                .filter(|_| !shape.contains(&0))
                .and_then(|(&row, outer)| {
                    outer.iter().try_fold(dtype.bytes_for(row)?, |size, &n| size.checked_mul(n))
                })
                .ok_or_else(|| malformed(format!("has the impossible shape {shape:?}")))?;
            let range = header.data_start.checked_add(offset);
            let range = range.and_then(|start| Some(start..start.checked_add(size as u64)?));
            let Range { start, end } =
                range.ok_or_else(|| malformed(format!("starts at {offset}")))?;
            if end > storage.bytes().len() as u64 {
                // Reported once, for the tensor that lacks most: it says how much is missing.
                if furthest.as_ref().is_none_or(|(far, _)| end > *far) {
                    furthest = Some((end, name));
                }
                continue;
            }
            // What is copied or rearranged must not be many times what the file weighs.
            total = total.saturating_add(size as u64);
            if total > storage.bytes().len() as u64 {
                return Err(malformed("shares its bytes with other tensors".to_owned()));
            }
            let bytes = TensorBytes::new(&storage, start as usize..end as usize, dtype);
            tensors.insert(name, Tensor { dtype, shape, bytes });
        }
        if let Some((end, name)) = furthest {
            return Err(EngineError::GgufTruncated {
                path: origin,
                what: format!("tensor `{name}`"),
                missing: end - storage.bytes().len() as u64,
            });
        }
        Ok(GgufFile { origin, metadata: header.metadata, tensors })
    }

    /// The metadata.
    pub fn metadata(&self) -> &Metadata {
        &self.metadata
    }

    /// All tensors, by name.
    pub fn tensors(&self) -> Vec<TensorView<'_>> {
        let mut all: Vec<_> = self
            .tensors
            .iter()
            .map(|(name, Tensor { dtype, shape, bytes })| TensorView {
                name,
                dtype: *dtype,
                shape,
                bytes: bytes.as_slice(),
            })
            .collect();
        all.sort_unstable_by_key(|tensor| tensor.name);
        all
    }
}

impl TensorSource for GgufFile {
    fn origin(&self) -> &str {
        &self.origin
    }

    fn naming(&self) -> Naming {
        Naming::Gguf
    }

    fn find(&self, name: &str) -> Result<Option<Tensor>, EngineError> {
        Ok(self.tensors.get(name).cloned())
    }

    fn names(&self) -> Vec<&str> {
        self.tensors.keys().map(String::as_str).collect()
    }
}
