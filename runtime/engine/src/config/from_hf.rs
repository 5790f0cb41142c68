//! The configuration in a Hugging Face `config.json`.

use serde::{Deserialize, Deserializer};
use serde_json::Value;

use super::family::{Biases, Family, Windows, architecture_unknown};
use super::layer::{Activation, Bias};
use super::model::{MAX_LAYERS, ModelConfig, RopeConfig, RopeLayout, RopeScaling, Yarn};
use crate::error::EngineError;

#[derive(Deserialize)]
struct Raw {
    model_type: Option<String>,
    hidden_size: Option<usize>,
    intermediate_size: Option<usize>,
    num_hidden_layers: Option<usize>,
    num_attention_heads: Option<usize>,
    #[serde(default)]
    num_key_value_heads: Given<usize>,
    head_dim: Option<usize>,
    max_position_embeddings: Option<usize>,
    rms_norm_eps: Option<f64>,
    rope_theta: Option<f64>,
    rope_scaling: Option<Value>,
    rope_parameters: Option<Value>,
    partial_rotary_factor: Option<f64>,
    #[serde(default)]
    sliding_window: Given<usize>,
    use_sliding_window: Option<bool>,
    max_window_layers: Option<usize>,
    layer_types: Option<Vec<String>>,
    tie_word_embeddings: Option<bool>,
    attention_bias: Option<bool>,
    mlp_bias: Option<bool>,
    hidden_act: Option<String>,
    quantization_config: Option<Value>,
}

/// A value whose absence means something else than null does.
#[derive(Default)]
enum Given<T> {
    #[default]
    No,
    Null,
    Value(T),
}

impl<'de, T: Deserialize<'de>> Deserialize<'de> for Given<T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        Ok(Option::deserialize(deserializer)?.map_or(Given::Null, Given::Value))
    }
}

impl<T> Given<T> {
    /// The value, that of the class where there is none, and `None` for null.
    fn or(self, default: Option<T>) -> Option<T> {
        match self {
            Given::No => default,
            Given::Null => None,
            Given::Value(value) => Some(value),
        }
    }
}

