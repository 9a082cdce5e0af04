//! The ways to a server: directly, through PgBouncer, through the proxy.
//!
//! Invariant: both poolers have the same limits, and ask nobody for a password.

use std::fmt;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use anyhow::Context;
use clap::ValueEnum;
use cluster::Cluster;
use cluster::clients::schema::Server;
use cluster::ports;
use cluster::process::Process;
use nix::unistd::{Pid, Uid};
use serde::{Deserialize, Serialize};

/// Way from clients to their database.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Way {
    /// No pooler.
    Direct,
    /// Debian's.
    PgBouncer,
    /// The proxy.
    Understudy,
}

impl Way {
    /// All of them, in the order of reports.
    pub const ALL: [Way; 3] = [Way::Direct, Way::PgBouncer, Way::Understudy];
}

impl fmt::Display for Way {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Way::Direct => "direct",
            Way::PgBouncer => "pgbouncer",
            Way::Understudy => "understudy",
        })
    }
}

/// How servers are shared.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, ValueEnum)]
#[serde(rename_all = "snake_case")]
pub enum Pooling {
    /// A client has a server for itself.
    Session,
    /// A transaction has one.
    Transaction,
}

impl Pooling {
    /// As both configurations call it.
    pub(super) fn name(self) -> &'static str {
        match self {
            Pooling::Session => "session",
            Pooling::Transaction => "transaction",
        }
    }

    /// Connections to the server: PgBouncer's own number, or one for each client of the largest run.
    fn pool_size(self) -> u32 {
        match self {
            Pooling::Session => 250,
            Pooling::Transaction => 20,
        }
    }
}

/// More clients than any part has.
const MAX_CLIENTS: u32 = 12_000;
/// A pooler must listen by then.
const LISTENS_WITHIN: Duration = Duration::from_secs(30);

/// A way that is open. Dropping it ends the pooler.
pub(super) struct Open {
    pub way: Way,
    /// Where clients connect.
    pub server: Server,
    pooler: Option<Pooler>,
}

enum Pooler {
    Bouncer(Process),
    Proxy(cluster::proxy::Proxy),
}

impl Open {
    /// Opens a way to the active: the cluster's first node.
    pub async fn new(
        way: Way,
        cluster: &Cluster,
        pooling: Pooling,
        dir: &Path,
    ) -> anyhow::Result<Open> {
        let active = cluster.names().next().context("a cluster has a node")?;
        let direct = cluster.server(active)?;
        let (server, pooler) = match way {
            Way::Direct => (direct, None),
            Way::PgBouncer => {
                let (server, process) = start_bouncer(&direct, pooling, dir).await?;
                (server, Some(Pooler::Bouncer(process)))
            }
            Way::Understudy => {
                let mode = format!("pool_mode = \"{}\"", pooling.name());
                let size = format!("pool_size = {}", pooling.pool_size());
                let limit = format!("max_clients = {MAX_CLIENTS}");
                let proxy = cluster.start_proxy(&[&mode, &size, &limit]).await?;
                (proxy.server().clone(), Some(Pooler::Proxy(proxy)))
            }
        };
        Ok(Open {
            way,
            server,
            pooler,
        })
    }

    /// The pooler's process.
    pub fn pid(&self) -> Option<Pid> {
        match self.pooler.as_ref()? {
            Pooler::Bouncer(process) => Some(process.pid()),
            Pooler::Proxy(proxy) => Some(proxy.pid()),
        }
    }
}

async fn start_bouncer(
    server: &Server,
    pooling: Pooling,
    dir: &Path,
) -> anyhow::Result<(Server, Process)> {
    let port = ports::free()?;
    let users = dir.join("pgbouncer-users.txt");
    std::fs::write(&users, format!("\"{}\" \"\"\n", server.user))?;
    let text = format!(
        "[databases]\n{database} = host={host} port={to} dbname={database}\n\
         [pgbouncer]\nlisten_addr = 127.0.0.1\nlisten_port = {port}\nunix_socket_dir =\n\
         auth_type = trust\nauth_file = {users}\npool_mode = {mode}\ndefault_pool_size = {size}\n\
         max_client_conn = {MAX_CLIENTS}\nignore_startup_parameters = extra_float_digits\n\
         log_connections = 0\nlog_disconnections = 0\n",
        database = server.database,
        host = server.host,
        to = server.port,
        users = users.display(),
        mode = pooling.name(),
        size = pooling.pool_size(),
    );
    let config = dir.join("pgbouncer.ini");
    std::fs::write(&config, text).context("cannot write PgBouncer's configuration")?;
    let mut command = Command::new("pgbouncer");
    if Uid::effective().is_root() {
        // It refuses to be root.
        command.args(["--user", "nobody"]);
    }
    command.arg(&config);
    let log = dir.join("pgbouncer.log");
    let mut process = Process::spawn("pgbouncer", command, &log)
        .context("cannot start PgBouncer: scripts/packages --bench installs it")?;
    let listens = Server {
        host: "127.0.0.1".to_owned(),
        port,
        ..server.clone()
    };
    let address = (listens.host.as_str(), port);
    process.wait_listens(address, LISTENS_WITHIN).await?;
    Ok((listens, process))
}
