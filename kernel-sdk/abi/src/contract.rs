//! The operations that every host knows, and exactly how each is called.
//!
//! A pack may hold kernels of other operations too; those are described by its manifest alone and
//! called through the generic interface. For the operations here the manifest must agree with the
//! contract: same tensors, same shape symbols up to their names, same parameters in the same order.
//! The params block of a call follows from it: each distinct symbol as `u32`, in order of first
//! appearance over the inputs and then the output, then the parameters, one word each.
//!
//! All operations are out of place: inputs are not written, and the output never overlaps them.
//!
//! # Gradients
//!
//! Where [`OpContract::gradients`] names inputs, a kernel of binary32 tensors may export
//! [`kernel_backward`](crate::export::BACKWARD). It gets the inputs and the params block of the forward call
//! and the gradient of some number (a loss) by the output, and gives that number's gradient by each of those
//! inputs, in the input's own shape and layout. Gradients are written, never added to what is there. That of an
//! input that all rows share, such as the weight of a norm, is the sum over the rows of the call. What pads
//! a layout, as in `ab` of `lora_apply`, has a gradient of zero.

use crate::DType;
use core::fmt;

/// Makes the type of operations and the list of all from one row each, so that neither can lack one.
macro_rules! catalogue {
    ($($(#[$doc:meta])* $op:ident => $contract:ident,)*) => {
        /// An operation of the catalogue.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
        pub enum Op {
            $($(#[$doc])* $op,)*
        }

        impl Op {
            /// Every operation of the catalogue.
            pub const ALL: [Op; [$(stringify!($op)),*].len()] = [$(Op::$op),*];

            /// How the operation is called.
            pub const fn contract(self) -> &'static OpContract {
                match self {
                    $(Op::$op => &$contract,)*
                }
            }
        }
    };
}

catalogue! {
    /// Rotary position embedding (Su et al., RoFormer, arXiv 2104.09864).
    ///
    /// Rotates the first `2 * dim_half` elements of each head by the angles in `freqs`, whose
    /// innermost pair is (cos, sin); elements beyond are copied. With `interleaved == 0` the pairs
    /// are `(i, i + dim_half)` (NeoX order), else `(2i, 2i + 1)`. `theta` is information only: the
    /// angles come from `freqs`.
    Rope => ROPE,
    /// Root-mean-square normalisation (Zhang and Sennrich, arXiv 1910.07467):
    /// `y = x / sqrt(mean(x^2) + eps) * weight`, row by row.
    RmsNorm => RMS_NORM,
    /// Gated unit of Shazeer, arXiv 2002.05202: `y = gate * sigmoid(gate) * up`, element by element.
    SwiGlu => SWIGLU,
    /// Quantises rows for the KV cache into GGML blocks, byte for byte as GGML's reference does.
    KvPack => KV_PACK,
    /// Reads rows back from GGML blocks: `y = d * q` (`Q8_0`) or `d * (q - 8)` (`Q4_0`).
    KvUnpack => KV_UNPACK,
    /// The low-rank update of Hu et al., arXiv 2106.09685: `y = scale * (x A^T) B^T`.
    ///
    /// `ab` holds both factors in groups of four: group `g < ceil(in_dim / 4)` has for each rank `r`
    /// the elements `A[r][4g .. 4g + 4]`, and the groups after them `B[4h .. 4h + 4][r]`; rows and
    /// columns beyond the true dimension are zero. `groups = ceil(in_dim / 4) + ceil(out_dim / 4)`.
    LoraApply => LORA_APPLY,
    /// Gaussian error linear unit in its approximation by tanh, of Hendrycks and Gimpel, arXiv 1606.08415:
    /// `y = x / 2 * (1 + tanh(sqrt(2 / pi) * (x + 0.044715 * x^3)))`, element by element.
    ///
    /// GGML calls it `gelu` too; in configurations of models it is `gelu_new` and `gelu_pytorch_tanh`.
    Gelu => GELU,
    /// Gated unit GEGLU of Shazeer, arXiv 2002.05202: `y = gelu(gate) * up`, element by element, with
    /// the approximation of [`Op::Gelu`].
    GeGlu => GEGLU,
    /// Layer normalisation (Ba, Kiros and Hinton, arXiv 1607.06450), row by row:
    /// `y = (x - mean(x)) / sqrt(variance(x) + eps) * weight + bias`, the variance over `dim`.
    ///
    /// `weight_and_bias` holds the weights, then the biases, which are zero where a model has none.
    LayerNorm => LAYER_NORM,
}

/// One dimension of a tensor in a contract.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Dim {
    /// A symbol, bound by the shapes of a call.
    Sym(&'static str),
    /// A fixed extent.
    Fixed(u32),
}

/// A tensor in a contract: its name and shape, outermost dimension first.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TensorContract {
    /// The name that the catalogue uses; a manifest may use another.
    pub name: &'static str,
    /// The shape.
    pub shape: &'static [Dim],
}

/// The type of a parameter; each takes one word of the params block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ParamType {
    /// Binary32, passed as its bits.
    F32,
    /// Unsigned integer.
    U32,
    /// Signed integer, passed in two's complement.
    I32,
}

impl ParamType {
    /// The name in manifests.
    pub const fn name(self) -> &'static str {
        match self {
            ParamType::F32 => "f32",
            ParamType::U32 => "u32",
            ParamType::I32 => "i32",
        }
    }
}

