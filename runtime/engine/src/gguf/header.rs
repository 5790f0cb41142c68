//! Reading the header of a GGUF file: metadata, and where tensors lie.
//!
//! Every fault is found before anything is built from the field that has it, and named with the key or the
//! tensor. What a small file can make this code allocate is bounded: an element of an array takes at least
//! one byte of the file, and all arrays together hold no more than [`MAX_ARRAY_ELEMENTS`].

use std::collections::{HashMap, HashSet};

use ruvllm_abi::DType;

use super::value::{Metadata, Value};
use crate::error::EngineError;

/// What every file starts with.
pub(super) const MAGIC: [u8; 4] = *b"GGUF";
/// Where tensors begin, in bytes, unless a file says otherwise.
pub(super) const DEFAULT_ALIGNMENT: u64 = 32;

/// The numbers and names that GGML has for types of elements; `None` where the engine does not compute with one.
pub(super) const TENSOR_TYPES: &[(u32, &str, Option<DType>)] = &[
    (0, "F32", Some(DType::F32)),
    (1, "F16", Some(DType::F16)),
    (2, "Q4_0", Some(DType::Q4_0)),
    (3, "Q4_1", Some(DType::Q4_1)),
    (6, "Q5_0", Some(DType::Q5_0)),
    (7, "Q5_1", Some(DType::Q5_1)),
    (8, "Q8_0", Some(DType::Q8_0)),
    (9, "Q8_1", None),
    (10, "Q2_K", None),
    (11, "Q3_K", None),
    (12, "Q4_K", Some(DType::Q4_K)),
    (13, "Q5_K", Some(DType::Q5_K)),
    (14, "Q6_K", Some(DType::Q6_K)),
    (15, "Q8_K", None),
    (16, "IQ2_XXS", None),
    (17, "IQ2_XS", None),
    (18, "IQ3_XXS", None),
    (19, "IQ1_S", None),
    (20, "IQ4_NL", None),
    (21, "IQ3_S", None),
    (22, "IQ2_S", None),
    (23, "IQ4_XS", None),
    (24, "I8", None),
    (25, "I16", None),
    (26, "I32", None),
    (27, "I64", None),
    (28, "F64", None),
    (29, "IQ1_M", None),
    (30, "BF16", Some(DType::BF16)),
    // Of old files; their place is taken by rearranging Q4_0 and IQ4_NL at load.
    (31, "Q4_0_4_4", None),
    (32, "Q4_0_4_8", None),
    (33, "Q4_0_8_8", None),
    (34, "TQ1_0", None),
    (35, "TQ2_0", None),
    (36, "IQ4_NL_4_4", None),
    (37, "IQ4_NL_4_8", None),
    (38, "IQ4_NL_8_8", None),
    (39, "MXFP4", None),
    (40, "NVFP4", None),
    (41, "Q1_0", None),
    (42, "Q2_0", None),
];

/// The most array elements that all metadata together may hold; vocabularies have below a million.
const MAX_ARRAY_ELEMENTS: u64 = 1 << 24;
const MAX_ARRAY_DEPTH: usize = 4;
const MAX_DIMS: u32 = 4;
const MAX_ALIGNMENT: i64 = 1 << 20;

/// What the table of tensors says of one.
#[derive(Debug)]
pub(super) struct TensorInfo {
    pub(super) name: String,
    pub(super) dtype: DType,
    /// Outermost dimension first, unlike in the file.
    pub(super) shape: Vec<usize>,
    /// Its first byte, counted from the first of all tensors.
    pub(super) offset: u64,
}

/// A header.
#[derive(Debug)]
pub(super) struct Header {
    pub(super) metadata: Metadata,
    pub(super) tensors: Vec<TensorInfo>,
    /// Where the bytes of tensors begin.
    pub(super) data_start: u64,
}

struct Reader<'a> {
    origin: &'a str,
    bytes: &'a [u8],
    at: usize,
    array_elements: u64,
}

impl<'a> Reader<'a> {
    fn malformed(&self, reason: String) -> EngineError {
        EngineError::GgufMalformed { path: self.origin.to_owned(), reason }
    }

