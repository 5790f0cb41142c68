//! The admin API of a live server, over HTTP.

use super::args::{Access, Live};
use crate::cli::Failure;
use ruvllm::signing::{escape_untrusted, read_secret_file};
use serde::de::DeserializeOwned;
use serde_json::Value;
use std::net::IpAddr;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;
use thiserror::Error;
use ureq::http::{Response, Uri};
use ureq::tls::{Certificate, PemItem, RootCerts, TlsConfig, parse_pem};
use ureq::{Agent, AsSendBody, Body, RequestBuilder};

/// Where `ruvllm serve` listens for administrators if the examples are followed.
const DEFAULT_URL: &str = "http://127.0.0.1:8081";

/// The longest answer that is read, in bytes: ten thousand entries of history with long reasons.
const MAX_ANSWER: u64 = 64 << 20;

/// The longest key that is read, in bytes.
const MAX_KEY: usize = 4096;

/// An administrator's way to a live server.
pub(crate) struct Client {
    agent: Agent,
    /// Without a slash at the end.
    url: String,
    key: String,
}

/// Why the server did not do what it was asked to.
#[derive(Debug, Error)]
pub(crate) enum ClientError {
    /// Nobody answers, or the connection broke.
    #[error(
        "no answer from {url}: {reason}; start a server with `ruvllm serve --admin-listen \
         ADDRESS:PORT --admin-key NAME=sha256:HEX`, or say with --server where it listens"
    )]
    Unreachable { url: String, reason: String },
    /// It answers that it will not.
    #[error("{message}")]
    Refused { message: String },
    /// What answers is no admin API.
    #[error("{url} is not the admin API of a ruvllm server: {reason}")]
    Foreign { url: String, reason: String },
}

impl Client {
    /// Nothing is sent yet.
    pub(crate) fn new(url: &str, access: &Access) -> Result<Client, Failure> {
        let url = url.trim_end_matches('/').to_owned();
        let parsed: Uri = url.parse().map_err(|_| format!("`{url}` is no URL"))?;
        let clear = match parsed.scheme_str() {
            Some("https") => false,
            Some("http") => true,
            _ => return Err(format!("`{url}` is no URL of the form https://HOST:PORT").into()),
        };
        if clear && !parsed.host().is_some_and(is_loopback) {
            return Err(format!(
                "the key would cross the network for all to read on its way to {url}: use https"
            )
            .into());
        }
        // The key goes to this server and to nobody whom it names.
        let config = Agent::config_builder()
            .http_status_as_error(false)
            .max_redirects(0)
            .timeout_connect(Some(Duration::from_secs(10)))
            .tls_config(tls(access.ca.as_deref())?);
        let config = if clear { config.proxy(None) } else { config };
        Ok(Client { agent: config.build().into(), url, key: key(access.key_file.as_deref())? })
    }

    /// As [`Client::new`], with the server that is meant where none is named.
    pub(crate) fn of(live: &Live) -> Result<Client, Failure> {
        let named = live.server.clone().or_else(|| std::env::var("RUVLLM_ADMIN_URL").ok());
        Client::new(named.as_deref().unwrap_or(DEFAULT_URL), &live.access)
    }

    pub(crate) fn get(&self, path: &str, query: &[(&str, &str)]) -> Result<Value, ClientError> {
        let request = self.agent.get(self.at(path)).query_pairs(query.iter().copied());
        self.answer(self.authorized(request).call())
    }

    pub(crate) fn post(&self, path: &str, body: &Value) -> Result<Value, ClientError> {
        self.send(path, "application/json", &body.to_string())
    }

    pub(crate) fn post_archive(&self, path: &str, archive: &[u8]) -> Result<Value, ClientError> {
        self.send(path, "application/octet-stream", archive)
    }

    pub(crate) fn delete(&self, path: &str) -> Result<Value, ClientError> {
        self.answer(self.authorized(self.agent.delete(self.at(path))).call())
    }

    /// An answer as one of the types that the server makes it of.
    pub(crate) fn read<T: DeserializeOwned>(&self, answer: Value) -> Result<T, ClientError> {
        serde_json::from_value(answer).map_err(|error| self.foreign(error.to_string()))
    }

    fn send(&self, path: &str, kind: &str, body: impl AsSendBody) -> Result<Value, ClientError> {
        let request = self.authorized(self.agent.post(self.at(path)));
        self.answer(request.content_type(kind).send(body))
    }

    fn at(&self, path: &str) -> String {
        format!("{}/admin/v1/{path}", self.url)
    }

