//! Understudy: three zones on machines of their own, and a node with a standby or without.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::ensure;
use async_trait::async_trait;
use nix::unistd::Pid;

use super::system::{
    DATABASE_CORE, Death, Kind, Machines, NORTH, SOUTH, System, WITNESSES, open_parameters,
};
use super::{Distance, Options, TIMEOUT};
use cluster::Cluster;
use cluster::clients::schema::Server;

pub(super) struct Understudy {
    cluster: Cluster,
    standby: bool,
    /// Its log is to be ordered.
    ordered: bool,
    /// The node that follows, or would.
    follower: &'static str,
}

impl Understudy {
    /// Creates and starts it.
    pub async fn start(
        options: &Options,
        machines: &Machines,
        dir: &Path,
        kind: Kind,
    ) -> anyhow::Result<Understudy> {
        let (standby, ordered) = (kind != Kind::Cold, kind == Kind::Ordered);
        let mut settings = cluster::Options::new(dir, &options.bin, &options.understudy);
        // As the servers and poolers that are compared with.
        settings.password = None;
        settings.nodes = vec![NORTH.to_owned(), SOUTH.to_owned()];
        settings.sites = Some(Arc::clone(&machines.sites));
        // Between machines it insists on that.
        settings.tls = true;
        settings.parameters = open_parameters(options, dir)?;
        if ordered {
            settings.storage.push("wal_sync = \"pipelined\"".to_owned());
        }
        if options.distance == Distance::Regions {
            settings.heartbeat = "wide".to_owned();
        }
        let all = [NORTH, SOUTH].into_iter().chain(WITNESSES);
        let wrapper = |machine: &str| match (machine, standby) {
            // It has the processor to itself: the other node is dead when this one starts.
            (SOUTH, false) => machines.taskset(DATABASE_CORE),
            _ => machines.processor(machine),
        };
        settings.wrappers = all
            .map(|machine| (machine.to_owned(), wrapper(machine)))
            .collect();
        let mut cluster = Cluster::create(settings)?;
        if standby {
            cluster.start().await?;
        } else {
            for zone in 1..=WITNESSES.len() {
                cluster.start_zone(zone)?;
            }
            cluster.init().await?;
            cluster.start_node(NORTH)?;
            cluster.wait_active(TIMEOUT).await?;
        }
        Ok(Understudy {
            cluster,
            standby,
            ordered,
            follower: SOUTH,
        })
    }

    fn pid(&self, wanted: &str) -> Option<Pid> {
        let mut processes = self.cluster.processes();
        processes.find_map(|(name, pid)| (name == wanted).then_some(pid))
    }
}

#[async_trait]
impl System for Understudy {
    fn servers(&self) -> Vec<Server> {
        let names = self.cluster.names();
        names
            .filter_map(|name| self.cluster.server(name).ok())
            .collect()
    }

    fn processes(&self) -> Vec<(String, Pid)> {
        let component = |name: &str| match name {
            NORTH => "active",
            SOUTH => "standby",
            _ => "zones",
        };
        let processes = self.cluster.processes();
        processes
            .map(|(name, pid)| (component(name).to_owned(), pid))
            .collect()
    }

    async fn work(&self) -> anyhow::Result<BTreeMap<String, u64>> {
        let status = self.cluster.status_of_active().await?;
        let mut work = BTreeMap::new();
        if let Some(syncs) = status["storage"]["syncs"].as_u64() {
            work.insert("flushes".to_owned(), syncs);
        }
        let requests = status["requests"].as_object().into_iter().flatten();
        let requests = requests.filter_map(|(name, count)| Some((name, count.as_u64()?)));
        work.extend(requests.map(|(name, count)| (format!("requests to {name}"), count)));
        Ok(work)
    }

    async fn wait_protected(&mut self) -> anyhow::Result<()> {
        if !self.standby {
            return Ok(());
        }
        self.cluster.wait_follows(self.follower, TIMEOUT).await?;
        let deadline = Instant::now() + TIMEOUT;
        while self.cluster.protected_since(0).await?.is_none() {
            ensure!(Instant::now() < deadline, "no standby becomes warm");
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
        while self.ordered && self.cluster.status_of_active().await?["log"]["ordered"] != true {
            ensure!(Instant::now() < deadline, "the log is not ordered");
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
        Ok(())
    }

    async fn lose_active(&mut self) -> anyhow::Result<Death> {
        let death = Death::by(|| self.cluster.kill_node(NORTH))?;
        if !self.standby {
            self.cluster.start_node(SOUTH)?;
        }
        Ok(death)
    }

    fn successor(&self) -> Vec<Pid> {
        self.pid(SOUTH).into_iter().collect()
    }

    async fn give_back(&mut self) -> anyhow::Result<Option<Pid>> {
        if !self.standby {
            return Ok(None);
        }
        self.cluster.start_node(NORTH)?;
        self.follower = NORTH;
        Ok(self.pid(NORTH))
    }
}
