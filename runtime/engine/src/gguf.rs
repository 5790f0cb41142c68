//! GGUF files: header, metadata, and tensors used in place.
//!
//! The format is that of the GGUF specification, versions 2 and 3, little endian. Every tensor's
//! range is checked against the file before the file counts as open, so that nothing later can
//! read beyond its end. Not checked: whether the weights are any good.

mod header;

use std::collections::HashMap;
use std::io::Cursor;
use std::path::Path;
use std::sync::Arc;

use candle_core::quantized::GgmlDType;
use candle_core::quantized::gguf_file::{Content, Value};
use ruvllm_abi::DType;

use crate::error::EngineError;
use crate::storage::{Storage, Tensor, TensorBytes, TensorSource};

/// The metadata of a GGUF file by key.
pub type Metadata = HashMap<String, Value>;

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

    /// Reads the metadata alone; the tensors may be absent, cut off or of unknown types.
    ///
    /// # Errors
    /// A missing file, and a truncated or malformed header.
    pub fn read_metadata(path: &Path) -> Result<Metadata, EngineError> {
        let storage = Storage::map(path)?;
        let origin = path.display().to_string();
        let layout = header::check(&origin, storage.bytes(), false)?;
        // The parser insists on the table of tensors: hand it a header that announces none.
        let mut header = storage.bytes()[..layout.metadata_end].to_vec();
        header[header::TENSOR_COUNT_AT..][..8].fill(0);
        Ok(parse(&origin, &header)?.metadata)
    }

    fn new(origin: String, storage: Storage) -> Result<GgufFile, EngineError> {
        header::check(&origin, storage.bytes(), true)?;
        let content = parse(&origin, storage.bytes())?;
        let storage = Arc::new(storage);
        let mut tensors = HashMap::with_capacity(content.tensor_infos.len());
        let mut furthest: Option<(u64, String)> = None;
        let mut total = 0u64;
        for (name, info) in &content.tensor_infos {
            let malformed = |reason: String| EngineError::GgufMalformed {
                path: origin.clone(),
                reason: format!("tensor `{name}` {reason}"),
            };
            let dtype = dtype_of(info.ggml_dtype).ok_or_else(|| EngineError::TensorType {
                path: origin.clone(),
                tensor: name.clone(),
                found: format!("{:?}", info.ggml_dtype),
            })?;
            // The parser has reversed the file's order: the last dimension is the contiguous one.
            let shape = info.shape.dims().to_vec();
            // Without elements the other dimensions could be anything, their product included.
            let size = shape
                .split_last()
                .filter(|_| !shape.contains(&0))
                .and_then(|(&row, outer)| {
                    outer.iter().try_fold(dtype.bytes_for(row)?, |size, &n| size.checked_mul(n))
                })
                .ok_or_else(|| malformed(format!("has the impossible shape {shape:?}")))?;
            let start = content
                .tensor_data_offset
                .checked_add(info.offset)
                .ok_or_else(|| malformed(format!("starts at {}", info.offset)))?;
            let end = start
                .checked_add(size as u64)
                .ok_or_else(|| malformed(format!("starts at {}", info.offset)))?;
            if end > storage.bytes().len() as u64 {
                // Reported once, for the tensor that lacks most: it says how much is missing.
                if furthest.as_ref().is_none_or(|(far, _)| end > *far) {
                    furthest = Some((end, name.clone()));
                }
                continue;
            }
            // What is copied or rearranged must not be many times what the file weighs.
            total = total.saturating_add(size as u64);
            if total > storage.bytes().len() as u64 {
                return Err(malformed("shares its bytes with other tensors".to_owned()));
            }
            let bytes = TensorBytes::new(&storage, start as usize..end as usize, dtype);
            tensors.insert(name.clone(), Tensor { dtype, shape, bytes });
        }
        if let Some((end, name)) = furthest {
            return Err(EngineError::GgufTruncated {
                path: origin,
                what: format!("tensor `{name}`"),
                missing: end - storage.bytes().len() as u64,
            });
        }
        Ok(GgufFile { origin, metadata: content.metadata, tensors })
    }

    /// The metadata.
    pub fn metadata(&self) -> &Metadata {
        &self.metadata
    }

    /// Names, element types and shapes (outermost dimension first) of all tensors, by name.
    pub fn tensors(&self) -> Vec<(&str, DType, &[usize])> {
        let mut all: Vec<_> =
            self.tensors.iter().map(|(n, t)| (n.as_str(), t.dtype, t.shape.as_slice())).collect();
        all.sort_unstable_by_key(|entry| entry.0);
        all
    }
}

impl TensorSource for GgufFile {
    fn origin(&self) -> &str {
        &self.origin
    }

    fn find(&self, name: &str) -> Result<Option<Tensor>, EngineError> {
        Ok(self.tensors.get(name).cloned())
    }
}

fn parse(origin: &str, bytes: &[u8]) -> Result<Content, EngineError> {
    Content::read(&mut Cursor::new(bytes))
        .map_err(|e| EngineError::GgufMalformed { path: origin.to_owned(), reason: e.to_string() })
}

fn dtype_of(dtype: GgmlDType) -> Option<DType> {
    Some(match dtype {
        GgmlDType::F32 => DType::F32,
        GgmlDType::F16 => DType::F16,
        GgmlDType::BF16 => DType::BF16,
        GgmlDType::Q8_0 => DType::Q8_0,
        GgmlDType::Q4_0 => DType::Q4_0,
        GgmlDType::Q4_1 => DType::Q4_1,
        GgmlDType::Q5_0 => DType::Q5_0,
        GgmlDType::Q5_1 => DType::Q5_1,
        GgmlDType::Q4K => DType::Q4_K,
        GgmlDType::Q5K => DType::Q5_K,
        GgmlDType::Q6K => DType::Q6_K,
        _ => return None,
    })
}
