//! Which storage tier a cluster is put on, and the one that is no part of it.

use std::path::Path;

use anyhow::Context;

use super::Options;

/// What keeps the blocks.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, clap::ValueEnum)]
pub enum Store {
    /// Zone servers of ours.
    #[default]
    Zones,
    /// Apache Cassandra: a node in each of three data centres.
    Cassandra,
}

impl Options {
    /// Makes Cassandra the storage tier.
    pub fn put_on(&mut self, cassandra: &cassandra::server::Cluster) {
        let points = cassandra.contact_points().into_iter();
        let points: Vec<String> = points.map(|point| point.to_string()).collect();
        self.store = Some(format!("cassandra://{}/understudy", points.join(",")));
        self.zones = 0;
    }
}

/// A cluster of Cassandra, if that is the storage tier. Blocks for a moment when it is dropped.
#[derive(Debug)]
pub struct Tier(Option<cassandra::server::Cluster>);

impl Tier {
    /// Starts what keeps the blocks, if that is no part of the cluster.
    ///
    /// # Errors
    /// Cassandra does not start; the message says what to install if something is missing.
    pub async fn start(store: Store, dir: &Path, say: impl Fn(&str)) -> anyhow::Result<Tier> {
        if store == Store::Zones {
            return Ok(Tier(None));
        }
        say("starting Apache Cassandra: three data centres");
        let options = cassandra::server::Options::new(dir.join("cassandra"));
        let started = tokio::task::spawn_blocking(|| cassandra::server::Cluster::start(options));
        Ok(Tier(Some(
            started.await.context("the start was given up")??,
        )))
    }

    /// Puts a cluster that is to be made on this tier.
    pub fn serve(&self, settings: &mut Options) {
        if let Some(cassandra) = &self.0 {
            settings.put_on(cassandra);
        }
    }

    /// The cluster of Cassandra.
    pub fn cassandra(&self) -> Option<&cassandra::server::Cluster> {
        self.0.as_ref()
    }
}
