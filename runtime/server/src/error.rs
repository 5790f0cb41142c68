//! Refusals: of a request, in the form that OpenAI's clients read, and of a configuration.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use axum::Json;
use axum::http::{HeaderName, HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use ruvllm_engine::chat::ChatError;
use ruvllm_engine::{EngineError, tokenizer::TokenizerError};
use ruvllm_host::{HistoryError, HostError, SupervisorError};
use ruvllm_signing::PackError;
use serde_json::{Value, json};

use crate::grammar::FULL;

/// Why a server does not start. [`ServerError::code`] is stable; messages say what to do.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ServerError {
    /// Others can reach the address, and no key is asked of them.
    #[error(
        "{address} can be reached from other machines, so it needs API keys: make one with `ruvllm serve --new-key NAME` and give its entry with --api-key, or listen on 127.0.0.1"
    )]
    KeysRequired {
        /// The address.
        address: SocketAddr,
    },
    /// There is an admin listener, and nobody could use it.
    #[error(
        "--admin-listen needs a key for each administrator: make one with `ruvllm serve --new-key NAME` and give its entry with --admin-key"
    )]
    AdminKeysRequired,
    /// Others can reach the admin listener, and could read along.
    #[error(
        "{address} can be reached from other machines, so administrators need HTTPS there: give --tls-cert and --tls-key, or listen on 127.0.0.1"
    )]
    AdminTlsRequired {
        /// The address.
        address: SocketAddr,
    },
    /// Clients and administrators have a key in common.
    #[error(
        "the API key of `{client}` is an admin key, too; give every administrator a key of its own"
    )]
    KeyShared {
        /// The client.
        client: String,
    },
    /// An option that has no effect.
    #[error("--{option} does nothing without --{without}")]
    Pointless {
        /// The option.
        option: &'static str,
        /// What it needs.
        without: &'static str,
    },
    /// The options ask for administration, and the caller brought nothing to administer.
    #[error("an admin listener needs a supervisor over the engine's host")]
    SupervisorRequired,
    /// Two keys have the same name.
    #[error("two API keys are named `{name}`; give every key a name of its own")]
    KeyTwice {
        /// The name.
        name: String,
    },
    /// A name that is none.
    #[error("`{name}` cannot name an API key; use letters, digits, and - _ . @")]
    KeyName {
        /// The name.
        name: String,
    },
    /// An entry that is none.
    #[error(
        "an API key is given as NAME=sha256:HEX, with 64 hexadecimal digits of its hash, as `ruvllm serve --new-key NAME` prints it, and may be followed by ,priority=N from 0 to 255; the key itself is for the client alone"
    )]
    KeyEntry,
    /// An origin that is none.
    #[error(
        "`{origin}` is no origin; give scheme, host and port as browsers send them, in small letters and without a path: https://example.com, or * for all"
    )]
    CorsOrigin {
        /// What was given.
        origin: String,
    },
    /// Every page may use the server, and keys say that only some clients may.
    #[error(
        "--cors-origin '*' lets every page in, while API keys let in only some clients; name the pages' origins instead"
    )]
    CorsAny,
    /// A limit that lets nothing through.
    #[error("{option} must be at least 1")]
    Limit {
        /// The option.
        option: &'static str,
    },
    /// The largest body that a request may have is larger than all together may be.
    #[error(
        "--max-bodies must be at least --max-body, {max_body} bytes, or the largest requests are never read"
    )]
    BodyLimits {
        /// The largest body.
        max_body: usize,
    },
    /// The address is taken, or is not this machine's.
    #[error("cannot listen on {address}: {source}; choose another address with --{option}")]
    Listen {
        /// The option that gave it.
        option: &'static str,
        /// The address.
        address: SocketAddr,
        /// What the system said.
        source: std::io::Error,
    },
    /// Certificate and key are not usable.
    #[error("certificate {} with key {}: {reason}; both must be PEM and belong together", cert.display(), key.display())]
    Tls {
        /// The certificate.
        cert: PathBuf,
        /// The key.
        key: PathBuf,
        /// What is wrong with them.
        reason: String,
    },
    /// The thread or event loop of the server did not start, or ended.
    #[error("the server's event loop failed: {source}")]
    Runtime {
        /// What the system said.
        source: std::io::Error,
    },
    /// The operating system gave no randomness.
    #[error("the operating system gave no randomness: {source}")]
    Entropy {
        /// What the system said.
        source: getrandom::Error,
    },
    /// The file of a chat template cannot be read.
    #[error("chat template {}: {source}", path.display())]
    ChatTemplate {
        /// The file.
        path: PathBuf,
        /// What the system said.
        source: std::io::Error,
    },
    /// Traces cannot be sent there.
    #[cfg(feature = "otel")]
    #[error(
        "traces cannot be sent to `{endpoint}`: {reason}; give a collector's address, as http://127.0.0.1:4318"
    )]
    TraceEndpoint {
        /// The address that was given.
        endpoint: String,
        /// What is wrong with it.
        reason: String,
    },
    /// Two models have the same name.
    #[error(
        "two models are named `{name}`; give every --lora-model and --embedding-model a name of its own, and not the model's"
    )]
    ModelName {
        /// The name.
        name: String,
    },
    /// The configuration cannot be read anew.
    #[error("the configuration cannot be read anew: {reason}")]
    Reload {
        /// What is wrong with it.
        reason: String,
    },
    /// The configuration has no keys any more.
    #[error(
        "the configuration has no API keys any more, and a running server is not opened to everybody: give at least one with --api-key, or start the server again without keys"
    )]
    ReloadKeys,
    /// The configuration turns HTTPS on or off.
    #[error(
        "HTTPS cannot be turned on or off while the server runs: start it again, or give --tls-cert and --tls-key as before"
    )]
    ReloadTls,
    /// What a reload changes cannot be written down.
    #[error(transparent)]
    Supervisor(#[from] SupervisorError),
    /// The chat template is broken.
    #[error(transparent)]
    Chat(#[from] ChatError),
    /// The scheduler refused.
    #[error(transparent)]
    Engine(#[from] EngineError),
}

impl ServerError {
    /// The stable code of the error.
    pub fn code(&self) -> &'static str {
        match self {
            ServerError::KeysRequired { .. } => "api_keys_required",
            ServerError::AdminKeysRequired => "admin_keys_required",
            ServerError::AdminTlsRequired { .. } => "admin_tls_required",
            ServerError::KeyShared { .. } => "api_key_shared",
            ServerError::Pointless { .. } => "pointless_option",
            ServerError::SupervisorRequired => "supervisor_required",
            ServerError::KeyTwice { .. } => "api_key_twice",
            ServerError::KeyName { .. } => "api_key_name",
            ServerError::KeyEntry => "api_key_entry",
            ServerError::CorsOrigin { .. } => "cors_origin",
            ServerError::CorsAny => "cors_any",
            ServerError::Limit { .. } => "limit",
            ServerError::BodyLimits { .. } => "body_limits",
            ServerError::Listen { .. } => "listen",
            ServerError::Tls { .. } => "tls",
            ServerError::Runtime { .. } => "event_loop",
            ServerError::Entropy { .. } => "entropy",
            ServerError::ChatTemplate { .. } => "chat_template",
            #[cfg(feature = "otel")]
            ServerError::TraceEndpoint { .. } => "trace_endpoint",
            ServerError::ModelName { .. } => "model_name",
            ServerError::Reload { .. } => "reload",
            ServerError::ReloadKeys => "reload_keys",
            ServerError::ReloadTls => "reload_tls",
            ServerError::Supervisor(e) => e.code(),
            ServerError::Chat(e) => e.code(),
            ServerError::Engine(e) => e.code(),
        }
    }
}

/// What a client is told instead of an answer.
#[derive(Debug, Clone)]
pub(crate) struct ApiError {
    status: StatusCode,
    message: String,
    param: Option<String>,
    code: &'static str,
    retry: Retry,
}

/// Whether the official clients, which try again after 408, 409, 429 and 5xx, should.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Retry {
    AsStatusSays,
    After(Duration),
    Never,
}

