//! Which storage tier a cluster is put on, and the one that is no part of it.

use std::path::Path;

#[cfg(feature = "cassandra")]
use anyhow::Context;
#[cfg(feature = "cassandra")]
use cassandra::server::Cluster as Cassandra;

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
    #[cfg(feature = "cassandra")]
    pub fn put_on(&mut self, cassandra: &Cassandra) {
        let points = cassandra.contact_points().into_iter();
        let points: Vec<String> = points.map(|point| point.to_string()).collect();
        self.store = Some(format!("cassandra://{}/understudy", points.join(",")));
        self.zones = 0;
    }

    #[cfg(not(feature = "cassandra"))]
    fn put_on(&mut self, cassandra: &Cassandra) {
        match *cassandra {}
    }
}

/// A cluster of Cassandra, if that is the storage tier. Blocks for a moment when it is dropped.
#[derive(Debug)]
pub struct Tier(Option<Cassandra>);

/// A program that was built without Cassandra has none.
#[cfg(not(feature = "cassandra"))]
#[derive(Debug)]
enum Cassandra {}

impl Tier {
    /// Starts what keeps the blocks, if that is no part of the cluster.
    ///
    /// # Errors
    /// Cassandra does not start; the message says what to install if something is missing.
    pub async fn start(store: Store, dir: &Path, say: impl Fn(&str)) -> anyhow::Result<Tier> {
        match store {
            Store::Zones => Ok(Tier(None)),
            Store::Cassandra => Ok(Tier(Some(start(dir, say).await?))),
        }
    }

    /// Puts a cluster that is to be made on this tier.
    pub fn serve(&self, settings: &mut Options) {
        if let Some(cassandra) = &self.0 {
            settings.put_on(cassandra);
        }
    }

    /// The cluster of Cassandra.
    #[cfg(feature = "cassandra")]
    pub fn cassandra(&self) -> Option<&Cassandra> {
        self.0.as_ref()
    }
}

#[cfg(feature = "cassandra")]
async fn start(dir: &Path, say: impl Fn(&str)) -> anyhow::Result<Cassandra> {
    say("starting Apache Cassandra: three data centres");
    let options = cassandra::server::Options::new(dir.join("cassandra"));
    let started = tokio::task::spawn_blocking(|| Cassandra::start(options));
    Ok(started.await.context("the start was given up")??)
}

#[cfg(not(feature = "cassandra"))]
async fn start(_: &Path, _: impl Fn(&str)) -> anyhow::Result<Cassandra> {
    anyhow::bail!("this program was built without Apache Cassandra (cargo's feature \"cassandra\")")
}
