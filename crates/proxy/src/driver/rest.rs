//! Metrics and a health check over HTTP. Nothing secret is told, and nothing changed.
//!
//! | path | answer |
//! |---|---|
//! | `/metrics` | for Prometheus |
//! | `/health` | 200 if an active is known, else 503 |

use std::sync::Arc;

use axum::Router;
use axum::extract::State;
use axum::http::{StatusCode, Uri, header};
use axum::response::{IntoResponse, Response};
use tokio::net::TcpListener;
use tokio::task::JoinHandle;

use super::Proxy;

/// An HTTP server, as long as this is there.
pub struct Rest(JoinHandle<()>);

impl Drop for Rest {
    fn drop(&mut self) {
        self.0.abort();
    }
}

impl Rest {
    /// Answers on this socket.
    pub fn serve(proxy: Arc<Proxy>, listener: TcpListener) -> Rest {
        let router = Router::new().fallback(answer).with_state(proxy);
        Rest(tokio::spawn(async move {
            if let Err(error) = axum::serve(listener, router).await {
                tracing::error!(%error, "metrics are not served any more");
            }
        }))
    }
}

async fn answer(State(proxy): State<Arc<Proxy>>, uri: Uri) -> Response {
    match uri.path() {
        "/metrics" => {
            let kind = [(header::CONTENT_TYPE, "text/plain; version=0.0.4")];
            (kind, proxy.metrics()).into_response()
        }
        "/health" => match proxy.cluster.topology().active {
            Some(_) => StatusCode::OK.into_response(),
            None => StatusCode::SERVICE_UNAVAILABLE.into_response(),
        },
        _ => StatusCode::NOT_FOUND.into_response(),
    }
}