/// Reads the configuration from the text of `config.json`; `origin` is its path in messages.
///
/// # Errors
/// [`EngineError::NotAModel`] for text that is no such JSON, [`EngineError::ArchitectureUnknown`],
/// [`EngineError::ConfigMissing`] and [`EngineError::ConfigInvalid`].
pub fn from_hf(text: &str, origin: &str) -> Result<ModelConfig, EngineError> {
    let raw: Raw = serde_json::from_str(text).map_err(|e| EngineError::NotAModel {
        path: origin.to_owned(),
        reason: format!("not a model configuration: {e}"),
    })?;
    let missing =
        |key: &str| EngineError::ConfigMissing { path: origin.to_owned(), key: key.to_owned() };
    let invalid = |key: &str, value: &dyn ToString, reason: &str| EngineError::ConfigInvalid {
        path: origin.to_owned(),
        key: key.to_owned(),
        value: value.to_string(),
        reason: reason.to_owned(),
    };

    let model_type = raw.model_type.ok_or_else(|| missing("model_type"))?;
    let (family, class) =
        Family::of_hf(&model_type).ok_or_else(|| architecture_unknown(origin, model_type))?;
    if raw.quantization_config.is_some() {
        let reason = "quantised checkpoints are read as GGUF only; convert the model";
        return Err(invalid("quantization_config", &"set", reason));
    }
    let activation = match family.activation {
        Activation::SwiGlu => "silu",
    };
    if let Some(act) = raw.hidden_act.filter(|act| act != activation) {
        return Err(invalid("hidden_act", &act, &format!("supported is {activation}")));
    }

    let dim = raw.hidden_size.ok_or_else(|| missing("hidden_size"))?;
    let layers = raw.num_hidden_layers.ok_or_else(|| missing("num_hidden_layers"))?;
    if layers > MAX_LAYERS {
        return Err(invalid("num_hidden_layers", &layers, "more than any known model"));
    }
    let heads = raw.num_attention_heads.ok_or_else(|| missing("num_attention_heads"))?;
    let head_dim = match raw.head_dim {
        Some(size) => size,
        None if heads > 0 => dim / heads,
        None => 0,
    };
    let norm_eps = raw.rms_norm_eps.unwrap_or(1e-6) as f32;
    let mut layer = family.layer(norm_eps, head_dim, None);
    let switched = |on: Option<bool>| match on {
        Some(true) => Bias::Required,
        _ => Bias::Absent,
    };
    let (qkv, output, ffn) = match class.biases {
        Biases::None => (Bias::Absent, Bias::Absent, Bias::Absent),
        Biases::Switched => {
            let attention = switched(raw.attention_bias);
            (attention, attention, switched(raw.mlp_bias))
        }
        Biases::Qkv => (Bias::Required, Bias::Absent, Bias::Absent),
    };
    (layer.attention.qkv_bias, layer.attention.output_bias) = (qkv, output);
    layer.ffn_bias = ffn;
    let mut layers = vec![layer; layers];
    let window = raw.sliding_window.or(class.window).filter(|_| match class.windows {
        Windows::Never => false,
        Windows::Always => true,
        Windows::Switched => raw.use_sliding_window == Some(true),
    });
    if let Some(types) = &raw.layer_types {
        if types.len() != layers.len() {
            let value = format!("{} entries", types.len());
            return Err(invalid("layer_types", &value, "one entry per layer is needed"));
        }
        for (layer, kind) in layers.iter_mut().zip(types) {
            layer.attention.window = match kind.as_str() {
                "full_attention" => None,
                "sliding_attention" => window,
                other => {
                    let reason = "supported are full_attention and sliding_attention";
                    return Err(invalid("layer_types", &other, reason));
                }
            };
        }
    } else {
        let full = raw.max_window_layers.filter(|_| class.windows == Windows::Switched);
        let full = full.unwrap_or(class.max_window_layers).min(layers.len());
        layers[full..].iter_mut().for_each(|layer| layer.attention.window = window);
    }

    let parameters = raw.rope_parameters.or(raw.rope_scaling);
    let field = |name: &str| parameters.as_ref().and_then(|p| p.get(name));
    let theta = match field("rope_theta") {
        Some(value) => {
            Some(value.as_f64().ok_or_else(|| invalid("rope_theta", value, "expected a number"))?)
        }
        None => raw.rope_theta,
    };
    let partial =
        field("partial_rotary_factor").and_then(Value::as_f64).or(raw.partial_rotary_factor);
    let context = raw.max_position_embeddings.unwrap_or(class.context);
    let scaling = scaling(context, &field, &invalid, &missing)?;
    let config = ModelConfig {
        architecture: family.architecture.to_owned(),
        dim,
        ffn_dim: raw.intermediate_size.ok_or_else(|| missing("intermediate_size"))?,
        heads,
        kv_heads: raw.num_key_value_heads.or(class.kv_heads).unwrap_or(heads),
        head_dim,
        context: scaling.stretched_context(context),
        rope: RopeConfig {
            theta: theta.unwrap_or(10_000.0),
            dims: (head_dim as f64 * partial.unwrap_or(1.0)) as usize,
            layout: RopeLayout::NeoX,
            scaling,
        },
        layers,
        output_norm: family.norm(norm_eps),
        tied_embeddings: raw.tie_word_embeddings.unwrap_or(false),
    };
    config.validate(origin)?;
    Ok(config)
}

