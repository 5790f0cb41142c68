//! What an operation that has a gradient has of it.

use super::{factors, lora_shape, rope_shape, size};
use crate::oracle::backward::{self as oracle, Gradients};
use crate::twin::{Call, view};
use crate::{Isa, NativeError, ops};

/// Native code for gradients, given that of the output.
type Native = fn(Isa, &Call<'_>, &[f32], [&mut [f32]; 2]) -> Result<(), NativeError>;

/// The gradients of an operation by the inputs that its contract names, where all tensors are binary32.
pub(crate) struct Backward {
    /// The definition, in f64, given the gradient of the output.
    pub(crate) oracle: fn(&Call<'_>, &[f32]) -> Result<Gradients, NativeError>,
    /// The native code, for gradients of the sizes of the inputs; the second is empty where there is none.
    pub(crate) native: Native,
}

pub(super) const ROPE: Backward = Backward {
    oracle: |call, dy| Ok(oracle::rope(&rope_shape(call)?, &call.numbers_b()?, dy)),
    native: |isa, call, dy, [dx, _]| {
        ops::rope_backward(isa, &rope_shape(call)?, &view(call.b)?, dy, dx)
    },
};

pub(super) const RMS_NORM: Backward = Backward {
    oracle: |call, dy| {
        let [_, _, eps] = call.words()?;
        Ok(oracle::rmsnorm(&call.numbers_a()?, &call.numbers_b()?, f32::from_bits(eps), dy))
    },
    native: |isa, call, dy, gradients| {
        let [_, _, eps] = call.words()?;
        let (x, weight) = (view(call.a)?, view(call.b)?);
        ops::rmsnorm_backward(isa, &x, &weight, f32::from_bits(eps), dy, gradients)
    },
};

pub(super) const LAYER_NORM: Backward = Backward {
    oracle: |call, dy| {
        let [_, dim, eps] = call.words()?;
        let weight = &call.numbers_b()?[..size(dim)];
        Ok(oracle::layernorm(&call.numbers_a()?, weight, f32::from_bits(eps), dy))
    },
    native: |isa, call, dy, gradients| {
        let [_, dim, eps] = call.words()?;
        let (x, weight_and_bias) = (view(call.a)?, view::<f32>(call.b)?);
        let weight = &weight_and_bias[..size(dim)];
        ops::layernorm_backward(isa, &x, weight, f32::from_bits(eps), dy, gradients)
    },
};

pub(super) const SWIGLU: Backward = Backward {
    oracle: |call, dy| Ok(oracle::swiglu(&call.numbers_a()?, &call.numbers_b()?, dy)),
    native: |isa, call, dy, gradients| {
        ops::swiglu_backward(isa, &view(call.a)?, &view(call.b)?, dy, gradients)
    },
};

pub(super) const GEGLU: Backward = Backward {
    oracle: |call, dy| Ok(oracle::geglu(&call.numbers_a()?, &call.numbers_b()?, dy)),
    native: |isa, call, dy, gradients| {
        ops::geglu_backward(isa, &view(call.a)?, &view(call.b)?, dy, gradients)
    },
};

pub(super) const GELU: Backward = Backward {
    oracle: |call, dy| Ok(oracle::gelu(&call.numbers_a()?, dy)),
    native: |isa, call, dy, [dx, _]| ops::gelu_backward(isa, &view(call.a)?, dy, dx),
};

pub(super) const LORA_APPLY: Backward = Backward {
    oracle: |call, dy| {
        let shape = lora_shape(call)?;
        let (a, b) = factors(&shape, &call.numbers_b()?);
        Ok(oracle::lora(&shape, &call.numbers_a()?, &a, &b, dy))
    },
    native: |isa, call, dy, gradients| {
        ops::lora_backward(isa, &lora_shape(call)?, &view(call.a)?, &view(call.b)?, dy, gradients)
    },
};
