//! The HTTP interface: health checks for load balancers, state, metrics, and a few orders.
//!
//! Paths, meanings and columns are Patroni's, so that what was set up for it (HAProxy, monitoring)
//! works unchanged:
//!
//! | path | answer |
//! |---|---|
//! | `/`, `/primary`, `/read-write`, `/leader` | 200 if this node serves writes, else 503 |
//! | `/replica`, `/replica?lag=16MB`, `/synchronous` | 200 on a standby (not too far behind) |
//! | `/read-only` | 200 on either |
//! | `/health`, `/readiness`, `/liveness` | PostgreSQL runs; it may be used; the agent answers |
//! | `/patroni` | this node's state as JSON, always 200 |
//! | `/cluster`, `/history` | all nodes; all changes of the active |
//! | `/metrics` | for Prometheus |
//! | `/ui` | a page for people, see [`ui`] |
//! | `/config` | the cluster's configuration |
//! | `POST /switchover`, `POST /failover` | with `{"candidate": "node"}`, or `{}` for any |
//! | `POST /switchover` with `"scheduled_at"`, `DELETE /switchover` | plans one, cancels it |
//! | `POST /restart`, `POST /reinitialize`, `POST /reload` | of this node |
//! | `PATCH /config` | changes the cluster's configuration; `"pause"` switches takeovers off and on |
//!
//! Invariant: what changes something needs the token of the node's configuration, or a certificate of its
//! authority, and is refused where there is neither. The rest tells nothing secret. The checks are answered from memory: a slow store does
//! not make a healthy node look dead.
//!
//! Pure: [`checks`], [`cluster`], [`metrics`], [`report`]. This module is the driver.

mod checks;
mod cluster;
mod https;
mod metrics;
mod orders;
mod patience;
mod report;
mod ui;

use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::body::Bytes;
use axum::extract::{ConnectInfo, DefaultBodyLimit, State};
use axum::http::{HeaderMap, Method, StatusCode, Uri, header};
use axum::response::{IntoResponse, Response};
use coordination::channel::{Handler, Identity, Party, Request};
use coordination::config::{ClusterConfig, RestConfig};
use coordination::records::{Control, Heartbeat, Member, Record, read_history};
use coordination::tier;
use dax::storage::Storage;
use dax::tls::WebTls;
use parking_lot::Mutex;
use serde_json::{Value, json};
use sha2::{Digest, Sha256};
use tokio::net::TcpListener;
use tokio::sync::OnceCell;
use tokio::task::JoinHandle;
use volume::lsn::Lsn;

use self::checks::{Wanted, check};
use self::https::{Client, Https};
use self::patience::Patient;
use self::report::Report;
use self::ui::observer::{Observed, observe};

/// How long the registry may take to answer a request.
const REGISTRY_WITHIN: Duration = Duration::from_secs(5);
/// Longest body of a request.
const BODY_BYTES_MAX: usize = 16 << 10;
/// Changes of the active that `/history` shows.
const HISTORY_ENTRIES: usize = 100;

/// What does not change while the agent runs.
#[derive(Debug, Clone)]
pub struct Facts {
    /// The volume's name.
    pub scope: String,
    /// The node's name.
    pub node: String,
    /// PostgreSQL's, as `server_version_num`.
    pub server_version: u32,
    /// The directory of its programs, which judge values of parameters.
    pub bin: PathBuf,
}

struct Shared {
    facts: Facts,
    me: Identity,
    /// The same to other agents.
    party: Party,
    /// The process that is asked how it is and gets orders.
    process: Arc<dyn Handler>,
    cluster: ClusterConfig,
    /// A handle of its own, which owns no epoch: that of the node's life ends with a change of roles.
    storage: OnceCell<Arc<dyn Storage>>,
    token: Option<[u8; 32]>,
    /// What the page shows.
    observed: Mutex<Observed>,
    /// True if clients may show a certificate in its place.
    asks_certificates: bool,
}

impl Shared {
    /// Connects to the zones when somebody asks first.
    async fn storage(&self) -> Result<&Arc<dyn Storage>, Refusal> {
        let connect = async || {
            let current = tier::current(&self.cluster, self.cluster.name.as_str()).await;
            current.map(|(_, storage)| storage)
        };
        let connected = self.storage.get_or_try_init(connect).await;
        connected.map_err(unavailable)
    }

    /// How the process is; nothing if it cannot tell.
    async fn status(&self) -> Value {
        let status = self.process.request(Request::Status).await;
        status.unwrap_or_default()
    }
}

/// Why the interface cannot be served.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum RestError {
    /// A certificate or key cannot be used; the kind of the error tells what to do.
    #[error(transparent)]
    Certificate(#[from] dax::Error),
    /// The token cannot be used; says why.
    #[error("{0}")]
    Refused(String),
    /// The operating system said no.
    #[error("{what}: {source}")]
    System {
        /// What was tried.
        what: String,
        /// What the system said.
        source: std::io::Error,
    },
}

