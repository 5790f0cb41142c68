//! Adapters as Hugging Face PEFT saves them: `adapter_config.json` and `adapter_model.safetensors`.

use std::collections::{BTreeMap, HashMap};
use std::path::Path;

use regex::{Regex, RegexBuilder};
use serde_json::{Map, Value};

use super::file::{AdapterFile, Factor, Scaling};
use crate::config::RopeLayout;
use crate::error::EngineError;
use crate::files::{self, MAX_CONFIG_BYTES};
use crate::hf;
use crate::tensors::{Naming, Projection};

/// Settings under which an adapter is more, or other, than low-rank factors of whole projections.
/// Off are `null`, `false`, `"none"` and what is empty.
const MUST_BE_OFF: &[&str] = &[
    "alora_invocation_tokens",
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
        let module = module(&name).unwrap_or_default();
        let (alpha, rank) = (config.alphas.of(module), config.ranks.of(module));
        let pair = adapter.insert(layer, target, factor, name, tensor);
        (pair.alpha, pair.rank) = (alpha, rank.or(Some(config.rank)));
    }
    Ok(adapter)
}

/// What `adapter_config.json` says.
struct Config {
    alpha: f32,
    scaling: Scaling,
    rank: usize,
    /// The alphas of some modules.
    alphas: Patterns<f32>,
    /// The ranks of some modules.
    ranks: Patterns<usize>,
}

/// Values for the modules that patterns match, of which the first counts.
struct Patterns<T>(Vec<(Regex, T)>);

/// Patterns that a file may have; those who give each module of a large model a rank of its own have some
/// hundreds.
const MAX_PATTERNS: usize = 1 << 12;
/// Bytes that a compiled pattern may take.
const MAX_PATTERN_BYTES: usize = 1 << 18;

impl<T: Copy> Patterns<T> {
    /// Reads an object of patterns and values; `value` gives `None` for what is none.
    fn new(given: &Value, value: impl Fn(&Value) -> Option<T>) -> Result<Self, String> {
        if is_off(given) {
            return Ok(Patterns(Vec::new()));
        }
        let Some(entries) = given.as_object().filter(|entries| entries.len() <= MAX_PATTERNS)
        else {
            return Err(format!("not an object of up to {MAX_PATTERNS} patterns"));
        };
        let entry = |(key, given): (&String, &Value)| {
            let value = value(given).ok_or_else(|| format!("{given} for `{key}`"))?;
            // As PEFT matches: the end of a module's name, from a dot on.
            let mut pattern = RegexBuilder::new(&format!(r"^(.*\.)?({key})$"));
            let pattern = pattern.size_limit(MAX_PATTERN_BYTES).build();
            Ok((pattern.map_err(|error| format!("the pattern `{key}`: {error}"))?, value))
        };
        entries.iter().map(entry).collect::<Result<_, _>>().map(Patterns)
    }

    /// The value for a module.
    fn of(&self, module: &str) -> Option<T> {
        self.0.iter().find(|(pattern, _)| pattern.is_match(module)).map(|(_, value)| *value)
    }
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
        let as_rank = |value: &Value| {
            let rank = value.as_f64().filter(|rank| *rank >= 1.0 && rank.fract() == 0.0)?;
            Some(rank as usize)
        };
        let rank = number("r")?;
        let rank =
            as_rank(field("r")).ok_or_else(|| damaged(format!("its `r` is {rank}, not a rank")))?;
        let as_alpha = |value: &Value| value.as_f64().filter(|x| x.is_finite()).map(|x| x as f32);
        let pattern = |name: &str, reason: String| damaged(format!("its `{name}` has {reason}"));
        let alphas = Patterns::new(field("alpha_pattern"), as_alpha)
            .map_err(|reason| pattern("alpha_pattern", reason))?;
        let ranks = Patterns::new(field("rank_pattern"), as_rank)
            .map_err(|reason| pattern("rank_pattern", reason))?;
        let rooted = field("use_rslora") == &Value::Bool(true);
        Ok(Config {
            alpha: number("lora_alpha")? as f32,
            scaling: if rooted { Scaling::RankRoot } else { Scaling::Rank },
            rank,
            alphas,
            ranks,
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

/// What the names of tensors begin with.
const BASE: &str = "base_model.model.";

/// The name of the module that a tensor belongs to, as patterns see it.
fn module(name: &str) -> Option<&str> {
    let (module, _) = name.strip_prefix(BASE)?.split_once(".lora_")?;
    Some(module)
}

/// Where a tensor belongs: `base_model.model.model.layers.N.self_attn.q_proj.lora_A.weight`, for
/// example; models without a head have one `model` less.
fn place(name: &str) -> Option<(usize, Projection, Factor)> {
    let name = name.strip_prefix(BASE)?;
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
    fn ranks_and_alphas_are_those_of_the_first_pattern_that_matches() {
        let config = parse("").unwrap();
        assert_eq!(
            (config.rank, config.ranks.of("q_proj"), config.alphas.of("q_proj")),
            (8, None, None)
        );
        // The end of a name from a dot on, or a part of it that a pattern describes.
        let alphas =
            r#","alpha_pattern":{"layers.1.self_attn.q_proj":32,"q_proj":4.5,".*[kv]_proj":2}"#;
        let alphas = parse(alphas).unwrap().alphas;
        for (module, alpha) in [
            ("model.layers.0.self_attn.q_proj", Some(4.5)),
            ("model.layers.1.self_attn.q_proj", Some(32.0)),
            ("model.layers.11.self_attn.q_proj", Some(4.5)),
            ("model.layers.0.self_attn.v_proj", Some(2.0)),
            ("model.layers.0.self_attn.o_proj", None),
            ("model.layers.0.self_attn.xq_proj", None),
        ] {
            assert_eq!(alphas.of(module), alpha, "{module}");
        }
        let ranks = parse(r#","rank_pattern":{"^model\\.layers\\.0\\..*":16}"#).unwrap().ranks;
        assert_eq!(ranks.of("model.layers.0.mlp.up_proj"), Some(16));
        assert_eq!(ranks.of("model.layers.1.mlp.up_proj"), None);
        for odd in [
            r#""rank_pattern":{"q_proj":0}"#,
            r#""rank_pattern":{"q_proj":1.5}"#,
            r#""rank_pattern":["q_proj"]"#,
            r#""alpha_pattern":{"q_proj":"x"}"#,
            r#""alpha_pattern":{"q_proj(":2}"#,
            r#""alpha_pattern":{"(?=q)q_proj":2}"#,
        ] {
            let error = parse(&format!(",{odd}")).err().unwrap();
            assert_eq!(error.code(), "adapter_damaged");
            assert!(error.to_string().contains(odd.split('"').nth(1).unwrap()), "{error}");
        }
        for damaged in
            ["", r#"{"peft_type":"LORA","r":0,"lora_alpha":1}"#, r#"{"peft_type":"LORA"}"#]
        {
            let error = Config::parse("here", damaged.as_bytes()).err().unwrap();
            assert_eq!(error.code(), "adapter_damaged", "{error}");
        }
    }
}
