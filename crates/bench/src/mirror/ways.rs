//! The ways to a database: directly, through Pgpool-II to two, through one manager, and mirrored.
//!
//! Invariant: all servers have the same version and parameters.

use std::fmt;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use anyhow::Context;
use clap::ValueEnum;
use cluster::clients::schema::Server;
use cluster::clients::session::connect;
use cluster::mirror::{DATABASE, Mirror, Options as MirrorOptions};
use cluster::ports;
use cluster::process::Process;
use cluster::stock::Stock;
use serde::Serialize;

use super::{Options, WITHIN};

/// See the module.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, ValueEnum)]
#[serde(rename_all = "snake_case")]
pub enum Way {
    /// The server itself.
    Direct,
    /// Debian's Pgpool-II, which sends each statement to two servers (native replication).
    Pgpool,
    /// One manager, and nobody who mirrors it.
    Manager,
    /// Mirrored; acknowledged when the log is durable and the primary has committed.
    Logged,
    /// Mirrored; acknowledged when both members have committed.
    Both,
}

impl fmt::Display for Way {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Way::Direct => "direct",
            Way::Pgpool => "pgpool",
            Way::Manager => "manager",
            Way::Logged => "logged",
            Way::Both => "both",
        })
    }
}

/// Pgpool-II must listen by then.
const LISTENS_WITHIN: Duration = Duration::from_secs(30);
/// More clients than any run has.
const POOL: u32 = 64;

/// A way that is open. Dropping it ends everything.
pub(super) struct Open {
    pub way: Way,
    /// Where clients connect.
    pub server: Server,
    /// Servers that must be filled, each by itself.
    filled: Vec<Server>,
    behind: Behind,
}

#[expect(dead_code, reason = "what is kept here lives as long as the way")]
enum Behind {
    Stock(Stock),
    Pool(Process, Box<[Stock; 2]>),
    Mirror(Box<Mirror>),
}

impl Open {
    /// Starts the servers. Nothing is mirrored until [`begin`](Self::begin).
    pub async fn new(way: Way, options: &Options) -> anyhow::Result<Open> {
        let dir = options.dir.join(way.to_string());
        std::fs::create_dir(&dir)?;
        match way {
            Way::Direct => {
                let stock = start_stock(options, &dir.join("server")).await?;
                let server = database(&stock);
                Ok(Open {
                    way,
                    filled: vec![server.clone()],
                    server,
                    behind: Behind::Stock(stock),
                })
            }
            Way::Pgpool => {
                let servers = [
                    start_stock(options, &dir.join("one")).await?,
                    start_stock(options, &dir.join("other")).await?,
                ];
                let (server, pool) = start_pool(&dir, &servers).await?;
                Ok(Open {
                    way,
                    filled: servers.iter().map(database).collect(),
                    server,
                    behind: Behind::Pool(pool, Box::new(servers)),
                })
            }
            Way::Manager | Way::Logged | Way::Both => {
                let mut settings = MirrorOptions::new(&dir, &options.bin, &options.understudy);
                settings.parameters = parameters();
                if way == Way::Logged {
                    settings.settings.push("ack = \"logged\"".to_owned());
                }
                let mirror = Mirror::prepare(settings).await?;
                Ok(Open {
                    way,
                    filled: vec![mirror.member(0)],
                    server: mirror.server(0),
                    behind: Behind::Mirror(Box::new(mirror)),
                })
            }
        }
    }

    /// The servers that must be filled before the way is used.
    pub fn filled(&self) -> &[Server] {
        &self.filled
    }

    /// The servers have their data: managers start.
    pub async fn begin(&mut self) -> anyhow::Result<()> {
        let Behind::Mirror(mirror) = &mut self.behind else {
            return Ok(());
        };
        match self.way {
            Way::Manager => {
                mirror.run(0, &["init"]).await?;
                mirror.start_manager(0).await?;
                mirror.wait_primary(WITHIN).await.map(drop)
            }
            _ => mirror.start(WITHIN).await,
        }
    }

    /// The members have the same, if they are a mirror's.
    pub async fn check(&mut self) -> anyhow::Result<()> {
        if let Behind::Mirror(mirror) = &mut self.behind {
            mirror.check_running()?;
            if self.way != Way::Manager {
                let verdict = mirror.verdict().await?.context("no standby")?;
                anyhow::ensure!(verdict["equal"] == true, "the members differ: {verdict}");
            }
        }
        Ok(())
    }
}

pub(super) fn parameters() -> Vec<(String, String)> {
    let set = |name: &str, value: &str| (name.to_owned(), value.to_owned());
    vec![
        set("max_connections", "200"),
        set("shared_buffers", "256MB"),
    ]
}

fn database(stock: &Stock) -> Server {
    Server {
        database: DATABASE.to_owned(),
        ..stock.server()
    }
}

async fn start_stock(options: &Options, dir: &Path) -> anyhow::Result<Stock> {
    let stock = Stock::start(dir, &options.bin, parameters()).await?;
    let client = connect(&stock.server().config()).await?;
    client
        .batch_execute(&format!("CREATE DATABASE {DATABASE}"))
        .await?;
    Ok(stock)
}

async fn start_pool(dir: &Path, servers: &[Stock; 2]) -> anyhow::Result<(Server, Process)> {
    let port = ports::free()?;
    let mut text = format!(
        "backend_clustering_mode = 'native_replication'\nlisten_addresses = '127.0.0.1'\nport = {port}\n\
         socket_dir = '{dir}'\npcp_socket_dir = '{dir}'\npcp_listen_addresses = ''\npcp_port = {pcp}\nwork_dir = '{dir}'\n\
         logdir = '{dir}'\npid_file_name = '{dir}/pgpool.pid'\nnum_init_children = {POOL}\nmax_pool = 1\n\
         load_balance_mode = off\nreplicate_select = off\nhealth_check_period = 0\nsr_check_period = 0\n\
         enable_pool_hba = off\npool_passwd = ''\nuse_watchdog = off\n",
        dir = dir.display(),
        pcp = ports::free()?,
    );
    for (number, stock) in servers.iter().enumerate() {
        let Server { host, port, .. } = stock.server();
        text.push_str(&format!(
            "backend_hostname{number} = '{host}'\nbackend_port{number} = {port}\nbackend_weight{number} = 1\n\
             backend_data_directory{number} = '{}'\nbackend_flag{number} = 'ALLOW_TO_FAILOVER'\n",
            stock.data().display()
        ));
    }
    let config = dir.join("pgpool.conf");
    std::fs::write(&config, text).context("cannot write Pgpool-II's configuration")?;
    let empty = dir.join("empty.conf");
    std::fs::write(&empty, "")?;
    let mut command = Command::new("/usr/sbin/pgpool");
    command.arg("-n").arg("-D").arg("-f").arg(&config);
    command.arg("-F").arg(&empty).arg("-a").arg(&empty);
    let log = dir.join("pgpool.log");
    let mut process = Process::spawn("pgpool", command, &log)
        .context("cannot start Pgpool-II: scripts/packages --bench installs it")?;
    let listens = Server {
        port,
        ..database(&servers[0])
    };
    let address = (listens.host.as_str(), port);
    process.wait_listens(address, LISTENS_WITHIN).await?;
    Ok((listens, process))
}
