//! A proxy in front of a cluster's servers, as a process of its own.

use std::net::Ipv4Addr;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::Context;
use nix::unistd::Pid;

use super::clients::schema::Server;
use super::process::Process;
use super::{Cluster, ports};

const NAME: &str = "proxy";
/// Its zones must have answered by then.
const LISTENS_WITHIN: Duration = Duration::from_secs(30);

/// A running proxy. Dropping it kills it.
#[derive(Debug)]
pub struct Proxy {
    process: Process,
    server: Server,
    config: PathBuf,
}

impl Proxy {
    /// Where clients reach it.
    pub fn server(&self) -> &Server {
        &self.server
    }

    /// Its configuration file.
    pub fn config(&self) -> &Path {
        &self.config
    }

    /// Process id of the proxy's program.
    pub fn pid(&self) -> Pid {
        self.process.pid()
    }

    /// Fails, with the end of its log, if it has ended.
    ///
    /// # Errors
    /// It has.
    pub fn check_running(&mut self) -> anyhow::Result<()> {
        self.process.check_running()
    }
}

impl Cluster {
    /// Starts a proxy for this cluster, and waits until it listens; `settings` are lines of its `[proxy]` besides the
    /// address.
    ///
    /// # Errors
    /// Its configuration cannot be written, the program cannot be run, or it does not listen in time.
    pub async fn start_proxy(&self, settings: &[&str]) -> anyhow::Result<Proxy> {
        let node = self.settings.first().context("a cluster has a node")?;
        let port = ports::free()?;
        let own = settings.join("\n");
        let sites = self.options.sites.as_ref();
        let address = sites.map_or(Ipv4Addr::LOCALHOST, |sites| sites.centre());
        let (auth, control) = match &self.options.password {
            Some(_) => {
                let file = self.options.password_file();
                let control = format!("[control]\npassword_file = \"{}\"\n", file.display());
                ("scram", control)
            }
            None => ("trust", String::new()),
        };
        let listen = format!("listen = \"{address}:{port}\"\nauth = \"{auth}\"\n{own}\n{control}");
        let text = std::fs::read_to_string(&node.config)?;
        let mut table: toml::Table = text.parse()?;
        // Of a node's file, what says which cluster it is.
        let cluster = ["volume", "zones", "store", "cassandra", "key", "tls"];
        table.retain(|key, _| cluster.contains(&key));
        table.insert("name".into(), NAME.into());
        table.insert("proxy".into(), toml::Value::Table(listen.parse()?));
        let config = self.options.dir.join("proxy.toml");
        std::fs::write(&config, toml::to_string(&table)?)
            .with_context(|| format!("cannot write {}", config.display()))?;
        let mut command = Command::new(&self.options.understudy);
        command
            .args(["proxy", "--until-stdin-closes", "--config"])
            .arg(&config);
        let log = self.options.log_of(NAME);
        let server = Server {
            host: address.to_string(),
            port,
            ..node.server()
        };
        let mut proxy = Proxy {
            process: Process::spawn(NAME, command, &log)?,
            server,
            config,
        };
        let address = (proxy.server.host.as_str(), port);
        proxy.process.wait_listens(address, LISTENS_WITHIN).await?;
        Ok(proxy)
    }
}