impl ApiError {
    fn new(status: StatusCode, code: &'static str, message: impl Into<String>) -> ApiError {
        ApiError { status, message: message.into(), param: None, code, retry: Retry::AsStatusSays }
    }

    /// A parameter has a value that it may not have.
    pub(crate) fn invalid(param: impl Into<String>, message: impl Into<String>) -> ApiError {
        ApiError::bad_request("invalid_value", message).of(param)
    }

    pub(crate) fn bad_request(code: &'static str, message: impl Into<String>) -> ApiError {
        ApiError::new(StatusCode::BAD_REQUEST, code, message)
    }

    pub(crate) fn unauthorized(message: &str) -> ApiError {
        ApiError::new(StatusCode::UNAUTHORIZED, "invalid_api_key", message)
    }

    pub(crate) fn forbidden_host() -> ApiError {
        let message = "this server answers to its loopback address alone; send `Host: 127.0.0.1` or `localhost`, or configure API keys";
        ApiError::new(StatusCode::FORBIDDEN, "forbidden_host", message)
    }

    pub(crate) fn model_not_found(asked: &str, served: &[&str]) -> ApiError {
        let served = served.join("`, `");
        let message = format!("the model `{asked}` is not served here; there is `{served}`");
        ApiError::new(StatusCode::NOT_FOUND, "model_not_found", message).of("model")
    }

