//! What an operator chooses. The comments here are the help of the command line, the comments of
//! the configuration file and the reference: there is no second text.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use clap::Args;
use ruvllm_engine::Model;
use ruvllm_engine::chat::{ChatTemplate, Renderer};
use ruvllm_engine::memory::parse_size;

use crate::admin::AdminOptions;
use crate::cors::CorsOrigin;
use crate::error::ServerError;
use crate::keys::ApiKey;
use crate::tls;

/// Options of a server; see each field for what it does.
#[derive(Clone, Debug, Args)]
#[command(next_help_heading = "Server")]
pub struct ServerOptions {
    /// Where to listen; any other than a loopback address needs API keys.
    #[arg(long, value_name = "ADDRESS:PORT", default_value = "127.0.0.1:8080")]
    pub listen: SocketAddr,
    /// A client's API key, as `ruvllm serve --new-key NAME` prints it; may be given several times.
    /// With any, requests without one of them are refused. With `,priority=N` behind it (to 255; 0 when
    /// absent), its requests go before those of lower ones.
    #[arg(long, value_name = "NAME=sha256:HEX")]
    pub api_key: Vec<ApiKey>,
    /// Serve HTTPS with this certificate chain (PEM).
    #[arg(long, value_name = "FILE", requires = "tls_key")]
    pub tls_cert: Option<PathBuf>,
    /// The private key of --tls-cert (PEM).
    #[arg(long, value_name = "FILE", requires = "tls_cert")]
    pub tls_key: Option<PathBuf>,
    /// The model's id in requests and answers; its file's name without the extension, or its directory's
    /// name, when absent. May be given several times: answers have the first, requests may use each.
    #[arg(long, value_name = "NAME", value_parser = alias)]
    pub alias: Vec<String>,
    /// Let pages of this origin use the server from a browser, as `https://example.com`; may be given several
    /// times. `*` lets in the pages of all, where no keys are used.
    #[arg(long, value_name = "ORIGIN")]
    pub cors_origin: Vec<CorsOrigin>,
    /// Put conversations into this chat template (Jinja) instead of the model's own.
    #[arg(long, value_name = "FILE")]
    pub chat_template: Option<PathBuf>,
    /// Write prompts to the log, and into traces.
    #[arg(long)]
    pub log_prompts: bool,
    /// Limits.
    #[command(flatten)]
    pub limits: Limits,
    /// Administration.
    #[command(flatten)]
    pub admin: AdminOptions,
}

/// How much a request, and all of them together, may take.
#[derive(Clone, Debug, Args)]
#[command(next_help_heading = "Limits")]
pub struct Limits {
    /// Sequences that are computed together.
    #[arg(long, value_name = "N", default_value_t = 32)]
    pub parallel: usize,
    /// Sequences that wait for that; more are refused with status 429.
    #[arg(long, value_name = "N", default_value_t = 256)]
    pub queue: usize,
    /// Tokens of prompts that are computed in one step while others are being answered.
    #[arg(long, value_name = "TOKENS", default_value_t = 256)]
    pub prompt_chunk: usize,
    /// The largest body of a request.
    #[arg(long, value_name = "SIZE", default_value = "4M", value_parser = parse_size)]
    pub max_body: usize,
    /// Memory that the bodies of requests may take together, as they come in and as values, from when they
    /// are read until they have become prompts; requests that find no room are refused with status 503.
    /// Those of --admin-listen do not count.
    #[arg(long, value_name = "SIZE", default_value = "64M", value_parser = parse_size)]
    pub max_bodies: usize,
    /// Memory that the grammars of all requests (schemas, tools that must be called) may take together;
    /// those of one client may take half of it.
    #[arg(long, value_name = "SIZE", default_value = "256M", value_parser = parse_size)]
    pub grammar_memory: usize,
    /// The most tokens of an answer; what the context leaves when absent.
    #[arg(long, value_name = "TOKENS")]
    pub max_tokens: Option<usize>,
    /// The most sequences of one request: prompts times answers to each.
    #[arg(long, value_name = "N", default_value_t = 128)]
    pub max_choices: usize,
    /// Seconds until a request that is not finished is ended.
    #[arg(long, value_name = "SECONDS", default_value = "600", value_parser = seconds)]
    pub request_timeout: Duration,
    /// Seconds that requests have to finish when the server is told to stop. Five seconds later the
    /// process has ended, with exit status 124 where something of it had not.
    #[arg(long, value_name = "SECONDS", default_value = "30", value_parser = seconds)]
    pub drain_timeout: Duration,
}

impl ServerOptions {
    /// Whether the options can be served with.
    ///
    /// # Errors
    /// [`ServerError::KeysRequired`] for an open address without keys, [`ServerError::KeyTwice`],
    /// [`ServerError::KeyShared`], [`ServerError::AdminKeysRequired`],
    /// [`ServerError::AdminTlsRequired`], [`ServerError::Pointless`], [`ServerError::CorsAny`], [`ServerError::Limit`],
    /// [`ServerError::BodyLimits`], [`ServerError::ChatTemplate`], [`ServerError::Tls`].
    pub fn check(&self) -> Result<(), ServerError> {
        self.check_keys()?;
        self.check_limits()?;
        self.template()?;
        self.tls().map(drop)
    }

