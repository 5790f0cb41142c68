//! The name under which kernels of one function compete: an operation and its element types.

use ruvllm_abi::contract::Variant;
use ruvllm_abi::{DType, Op, TeamOp};
use serde::{Deserialize, Deserializer, Serialize, Serializer, de};
use std::fmt;
use std::str::FromStr;

/// An operation with the element types of its inputs and output. Kernels with the same key
/// compute the same function and can stand in for each other.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct OpKey {
    /// The operation: a name of the catalogue ([`Op::name`]) or a pack's own.
    pub op: String,
    /// Element types of the inputs, in order.
    pub inputs: Vec<DType>,
    /// Element type of the output.
    pub output: DType,
}

impl OpKey {
    /// A key of any operation.
    pub fn new(op: impl Into<String>, inputs: impl Into<Vec<DType>>, output: DType) -> Self {
        Self { op: op.into(), inputs: inputs.into(), output }
    }

    /// The key of a catalogue operation in one of its variants.
    pub fn of(op: Op, variant: &Variant) -> Self {
        Self::new(op.name(), variant.inputs, variant.output)
    }

    /// `rope(f32,f32)->f32`.
    pub fn rope_f32() -> Self {
        Self::new(Op::Rope.name(), [DType::F32, DType::F32], DType::F32)
    }

    /// `rmsnorm(f32,f32)->f32`.
    pub fn rmsnorm_f32() -> Self {
        Self::new(Op::RmsNorm.name(), [DType::F32, DType::F32], DType::F32)
    }

    /// `swiglu(f32,f32)->f32`.
    pub fn swiglu_f32() -> Self {
        Self::new(Op::SwiGlu.name(), [DType::F32, DType::F32], DType::F32)
    }

    /// `kv_pack(f32)->format`.
    pub fn kv_pack(format: DType) -> Self {
        Self::new(Op::KvPack.name(), [DType::F32], format)
    }

    /// `kv_unpack(format)->f32`.
    pub fn kv_unpack(format: DType) -> Self {
        Self::new(Op::KvUnpack.name(), [format], DType::F32)
    }

    /// `lora_apply(f32,f32)->f32`.
    pub fn lora_f32() -> Self {
        Self::new(Op::LoraApply.name(), [DType::F32, DType::F32], DType::F32)
    }

    /// The catalogue's operation and variant, or `None` for a custom operation or combination.
    pub fn known(&self) -> Option<(Op, &'static Variant)> {
        let op = Op::from_name(&self.op)?;
        let fits = |v: &&Variant| v.inputs == self.inputs && v.output == self.output;
        Some((op, op.contract().variants.iter().find(fits)?))
    }

    /// The operation, if all threads of a step compute it together.
    pub fn team(&self) -> Option<TeamOp> {
        TeamOp::from_name(&self.op)
    }

    /// Whether all threads of a step compute the operation together.
    pub fn is_team(&self) -> bool {
        self.team().is_some()
    }

    /// `matmul(f32,weights)->f32`.
    pub fn matmul(weights: DType) -> Self {
        Self::new(TeamOp::Matmul.name(), [DType::F32, weights], DType::F32)
    }

    /// `embed(u32,table)->f32`.
    pub fn embed(table: DType) -> Self {
        Self::new(TeamOp::Embed.name(), [DType::U32, table], DType::F32)
    }

    /// `attention(f32)->f32`; keys and values are in any type of the cache.
    pub fn attention() -> Self {
        Self::new(TeamOp::Attention.name(), [DType::F32], DType::F32)
    }
}

impl fmt::Display for OpKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}(", self.op)?;
        for (i, dtype) in self.inputs.iter().enumerate() {
            write!(f, "{}{dtype}", if i == 0 { "" } else { "," })?;
        }
        write!(f, ")->{}", self.output)
    }
}

/// Reads the [`fmt::Display`] form.
impl FromStr for OpKey {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let read = || {
            let (op, types) = text.split_once('(')?;
            let (inputs, output) = types.split_once(")->")?;
            let inputs = inputs.split(',').filter(|name| !name.is_empty());
            let inputs: Result<Vec<DType>, _> = inputs.map(str::parse).collect();
            Some(Self::new(op, inputs.ok()?, output.parse().ok()?))
        };
        read().ok_or_else(|| format!("`{text}` is not of the form rope(f32,f32)->f32"))
    }
}

/// As its [`fmt::Display`] form.
impl<'de> Deserialize<'de> for OpKey {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        String::deserialize(deserializer)?.parse().map_err(de::Error::custom)
    }
}

/// As its [`fmt::Display`] form.
impl Serialize for OpKey {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_names_op_and_types_and_finds_its_variant() {
        assert_eq!(OpKey::rmsnorm_f32().to_string(), "rmsnorm(f32,f32)->f32");
        let (op, variant) = OpKey::kv_pack(DType::Q8_0).known().unwrap();
        assert_eq!((op, variant.kernel), (Op::KvPack, "kv_pack_q8"));
        assert_eq!(OpKey::kv_pack(DType::Q6_K).known(), None);
        assert_eq!(OpKey::new("softcap", [DType::F32], DType::F32).known(), None);
    }

    #[test]
    fn a_key_is_read_as_it_is_written() {
        let none = OpKey::new("noise", [], DType::F32);
        for key in [OpKey::rope_f32(), OpKey::kv_pack(DType::Q8_0), none] {
            assert_eq!(key.to_string().parse(), Ok(key));
        }
        for text in ["rope", "rope(f32)", "rope(f33)->f32", "rope(f32)->f32 "] {
            assert!(text.parse::<OpKey>().is_err(), "{text}");
        }
    }
}