    pub(crate) fn not_found(path: &str) -> ApiError {
        ApiError::new(StatusCode::NOT_FOUND, "unknown_url", format!("there is nothing at {path}"))
    }

    pub(crate) fn method_not_allowed() -> ApiError {
        let message = "this address does not take this method";
        ApiError::new(StatusCode::METHOD_NOT_ALLOWED, "method_not_allowed", message)
    }

    pub(crate) fn not_json() -> ApiError {
        let message = "send the body as JSON, with `Content-Type: application/json`";
        ApiError::new(StatusCode::UNSUPPORTED_MEDIA_TYPE, "unsupported_media_type", message)
    }

    pub(crate) fn not_an_archive() -> ApiError {
        let message = "send the pack as an .rkp archive (`ruvllm-pack archive` writes one), with `Content-Type: application/octet-stream`";
        ApiError::new(StatusCode::UNSUPPORTED_MEDIA_TYPE, "unsupported_media_type", message)
    }

    pub(crate) fn unknown_op(op: &str) -> ApiError {
        let message = format!("no kernel does `{op}`");
        ApiError::new(StatusCode::NOT_FOUND, "unknown_op", message).of("op")
    }

    pub(crate) fn not_barred(digest: &str) -> ApiError {
        let message = format!(
            "no pack with the digest {digest} is barred; give its first digits, at least four of them"
        );
        ApiError::new(StatusCode::NOT_FOUND, "not_barred", message)
    }

    pub(crate) fn ambiguous_digest(digest: &str) -> ApiError {
        let message = format!(
            "several barred packs have a digest that begins with {digest}; give more of its digits"
        );
        ApiError::new(StatusCode::CONFLICT, "ambiguous_digest", message).retry(Retry::Never)
    }

    pub(crate) fn too_large(limit: usize) -> ApiError {
        let message = format!("the body of a request may have {limit} bytes");
        ApiError::new(StatusCode::PAYLOAD_TOO_LARGE, "request_too_large", message)
    }

    pub(crate) fn slow_body() -> ApiError {
        let message = "the body of the request comes in too slowly";
        ApiError::new(StatusCode::REQUEST_TIMEOUT, "slow_body", message)
    }

    pub(crate) fn bodies_full() -> ApiError {
        let message = "the bodies of other requests take all the memory that there is for them; try again later";
        ApiError::new(StatusCode::SERVICE_UNAVAILABLE, "bodies_full", message)
            .retry(Retry::After(Duration::from_secs(1)))
    }

    pub(crate) fn too_many_values(limit: usize) -> ApiError {
        let message = format!(
            "the values of the body would take more than the {limit} bytes that bodies may take (--max-bodies); send fewer of them"
        );
        ApiError::new(StatusCode::PAYLOAD_TOO_LARGE, "request_too_large", message)
    }

