use std::collections::HashMap;

/// The metadata of a GGUF file by key.
pub type Metadata = HashMap<String, Value>;

/// A value of a GGUF file's metadata.
#[derive(Debug, Clone, PartialEq)]
#[allow(missing_docs)] // The names say it all.
pub enum Value {
    U8(u8),
    I8(i8),
    U16(u16),
    I16(i16),
    U32(u32),
    I32(i32),
    U64(u64),
    I64(i64),
    F32(f32),
    F64(f64),
    Bool(bool),
    String(String),
    /// Values of one type.
    Array(Vec<Value>),
}

impl Value {
    /// The number, if it is an integer that `i64` holds.
    pub fn as_i64(&self) -> Option<i64> {
        match *self {
            Value::U8(n) => Some(n.into()),
            Value::I8(n) => Some(n.into()),
            Value::U16(n) => Some(n.into()),
            Value::I16(n) => Some(n.into()),
            Value::U32(n) => Some(n.into()),
            Value::I32(n) => Some(n.into()),
            Value::U64(n) => i64::try_from(n).ok(),
            Value::I64(n) => Some(n),
            _ => None,
        }
    }

    /// The text, if it is one.
    pub fn as_str(&self) -> Option<&str> {
        match self {
            Value::String(text) => Some(text),
            _ => None,
        }
    }

    /// The values, if it is an array.
    pub fn as_array(&self) -> Option<&[Value]> {
        match self {
            Value::Array(values) => Some(values),
            _ => None,
        }
    }

    /// The number that stands for its type in a file.
    pub(super) fn type_id(&self) -> u32 {
        match self {
            Value::U8(_) => 0,
            Value::I8(_) => 1,
            Value::U16(_) => 2,
            Value::I16(_) => 3,
            Value::U32(_) => 4,
            Value::I32(_) => 5,
            Value::F32(_) => 6,
            Value::Bool(_) => 7,
            Value::String(_) => 8,
            Value::Array(_) => 9,
            Value::U64(_) => 10,
            Value::I64(_) => 11,
            Value::F64(_) => 12,
        }
    }
}
