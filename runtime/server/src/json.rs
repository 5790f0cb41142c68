//! JSON in which no object has a key twice.
//!
//! `serde_json` keeps the last of two equal keys; whoever looked at a request before might have gone by the
//! first.

use std::fmt;

use serde::de::{Deserialize, Deserializer, Error, MapAccess, SeqAccess, Visitor};
use serde_json::{Map, Number, Value};

/// The members of an object. Nesting is bounded by `serde_json`.
///
/// # Errors
/// What the text is instead, or which key an object in it has twice.
pub(crate) fn object(bytes: &[u8]) -> serde_json::Result<Map<String, Value>> {
    match serde_json::from_slice(bytes)? {
        Unique(Value::Object(members)) => Ok(members),
        Unique(_) => Err(serde_json::Error::custom("it is another value")),
    }
}

/// The most memory that the values of a text take beside its bytes: `[0],` becomes a hundred times as long.
pub(crate) fn bytes_of_values(text: &[u8]) -> usize {
    // A vector that grows has room for twice as much as it holds, and for four at first.
    const VALUE: usize = 2 * size_of::<Value>();
    const KEY: usize = 2 * (size_of::<String>() + 2 * size_of::<usize>());
    let (mut bytes, mut quoted, mut escaped) = (0_usize, false, false);
    for &byte in text {
        if quoted {
            (quoted, escaped) = (escaped || byte != b'"', !escaped && byte == b'\\');
            continue;
        }
        quoted = byte == b'"';
        bytes = bytes.saturating_add(match byte {
            b'[' | b'{' => 4 * VALUE,
            b',' => VALUE,
            b':' => KEY,
            _ => 0,
        });
    }
    bytes
}

/// A value whose objects have each key once.
struct Unique(Value);

impl<'de> Deserialize<'de> for Unique {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(UniqueVisitor).map(Unique)
    }
}

struct UniqueVisitor;

impl<'de> Visitor<'de> for UniqueVisitor {
    type Value = Value;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a JSON value")
    }

    fn visit_unit<E>(self) -> Result<Value, E> {
        Ok(Value::Null)
    }

    fn visit_bool<E>(self, x: bool) -> Result<Value, E> {
        Ok(x.into())
    }

    fn visit_u64<E>(self, x: u64) -> Result<Value, E> {
        Ok(x.into())
    }

    fn visit_i64<E>(self, x: i64) -> Result<Value, E> {
        Ok(x.into())
    }

    fn visit_f64<E>(self, x: f64) -> Result<Value, E> {
        Ok(Number::from_f64(x).map_or(Value::Null, Value::Number))
    }

    fn visit_str<E>(self, x: &str) -> Result<Value, E> {
        Ok(x.into())
    }

    fn visit_string<E>(self, x: String) -> Result<Value, E> {
        Ok(x.into())
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut values: A) -> Result<Value, A::Error> {
        let mut array = Vec::new();
        while let Some(Unique(value)) = values.next_element()? {
            array.push(value);
        }
        Ok(array.into())
    }

    fn visit_map<A: MapAccess<'de>>(self, mut members: A) -> Result<Value, A::Error> {
        let mut object = Map::new();
        while let Some(key) = members.next_key::<String>()? {
            if object.contains_key(&key) {
                return Err(A::Error::custom(format!("an object has the key {key:?} twice")));
            }
            let Unique(value) = members.next_value()?;
            object.insert(key, value);
        }
        Ok(object.into())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_has_no_key_twice_is_read_as_it_stands() {
        let text =
            r#"{"b": [1, -2, 1.5, null, true, "x"], "a": {"b": {}, "c": 18446744073709551615}}"#;
        let read = Value::Object(object(text.as_bytes()).unwrap());
        assert_eq!(read, serde_json::from_str::<Value>(text).unwrap());
    }

    #[test]
    fn what_values_take_follows_from_their_number_and_not_from_texts() {
        let of = |text: &str| bytes_of_values(text.as_bytes());
        assert_eq!(of(r#""[{,:,\"[{,:\\""#), 0);
        assert_eq!(of(r#"["\\", 1]"#), of("[") + of(","));
        let many = format!("[{}0]", "[0],".repeat(1000));
        assert!(of(&many) > 60 * many.len(), "{}", of(&many));
        assert!(of(&format!("{{\"content\": \"{}\"}}", "a, b".repeat(1000))) < 2000);
    }

    #[test]
    fn a_key_that_stands_twice_is_named_however_deep() {
        for text in [r#"{"k": 1, "k": 1}"#, r#"{"a": [{"b": {"k": 1, "c": 2, "\u006b": 3}}]}"#] {
            let error = object(text.as_bytes()).unwrap_err().to_string();
            assert!(error.contains("\"k\" twice"), "{error}");
        }
        assert!(object(b"[]").is_err());
        assert!(object("[".repeat(100_000).as_bytes()).is_err());
    }
}
