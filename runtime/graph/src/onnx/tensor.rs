//! A `TensorProto`: that its data is in the file, and as long as its shape says.

use ruvllm_manifest::{GraphType, escape_untrusted};

use super::walk::MAX_RANK;
use super::wire::{Fields, Malformed, Value};

/// The most numbers of a tensor that shapes are made of.
const MAX_SHAPE_NUMBERS: u64 = 64;

/// A tensor of the file.
pub(super) struct Tensor<'a> {
    pub(super) name: &'a str,
    /// Bytes of its elements.
    pub(super) data_bytes: u64,
    /// Its elements, where they are a few whole numbers.
    pub(super) numbers: Option<Vec<i64>>,
    /// What speaks against it: a code and a sentence.
    pub(super) objection: Option<(&'static str, String)>,
}

/// The bytes of an element of a type as the format numbers them; `None` for texts, complex numbers, and
/// types of less than a byte.
fn element_bytes(ty: i64) -> Option<u64> {
    match ty {
        2 | 3 | 9 => Some(1),
        4 | 5 | 10 | 16 => Some(2),
        1 | 6 | 12 => Some(4),
        7 | 11 | 13 => Some(8),
        _ => None,
    }
}

/// The type of inputs and outputs that packs have a name for.
pub(super) fn graph_type(ty: i64) -> Option<GraphType> {
    match ty {
        1 => Some(GraphType::F32),
        2 => Some(GraphType::U8),
        6 => Some(GraphType::I32),
        7 => Some(GraphType::I64),
        _ => None,
    }
}

/// How many numbers a repeated field holds, each on its own or packed.
fn count(value: Value<'_>) -> Result<u64, Malformed> {
    Ok(match value {
        Value::Varint(_) => 1,
        // A number ends with the byte whose highest bit is not set.
        Value::Bytes(packed) => packed.iter().filter(|byte| **byte < 0x80).count() as u64,
        _ => return Err(Malformed("something else stands where a number should")),
    })
}

fn count_wide(value: Value<'_>, bytes: usize) -> Result<u64, Malformed> {
    match value {
        Value::Four if bytes == 4 => Ok(1),
        Value::Eight if bytes == 8 => Ok(1),
        Value::Bytes(packed) if packed.len().is_multiple_of(bytes) => {
            Ok((packed.len() / bytes) as u64)
        }
        _ => Err(Malformed("something else stands where a number should")),
    }
}

impl<'a> Tensor<'a> {
    pub(super) fn read(bytes: &'a [u8]) -> Result<Self, Malformed> {
        let (mut name, mut ty, mut dims) = ("", 0, Vec::new());
        let (mut raw, mut listed, mut list) = (None, 0u64, Vec::new());
        let (mut external, mut place) = (false, "");
        let mut fields = Fields::of(bytes);
        while let Some((number, value)) = fields.next()? {
            match number {
                1 => value.numbers(&mut dims, MAX_RANK)?,
                2 => ty = value.number()?,
                3 => return Err(Malformed("a tensor comes in segments")),
                4 => listed += count_wide(value, 4)?,
                5 | 7 => {
                    let more = count(value)?;
                    listed += more;
                    if listed <= MAX_SHAPE_NUMBERS {
                        value.numbers(&mut list, MAX_SHAPE_NUMBERS as usize)?;
                    }
                }
                10 => listed += count_wide(value, 8)?,
                11 => listed += count(value)?,
                8 => name = value.text()?,
                9 => raw = Some(value.bytes()?),
                13 => {
                    external = true;
                    place = location(value.bytes()?)?.unwrap_or(place);
                }
                14 => external |= value.number()? != 0,
                _ => {}
            }
        }
        let mut tensor = Tensor { name, data_bytes: 0, numbers: None, objection: None };
        let mut object = |code, what| tensor.objection = Some((code, what));
        if external {
            let shown = escape_untrusted(&place.chars().take(128).collect::<String>());
            let what = format!(
                "its data is in another file, `{shown}`, which is never read: save the model with its weights in \
                 one file"
            );
            object("onnx_external_data", what);
            return Ok(tensor);
        }
        let Some(size) = element_bytes(ty) else {
            object("onnx_type", format!("elements of type {ty} are not supported"));
            return Ok(tensor);
        };
        let elements =
            dims.iter().try_fold(1u64, |n, extent| n.checked_mul(u64::try_from(*extent).ok()?));
        let bytes = elements.and_then(|elements| elements.checked_mul(size));
        let has = match raw {
            Some(raw) => Some(raw.len() as u64),
            None => listed.checked_mul(size),
        };
        match bytes {
            None => object("onnx_tensor_shape", format!("no tensor has the shape {dims:?}")),
            Some(bytes) if has == Some(bytes) => {
                tensor.data_bytes = bytes;
                tensor.numbers = whole_numbers(ty, raw, list, elements.unwrap_or(0));
            }
            Some(_) if has == Some(0) => {
                object("onnx_missing_weight", "its data is not in the file".to_owned());
            }
            Some(bytes) => {
                let has = has.unwrap_or(u64::MAX);
                object("onnx_tensor_size", format!("{has} bytes of data for a shape of {bytes}"));
            }
        }
        Ok(tensor)
    }
}

/// The elements, where they are a few of 32 or 64 bits.
fn whole_numbers(ty: i64, raw: Option<&[u8]>, list: Vec<i64>, elements: u64) -> Option<Vec<i64>> {
    if elements > MAX_SHAPE_NUMBERS {
        return None;
    }
    match (ty, raw) {
        (6 | 7, None) => Some(list),
        (6, Some(raw)) => {
            Some(raw.as_chunks().0.iter().map(|b| i32::from_le_bytes(*b).into()).collect())
        }
        (7, Some(raw)) => Some(raw.as_chunks().0.iter().map(|b| i64::from_le_bytes(*b)).collect()),
        _ => None,
    }
}

/// Of an entry of external data, the file that it names.
fn location(bytes: &[u8]) -> Result<Option<&str>, Malformed> {
    let (mut key, mut named) = ("", "");
    let mut fields = Fields::of(bytes);
    while let Some((number, value)) = fields.next()? {
        match number {
            1 => key = value.text()?,
            2 => named = value.text()?,
            _ => {}
        }
    }
    Ok((key == "location").then_some(named))
}
