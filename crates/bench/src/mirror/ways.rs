//! The ways to a database: directly, through Pgpool-II to two, replicated by PostgreSQL itself, through one manager, and mirrored.
//!
//! Invariant: all servers have the same version and parameters.

use std::fmt;
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::Context;
use clap::ValueEnum;
use cluster::clients::schema::Server;
use cluster::clients::session::connect;
use cluster::mirror::{DATABASE, Mirror, Options as MirrorOptions};
use cluster::ports;
use cluster::process::{Process, family};
use cluster::stock::Stock;
use nix::unistd::Pid;
use serde::Serialize;

use super::{Limit, Options, WITHIN};
use crate::peers::footprint::cpu_seconds;
use crate::slice::Slice;

/// Way from clients to their database.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, ValueEnum)]
#[serde(rename_all = "snake_case")]
pub enum Way {
    /// The server itself.
    Direct,
    /// Debian's Pgpool-II, which sends each statement to two servers (native replication).
    Pgpool,
    /// Two servers with PostgreSQL's own synchronous logical replication from one to the other.
    Logical,
    /// One manager of a member that nobody mirrors (`single = true`).
    Manager,
    /// A mirror's primary while there is no standby: what is committed is numbered and logged.
    Primary,
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
            Way::Logical => "logical",
            Way::Manager => "manager",
            Way::Primary => "primary",
            Way::Logged => "logged",
            Way::Both => "both",
        })
    }
}

/// Pgpool-II must listen by then.
const LISTENS_WITHIN: Duration = Duration::from_secs(30);
/// What [`Mirror::processes`] calls members.
const MEMBER: &str = "member of ";
/// More clients than any run has.
const POOL: u32 = 64;

/// A way that is open. Dropping it ends everything.
pub(super) struct Open {
    pub way: Way,
    /// Where clients connect.
    pub server: Server,
    /// Servers that must be filled, each by itself.
    filled: Vec<Server>,
    /// What its servers' processors are limited by.
    slices: Vec<Slice>,
    behind: Behind,
}

/// Processor time in seconds.
#[derive(Debug, Clone, Copy)]
pub(super) struct Cost {
    /// Of database servers.
    pub databases_s: f64,
    /// Of what is between them and the clients.
    pub others_s: f64,
}

impl std::ops::Sub for Cost {
    type Output = Cost;

    fn sub(self, before: Cost) -> Cost {
        Cost {
            databases_s: self.databases_s - before.databases_s,
            others_s: self.others_s - before.others_s,
        }
    }
}

