//! GGUF adapters, as llama.cpp writes and reads them.

use std::collections::BTreeMap;
use std::path::Path;

use super::file::{AdapterFile, Factor, Scaling};
use crate::config::Family;
use crate::error::EngineError;
use crate::gguf::{GgufFile, TensorView, Value};
use crate::storage::TensorSource as _;
use crate::tensors::{Naming, Projection};

/// Reads a GGUF adapter of either version of the format.
///
/// # Errors
/// As [`super::Adapter::open`].
pub(super) fn read(path: &Path) -> Result<AdapterFile, EngineError> {
    let file = GgufFile::open(path).map_err(|error| match error {
        EngineError::NotAModel { path, reason } => EngineError::NotAnAdapter { path, reason },
        other => other,
    })?;
    let origin = file.origin().to_owned();
    let text = |key: &str| file.metadata().get(key).and_then(Value::as_str);
    let kind = text("general.type").unwrap_or("model");
    if kind != "adapter" {
        let reason = format!("the file's `general.type` is {kind}, not adapter");
        return Err(EngineError::NotAnAdapter { path: origin, reason });
    }
    let unsupported = |what: String| EngineError::AdapterUnsupported { path: origin.clone(), what };
    let kind = text("adapter.type").unwrap_or("absent");
    if kind != "lora" {
        return Err(unsupported(format!("its `adapter.type` is {kind}")));
    }
    if file.metadata().contains_key("adapter.alora.invocation_tokens") {
        return Err(unsupported("it is an activated LoRA, with invocation tokens".to_owned()));
    }
    let architecture = text("general.architecture").unwrap_or_default();
    let family = Family::of_gguf(architecture)
        .ok_or_else(|| unsupported(format!("its architecture is `{architecture}`")))?;
    let alpha = match file.metadata().get("adapter.lora.alpha") {
        Some(Value::F32(alpha)) if alpha.is_finite() => *alpha,
        other => {
            let reason = format!("its `adapter.lora.alpha` is {other:?}, not a number");
            return Err(EngineError::AdapterDamaged { path: origin, reason });
        }
    };
    let stem = path.file_stem().map(|stem| stem.to_string_lossy().into_owned());
    let name = text("general.name").filter(|name| !name.is_empty()).map(str::to_owned);
    let mut adapter = AdapterFile {
        origin: origin.clone(),
        name: name.or(stem).unwrap_or_default(),
        alpha,
        // The format's "not scaled".
        scaling: if alpha == 0.0 { Scaling::None } else { Scaling::Rank },
        architecture: Some(architecture.to_owned()),
        layout: family.gguf_rope,
        pairs: BTreeMap::new(),
    };
    for TensorView { name, .. } in file.tensors() {
        let (layer, target, factor) = place(name).ok_or_else(|| {
            unsupported(format!("tensor `{name}` is no factor of a layer's projection"))
        })?;
        if let Some(tensor) = file.find(name)? {
            adapter.insert(layer, target, factor, name.to_owned(), tensor);
        }
    }
    Ok(adapter)
}

/// Where a tensor belongs: `blk.N.attn_q.weight.lora_a`, for example.
fn place(name: &str) -> Option<(usize, Projection, Factor)> {
    let (name, factor) = match name.strip_suffix(".lora_a") {
        Some(name) => (name, Factor::A),
        None => (name.strip_suffix(".lora_b")?, Factor::B),
    };
    let (layer, part) = name.strip_prefix("blk.")?.strip_suffix(".weight")?.split_once('.')?;
    Some((layer.parse().ok()?, Projection::named(Naming::Gguf, part)?, factor))
}
