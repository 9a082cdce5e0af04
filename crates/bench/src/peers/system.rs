//! What is compared: one interface for all systems, and the machines that each is given.
//!
//! Invariant: every system gets the same sites. Whatever is on the active database's machine runs on one
//! processor, everything else (standby, zones, etcd, clients) on the other, unless nothing is pinned.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use anyhow::Context;
use async_trait::async_trait;
use clap::ValueEnum;
use nix::unistd::Pid;
use serde::{Deserialize, Serialize};

use super::{Distance, Options};
use cluster::clients::schema::Server;
use cluster::process::Kill;
use cluster::sites::{self, Sites};

/// The machine of the active at the start.
pub(super) const NORTH: &str = "north";
/// The machine of the standby.
pub(super) const SOUTH: &str = "south";
/// The machines of zones and of etcd.
pub(super) const WITNESSES: [&str; 3] = ["zone-1", "zone-2", "zone-3"];
/// The processor of the active database's machine.
pub(super) const DATABASE_CORE: usize = 0;
/// The processor of everything else.
pub(super) const OTHER_CORE: usize = 1;

/// Which system.
#[derive(
    Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, ValueEnum,
)]
#[serde(rename_all = "snake_case")]
pub enum Kind {
    /// PostgreSQL alone with its own defaults; started again where it was when it is killed.
    Stock,
    /// Two nodes with Patroni and three etcd servers, asynchronous replication.
    PatroniAsync,
    /// The same with synchronous replication.
    PatroniSync,
    /// Two nodes, three zones.
    Understudy,
    /// The same with an ordered log.
    Ordered,
    /// Three zones and one node; another node is started from nothing when it is killed.
    Cold,
}

impl Kind {
    /// As it is called in reports.
    pub fn name(self) -> &'static str {
        match self {
            Kind::Stock => "PostgreSQL alone",
            Kind::PatroniAsync => "Patroni, asynchronous",
            Kind::PatroniSync => "Patroni, synchronous",
            Kind::Understudy => "Understudy",
            Kind::Ordered => "Understudy, ordered log",
            Kind::Cold => "shared storage, cold restart",
        }
    }

    /// As it is called in names of directories.
    pub(super) fn slug(self) -> &'static str {
        match self {
            Kind::Stock => "stock",
            Kind::PatroniAsync => "patroni-async",
            Kind::PatroniSync => "patroni-sync",
            Kind::Understudy => "understudy",
            Kind::Ordered => "ordered",
            Kind::Cold => "cold",
        }
    }
}

/// The end of the active's machine.
#[derive(Debug, Clone, Copy)]
pub(super) struct Death {
    /// Just before the first signal.
    pub begin: SystemTime,
    /// When nothing of it could answer any more, and nothing else had been begun.
    pub end: SystemTime,
}

impl Death {
    /// Of what `kill` kills.
    pub fn by(kill: impl FnOnce() -> Option<Kill>) -> anyhow::Result<Death> {
        let kill = tokio::task::block_in_place(kill).context("the active does not run")?;
        Ok(Death {
            begin: kill.at,
            end: SystemTime::now(),
        })
    }
}

/// A running system. Dropping it ends it.
#[async_trait]
pub(super) trait System: Send + Sync {
    /// Every database server; the active is the first until it is lost.
    fn servers(&self) -> Vec<Server>;

    /// The top processes and what each belongs to.
    fn processes(&self) -> Vec<(String, Pid)>;

    /// What it counts itself on the active's machine.
    async fn work(&self) -> anyhow::Result<BTreeMap<String, u64>> {
        Ok(BTreeMap::new())
    }

    /// Waits until the active could be lost (again), if the system has anything that would take over.
    async fn wait_protected(&mut self) -> anyhow::Result<()>;

    /// Kills everything on the active's machine. Begins whatever brings the database back, if no part of
    /// the system does that by itself.
    async fn lose_active(&mut self) -> anyhow::Result<Death>;

