//! TOML to values and back.

use crate::error::without_values;
use serde::{Serialize, de::DeserializeOwned};

/// Reads a document.
///
/// # Errors
/// What the parser says and where, without the line itself, which may hold what is nobody's business.
pub(crate) fn read<T: DeserializeOwned>(text: &str) -> Result<T, String> {
    toml::from_str(text).map_err(|error| {
        let line = error.span().and_then(|span| text.get(..span.start)).map(|before| {
            let line = before.lines().count().max(1) + usize::from(before.ends_with('\n'));
            format!("line {line}: ")
        });
        format!("{}{}", line.unwrap_or_default(), without_values(error.message()))
    })
}

/// Writes a document.
///
/// # Errors
/// What the encoder says.
pub(crate) fn write<T: Serialize>(document: &T) -> Result<String, String> {
    toml::to_string(document).map_err(|error| error.to_string())
}