    fn left(&self) -> u64 {
        (self.bytes.len() - self.at) as u64
    }

    fn take(&mut self, len: u64, what: &str) -> Result<&'a [u8], EngineError> {
        if len > self.left() {
            return Err(EngineError::GgufTruncated {
                path: self.origin.to_owned(),
                what: what.to_owned(),
                missing: len - self.left(),
            });
        }
        let taken = &self.bytes[self.at..self.at + len as usize];
        self.at += len as usize;
        Ok(taken)
    }

    fn array<const N: usize>(&mut self, what: &str) -> Result<[u8; N], EngineError> {
        let mut array = [0; N];
        array.copy_from_slice(self.take(N as u64, what)?);
        Ok(array)
    }

    fn u32(&mut self, what: &str) -> Result<u32, EngineError> {
        self.array(what).map(u32::from_le_bytes)
    }

    fn u64(&mut self, what: &str) -> Result<u64, EngineError> {
        self.array(what).map(u64::from_le_bytes)
    }

    /// A text, without the zeros that some writers end one with. Bytes that are no UTF-8, which old
    /// vocabularies have, become U+FFFD.
    fn string(&mut self, what: &str) -> Result<String, EngineError> {
        let len = self.u64(what)?;
        let bytes = self.take(len, what)?;
        let end = bytes.iter().rposition(|&byte| byte != 0).map_or(0, |last| last + 1);
        Ok(String::from_utf8_lossy(&bytes[..end]).into_owned())
    }

    fn value(&mut self, type_id: u32, key: &str, depth: usize) -> Result<Value, EngineError> {
        Ok(match type_id {
            0 => Value::U8(u8::from_le_bytes(self.array(key)?)),
            1 => Value::I8(i8::from_le_bytes(self.array(key)?)),
            2 => Value::U16(u16::from_le_bytes(self.array(key)?)),
            3 => Value::I16(i16::from_le_bytes(self.array(key)?)),
            4 => Value::U32(u32::from_le_bytes(self.array(key)?)),
            5 => Value::I32(i32::from_le_bytes(self.array(key)?)),
            6 => Value::F32(f32::from_le_bytes(self.array(key)?)),
            7 => match u8::from_le_bytes(self.array(key)?) {
                0 => Value::Bool(false),
                1 => Value::Bool(true),
                other => {
                    return Err(self.malformed(format!("`{key}` is {other}, not a truth value")));
                }
            },
            8 => Value::String(self.string(key)?),
            9 => self.values(key, depth)?,
            10 => Value::U64(u64::from_le_bytes(self.array(key)?)),
            11 => Value::I64(i64::from_le_bytes(self.array(key)?)),
            12 => Value::F64(f64::from_le_bytes(self.array(key)?)),
            _ => {
                return Err(self.malformed(format!("`{key}` has the unknown value type {type_id}")));
            }
        })
    }

    fn values(&mut self, key: &str, depth: usize) -> Result<Value, EngineError> {
        if depth == MAX_ARRAY_DEPTH {
            return Err(self.malformed(format!("`{key}` nests arrays too deeply")));
        }
        let type_id = self.u32(key)?;
        let len = self.u64(key)?;
        self.array_elements = self.array_elements.saturating_add(len);
        if self.array_elements > MAX_ARRAY_ELEMENTS {
            return Err(self.malformed(format!(
                "the arrays up to `{key}` hold more than {MAX_ARRAY_ELEMENTS} elements"
            )));
        }
        // The file ends before an element that it has no byte for.
        let mut values = Vec::with_capacity(len.min(self.left()) as usize);
        for _ in 0..len {
            values.push(self.value(type_id, key, depth + 1)?);
        }
        Ok(Value::Array(values))
    }

    fn metadata(&mut self, count: u64) -> Result<Metadata, EngineError> {
        let mut metadata = HashMap::new();
        for _ in 0..count {
            let key = self.string("a metadata key")?;
            let type_id = self.u32(&key)?;
            let value = self.value(type_id, &key, 0)?;
            if metadata.contains_key(&key) {
                return Err(self.malformed(format!("the metadata key `{key}` occurs twice")));
            }
            metadata.insert(key, value);
        }
        Ok(metadata)
    }

    fn tensors(&mut self, count: u64) -> Result<Vec<TensorInfo>, EngineError> {
        let (mut tensors, mut names) = (Vec::new(), HashSet::new());
        for _ in 0..count {
            let name = self.string("a tensor's name")?;
            let what = format!("the entry of tensor `{name}`");
            if !names.insert(name.clone()) {
                return Err(self.malformed(format!("tensor `{name}` occurs twice")));
            }
            let dims = self.u32(&what)?;
            if dims == 0 || dims > MAX_DIMS {
                return Err(self.malformed(format!("tensor `{name}` has {dims} dimensions")));
            }
            let mut shape = Vec::with_capacity(dims as usize);
            for _ in 0..dims {
                let dim = self.u64(&what)?;
                shape.push(usize::try_from(dim).map_err(|_| {
                    self.malformed(format!("tensor `{name}` has a dimension of {dim}"))
                })?);
            }
            shape.reverse();
            let type_id = self.u32(&what)?;
            let known = TENSOR_TYPES.iter().find(|(id, ..)| *id == type_id);
            let Some(dtype) = known.and_then(|(.., dtype)| *dtype) else {
                let found = known
                    .map_or_else(|| format!("number {type_id}"), |(_, name, _)| (*name).to_owned());
                return Err(EngineError::TensorType {
                    path: self.origin.to_owned(),
                    tensor: name,
                    found,
                });
            };
            let offset = self.u64(&what)?;
            tensors.push(TensorInfo { name, dtype, shape, offset });
        }
        Ok(tensors)
    }

    /// Where the bytes of tensors begin, behind what was read.
    fn data_start(&self, metadata: &Metadata) -> Result<u64, EngineError> {
        let alignment = match metadata.get("general.alignment") {
            None => DEFAULT_ALIGNMENT,
            Some(value) => value
                .as_i64()
                .filter(|&n| n > 0 && n <= MAX_ALIGNMENT && n.cast_unsigned().is_power_of_two())
                .map(i64::cast_unsigned)
                .ok_or_else(|| {
                    self.malformed(format!(
                        "`general.alignment` is {value:?}, not a power of two up to {MAX_ALIGNMENT}"
                    ))
                })?,
        };
        Ok((self.at as u64).next_multiple_of(alignment))
    }
}

