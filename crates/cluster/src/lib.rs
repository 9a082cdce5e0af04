//! A whole cluster on this machine, for the demo, the benchmarks and the system tests: zones and
//! nodes as child processes, which can be killed, paused and started again; and its [`clients`].
//!
//! ```text
//!   Options ──▶ Cluster ──▶ zones, nodes: child processes ◀── sites, disk, wan: what is cut, slow or far away
//!                               ▲
//!   clients ── transactions ────┘
//!      └──▶ History: what each client was told ──▶ verify: is all of it there, and nothing else?
//! ```
//!
//! Invariant: when a [`Cluster`] is dropped, for whatever reason, its processes are dead and its
//! mounts are gone.
//!
//! The verdict is pure:
//!
//! ```
//! use cluster::clients::history::History;
//! use cluster::clients::verify::compare;
//!
//! // Nobody tried anything, and yet the ledger has a row.
//! let comparison = compare(&History::default(), &[(1, 1)]);
//! assert_eq!(comparison.unexpected, [(1, 1)]);
//! ```

pub mod clients;
mod credentials;
pub mod disk;
pub mod elsewhere;
mod logs;
#[cfg(feature = "vm")]
pub mod machine;
#[cfg(feature = "engine")]
pub mod mariadb;
pub mod mirror;
pub mod process;
pub mod programs;
pub mod proxy;
pub mod remnants;
pub mod scratch;
mod settings;
pub mod sites;
pub mod stock;
pub mod tier;
pub mod wait;
pub mod wan;
pub mod workspace;

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, SystemTime};

use anyhow::Context;
use nix::unistd::Pid;

use crate::clients::schema::{Server, any_writable};
use credentials::Credentials;
use process::{Kill, Process};
pub use settings::{NodeSettings, Options, PASSWORD_FILE};
use store::Network;
pub use supervise::ports;

/// A member of the cluster: how it is started, and its process while it runs.
#[derive(Debug)]
struct Member {
    name: String,
    arguments: Vec<String>,
    process: Option<Process>,
}

/// A cluster. See the module.
#[derive(Debug)]
pub struct Cluster {
    options: Options,
    zones: Vec<Member>,
    nodes: Vec<Member>,
    settings: Vec<NodeSettings>,
    credentials: Credentials,
}

impl Cluster {
    /// Chooses ports, makes a secret, and writes the nodes' configuration files. Starts nothing.
    ///
    /// # Errors
    /// The directory cannot be written, or no port is free.
    pub fn create(options: Options) -> anyhow::Result<Cluster> {
        let zone_ports = (0..options.zones * options.servers_per_zone)
            .map(|_| ports::free())
            .collect::<std::io::Result<Vec<u16>>>()?;
        let credentials = Credentials::write(&options.dir, options.tls)?;
        let settings = options
            .nodes
            .iter()
            .map(|name| NodeSettings::write(&options, name, &zone_ports, &credentials))
            .collect::<anyhow::Result<Vec<_>>>()?;
        std::fs::create_dir_all(options.logs()).context("cannot create the log directory")?;
        if let Some(network) = &options.network {
            network.write(&options.network_file())?;
        }
        let zones = zone_ports.iter().enumerate().map(|(at, port)| Member {
            name: settings::zone_name(at),
            arguments: zone_arguments(&options, &credentials, at, *port),
            process: None,
        });
        let nodes = settings.iter().map(|node| Member {
            name: node.name.clone(),
            arguments: vec![
                "node".into(),
                "--config".into(),
                node.config.display().to_string(),
                "--until-stdin-closes".into(),
            ],
            process: None,
        });
        Ok(Cluster {
            zones: zones.collect(),
            nodes: nodes.collect(),
            settings,
            credentials,
            options,
        })
    }

    /// Starts every zone, creates the volume, starts the first node and waits until it accepts
    /// writes, then starts the others and waits until each follows.
    ///
    /// # Errors
    /// Something does not come up; the message holds the end of its log.
    pub async fn start(&mut self) -> anyhow::Result<()> {
        self.start_first().await?;
        self.start_others().await
    }