    /// Whether everybody who can connect is asked for a key, and no two holders share one.
    ///
    /// # Errors
    /// Those of [`ServerOptions::check`] that are about keys and administrators.
    pub(crate) fn check_keys(&self) -> Result<(), ServerError> {
        if !self.listen.ip().is_loopback() && self.api_key.is_empty() {
            return Err(ServerError::KeysRequired { address: self.listen });
        }
        self.admin.check(self.tls_cert.is_some())?;
        for keys in [&self.api_key, &self.admin.admin_key] {
            for (i, key) in keys.iter().enumerate() {
                if keys[..i].iter().any(|other| other.name == key.name) {
                    return Err(ServerError::KeyTwice { name: key.name.clone() });
                }
            }
        }
        let is_admin = |key: &&ApiKey| self.admin.admin_key.iter().any(|admin| admin.opens_as(key));
        if let Some(key) = self.api_key.iter().find(is_admin) {
            return Err(ServerError::KeyShared { client: key.name.clone() });
        }
        if self.cors_origin.iter().any(CorsOrigin::is_any) && !self.api_key.is_empty() {
            return Err(ServerError::CorsAny);
        }
        Ok(())
    }

    fn check_limits(&self) -> Result<(), ServerError> {
        let Limits { parallel, queue, prompt_chunk, max_body, .. } = self.limits;
        let Limits { max_bodies, max_choices, max_tokens, .. } = self.limits;
        for (option, value) in [
            ("parallel", parallel),
            ("queue", queue),
            ("prompt-chunk", prompt_chunk),
            ("max-body", max_body),
            ("max-choices", max_choices),
            ("max-tokens", max_tokens.unwrap_or(1)),
        ] {
            if value == 0 {
                return Err(ServerError::Limit { option });
            }
        }
        if max_bodies < max_body {
            return Err(ServerError::BodyLimits { max_body });
        }
        Ok(())
    }

    /// Whether `renderer` can run the chat template that a server of this model would have.
    ///
    /// # Errors
    /// [`ServerError::ChatTemplate`], and those of [`ChatTemplate::new`].
    pub fn check_template(&self, model: &Model, renderer: &Renderer) -> Result<(), ServerError> {
        self.chat_template(model, renderer).map(drop)
    }

    /// The chat template that is given, or the model's own.
    pub(crate) fn chat_template(
        &self,
        model: &Model,
        renderer: &Renderer,
    ) -> Result<Option<ChatTemplate>, ServerError> {
        Ok(match self.template()? {
            Some(source) => Some(model.compile_template(&source, renderer)?),
            None => model.chat_template(renderer)?,
        })
    }

    /// The source of the chat template that is given, or of the model's own, and of the one that it has
    /// for tools besides.
    pub(crate) fn template_sources(
        &self,
        model: &Model,
    ) -> Result<(Option<String>, Option<String>), ServerError> {
        if let Some(given) = self.template()? {
            return Ok((Some(given), None));
        }
        let tokenizer = model.tokenizer();
        Ok(match tokenizer.chat_template() {
            Some(source) => (Some(source.to_owned()), tokenizer.tool_template().map(str::to_owned)),
            // The one for tools is none for a conversation.
            None => (None, None),
        })
    }

    /// The ids of a model that is served with these options; the first is the one that answers have.
    pub fn model_ids(&self, model: &Model) -> Vec<String> {
        match self.alias.is_empty() {
            true => vec![model.id().to_owned()],
            false => self.alias.clone(),
        }
    }

    /// Checks that no further model has the name of another or an id of the model.
    ///
    /// # Errors
    /// [`ServerError::ModelName`].
    pub fn check_names(&self, model: &Model, further: &[&str]) -> Result<(), ServerError> {
        let ids = self.model_ids(model);
        crate::models::distinct(ids.iter().map(String::as_str), further)
    }

    /// The source of the chat template, where one is given.
    fn template(&self) -> Result<Option<String>, ServerError> {
        let Some(path) = &self.chat_template else { return Ok(None) };
        let failed = |source| ServerError::ChatTemplate { path: path.clone(), source };
        std::fs::read_to_string(path).map(Some).map_err(failed)
    }

    /// Certificate and key, where HTTPS is asked for.
    pub(crate) fn tls(&self) -> Result<Option<tls::Loaded>, ServerError> {
        match (&self.tls_cert, &self.tls_key) {
            (Some(cert), Some(key)) => tls::load(cert, key).map(Some),
            _ => Ok(None),
        }
    }
}

/// An id of the model: of the characters that clients pass on as they are.
fn alias(text: &str) -> Result<String, String> {
    let plain = |c: char| c.is_ascii_alphanumeric() || "-_.:/@+".contains(c);
    match !text.is_empty() && text.chars().all(plain) {
        true => Ok(text.to_owned()),
        false => Err("a model's id has letters, digits, and - _ . : / @ + alone".to_owned()),
    }
}

pub(crate) fn seconds(text: &str) -> Result<Duration, String> {
    let seconds = text.parse::<f64>().ok().and_then(|n| Duration::try_from_secs_f64(n).ok());
    seconds.ok_or_else(|| "give a number of seconds".to_owned())
}