/// Reads a header; without `tensors` up to the table of tensors.
///
/// # Errors
/// [`EngineError::NotAModel`], [`EngineError::GgufVersion`], [`EngineError::GgufTruncated`],
/// [`EngineError::GgufMalformed`] and [`EngineError::TensorType`].
pub(super) fn read(origin: &str, bytes: &[u8], tensors: bool) -> Result<Header, EngineError> {
    let mut reader = Reader { origin, bytes, at: 0, array_elements: 0 };
    let version_error = |found: String| EngineError::GgufVersion { path: origin.to_owned(), found };
    if !bytes.is_empty() && !bytes.starts_with(&MAGIC[..bytes.len().min(4)]) {
        if bytes.starts_with(b"FUGG") {
            return Err(version_error("in big-endian order".to_owned()));
        }
        return Err(EngineError::NotAModel {
            path: origin.to_owned(),
            reason: "the file does not start with the GGUF magic".to_owned(),
        });
    }
    reader.take(4, "the magic number")?;
    let version = reader.u32("the version")?;
    if version.swap_bytes() < 16 && version != 0 {
        return Err(version_error("in big-endian order".to_owned()));
    }
    if !(2..=3).contains(&version) {
        return Err(version_error(format!("version {version}")));
    }
    let tensor_count = reader.u64("the number of tensors")?;
    let metadata_count = reader.u64("the number of metadata entries")?;
    let metadata = reader.metadata(metadata_count)?;
    let tensors = reader.tensors(if tensors { tensor_count } else { 0 })?;
    let data_start = reader.data_start(&metadata)?;
    Ok(Header { metadata, tensors, data_start })
}
