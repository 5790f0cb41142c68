//! The configuration in a GGUF file's metadata.

use ruvllm_native::quant::dequantize_row;

use super::family::{Family, architecture_unknown};
use super::layer::NormKind;
use super::model::{MAX_LAYERS, ModelConfig, RopeConfig, RopeScaling, Yarn};
use crate::error::EngineError;
use crate::gguf::{GgufFile, Metadata, Value};
use crate::storage::TensorSource;
use crate::tensors::ROPE_FACTORS;

/// Typed access to `<architecture>.<key>`.
struct MetadataKeys<'a> {
    origin: &'a str,
    architecture: &'static str,
    metadata: &'a Metadata,
}

impl MetadataKeys<'_> {
    fn key(&self, name: &str) -> String {
        format!("{}.{name}", self.architecture)
    }

    fn invalid(&self, name: &str, value: String, reason: &str) -> EngineError {
        EngineError::ConfigInvalid {
            path: self.origin.to_owned(),
            key: self.key(name),
            value,
            reason: reason.to_owned(),
        }
    }

    fn missing(&self, name: &str) -> EngineError {
        EngineError::ConfigMissing { path: self.origin.to_owned(), key: self.key(name) }
    }

    fn usize(&self, name: &str) -> Result<Option<usize>, EngineError> {
        let Some(value) = self.metadata.get(&self.key(name)) else { return Ok(None) };
        // Some converters write one entry per layer even where all layers are alike.
        let value = match value {
            Value::Array(values) => match values.split_first() {
                Some((first, rest)) if rest.iter().all(|v| v.as_i64() == first.as_i64()) => first,
                _ => {
                    let reason = "layers of different sizes are not supported";
                    return Err(self.invalid(name, format!("{} values", values.len()), reason));
                }
            },
            other => other,
        };
        match value.as_i64().and_then(|n| usize::try_from(n).ok()) {
            Some(n) => Ok(Some(n)),
            None => Err(self.invalid(name, format!("{value:?}"), "expected a size")),
        }
    }

    fn required(&self, name: &str) -> Result<usize, EngineError> {
        self.usize(name)?.ok_or_else(|| self.missing(name))
    }

    fn f64(&self, name: &str) -> Result<Option<f64>, EngineError> {
        let Some(value) = self.metadata.get(&self.key(name)) else { return Ok(None) };
        match value {
            Value::F32(x) => Ok(Some(f64::from(*x))),
            Value::F64(x) => Ok(Some(*x)),
            other => Err(self.invalid(name, format!("{other:?}"), "expected a number")),
        }
    }

    fn bool(&self, name: &str) -> Result<Option<bool>, EngineError> {
        match self.metadata.get(&self.key(name)) {
            None => Ok(None),
            Some(Value::Bool(x)) => Ok(Some(*x)),
            Some(other) => Err(self.invalid(name, format!("{other:?}"), "expected true or false")),
        }
    }

    fn text(&self, name: &str) -> Option<&str> {
        self.metadata.get(&self.key(name)).and_then(Value::as_str)
    }
}

/// Reads the configuration of a GGUF file.
///
/// # Errors
/// [`EngineError::ArchitectureUnknown`], [`EngineError::ConfigMissing`] and
/// [`EngineError::ConfigInvalid`].
pub fn from_gguf(file: &GgufFile) -> Result<ModelConfig, EngineError> {
    let origin = file.origin();
    if let Some(kind) = file.metadata().get("general.type").and_then(Value::as_str)
        && kind != "model"
    {
        let hint =
            if kind == "adapter" { ", which is opened on top of a model (--lora)" } else { "" };
        return Err(EngineError::NotAModel {
            path: origin.to_owned(),
            reason: format!("its `general.type` is `{kind}`{hint}"),
        });
    }
    let architecture = match file.metadata().get("general.architecture") {
        Some(Value::String(name)) => name,
        _ => {
            return Err(EngineError::ConfigMissing {
                path: origin.to_owned(),
                key: "general.architecture".to_owned(),
            });
        }
    };
    let family = Family::of_gguf(architecture)
        .ok_or_else(|| architecture_unknown(origin, architecture.clone()))?;
    let keys =
        MetadataKeys { origin, architecture: family.architecture, metadata: file.metadata() };

    if keys.usize("expert_count")?.is_some_and(|n| n > 0) {
        let architecture = format!("{architecture} with a mixture of experts");
        return Err(architecture_unknown(origin, architecture));
    }
    refuse_other_formulas(&keys)?;
    let dim = keys.required("embedding_length")?;
    let layers = keys.required("block_count")?;
    if layers > MAX_LAYERS {
        return Err(keys.invalid("block_count", layers.to_string(), "more than any known model"));
    }
    let heads = keys.required("attention.head_count")?;
    let kv_heads = keys.usize("attention.head_count_kv")?.unwrap_or(heads);
    let head_dim = match keys.usize("attention.key_length")? {
        Some(length) => length,
        None if heads > 0 => dim / heads,
        None => 0,
    };
    if let Some(length) = keys.usize("attention.value_length")?
        && length != head_dim
    {
        let reason = "keys and values of different sizes are not supported";
        return Err(keys.invalid("attention.value_length", length.to_string(), reason));
    }
    let window = keys.usize("attention.sliding_window")?.filter(|&w| w > 0);
    let norm_eps = match family.norm {
        NormKind::Rms => "attention.layer_norm_rms_epsilon",
    };
    let norm_eps = keys.f64(norm_eps)?.ok_or_else(|| keys.missing(norm_eps))? as f32;

    let context = keys.required("context_length")?;
    let scaling = scaling(&keys, context, file)?;

    let config = ModelConfig {
        architecture: architecture.clone(),
        dim,
        ffn_dim: keys.required("feed_forward_length")?,
        heads,
        kv_heads,
        head_dim,
        context: scaling.stretched_context(context),
        rope: RopeConfig {
            theta: keys.f64("rope.freq_base")?.unwrap_or(10_000.0),
            dims: keys.usize("rope.dimension_count")?.unwrap_or(head_dim),
            layout: family.gguf_rope,
            scaling,
        },
        layers: vec![family.layer(norm_eps, head_dim, window); layers],
        output_norm: family.norm(norm_eps),
        tied_embeddings: false,
    };
    config.validate(origin)?;
    Ok(config)
}

