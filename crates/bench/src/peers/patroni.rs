//! Two PostgreSQL servers with streaming replication, each under Patroni, and three etcd servers, all as
//! Debian packages them.
//!
//! Invariant: everything of a node is below one process, in a process namespace of its own; Patroni's
//! PostgreSQL would otherwise leave its family, and survive the kill of its machine.

use std::os::unix::fs::chown;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::{Context, ensure};
use async_trait::async_trait;
use nix::unistd::Pid;
use serde_json::json;

use super::subscriber::{SLOT, has_failover_slots};
use super::system::{Death, Machines, NORTH, SOUTH, System, WITNESSES, parameters};
use super::{Distance, Options, TIMEOUT};
use cluster::clients::schema::Server;
use cluster::clients::session::connect;
use cluster::process::{Process, last_lines};
use cluster::stock::unprivileged;

/// Every machine is its own, so the usual ports are free.
const POSTGRES_PORT: u16 = 5432;
const REST_PORT: u16 = 8008;
const ETCD_CLIENT_PORT: u16 = 2379;
const ETCD_PEER_PORT: u16 = 2380;

pub(super) struct Patroni {
    nodes: Vec<(&'static str, Option<Process>)>,
    etcd: Vec<Process>,
    machines: Machines,
    dir: PathBuf,
    synchronous: bool,
    /// Who is, or will be, the primary.
    leader: &'static str,
}

impl Patroni {
    /// Creates and starts it: etcd, the node that shall be active, the standby.
    pub async fn start(
        options: &Options,
        machines: &Machines,
        dir: &Path,
        synchronous: bool,
    ) -> anyhow::Result<Patroni> {
        let mut system = Patroni {
            nodes: Vec::new(),
            etcd: Vec::new(),
            machines: machines.clone(),
            dir: dir.to_owned(),
            synchronous,
            leader: NORTH,
        };
        for machine in WITNESSES {
            system.start_etcd(options.distance, dir, machine)?;
        }
        for machine in [NORTH, SOUTH] {
            let config = configuration(options, machines, dir, machine, synchronous)?;
            system.start_node(dir, machine, &config)?;
            system.wait_answers(dir, machine).await?;
        }
        system.wait_protected().await?;
        Ok(system)
    }

    fn start_etcd(&mut self, distance: Distance, dir: &Path, machine: &str) -> anyhow::Result<()> {
        let url =
            |machine: &str, port: u16| format!("http://{}:{port}", self.machines.address(machine));
        let members = WITNESSES.map(|name| format!("{name}={}", url(name, ETCD_PEER_PORT)));
        let (client, peer) = (url(machine, ETCD_CLIENT_PORT), url(machine, ETCD_PEER_PORT));
        let mut command = wrapped(&self.machines.wrapper(machine), "etcd");
        command
            .args(["--name", machine, "--data-dir"])
            .arg(dir.join(machine))
            .args([
                "--listen-client-urls",
                &client,
                "--advertise-client-urls",
                &client,
            ])
            .args([
                "--listen-peer-urls",
                &peer,
                "--initial-advertise-peer-urls",
                &peer,
            ])
            .args(["--initial-cluster", &members.join(",")]);
        if distance == Distance::Regions {
            // As its documentation advises: the round trip, and ten times that.
            command.args(["--heartbeat-interval=100", "--election-timeout=1500"]);
        }
        let log = dir.join(format!("{machine}.log"));
        self.etcd.push(Process::spawn(machine, command, &log)?);
        Ok(())
    }

    fn start_node(
        &mut self,
        dir: &Path,
        machine: &'static str,
        config: &Path,
    ) -> anyhow::Result<()> {
        let unshare = [
            "unshare",
            "--pid",
            "--fork",
            "--mount-proc",
            "--kill-child",
            "--",
        ];
        let user = [
            "setpriv",
            "--reuid=postgres",
            "--regid=postgres",
            "--init-groups",
            "--",
        ];
        let words = unshare.into_iter().chain(user).map(str::to_owned).collect();
        let wrapper = [self.machines.wrapper(machine), words].concat();
        let mut command = wrapped(&wrapper, "patroni");
        command.arg(config).current_dir(dir.join(machine));
        let process = Process::spawn(machine, command, &dir.join(format!("{machine}.log")))?;
        self.nodes.push((machine, Some(process)));
        Ok(())
    }

    /// Waits until a node's server lets somebody in.
    async fn wait_answers(&mut self, dir: &Path, machine: &str) -> anyhow::Result<()> {
        let config = self.server(machine).config();
        let deadline = Instant::now() + TIMEOUT;
        while connect(&config).await.is_err() {
            self.check_running()?;
            ensure!(
                Instant::now() < deadline,
                "Patroni's {machine} does not start; its log ends with:\n{}",
                last_lines(&dir.join(format!("{machine}.log")), 12)
            );
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
        Ok(())
    }

    fn check_running(&mut self) -> anyhow::Result<()> {
        let nodes = self
            .nodes
            .iter_mut()
            .filter_map(|(_, process)| process.as_mut());
        nodes
            .chain(&mut self.etcd)
            .try_for_each(Process::check_running)
    }

    fn server(&self, machine: &str) -> Server {
        Server {
            host: self.machines.address(machine).to_string(),
            port: POSTGRES_PORT,
            user: "postgres".into(),
            database: "postgres".into(),
            password: None,
        }
    }
}

#[async_trait]
impl System for Patroni {
    fn servers(&self) -> Vec<Server> {
        [NORTH, SOUTH].map(|machine| self.server(machine)).into()
    }

