//! Health checks for load balancers, with Patroni's paths, and metrics, over HTTP. Nothing secret is told, and nothing changed.
//!
//! | path | answer |
//! |---|---|
//! | `/`, `/primary`, `/leader`, `/read-write` | 200 if clients are served here, else 503 |
//! | `/replica` | 200 if this manager is a standby, which serves no clients |
//! | `/health` | 200 if the member answers |
//! | `/readiness`, `/liveness` | it is either of both; it answers |
//! | `/metrics` | for Prometheus |
//! | `/ui` | the status page, with `/ui/page.css` and `/ui/icon.svg` |

use std::sync::Arc;

use axum::Router;
use axum::extract::State;
use axum::http::{StatusCode, Uri, header};
use axum::response::{IntoResponse, Response};
use tokio::net::TcpListener;

use super::command;
use super::hub::Hub;
use super::page;
use crate::core::manager::Role;

/// What checks are about.
#[derive(Debug, Clone, Copy)]
struct Condition {
    role: Role,
    /// Clients are let in.
    serves: bool,
    /// The member answers.
    has_member: bool,
}

/// True if a check holds; `None` if the path is no check.
fn check(path: &str, now: Condition) -> Option<bool> {
    let is_primary = now.role.serves() && now.serves;
    let is_standby = now.role == Role::Standby;
    Some(match path {
        "/" | "/primary" | "/leader" | "/read-write" => is_primary,
        "/replica" => is_standby,
        "/readiness" => is_primary || is_standby,
        "/health" => now.has_member,
        "/liveness" => true,
        _ => return None,
    })
}

/// Answers until the process ends.
pub async fn serve(hub: Arc<Hub>, listener: TcpListener) {
    let router = Router::new().fallback(answer).with_state(hub);
    if let Err(error) = axum::serve(listener, router).await {
        tracing::error!(%error, "health checks are not answered any more");
    }
}

async fn answer(State(hub): State<Arc<Hub>>, uri: Uri) -> Response {
    if uri.path() == "/metrics" {
        let kind = [(header::CONTENT_TYPE, "text/plain; version=0.0.4")];
        return (kind, command::metrics(&hub)).into_response();
    }
    match uri.path() {
        "/ui" => return ::page::asset("text/html; charset=utf-8", page::page(&hub).await),
        "/ui/page.css" => return ::page::css(),
        "/ui/icon.svg" => return ::page::icon(),
        _ => {}
    }
    let serves = hub.serving().borrow().is_some();
    let now = hub.look(|manager| Condition {
        role: manager.role(),
        serves,
        has_member: manager.ledger().is_some() || manager.role() == Role::Single,
    });
    let status = match check(uri.path(), now) {
        Some(true) => StatusCode::OK,
        Some(false) => StatusCode::SERVICE_UNAVAILABLE,
        None => StatusCode::NOT_FOUND,
    };
    status.into_response()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::core::manager::Why;

    #[test]
    fn each_state_answers_its_own_checks() {
        let holds = |role, serves, has_member| {
            let now = Condition {
                role,
                serves,
                has_member,
            };
            ["/primary", "/replica", "/readiness", "/health", "/liveness"]
                .map(|path| check(path, now).expect("a check"))
        };
        assert_eq!(
            holds(Role::Primary, true, true),
            [true, false, true, true, true]
        );
        assert_eq!(
            holds(Role::Primary, false, true),
            [false, false, false, true, true],
            "it does not let clients in yet"
        );
        assert_eq!(
            holds(Role::Standby, false, true),
            [false, true, true, true, true]
        );
        assert_eq!(
            holds(Role::Recovering(Why::NoMember), false, false),
            [false, false, false, false, true]
        );
    }
}
