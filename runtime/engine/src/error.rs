//! What can go wrong between a model file and its text, each with a stable code.

mod sealed;
mod tokenizer;

use std::path::PathBuf;

use ruvllm_abi::DType;
use ruvllm_host::{CallError, HostError};
use ruvllm_native::NativeError;

pub use sealed::SealedError;
pub use tokenizer::TokenizerError;

/// An error of the engine. [`EngineError::code`] is stable; messages say what to do.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum EngineError {
    /// There is nothing at the path.
    #[error("{}: no such file or directory; check the path of the model", path.display())]
    FileNotFound {
        /// The path as given.
        path: PathBuf,
    },
    /// The operating system refused to read a file.
    #[error("{}: cannot be read: {source}", path.display())]
    Io {
        /// The file.
        path: PathBuf,
        /// What the system said.
        source: std::io::Error,
    },
    /// The file or directory is no model that this engine reads.
    #[error(
        "{path}: {reason}; expected a GGUF file, or a directory with config.json, model.safetensors and tokenizer.json"
    )]
    NotAModel {
        /// The file or directory.
        path: String,
        /// What was found instead.
        reason: String,
    },
    /// A GGUF file ends before its contents do.
    #[error(
        "{path}: truncated GGUF: {what} needs {missing} more bytes than the file has; copy or download the file again"
    )]
    GgufTruncated {
        /// The file.
        path: String,
        /// The tensor or header field that is cut off.
        what: String,
        /// How many bytes are missing for it.
        missing: u64,
    },
    /// A GGUF file contradicts the format.
    #[error("{path}: malformed GGUF: {reason}; convert or download the file again")]
    GgufMalformed {
        /// The file.
        path: String,
        /// The contradiction.
        reason: String,
    },
    /// A GGUF file has a version or byte order that is not read.
    #[error(
        "{path}: GGUF {found} is not supported, only versions 2 and 3 in little-endian order; convert the model again"
    )]
    GgufVersion {
        /// The file.
        path: String,
        /// Version or byte order.
        found: String,
    },
    /// A safetensors file is damaged or contradicts itself.
    #[error("{path}: unusable safetensors file: {reason}; download it again")]
    Safetensors {
        /// The file.
        path: String,
        /// What is wrong with it.
        reason: String,
    },
    /// The configuration lacks a value that the model cannot do without.
    #[error(
        "{path}: the model's metadata has no `{key}`; convert the model again with a current converter"
    )]
    ConfigMissing {
        /// The file.
        path: String,
        /// The missing key.
        key: String,
    },
    /// The configuration holds a value that cannot be right or is not supported.
    #[error("{path}: `{key}` is {value}: {reason}")]
    ConfigInvalid {
        /// The file.
        path: String,
        /// The key.
        key: String,
        /// Its value.
        value: String,
        /// Why it is refused.
        reason: String,
    },
    /// The model belongs to a family that the decoder does not know.
    #[error("{path}: architecture `{architecture}` is not supported; supported are {supported}")]
    ArchitectureUnknown {
        /// The file.
        path: String,
        /// The architecture that the file names.
        architecture: String,
        /// The families that the decoder knows, for people.
        supported: String,
    },
    /// A tensor that the model needs is not in the file.
    #[error(
        "{path}: tensor `{tensor}` is missing; the file is incomplete or of another architecture"
    )]
    TensorMissing {
        /// The file.
        path: String,
        /// Its name.
        tensor: String,
    },
    /// The file holds a tensor that the engine would not compute with, so that its answers would not be
    /// those of the model.
    #[error(
        "{path}: tensor `{tensor}`{} is not part of the `{architecture}` model that the metadata describes; without it other numbers would come out, so correct the metadata if they deny it, as `attention_bias` of a config.json may, or convert the model again, under the architecture that has it",
        and_more(*others)
    )]
    TensorUnused {
        /// The file.
        path: String,
        /// Its name.
        tensor: String,
        /// How many more there are.
        others: usize,
        /// The architecture that the file names.
        architecture: String,
    },
    /// A tensor has another shape than the configuration implies.
    #[error(
        "{path}: tensor `{tensor}` has shape {found:?}, but the model's configuration implies {expected:?}; the file contradicts itself, convert it again"
    )]
    TensorShape {
        /// The file.
        path: String,
        /// Its name.
        tensor: String,
        /// The shape in the file, outermost dimension first.
        found: Vec<usize>,
        /// The shape that the configuration implies.
        expected: Vec<usize>,
    },
    /// A tensor is stored in a type that the engine does not compute with.
    #[error(
        "{path}: tensor `{tensor}` has type {found}, which is not supported; use a file in F32, F16, BF16, Q8_0, Q4_0, Q4_1, Q5_0, Q5_1, Q4_K, Q5_K or Q6_K"
    )]
    TensorType {
        /// The file.
        path: String,
        /// Its name.
        tensor: String,
        /// The type.
        found: String,
    },
    /// The prompt does not fit the context.
    #[error(
        "the prompt has {prompt} tokens and {used} are in the context already, but the context holds {context}; shorten the prompt or choose a larger context"
    )]
    PromptTooLong {
        /// Tokens of the prompt.
        prompt: usize,
        /// Tokens already in the context.
        used: usize,
        /// Tokens that the context holds.
        context: usize,
    },
    /// There is no token to start from.
    #[error("the prompt has no tokens; give at least one token or a model with a BOS token")]
    PromptEmpty,
    /// A token id lies outside the model's vocabulary.
    #[error(
        "token {token} is outside the model's vocabulary of {vocab}; use the model's own tokenizer"
    )]
    TokenOutOfRange {
        /// The token id.
        token: u32,
        /// Size of the vocabulary.
        vocab: usize,
    },
    /// The file or directory is no adapter.
    #[error(
        "{path}: {reason}; expected a GGUF adapter, or a directory with adapter_config.json and adapter_model.safetensors"
    )]
    NotAnAdapter {
        /// The file or directory.
        path: String,
        /// What was found instead.
        reason: String,
    },
    /// An adapter does more than the engine can, which would otherwise be left out silently.
    #[error(
        "{path}: this adapter is not supported: {what}; supported is LoRA of the query, key, value, output, gate, up and down projections"
    )]
    AdapterUnsupported {
        /// The file or directory.
        path: String,
        /// What it does.
        what: String,
    },
    /// An adapter was made for another model.
    #[error(
        "{path}: the adapter does not fit the model: {reason}; use it with the model that it was trained on"
    )]
    AdapterMismatch {
        /// The file or directory.
        path: String,
        /// What does not fit.
        reason: String,
    },
    /// An adapter contradicts itself or is incomplete.
    #[error("{path}: the adapter is damaged: {reason}; convert or download it again")]
    AdapterDamaged {
        /// The file or directory.
        path: String,
        /// What is wrong with it.
        reason: String,
    },
    /// A session was given an adapter of another model.
    #[error(
        "adapter {name} was opened for another model; open it with the engine that computes the session"
    )]
    ForeignAdapter {
        /// The adapter.
        name: String,
    },
    /// A session was handed to an engine that did not make it.
    #[error("the session belongs to another engine; compute it with the engine that made it")]
    ForeignSession,
    /// An input of a step over several sequences was refused, so nothing of the step was computed.
    #[error("input {input} of the step: {source}")]
    StepInput {
        /// Its index among the inputs.
        input: usize,
        /// What is wrong with it.
        source: Box<EngineError>,
    },
    /// A quantised KV cache needs whole blocks per head.
    #[error(
        "a KV cache in {codec} needs a head size that is a multiple of 32, but this model's is {head_dim}; use --kv f16"
    )]
    KvHeadDim {
        /// The codec.
        codec: DType,
        /// The model's head size.
        head_dim: usize,
    },
    /// An option of the engine, the sampler or a measurement is out of range.
    #[error("{option} is {value}: {reason}")]
    InvalidOption {
        /// The option.
        option: &'static str,
        /// Its value.
        value: String,
        /// What it must be.
        reason: &'static str,
    },
    /// A context that the model was not made for.
    #[error(
        "a context of {context} tokens was asked for, but the model was trained for {trained}; choose from 1 to {trained}, or stretch it with --rope-scaling yarn (or linear, ntk, llama3) and perhaps --rope-factor"
    )]
    ContextOutOfRange {
        /// Tokens asked for.
        context: usize,
        /// Tokens of the model's own context.
        trained: usize,
    },
    /// A context beyond the trained one, for a model whose rotation would then change as a sequence grows.
    #[error(
        "a context of {context} tokens was asked for, but the rope scaling of the model is `dynamic`: beyond {trained} tokens it turns keys by angles that depend on how long the sequence is at the time, and keys that sequences share cannot follow; choose from 1 to {trained}, or a fixed stretch with --rope-scaling ntk (or linear, yarn, llama3) and perhaps --rope-factor"
    )]
    DynamicRope {
        /// Tokens asked for.
        context: usize,
        /// Tokens up to which nothing is stretched.
        trained: usize,
    },
    /// A block of keys and values is not where the step expects it.
    #[error(
        "the keys and values at position {position} are not in memory; this is a defect of the program: report it, and begin the sequence anew"
    )]
    KvBlockMissing {
        /// The position of the block's first token.
        position: usize,
    },
    /// A saved session that this engine cannot continue.
    #[error(
        "{}: the session was saved with another {what}: {saved} there, {here} here; load it as it was saved, or delete it and compute the prompt again", path.display()
    )]
    SessionMismatch {
        /// The file.
        path: PathBuf,
        /// What differs.
        what: &'static str,
        /// What the session was saved with.
        saved: String,
        /// What the engine has.
        here: String,
    },
    /// The budget of memory does not hold one sequence.
    #[error(
        "a memory budget of {budget} bytes is too small: one sequence of {context} tokens with its working memory ({scratch} bytes) needs {needed}; raise --memory, or lower --ctx or the bits of --kv"
    )]
    MemoryTooSmall {
        /// The budget.
        budget: usize,
        /// Bytes that are needed.
        needed: usize,
        /// Of these, the working memory.
        scratch: usize,
        /// Tokens of the sequence.
        context: usize,
    },
    /// The budget of memory is used up, and nothing can be reclaimed.
    #[error(
        "{needed} bytes more do not fit the memory budget of {budget}: {holders}; end sequences, or raise --memory"
    )]
    MemoryExhausted {
        /// Bytes that were wanted.
        needed: usize,
        /// The budget.
        budget: usize,
        /// Who holds what.
        holders: String,
    },
    /// Nothing can be written to the directory for spilled blocks.
    #[error(
        "{}: KV blocks cannot be spilled there: {source}; choose an existing directory with free space that this user can write to", path.display()
    )]
    SpillDirectory {
        /// The directory.
        path: PathBuf,
        /// What the system said.
        source: std::io::Error,
    },
    /// Logits or hidden states of a step are not finite, or no token can be chosen by them.
    #[error(
        "the model gave numbers that are not finite; the weights are damaged or a kernel misbehaves (try --kernels native)"
    )]
    NonFiniteLogits,
    /// The constraint on a text failed, or leaves no token to go on with.
    #[error("the constraint on the text failed: {reason}")]
    Constraint {
        /// What went wrong.
        reason: String,
    },
    /// A text is too short to measure.
    #[error(
        "the text has {tokens} tokens, but a perplexity over contexts of {context} needs at least {needed}; use a longer text or a smaller context"
    )]
    TextTooShort {
        /// Tokens of the text.
        tokens: usize,
        /// Tokens of a chunk.
        context: usize,
        /// Tokens that are needed.
        needed: usize,
    },
    /// A probe text is too short to tell anything.
    #[error("the probe text has {tokens} tokens and needs at least {needed}; give a longer one")]
    ProbeTooShort {
        /// Tokens of the text.
        tokens: usize,
        /// Tokens that are needed.
        needed: usize,
    },
    /// No candidate, not even a native one, implements an operation that the decoder needs.
    #[error("no kernel for {op}; the host has neither a pack kernel nor a native one for it")]
    OpUnavailable {
        /// The operation with its element types.
        op: String,
    },
    /// Saved state was not written or not read.
    #[error("{}: {source}", path.display())]
    Sealed {
        /// The file.
        path: PathBuf,
        /// What is wrong.
        source: SealedError,
    },
    /// A file holds no key.
    #[error(
        "{}: this is no session key; a key is 64 hexadecimal digits or 32 raw bytes, make one with `openssl rand -hex 32`", path.display()
    )]
    KeyInvalid {
        /// The file.
        path: PathBuf,
    },
    /// Others than its owner can read or change the file of a key.
    #[error(
        "the session key {} is open to others (mode {mode:04o}): run `chmod 600` on it, and make a new key if somebody may have read this one", path.display()
    )]
    KeyExposed {
        /// The file.
        path: PathBuf,
        /// Its permission bits.
        mode: u32,
    },
    /// The operating system gave no randomness.
    #[error("the operating system gave no randomness: {source}")]
    Entropy {
        /// What the system said.
        source: getrandom::Error,
    },
    /// A native operation refused its arguments.
    #[error(transparent)]
    Native(#[from] NativeError),
    /// Every candidate of an operation failed.
    #[error(transparent)]
    Call(#[from] CallError),
    /// The host refused.
    #[error(transparent)]
    Host(#[from] HostError),
    /// The tokenizer refused.
    #[error(transparent)]
    Tokenizer(#[from] TokenizerError),
}

impl EngineError {
    /// The stable code of the error, shared by the command line and every other surface.
    pub fn code(&self) -> &'static str {
        match self {
            EngineError::FileNotFound { .. } => "file_not_found",
            EngineError::Io { .. } => "io",
            EngineError::NotAModel { .. } => "not_a_model",
            EngineError::GgufTruncated { .. } => "gguf_truncated",
            EngineError::GgufMalformed { .. } => "gguf_malformed",
            EngineError::GgufVersion { .. } => "gguf_version",
            EngineError::Safetensors { .. } => "safetensors",
            EngineError::ConfigMissing { .. } => "config_missing",
            EngineError::ConfigInvalid { .. } => "config_invalid",
            EngineError::ArchitectureUnknown { .. } => "architecture_unknown",
            EngineError::TensorMissing { .. } => "tensor_missing",
            EngineError::TensorUnused { .. } => "tensor_unused",
            EngineError::TensorShape { .. } => "tensor_shape",
            EngineError::TensorType { .. } => "tensor_type",
            EngineError::PromptTooLong { .. } => "prompt_too_long",
            EngineError::PromptEmpty => "prompt_empty",
            EngineError::TokenOutOfRange { .. } => "token_out_of_range",
            EngineError::NotAnAdapter { .. } => "not_an_adapter",
            EngineError::AdapterUnsupported { .. } => "adapter_unsupported",
            EngineError::AdapterMismatch { .. } => "adapter_mismatch",
            EngineError::AdapterDamaged { .. } => "adapter_damaged",
            EngineError::ForeignAdapter { .. } => "foreign_adapter",
            EngineError::ForeignSession => "foreign_session",
            EngineError::StepInput { source, .. } => source.code(),
            EngineError::KvHeadDim { .. } => "kv_head_dim",
            EngineError::InvalidOption { .. } => "invalid_option",
            EngineError::ContextOutOfRange { .. } => "context_out_of_range",
            EngineError::DynamicRope { .. } => "dynamic_rope",
            EngineError::KvBlockMissing { .. } => "kv_block_missing",
            EngineError::SessionMismatch { .. } => "session_mismatch",
            EngineError::MemoryTooSmall { .. } => "memory_too_small",
            EngineError::MemoryExhausted { .. } => "memory_exhausted",
            EngineError::SpillDirectory { .. } => "spill_directory",
            EngineError::NonFiniteLogits => "non_finite_logits",
            EngineError::Constraint { .. } => "constraint",
            EngineError::TextTooShort { .. } => "text_too_short",
            EngineError::ProbeTooShort { .. } => "probe_too_short",
            EngineError::OpUnavailable { .. } => "op_unavailable",
            EngineError::Sealed { source, .. } => source.code(),
            EngineError::KeyInvalid { .. } => "key_invalid",
            EngineError::KeyExposed { .. } => "key_exposed",
            EngineError::Entropy { .. } => "entropy",
            EngineError::Native(e) => e.code(),
            EngineError::Call(e) => e.code(),
            EngineError::Host(e) => e.code(),
            EngineError::Tokenizer(e) => e.code(),
        }
    }

    /// Wraps what the operating system said about `path`; a missing file gets its own variant.
    pub(crate) fn io(path: &std::path::Path, source: std::io::Error) -> EngineError {
        if source.kind() == std::io::ErrorKind::NotFound {
            return EngineError::FileNotFound { path: path.to_owned() };
        }
        EngineError::Io { path: path.to_owned(), source }
    }
}

/// ` (and 3 more)` for 3, and nothing for none.
fn and_more(others: usize) -> String {
    if others == 0 { String::new() } else { format!(" (and {others} more)") }
}

/// The beginning of a hash, as messages show it.
pub(crate) fn short_hash(hash: &[u8; 32]) -> String {
    hash[..6].iter().map(|byte| format!("{byte:02x}")).collect()
}
