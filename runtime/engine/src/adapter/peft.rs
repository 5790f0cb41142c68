//! Adapters as Hugging Face PEFT saves them: `adapter_config.json` and `adapter_model.safetensors`.

use std::collections::{BTreeMap, HashMap};
use std::path::Path;

use serde_json::{Map, Value};

use super::{AdapterFile, Factor, Scaling};
use crate::config::RopeLayout;
use crate::error::EngineError;
use crate::files::{self, MAX_CONFIG_BYTES};
use crate::hf;
use crate::tensors::{Naming, Projection};

/// Settings under which an adapter is more, or other, than low-rank factors of whole projections.
/// Off are `null`, `false`, `"none"` and what is empty.
const MUST_BE_OFF: &[&str] = &[
    "alora_invocation_tokens",
    "alpha_pattern",
    "arrow_config",
    "bias",
    "fan_in_fan_out",
    "kasa_config",
    "layer_replication",
    "lora_bias",
    "modules_to_save",
    "target_parameters",
    "trainable_token_indices",
    "use_bdlora",
    "use_dora",
    "use_qalora",
];

/// Ways of initialising factors that change the base weights too, so that the factors alone are not
/// what was trained.
const RESIDUAL_INITS: &[&str] = &["corda", "lora_ga", "loftq", "olora", "pissa"];

/// Reads a PEFT directory.
///
/// # Errors
/// As [`super::Adapter::open`].
pub(super) fn read(path: &Path) -> Result<AdapterFile, EngineError> {
    let origin = path.display().to_string();
    let not_an_adapter = |reason: &str| EngineError::NotAnAdapter {
        path: origin.clone(),
        reason: reason.to_owned(),
    };
    let (config_path, weights_path) =
        (path.join("adapter_config.json"), path.join("adapter_model.safetensors"));
    if !config_path.exists() {
        return Err(not_an_adapter("the directory has no adapter_config.json"));
    }
    if !weights_path.exists() {
        return Err(not_an_adapter("the directory has no adapter_model.safetensors"));
    }
    let config = files::read(&config_path, MAX_CONFIG_BYTES)
        .map_err(|e| EngineError::io(&config_path, e))?;
    let config = Config::parse(&origin, &config)?;
    let mut adapter = AdapterFile {
        origin: origin.clone(),
        name: path.file_name().map_or(origin.clone(), |name| name.to_string_lossy().into_owned()),
        alpha: config.alpha,
        scaling: config.scaling,
        rank: config.rank,
        architecture: None,
        layout: RopeLayout::NeoX,
        pairs: BTreeMap::new(),
    };
    let mut tensors = HashMap::new();
    hf::read_shard(&weights_path, &mut tensors)?;
    for (name, entry) in tensors {
        let (layer, target, factor) =
            place(&name).ok_or_else(|| EngineError::AdapterUnsupported {
                path: origin.clone(),
                what: format!("tensor `{name}` is no factor of a layer's projection"),
            })?;
        let tensor = entry.tensor(&origin, &name)?;
        adapter.insert(layer, target, factor, name, tensor);
    }
    Ok(adapter)
}

/// What `adapter_config.json` says.
struct Config {
    alpha: f32,
    scaling: Scaling,
    /// `None` where layers differ: their factors show it.
    rank: Option<usize>,
}

