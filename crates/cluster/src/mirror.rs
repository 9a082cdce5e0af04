//! A mirror on this machine: two servers of stock PostgreSQL, a replication manager beside each, and the zones that keep
//! the log.
//!
//! ```text
//!   clients ──▶ manager north ◀──▶ manager south
//!                 │      └── log ──▶ zones ◀──┘ │
//!               member 0                      member 1
//! ```
//!
//! Invariant: as [`Cluster`], nothing is left when it is dropped.

use std::ffi::OsStr;
use std::net::Ipv4Addr;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context, ensure};
use nix::unistd::Pid;
use serde_json::Value;

use crate::clients::schema::{Server, any_writable};
use crate::clients::session::connect;
use crate::process::Process;
use crate::sites::{Sites, hba_file};
use crate::stock::{Place, Stock};
use crate::{Cluster, Options as ClusterOptions, ports};

/// The database that is mirrored.
pub const DATABASE: &str = "app";
/// The managers.
pub const NAMES: [&str; 2] = ["north", "south"];
/// How often the managers are asked while something is waited for.
const POLL: Duration = Duration::from_millis(50);
/// A manager that serves answers by then.
const ANSWERS_WITHIN: Duration = Duration::from_secs(3);
/// A manager listens by then.
const LISTENS_WITHIN: Duration = Duration::from_secs(30);

/// How a mirror is made.
#[derive(Debug, Clone)]
pub struct Options {
    /// Where data, configuration and logs go.
    pub dir: PathBuf,
    /// PostgreSQL's programs, for each member.
    pub bins: [PathBuf; 2],
    /// Where `pg_dump` and `pg_restore` for a state transfer are.
    pub tools: PathBuf,
    /// The `understudy` program.
    pub understudy: PathBuf,
    /// The first member is the only one: its manager has no other, and logs nothing.
    pub single: bool,
    /// Lines of `[mirror]` besides those that there must be.
    pub settings: Vec<String>,
    /// Parameters of both members, besides `wal_level`.
    pub parameters: Vec<(String, String)>,
    /// Network namespaces: of the zones ("zone-1", ...), the managers ([`NAMES`]) and the members ([`member_name`]).
    /// Clients are at their centre. Without, everything is at 127.0.0.1.
    pub sites: Option<Arc<Sites>>,
}

/// What a member's place is called.
pub fn member_name(at: usize) -> String {
    format!("member-{}", NAMES[at])
}

impl Options {
    /// Two members of the same version.
    pub fn new(dir: &Path, bin: &Path, understudy: &Path) -> Options {
        Options {
            dir: dir.to_owned(),
            bins: [bin.to_owned(), bin.to_owned()],
            tools: bin.to_owned(),
            understudy: understudy.to_owned(),
            single: false,
            settings: Vec::new(),
            // 8 clients and as many appliers, the manager's own sessions, and a state transfer.
            parameters: vec![("max_connections".to_owned(), "200".to_owned())],
            sites: None,
        }
    }

    /// Where something is.
    fn address_of(&self, name: &str) -> Ipv4Addr {
        let site = self.sites.as_ref().and_then(|sites| sites.address(name));
        site.unwrap_or(Ipv4Addr::LOCALHOST)
    }

    /// What runs a command there.
    fn wrapper_of(&self, name: &str) -> Vec<String> {
        let site = self.sites.as_ref().and_then(|sites| sites.wrapper(name));
        site.unwrap_or_default()
    }
}

/// A manager: its files, and its process while it runs.
#[derive(Debug)]
struct Manager {
    config: PathBuf,
    listen: u16,
    process: Option<Process>,
}

/// See the module. Fields are dropped in this order.
#[derive(Debug)]
pub struct Mirror {
    managers: [Manager; 2],
    members: [Stock; 2],
    zones: Cluster,
    options: Options,
}

