//! The files that a new pack is made from, carried inside the program so that `new` works offline.

use ruvllm_abi::Op;

/// A file of the SDK: where it goes below `sdk/`, and its text.
pub(super) type Source = (&'static str, &'static str);

macro_rules! sdk_file {
    ($path:literal) => {
        include_str!(concat!("../../../../kernel-sdk/", $path))
    };
}

macro_rules! template {
    ($($path:literal),*) => {
        include_str!(concat!("../../../../kernel-sdk/templates/", $($path),*))
    };
}

/// The sources of the SDK and of the ABI, as they go into a Rust pack.
pub(super) const SDK: &[Source] = &[
    ("src/element.rs", sdk_file!("src/element.rs")),
    ("src/entry.rs", sdk_file!("src/entry.rs")),
    ("src/lib.rs", sdk_file!("src/lib.rs")),
    ("src/simd/mod.rs", sdk_file!("src/simd/mod.rs")),
    ("src/simd/portable.rs", sdk_file!("src/simd/portable.rs")),
    ("src/simd/wasm.rs", sdk_file!("src/simd/wasm.rs")),
    ("src/view.rs", sdk_file!("src/view.rs")),
    ("src/view/tests.rs", sdk_file!("src/view/tests.rs")),
    ("abi/src/contract.rs", sdk_file!("abi/src/contract.rs")),
    ("abi/src/descriptor.rs", sdk_file!("abi/src/descriptor.rs")),
    ("abi/src/dtype.rs", sdk_file!("abi/src/dtype.rs")),
    ("abi/src/float.rs", sdk_file!("abi/src/float.rs")),
    ("abi/src/lib.rs", sdk_file!("abi/src/lib.rs")),
    ("abi/src/message.rs", sdk_file!("abi/src/message.rs")),
    ("abi/src/status.rs", sdk_file!("abi/src/status.rs")),
    ("abi/src/team.rs", sdk_file!("abi/src/team.rs")),
];

pub(super) const SDK_CARGO: &str = template!("sdk/Cargo.toml.in");
pub(super) const ABI_CARGO: &str = template!("sdk/abi.Cargo.toml.in");
pub(super) const SDK_README: &str = template!("sdk/README.md.in");
pub(super) const HEADER: &str = sdk_file!("include/ruvllm_kernel.h");
pub(super) const GITIGNORE: &str = template!("gitignore");
pub(super) const README: &str = template!("README.md.in");
pub(super) const PACK: &str = template!("pack.toml.in");
pub(super) const CARGO: &str = template!("rust/Cargo.toml.in");
pub(super) const CARGO_BIN: &str = template!("rust/bin.toml.in");
pub(super) const CARGO_LOCK: &str = template!("rust/Cargo.lock.in");
pub(super) const LIB: &str = template!("rust/src/lib.rs.in");

/// A worked kernel in both languages.
pub(super) struct Worked {
    /// Its operation; for the custom one, `None`.
    pub(super) op: Option<Op>,
    /// The module of its maths in a Rust pack.
    pub(super) module: &'static str,
    /// Its id, which names its source file.
    pub(super) id: &'static str,
    /// What it does, in a few words.
    pub(super) what: &'static str,
    /// Its section of `pack.toml`.
    pub(super) section: &'static str,
    /// Its golden file.
    pub(super) golden: &'static str,
    pub(super) rust_maths: &'static str,
    pub(super) rust_kernel: &'static str,
    pub(super) c_kernel: &'static str,
}

macro_rules! worked {
    ($op:expr, $module:literal, $id:literal, $what:literal) => {
        Worked {
            op: $op,
            module: $module,
            id: $id,
            what: $what,
            section: template!("kernel/", $module, ".toml"),
            golden: template!("golden/", $module, ".json"),
            rust_maths: template!("rust/src/", $module, ".rs"),
            rust_kernel: template!("rust/kernels/", $id, ".rs"),
            c_kernel: template!("c/kernels/", $id, ".c"),
        }
    };
}

/// Every kernel that a pack can begin with: one of each operation, and a custom one.
pub(super) const WORKED: [Worked; Op::ALL.len() + 1] = [
    worked!(Some(Op::Rope), "rope", "rope_f32", "rotary position embedding"),
    worked!(Some(Op::RmsNorm), "rmsnorm", "rmsnorm_f32", "root-mean-square normalisation"),
    worked!(Some(Op::SwiGlu), "swiglu", "swiglu_f32", "the gated unit SwiGLU"),
    worked!(Some(Op::KvPack), "kv_pack", "kv_pack_q8", "KV cache rows to q8_0"),
    worked!(Some(Op::KvUnpack), "kv_unpack", "kv_unpack_q8", "KV cache rows from q8_0"),
    worked!(Some(Op::LoraApply), "lora_apply", "lora_apply_f32", "low-rank updates"),
    worked!(Some(Op::Gelu), "gelu", "gelu_f32", "GELU in its approximation by tanh"),
    worked!(Some(Op::GeGlu), "geglu", "geglu_f32", "the gated unit GEGLU"),
    worked!(Some(Op::LayerNorm), "layernorm", "layernorm_f32", "layer normalisation"),
    worked!(None, "affine", "affine_f32", "the custom operation y = a x + b"),
];