    /// Starts every zone, creates the volume, starts the first node and waits until it accepts writes.
    ///
    /// # Errors
    /// As of [`start`](Self::start).
    pub async fn start_first(&mut self) -> anyhow::Result<()> {
        for zone in 1..=self.zones.len() {
            self.start_zone(zone)?;
        }
        self.init().await?;
        let first = self.nodes.first().map(|node| node.name.clone());
        self.start_node(&first.context("a cluster has nodes")?)?;
        self.wait_active(Duration::from_secs(60)).await.map(drop)
    }

    /// Starts the nodes behind the first and waits until each follows that is no spare.
    ///
    /// # Errors
    /// As of [`start`](Self::start).
    pub async fn start_others(&mut self) -> anyhow::Result<()> {
        let names: Vec<String> = self.nodes.iter().map(|node| node.name.clone()).collect();
        for name in names.iter().skip(1) {
            self.start_node(name)?;
        }
        let spare = |name: &&String| self.options.spares.contains(name);
        let standbys: Vec<&String> = names.iter().skip(1).filter(|n| !spare(n)).collect();
        for name in standbys {
            self.wait_follows(name, Duration::from_secs(60)).await?;
        }
        Ok(())
    }

    /// Creates the volume and an empty database in it.
    ///
    /// # Errors
    /// `understudy init` fails; its words are in the message.
    pub async fn init(&self) -> anyhow::Result<()> {
        let first = self.settings.first().context("a cluster has a node")?;
        let config = first.config.display().to_string();
        let own = self.options.init_arguments.iter().map(String::as_str);
        let mut arguments = vec!["init", "--config", &config];
        arguments.extend(own);
        let login = self.options.login()?;
        arguments.extend(login.iter().map(String::as_str));
        self.run(&arguments).await.map(drop)
    }

    /// From now on zones and nodes are started, and commands run, with another program; what runs stays as it is.
    pub fn use_program(&mut self, program: &Path) {
        program.clone_into(&mut self.options.understudy);
    }

    /// Runs `understudy` with these arguments and returns what it printed.
    ///
    /// # Errors
    /// It fails; its words are in the message.
    pub async fn run(&self, arguments: &[&str]) -> anyhow::Result<String> {
        let output = tokio::process::Command::new(&self.options.understudy)
            .args(arguments)
            .stdin(std::process::Stdio::null())
            .kill_on_drop(true)
            .output()
            .await
            .with_context(|| format!("cannot run {}", self.options.understudy.display()))?;
        anyhow::ensure!(
            output.status.success(),
            "understudy {} failed ({}): {}",
            arguments.join(" "),
            output.status,
            String::from_utf8_lossy(&output.stderr).trim()
        );
        Ok(String::from_utf8_lossy(&output.stdout).into_owned())
    }

    /// What `understudy status` or `history` says as JSON, asked with any node's configuration.
    ///
    /// # Errors
    /// It fails; its words are in the message.
    pub async fn ask(&self, command: &str) -> anyhow::Result<String> {
        let any = self.settings.first().context("a cluster has a node")?;
        let config = any.config.display().to_string();
        self.run(&[command, "--json", "--config", &config]).await
    }

    /// Starts the zone server with this number, counted from 1, zone by zone.
    ///
    /// # Errors
    /// The program cannot be run.
    pub fn start_zone(&mut self, number: usize) -> anyhow::Result<()> {
        let options = &self.options;
        let zone = self.zones.get_mut(number - 1).context("no such zone")?;
        start(options, zone)
    }

    /// One more zone server, which no configuration lists, with an empty directory; its number and its address.
    /// It does not run yet.
    ///
    /// # Errors
    /// No port is free.
    pub fn add_zone(&mut self) -> anyhow::Result<(usize, String)> {
        let (at, port) = (self.zones.len(), ports::free()?);
        self.zones.push(Member {
            name: settings::zone_name(at),
            arguments: zone_arguments(&self.options, &self.credentials, at, port),
            process: None,
        });
        Ok((at + 1, format!("{}:{port}", self.options.zone_address(at))))
    }

    /// Where a zone server is reached, counted as in [`start_zone`](Cluster::start_zone).
    ///
    /// # Errors
    /// There is no such zone.
    pub fn zone_address(&self, number: usize) -> anyhow::Result<String> {
        let zone = self.zones.get(number - 1).context("no such zone")?;
        let mut arguments = zone
            .arguments
            .iter()
            .skip_while(|a| *a != "--listen")
            .skip(1);
        arguments
            .next()
            .cloned()
            .context("a zone listens somewhere")
    }

