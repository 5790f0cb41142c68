//! The name under which kernels of one function compete: an operation and its element types.

use ruvllm_abi::contract::Variant;
use ruvllm_abi::{DType, Op};
use serde::{Serialize, Serializer};
use std::fmt;

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
}