impl Mirror {
    /// Starts the zones and both members, and creates the database on the first; nothing mirrors it yet.
    ///
    /// # Errors
    /// Something does not come up.
    pub async fn prepare(options: Options) -> anyhow::Result<Mirror> {
        let mut zones = ClusterOptions::new(&options.dir, &options.bins[0], &options.understudy);
        zones.nodes = Vec::new();
        zones.sites.clone_from(&options.sites);
        zones.tls = options.sites.is_some();
        let mut zones = Cluster::create(zones)?;
        for zone in 1..=zones.zones.len() {
            zones.start_zone(zone)?;
        }
        let member = async |at: usize| {
            let name = member_name(at);
            let mut parameters = options.parameters.clone();
            parameters.push(("wal_level".to_owned(), "logical".to_owned()));
            if options.sites.is_some() {
                parameters.push(("hba_file".to_owned(), hba_file(&options.dir, "trust")?));
            }
            let place = Place {
                address: options.address_of(&name),
                wrapper: options.wrapper_of(&name),
            };
            let dir = options.dir.join(name);
            Stock::start_at(place, &dir, &options.bins[at], parameters).await
        };
        let members = [member(0).await?, member(1).await?];
        let client = connect(&members[0].server().config()).await?;
        client
            .batch_execute(&format!("CREATE DATABASE {DATABASE}"))
            .await?;
        let managers = write_configurations(&options, &zones, &members)?;
        Ok(Mirror {
            managers,
            members,
            zones,
            options,
        })
    }

    /// Makes the log's volume, starts both managers, and waits until one is primary and the other one a standby.
    ///
    /// # Errors
    /// They are not in time.
    pub async fn start(&mut self, timeout: Duration) -> anyhow::Result<()> {
        self.run(0, &["create-log"]).await?;
        for at in 0..2 {
            self.start_manager(at).await?;
        }
        self.settle(timeout).await
    }

    /// Runs a verb of `understudy mirror` with a manager's configuration; what it printed.
    ///
    /// # Errors
    /// It fails; its words are in the message.
    pub async fn run(&self, at: usize, words: &[&str]) -> anyhow::Result<String> {
        let config = self.managers[at].config.display().to_string();
        let mut arguments = vec!["mirror"];
        arguments.extend(words);
        arguments.extend(["--config", &config]);
        self.zones.run(&arguments).await
    }

    /// The same with `--json`.
    ///
    /// # Errors
    /// As [`run`](Self::run).
    pub async fn ask(&self, verb: &str) -> anyhow::Result<Value> {
        let told = self.run(0, &[verb, "--json"]).await?;
        Ok(serde_json::from_str(&told)?)
    }

    /// What `verify` says; nothing if the members cannot be compared now.
    ///
    /// # Errors
    /// The command prints no valid JSON.
    pub async fn verdict(&self) -> anyhow::Result<Option<Value>> {
        let config = self.managers[0].config.display().to_string();
        // Members that differ are an answer, although the command then fails.
        let output = tokio::process::Command::new(&self.options.understudy)
            .args(["mirror", "verify", "--json", "--config", &config])
            .stdin(std::process::Stdio::null())
            .kill_on_drop(true)
            .output()
            .await?;
        match output.stdout.is_empty() {
            true => Ok(None),
            false => Ok(Some(serde_json::from_slice(&output.stdout)?)),
        }
    }

    /// Starts a manager and waits until it listens.
    ///
    /// # Errors
    /// It does not.
    pub async fn start_manager(&mut self, at: usize) -> anyhow::Result<()> {
        let manager = &mut self.managers[at];
        ensure!(manager.process.is_none(), "{} runs already", NAMES[at]);
        let wrapper = self.options.wrapper_of(NAMES[at]);
        let mut words = wrapper.iter().map(OsStr::new);
        let program = self.options.understudy.as_os_str();
        let mut command = Command::new(words.next().unwrap_or(program));
        command.args(words);
        if !wrapper.is_empty() {
            command.arg(program);
        }
        command
            .args(["mirror", "run", "--until-stdin-closes", "--config"])
            .arg(&manager.config);
        let log = self.zones.options().log_of(NAMES[at]);
        let mut process = Process::spawn(NAMES[at], command, &log)?;
        let host = self.options.address_of(NAMES[at]).to_string();
        let address = (host.as_str(), manager.listen);
        process.wait_listens(address, LISTENS_WITHIN).await?;
        manager.process = Some(process);
        Ok(())
    }

    /// Kills a manager; whether it ran.
    pub fn kill_manager(&mut self, at: usize) -> bool {
        let process = self.managers[at].process.take();
        process.is_some_and(|mut process| process.kill_all().processes > 0)
    }