/// `context` is the file's own figure.
fn scaling<'a>(
    context: usize,
    field: &dyn Fn(&str) -> Option<&'a Value>,
    invalid: &dyn Fn(&str, &dyn ToString, &str) -> EngineError,
    missing: &dyn Fn(&str) -> EngineError,
) -> Result<RopeScaling, EngineError> {
    let optional = |name: &str| -> Result<Option<f64>, EngineError> {
        let given = field(name).filter(|value| !value.is_null());
        let number =
            |value: &Value| value.as_f64().ok_or_else(|| invalid(name, value, "expected a number"));
        given.map(number).transpose()
    };
    let number = |name: &str| -> Result<f64, EngineError> {
        optional(name)?.ok_or_else(|| missing(&format!("rope_parameters.{name}")))
    };
    // The key has had two names.
    let kind = field("rope_type").or_else(|| field("type")).and_then(Value::as_str);
    match kind {
        None | Some("default") => Ok(RopeScaling::None),
        Some("linear") => Ok(RopeScaling::Linear { factor: number("factor")? }),
        Some("dynamic") => Ok(RopeScaling::DynamicNtk {
            factor: number("factor")?,
            original_context: context as f64,
        }),
        Some("yarn") => {
            let original = optional("original_max_position_embeddings")?;
            let mut yarn = Yarn::new(number("factor")?, original.unwrap_or(context as f64));
            yarn.beta_fast = optional("beta_fast")?.unwrap_or(yarn.beta_fast);
            yarn.beta_slow = optional("beta_slow")?.unwrap_or(yarn.beta_slow);
            yarn.truncate = field("truncate").and_then(Value::as_bool).unwrap_or(yarn.truncate);
            let weights = [optional("mscale")?, optional("mscale_all_dim")?];
            // Both or none; 0 stands for none.
            if let [Some(own), Some(all)] = weights.map(|weight| weight.filter(|&w| w != 0.0)) {
                yarn.attention_factor =
                    Yarn::temperature(yarn.factor, own) / Yarn::temperature(yarn.factor, all);
            }
            yarn.attention_factor = optional("attention_factor")?.unwrap_or(yarn.attention_factor);
            Ok(RopeScaling::Yarn(yarn))
        }
        Some("llama3") => Ok(RopeScaling::Llama3 {
            factor: number("factor")?,
            low_freq_factor: number("low_freq_factor")?,
            high_freq_factor: number("high_freq_factor")?,
            original_context: number("original_max_position_embeddings")?,
        }),
        Some(other) => {
            let reason = "supported are default, linear, dynamic, yarn and llama3";
            Err(invalid("rope_type", &other, reason))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn with(extra: &str) -> String {
        format!(
            r#"{{"model_type":"llama","hidden_size":64,"intermediate_size":128,
            "num_hidden_layers":3,"num_attention_heads":4,"num_key_value_heads":2{extra}}}"#
        )
    }

    fn read(extra: &str) -> Result<ModelConfig, EngineError> {
        from_hf(&with(extra), "config.json")
    }

    #[test]
    fn both_spellings_of_llama3_scaling_mean_the_same() {
        let body = r#""factor":8.0,"low_freq_factor":1.0,"high_freq_factor":4.0,
            "original_max_position_embeddings":8192"#;
        let old = read(&format!(
            r#","rope_theta":500000.0,"rope_scaling":{{"rope_type":"llama3",{body}}}"#
        ));
        let new = read(&format!(
            r#","rope_parameters":{{"rope_type":"llama3","rope_theta":500000.0,{body}}}"#
        ));
        let old = old.unwrap();
        assert_eq!(old, new.unwrap());
        assert_eq!(old.rope.theta, 500_000.0);
        assert!(matches!(old.rope.scaling, RopeScaling::Llama3 { .. }));
    }

    #[test]
    fn yarn_is_read_with_the_context_before_and_after_it() {
        let yarn = |extra: &str| {
            let config = read(&format!(
                r#","max_position_embeddings":4096,"rope_scaling":{{"type":"yarn","factor":4.0{extra}}}"#
            ))
            .unwrap();
            let RopeScaling::Yarn(yarn) = config.rope.scaling else { panic!("{config:?}") };
            (config.context, yarn)
        };
        // The length may be stated before or after stretching.
        let original = r#","original_max_position_embeddings"#;
        assert_eq!(yarn("").0, 16_384);
        assert_eq!(yarn(&format!(r#"{original}":4096"#)), (16_384, Yarn::new(4.0, 4096.0)));
        assert_eq!(yarn(&format!(r#"{original}":1024"#)), (4096, Yarn::new(4.0, 1024.0)));
        let expected = Yarn {
            beta_fast: 20.0,
            beta_slow: 2.0,
            attention_factor: 1.5,
            truncate: false,
            ..Yarn::new(4.0, 4096.0)
        };
        let all = r#","beta_fast":20,"beta_slow":2,"attention_factor":1.5,"truncate":false"#;
        assert_eq!(yarn(all).1, expected);
        let (_, weighted) = yarn(r#","mscale":1.0,"mscale_all_dim":0.5,"attention_factor":null"#);
        let ln = 0.1 * 4f64.ln();
        assert!((weighted.attention_factor - (1.0 + ln) / (1.0 + 0.5 * ln)).abs() < 1e-15);
    }

    #[test]
    fn scaling_that_contradicts_itself_is_refused() {
        for body in [
            r#""type":"linear","factor":0"#,
            r#""type":"dynamic","factor":0.5"#,
            r#""type":"yarn","factor":-2"#,
            r#""type":"yarn","factor":2,"beta_fast":1,"beta_slow":1"#,
            r#""type":"yarn","factor":2,"attention_factor":0"#,
            r#""type":"yarn","factor":2,"original_max_position_embeddings":0"#,
            r#""type":"yarn","factor":"2""#,
            r#""type":"yarn","factor":1e300"#,
            r#""type":"default","rope_theta":1.0"#,
        ] {
            let error = read(&format!(r#","rope_scaling":{{{body}}}"#)).unwrap_err();
            assert_eq!(error.code(), "config_invalid", "{body}");
        }
        let error = read(r#","rope_scaling":{"type":"yarn"}"#).unwrap_err();
        assert_eq!(error.code(), "config_missing");
    }

    #[test]
    fn a_window_applies_where_the_family_says_so() {
        let windows = |config: &ModelConfig| -> Vec<_> {
            config.layers.iter().map(|layer| layer.attention.window).collect()
        };
        // As in `transformers`, whose attention of Llama has no window.
        assert_eq!(windows(&read(r#","sliding_window":16"#).unwrap()), [None; 3]);
        let mistral = with(r#","sliding_window":16"#).replace(r#""llama""#, r#""mistral""#);
        assert_eq!(windows(&from_hf(&mistral, "config.json").unwrap()), [Some(16); 3]);
        let qwen = |extra: &str| {
            let text = with(extra).replace(r#""llama""#, r#""qwen2""#);
            windows(&from_hf(&text, "config.json").unwrap())
        };
        assert_eq!(qwen(r#","sliding_window":16,"use_sliding_window":false"#), [None; 3]);
        let on = r#","sliding_window":16,"use_sliding_window":true,"max_window_layers":2"#;
        assert_eq!(qwen(on), [None, None, Some(16)]);
        let types = r#","sliding_window":16,"use_sliding_window":true,
            "layer_types":["sliding_attention","full_attention","full_attention"]"#;
        assert_eq!(qwen(types), [Some(16), None, None]);
    }

    /// Those of the configuration classes in `transformers`.
    #[test]
    fn what_a_configuration_leaves_out_is_the_default_of_its_class() {
        let read = |family: &str, extra: &str| {
            let text = format!(
                r#"{{"model_type":"{family}","hidden_size":512,"intermediate_size":128,
                "num_hidden_layers":30,"num_attention_heads":32{extra}}}"#
            );
            let config = from_hf(&text, "config.json").unwrap();
            assert_eq!((config.output_norm.eps, config.rope.theta), (1e-6, 10_000.0), "{family}");
            let windows = config.layers.iter().map(|layer| layer.attention.window);
            (config.kv_heads, config.context, windows.collect::<Vec<_>>())
        };
        let none = vec![None; 30];
        assert_eq!(read("llama", ""), (32, 2048, none.clone()));
        assert_eq!(read("mistral", ""), (8, 131_072, vec![Some(4096); 30]));
        // Null is a value of its own.
        let null = r#","sliding_window":null,"num_key_value_heads":null"#;
        assert_eq!(read("mistral", null), (32, 131_072, none.clone()));
        assert_eq!(read("qwen2", ""), (32, 32_768, none.clone()));
        let switched = r#","use_sliding_window":true"#;
        let last = [vec![None; 28], vec![Some(4096); 2]].concat();
        assert_eq!(read("qwen2", switched), (32, 32_768, last));
        let null = r#","use_sliding_window":true,"sliding_window":null"#;
        assert_eq!(read("qwen2", null), (32, 32_768, none));
    }

    #[test]
    fn a_bias_is_required_where_the_family_or_the_file_says_so() {
        let bias = |extra: &str, family: &str| {
            let text = with(extra).replace("llama", family);
            let layer = from_hf(&text, "config.json").unwrap().layers[2];
            (layer.attention.qkv_bias, layer.attention.output_bias, layer.ffn_bias)
        };
        let (absent, required) = (Bias::Absent, Bias::Required);
        assert_eq!(bias("", "llama"), (absent, absent, absent));
        assert_eq!(bias(r#","attention_bias":false"#, "llama"), (absent, absent, absent));
        assert_eq!(bias(r#","attention_bias":true"#, "llama"), (required, required, absent));
        assert_eq!(bias(r#","mlp_bias":true"#, "llama"), (absent, absent, required));
        assert_eq!(bias(r#","attention_bias":true"#, "mistral"), (absent, absent, absent));
        assert_eq!(bias("", "qwen2"), (required, absent, absent));
    }

    #[test]
    fn what_is_not_supported_is_named() {
        let code = |text: &str| from_hf(text, "config.json").unwrap_err().code();
        assert_eq!(code(r#"{"model_type":"mamba"}"#), "architecture_unknown");
        assert_eq!(code(r#"{"model_type":"llama"}"#), "config_missing");
        assert_eq!(code("[]"), "not_a_model");
        let longrope = r#","rope_scaling":{"type":"longrope","factor":2.0}"#;
        assert_eq!(code(&with(longrope)), "config_invalid");
        assert_eq!(code(&with(r#","hidden_act":"gelu""#)), "config_invalid");
        assert_eq!(code(&with(r#","head_dim":512"#)), "config_invalid");
        assert_eq!(code(&with(r#","quantization_config":{}"#)), "config_invalid");
    }
}
