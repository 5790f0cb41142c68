//! What all requests go through: an id, the key, a line in the log, and bodies read under a limit.

use std::fmt::Display;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use axum::extract::{FromRef, FromRequest, MatchedPath, Request, State};
use axum::http::{HeaderMap, HeaderName, HeaderValue, Method, StatusCode, header};
use axum::middleware::Next;
use axum::response::{IntoResponse as _, Response};
use serde_json::{Map, Value};
use tracing::Span;

use crate::anthropic;
use crate::app::{App, Listener};
use crate::bodies::{Bodies, Held};
use crate::cors;
use crate::dashboard;
use crate::error::ApiError;
use crate::fields::Fields;
use crate::keys::{self, ApiKey};
use crate::reload::Access;
use crate::spans;

pub(crate) const REQUEST_ID: HeaderName = HeaderName::from_static("x-request-id");

/// Who asks, and under which id; every handler can take it from the request.
#[derive(Clone, Debug)]
pub(crate) struct Caller {
    /// The name of the key; empty where there are none.
    pub(crate) client: Arc<str>,
    /// How much its requests matter.
    pub(crate) priority: u8,
    /// The id in the log and in the answer's `x-request-id`.
    pub(crate) request: Arc<str>,
    pub(crate) listener: Listener,
    /// When the time of the request is up, whatever is done for it then.
    pub(crate) until: Instant,
    /// The request in traces.
    pub(crate) span: Span,
}

impl Caller {
    /// Writes a prompt to the log and to the trace, where the operator wants that.
    pub(crate) fn log_prompt(&self, app: &App, prompt: &dyn Display) {
        if app.options.log_prompts {
            let prompt = prompt.to_string();
            tracing::info!(request = &*self.request, prompt, "prompt");
            self.span.record("ruvllm.prompt", prompt);
        }
    }
}

/// Addresses that need no key, beside the page.
const OPEN: &[&str] = &["/health", "/ready"];
/// Addresses that somebody asks every few seconds, which tells nothing while it succeeds.
const POLLED: &[&str] =
    &["/health", "/ready", "/metrics", "/status", "/admin/v1/kernels", "/admin/v1/history"];

/// Gives a request its id, checks who asks, and logs and counts the answer.
pub(crate) async fn around(
    State((app, listener)): State<(Arc<App>, Listener)>,
    mut request: Request,
    next: Next,
) -> Response {
    let start = Instant::now();
    let id = match request_id(request.headers()) {
        Ok(id) => id,
        Err(error) => return error.into_response(),
    };
    let route = request.extensions().get::<MatchedPath>().map(|path| path.as_str().to_owned());
    let method = method(request.method());
    let is_in = |paths: &[&str]| route.as_deref().is_some_and(|path| paths.contains(&path));
    let (open, polled) = (is_in(OPEN) || is_in(&dashboard::ROUTES), is_in(POLLED));
    let span = match polled {
        true => Span::none(),
        false => spans::request(method, route.as_deref()),
    };
    #[cfg(feature = "otel")]
    crate::otlp::continue_trace(&span, request.headers());
    span.record("ruvllm.request", &*id);
    let path = route.unwrap_or_else(|| "unknown".to_owned());
    let mut client = Arc::from("");
    // Administrators' pages are the server's own.
    let origins = match listener {
        Listener::Client => &app.options.cors_origin[..],
        Listener::Admin => &[],
    };
    let origin = cors::allowed(origins, request.headers());
    let preflight = origin.as_ref().and_then(|_| cors::preflight(&request));
    let access = app.access();
    let admitted = if open { Ok(None) } else { admit(&access, listener, request.headers()) };
    let mut response = match (preflight, admitted) {
        (Some(answer), _) => answer,
        (None, Ok(key)) => {
            client = Arc::from(key.map_or("", |key| &key.name));
            span.record("ruvllm.client", &*client);
            let (client, id) = (Arc::clone(&client), Arc::clone(&id));
            let priority = key.map_or(0, |key| key.priority);
            let until = until(start, app.options.limits.request_timeout);
            let span = span.clone();
            let caller = Caller { client, priority, request: id, listener, until, span };
            request.extensions_mut().insert(caller);
            next.run(request).await
        }
        (None, Err(error)) => challenged(error.into_response(), listener, request.headers()),
    };
    if let Ok(id) = HeaderValue::from_str(&id) {
        response.headers_mut().insert(REQUEST_ID, id);
    }
    if path.starts_with(anthropic::PATH) {
        anthropic::mark(&mut response);
    }
    if !origins.is_empty() {
        cors::mark(&mut response, origin);
    }
    let (status, seconds) = (response.status().as_u16(), start.elapsed().as_secs_f64());
    app.metrics.request(&path, method, status);
    span.record("http.response.status_code", status);
    if status >= 500 {
        span.record("otel.status_code", "error");
    }
    if status != 200 || !polled {
        tracing::info!(request = &*id, client = &*client, %method, path, status, seconds, "request");
    }
    response
}

/// The moment that lies so far behind another; a year where that is longer than a clock can tell.
fn until(start: Instant, time: Duration) -> Instant {
    const YEAR: Duration = Duration::from_secs(365 * 24 * 60 * 60);
    start.checked_add(time).unwrap_or(start + YEAR)
}