/// A parameter in a contract.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ParamContract {
    /// Its name.
    pub name: &'static str,
    /// Its type.
    pub ty: ParamType,
}

/// Element types that a kernel of an operation may have, and the core pack's name for it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Variant {
    /// The kernel's id in the core pack.
    pub kernel: &'static str,
    /// Element types of the inputs.
    pub inputs: &'static [DType],
    /// Element type of the output.
    pub output: DType,
}

/// Everything that a caller and a kernel of an operation agree on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OpContract {
    /// The operation's name in manifests.
    pub name: &'static str,
    /// How many of the output's outermost dimensions count its rows, each of which is computed on its
    /// own. The first symbols are those of these dimensions; a call can be cut along them.
    pub row_dims: usize,
    /// Its inputs in descriptor order.
    pub inputs: &'static [TensorContract],
    /// Its output.
    pub output: TensorContract,
    /// Its parameters in order.
    pub params: &'static [ParamContract],
    /// The combinations of element types that the catalogue defines.
    pub variants: &'static [Variant],
    /// The inputs that the operation is differentiated by, in order: `kernel_backward` gives the gradient of
    /// each. The first is always among them; none where the operation has no gradient.
    pub gradients: &'static [usize],
}

const fn sym(name: &'static str) -> Dim {
    Dim::Sym(name)
}

const ROWS_DIM: &[Dim] = &[sym("rows"), sym("dim")];
const HEADS: &[Dim] = &[sym("batch"), sym("seq"), sym("heads"), sym("dim")];

const fn tensor(name: &'static str, shape: &'static [Dim]) -> TensorContract {
    TensorContract { name, shape }
}

const fn param(name: &'static str, ty: ParamType) -> ParamContract {
    ParamContract { name, ty }
}

const fn variant(kernel: &'static str, inputs: &'static [DType], output: DType) -> Variant {
    Variant { kernel, inputs, output }
}

const ROPE: OpContract = OpContract {
    name: "rope",
    row_dims: 2,
    inputs: &[tensor("x", HEADS), tensor("freqs", &[sym("seq"), sym("dim_half"), Dim::Fixed(2)])],
    output: tensor("y", HEADS),
    params: &[param("theta", ParamType::F32), param("interleaved", ParamType::U32)],
    variants: &[
        variant("rope_f32", &[DType::F32, DType::F32], DType::F32),
        variant("rope_f16", &[DType::F16, DType::F32], DType::F16),
        variant("rope_q8", &[DType::Q8_0, DType::F32], DType::Q8_0),
    ],
    // The angles are no parameters of a model.
    gradients: &[0],
};

const RMS_NORM: OpContract = OpContract {
    name: "rmsnorm",
    row_dims: 1,
    inputs: &[tensor("x", ROWS_DIM), tensor("weight", &[sym("dim")])],
    output: tensor("y", ROWS_DIM),
    params: &[param("eps", ParamType::F32)],
    variants: &[
        variant("rmsnorm_f32", &[DType::F32, DType::F32], DType::F32),
        variant("rmsnorm_f16", &[DType::F16, DType::F32], DType::F16),
    ],
    gradients: &[0, 1],
};

const SWIGLU: OpContract = OpContract {
    name: "swiglu",
    row_dims: 1,
    inputs: &[tensor("gate", ROWS_DIM), tensor("up", ROWS_DIM)],
    output: tensor("y", ROWS_DIM),
    params: &[],
    variants: &[
        variant("swiglu_f32", &[DType::F32, DType::F32], DType::F32),
        variant("swiglu_f16", &[DType::F16, DType::F16], DType::F16),
    ],
    gradients: &[0, 1],
};

const KV_PACK: OpContract = OpContract {
    name: "kv_pack",
    row_dims: 1,
    inputs: &[tensor("x", ROWS_DIM)],
    output: tensor("y", ROWS_DIM),
    params: &[],
    variants: &[
        variant("kv_pack_q4", &[DType::F32], DType::Q4_0),
        variant("kv_pack_q8", &[DType::F32], DType::Q8_0),
    ],
    gradients: &[],
};

const KV_UNPACK: OpContract = OpContract {
    name: "kv_unpack",
    row_dims: 1,
    inputs: &[tensor("x", ROWS_DIM)],
    output: tensor("y", ROWS_DIM),
    params: &[],
    variants: &[
        variant("kv_unpack_q4", &[DType::Q4_0], DType::F32),
        variant("kv_unpack_q8", &[DType::Q8_0], DType::F32),
    ],
    gradients: &[],
};

