//! `understudy bench cassandra`: blocks over real Apache Cassandra, beside what the driver alone does on the
//! same cluster in the same run, on one machine or over emulated distances.
//!
//! All sides write and read rows of the same table. Commits and reads are set beside the driver with the same
//! consistency: a commit is one block written and synced (QUORUM), a read is one block of the nearest copy
//! (LOCAL_ONE). What the block path does beyond that is its price: versions, checksums, `sync_pending`, the
//! gate. Transactions are set beside the two baselines of DAX 7.1 (figure 6), which need no versions, because
//! every write waits for so many copies that every read meets one of them.

mod driver;
mod places;
mod report;
mod side;
mod timed;

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context;
use cassandra::server;
use clap::ValueEnum;
use serde::Serialize;

use driver::{BASELINE_1, BASELINE_2, Driver, SAME};
use places::Places;
use side::{Ours, Side};
use timed::{Run, Work};

pub use places::Distance;
pub use report::{Measured, Other, Report, Row, table};

/// All sides' keyspace.
const KEYSPACE: &str = "understudy";

/// What is measured how.
#[derive(Debug, Clone)]
pub struct Options {
    /// An empty directory to work in.
    pub dir: PathBuf,
    /// How far the data centres are apart.
    pub distance: Distance,
    /// What clients do, one after the other.
    pub loads: Vec<Load>,
    /// Clients at a time, one after the other.
    pub clients: Vec<u16>,
    /// Length of one run.
    pub seconds: u32,
    /// Runs of each side; one more of each comes before, and does not count.
    pub rounds: u32,
}

/// What clients do.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, ValueEnum)]
#[serde(rename_all = "snake_case")]
pub enum Load {
    /// A block written and synced.
    Commit,
    /// A block read that the active knows.
    Read,
    /// Eight blocks read, three of them changed, a block of log written, all of it synced.
    Transaction,
}

impl Load {
    /// Whom it compares, as places in [`Sides`]; the block path is the first.
    fn sides(self) -> &'static [usize] {
        match self {
            Load::Commit | Load::Read => &[0, 1],
            Load::Transaction => &[0, 2, 3],
        }
    }
}

/// Everybody who is measured, on a cluster that runs: the block path, the driver with the same consistency, the
/// two baselines; each with the number of clients whose blocks are there.
#[derive(Debug)]
struct Sides([(Side, u16); 4]);

impl Sides {
    async fn open(points: Vec<String>) -> anyhow::Result<Sides> {
        let config = side::config(points)?;
        let ours = Box::pin(Ours::open(&config)).await?;
        // The same connections, deadlines and second attempts as the block path's: what it adds is compared.
        let session = Arc::new(Box::pin(::cassandra::connect(&config)).await?);
        let open = async |rules| {
            let driver = Driver::open(&session, rules).await?;
            anyhow::Ok((Side::Driver(driver), 0))
        };
        Ok(Sides([
            (Side::Ours(ours), 0),
            open(SAME).await?,
            open(BASELINE_1).await?,
            open(BASELINE_2).await?,
        ]))
    }

    fn of(&self, load: Load) -> Vec<&Side> {
        let sides = load.sides().iter();
        sides.map(|at| &self.0[*at].0).collect()
    }

    /// Sees to it that what so many clients read is there. Says whether something was written.
    async fn fill(
        &mut self,
        load: Load,
        clients: u16,
        say: &impl Fn(&str),
    ) -> anyhow::Result<bool> {
        if load == Load::Commit {
            return Ok(false);
        }
        let mut written = false;
        for &at in load.sides() {
            let (side, filled) = &mut self.0[at];
            if *filled < clients {
                say(&format!(
                    "writing blocks of {clients} clients, {}",
                    side.name()
                ));
                timed::fill(side, *filled..clients).await?;
                *filled = clients;
                written = true;
            }
        }
        Ok(written)
    }
}

/// Measures everything; `say` hears what is going on.
///
/// # Errors
/// Cassandra does not start, an operation fails, or there are no distances without root's rights.
pub async fn run(options: &Options, say: impl Fn(&str)) -> anyhow::Result<Report> {
    // Goes after the cluster, whose nodes are in it.
    let places = Places::create(options.distance)?;
    say("starting Apache Cassandra: three data centres");
    let mut nodes = server::Options::new(options.dir.join("cassandra"));
    // All sides are measured on servers that are warm. Over long lines too little is done in a run for Java to
    // compile all of it in its usual way.
    nodes.warms_soon = options.distance == Distance::Wan;
    if options.distance == Distance::Wan {
        // Cassandra's own default: a quorum is read from the nearer one of two distant data centres.
        nodes = nodes.with("dynamic_snitch", "true");
    }
    nodes.sites = places.sites()?;
    let cluster = tokio::task::spawn_blocking(|| server::Cluster::start(nodes));
    let cluster = cluster.await.context("the start was given up")??;
    let points = cluster.contact_points().into_iter();
    let mut sides = Sides::open(points.map(|point| point.to_string()).collect()).await?;
    let mut rows = Vec::new();
    for &load in &options.loads {
        for &clients in &options.clients {
            if sides.fill(load, clients, &say).await? {
                tokio::task::block_in_place(|| settle(&cluster))?;
            }
            rows.push(compare(options, &sides.of(load), load, clients, &say).await?);
        }
    }
    drop(sides);
    tokio::task::block_in_place(|| drop(cluster));
    drop(places);
    Ok(Report {
        distance: options.distance,
        round_trips_ms: options.distance.round_trips_ms(),
        rows,
        seconds: options.seconds,
        processors: std::thread::available_parallelism().map_or(0, Into::into),
    })
}

/// Every side's rows lie in files of the same kind then: who wrote last has no more of them in memory.
fn settle(cluster: &server::Cluster) -> anyhow::Result<()> {
    for node in 0..cluster.contact_points().len() {
        cluster.tool(node, &["flush", KEYSPACE])?;
    }
    Ok(())
}

async fn compare(
    options: &Options,
    sides: &[&Side],
    load: Load,
    clients: u16,
    say: &impl Fn(&str),
) -> anyhow::Result<Row> {
    let mut runs: Vec<Vec<Run>> = vec![Vec::new(); sides.len()];
    for round in 0..=options.rounds {
        let work = Work {
            load,
            clients,
            length: Duration::from_secs(options.seconds.into()),
            seed: u64::from(round),
        };
        for turn in 0..sides.len() {
            // Whoever comes later has the warmer server: take turns.
            let at = (round as usize + turn) % sides.len();
            let name = sides[at].name();
            let run = timed::run(sides[at], work).await;
            let run = run.with_context(|| format!("{load:?} of {clients} clients, {name}"))?;
            let rate = run.per_second;
            say(&format!(
                "{load:?}, {clients} clients, {name}: {rate:.0} a second"
            ));
            if round > 0 {
                runs[at].push(run);
            }
        }
    }
    let names = sides.iter().map(|side| side.name());
    Row::of(load, clients, names.zip(&runs)).context("no side was measured")
}
