//! Health checks for load balancers, metrics, and a page for people, over HTTP. Nothing secret is told, and nothing changed.
//!
//! | path | answer |
//! |---|---|
//! | `/`, `/primary`, `/leader`, `/read-write` | 200 if the machine runs on this host, else 503 |
//! | `/replica` | 200 if this host holds checkpoints of it and may take over |
//! | `/health` | 200 if it is either of both |
//! | `/liveness` | it answers |
//! | `/status`, `/history` | both hosts, and who ran the machine when, as JSON |
//! | `/metrics` | for Prometheus |
//! | `/ui` | the page |

use std::fmt::Write as _;
use std::sync::Arc;

use axum::Router;
use axum::extract::State;
use axum::http::{StatusCode, Uri, header};
use axum::response::{IntoResponse, Response};
use page::asset;
use serde_json::Value;
use tokio::net::TcpListener;
use vm::driver::{Question, Status};

use super::{Hosts, state_of};

const HTML: &str = include_str!("page.html");

/// Answers until the process ends.
pub(super) async fn serve(hosts: Hosts, listener: TcpListener) {
    let router = Router::new().fallback(answer).with_state(Arc::new(hosts));
    if let Err(error) = axum::serve(listener, router).await {
        tracing::error!(%error, "health checks are not answered any more");
    }
}

async fn answer(State(hosts): State<Arc<Hosts>>, uri: Uri) -> Response {
    match uri.path() {
        "/ui/page.css" => page::css(),
        "/ui/icon.svg" => page::icon(),
        "/ui" => status_page(&hosts).await,
        "/metrics" => text(
            "text/plain; version=0.0.4",
            hosts.first(Question::Metrics).await,
        ),
        "/history" => text("application/json", hosts.first(Question::History).await),
        "/status" => match hosts.statuses().await {
            Ok(statuses) => text("application/json", serde_json::to_string(&statuses).ok()),
            Err(_) => StatusCode::SERVICE_UNAVAILABLE.into_response(),
        },
        "/liveness" => StatusCode::OK.into_response(),
        path => {
            // Only this host is asked: whether the other one answers does not matter to a check.
            let status = hosts.first(Question::Status).await;
            let status = status.and_then(|told| serde_json::from_str::<Status>(&told).ok());
            check(path, status.as_ref()).into_response()
        }
    }
}

/// True if a check holds of a host; one that does not answer holds none.
fn check(path: &str, status: Option<&Status>) -> StatusCode {
    let is = |role: &str| status.is_some_and(|status| status.role == role);
    let holds = match path {
        "/" | "/primary" | "/leader" | "/read-write" => is("active"),
        "/replica" => is("standby"),
        "/health" | "/readiness" => is("active") || is("standby"),
        _ => return StatusCode::NOT_FOUND,
    };
    match holds {
        true => StatusCode::OK,
        false => StatusCode::SERVICE_UNAVAILABLE,
    }
}

fn text(kind: &'static str, text: Option<String>) -> Response {
    match text {
        Some(text) => ([(header::CONTENT_TYPE, kind)], text).into_response(),
        None => StatusCode::SERVICE_UNAVAILABLE.into_response(),
    }
}

async fn status_page(hosts: &Hosts) -> Response {
    let statuses = hosts.statuses().await.unwrap_or_default();
    let history = hosts.first(Question::History).await;
    let history: Vec<Value> = history
        .and_then(|text| serde_json::from_str(&text).ok())
        .unwrap_or_default();
    asset("text/html; charset=utf-8", draw(&statuses, &history))
}

fn draw(statuses: &[Option<Status>], history: &[Value]) -> String {
    let is_protected = |status: &&Status| status.protection.as_deref() == Some("protected");
    let known = || statuses.iter().flatten();
    let (kind, verdict) = match known().find(|status| status.role == "active") {
        None => ("bad", "No host is known to run the machine.".to_owned()),
        Some(active) => match Some(active).filter(is_protected) {
            Some(_) => (
                "ok",
                format!("The machine runs on {}, and is protected.", active.name),
            ),
            None => (
                "warn",
                format!(
                    "The machine runs on {}, and has no current standby.",
                    active.name
                ),
            ),
        },
    };
    let hosts: String = statuses.iter().map(card).collect();
    let mut entries = String::new();
    for entry in history.iter().rev().take(20) {
        // Writing to a string cannot fail.
        let _ = write!(
            entries,
            "<li class=\"card\">epoch {}: {}, {}</li>",
            entry["epoch"],
            page::text(entry["active"].as_str().unwrap_or("?")),
            match entry["standby"].as_str() {
                Some(standby) => format!("with {} as its standby", page::text(standby)),
                None => "alone".to_owned(),
            }
        );
    }
    HTML.replace("{kind}", kind)
        .replace("{verdict}", &page::text(&verdict))
        .replace("{hosts}", &hosts)
        .replace("{history}", &entries)
}