impl RestError {
    fn system(what: impl Into<String>, source: std::io::Error) -> RestError {
        RestError::System {
            what: what.into(),
            source,
        }
    }
}

/// The listening interface; dropping it closes it.
pub struct Rest {
    serving: JoinHandle<()>,
    observing: JoinHandle<()>,
}

impl Drop for Rest {
    fn drop(&mut self) {
        self.serving.abort();
        self.observing.abort();
    }
}

impl Rest {
    /// Listens as the configuration says.
    ///
    /// # Errors
    /// If the address cannot be listened on, or the token's or a certificate's file cannot be read.
    pub async fn bind(
        config: &RestConfig,
        cluster: &ClusterConfig,
        facts: Facts,
        party: Party,
        process: Arc<dyn Handler>,
    ) -> Result<Rest, RestError> {
        let tls = config.files().map(WebTls::load).transpose()?;
        let token = config.token.as_deref().map(read_token).transpose()?;
        let address = config.listen.to_string();
        let listener = TcpListener::bind(&address).await.map_err(|e| {
            let what =
                format!("cannot serve HTTP on {address}; choose another address in [rest] listen");
            RestError::system(what, e)
        })?;
        if token.is_some() && tls.is_none() && !config.listen.is_local() {
            tracing::warn!(
                %address,
                "tokens are sent over plain HTTP, where others on the network can read them; set a certificate in \
                 [rest]"
            );
        }
        let shared = Shared {
            facts,
            me: party.me.clone(),
            party,
            process,
            cluster: cluster.clone(),
            storage: OnceCell::new(),
            token,
            observed: Mutex::default(),
            asks_certificates: config.client_ca.is_some(),
        };
        let shared = Arc::new(shared);
        let observing = tokio::spawn(observe(Arc::clone(&shared)));
        let router = Router::new()
            .fallback(answer)
            .layer(DefaultBodyLimit::max(BODY_BYTES_MAX))
            .with_state(shared);
        let router = router.into_make_service_with_connect_info::<Client>();
        let ended = |result: std::io::Result<()>| {
            if let Err(error) = result {
                tracing::error!(%error, "the HTTP interface ended");
            }
        };
        let serving = match tls {
            None => {
                let listener = Patient::new(listener);
                tokio::spawn(async move { ended(axum::serve(listener, router).await) })
            }
            Some(tls) => {
                let listener = Https::new(listener, tls)
                    .map_err(|e| RestError::system(format!("cannot serve {address}"), e))?;
                let listener = Patient::new(listener);
                tokio::spawn(async move { ended(axum::serve(listener, router).await) })
            }
        };
        Ok(Rest { serving, observing })
    }
}

/// The token's digest: what is compared need not take the same time for every token then.
fn read_token(path: &std::path::Path) -> Result<[u8; 32], RestError> {
    let failed = |e| RestError::system(format!("cannot read the token {}", path.display()), e);
    let mode = std::fs::metadata(path)
        .map_err(failed)?
        .permissions()
        .mode();
    if mode & 0o077 != 0 {
        let path = path.display();
        let why = format!("others may read the token in {path}: chmod 600 {path}");
        return Err(RestError::Refused(why));
    }
    let text = std::fs::read_to_string(path).map_err(failed)?;
    let token = text.trim();
    if token.len() < 16 {
        let path = path.display();
        let why = format!("the token in {path} is too short; make one: openssl rand -hex 32");
        return Err(RestError::Refused(why));
    }
    Ok(Sha256::digest(token).into())
}

/// A position as a number, as Patroni shows it; exact up to 2^53 bytes of log.
fn lsn_number(lsn: Lsn) -> f64 {
    lsn.0 as f64
}

async fn answer(
    State(shared): State<Arc<Shared>>,
    ConnectInfo(client): ConnectInfo<Client>,
    method: Method,
    uri: Uri,
    headers: HeaderMap,
    body: Bytes,
) -> Response {
    let _answering = client.pace.answering();
    match method {
        Method::GET | Method::HEAD | Method::OPTIONS => read(&shared, &uri).await,
        Method::POST | Method::PATCH | Method::DELETE => {
            orders::order(&shared, &client, &method, uri.path(), &headers, &body).await
        }
        _ => text(
            StatusCode::METHOD_NOT_ALLOWED,
            "GET, HEAD, OPTIONS, POST, PATCH or DELETE\n",
        ),
    }
}