    /// Kills a zone server, counted as in [`start_zone`](Cluster::start_zone).
    pub fn kill_zone(&mut self, number: usize) -> Option<Kill> {
        let zone = self.zones.get_mut(number - 1)?;
        zone.process.take().map(|mut process| process.kill_all())
    }

    /// A zone server's process, counted as in [`start_zone`](Cluster::start_zone).
    pub fn zone_process(&mut self, number: usize) -> Option<&mut Process> {
        self.zones.get_mut(number - 1)?.process.as_mut()
    }

    /// Changes the emulated network; the zones follow within a moment.
    ///
    /// # Errors
    /// The cluster was created without one, or the file cannot be written.
    pub fn change_network(&mut self, change: impl FnOnce(&mut Network)) -> anyhow::Result<()> {
        let file = self.options.network_file();
        let network = self.options.network.as_mut();
        let network = network.context("the cluster has no emulated network")?;
        change(network);
        Ok(network.write(&file)?)
    }

    /// Cuts two zones off from each other, or heals that.
    ///
    /// # Errors
    /// As [`Cluster::change_network`].
    pub fn set_cut(&mut self, a: usize, b: usize, cut: bool) -> anyhow::Result<()> {
        self.change_network(|n| n.link_mut(&a.to_string(), &b.to_string()).cut = cut)
    }

    /// Starts a node.
    ///
    /// # Errors
    /// The program cannot be run, or there is no such node.
    pub fn start_node(&mut self, name: &str) -> anyhow::Result<()> {
        let options = &self.options;
        let node = self.nodes.iter_mut().find(|node| node.name == name);
        start(options, node.context("no such node")?)
    }

    /// Kills a node as a machine that loses power: agent and PostgreSQL, and the mount with them.
    pub fn kill_node(&mut self, name: &str) -> Option<Kill> {
        let node = self.nodes.iter_mut().find(|node| node.name == name)?;
        node.process.take().map(|mut process| process.kill_all())
    }

    /// Kills the postmaster of a node and nothing else.
    ///
    /// # Errors
    /// There is none.
    pub fn kill_postgres(&mut self, name: &str) -> anyhow::Result<SystemTime> {
        let postmaster = self.postmaster(name)?;
        let at = SystemTime::now();
        nix::sys::signal::kill(postmaster, nix::sys::signal::Signal::SIGKILL)?;
        Ok(at)
    }

    /// The postmaster of a node.
    ///
    /// # Errors
    /// There is none.
    pub fn postmaster(&mut self, name: &str) -> anyhow::Result<Pid> {
        let agent = self.node_process(name).context("it does not run")?.pid();
        let is_postgres = |pid: &Pid| {
            let name = std::fs::read_to_string(format!("/proc/{pid}/comm"));
            name.is_ok_and(|name| name.trim() == "postgres")
        };
        // Parents come first.
        let postmaster = process::family(agent).into_iter().find(is_postgres);
        postmaster.context("it has no PostgreSQL")
    }

    /// A node's process.
    pub fn node_process(&mut self, name: &str) -> Option<&mut Process> {
        let node = self.nodes.iter_mut().find(|node| node.name == name)?;
        node.process.as_mut()
    }

    /// The zone servers and agents that were started and not stopped.
    pub fn processes(&self) -> impl Iterator<Item = (&str, Pid)> {
        let members = self.zones.iter().chain(&self.nodes);
        members.filter_map(|m| Some((m.name.as_str(), m.process.as_ref()?.pid())))
    }

    /// Asks a node to end and waits for it.
    ///
    /// # Errors
    /// It does not within `timeout`; it is killed then.
    pub fn stop_node(&mut self, name: &str, timeout: Duration) -> anyhow::Result<()> {
        let node = self.nodes.iter_mut().find(|node| node.name == name);
        let Some(mut process) = node.and_then(|node| node.process.take()) else {
            return Ok(());
        };
        anyhow::ensure!(
            process.terminate(timeout),
            "{name} did not stop within {timeout:?}"
        );
        Ok(())
    }

    /// Where a node's PostgreSQL listens.
    ///
    /// # Errors
    /// There is no such node.
    pub fn server(&self, name: &str) -> anyhow::Result<Server> {
        Ok(self.node(name)?.server())
    }

