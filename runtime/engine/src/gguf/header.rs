//! A walk over a GGUF header that finds every fault before anything is built from it.
//!
//! The parser behind [`super::GgufFile`] answers faults with one general error and trusts the
//! alignment it reads; this walk names the field or tensor instead and bounds what a small file
//! can make the parser allocate. It keeps nothing but positions.

use std::collections::HashSet;

use crate::error::EngineError;

/// The most array elements that all metadata together may hold; vocabularies have below a million.
const MAX_ARRAY_ELEMENTS: u64 = 1 << 24;
const MAX_ARRAY_DEPTH: usize = 4;
const MAX_DIMS: u32 = 4;

const TYPE_STRING: u32 = 8;
const TYPE_ARRAY: u32 = 9;

/// Where the parts of a header lie.
#[derive(Debug)]
pub(super) struct Layout {
    /// First byte after the metadata.
    pub(super) metadata_end: usize,
}

/// Byte position of the number of tensors, a `u64`.
pub(super) const TENSOR_COUNT_AT: usize = 8;

struct Walk<'a> {
    origin: &'a str,
    bytes: &'a [u8],
    at: usize,
    array_elements: u64,
}

impl<'a> Walk<'a> {
    fn malformed(&self, reason: String) -> EngineError {
        EngineError::GgufMalformed { path: self.origin.to_owned(), reason }
    }

    fn take(&mut self, len: u64, what: &str) -> Result<&'a [u8], EngineError> {
        let left = (self.bytes.len() - self.at) as u64;
        if len > left {
            return Err(EngineError::GgufTruncated {
                path: self.origin.to_owned(),
                what: what.to_owned(),
                missing: len - left,
            });
        }
        let taken = &self.bytes[self.at..self.at + len as usize];
        self.at += len as usize;
        Ok(taken)
    }

    fn u32(&mut self, what: &str) -> Result<u32, EngineError> {
        let mut word = [0; 4];
        word.copy_from_slice(self.take(4, what)?);
        Ok(u32::from_le_bytes(word))
    }

    fn u64(&mut self, what: &str) -> Result<u64, EngineError> {
        let mut word = [0; 8];
        word.copy_from_slice(self.take(8, what)?);
        Ok(u64::from_le_bytes(word))
    }

    fn string(&mut self, what: &str) -> Result<&'a [u8], EngineError> {
        let len = self.u64(what)?;
        self.take(len, what)
    }

    /// A string as the parser reads it: without the zeros that some writers end strings with.
    fn name(&mut self, what: &str) -> Result<&'a [u8], EngineError> {
        let name = self.string(what)?;
        let end = name.iter().rposition(|&byte| byte != 0).map_or(0, |last| last + 1);
        Ok(&name[..end])
    }

    fn value(&mut self, ty: u32, key: &str, depth: usize) -> Result<(), EngineError> {
        match ty {
            TYPE_STRING => self.string(key).map(|_| ()),
            TYPE_ARRAY => {
                if depth == MAX_ARRAY_DEPTH {
                    return Err(self.malformed(format!("`{key}` nests arrays too deeply")));
                }
                let inner = self.u32(key)?;
                let len = self.u64(key)?;
                self.array_elements = self.array_elements.saturating_add(len);
                if self.array_elements > MAX_ARRAY_ELEMENTS {
                    return Err(self.malformed(format!(
                        "the arrays up to `{key}` hold more than {MAX_ARRAY_ELEMENTS} elements"
                    )));
                }
                if let Some(size) = scalar_size(inner) {
                    return self.take(len * size, key).map(|_| ());
                }
                for _ in 0..len {
                    self.value(inner, key, depth + 1)?;
                }
                Ok(())
            }
            _ => match scalar_size(ty) {
                Some(size) => self.take(size, key).map(|_| ()),
                None => Err(self.malformed(format!("`{key}` has the unknown value type {ty}"))),
            },
        }
    }
}

const fn scalar_size(ty: u32) -> Option<u64> {
    match ty {
        0 | 1 | 7 => Some(1),
        2 | 3 => Some(2),
        4..=6 => Some(4),
        10..=12 => Some(8),
        _ => None,
    }
}