    /// The top processes of the machine that will be the database's own after that.
    fn successor(&self) -> Vec<Pid>;

    /// Starts what was lost again, to be the standby from now on. Returns its top process, or nothing if the
    /// system has no standby.
    async fn give_back(&mut self) -> anyhow::Result<Option<Pid>>;
}

/// The machines.
#[derive(Debug, Clone)]
pub(super) struct Machines {
    pub sites: Arc<Sites>,
    pinned: bool,
}

impl Machines {
    /// Makes all of them.
    pub fn create(pinned: bool, distance: Distance) -> anyhow::Result<Machines> {
        let names = [NORTH, SOUTH].into_iter().chain(WITNESSES);
        let names: Vec<String> = names.map(str::to_owned).collect();
        let sites = match distance.round_trips_ms() {
            None => Sites::create(&names)?,
            Some(trips) => Sites::apart(&names, |from, to| one_way(trips, from, to))?,
        };
        Ok(Machines {
            sites: Arc::new(sites),
            pinned,
        })
    }

    /// What a command on that machine's processor is given to.
    pub fn processor(&self, machine: &str) -> Vec<String> {
        match machine {
            NORTH => self.taskset(DATABASE_CORE),
            _ => self.taskset(OTHER_CORE),
        }
    }

    /// What a command on the database's processor is given to, on whatever machine.
    pub fn taskset(&self, core: usize) -> Vec<String> {
        match self.pinned {
            true => ["taskset", "-c"]
                .map(str::to_owned)
                .into_iter()
                .chain([core.to_string()])
                .collect(),
            false => Vec::new(),
        }
    }

    /// What a command on that machine is given to.
    pub fn wrapper(&self, machine: &str) -> Vec<String> {
        let site = self.sites.wrapper(machine).unwrap_or_default();
        [site, self.processor(machine)].concat()
    }

    /// Address of a machine.
    pub fn address(&self, machine: &str) -> std::net::Ipv4Addr {
        let address = self.sites.address(machine);
        address.unwrap_or(std::net::Ipv4Addr::LOCALHOST)
    }
}

/// The region of each machine, and of the clients: near the active.
const REGIONS: [usize; 6] = [0, 1, 0, 1, 2, 0];

/// Half the round trip between two machines. `trips` are between regions 0 and 1, 0 and 2, 1 and 2.
fn one_way(trips: [f64; 3], from: usize, to: usize) -> Duration {
    sites::one_way(trips, REGIONS[from], REGIONS[to])
}

/// The parameters that every PostgreSQL gets; all others are its own defaults, or the system's.
pub(super) fn parameters(options: &Options) -> Vec<(String, String)> {
    let set = |name: &str, value: String| (name.to_owned(), value);
    let mut all = vec![
        set("shared_buffers", format!("{}MB", options.buffers_mb)),
        set(
            "checkpoint_timeout",
            format!("{}s", options.checkpoint_seconds),
        ),
    ];
    if options.subscriber {
        all.push(set("wal_level", "logical".to_owned()));
    }
    all
}

/// Those, and a file that lets everybody in, for systems that do not write one.
pub(super) fn open_parameters(
    options: &Options,
    dir: &Path,
) -> anyhow::Result<Vec<(String, String)>> {
    let mut all = parameters(options);
    all.push(("hba_file".to_owned(), sites::hba_file(dir, "trust")?));
    Ok(all)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_standby_is_in_the_second_region_and_the_last_witness_in_the_third() {
        let trip = |from, to| one_way([35.0, 75.0, 40.0], from, to) * 2;
        assert_eq!(trip(0, 2), Duration::ZERO);
        assert_eq!(trip(0, 1), Duration::from_millis(35));
        assert_eq!(trip(4, 0), Duration::from_millis(75));
        assert_eq!(trip(3, 4), Duration::from_millis(40));
        assert_eq!(trip(0, 5), Duration::ZERO);
    }
}