fn card(status: &Option<Status>) -> String {
    let Some(status) = status else {
        return "<li class=\"card quiet bad\"><p class=\"note\">One host cannot be reached.</p></li>".to_owned();
    };
    let stats = &status.stats;
    let kind = match status.protection.as_deref() {
        Some("protected") => "ok",
        Some(_) => "warn",
        None if status.role == "standby" => "ok",
        None => "warn",
    };
    let each = stats.sent_bytes.checked_div(stats.epochs).unwrap_or(0);
    let facts = [
        (
            "epoch",
            status
                .epoch
                .map_or_else(|| "none".to_owned(), |epoch| epoch.to_string()),
        ),
        ("checkpoint", status.checkpoint.to_string()),
        (
            "the machine stands still",
            format!(
                "{:.1} ms, 99 % below {:.1}",
                stats.pause_ms_p50, stats.pause_ms_p99
            ),
        ),
        (
            "until the standby holds it",
            format!("{:.1} ms", stats.safe_ms_p50),
        ),
        ("bytes of a checkpoint", each.to_string()),
        ("frames that wait", status.waiting.to_string()),
        ("writes that waited", stats.disk_waits.to_string()),
        ("takeovers", stats.takeovers.to_string()),
        ("runs by", status.accelerator.clone()),
    ];
    let facts: String = facts
        .iter()
        .map(|(name, value)| format!("<dt>{name}</dt><dd>{}</dd>", page::text(value)))
        .collect();
    let trouble = status
        .trouble
        .as_deref()
        .map_or_else(String::new, |trouble| {
            format!("<p class=\"note\">{}</p>", page::text(trouble))
        });
    format!(
        "<li class=\"card {kind}\"><div class=\"top\"><h3>{}</h3><p class=\"word\">{}</p></div><dl class=\"facts\">{facts}</dl>{trouble}</li>",
        page::text(&status.name),
        page::text(&state_of(status)),
    )
}

#[cfg(test)]
mod tests {
    use super::super::tests::file_of_host;
    use super::*;

    fn status(role: &str, protection: Option<&str>) -> Status {
        Status {
            name: "north <1>".to_owned(),
            role: role.to_owned(),
            protection: protection.map(str::to_owned),
            waits: vm::network::Protection::Everything,
            epoch: Some(3),
            linked: true,
            checkpoint: 9,
            waiting: 0,
            resets: 0,
            lost_frames: 0,
            accelerator: "tcg".to_owned(),
            accelerator_reason: String::new(),
            trouble: Some("a & b".to_owned()),
            stats: vm::driver::CheckpointStats::default(),
        }
    }

    #[test]
    fn each_role_answers_its_own_checks() {
        let holds = |role| {
            let status = status(role, None);
            ["/primary", "/replica", "/health"].map(|path| check(path, Some(&status)).is_success())
        };
        assert_eq!(holds("active"), [true, false, true]);
        assert_eq!(holds("standby"), [false, true, true]);
        assert_eq!(
            holds("copying"),
            [false, false, false],
            "it could not take over"
        );
        assert_eq!(check("/primary", None), StatusCode::SERVICE_UNAVAILABLE);
        assert_eq!(check("/nonsense", None), StatusCode::NOT_FOUND);
    }

    /// A typing error in the file turned `/primary` to 503 at the next check, and a load balancer took its clients away from a
    /// machine that ran.
    #[tokio::test]
    async fn checks_go_on_when_the_file_is_no_configuration_any_more() -> anyhow::Result<()> {
        let host = TcpListener::bind("127.0.0.1:0").await?;
        let address = host.local_addr()?;
        let file = file_of_host(&address.to_string())?;
        let hosts = Arc::new(Hosts::load(file.path())?);
        std::fs::write(file.path(), "[vm")?;
        let asked = answer(State(hosts), Uri::from_static("/primary"));
        let (connection, _) = tokio::select! {
            connection = host.accept() => connection?,
            answer = asked => anyhow::bail!("{} without asking the host", answer.status()),
        };
        drop(connection);
        Ok(())
    }

    #[test]
    fn the_page_says_who_runs_the_machine_and_whether_it_is_protected() {
        let active = |protection| [Some(status("active", Some(protection))), None];
        let page = draw(
            &active("protected"),
            &[serde_json::json!({"epoch": 3, "active": "<b>"})],
        );
        assert!(page.contains("north &lt;1&gt;, and is protected"), "{page}");
        assert!(page.contains("a &amp; b") && page.contains("One host cannot be reached"));
        assert!(page.contains("&lt;b&gt;, alone") && !page.contains("<b>"));
        assert!(draw(&active("copying"), &[]).contains("has no current standby"));
        assert!(draw(&[None, None], &[]).contains("No host is known"));
        // The policy of pages forbids both, so they would not work.
        assert!(!page.contains("style=") && !page.contains("<script"));
    }
}