async fn read(shared: &Shared, uri: &Uri) -> Response {
    let status = shared.status().await;
    let path = uri.path().trim_end_matches('/');
    let path = if path.is_empty() { "/" } else { path };
    let wanted = match Wanted::parse(uri.query().unwrap_or_default()) {
        Ok(wanted) => wanted,
        Err(why) => return text(StatusCode::BAD_REQUEST, format!("{why}\n")),
    };
    if let Some(holds) = check(path, wanted, &Report::new(&status)) {
        let code = match holds {
            true => StatusCode::OK,
            false => StatusCode::SERVICE_UNAVAILABLE,
        };
        return reply(code, &about(&shared.facts, &status));
    }
    if let Some(page) = ui::answer(shared, path, uri) {
        return page;
    }
    match path {
        "/patroni" => reply(StatusCode::OK, &about(&shared.facts, &status)),
        "/metrics" => {
            let kind = [(header::CONTENT_TYPE, "text/plain; version=0.0.4")];
            let backups = shared.observed.lock().backups();
            let page = metrics::metrics(&shared.facts, &status, &backups);
            (kind, page).into_response()
        }
        "/cluster" => in_time(cluster_of(shared)).await,
        "/history" => in_time(history_of(shared)).await,
        "/config" => in_time(orders::config(shared)).await,
        _ => text(StatusCode::NOT_FOUND, "no such path\n"),
    }
}

/// This node's state with Patroni's names, and all that it reports with ours.
fn about(facts: &Facts, status: &Value) -> Value {
    let report = Report::new(status);
    let mut about = json!({
        "state": report.state_name(),
        "role": report.role_name(),
        "server_version": facts.server_version,
        "patroni": {
            "version": env!("CARGO_PKG_VERSION"), "scope": facts.scope, "name": facts.node,
        },
        "understudy": status,
    });
    if let Some(timeline) = report.timeline {
        about["timeline"] = json!(timeline);
    }
    if let Some(version) = report.server.number() {
        about["server_version"] = json!(version);
    }
    if !report.server.pending_restart.is_empty() {
        about["pending_restart"] = json!(true);
    }
    if status
        .pointer("/control/paused")
        .is_some_and(|p| !p.is_null())
    {
        about["pause"] = json!(true);
    }
    let synced = report.synced_lsn.as_deref().and_then(pgdata::parse_lsn);
    about["xlog"] = match (synced, report.received, report.applied) {
        (Some(synced), ..) => json!({ "location": synced.0 }),
        (None, Some(received), Some(applied)) => json!({
            "received_location": received.0, "replayed_location": applied.0, "paused": false,
        }),
        _ => json!({}),
    };
    about
}

async fn cluster_of(shared: &Shared) -> Result<Value, Refusal> {
    let storage = shared.storage().await?.as_ref();
    let members = Member::list(storage).await.map_err(unavailable)?;
    let heartbeat = Heartbeat::load(storage).await.map_err(unavailable)?;
    let control = Control::read(storage).await.map_err(unavailable)?;
    Ok(cluster::cluster(
        &shared.facts.scope,
        &members,
        heartbeat.as_ref(),
        &control,
    ))
}

async fn history_of(shared: &Shared) -> Result<Value, Refusal> {
    let storage = shared.storage().await?.as_ref();
    let entries = read_history(storage, HISTORY_ENTRIES).await;
    Ok(cluster::history(&entries.map_err(unavailable)?))
}

/// Why a request gets no answer.
type Refusal = (StatusCode, String);

fn unavailable(error: impl std::fmt::Display) -> Refusal {
    (StatusCode::SERVICE_UNAVAILABLE, format!("{error}\n"))
}

/// Answers with what the registry says, if it answers in time.
async fn in_time(asked: impl Future<Output = Result<Value, Refusal>>) -> Response {
    match tokio::time::timeout(REGISTRY_WITHIN, asked).await {
        Ok(Ok(answer)) => reply(StatusCode::OK, &answer),
        Ok(Err((code, why))) => text(code, why),
        Err(_) => text(StatusCode::SERVICE_UNAVAILABLE, "the zones do not answer\n"),
    }
}

fn reply(code: StatusCode, answer: &Value) -> Response {
    let kind = [(header::CONTENT_TYPE, "application/json")];
    (code, kind, answer.to_string()).into_response()
}

fn text(code: StatusCode, why: impl Into<String>) -> Response {
    (code, why.into()).into_response()
}

#[cfg(test)]
mod tests {
    use coordination::records::{Incarnation, Member, MemberState, Role};
    use dax::ids::NodeName;

    /// A node in some role and state.
    pub(super) fn member(name: &str, role: Role, state: MemberState) -> Member {
        let name = NodeName::new(name).unwrap();
        let postgres = "127.0.0.1:5432".parse().unwrap();
        let channel = "127.0.0.1:7432".parse().unwrap();
        Member {
            role,
            state,
            ..Member::starting(name, Incarnation("1".into()), postgres, channel)
        }
    }
}