impl Config {
    fn parse(origin: &str, text: &[u8]) -> Result<Config, EngineError> {
        let damaged = |reason: String| EngineError::AdapterDamaged {
            path: origin.to_owned(),
            reason: format!("adapter_config.json: {reason}"),
        };
        let unsupported = |what: String| EngineError::AdapterUnsupported {
            path: origin.to_owned(),
            what: format!("adapter_config.json: {what}"),
        };
        let config: Map<String, Value> =
            serde_json::from_slice(text).map_err(|error| damaged(error.to_string()))?;
        let field = |name: &str| config.get(name).unwrap_or(&Value::Null);
        if field("peft_type") != "LORA" {
            return Err(unsupported(format!("its `peft_type` is {}", field("peft_type"))));
        }
        if let Some(name) = MUST_BE_OFF.iter().find(|name| !is_off(field(name))) {
            return Err(unsupported(format!("its `{name}` is {}", field(name))));
        }
        if let Some(init) = field("init_lora_weights").as_str()
            && RESIDUAL_INITS.iter().any(|residual| init.starts_with(residual))
        {
            return Err(unsupported(format!(
                "its `init_lora_weights` is {init:?}, which changes the model's own weights (save it with `path_initial_model_for_weight_conversion`)"
            )));
        }
        let number = |name: &str| {
            let number = field(name).as_f64().filter(|number| number.is_finite());
            number.ok_or_else(|| damaged(format!("its `{name}` is {}, not a number", field(name))))
        };
        let rank = number("r")?;
        if rank < 1.0 || rank.fract() != 0.0 {
            return Err(damaged(format!("its `r` is {rank}, not a rank")));
        }
        let rooted = field("use_rslora") == &Value::Bool(true);
        Ok(Config {
            alpha: number("lora_alpha")? as f32,
            scaling: if rooted { Scaling::RankRoot } else { Scaling::Rank },
            rank: is_off(field("rank_pattern")).then_some(rank as usize),
        })
    }
}

fn is_off(value: &Value) -> bool {
    match value {
        Value::Null => true,
        Value::Bool(on) => !on,
        Value::String(text) => text == "none" || text.is_empty(),
        Value::Array(list) => list.is_empty(),
        Value::Object(map) => map.is_empty(),
        Value::Number(_) => false,
    }
}

/// Where a tensor belongs: `base_model.model.model.layers.N.self_attn.q_proj.lora_A.weight`, for
/// example; models without a head have one `model` less.
fn place(name: &str) -> Option<(usize, Projection, Factor)> {
    let name = name.strip_prefix("base_model.model.")?;
    let name = name.strip_prefix("model.").unwrap_or(name);
    let (layer, name) = name.strip_prefix("layers.")?.split_once('.')?;
    let (module, factor) = match name.strip_suffix(".lora_A.weight") {
        Some(module) => (module, Factor::A),
        None => (name.strip_suffix(".lora_B.weight")?, Factor::B),
    };
    Some((layer.parse().ok()?, Projection::named(Naming::HuggingFace, module)?, factor))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(extra: &str) -> Result<Config, EngineError> {
        let text = format!(r#"{{"peft_type":"LORA","r":8,"lora_alpha":16{extra}}}"#);
        Config::parse("here", text.as_bytes())
    }

    #[test]
    fn settings_that_change_what_is_computed_are_refused_by_name() {
        for extra in [
            r#""use_dora":true"#,
            r#""bias":"all""#,
            r#""modules_to_save":["lm_head"]"#,
            r#""alpha_pattern":{"q_proj":32}"#,
            r#""fan_in_fan_out":true"#,
            r#""init_lora_weights":"pissa_niter_4""#,
        ] {
            let error = parse(&format!(",{extra}")).err().unwrap();
            assert_eq!(error.code(), "adapter_unsupported");
            let name = extra.split('"').nth(1).unwrap();
            assert!(error.to_string().contains(name), "{error}");
        }
        let off = r#","use_dora":false,"bias":"none","modules_to_save":null,"alpha_pattern":{}"#;
        assert!(parse(off).is_ok());
        assert!(parse(r#","init_lora_weights":"gaussian""#).is_ok());
    }

    #[test]
    fn ranks_are_one_or_the_tensors_own() {
        assert_eq!(parse("").unwrap().rank, Some(8));
        assert_eq!(parse(r#","rank_pattern":{"q_proj":4}"#).unwrap().rank, None);
        for damaged in
            ["", r#"{"peft_type":"LORA","r":0,"lora_alpha":1}"#, r#"{"peft_type":"LORA"}"#]
        {
            let error = Config::parse("here", damaged.as_bytes()).err().unwrap();
            assert_eq!(error.code(), "adapter_damaged", "{error}");
        }
    }
}
