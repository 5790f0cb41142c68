use std::io::{self, Write};

use ruvllm_abi::DType;

use super::header::{DEFAULT_ALIGNMENT, MAGIC, TENSOR_TYPES};
use super::value::Value;

/// A tensor as it lies in a file.
#[derive(Debug, Clone, Copy)]
pub struct TensorView<'a> {
    /// Its name.
    pub name: &'a str,
    /// The type of its elements.
    pub dtype: DType,
    /// Outermost dimension first.
    pub shape: &'a [usize],
    /// Its rows, one after the other, as long as type and shape say.
    pub bytes: &'a [u8],
}

fn invalid(reason: String) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidInput, reason)
}

/// Writes a GGUF file of version 3, with tensors in the order given and aligned to 32 bytes, which is what
/// a file without `general.alignment` means.
///
/// # Errors
/// What `out` gives; [`InvalidInput`](io::ErrorKind::InvalidInput) for an array of several types, a type of
/// elements that GGUF has not, and bytes that are not as many as type and shape say.
pub fn write<'a>(
    out: &mut impl Write,
    metadata: impl ExactSizeIterator<Item = (&'a str, &'a Value)>,
    tensors: &[TensorView<'_>],
) -> io::Result<()> {
    let mut header = MAGIC.to_vec();
    header.extend(3u32.to_le_bytes());
    header.extend((tensors.len() as u64).to_le_bytes());
    header.extend((metadata.len() as u64).to_le_bytes());
    for (key, value) in metadata {
        push_text(&mut header, key);
        header.extend(value.type_id().to_le_bytes());
        push_value(&mut header, key, value)?;
    }
    let mut offset = 0u64;
    for TensorView { name, dtype, shape, bytes } in tensors {
        let known = TENSOR_TYPES.iter().find(|(.., known)| *known == Some(*dtype));
        let (type_id, ..) =
            known.ok_or_else(|| invalid(format!("tensor `{name}` is of type {dtype}")))?;
        let elements = shape.iter().try_fold(1usize, |all, dim| all.checked_mul(*dim));
        if elements.and_then(|elements| dtype.bytes_for(elements)) != Some(bytes.len()) {
            return Err(invalid(format!(
                "tensor `{name}` of {dtype} {shape:?} does not take {} bytes",
                bytes.len()
            )));
        }
        push_text(&mut header, name);
        header.extend((shape.len() as u32).to_le_bytes());
        shape.iter().rev().for_each(|dim| header.extend((*dim as u64).to_le_bytes()));
        header.extend(type_id.to_le_bytes());
        header.extend(offset.to_le_bytes());
        offset = (offset + bytes.len() as u64).next_multiple_of(DEFAULT_ALIGNMENT);
    }
    write_padded(out, &header)?;
    tensors.iter().try_for_each(|tensor| write_padded(out, tensor.bytes))
}

/// Writes bytes and zeros up to where the next tensor may begin.
fn write_padded(out: &mut impl Write, bytes: &[u8]) -> io::Result<()> {
    const ALIGNMENT: usize = DEFAULT_ALIGNMENT as usize;
    let rest = bytes.len().next_multiple_of(ALIGNMENT) - bytes.len();
    out.write_all(bytes)?;
    out.write_all(&[0; ALIGNMENT][..rest])
}

fn push_text(out: &mut Vec<u8>, text: &str) {
    out.extend((text.len() as u64).to_le_bytes());
    out.extend(text.as_bytes());
}

fn push_value(out: &mut Vec<u8>, key: &str, value: &Value) -> io::Result<()> {
    match value {
        Value::U8(n) => out.push(*n),
        Value::I8(n) => out.extend(n.to_le_bytes()),
        Value::U16(n) => out.extend(n.to_le_bytes()),
        Value::I16(n) => out.extend(n.to_le_bytes()),
        Value::U32(n) => out.extend(n.to_le_bytes()),
        Value::I32(n) => out.extend(n.to_le_bytes()),
        Value::U64(n) => out.extend(n.to_le_bytes()),
        Value::I64(n) => out.extend(n.to_le_bytes()),
        Value::F32(x) => out.extend(x.to_le_bytes()),
        Value::F64(x) => out.extend(x.to_le_bytes()),
        Value::Bool(yes) => out.push((*yes).into()),
        Value::String(text) => push_text(out, text),
        Value::Array(values) => {
            // An empty array may be of any type.
            let type_id = values.first().map_or(Value::U32(0).type_id(), Value::type_id);
            if values.iter().any(|value| value.type_id() != type_id) {
                return Err(invalid(format!("`{key}` has values of several types")));
            }
            out.extend(type_id.to_le_bytes());
            out.extend((values.len() as u64).to_le_bytes());
            values.iter().try_for_each(|value| push_value(out, key, value))?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::gguf::header;

    fn written(metadata: &[(&str, Value)], tensors: &[TensorView<'_>]) -> io::Result<Vec<u8>> {
        let mut bytes = Vec::new();
        let metadata: Vec<_> = metadata.iter().map(|(key, value)| (*key, value)).collect();
        write(&mut bytes, metadata.into_iter(), tensors)?;
        Ok(bytes)
    }

    #[test]
    fn what_is_written_is_read_again() {
        let metadata = [
            ("a", Value::U8(255)),
            ("b", Value::I8(-1)),
            ("c", Value::U16(65_535)),
            ("d", Value::I16(-2)),
            ("e", Value::U32(u32::MAX)),
            ("f", Value::I32(-3)),
            ("g", Value::U64(u64::MAX)),
            ("h", Value::I64(i64::MIN)),
            ("i", Value::F32(0.1)),
            ("j", Value::F64(0.1)),
            ("k", Value::Bool(true)),
            ("l", Value::String("Zoë".to_owned())),
            ("m", Value::Array(vec![])),
            ("n", Value::Array(vec![Value::Array(vec![Value::U32(1)]), Value::Array(vec![])])),
        ];
        let bytes = [7; 40];
        let tensor = |name, shape, len: usize| TensorView {
            name,
            dtype: DType::F32,
            shape,
            bytes: &bytes[..len],
        };
        let file = written(&metadata, &[tensor("x", &[2, 5], 40), tensor("y", &[1], 4)]).unwrap();

        let header = header::read("file", &file, true).unwrap();
        assert_eq!(header.metadata.len(), metadata.len());
        for (key, value) in metadata {
            assert_eq!(header.metadata[key], value, "{key}");
        }
        let [x, y] = &header.tensors[..] else { panic!("{:?}", header.tensors) };
        assert_eq!((x.name.as_str(), &x.shape[..], x.offset), ("x", &[2, 5][..], 0));
        assert_eq!((y.name.as_str(), &y.shape[..], y.offset), ("y", &[1][..], 64));
        assert_eq!(header.data_start % DEFAULT_ALIGNMENT, 0);
        assert_eq!(header.data_start + 96, file.len() as u64);
    }

    #[test]
    fn what_no_file_can_hold_is_refused() {
        let mixed = Value::Array(vec![Value::U32(1), Value::Bool(true)]);
        assert!(written(&[("a", mixed)], &[]).unwrap_err().to_string().contains("several types"));
        let short = TensorView { name: "x", dtype: DType::F32, shape: &[2], bytes: &[0; 4] };
        assert!(written(&[], &[short]).unwrap_err().to_string().contains("4 bytes"));
        let integers = TensorView { name: "x", dtype: DType::U8, shape: &[4], bytes: &[0; 4] };
        assert!(written(&[], &[integers]).unwrap_err().to_string().contains("of type u8"));
    }
}
