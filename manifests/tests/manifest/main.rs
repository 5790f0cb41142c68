//! The manifest format from outside: what is refused and how, the contract of known ops, the
//! gates, and the JSON schema.
#![forbid(unsafe_code)]

mod compat;
mod contract;
mod graphs;
mod rules;
mod schema;

use ruvllm_manifest::{Manifest, ManifestError};
use serde_json::Value;

pub(crate) const EXAMPLE: &str = include_str!("../../schema/example.json");

pub(crate) const GRAPH_EXAMPLE: &str = include_str!("../../schema/graph-example.json");

pub(crate) fn example() -> Value {
    serde_json::from_str(EXAMPLE).unwrap()
}

/// The example with one change.
pub(crate) fn edited(edit: impl FnOnce(&mut Value)) -> Value {
    let mut json = example();
    edit(&mut json);
    json
}

/// `code@location` of everything wrong with the document; empty if it is valid.
pub(crate) fn findings(json: &Value) -> Vec<String> {
    findings_in(json.to_string().as_bytes())
}

pub(crate) fn findings_in(bytes: &[u8]) -> Vec<String> {
    match Manifest::parse(bytes) {
        Ok(_) => Vec::new(),
        Err(ManifestError::Invalid(violations)) => {
            assert!(violations.iter().all(|v| !v.message.is_empty()));
            violations.iter().map(|v| format!("{}@{}", v.code, v.location)).collect()
        }
        Err(other) => vec![other.code().to_owned()],
    }
}
