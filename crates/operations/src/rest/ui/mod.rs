//! The status page: `/ui`, for people with a browser.
//!
//! | path | answer |
//! |---|---|
//! | `/ui` | the page; `/ui/page.css`, `/ui/page.js` and `/ui/icon.svg` belong to it |
//! | `/ui/state` | what it shows, as JSON; `?after=<Unix milliseconds>` leaves out older samples |
//!
//! How it looks, and what it may do, is [`page`]'s.
//! Any node answers, whatever its role, from what it last saw of the cluster ([`observer`]).
//!
//! Pure: [`samples`], [`state`], and `page.js` down to where it draws.

pub(super) mod observer;
mod samples;
mod state;

use axum::http::{StatusCode, Uri, header};
use axum::response::{IntoResponse, Response};
use page::asset;

use super::{Shared, reply};

const HTML: &str = include_str!("page.html");
const JS: &str = include_str!("page.js");

/// Answers what belongs to the page; `None` for any other path. `path` is the request's without a slash
/// at its end.
pub(super) fn answer(shared: &Shared, path: &str, uri: &Uri) -> Option<Response> {
    Some(match path {
        // The page names its parts relative to `/ui`, so that it works below any prefix of a proxy.
        "/ui" if uri.path() != path => (
            StatusCode::PERMANENT_REDIRECT,
            [(header::LOCATION, "../ui")],
        )
            .into_response(),
        "/ui" => asset("text/html; charset=utf-8", HTML),
        "/ui/page.css" => page::css(),
        "/ui/page.js" => asset("text/javascript; charset=utf-8", JS),
        "/ui/icon.svg" => page::icon(),
        "/ui/state" => {
            let state = shared.observed.lock().state(after(uri.query()));
            reply(StatusCode::OK, &state)
        }
        _ => return None,
    })
}

/// From when on samples are wanted: all of them if the query does not say.
fn after(query: Option<&str>) -> u64 {
    let pairs = query.unwrap_or_default().split('&');
    let mut asked = pairs.filter_map(|pair| pair.strip_prefix("after="));
    asked
        .next_back()
        .and_then(|ms| ms.parse().ok())
        .unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_page_loads_nothing_but_its_own_parts() {
        for content in [HTML, page::CSS, page::ICON] {
            let elsewhere = content.replace("http://www.w3.org/2000/svg", "");
            assert!(!elsewhere.contains("://") && !elsewhere.contains("url("));
        }
        // The policy forbids both, so they would not work.
        assert!(!HTML.contains("style=") && !HTML.contains(" on"), "inline");
        assert!(!HTML.contains("<script>"), "inline script");
    }

    #[test]
    fn newer_samples_are_the_answer() {
        assert_eq!(after(None), 0);
        assert_eq!(after(Some("x=1&after=1700000000000")), 1_700_000_000_000);
        assert_eq!(after(Some("after=nonsense")), 0);
    }
}
