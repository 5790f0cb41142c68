//! The facade's error: whichever part refused, with that part's own code and message.

use ruvllm_engine::scheduler::Rejected;
use std::path::PathBuf;

/// Why a runtime could not be built or a request not be served.
///
/// ```
/// let error = ruvllm::Runtime::builder().model("no-such-file.gguf").build().err();
/// assert_eq!(error.as_ref().map(ruvllm::Error::code), Some("file_not_found"));
/// ```
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The model, the tokenizer or the generation.
    #[error(transparent)]
    Engine(#[from] ruvllm_engine::EngineError),
    /// Text and tokens.
    #[error(transparent)]
    Tokenizer(#[from] ruvllm_engine::tokenizer::TokenizerError),
    /// A chat template that could not be compiled or that refused the messages.
    #[error(transparent)]
    Chat(#[from] ruvllm_engine::chat::ChatError),
    /// Messages for a model that has no chat template.
    #[error(
        "{model} has no chat template, so it cannot tell messages apart; give it a text to continue instead"
    )]
    NoChatTemplate {
        /// The model.
        model: String,
    },
    /// A pack that could not be read or verified.
    #[error("kernel pack {pack}: {source}")]
    Pack {
        /// Where the pack is.
        pack: String,
        /// What is wrong with it.
        source: ruvllm_signing::PackError,
    },
    /// A trust policy that could not be read.
    #[error("trust policy {}: {reason}", path.display())]
    Trust {
        /// The policy file.
        path: PathBuf,
        /// What is wrong with it.
        reason: String,
    },
    /// Admission, selection or execution of kernels.
    #[error(transparent)]
    Host(#[from] ruvllm_host::HostError),
    /// A request that is not taken.
    #[error(transparent)]
    Rejected(#[from] Rejected),
    /// What computes requests has ended in the middle of one.
    #[error("the thread that computes steps has panicked; ask again, and report what it printed")]
    SchedulerStopped,
    /// A call of a kernel.
    #[error(transparent)]
    Call(#[from] ruvllm_host::CallError),
}

impl Error {
    /// A stable name in snake case: that of the part which refused.
    pub fn code(&self) -> &'static str {
        match self {
            Error::Engine(error) => error.code(),
            Error::Tokenizer(error) => error.code(),
            Error::Chat(error) => error.code(),
            Error::NoChatTemplate { .. } => "no_chat_template",
            Error::Pack { source, .. } => source.code(),
            Error::Trust { .. } => "trust_policy",
            Error::Host(error) => error.code(),
            Error::Rejected(Rejected::Invalid(error)) => error.code(),
            Error::Rejected(Rejected::QueueFull { .. }) => "queue_full",
            Error::Rejected(Rejected::Draining) => "draining",
            Error::SchedulerStopped => "scheduler_stopped",
            Error::Call(error) => error.code(),
        }
    }
}