const LORA_APPLY: OpContract = OpContract {
    name: "lora_apply",
    row_dims: 1,
    inputs: &[
        tensor("x", &[sym("rows"), sym("in_dim")]),
        tensor("ab", &[sym("groups"), sym("rank"), Dim::Fixed(4)]),
    ],
    output: tensor("y", &[sym("rows"), sym("out_dim")]),
    params: &[param("scale", ParamType::F32)],
    variants: &[
        variant("lora_apply_f32", &[DType::F32, DType::F32], DType::F32),
        variant("lora_apply_f16", &[DType::F16, DType::F16], DType::F16),
    ],
    gradients: &[0, 1],
};

const GELU: OpContract = OpContract {
    name: "gelu",
    row_dims: 1,
    inputs: &[tensor("x", ROWS_DIM)],
    output: tensor("y", ROWS_DIM),
    params: &[],
    variants: &[
        variant("gelu_f32", &[DType::F32], DType::F32),
        variant("gelu_f16", &[DType::F16], DType::F16),
    ],
    gradients: &[0],
};

const GEGLU: OpContract = OpContract {
    name: "geglu",
    row_dims: 1,
    inputs: &[tensor("gate", ROWS_DIM), tensor("up", ROWS_DIM)],
    output: tensor("y", ROWS_DIM),
    params: &[],
    variants: &[
        variant("geglu_f32", &[DType::F32, DType::F32], DType::F32),
        variant("geglu_f16", &[DType::F16, DType::F16], DType::F16),
    ],
    gradients: &[0, 1],
};

const LAYER_NORM: OpContract = OpContract {
    name: "layernorm",
    row_dims: 1,
    inputs: &[tensor("x", ROWS_DIM), tensor("weight_and_bias", &[Dim::Fixed(2), sym("dim")])],
    output: tensor("y", ROWS_DIM),
    params: &[param("eps", ParamType::F32)],
    variants: &[
        variant("layernorm_f32", &[DType::F32, DType::F32], DType::F32),
        variant("layernorm_f16", &[DType::F16, DType::F32], DType::F16),
    ],
    gradients: &[0, 1],
};

impl Op {
    /// The name in manifests, such as `rmsnorm`.
    pub const fn name(self) -> &'static str {
        self.contract().name
    }

    /// The operation of that name, or `None` for a custom one.
    pub fn from_name(name: &str) -> Option<Op> {
        Op::ALL.into_iter().find(|op| op.name() == name)
    }
}

impl fmt::Display for Op {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl OpContract {
    /// The distinct shape symbols, in order of first appearance: the first words of the params block.
    pub fn symbols(&self) -> impl Iterator<Item = &'static str> {
        let dims = |i: usize| -> &'static [Dim] {
            if i < self.inputs.len() { self.inputs[i].shape } else { self.output.shape }
        };
        let tensors = self.inputs.len() + 1;
        (0..tensors).flat_map(move |t| {
            (0..dims(t).len()).filter_map(move |d| {
                let Dim::Sym(name) = dims(t)[d] else { return None };
                let seen_in = |s: &[Dim]| s.contains(&Dim::Sym(name));
                let earlier = (0..t).any(|u| seen_in(dims(u))) || seen_in(&dims(t)[..d]);
                (!earlier).then_some(name)
            })
        })
    }

    /// Number of words in the params block of a call.
    pub fn param_words(&self) -> usize {
        self.symbols().count() + self.params.len()
    }

    /// The inputs whose gradients a kernel of these element types can give: those of
    /// [`OpContract::gradients`] where all tensors are binary32, as gradients are, and else none.
    pub fn gradients_of(&self, inputs: &[DType], output: DType) -> &'static [usize] {
        let are_f32 = output == DType::F32 && inputs.iter().all(|dtype| *dtype == DType::F32);
        if are_f32 { self.gradients } else { &[] }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    extern crate std;
    use std::vec::Vec;

    #[test]
    fn symbols_come_in_order_of_first_appearance() {
        let symbols = |op: Op| op.contract().symbols().collect::<Vec<_>>();
        assert_eq!(symbols(Op::Rope), ["batch", "seq", "heads", "dim", "dim_half"]);
        assert_eq!(symbols(Op::RmsNorm), ["rows", "dim"]);
        assert_eq!(symbols(Op::LoraApply), ["rows", "in_dim", "groups", "rank", "out_dim"]);
    }

    #[test]
    fn every_contract_fits_the_descriptor_and_the_params_block() {
        for op in Op::ALL {
            let contract = op.contract();
            assert!(contract.inputs.len() <= crate::MAX_INPUTS);
            assert!(contract.param_words() <= crate::MAX_PARAM_WORDS);
            let rows = contract.output.shape[..contract.row_dims].iter();
            assert!(rows.zip(contract.symbols()).all(|(dim, name)| *dim == Dim::Sym(name)));
            assert_eq!(Op::from_name(op.name()), Some(op));
            for variant in contract.variants {
                assert_eq!(variant.inputs.len(), contract.inputs.len());
            }
            assert!(matches!(contract.gradients, [] | [0] | [0, 1]));
            assert!(contract.gradients.len() <= contract.inputs.len());
        }
        assert_eq!(Op::from_name("softmax"), None);
    }
}
