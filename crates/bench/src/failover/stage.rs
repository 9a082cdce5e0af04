//! A cluster whose nodes have a network namespace each, under load.

use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context, ensure};

use super::Options;
use crate::soak::blocks_bytes;
use cluster::Cluster;
use cluster::clients::clock::{Clock, Offset};
use cluster::clients::history::{History, Outage};
use cluster::clients::load::{self, Load};
use cluster::clients::session::connect;
use cluster::clients::verify::Check;
use cluster::clients::{schema, verify};
use cluster::process::Process;
use cluster::sites::{self, Sites};
use understudy::demo::takeover::Takeover;

/// How long anything may take before that counts as a failure.
pub(super) const TIMEOUT: Duration = Duration::from_secs(120);
/// How long a node has to follow before it is looked again whom it should follow.
const LOOK_AGAIN: Duration = Duration::from_secs(10);
/// A client that waits so long for an answer connects again.
const ANSWER_WITHIN: Duration = Duration::from_millis(500);
/// A client that waits so long for a server tries the next one.
const CONNECT_WITHIN: Duration = Duration::from_millis(100);
/// A client that found no server tries again after this.
const RETRY: Duration = Duration::from_millis(10);

/// Fields are dropped in this order: clients, processes, their networks.
pub(super) struct Stage {
    pub load: Load,
    pub cluster: Cluster,
    pub sites: Arc<Sites>,
    pub clock: Clock,
}

impl Stage {
    /// Starts the nodes and the load, with settings that `change` sets.
    pub(super) async fn set(
        options: &Options,
        name: &str,
        nodes: &[&str],
        change: impl FnOnce(&mut cluster::Options, &mut load::Options),
    ) -> anyhow::Result<Stage> {
        let dir = options.dir.join(name.replace(' ', "-"));
        std::fs::create_dir_all(&dir)
            .with_context(|| format!("cannot create {}", dir.display()))?;
        let nodes: Vec<String> = nodes.iter().map(|name| (*name).to_owned()).collect();
        let places = Arc::new(Sites::create(&nodes)?);
        let mut settings = cluster::Options::new(&dir, &options.bin, &options.understudy);
        settings.tls = true;
        settings.nodes = nodes;
        settings.sites = Some(Arc::clone(&places));
        settings.parameters = vec![("hba_file".into(), sites::hba_file(&dir, "scram-sha-256")?)];
        let mut load = load::Options {
            clients: options.clients,
            scale: options.scale,
            seed: options.seed,
            retry: RETRY,
            timeout: ANSWER_WITHIN,
            connect_within: CONNECT_WITHIN,
            ..load::Options::default()
        };
        change(&mut settings, &mut load);
        let mut cluster = Cluster::create(settings)?;
        cluster.start_first().await?;
        let active = cluster.wait_active(TIMEOUT).await?;
        let server = cluster.server(&active)?;
        schema::create(&options.bin, &server, options.scale).await?;
        // Standbys attach behind all of it, however large it is.
        connect(&server.config())
            .await?
            .batch_execute("CHECKPOINT")
            .await?;
        cluster.start_others().await?;
        let clock = Clock::start();
        let mut stage = Stage {
            load: Load::start(cluster.any_writable(), load, clock),
            cluster,
            sites: places,
            clock,
        };
        stage.wait_protected().await?;
        Ok(stage)
    }

    /// A node's process.
    pub(super) fn process(&mut self, node: &str) -> anyhow::Result<&mut Process> {
        let process = self.cluster.node_process(node);
        process.with_context(|| format!("{node} does not run"))
    }

    /// Waits until every node but the active follows and the active calls that protected.
    pub(super) async fn wait_protected(&mut self) -> anyhow::Result<()> {
        let deadline = Instant::now() + TIMEOUT;
        while let Err(error) = self.all_follow().await {
            ensure!(Instant::now() < deadline, "{error:#}");
        }
        let deadline = Instant::now() + TIMEOUT;
        loop {
            if self.cluster.protected_since(0).await?.is_some() {
                return Ok(());
            }
            ensure!(Instant::now() < deadline, "no standby becomes warm");
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
    }

    /// Whoever seems to serve may be an active of the past that has not noticed yet: then the one that does serve
    /// never follows it.
    async fn all_follow(&mut self) -> anyhow::Result<()> {
        let active = self.cluster.wait_active(TIMEOUT).await?;
        let names: Vec<String> = self.cluster.names().map(str::to_owned).collect();
        for name in names.iter().filter(|name| **name != active) {
            self.cluster.wait_follows(name, LOOK_AGAIN).await?;
        }
        Ok(())
    }

    /// Waits for a commit after `done` and returns the longest silence since `struck`. The first commit
    /// after a fault proves nothing: an active may go on for a moment.
    pub(super) async fn outage(&self, struck: Offset, done: Offset) -> anyhow::Result<Outage> {
        let deadline = Instant::now() + TIMEOUT;
        loop {
            if let Some(outage) = longest_silence(&self.load.history(), struck, done) {
                return Ok(outage);
            }
            ensure!(
                Instant::now() < deadline,
                "nobody accepts commits; last trouble: {:?}; the logs are in {}",
                self.load.trouble(),
                self.cluster.logs().display()
            );
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    }

    /// The last entry of `understudy history`.
    pub(super) async fn last_takeover(&self) -> anyhow::Result<Takeover> {
        Takeover::last(&self.cluster.ask("history").await?)
    }

    /// What the zones take on disk.
    pub(super) fn disk_bytes(&self) -> anyhow::Result<u64> {
        blocks_bytes(&self.cluster.options().dir)
    }

    /// Stops the load and compares.
    pub(super) async fn verify(self) -> anyhow::Result<(History, Vec<Check>)> {
        let Stage {
            load,
            mut cluster,
            sites,
            ..
        } = self;
        let history = load.stop().await;
        let active = cluster.wait_active(TIMEOUT).await?;
        let server = cluster.server(&active)?;
        let (_, mut checks) = verify::database(&server, &history).await?;
        checks.push(verify::amcheck(&cluster.options().bin, &server).await?);
        cluster.shutdown();
        drop(sites);
        Ok((history, checks))
    }
}

/// The longest time without commits from `struck` to the first one after `done`.
fn longest_silence(history: &History, struck: Offset, done: Offset) -> Option<Outage> {
    let ends: Vec<Offset> = history.commits().map(|commit| commit.ended).collect();
    let first = ends.iter().position(|at| *at > done)?;
    let silences = ends.windows(2).take(first);
    let silences = silences.filter(|pair| pair[1] >= struck);
    let longest = silences.max_by_key(|pair| pair[1].since(pair[0]))?;
    Some(Outage {
        last_before: longest[0],
        first_after: longest[1],
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use cluster::clients::history::{Attempt, Outcome};

    #[test]
    fn the_outage_is_the_longest_silence_from_the_fault_to_the_takeover() {
        let commits = [100, 500, 510, 520, 900, 910, 2000].map(|ms| Attempt {
            client: 1,
            n: ms,
            outcome: Outcome::Acknowledged,
            began: Offset(ms - 1),
            ended: Offset(ms),
        });
        let history = History::new(commits.to_vec());
        let outage = longest_silence(&history, Offset(505), Offset(800)).unwrap();
        assert_eq!(
            (outage.last_before, outage.first_after),
            (Offset(520), Offset(900))
        );
        assert_eq!(longest_silence(&history, Offset(505), Offset(3000)), None);
    }
}
