//! The fields of a request: taken one by one by name, so that every refusal names its parameter, and
//! what is left must be known to be harmless.

use serde::de::DeserializeOwned;
use serde_json::{Map, Value};

use crate::bodies::Held;
use crate::error::ApiError;

/// The fields of an object of a request that were not taken yet. Those of the whole request are kept for as
/// long as anything of its body is.
pub(crate) struct Fields {
    /// Where in the request the object is; empty for the whole.
    at: String,
    fields: Map<String, Value>,
    /// The bytes of the whole request.
    _held: Option<Held>,
}

/// Fields of OpenAI's API that are accepted without being acted upon, with the reason why that is
/// right. A field that is neither taken nor listed is refused: an answer that silently lacks what was
/// asked for is worse than none.
const HARMLESS: &[Harmless] = &[
    Harmless { name: "user", only: None, why: "shares of the machine go by API key" },
    Harmless { name: "safety_identifier", only: None, why: "there is no abuse detection" },
    Harmless { name: "metadata", only: None, why: "answers are not stored" },
    Harmless { name: "store", only: Some(is_false), why: "answers are not stored" },
    Harmless { name: "service_tier", only: None, why: "there is one tier" },
    Harmless { name: "prompt_cache_key", only: None, why: "the prefix cache finds by content" },
    Harmless { name: "prompt_cache_retention", only: None, why: "the memory budget decides" },
    Harmless { name: "prediction", only: None, why: "it changes speed, not the answer" },
    Harmless { name: "modalities", only: Some(is_text), why: "answers are text" },
    Harmless { name: "echo", only: Some(is_false), why: "only /v1/completions repeats prompts" },
    Harmless { name: "best_of", only: Some(is_one), why: "every answer is returned; use `n`" },
    Harmless { name: "dimensions", only: Some(never), why: "only embeddings have them" },
    Harmless { name: "encoding_format", only: Some(never), why: "only embeddings have one" },
    Harmless { name: "cache_control", only: None, why: "the prefix cache finds by content" },
    Harmless { name: "previous_response_id", only: Some(never), why: STATELESS },
    Harmless { name: "conversation", only: Some(never), why: STATELESS },
    Harmless { name: "background", only: Some(is_false), why: "answers are not stored" },
    Harmless { name: "truncation", only: Some(is_disabled), why: "long prompts are refused" },
    Harmless { name: "include", only: Some(is_empty), why: "answers have nothing more" },
    Harmless { name: "annotations", only: Some(is_empty), why: "models are shown texts alone" },
    Harmless { name: "functions", only: Some(never), why: "they are superseded; use `tools`" },
    Harmless { name: "function_call", only: Some(never), why: "superseded; use `tool_choice`" },
];

const STATELESS: &str = "there are no sessions; send the whole conversation as `input`";

struct Harmless {
    name: &'static str,
    /// The values that change nothing; all when absent.
    only: Option<fn(&Value) -> bool>,
    why: &'static str,
}

fn is_false(value: &Value) -> bool {
    value == false
}

fn is_one(value: &Value) -> bool {
    value == 1
}

fn is_disabled(value: &Value) -> bool {
    value == "disabled"
}

fn is_text(value: &Value) -> bool {
    value.as_array().is_some_and(|kinds| kinds.iter().all(|kind| kind == "text"))
}

fn is_empty(value: &Value) -> bool {
    value.as_array().is_some_and(Vec::is_empty)
}

fn never(_: &Value) -> bool {
    false
}

impl Fields {
    /// Those of a request.
    pub(crate) fn new(fields: Map<String, Value>, held: Held) -> Fields {
        Fields { _held: Some(held), ..Fields::within(String::new(), fields) }
    }

    /// Those of an object within a request.
    pub(crate) fn within(at: String, fields: Map<String, Value>) -> Fields {
        Fields { at, fields, _held: None }
    }

    /// The full name of a field.
    pub(crate) fn path(&self, name: &str) -> String {
        if self.at.is_empty() { name.to_owned() } else { format!("{}.{name}", self.at) }
    }

    /// Takes a field; `None` where it is absent or null.
    pub(crate) fn take<T: DeserializeOwned>(&mut self, name: &str) -> Result<Option<T>, ApiError> {
        match self.fields.remove(name) {
            None | Some(Value::Null) => Ok(None),
            Some(value) => parse(&self.path(name), value).map(Some),
        }
    }

    /// A field that is not taken yet; null where it is absent.
    pub(crate) fn peek(&self, name: &str) -> Value {
        self.fields.get(name).cloned().unwrap_or_default()
    }

    /// Takes a field that must be there.
    pub(crate) fn require<T: DeserializeOwned>(&mut self, name: &str) -> Result<T, ApiError> {
        let value = self.take(name)?;
        value.ok_or_else(|| {
            let param = self.path(name);
            ApiError::bad_request("missing_required_parameter", format!("`{param}` is missing"))
                .of(param)
        })
    }

    /// Takes a number that must lie in a range.
    pub(crate) fn number(
        &mut self,
        name: &str,
        range: std::ops::RangeInclusive<f32>,
    ) -> Result<Option<f32>, ApiError> {
        match self.take::<f32>(name)? {
            Some(number) if !range.contains(&number) => {
                let (least, most) = (range.start(), range.end());
                Err(ApiError::invalid(name, format!("`{name}` must be from {least} to {most}")))
            }
            number => Ok(number),
        }
    }

    /// Refuses what is left unless it is harmless.
    pub(crate) fn finish(&self) -> Result<(), ApiError> {
        for (name, value) in &self.fields {
            let param = self.path(name);
            let known = HARMLESS.iter().find(|field| field.name == name.as_str());
            match known {
                _ if value.is_null() => {}
                Some(Harmless { only: None, .. }) => {}
                Some(Harmless { only: Some(same), .. }) if same(value) => {}
                Some(Harmless { why, .. }) => {
                    let message = format!("`{param}` is not supported with this value: {why}");
                    return Err(ApiError::bad_request("unsupported_parameter", message).of(param));
                }
                None => {
                    let message = format!("`{param}` is not supported");
                    return Err(ApiError::bad_request("unknown_parameter", message).of(param));
                }
            }
        }
        Ok(())
    }
}

/// Reads a value as `T`; an error names the place in it.
pub(crate) fn parse<T: DeserializeOwned>(name: &str, value: Value) -> Result<T, ApiError> {
    serde_path_to_error::deserialize(value).map_err(|error| {
        let at = error.path().to_string();
        let param = match at.as_str() {
            "." => name.to_owned(),
            index if index.starts_with('[') => format!("{name}{index}"),
            inner => format!("{name}.{inner}"),
        };
        let message = format!("`{param}`: {}", error.inner());
        ApiError::bad_request("invalid_type", message).of(param)
    })
}