    fn authorized<T>(&self, request: RequestBuilder<T>) -> RequestBuilder<T> {
        request.header("authorization", format!("Bearer {}", self.key))
    }

    fn answer(&self, sent: Result<Response<Body>, ureq::Error>) -> Result<Value, ClientError> {
        let unreachable = |error: ureq::Error| ClientError::Unreachable {
            url: self.url.clone(),
            reason: error.to_string(),
        };
        let mut response = sent.map_err(unreachable)?;
        let status = response.status();
        let body = response.body_mut().with_config().limit(MAX_ANSWER).read_to_vec();
        let body = body.map_err(unreachable)?;
        if status.is_success() && body.is_empty() {
            return Ok(Value::Null);
        }
        let answer = serde_json::from_slice::<Value>(&body).unwrap_or_default();
        if status.is_success() && !answer.is_null() {
            return Ok(answer);
        }
        let error = &answer["error"];
        let (message, code) = (error["message"].as_str(), error["code"].as_str());
        let Some(message) = message else {
            return Err(self.foreign(format!("it answers with status {}", status.as_u16())));
        };
        // Of several lines where a pack breaks several rules.
        let lines: Vec<String> = message.lines().map(escape_untrusted).collect();
        let message = lines.join("\n");
        // As the listener for clients answers.
        if code == Some("unknown_url") {
            return Err(self.foreign(message));
        }
        Err(ClientError::Refused { message: with_code(message, code) })
    }

    fn foreign(&self, reason: String) -> ClientError {
        ClientError::Foreign { url: self.url.clone(), reason }
    }
}

/// A message with its code behind it, unless it names it already, as that of a refused pack does.
fn with_code(message: String, code: Option<&str>) -> String {
    let code = code.map(|code| format!(" [{}]", escape_untrusted(code))).unwrap_or_default();
    if message.contains(&code) { message } else { message + &code }
}

fn is_loopback(host: &str) -> bool {
    let address = host.trim_start_matches('[').trim_end_matches(']').parse::<IpAddr>();
    host == "localhost" || address.is_ok_and(|address| address.is_loopback())
}

/// Certificates that count: those of a file, or the system's.
fn tls(ca: Option<&Path>) -> Result<TlsConfig, Failure> {
    let roots = match ca {
        None => RootCerts::PlatformVerifier,
        Some(path) => {
            let named = |why: &dyn std::fmt::Display| format!("{}: {why}", path.display());
            let pem = std::fs::read(path).map_err(|error| named(&error))?;
            let mut certificates: Vec<Certificate<'static>> = Vec::new();
            for item in parse_pem(&pem) {
                if let PemItem::Certificate(certificate) = item.map_err(|error| named(&error))? {
                    certificates.push(certificate);
                }
            }
            if certificates.is_empty() {
                return Err(named(&"there is no certificate in it").into());
            }
            RootCerts::new_with_certs(&certificates)
        }
    };
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    Ok(TlsConfig::builder().root_certs(roots).unversioned_rustls_crypto_provider(provider).build())
}

/// The administrator's key. Messages never repeat it.
fn key(file: Option<&Path>) -> Result<String, Failure> {
    let key = match file {
        Some(path) => {
            let bytes = read_secret_file(path)?;
            std::str::from_utf8(&bytes).unwrap_or_default().to_owned()
        }
        None => std::env::var("RUVLLM_ADMIN_KEY").map_err(|_| {
            "the server asks for an administrator's key: put it into the environment as \
             RUVLLM_ADMIN_KEY, or name a file with --key-file"
        })?,
    };
    let key = key.trim();
    if key.is_empty() || key.len() > MAX_KEY || !key.bytes().all(|b| b.is_ascii_graphic()) {
        return Err(
            "an administrator's key is one word, as `ruvllm serve --new-key` prints it".into()
        );
    }
    Ok(key.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_code_stands_behind_a_message_once() {
        let refused = "pack p 1.0.0 is refused:\n  mlp: it takes too much [graph_memory]";
        for (message, shown) in [(refused, refused), ("too much", "too much [graph_memory]")] {
            assert_eq!(with_code(message.to_owned(), Some("graph_memory")), shown);
        }
        assert_eq!(with_code("it is busy".to_owned(), None), "it is busy");
    }

    #[test]
    fn a_key_travels_in_the_clear_within_this_machine_alone() {
        for host in ["localhost", "127.0.0.1", "127.8.0.1", "[::1]"] {
            assert!(is_loopback(host), "{host}");
        }
        for host in ["localhost.example.com", "10.0.0.1", "[::]", "0.0.0.0", ""] {
            assert!(!is_loopback(host), "{host}");
        }
    }
}
