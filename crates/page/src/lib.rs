//! What the status pages have in common: how they look, and what a browser may do with them.
//!
//! All of a page is in the program: no other server is asked for anything, and the policy forbids it.

use axum::http::header;
use axum::response::{IntoResponse, Response};

/// How pages look.
pub const CSS: &str = include_str!("page.css");
/// Their icon.
pub const ICON: &str = include_str!("icon.svg");

/// What a page may do: load its own parts and ask its own process. No inline script or style, no
/// other origin, no frame around it.
const POLICY: &str = "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; \
                      connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'";

/// A page, or a part of it.
pub fn asset(kind: &'static str, content: impl IntoResponse) -> Response {
    let headers = [
        (header::CONTENT_TYPE, kind),
        (header::CONTENT_SECURITY_POLICY, POLICY),
        (header::X_CONTENT_TYPE_OPTIONS, "nosniff"),
        (header::REFERRER_POLICY, "no-referrer"),
        // After an upgrade of the program the page is the new one's.
        (header::CACHE_CONTROL, "no-cache"),
    ];
    (headers, content).into_response()
}

/// The style sheet.
pub fn css() -> Response {
    asset("text/css; charset=utf-8", CSS)
}

/// The icon.
pub fn icon() -> Response {
    asset("image/svg+xml", ICON)
}

/// A text as HTML: nothing in it is taken for markup.
pub fn text(of: &str) -> String {
    let mut out = String::with_capacity(of.len());
    for letter in of.chars() {
        match letter {
            '&' => out.push_str("&amp;"),
            '<' => out.push_str("&lt;"),
            '>' => out.push_str("&gt;"),
            '"' => out.push_str("&quot;"),
            '\'' => out.push_str("&#39;"),
            other => out.push(other),
        }
    }
    out
}

/// Puts a value as Prometheus reads it, of this kind (`counter` or `gauge`).
pub fn put_metric(
    text: &mut String,
    name: &str,
    help: &str,
    kind: &str,
    value: impl std::fmt::Display,
) {
    put_metrics(text, name, help, kind, [("", value)]);
}

/// The same of several values, each with its labels in braces.
pub fn put_metrics<V: std::fmt::Display>(
    text: &mut String,
    name: &str,
    help: &str,
    kind: &str,
    values: impl IntoIterator<Item = (impl std::fmt::Display, V)>,
) {
    use std::fmt::Write as _;
    // Writing to a string cannot fail.
    let _ = writeln!(text, "# HELP {name} {help}\n# TYPE {name} {kind}");
    for (labels, value) in values {
        let _ = writeln!(text, "{name}{labels} {value}");
    }
}
