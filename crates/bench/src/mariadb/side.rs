//! One of the systems that are compared: started and filled, loaded, killed, asked what it used.

use std::fmt;
use std::path::Path;
use std::time::{Duration, SystemTime};

use anyhow::Context;
use cluster::clients::history::{Attempt, History};
use cluster::clients::mysql::{self, Plan, Server, Verdict, Work};
use cluster::mariadb::plain::Plain;
use cluster::process::family;
use cluster::{Cluster, mariadb};
use nix::unistd::Pid;
use serde::Serialize;

use super::Options;
use crate::peers::footprint::cpu_seconds;

/// System that is measured.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum System {
    /// On the plain disk, with InnoDB's doublewrite buffer, without which a disk can tear pages.
    Disk,
    /// On the plain disk with the settings of the volume: not safe there.
    DiskWithoutDoublewrite,
    /// On a volume with three zones, two of which make a commit durable, and another node that waits.
    Understudy,
}

impl System {
    /// All of them; the first is what the others are compared with.
    pub const ALL: [System; 3] = [
        System::Disk,
        System::DiskWithoutDoublewrite,
        System::Understudy,
    ];
}

impl fmt::Display for System {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            System::Disk => "disk",
            System::DiskWithoutDoublewrite => "disk-without-doublewrite",
            System::Understudy => "understudy",
        })
    }
}

/// What processes used.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub(super) struct Usage {
    /// Processor time of all of them in seconds.
    pub cpu_seconds: f64,
    /// Bytes they wrote to the disk.
    pub written_bytes: u64,
}

impl Usage {
    pub(super) fn since(self, before: &Usage) -> Usage {
        Usage {
            cpu_seconds: self.cpu_seconds - before.cpu_seconds,
            written_bytes: self.written_bytes.saturating_sub(before.written_bytes),
        }
    }
}

/// See the module. Everything is gone when it is dropped.
pub(super) struct Side {
    place: Place,
    /// Number of the next client: none is used twice on a database.
    next: i32,
    attempts: Vec<Attempt>,
}

enum Place {
    Disk(Plain),
    Volume(Box<Cluster>),
}

impl Side {
    /// Starts a system in a new directory and fills it.
    pub(super) async fn start(
        options: &Options,
        system: System,
        dir: &Path,
        parameters: &[(String, String)],
    ) -> anyhow::Result<Side> {
        std::fs::create_dir_all(dir)?;
        let place = match system {
            System::Understudy => {
                let mut settings = cluster::Options::new(dir, Path::new("/"), &options.understudy);
                settings.engine = Some(mariadb::engine(None)?);
                settings.parameters = parameters.to_vec();
                let mut cluster = Cluster::create(settings)?;
                mariadb::start(&mut cluster).await?;
                Place::Volume(Box::new(cluster))
            }
            System::Disk | System::DiskWithoutDoublewrite => {
                let doublewrite = if system == System::Disk { "ON" } else { "OFF" };
                let mut parameters = parameters.to_vec();
                let same = [
                    ("innodb_doublewrite", doublewrite),
                    ("innodb_flush_method", "O_DIRECT"),
                    ("innodb_use_native_aio", "ON"),
                    ("innodb_flush_log_at_trx_commit", "1"),
                    ("sync_binlog", "1"),
                ];
                parameters.extend(same.map(|(name, value)| (name.to_owned(), value.to_owned())));
                Place::Disk(Plain::start(&dir.join("server"), parameters).await?)
            }
        };
        let mut side = Side {
            place,
            next: 0,
            attempts: Vec::new(),
        };
        let socket = match &mut side.place {
            Place::Disk(plain) => plain.socket(),
            Place::Volume(cluster) => {
                let (active, _) = mariadb::wait_active(cluster, 0).await?;
                cluster.node(&active)?.data.join("run/server.sock")
            }
        };
        mariadb::administrate(&socket, &mysql::setup_statements(options.accounts)).await?;
        Ok(side)
    }

