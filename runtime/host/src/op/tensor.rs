//! Tensors of the generic interface, and how they become a call.

use crate::op::call::{OpCall, Operand, Words};
use crate::op::plan::CallPlan;
use ruvllm_abi::DType;
use ruvllm_abi::contract::ParamType;
use ruvllm_manifest::ParamValue;

/// A tensor with its type and shape. Rows of block formats hold whole blocks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Tensor {
    dtype: DType,
    shape: Vec<usize>,
    data: Vec<u8>,
}

impl Tensor {
    /// A tensor of the bytes, or `None` where they are not what the shape takes.
    pub fn new(dtype: DType, shape: impl Into<Vec<usize>>, data: Vec<u8>) -> Option<Self> {
        let shape = shape.into();
        let elems = shape.iter().try_fold(1usize, |n, &extent| n.checked_mul(extent))?;
        (dtype.bytes_for(elems)? == data.len()).then_some(Self { dtype, shape, data })
    }

    /// A binary32 tensor, or `None` where the number of values is not what the shape takes.
    pub fn from_f32(shape: impl Into<Vec<usize>>, values: &[f32]) -> Option<Self> {
        Self::new(DType::F32, shape, values.iter().flat_map(|x| x.to_le_bytes()).collect())
    }

    /// The element type.
    pub fn dtype(&self) -> DType {
        self.dtype
    }

    /// The shape, outermost dimension first.
    pub fn shape(&self) -> &[usize] {
        &self.shape
    }

    /// The bytes, row by row, little endian.
    pub fn bytes(&self) -> &[u8] {
        &self.data
    }

    /// The elements as binary32, block formats dequantised.
    pub fn to_f32(&self) -> Vec<f32> {
        let mut values = Vec::new();
        // The constructors hold the bytes to the type, so there is nothing left to refuse.
        let _ = ruvllm_native::judge::decode(self.dtype, &self.data, &mut values);
        values
    }
}

/// A generic call that has been checked: the words, and the output to be filled.
pub(crate) struct Bound {
    pub(crate) words: Words,
    pub(crate) output: Tensor,
}

/// Binds shapes and params to the words of a call.
///
/// # Errors
/// A sentence that names the tensor, symbol or param.
pub(crate) fn bind(
    plan: &CallPlan,
    inputs: &[Tensor],
    params: &[(&str, ParamValue)],
) -> Result<Bound, String> {
    if inputs.len() != plan.inputs.len() {
        return Err(format!("it takes {} inputs, got {}", plan.inputs.len(), inputs.len()));
    }
    let mut symbols: Vec<Option<u32>> = vec![None; plan.symbols.len()];
    for (tensor, want) in inputs.iter().zip(&plan.inputs) {
        let name = &want.name;
        if tensor.dtype != want.dtype {
            return Err(format!("{name} is {} instead of {}", tensor.dtype, want.dtype));
        }
        if tensor.shape.len() != want.rank() {
            let got = tensor.shape.len();
            return Err(format!("{name} has {got} dimensions instead of {}", want.rank()));
        }
        for (i, &extent) in tensor.shape.iter().enumerate() {
            let extent = u32::try_from(extent).map_err(|_| format!("{name} is too large"))?;
            match want.binding(i) {
                Ok(word) => bind_symbol(plan, &mut symbols, word, extent)
                    .map_err(|what| format!("dimension {i} of {name}: {what}"))?,
                Err(fixed) if fixed == extent => {}
                Err(fixed) => {
                    return Err(format!("dimension {i} of {name} is {extent} instead of {fixed}"));
                }
            }
        }
    }
    let mut values: Vec<Option<u32>> =
        plan.params.iter().map(|p| p.default.map(ParamValue::to_word)).collect();
    for (name, value) in params {
        if let Some(i) = plan.params.iter().position(|p| p.name == *name) {
            let ty = plan.params[i].ty;
            let word = convert(*value, ty)
                .ok_or_else(|| format!("param {name} must be {}, got {value:?}", ty.name()))?;
            values[i] = Some(word);
        } else if let Some(i) = plan.symbols.iter().position(|symbol| symbol == name) {
            // An extent of the output that no input has.
            let extent = convert(*value, ParamType::U32)
                .ok_or_else(|| format!("extent {name} must be u32, got {value:?}"))?;
            bind_symbol(plan, &mut symbols, i, extent)?;
        } else {
            let known: Vec<&str> = plan.params.iter().map(|p| p.name.as_str()).collect();
            return Err(format!("there is no param {name:?}; there are {known:?}"));
        }
    }
    let mut words = Vec::with_capacity(plan.words);
    for (symbol, extent) in plan.symbols.iter().zip(symbols) {
        words.push(extent.ok_or_else(|| {
            format!("nothing binds the extent {symbol}: pass it among the params")
        })?);
    }
    for (param, value) in plan.params.iter().zip(values) {
        words.push(value.ok_or_else(|| format!("param {} has no default: pass it", param.name))?);
    }
    let bytes = plan
        .bytes(&words)
        .map_err(|t| format!("{} {:?} has no size in {}", t.name, t.shape(&words), t.dtype))?;
    let shape = plan.output.shape(&words);
    let words = Words::new(&words).ok_or("its params block is too long")?;
    let output = Tensor { dtype: plan.output.dtype, shape, data: vec![0; bytes.out] };
    Ok(Bound { words, output })
}

