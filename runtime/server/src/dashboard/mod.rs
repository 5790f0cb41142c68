//! `/`: a page that shows what the server does and lets an operator act on it, for people with a browser.
//!
//! The page and its modules are parts of the program. They hold nothing secret, so nobody is asked for
//! a key for them; what they show comes from the API, with the key that the page asks for. What the page
//! may load and where it may send is limited to this server by its `Content-Security-Policy`, and texts
//! from the API never become markup.

use std::sync::Arc;

use axum::Router;
use axum::extract::Path;
use axum::http::{HeaderMap, HeaderName, StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use sha2::{Digest as _, Sha256};

use crate::app::App;
use crate::error::ApiError;
use crate::keys::hex;

const PAGE: &str = include_str!("index.html");

/// Names, types and contents of what the page loads.
const FILES: [(&str, &str, &str); 17] = [
    ("style.css", CSS, include_str!("style.css")),
    ("main.js", JS, include_str!("main.js")),
    ("api.js", JS, include_str!("api.js")),
    ("charts.js", JS, include_str!("charts.js")),
    ("chat.js", JS, include_str!("chat.js")),
    ("confirm.js", JS, include_str!("confirm.js")),
    ("dom.js", JS, include_str!("dom.js")),
    ("figures.js", JS, include_str!("figures.js")),
    ("format.js", JS, include_str!("format.js")),
    ("kernels.js", JS, include_str!("kernels.js")),
    ("key.js", JS, include_str!("key.js")),
    ("memory.js", JS, include_str!("memory.js")),
    ("overview.js", JS, include_str!("overview.js")),
    ("packs.js", JS, include_str!("packs.js")),
    ("past.js", JS, include_str!("past.js")),
    ("stream.js", JS, include_str!("stream.js")),
    ("timeline.js", JS, include_str!("timeline.js")),
];
const CSS: &str = "text/css; charset=utf-8";
const JS: &str = "text/javascript; charset=utf-8";

/// Nothing but this server's own files, and nobody may put the page into a frame.
const POLICY: &str = "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; \
     img-src 'self' data:; frame-ancestors 'none'; base-uri 'none'; form-action 'none'";

/// Routes of the page and of what it loads.
pub(crate) const ROUTES: [&str; 2] = ["/", "/dashboard/{name}"];

/// The page and what it loads.
pub(crate) fn routes() -> Router<Arc<App>> {
    let [root, files] = ROUTES;
    Router::new().route(root, get(page)).route(files, get(file))
}

async fn page(headers: HeaderMap) -> Response {
    send(&headers, "text/html; charset=utf-8", PAGE)
}

async fn file(Path(name): Path<String>, headers: HeaderMap) -> Response {
    match FILES.iter().find(|(known, ..)| *known == name) {
        Some((_, kind, text)) => send(&headers, kind, text),
        None => ApiError::not_found(&format!("/dashboard/{name}")).into_response(),
    }
}

/// Answers with a file, or says that the browser has it already. Names stay the same from version to
/// version, so the browser asks each time.
fn send(headers: &HeaderMap, kind: &'static str, text: &'static str) -> Response {
    let tag = format!("\"{}\"", hex(&Sha256::digest(text)[..16]));
    let known =
        headers.get(header::IF_NONE_MATCH).is_some_and(|given| given.as_bytes() == tag.as_bytes());
    let head = [
        (header::CONTENT_TYPE, kind),
        (header::CACHE_CONTROL, "no-cache"),
        (header::CONTENT_SECURITY_POLICY, POLICY),
        (header::X_CONTENT_TYPE_OPTIONS, "nosniff"),
        (header::REFERRER_POLICY, "no-referrer"),
        (HeaderName::from_static("cross-origin-opener-policy"), "same-origin"),
        (HeaderName::from_static("cross-origin-resource-policy"), "same-origin"),
    ];
    let tag = [(header::ETAG, tag)];
    if known {
        (StatusCode::NOT_MODIFIED, head, tag).into_response()
    } else {
        (head, tag, text).into_response()
    }
}
