//! JSON as it stands in the document: duplicate keys and key order are kept.
//!
//! `serde_json::Value` keeps the last of two equal keys, and a signature would then cover a value
//! that no reader of the text expects. Nesting is bounded by `serde_json`.

use serde::de::{Deserialize, Deserializer, MapAccess, SeqAccess, Visitor};
use std::fmt;

/// A JSON value.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Json {
    Null,
    Bool(bool),
    Unsigned(u64),
    Negative(i64),
    Float(f64),
    String(String),
    Array(Vec<Json>),
    Object(Vec<(String, Json)>),
}

impl Json {
    /// What it is, for messages.
    pub(crate) fn kind(&self) -> &'static str {
        match self {
            Json::Null => "null",
            Json::Bool(_) => "a boolean",
            Json::Unsigned(_) | Json::Negative(_) | Json::Float(_) => "a number",
            Json::String(_) => "a string",
            Json::Array(_) => "an array",
            Json::Object(_) => "an object",
        }
    }
}

impl<'de> Deserialize<'de> for Json {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Json, D::Error> {
        deserializer.deserialize_any(JsonVisitor)
    }
}

struct JsonVisitor;

impl<'de> Visitor<'de> for JsonVisitor {
    type Value = Json;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a JSON value")
    }

    fn visit_unit<E>(self) -> Result<Json, E> {
        Ok(Json::Null)
    }

    fn visit_bool<E>(self, x: bool) -> Result<Json, E> {
        Ok(Json::Bool(x))
    }

    fn visit_u64<E>(self, x: u64) -> Result<Json, E> {
        Ok(Json::Unsigned(x))
    }

    fn visit_i64<E>(self, x: i64) -> Result<Json, E> {
        Ok(u64::try_from(x).map_or(Json::Negative(x), Json::Unsigned))
    }

    fn visit_f64<E>(self, x: f64) -> Result<Json, E> {
        Ok(Json::Float(x))
    }

    fn visit_str<E>(self, x: &str) -> Result<Json, E> {
        Ok(Json::String(x.to_owned()))
    }

    fn visit_string<E>(self, x: String) -> Result<Json, E> {
        Ok(Json::String(x))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<Json, A::Error> {
        let mut items = Vec::new();
        while let Some(item) = seq.next_element()? {
            items.push(item);
        }
        Ok(Json::Array(items))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Json, A::Error> {
        let mut entries = Vec::new();
        while let Some(entry) = map.next_entry()? {
            entries.push(entry);
        }
        Ok(Json::Object(entries))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn duplicate_keys_survive_in_order() {
        let json: Json = serde_json::from_str(r#"{"b":1,"a":-1,"b":2.5}"#).unwrap();
        let Json::Object(entries) = json else { panic!("an object") };
        assert_eq!(entries[0], ("b".to_owned(), Json::Unsigned(1)));
        assert_eq!(entries[1], ("a".to_owned(), Json::Negative(-1)));
        assert_eq!(entries[2], ("b".to_owned(), Json::Float(2.5)));
    }

    #[test]
    fn deep_nesting_is_an_error_not_a_stack_overflow() {
        assert!(serde_json::from_str::<Json>(&"[".repeat(100_000)).is_err());
    }
}