/// The name of a method of HTTP; whatever else clients make up must not become a new series of a metric.
fn method(given: &Method) -> &'static str {
    let known = ["GET", "HEAD", "POST", "PUT", "DELETE", "CONNECT", "OPTIONS", "TRACE", "PATCH"];
    known.into_iter().find(|&name| name == given.as_str()).unwrap_or("_OTHER")
}

/// The id that the client chose, or a new one.
fn request_id(headers: &HeaderMap) -> Result<Arc<str>, ApiError> {
    let given = headers.get(REQUEST_ID).and_then(|id| id.to_str().ok());
    match given.filter(|id| (1..=128).contains(&id.len())) {
        Some(id) => Ok(id.into()),
        None => Ok(keys::random_hex::<16>().map_err(|e| ApiError::internal(e.to_string()))?.into()),
    }
}

/// Says of which keys one is asked for, and whether the one that was sent is none of them (RFC 6750).
fn challenged(mut response: Response, listener: Listener, sent: &HeaderMap) -> Response {
    if response.status() == StatusCode::UNAUTHORIZED {
        let unknown = sent.contains_key(header::AUTHORIZATION);
        let challenge = match (listener, unknown) {
            (Listener::Client, false) => r#"Bearer realm="api""#,
            (Listener::Client, true) => r#"Bearer realm="api", error="invalid_token""#,
            (Listener::Admin, false) => r#"Bearer realm="admin""#,
            (Listener::Admin, true) => r#"Bearer realm="admin", error="invalid_token""#,
        };
        let challenge = HeaderValue::from_static(challenge);
        response.headers_mut().insert(header::WWW_AUTHENTICATE, challenge);
    }
    response
}

/// Who asks, if they may.
fn admit<'a>(
    access: &'a Access,
    listener: Listener,
    headers: &HeaderMap,
) -> Result<Option<&'a ApiKey>, ApiError> {
    let keys = match listener {
        Listener::Client => &access.clients,
        // There is at least one, so that the host's name does not matter.
        Listener::Admin => &access.admins,
    };
    // Without keys, a name that a page in a browser resolves to this machine must not open the
    // server to that page.
    if keys.is_empty() && !headers.get(header::HOST).is_none_or(is_loopback) {
        return Err(ApiError::forbidden_host());
    }
    keys::client(keys, headers)
}

fn is_loopback(host: &HeaderValue) -> bool {
    let Ok(host) = host.to_str() else { return false };
    let name = match host.rsplit_once(':') {
        Some((name, port)) if port.bytes().all(|byte| byte.is_ascii_digit()) => name,
        _ => host,
    };
    let name = name.trim_start_matches('[').trim_end_matches(']');
    name == "localhost" || name.parse::<IpAddr>().is_ok_and(|ip| ip.is_loopback())
}

/// The type of the body, without its parameters.
pub(crate) fn content_type(request: &Request) -> &str {
    let kind = request.headers().get(header::CONTENT_TYPE).and_then(|kind| kind.to_str().ok());
    kind.unwrap_or_default().split(';').next().unwrap_or_default().trim()
}

/// What the body of a request counts among.
fn bodies<'a>(app: &'a App, request: &Request) -> &'a Bodies {
    let caller = request.extensions().get::<Caller>();
    app.bodies(caller.map_or(Listener::Client, |caller| caller.listener))
}

/// Reads the body, whose route takes at most `limit` bytes.
pub(crate) async fn read_body(
    request: Request,
    app: &App,
    limit: usize,
) -> Result<(Vec<u8>, Held), ApiError> {
    let caller = request.extensions().get::<Caller>();
    let patience = app.options.limits.request_timeout;
    let until = caller.map_or_else(|| until(Instant::now(), patience), |caller| caller.until);
    let bodies = bodies(app, &request);
    let read = tokio::time::timeout_at(until.into(), bodies.read(request.into_body(), limit));
    read.await.map_err(|_| ApiError::timeout(patience))?
}

/// A JSON object as the body of a request.
impl<S: Sync> FromRequest<S> for Fields
where
    Arc<App>: FromRef<S>,
{
    type Rejection = ApiError;

    async fn from_request(request: Request, state: &S) -> Result<Fields, ApiError> {
        // Pages of other origins can send bodies of other types without asking.
        if !content_type(&request).eq_ignore_ascii_case("application/json") {
            return Err(ApiError::not_json());
        }
        let app = Arc::from_ref(state);
        let bodies = bodies(&app, &request);
        let (bytes, mut held) = read_body(request, &app, app.options.limits.max_body).await?;
        bodies.hold_more(&mut held, crate::json::bytes_of_values(&bytes))?;
        let fields: Map<String, Value> = crate::json::object(&bytes).map_err(|error| {
            ApiError::bad_request("invalid_json", format!("the body is no JSON object: {error}"))
        })?;
        Ok(Fields::new(fields, held))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_this_machine_are_told_from_others() {
        for host in
            ["localhost", "localhost:80", "127.0.0.1:8080", "127.1.2.3", "[::1]:8080", "[::1]"]
        {
            assert!(is_loopback(&HeaderValue::from_static(host)), "{host}");
        }
        for host in ["evil.example", "localhost.evil.example", "10.0.0.1:8080", "[fe80::1]:1", ""] {
            assert!(!is_loopback(&HeaderValue::from_static(host)), "{host}");
        }
    }
}
