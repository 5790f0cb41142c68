//! What can go wrong when a tokenizer is loaded or used.

/// Errors of [`Tokenizer`](crate::tokenizer::Tokenizer).
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum TokenizerError {
    /// A required metadata key or file is absent.
    #[error("{what} is missing; {hint}")]
    Missing {
        /// The key or file.
        what: String,
        /// What the reader can do about it.
        hint: &'static str,
    },
    /// A metadata entry or file has the wrong type, length or syntax.
    #[error("{what} is malformed: {reason}")]
    Malformed {
        /// The key or file.
        what: String,
        /// What is wrong with it.
        reason: String,
    },
    /// The tokenizer family is not one this engine implements.
    #[error(
        "tokenizer model '{model}' is not supported; supported are 'llama' (SentencePiece), 'gpt2' and 'gemma4' (BPE)"
    )]
    UnsupportedModel {
        /// Value of `tokenizer.ggml.model`.
        model: String,
    },
    /// The name of the pre-tokenizer is not in the table.
    #[error("pre-tokenizer '{name}' is not supported; supported are: {supported}")]
    UnknownPreTokenizer {
        /// Value of `tokenizer.ggml.pre`.
        name: String,
        /// Comma-separated names of the table.
        supported: String,
    },
    /// A special token is to be added but the vocabulary does not define it.
    #[error(
        "the metadata asks for a {token} token but defines none; set tokenizer.ggml.{token}_token_id or turn tokenizer.ggml.add_{token}_token off"
    )]
    NoSpecialToken {
        /// `bos` or `eos`.
        token: &'static str,
    },
    /// A SentencePiece vocabulary has no token for a byte that occurs in the text.
    #[error(
        "the vocabulary has neither a token for byte 0x{byte:02X} nor an unknown token; convert the model again with byte fallback"
    )]
    NoByteToken {
        /// The byte.
        byte: u8,
    },
    /// A file could not be read.
    #[error("cannot read {path}: {source}")]
    Io {
        /// The file.
        path: String,
        /// Why.
        source: std::io::Error,
    },
    /// A `tokenizer.json` is no JSON, contradicts itself or has what is not supported.
    #[error(
        "tokenizer.json: {0}; use the file that came with the model, or convert the model to GGUF"
    )]
    HuggingFace(String),
}

impl TokenizerError {
    /// Stable identifier of the kind of error, for logs and APIs.
    pub fn code(&self) -> &'static str {
        match self {
            Self::Missing { .. } => "tokenizer_missing",
            Self::Malformed { .. } => "tokenizer_malformed",
            Self::UnsupportedModel { .. } => "tokenizer_unsupported_model",
            Self::UnknownPreTokenizer { .. } => "tokenizer_unknown_pre_tokenizer",
            Self::NoSpecialToken { .. } => "tokenizer_no_special_token",
            Self::NoByteToken { .. } => "tokenizer_no_byte_token",
            Self::Io { .. } => "tokenizer_io",
            Self::HuggingFace(_) => "tokenizer_hugging_face",
        }
    }
}