    fn processes(&self) -> Vec<(String, Pid)> {
        let node = |(name, process): &(&str, Option<Process>)| {
            let component = if *name == NORTH { "active" } else { "standby" };
            Some((component.to_owned(), process.as_ref()?.pid()))
        };
        let etcd = self
            .etcd
            .iter()
            .map(|process| ("etcd".to_owned(), process.pid()));
        self.nodes.iter().filter_map(node).chain(etcd).collect()
    }

    /// A standby streams, and commits wait for it if they shall.
    async fn wait_protected(&mut self) -> anyhow::Result<()> {
        let wanted = if self.synchronous { "sync" } else { "async" };
        let query = "SELECT count(*) FROM pg_stat_replication WHERE state = 'streaming' AND sync_state = $1 \
                     AND pg_wal_lsn_diff(pg_current_wal_flush_lsn(), replay_lsn) < 1048576";
        let deadline = Instant::now() + TIMEOUT;
        loop {
            let client = connect(&self.server(self.leader).config()).await?;
            let row = client.query_one(query, &[&wanted]).await?;
            if row.get::<_, i64>(0) == 1 {
                return Ok(());
            }
            self.check_running()?;
            ensure!(Instant::now() < deadline, "no standby follows as {wanted}");
            tokio::time::sleep(Duration::from_millis(200)).await;
        }
    }

    async fn lose_active(&mut self) -> anyhow::Result<Death> {
        let north = self.nodes.iter_mut().find(|(name, _)| *name == NORTH);
        let process = north.and_then(|(_, process)| process.take());
        self.leader = SOUTH;
        Death::by(|| process.map(|mut process| process.kill_all()))
    }

    fn successor(&self) -> Vec<Pid> {
        let south = self.nodes.iter().filter(|(name, _)| *name == SOUTH);
        south
            .filter_map(|(_, process)| Some(process.as_ref()?.pid()))
            .collect()
    }

    async fn give_back(&mut self) -> anyhow::Result<Option<Pid>> {
        self.nodes.retain(|(name, _)| *name != NORTH);
        let dir = self.dir.clone();
        let config = dir.join(format!("{NORTH}.yml"));
        self.start_node(&dir, NORTH, &config)?;
        let node = self.nodes.last();
        Ok(node.and_then(|(_, process)| Some(process.as_ref()?.pid())))
    }
}

impl Drop for Patroni {
    fn drop(&mut self) {
        // Without etcd a node would try to go on in its own way.
        self.nodes.clear();
    }
}

/// Writes a node's configuration file (JSON is YAML, too) and gives it a directory.
fn configuration(
    options: &Options,
    machines: &Machines,
    dir: &Path,
    machine: &str,
    synchronous: bool,
) -> anyhow::Result<std::path::PathBuf> {
    let address = machines.address(machine);
    let own = dir.join(machine);
    std::fs::create_dir(&own).with_context(|| format!("cannot create {}", own.display()))?;
    if let Some((uid, gid)) = unprivileged()? {
        chown(&own, Some(uid.as_raw()), Some(gid.as_raw())).context("cannot give it away")?;
    }
    let etcd = WITNESSES.map(|name| format!("{}:{ETCD_CLIENT_PORT}", machines.address(name)));
    let shared: serde_json::Map<String, serde_json::Value> = parameters(options)
        .into_iter()
        .map(|(name, value)| (name, value.into()))
        .collect();
    let mut dcs = json!({
        "ttl": options.patroni_ttl,
        // Its documentation: loop_wait + 2 * retry_timeout is at most ttl.
        "loop_wait": (options.patroni_ttl / 3).max(1),
        "retry_timeout": (options.patroni_ttl / 3).max(3),
        "synchronous_mode": synchronous,
        "postgresql": { "parameters": shared },
    });
    if options.subscriber && has_failover_slots(&options.bin)? {
        for parameter in ["sync_replication_slots", "hot_standby_feedback"] {
            dcs["postgresql"]["parameters"][parameter] = "on".into();
        }
        // It drops slots that it does not know.
        dcs["ignore_slots"] = json!([{ "name": SLOT, "type": "logical" }]);
    } else if options.subscriber {
        dcs["slots"] = json!({
            SLOT: { "type": "logical", "database": "postgres", "plugin": "pgoutput" },
        });
    }
    let config = json!({
        "scope": "bench",
        "name": machine,
        "restapi": {
            "listen": format!("{address}:{REST_PORT}"),
            "connect_address": format!("{address}:{REST_PORT}"),
        },
        "etcd3": { "hosts": etcd },
        "bootstrap": {
            "dcs": dcs,
            "initdb": ["no-sync"],
        },
        "postgresql": {
            "listen": format!("{address}:{POSTGRES_PORT}"),
            "connect_address": format!("{address}:{POSTGRES_PORT}"),
            "data_dir": own.join("data"),
            "bin_dir": options.bin,
            // So that an old primary can follow the new one.
            "use_pg_rewind": true,
            "pgpass": own.join("pgpass"),
            "authentication": {
                "superuser": { "username": "postgres" },
                "replication": { "username": "postgres" },
            },
            "parameters": { "unix_socket_directories": own },
            "pg_hba": [
                "local all all trust",
                "host all all all trust",
                "host replication all all trust",
            ],
        },
    });
    let path = dir.join(format!("{machine}.yml"));
    std::fs::write(&path, config.to_string())
        .with_context(|| format!("cannot write {}", path.display()))?;
    Ok(path)
}

fn wrapped(wrapper: &[String], program: &str) -> Command {
    match wrapper.split_first() {
        Some((first, arguments)) => {
            let mut command = Command::new(first);
            command.args(arguments).arg(program);
            command
        }
        None => Command::new(program),
    }
}