    /// A part of the server does not work.
    pub(crate) fn unhealthy(code: &'static str, message: impl Into<String>) -> ApiError {
        ApiError::new(StatusCode::SERVICE_UNAVAILABLE, code, message)
    }

    pub(crate) fn queue_full(retry_after: Duration) -> ApiError {
        let message = "too many requests are waiting; try again later";
        ApiError::new(StatusCode::TOO_MANY_REQUESTS, "queue_full", message)
            .retry(Retry::After(retry_after))
    }

    pub(crate) fn grammar_memory() -> ApiError {
        let message = "the schemas and tools of other requests take as much memory as they may; try again later";
        ApiError::new(StatusCode::TOO_MANY_REQUESTS, "grammar_memory", message)
            .retry(Retry::After(Duration::from_secs(1)))
    }

    pub(crate) fn draining() -> ApiError {
        let message = "the server is about to stop; try again later or elsewhere";
        ApiError::new(StatusCode::SERVICE_UNAVAILABLE, "draining", message)
            .retry(Retry::After(Duration::from_secs(1)))
    }

    pub(crate) fn timeout(limit: Duration) -> ApiError {
        let message = format!("the request took longer than {} seconds", limit.as_secs_f64());
        ApiError::new(StatusCode::GATEWAY_TIMEOUT, "timeout", message).retry(Retry::Never)
    }

    pub(crate) fn internal(message: impl Into<String>) -> ApiError {
        ApiError::new(StatusCode::INTERNAL_SERVER_ERROR, "internal_error", message)
    }

    fn retry(self, retry: Retry) -> ApiError {
        ApiError { retry, ..self }
    }

    /// Names the parameter that is at fault.
    pub(crate) fn of(mut self, param: impl Into<String>) -> ApiError {
        self.param = Some(param.into());
        self
    }

    pub(crate) fn code(&self) -> &'static str {
        self.code
    }

    /// The body that goes with the status, or with no more than `200 OK` in the midst of a stream.
    pub(crate) fn body(&self) -> Value {
        let kind = match self.status {
            StatusCode::TOO_MANY_REQUESTS => "rate_limit_error",
            status if status.is_client_error() => "invalid_request_error",
            _ => "server_error",
        };
        json!({"error": {
            "message": self.message,
            "type": kind,
            "param": self.param,
            "code": self.code,
        }})
    }

    /// The body in the form of Anthropic's API.
    pub(crate) fn anthropic_body(&self) -> Value {
        let kind = match self.status {
            StatusCode::UNAUTHORIZED => "authentication_error",
            StatusCode::FORBIDDEN => "permission_error",
            StatusCode::NOT_FOUND => "not_found_error",
            StatusCode::PAYLOAD_TOO_LARGE => "request_too_large",
            StatusCode::TOO_MANY_REQUESTS => "rate_limit_error",
            StatusCode::SERVICE_UNAVAILABLE => "overloaded_error",
            StatusCode::GATEWAY_TIMEOUT => "timeout_error",
            status if status.is_client_error() => "invalid_request_error",
            _ => "api_error",
        };
        json!({"type": "error", "error": {
            "type": kind,
            "message": self.message,
            "param": self.param,
            "code": self.code,
        }})
    }
}