    /// Where clients connect.
    pub(super) fn servers(&self) -> Vec<Server> {
        match &self.place {
            Place::Disk(plain) => vec![plain.server()],
            Place::Volume(cluster) => mariadb::servers(cluster),
        }
    }

    /// Clients whose numbers nobody had before.
    pub(super) fn plan(&mut self, work: Work, clients: u16, accounts: u32) -> Plan {
        let first = self.next;
        self.next += i32::from(clients);
        Plan {
            work,
            clients,
            first,
            accounts,
            seed: u64::from(first.unsigned_abs()) + 1,
        }
    }

    /// What all of its processes have used so far.
    pub(super) fn usage(&self) -> Usage {
        let tops: Vec<Pid> = match &self.place {
            Place::Disk(plain) => plain.pid().into_iter().collect(),
            Place::Volume(cluster) => cluster.processes().map(|(_, pid)| pid).collect(),
        };
        let mut usage = Usage::default();
        for pid in tops.into_iter().flat_map(family) {
            usage.cpu_seconds += cpu_seconds(pid).unwrap_or_default();
            usage.written_bytes += written_bytes(pid).unwrap_or_default();
        }
        usage
    }

    /// Kills the server with its machine, and has it started again: at once on the disk, by whoever notices on the
    /// volume. When it was dead.
    pub(super) async fn lose(&mut self) -> anyhow::Result<SystemTime> {
        match &mut self.place {
            Place::Disk(plain) => {
                let at = plain.kill()?;
                plain.restart().await?;
                Ok(at)
            }
            Place::Volume(cluster) => Ok(mariadb::kill_active(cluster, |_| ()).await?.at),
        }
    }

    /// Remembers what clients saw, for [`verify`](Side::verify).
    pub(super) fn remember(&mut self, history: &History) {
        self.attempts.extend_from_slice(history.attempts());
    }

    /// Looks for everything that was remembered.
    pub(super) async fn verify(&self, accounts: u32) -> anyhow::Result<Verdict> {
        let history = History::new(self.attempts.clone());
        mysql::verify(&self.servers(), &history, accounts).await
    }

    /// The steps of the last takeover, in milliseconds, if there are any.
    pub(super) async fn phases(&self) -> anyhow::Result<Vec<(String, f64)>> {
        let Place::Volume(cluster) = &self.place else {
            return Ok(Vec::new());
        };
        let history: serde_json::Value = serde_json::from_str(&cluster.ask("history").await?)?;
        let last = history.as_array().and_then(|entries| entries.last());
        let phases = last.context("no history")?["phases"].as_array();
        let phase = |phase: &serde_json::Value| {
            let name = phase["phase"].as_str().unwrap_or_default().to_owned();
            (name, phase["ms"].as_f64().unwrap_or_default())
        };
        Ok(phases.into_iter().flatten().map(phase).collect())
    }

    /// Fails if a process has ended.
    pub(super) fn check(&mut self) -> anyhow::Result<()> {
        match &mut self.place {
            Place::Disk(_) => Ok(()),
            Place::Volume(cluster) => cluster.check_running(),
        }
    }

    /// Ends it in order.
    pub(super) fn end(self) {
        if let Place::Volume(mut cluster) = self.place {
            cluster.shutdown();
        }
    }

    /// Waits until a machine that was lost is back and everything is quiet.
    pub(super) async fn settle(&self) {
        tokio::time::sleep(Duration::from_secs(2)).await;
    }
}

/// What a process caused to be written to a disk. Writes to a mount are none.
fn written_bytes(pid: Pid) -> Option<u64> {
    let text = std::fs::read_to_string(format!("/proc/{pid}/io")).ok()?;
    let value = |name: &str| {
        let line = text.lines().find_map(|line| line.strip_prefix(name))?;
        line.trim().parse::<u64>().ok()
    };
    Some(value("write_bytes:")?.saturating_sub(value("cancelled_write_bytes:")?))
}