/// The name of a GGML tensor type, and whether the engine computes with it.
fn tensor_type(id: u32) -> (String, bool) {
    let (name, supported) = match id {
        0 => ("F32", true),
        1 => ("F16", true),
        2 => ("Q4_0", true),
        3 => ("Q4_1", true),
        6 => ("Q5_0", true),
        7 => ("Q5_1", true),
        8 => ("Q8_0", true),
        9 => ("Q8_1", false),
        10 => ("Q2_K", false),
        11 => ("Q3_K", false),
        12 => ("Q4_K", true),
        13 => ("Q5_K", true),
        14 => ("Q6_K", true),
        15 => ("Q8_K", false),
        16 => ("IQ2_XXS", false),
        17 => ("IQ2_XS", false),
        18 => ("IQ3_XXS", false),
        19 => ("IQ1_S", false),
        20 => ("IQ4_NL", false),
        21 => ("IQ3_S", false),
        22 => ("IQ2_S", false),
        23 => ("IQ4_XS", false),
        24 => ("I8", false),
        25 => ("I16", false),
        26 => ("I32", false),
        27 => ("I64", false),
        28 => ("F64", false),
        29 => ("IQ1_M", false),
        30 => ("BF16", true),
        34 => ("TQ1_0", false),
        35 => ("TQ2_0", false),
        39 => ("MXFP4", false),
        other => return (format!("number {other}"), false),
    };
    (name.to_owned(), supported)
}

/// Checks a header; with `tensors` also the table of tensors.
///
/// # Errors
/// [`EngineError::NotAModel`], [`EngineError::GgufVersion`], [`EngineError::GgufTruncated`],
/// [`EngineError::GgufMalformed`] and [`EngineError::TensorType`].
pub(super) fn check(origin: &str, bytes: &[u8], tensors: bool) -> Result<Layout, EngineError> {
    let mut walk = Walk { origin, bytes, at: 0, array_elements: 0 };
    let version_error = |found: String| EngineError::GgufVersion { path: origin.to_owned(), found };
    if !bytes.is_empty() && !bytes.starts_with(&b"GGUF"[..bytes.len().min(4)]) {
        if bytes.starts_with(b"FUGG") {
            return Err(version_error("in big-endian order".to_owned()));
        }
        return Err(EngineError::NotAModel {
            path: origin.to_owned(),
            reason: "the file does not start with the GGUF magic".to_owned(),
        });
    }
    walk.take(4, "the magic number")?;
    let version = walk.u32("the version")?;
    if version.swap_bytes() < 16 && version != 0 {
        return Err(version_error("in big-endian order".to_owned()));
    }
    if !(2..=3).contains(&version) {
        return Err(version_error(format!("version {version}")));
    }
    let tensor_count = walk.u64("the number of tensors")?;
    let metadata_count = walk.u64("the number of metadata entries")?;

    let mut keys = HashSet::new();
    for _ in 0..metadata_count {
        let key = walk.name("a metadata key")?;
        let key_text = String::from_utf8_lossy(key);
        if !keys.insert(key) {
            return Err(walk.malformed(format!("the metadata key `{key_text}` occurs twice")));
        }
        let ty = walk.u32(&key_text)?;
        let start = walk.at;
        walk.value(ty, &key_text, 0)?;
        if key == b"general.alignment" {
            check_alignment(&walk, &bytes[start..walk.at])?;
        }
    }
    let metadata_end = walk.at;
    if tensors {
        check_tensors(&mut walk, tensor_count)?;
    }
    Ok(Layout { metadata_end })
}

fn check_alignment(walk: &Walk<'_>, value: &[u8]) -> Result<(), EngineError> {
    let mut word = [0; 8];
    let len = value.len().min(8);
    word[..len].copy_from_slice(&value[..len]);
    let alignment = u64::from_le_bytes(word);
    if alignment.is_power_of_two() && alignment <= 1 << 20 {
        return Ok(());
    }
    Err(walk.malformed(format!("`general.alignment` is {alignment}, not a power of two")))
}

fn check_tensors(walk: &mut Walk<'_>, count: u64) -> Result<(), EngineError> {
    let mut names = HashSet::new();
    for _ in 0..count {
        let name = walk.name("a tensor's name")?;
        let text = String::from_utf8_lossy(name);
        let what = format!("the entry of tensor `{text}`");
        if !names.insert(name) {
            return Err(walk.malformed(format!("tensor `{text}` occurs twice")));
        }
        let dims = walk.u32(&what)?;
        if dims == 0 || dims > MAX_DIMS {
            return Err(walk.malformed(format!("tensor `{text}` has {dims} dimensions")));
        }
        for _ in 0..dims {
            walk.u64(&what)?;
        }
        let (type_name, supported) = tensor_type(walk.u32(&what)?);
        if !supported {
            return Err(EngineError::TensorType {
                path: walk.origin.to_owned(),
                tensor: text.into_owned(),
                found: type_name,
            });
        }
        walk.u64(&what)?;
    }
    Ok(())
}