impl IntoResponse for ApiError {
    fn into_response(self) -> Response {
        let mut response = (self.status, Json(self.body())).into_response();
        response.extensions_mut().insert(self.clone());
        let headers = response.headers_mut();
        match self.retry {
            Retry::AsStatusSays => {}
            Retry::After(wait) => {
                let seconds = wait.as_secs_f64().ceil().max(1.0) as u64;
                headers.insert(header::RETRY_AFTER, seconds.into());
            }
            Retry::Never => {
                let name = HeaderName::from_static("x-should-retry");
                headers.insert(name, HeaderValue::from_static("false"));
            }
        }
        if self.status == StatusCode::UNAUTHORIZED {
            headers.insert(header::WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
        }
        response
    }
}

impl From<EngineError> for ApiError {
    fn from(error: EngineError) -> ApiError {
        let message = error.to_string();
        match error {
            EngineError::Constraint { reason } if reason == FULL => ApiError::grammar_memory(),
            EngineError::PromptTooLong { .. } => {
                ApiError::bad_request("context_length_exceeded", message)
            }
            EngineError::PromptEmpty
            | EngineError::TokenOutOfRange { .. }
            | EngineError::InvalidOption { .. }
            // Of the request's grammar, which goes no further.
            | EngineError::Constraint { .. } => ApiError::bad_request(error.code(), message),
            EngineError::Tokenizer(error) => error.into(),
            EngineError::MemoryExhausted { .. } => {
                let status = StatusCode::SERVICE_UNAVAILABLE;
                ApiError::new(status, error.code(), message)
            }
            _ => ApiError::new(StatusCode::INTERNAL_SERVER_ERROR, error.code(), message),
        }
    }
}

/// Of a configuration that is read anew.
impl From<ServerError> for ApiError {
    fn from(error: ServerError) -> ApiError {
        match error {
            ServerError::Supervisor(error) => error.into(),
            error => {
                let status = StatusCode::UNPROCESSABLE_ENTITY;
                ApiError::new(status, error.code(), format!("nothing was changed: {error}"))
            }
        }
    }
}

impl From<SupervisorError> for ApiError {
    fn from(error: SupervisorError) -> ApiError {
        let (code, message) = (error.code(), error.to_string());
        let status = match error {
            SupervisorError::Host(error) => return error.into(),
            SupervisorError::Pack(error) => status_of_pack(&error),
            SupervisorError::NoEarlier
            | SupervisorError::Overtaken
            | SupervisorError::History(HistoryError::Locked { .. }) => StatusCode::CONFLICT,
            _ => StatusCode::INTERNAL_SERVER_ERROR,
        };
        ApiError::new(status, code, message)
    }
}

impl From<HostError> for ApiError {
    fn from(error: HostError) -> ApiError {
        let status = match error {
            HostError::Refused { .. } => StatusCode::UNPROCESSABLE_ENTITY,
            HostError::NotStaged { .. } | HostError::NotKept { .. } | HostError::NoCanary => {
                StatusCode::NOT_FOUND
            }
            HostError::Barred { .. }
            | HostError::StageFull { .. }
            | HostError::NotPrepared { .. }
            | HostError::CanaryRunning { .. } => StatusCode::CONFLICT,
            HostError::CanaryShare { .. } => StatusCode::BAD_REQUEST,
            _ => StatusCode::INTERNAL_SERVER_ERROR,
        };
        ApiError::new(status, error.code(), error.to_string())
    }
}

impl From<PackError> for ApiError {
    fn from(error: PackError) -> ApiError {
        ApiError::new(status_of_pack(&error), error.code(), error.to_string())
    }
}

fn status_of_pack(error: &PackError) -> StatusCode {
    match error {
        // The disk's fault or the operator's, not the pack's.
        PackError::Io { .. } | PackError::FloorDamaged { .. } => StatusCode::INTERNAL_SERVER_ERROR,
        _ => StatusCode::UNPROCESSABLE_ENTITY,
    }
}

impl From<TokenizerError> for ApiError {
    fn from(error: TokenizerError) -> ApiError {
        ApiError::bad_request(error.code(), error.to_string())
    }
}

impl From<ChatError> for ApiError {
    fn from(error: ChatError) -> ApiError {
        let status = match error {
            ChatError::Unavailable { .. } => StatusCode::SERVICE_UNAVAILABLE,
            // Of the messages, or of a template that cannot do with them.
            ChatError::Syntax { .. } | ChatError::Refused { .. } | ChatError::Render { .. } => {
                StatusCode::BAD_REQUEST
            }
            _ => StatusCode::INTERNAL_SERVER_ERROR,
        };
        let retry = match error {
            ChatError::Unavailable { .. } => Retry::AsStatusSays,
            // It would cost as much again.
            _ => Retry::Never,
        };
        ApiError::new(status, error.code(), error.to_string()).of("messages").retry(retry)
    }
}
