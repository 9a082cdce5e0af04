//! What every system test needs: a cluster under load, and a verdict at the end.

use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use cluster::clients::churn::Churn;
use cluster::clients::clock::{Clock, Offset};
use cluster::clients::history::{History, Outage};
use cluster::clients::load::{self, Load};
use cluster::clients::schema::Server;
use cluster::clients::{schema, verify};
use cluster::scratch::Scratch;
use cluster::{Cluster, Options, programs};
use serde_json::Value;
use store::Network;

/// pgbench's scale in these tests.
const SCALE: u32 = 1;
/// Transactions a second of all clients together: there is always one under way, and other tests have a share of the machine.
const COMMITS_PER_SECOND: f64 = 50.0;
/// The same for rounds of the client that changes tables, each of which is 2,000 rows and 16 statements.
const CHANGES_PER_SECOND: f64 = 1.0;
/// For what happens at once on a quiet machine. Where two processors carry three clusters that archive, a standby has been seen
/// to redo 1 MB of log in a second.
pub const TIMEOUT: Duration = Duration::from_secs(300);

/// The program under test.
pub fn program() -> &'static Path {
    Path::new(env!("CARGO_BIN_EXE_understudy"))
}

/// A loaded cluster. Fields are dropped in this order: clients, processes, directory.
pub struct Stage {
    pub load: Option<Load>,
    pub churn: Option<Churn>,
    pub cluster: Cluster,
    pub clock: Clock,
    /// Nodes that were fenced while they served: their PostgreSQL's files fail under it, and it says so.
    fenced: Vec<String>,
    scratch: Scratch,
}

impl Stage {
    /// Three zones, two nodes, four clients and one that changes tables all the time.
    pub async fn set(test: &str) -> Result<Stage> {
        Stage::with_nodes(test, &["north", "south"]).await
    }

    pub async fn with_nodes(test: &str, nodes: &[&str]) -> Result<Stage> {
        Stage::with_options(test, nodes, |_| {}).await
    }

    /// The same with emulated distances.
    pub async fn over(test: &str, nodes: &[&str], network: Option<Network>) -> Result<Stage> {
        Stage::with_options(test, nodes, |options| options.network = network).await
    }

    /// The same, with options that `change` sets.
    pub async fn with_options(
        test: &str,
        nodes: &[&str],
        change: impl FnOnce(&mut Options),
    ) -> Result<Stage> {
        let scratch = Scratch::new(test)?;
        let bin = programs::find(None)?;
        let mut options = Options::new(scratch.path(), &bin, program());
        // On a busy machine a heartbeat can be late; what dies is noticed by other signs as well.
        options.heartbeat = "wide".into();
        options.nodes = nodes.iter().map(|name| (*name).to_owned()).collect();
        change(&mut options);
        let bin = options.bin.clone();
        let mut cluster = Cluster::create(options)?;
        cluster.start().await?;
        let active = cluster.wait_active(TIMEOUT).await?;
        schema::create(&bin, &cluster.server(&active)?, SCALE).await?;
        let spares = cluster.options().spares.clone();
        let spare = |name: &str| spares.iter().any(|spare| spare == name);
        for name in nodes.iter().filter(|name| **name != active && !spare(name)) {
            cluster.wait_follows(name, TIMEOUT).await?;
        }
        let mut stage = Stage {
            load: None,
            churn: None,
            cluster,
            clock: Clock::start(),
            fenced: Vec::new(),
            scratch,
        };
        stage.start_load();
        stage.commits(100).await?;
        Ok(stage)
    }

    /// What `status --json` says of a node; `None` if it does not know it.
    pub async fn status_of(&self, node: &str) -> Result<Option<Value>> {
        let config = self.cluster.node(node)?.config.display().to_string();
        let arguments = ["status", "--json", "--config", &config];
        let status: Value = serde_json::from_str(&self.cluster.run(&arguments).await?)?;
        let nodes = status["nodes"].as_array().context("no nodes")?;
        Ok(nodes.iter().find(|found| found["name"] == node).cloned())
    }

    /// The directory of this test.
    pub fn path(&self) -> &Path {
        self.scratch.path()
    }

    fn start_load(&mut self) {
        let options = load::Options {
            clients: 4,
            scale: SCALE,
            rate: Some(COMMITS_PER_SECOND),
            connects: Some(4),
            ..load::Options::default()
        };
        let application = self.cluster.any_writable();
        self.load = Some(Load::start(application, options, self.clock));
        self.start_churn();
    }

    /// The active hangs until `other` has taken over, and wakes up. Returns when it began to hang.
    pub async fn freeze_active(&mut self, old: &str, other: &str) -> Result<Offset> {
        let paused = self.clock.now();
        self.cluster.node_process(old).context("it runs")?.pause();
        // Its clients hang with it: only new connections find the new active.
        self.cluster.wait_takes_over(other, TIMEOUT).await?;
        self.expect_fenced(old);
        self.cluster.node_process(old).context("it runs")?.resume();
        Ok(paused)
    }