    /// Asks a manager to end, and waits for that.
    ///
    /// # Errors
    /// It does not within `timeout`; it is killed then.
    pub fn stop_manager(&mut self, at: usize, timeout: Duration) -> anyhow::Result<()> {
        let Some(mut process) = self.managers[at].process.take() else {
            return Ok(());
        };
        let ended = process.terminate(timeout);
        ensure!(ended, "{} did not end within {timeout:?}", NAMES[at]);
        Ok(())
    }

    /// A manager's process.
    pub fn manager(&self, at: usize) -> Option<&Process> {
        self.managers[at].process.as_ref()
    }

    /// Kills a member as a server whose machine loses power.
    pub fn kill_member(&mut self, at: usize) {
        self.members[at].kill();
    }

    /// Starts a member again with what it has.
    ///
    /// # Errors
    /// It does not start.
    pub async fn start_member(&mut self, at: usize) -> anyhow::Result<()> {
        self.members[at].restart().await
    }

    /// A member comes back on a new disk: everything it had is gone.
    ///
    /// # Errors
    /// It does not start.
    pub async fn renew_member(&mut self, at: usize) -> anyhow::Result<()> {
        self.members[at].renew().await
    }

    /// The processes of both managers, both members and the zones, by name.
    pub fn processes(&self) -> Vec<(String, Pid)> {
        let managers = self.managers.iter().zip(NAMES);
        let managers = managers
            .filter_map(|(manager, name)| Some((name.to_owned(), manager.process.as_ref()?.pid())));
        let members = self.members.iter().zip(NAMES);
        let members =
            members.filter_map(|(member, name)| Some((format!("member of {name}"), member.pid()?)));
        let zones = self.zones.processes();
        let zones = zones.map(|(name, pid)| (name.to_owned(), pid));
        managers.chain(members).chain(zones).collect()
    }

    /// Fails, with the end of its log, if a manager or a zone that should run has ended.
    ///
    /// # Errors
    /// One has.
    pub fn check_running(&mut self) -> anyhow::Result<()> {
        let managers = self.managers.iter_mut();
        managers
            .filter_map(|manager| manager.process.as_mut())
            .try_for_each(Process::check_running)?;
        self.zones.check_running()
    }

    /// What both managers say of themselves; nothing from one that does not answer.
    ///
    /// # Errors
    /// `status` prints no valid JSON.
    pub async fn statuses(&self) -> anyhow::Result<[Option<Value>; 2]> {
        // It fails if neither answers.
        let told = self.run(0, &["status", "--json"]).await;
        let Ok(told) = told else {
            return Ok([None, None]);
        };
        let [one, other]: [Value; 2] = serde_json::from_str(&told)?;
        Ok([one, other].map(|told| (!told.is_null()).then_some(told)))
    }

    /// Which manager serves clients.
    pub async fn primary(&self) -> Option<usize> {
        let statuses = self.statuses().await.ok()?;
        statuses
            .iter()
            .position(|status| has_role(status, "primary"))
    }

    /// Waits until one manager serves.
    ///
    /// # Errors
    /// None does in time, or something has ended.
    pub async fn wait_primary(&mut self, timeout: Duration) -> anyhow::Result<usize> {
        let deadline = Instant::now() + timeout;
        loop {
            if let Some(primary) = self.primary().await {
                return Ok(primary);
            }
            self.wait(deadline, "no manager is primary").await?;
        }
    }

    /// Waits until this manager serves, whatever the other one says.
    ///
    /// # Errors
    /// It does not in time, or something has ended.
    pub async fn wait_serves(&mut self, at: usize, timeout: Duration) -> anyhow::Result<()> {
        let deadline = Instant::now() + timeout;
        while !self.serves(at).await {
            let text = format!("{} does not serve", NAMES[at]);
            self.wait(deadline, &text).await?;
        }
        Ok(())
    }

    /// True if clients are let in by this manager: one that stands still answers nobody else either.
    async fn serves(&self, at: usize) -> bool {
        let config = self.server(at).config();
        let asked = async { connect(&config).await?.simple_query("SELECT 1").await };
        let asked = tokio::time::timeout(ANSWERS_WITHIN, asked).await;
        asked.is_ok_and(|answer| answer.is_ok())
    }

