//! CORS: which pages of other origins may send requests here and read the answers.
//!
//! A browser asks first, without a key, so a preflight is answered before keys are looked at: it tells a
//! page that is allowed nothing but that. Of pages that are not allowed browsers neither send JSON nor show
//! the answer.

use std::str::FromStr;

use axum::extract::Request;
use axum::http::{HeaderMap, HeaderName, HeaderValue, Method, StatusCode, header};
use axum::response::{IntoResponse as _, Response};

use crate::error::ServerError;

/// Seconds for which a browser may remember what it was told.
const MAX_AGE: HeaderValue = HeaderValue::from_static("600");
const METHODS: HeaderValue = HeaderValue::from_static("GET, POST, OPTIONS");
/// Headers of answers that pages may read.
const EXPOSED: HeaderValue = HeaderValue::from_static("x-request-id, retry-after, x-should-retry");
const ASKS_FOR_PRIVATE: HeaderName =
    HeaderName::from_static("access-control-request-private-network");
const ALLOWS_PRIVATE: HeaderName = HeaderName::from_static("access-control-allow-private-network");

/// An origin whose pages are allowed, as `https://example.com`, or `*` for all.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CorsOrigin(HeaderValue);

impl CorsOrigin {
    /// Whether it stands for all origins.
    pub fn is_any(&self) -> bool {
        self.0 == "*"
    }
}

impl FromStr for CorsOrigin {
    type Err = ServerError;

    fn from_str(text: &str) -> Result<CorsOrigin, ServerError> {
        let refused = || ServerError::CorsOrigin { origin: text.to_owned() };
        let value = HeaderValue::from_str(text).map_err(|_| refused())?;
        let host = text.split_once("://").map(|(scheme, host)| {
            let named = !scheme.is_empty() && !host.is_empty();
            let plain = |c: char| c.is_ascii_graphic() && !c.is_ascii_uppercase();
            named && !host.contains(['/', '?', '#', '@', '*']) && text.chars().all(plain)
        });
        match text == "*" || host == Some(true) {
            true => Ok(CorsOrigin(value)),
            false => Err(refused()),
        }
    }
}

/// What is said of a request's origin, if it is one of `origins`.
pub(crate) fn allowed(origins: &[CorsOrigin], headers: &HeaderMap) -> Option<HeaderValue> {
    let origin = headers.get(header::ORIGIN)?;
    let fits = |allowed: &&CorsOrigin| allowed.is_any() || allowed.0 == *origin;
    origins.iter().find(fits).map(|allowed| allowed.0.clone())
}

/// The answer to a browser that asks whether a page may send a request.
pub(crate) fn preflight(request: &Request) -> Option<Response> {
    let headers = request.headers();
    if request.method() != Method::OPTIONS
        || !headers.contains_key(header::ACCESS_CONTROL_REQUEST_METHOD)
    {
        return None;
    }
    let mut response = StatusCode::NO_CONTENT.into_response();
    let answer = response.headers_mut();
    answer.insert(header::ACCESS_CONTROL_ALLOW_METHODS, METHODS);
    answer.insert(header::ACCESS_CONTROL_MAX_AGE, MAX_AGE);
    // Clients send headers of their own, and none of them opens anything.
    if let Some(wanted) = headers.get(header::ACCESS_CONTROL_REQUEST_HEADERS) {
        answer.insert(header::ACCESS_CONTROL_ALLOW_HEADERS, wanted.clone());
    }
    if headers.get(ASKS_FOR_PRIVATE).is_some_and(|asks| asks == "true") {
        answer.insert(ALLOWS_PRIVATE, HeaderValue::from_static("true"));
    }
    Some(response)
}

/// Lets pages of the origin read an answer; `None` for one that is not allowed.
pub(crate) fn mark(response: &mut Response, origin: Option<HeaderValue>) {
    let headers = response.headers_mut();
    // Caches must not give one page what another was told.
    headers.append(header::VARY, HeaderValue::from_static("origin"));
    if let Some(origin) = origin {
        headers.insert(header::ACCESS_CONTROL_ALLOW_ORIGIN, origin);
        headers.insert(header::ACCESS_CONTROL_EXPOSE_HEADERS, EXPOSED);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn origins_are_written_as_browsers_send_them() {
        for origin in
            ["*", "https://example.com", "http://localhost:3000", "app://-", "http://[::1]:80"]
        {
            assert!(origin.parse::<CorsOrigin>().is_ok(), "{origin}");
        }
        for origin in [
            "",
            "example.com",
            "https://",
            "https://example.com/",
            "https://*.example.com",
            "https://Example.com",
            "null",
            "http://a b",
        ] {
            let error = origin.parse::<CorsOrigin>().unwrap_err();
            assert_eq!(error.code(), "cors_origin", "{origin}");
        }
    }
}