    /// Starts the one that changes tables.
    pub fn start_churn(&mut self) {
        let application = self.cluster.any_writable();
        self.churn = Some(Churn::paced(application, Some(CHANGES_PER_SECOND)));
    }

    fn load(&self) -> Result<&Load> {
        self.load.as_ref().context("the load has been stopped")
    }

    /// The clients' history up to now.
    pub fn history(&self) -> Result<History> {
        Ok(self.load()?.history())
    }

    /// Waits until so many more commits are acknowledged.
    pub async fn commits(&mut self, more: u64) -> Result<()> {
        let goal = self.load()?.acknowledged() + more;
        let deadline = Instant::now() + TIMEOUT;
        while self.load()?.acknowledged() < goal {
            ensure!(
                Instant::now() < deadline,
                "no {more} commits within {TIMEOUT:?}; last trouble: {:?}",
                self.load()?.trouble()
            );
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        Ok(())
    }

    /// Waits for the first commit that began after `moment`.
    pub async fn outage_after(&mut self, moment: Offset) -> Result<Outage> {
        let deadline = Instant::now() + TIMEOUT;
        loop {
            if let Some(outage) = self.load()?.history().outage(moment) {
                return Ok(outage);
            }
            ensure!(
                Instant::now() < deadline,
                "nobody accepts commits; last trouble: {:?}",
                self.load()?.trouble()
            );
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    }

    /// Kills the active node; returns its name and when.
    pub async fn kill_active(&mut self) -> Result<(String, Offset)> {
        let active = self.cluster.wait_active(TIMEOUT).await?;
        let kill = self.cluster.kill_node(&active).context("it does not run")?;
        Ok((active, self.clock.at(kill.at)))
    }

    /// From now on the PostgreSQL of this node may complain that its files are gone.
    pub fn expect_fenced(&mut self, name: &str) {
        self.fenced.push(name.to_owned());
    }

    /// Stops the one that changes tables.
    pub async fn stop_churn(&mut self) {
        if let Some(churn) = self.churn.take() {
            churn.stop().await;
        }
    }

    /// Stops the load and checks that nothing was lost and nothing is broken.
    pub async fn verify(mut self) -> Result<()> {
        self.check_database().await?;
        let unexpected = self.unexpected_log_lines();
        ensure!(
            unexpected.is_empty(),
            "unexpected in the logs:\n{}",
            unexpected.join("\n")
        );
        self.cluster.shutdown();
        self.scratch.succeed()
    }

    /// Stops the load, and checks what the database has.
    pub async fn check_database(&mut self) -> Result<()> {
        let history = self.load.take().context("no load")?.stop().await;
        self.stop_churn().await;
        let active = self.cluster.wait_active(TIMEOUT).await?;
        let server = self.cluster.server(&active)?;
        let (_, mut checks) = verify::database(&server, &history).await?;
        checks.push(verify::amcheck(&self.cluster.options().bin, &server).await?);
        let failed: Vec<_> = checks.iter().filter(|check| !check.passed).collect();
        ensure!(failed.is_empty(), "{failed:#?}");
        Ok(())
    }

    /// Stops everything, without a verdict.
    pub async fn end(mut self) -> Result<()> {
        if let Some(load) = self.load.take() {
            load.stop().await;
        }
        self.stop_churn().await;
        self.cluster.shutdown();
        self.scratch.succeed()
    }

    /// Lines that no healthy run has.
    fn unexpected_log_lines(&self) -> Vec<String> {
        let fenced = |name: &str| self.fenced.iter().any(|fenced| fenced == name);
        self.cluster
            .unexpected_log_lines(|name, line| fenced(name) && is_of_the_fence(line))
    }
}

/// The connection string of an application that has to log in: all servers, and only the one that accepts writes.
pub fn conninfo(servers: &[Server]) -> String {
    let mut text = schema::connection_string(&schema::any_writable(servers));
    if let Some(password) = servers.first().and_then(|first| first.password.as_ref()) {
        text.push_str(&format!(" password={password}"));
    }
    text
}

/// True if a line is about what the mount of a fenced node answers: every access fails, in the middle of a
/// block if the kernel had half of it, so does the rest of the transaction that met it and its abort, and
/// the whole server after that.
fn is_of_the_fence(line: &str) -> bool {
    let said = [
        "Read-only file system",
        "Input/output error",
        "wrote only ",
        "read only ",
        "current transaction is aborted",
        "AbortTransaction while in ABORT state",
        // It has committed, and cannot remove the files of what it dropped.
        "AbortTransaction while in COMMIT state",
        "it was already committed",
        "crash of another server process",
    ];
    said.iter().any(|what| line.contains(what))
}