    /// Waits until one manager is primary and the other one a standby.
    ///
    /// # Errors
    /// They are not in time, or something has ended.
    pub async fn settle(&mut self, timeout: Duration) -> anyhow::Result<()> {
        let deadline = Instant::now() + timeout;
        loop {
            let statuses = self.statuses().await?;
            let some = |role| statuses.iter().any(|status| has_role(status, role));
            if some("primary") && some("standby") {
                return Ok(());
            }
            let text = format!("there is not a primary and a standby: {statuses:?}");
            self.wait(deadline, &text).await?;
        }
    }

    async fn wait(&mut self, deadline: Instant, what: &str) -> anyhow::Result<()> {
        self.check_running()?;
        let logs = self.zones.logs();
        ensure!(
            Instant::now() < deadline,
            "{what}; the logs are in {}",
            logs.display()
        );
        tokio::time::sleep(POLL).await;
        Ok(())
    }

    /// The mirrored database on a member itself.
    pub fn member(&self, at: usize) -> Server {
        Server {
            database: DATABASE.to_owned(),
            ..self.members[at].server()
        }
    }

    /// The mirrored database through a manager.
    pub fn server(&self, at: usize) -> Server {
        Server {
            host: self.options.address_of(NAMES[at]).to_string(),
            port: self.managers[at].listen,
            ..self.member(at)
        }
    }

    /// The connection string of an application: both managers.
    pub fn any_writable(&self) -> tokio_postgres::Config {
        any_writable(&[self.server(0), self.server(1)])
    }

    /// Where the logs are.
    pub fn logs(&self) -> PathBuf {
        self.zones.logs()
    }

    /// The cluster of zones that has the log.
    pub fn zones(&mut self) -> &mut Cluster {
        &mut self.zones
    }

    /// Ends everything in order: managers, members, zones.
    pub fn shutdown(&mut self) {
        for manager in &mut self.managers {
            if let Some(mut process) = manager.process.take() {
                process.terminate(Duration::from_secs(5));
            }
        }
        for member in &mut self.members {
            member.kill();
        }
        self.zones.shutdown();
    }
}

fn has_role(status: &Option<Value>, role: &str) -> bool {
    status.as_ref().is_some_and(|told| told["role"] == role)
}

fn write_configurations(
    options: &Options,
    zones: &Cluster,
    members: &[Stock; 2],
) -> anyhow::Result<[Manager; 2]> {
    let places = (1..=zones.zones.len())
        .map(|number| Ok(format!("\"{}\"", zones.zone_address(number)?)))
        .collect::<anyhow::Result<Vec<_>>>()?;
    let peers = [ports::free()?, ports::free()?];
    let conninfo = |at: usize| {
        let Server {
            host, port, user, ..
        } = members[at].server();
        format!("host={host} port={port} user={user} dbname={DATABASE}")
    };
    let [here, there] = NAMES.map(|name| options.address_of(name));
    let write = |at: usize| {
        let listen = ports::free()?;
        let (address, other_address) = if at == 0 {
            (here, there)
        } else {
            (there, here)
        };
        let tls = zones.credentials.identity.as_ref();
        let tls = tls.map(|identity| format!("\n[tls]\nidentity = \"{}\"\n", identity.display()));
        let pair = match options.single {
            true => "single = true".to_owned(),
            false => format!(
                "peer = \"{other_address}:{}\"\nother_member = \"{}\"\nfirst = {}",
                peers[1 - at],
                conninfo(1 - at),
                at == 0
            ),
        };
        let text = format!(
            "name = \"{name}\"\nvolume = \"{volume}\"\nzones = [{zones}]\nkey = \"{key}\"\n\n\
             [mirror]\nlisten = \"{address}:{listen}\"\npeer_listen = \"{address}:{own}\"\n\
             member = \"{member}\"\n{pair}\nclients_need_no_proof = true\nbin = \"{tools}\"\n{more}\n{tls}",
            name = NAMES[at],
            volume = zones.options().volume,
            zones = places.join(", "),
            key = zones.credentials.key.display(),
            own = peers[at],
            member = conninfo(at),
            tools = options.tools.display(),
            more = options.settings.join("\n"),
            tls = tls.unwrap_or_default(),
        );
        let config = options.dir.join(format!("{}.toml", NAMES[at]));
        std::fs::write(&config, text)
            .with_context(|| format!("cannot write {}", config.display()))?;
        Ok(Manager {
            config,
            listen,
            process: None,
        })
    };
    let one: anyhow::Result<Manager> = write(0);
    Ok([one?, write(1)?])
}