enum Behind {
    Stock(Stock),
    Pool(Process, Box<[Stock; 2]>),
    Logical(Box<[Stock; 2]>),
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
                    slices: Vec::new(),
                    behind: Behind::Stock(stock),
                })
            }
            Way::Pgpool => {
                let servers = start_two(options, &dir).await?;
                let (server, pool) = start_pool(&dir, &servers).await?;
                Ok(Open {
                    way,
                    filled: servers.iter().map(database).collect(),
                    server,
                    slices: Vec::new(),
                    behind: Behind::Pool(pool, Box::new(servers)),
                })
            }
            Way::Logical => {
                let servers = start_two(options, &dir).await?;
                Ok(Open {
                    way,
                    filled: servers.iter().map(database).collect(),
                    server: database(&servers[0]),
                    slices: Vec::new(),
                    behind: Behind::Logical(Box::new(servers)),
                })
            }
            Way::Manager | Way::Primary | Way::Logged | Way::Both => {
                let mut settings = MirrorOptions::new(&dir, &options.bin, &options.understudy);
                settings.parameters = parameters();
                if way == Way::Logged {
                    settings
                        .settings
                        .push("commit_ack = \"durable\"".to_owned());
                }
                settings.single = way == Way::Manager;
                let mirror = Mirror::prepare(settings).await?;
                Ok(Open {
                    way,
                    filled: vec![mirror.member(0)],
                    server: mirror.server(0),
                    slices: Vec::new(),
                    behind: Behind::Mirror(Box::new(mirror)),
                })
            }
        }
    }

    /// The servers that must be filled before the way is used.
    pub fn filled(&self) -> &[Server] {
        &self.filled
    }

    /// The servers have their data: managers start, or replication.
    pub async fn begin(&mut self) -> anyhow::Result<()> {
        let mirror = match &mut self.behind {
            Behind::Stock(_) | Behind::Pool(..) => return Ok(()),
            Behind::Logical(servers) => return replicate(servers).await,
            Behind::Mirror(mirror) => mirror,
        };
        match self.way {
            Way::Manager | Way::Primary => {
                if self.way == Way::Primary {
                    mirror.run(0, &["create-log"]).await?;
                }
                mirror.start_manager(0).await?;
                mirror.wait_serves(0, WITHIN).await
            }
            _ => mirror.start(WITHIN).await,
        }
    }

    /// The processes of its database servers, and of everything else.
    fn processes(&self) -> (Vec<Pid>, Vec<Pid>) {
        match &self.behind {
            Behind::Stock(stock) => (stock.pid().into_iter().collect(), Vec::new()),
            Behind::Pool(pool, servers) => {
                let servers = servers.iter().filter_map(Stock::pid);
                (servers.collect(), vec![pool.pid()])
            }
            Behind::Logical(servers) => {
                let servers = servers.iter().filter_map(Stock::pid);
                (servers.collect(), Vec::new())
            }
            Behind::Mirror(mirror) => {
                let (members, others): (Vec<_>, Vec<_>) = mirror
                    .processes()
                    .into_iter()
                    .partition(|(name, _)| name.starts_with(MEMBER));
                let pids = |of: Vec<(String, Pid)>| of.into_iter().map(|(_, pid)| pid).collect();
                (pids(members), pids(others))
            }
        }
    }

    /// Limits its servers' processors.
    pub fn limit(&mut self, limit: Limit, percent: u32) -> anyhow::Result<()> {
        self.slices.clear();
        let (servers, _) = self.processes();
        let groups: Vec<&[Pid]> = match limit {
            Limit::None => Vec::new(),
            Limit::Each => servers.chunks(1).collect(),
            Limit::Together => vec![&servers],
        };
        for (number, group) in groups.into_iter().enumerate() {
            let slice = Slice::create(&format!("{}-{number}", self.way), percent)?;
            for &server in group {
                slice.add(&family(server))?;
            }
            self.slices.push(slice);
        }
        Ok(())
    }

    /// The processor time that it has used so far.
    pub fn used(&self) -> Cost {
        let (databases, others) = self.processes();
        let used = |roots: Vec<Pid>| {
            let all = roots.into_iter().flat_map(family);
            all.filter_map(cpu_seconds).sum()
        };
        Cost {
            databases_s: used(databases),
            others_s: used(others),
        }
    }

    /// The members have the same, if they are a mirror's; commits wait for replication, if that is the way.
    pub async fn check(&mut self) -> anyhow::Result<()> {
        if let Behind::Logical(servers) = &self.behind {
            is_replicated(&servers[0]).await?;
        }
        if let Behind::Mirror(mirror) = &mut self.behind {
            mirror.check_running()?;
            if matches!(self.way, Way::Logged | Way::Both) {
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
        // A mirror needs it, so everybody pays for it.
        set("wal_level", "logical"),
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

async fn start_two(options: &Options, dir: &Path) -> anyhow::Result<[Stock; 2]> {
    Ok([
        start_stock(options, &dir.join("one")).await?,
        start_stock(options, &dir.join("other")).await?,
    ])
}

/// The name of publication, subscription and synchronous standby.
const REPLICA: &str = "understudy_bench";

/// Has each commit of the first server wait until the second one has it on its disk. Both have the same data already.
async fn replicate([publisher, subscriber]: &[Stock; 2]) -> anyhow::Result<()> {
    let (from, to) = (database(publisher), database(subscriber));
    let client = connect(&from.config()).await?;
    client
        .batch_execute(&format!("CREATE PUBLICATION {REPLICA} FOR ALL TABLES"))
        .await?;
    let connection = format!(
        "host={} port={} user={} dbname={}",
        from.host, from.port, from.user, from.database
    );
    let subscriber = connect(&to.config()).await?;
    subscriber
        .batch_execute(&format!(
            "CREATE SUBSCRIPTION {REPLICA} CONNECTION '{connection}' PUBLICATION {REPLICA} \
             WITH (copy_data = false, synchronous_commit = on)"
        ))
        .await?;
    let waits = format!("ALTER SYSTEM SET synchronous_standby_names = '{REPLICA}'");
    client.batch_execute(&waits).await?;
    client.batch_execute("SELECT pg_reload_conf()").await?;
    let started = Instant::now();
    while let Err(error) = is_replicated(publisher).await {
        anyhow::ensure!(started.elapsed() < LISTENS_WITHIN, error);
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    Ok(())
}

async fn is_replicated(publisher: &Stock) -> anyhow::Result<()> {
    let client = connect(&publisher.server().config()).await?;
    let waits = "SELECT count(*) FROM pg_stat_replication WHERE sync_state = 'sync'";
    let count: i64 = client.query_one(waits, &[]).await?.get(0);
    anyhow::ensure!(count == 1, "commits wait for no subscription");
    Ok(())
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