fn bind_symbol(
    plan: &CallPlan,
    symbols: &mut [Option<u32>],
    word: usize,
    extent: u32,
) -> Result<(), String> {
    match symbols[word].replace(extent) {
        Some(bound) if bound != extent => {
            Err(format!("{} is {bound} elsewhere and {extent} here", plan.symbols[word]))
        }
        _ => Ok(()),
    }
}

/// The word of a value as a param's type; integers convert where they fit.
fn convert(value: ParamValue, ty: ParamType) -> Option<u32> {
    match (value, ty) {
        (ParamValue::U32(n), ParamType::I32) => i32::try_from(n).ok().map(|n| n as u32),
        (ParamValue::I32(n), ParamType::U32) => u32::try_from(n).ok(),
        (value, ty) => (value.ty() == ty).then(|| value.to_word()),
    }
}

impl Bound {
    /// The call for its gradients, given that of its output.
    ///
    /// # Errors
    /// A sentence, where that is not of the output's type and shape.
    pub(crate) fn backward<'a>(
        &self,
        inputs: &'a [Tensor],
        gradient: &'a Tensor,
    ) -> Result<OpCall<'a>, String> {
        let Tensor { dtype, shape, .. } = &self.output;
        if (gradient.dtype, &gradient.shape) != (*dtype, shape) {
            let (got_type, got) = (gradient.dtype, &gradient.shape);
            return Err(format!(
                "the gradient of the output is {got_type}{got:?} instead of {dtype}{shape:?}"
            ));
        }
        let call = OpCall::new(operand(inputs, 0), operand(inputs, 1), self.words);
        Ok(call.backward(Operand::Bytes(&gradient.data)))
    }

    /// The call, and the output's bytes.
    pub(crate) fn call<'a>(&'a mut self, inputs: &'a [Tensor]) -> (OpCall<'a>, &'a mut [u8]) {
        let call = OpCall::new(operand(inputs, 0), operand(inputs, 1), self.words);
        (call, &mut self.output.data)
    }
}

fn operand(inputs: &[Tensor], i: usize) -> Operand<'_> {
    inputs.get(i).map_or(Operand::None, |tensor| Operand::Bytes(&tensor.data))
}

#[cfg(test)]
mod tests {
    use super::*;
    use ruvllm_abi::Op;

    fn lora() -> CallPlan {
        CallPlan::of_op(Op::LoraApply, &[DType::F32, DType::F32], DType::F32)
    }

    fn f32(shape: &[usize]) -> Tensor {
        Tensor::from_f32(shape, &vec![0.0; shape.iter().product()]).unwrap()
    }

    #[test]
    fn shapes_bind_symbols_and_params_bind_the_rest() {
        let inputs = [f32(&[2, 8]), f32(&[3, 4, 4])];
        let params = [("scale", ParamValue::F32(0.5)), ("out_dim", ParamValue::U32(4))];
        let bound = bind(&lora(), &inputs, &params).unwrap();
        assert_eq!(bound.words.as_slice(), [2, 8, 3, 4, 4, 0.5f32.to_bits()]);
        assert_eq!(bound.output.shape(), [2, 4]);
    }

    #[test]
    fn every_mismatch_is_named() {
        let inputs = [f32(&[2, 8]), f32(&[3, 4, 4])];
        let fail = |inputs: &[Tensor], params: &[(&str, ParamValue)]| {
            bind(&lora(), inputs, params).err().unwrap()
        };
        let scale = ("scale", ParamValue::F32(1.0));
        assert!(fail(&inputs, &[scale]).contains("out_dim"));
        assert!(fail(&inputs[..1], &[]).contains("2 inputs"));
        assert!(fail(&[f32(&[2, 8]), f32(&[3, 4, 5])], &[]).contains("5 instead of 4"));
        let out = ("out_dim", ParamValue::U32(4));
        assert!(fail(&inputs, &[out]).contains("scale has no default"));
        assert!(fail(&inputs, &[("scale", ParamValue::U32(1)), out]).contains("must be f32"));
        assert!(fail(&inputs, &[("speed", ParamValue::U32(1))]).contains("no param"));
        let rms = CallPlan::of_op(Op::RmsNorm, &[DType::F32, DType::F32], DType::F32);
        let what = bind(&rms, &[f32(&[2, 8]), f32(&[9])], &[]).err().unwrap();
        assert!(what.contains("dim is 8 elsewhere and 9 here"), "{what}");
    }
}