/// Numbers of a model that some architectures compute with and none of the supported ones, and what each
/// is where it changes nothing. 0 stands for that, too.
const NOT_COMPUTED: &[(&str, f64)] = &[
    ("attention.clamp_kqv", 0.0),
    ("attention.max_alibi_bias", 0.0),
    ("attention.scale", 0.0),
    ("attn_logit_softcapping", 0.0),
    ("embedding_scale", 1.0),
    ("final_logit_softcapping", 0.0),
    ("logit_scale", 1.0),
    ("residual_scale", 1.0),
];

/// Refuses what would otherwise be computed differently in silence.
fn refuse_other_formulas(keys: &MetadataKeys<'_>) -> Result<(), EngineError> {
    if keys.bool("attention.causal")? == Some(false) {
        let reason = "attention in both directions is not supported";
        return Err(keys.invalid("attention.causal", "false".to_owned(), reason));
    }
    for &(name, neutral) in NOT_COMPUTED {
        if let Some(value) = keys.f64(name)?.filter(|&value| value != 0.0 && value != neutral) {
            let reason = "the engine does not compute with it, and other numbers would come out";
            return Err(keys.invalid(name, value.to_string(), reason));
        }
    }
    Ok(())
}

/// `context` is the file's own figure.
fn scaling(
    keys: &MetadataKeys<'_>,
    context: usize,
    file: &GgufFile,
) -> Result<RopeScaling, EngineError> {
    if let Some(tensor) = file.find(ROPE_FACTORS)? {
        // One-dimensional by the format; a wrong length is refused with the rest of the checks.
        let mut factors = vec![0.0; tensor.shape.iter().product()];
        dequantize_row(tensor.dtype, tensor.bytes.as_slice(), &mut factors)?;
        return Ok(RopeScaling::Factors(factors));
    }
    // 0 and 1 both stand for no scaling.
    let factor = |name: &str| -> Result<Option<f64>, EngineError> {
        let factor = keys.f64(name)?.ok_or_else(|| keys.missing(name))?;
        Ok(Some(factor).filter(|&factor| factor != 0.0 && factor != 1.0))
    };
    let linear = |name: &str| -> Result<RopeScaling, EngineError> {
        Ok(factor(name)?.map_or(RopeScaling::None, |factor| RopeScaling::Linear { factor }))
    };
    match keys.text("rope.scaling.type") {
        // Old files state a linear scale without a type.
        None if keys.f64("rope.scale_linear")?.is_some() => linear("rope.scale_linear"),
        None | Some("none") => Ok(RopeScaling::None),
        Some("linear") => linear("rope.scaling.factor"),
        Some("yarn") => {
            let Some(factor) = factor("rope.scaling.factor")? else { return Ok(RopeScaling::None) };
            Ok(RopeScaling::Yarn(yarn(keys, factor, context)?))
        }
        Some(other) => {
            let reason = "supported are none, linear, yarn and the factors of Llama 3";
            Err(keys.invalid("rope.scaling.type", other.to_owned(), reason))
        }
    }
}

fn yarn(keys: &MetadataKeys<'_>, factor: f64, context: usize) -> Result<Yarn, EngineError> {
    let original = keys.usize("rope.scaling.original_context_length")?.unwrap_or(context);
    let mut yarn = Yarn::new(factor, original as f64);
    if let Some(beta) = keys.f64("rope.scaling.yarn_beta_fast")? {
        yarn.beta_fast = beta;
    }
    if let Some(beta) = keys.f64("rope.scaling.yarn_beta_slow")? {
        yarn.beta_slow = beta;
    }
    // How much of the ramp is taken; negative means "not set".
    let extrapolation = keys.f64("rope.scaling.yarn_ext_factor")?.filter(|&x| x >= 0.0);
    if let Some(other) = extrapolation.filter(|&x| x != 1.0) {
        let reason = "supported is 1";
        return Err(keys.invalid("rope.scaling.yarn_ext_factor", other.to_string(), reason));
    }
    if let Some(weight) = keys.f64("rope.scaling.yarn_log_multiplier")?.filter(|&x| x != 0.0) {
        yarn.attention_factor /= Yarn::temperature(factor, weight);
    }
    // Converters copy a checkpoint's `attention_factor` here; 1 is also the format's "not set".
    if let Some(given) = keys.f64("rope.scaling.yarn_attn_factor")?.filter(|&x| x != 1.0) {
        yarn.attention_factor = given;
    }
    if let Some(more) = keys.f64("rope.scaling.attn_factor")? {
        yarn.attention_factor *= more;
    }
    Ok(yarn)
}