    /// The connection string of an application.
    pub fn any_writable(&self) -> tokio_postgres::Config {
        let servers: Vec<Server> = self.settings.iter().map(NodeSettings::server).collect();
        any_writable(&servers)
    }

    /// The configuration file of a node.
    ///
    /// # Errors
    /// There is no such node.
    pub fn node(&self, name: &str) -> anyhow::Result<&NodeSettings> {
        let found = self.settings.iter().find(|node| node.name == name);
        found.with_context(|| format!("no node {name}"))
    }

    /// The nodes' names.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.settings.iter().map(|node| node.name.as_str())
    }

    /// What the cluster was created with.
    pub fn options(&self) -> &Options {
        &self.options
    }

    /// The log of every process that was ever started.
    pub fn logs(&self) -> PathBuf {
        self.options.logs()
    }

    /// Fails, with the end of its log, if a process that should run has ended.
    ///
    /// # Errors
    /// One has.
    pub fn check_running(&mut self) -> anyhow::Result<()> {
        let members = self.zones.iter_mut().chain(&mut self.nodes);
        members
            .filter_map(|member| member.process.as_mut())
            .try_for_each(Process::check_running)
    }

    /// Ends everything in order: nodes first, then zones. What does not end is killed.
    pub fn shutdown(&mut self) {
        for member in self.nodes.iter_mut().chain(&mut self.zones) {
            if let Some(mut process) = member.process.take()
                && !process.terminate(Duration::from_secs(15))
            {
                tracing::debug!(name = member.name, "does not end, so it is killed");
            }
        }
        remnants::detach_mounts(&self.options.dir);
    }
}

impl Drop for Cluster {
    fn drop(&mut self) {
        // Without a timeout: this is also the way out of a panic or an interrupt.
        for member in self.nodes.iter_mut().chain(&mut self.zones) {
            member.process.take();
        }
        remnants::detach_mounts(&self.options.dir);
    }
}

fn zone_arguments(
    options: &Options,
    credentials: &Credentials,
    at: usize,
    port: u16,
) -> Vec<String> {
    let data = options.dir.join(settings::zone_name(at));
    let zone = at / options.servers_per_zone.max(1);
    let mut arguments = vec![
        "store".into(),
        "--data".into(),
        data.display().to_string(),
        "--listen".into(),
        format!("{}:{port}", options.zone_address(at)),
        "--secret-file".into(),
        credentials.secret.display().to_string(),
        "--until-stdin-closes".into(),
    ];
    if let Some(identity) = &credentials.identity {
        arguments.extend(["--identity".into(), identity.display().to_string()]);
    }
    if options.network.is_some() {
        let file = options.network_file().display().to_string();
        arguments.extend(["--network".into(), file, "--zone".into(), zone.to_string()]);
    }
    arguments
}

fn start(options: &Options, member: &mut Member) -> anyhow::Result<()> {
    if let Some(process) = &mut member.process {
        anyhow::ensure!(process.ended().is_some(), "{} runs already", member.name);
    }
    let wrapper = options.wrapper_of(&member.name);
    let mut command = match wrapper.split_first() {
        Some((program, arguments)) => {
            let mut command = Command::new(program);
            command.args(arguments).arg(&options.understudy);
            command
        }
        None => Command::new(&options.understudy),
    };
    command.args(&member.arguments);
    if let Some(filter) = &options.log_filter {
        command.env("RUST_LOG", filter);
    }
    let log = options.log_of(&member.name);
    member.process = Some(Process::spawn(&member.name, command, &log)?);
    Ok(())
}

/// Creates a directory of its own for a cluster; others may look inside but not write.
///
/// # Errors
/// None can be created there.
pub fn fresh_directory(base: &Path, prefix: &str) -> anyhow::Result<PathBuf> {
    let id = std::process::id();
    for number in 0..1000 {
        let dir = base.join(format!("{prefix}-{id}-{number}"));
        match std::fs::create_dir(&dir) {
            Ok(()) => return Ok(dir),
            Err(error) if error.kind() == std::io::ErrorKind::AlreadyExists => {}
            Err(error) => {
                return Err(error).with_context(|| format!("cannot create {}", dir.display()));
            }
        }
    }
    anyhow::bail!("{} is full of old {prefix} directories", base.display())
}
