//! The tables of the load: pgbench's own, filled by pgbench, and the ledger.

use std::path::Path;

use anyhow::{Context, ensure};
use tokio::process::Command;
use tokio_postgres::config::Host;

use super::session::connect;

/// Where one server listens, for programs that are given host and port.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Server {
    /// Address or name.
    pub host: String,
    /// Port.
    pub port: u16,
    /// Role to log in as.
    pub user: String,
    /// Database.
    pub database: String,
    /// The role's password, if it is asked for one.
    pub password: Option<String>,
}

impl Server {
    /// As `tokio-postgres` wants it, for this one server.
    pub fn config(&self) -> tokio_postgres::Config {
        let mut config = tokio_postgres::Config::new();
        config
            .host(&self.host)
            .port(self.port)
            .user(&self.user)
            .dbname(&self.database)
            .connect_timeout(std::time::Duration::from_secs(3));
        if let Some(password) = &self.password {
            config.password(password);
        }
        config
    }

    /// The variable by which PostgreSQL's programs find the password.
    pub fn environment(&self) -> Option<(&'static str, &str)> {
        let password = self.password.as_deref()?;
        Some(("PGPASSWORD", password))
    }

    /// `-h host -p port -U user`, as PostgreSQL's programs take it.
    pub fn arguments(&self) -> [String; 6] {
        let port = self.port.to_string();
        let [h, p, u] = ["-h", "-p", "-U"].map(String::from);
        [h, self.host.clone(), p, port, u, self.user.clone()]
    }
}

/// The connection string of an application: all servers, and only the one that accepts writes.
pub fn any_writable(servers: &[Server]) -> tokio_postgres::Config {
    let mut config = tokio_postgres::Config::new();
    for server in servers {
        config.host(&server.host).port(server.port);
    }
    if let Some(first) = servers.first() {
        config.user(&first.user).dbname(&first.database);
        if let Some(password) = &first.password {
            config.password(password);
        }
    }
    config
        .target_session_attrs(tokio_postgres::config::TargetSessionAttrs::ReadWrite)
        .connect_timeout(std::time::Duration::from_secs(3))
        .application_name("understudy demo");
    config
}

/// The same as text, as a person would write it.
pub fn connection_string(config: &tokio_postgres::Config) -> String {
    let hosts: Vec<String> = config
        .get_hosts()
        .iter()
        .map(|host| match host {
            Host::Tcp(name) => name.clone(),
            Host::Unix(path) => path.display().to_string(),
        })
        .collect();
    let ports: Vec<String> = config.get_ports().iter().map(u16::to_string).collect();
    format!(
        "host={} port={} user={} dbname={} target_session_attrs=read-write",
        hosts.join(","),
        ports.join(","),
        config.get_user().unwrap_or_default(),
        config.get_dbname().unwrap_or_default()
    )
}

/// Creates and fills the tables: `pgbench -i`, then the ledger.
///
/// # Errors
/// pgbench fails (its own words are in the message), or the server does.
pub async fn create(bin: &Path, server: &Server, scale: u32) -> anyhow::Result<()> {
    let pgbench = bin.join("pgbench");
    let output = Command::new(&pgbench)
        .args(["--initialize", "--quiet", "--scale", &scale.to_string()])
        .args(server.arguments())
        .envs(server.environment())
        .arg(&server.database)
        .stdin(std::process::Stdio::null())
        .kill_on_drop(true)
        .output()
        .await
        .with_context(|| format!("cannot run {}", pgbench.display()))?;
    ensure!(
        output.status.success(),
        "pgbench --initialize failed: {}",
        String::from_utf8_lossy(&output.stderr).trim()
    );
    let client = connect(&server.config()).await?;
    client
        .batch_execute(
            "CREATE TABLE understudy_ledger (
                 client integer NOT NULL,
                 n bigint NOT NULL,
                 PRIMARY KEY (client, n))",
        )
        .await
        .context("cannot create the ledger")
}
