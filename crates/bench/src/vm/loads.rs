//! What the machine's clients do.
//!
//! Invariant: a run counts what was committed between its beginning and its end, after some time that does not count; and every client
//! has ended before the next run begins.

use std::fmt;
use std::time::Duration;

use clap::ValueEnum;
use cluster::clients::clock::Clock;
use cluster::clients::history::{Attempt, History};
use cluster::clients::load::{Load as Clients, Options as ClientOptions};
use cluster::clients::mysql;
use cluster::clients::schema::Server;
use cluster::clients::session::connect;
use cluster::clients::work::Work;
use cluster::machine::GUEST;
use rand::rngs::SmallRng;
use serde::{Deserialize, Serialize};
use tokio_postgres::{Client, Config, Error, Statement};

use super::Subject;
use super::stage::Guest;
use super::statements::Statements;
use crate::soak::orders::{self, Orders};

/// What is sent.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, ValueEnum)]
#[serde(rename_all = "snake_case")]
pub enum Load {
    /// PostgreSQL: the order entry of TPC-C in small, in functions of the server: four round trips in a transaction.
    Orders,
    /// PostgreSQL: the same with a round trip for each statement, as RemusDB's TPC-C.
    Statements,
    /// MariaDB: money from one account to another, as TPC-B's.
    Transfers,
    /// PostgreSQL: a table larger than its memory is read, as TPC-H's queries do.
    Scan,
}

impl fmt::Display for Load {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Load::Orders => "order entry",
            Load::Statements => "order entry by statements",
            Load::Transfers => "transfers",
            Load::Scan => "scan",
        })
    }
}

/// What one run gave.
#[derive(Debug, Clone, Copy)]
pub(super) struct Rate {
    pub tps: f64,
    pub p50_ms: f64,
    pub p99_ms: f64,
}

/// Before a run counts, once clients are at work.
const WARM_UP: Duration = Duration::from_millis(1000);
/// By then they must be.
const BEGINS_WITHIN: Duration = Duration::from_secs(60);
/// MariaDB's clients are taken to be at work after this.
const LOGS_IN_WITHIN: Duration = Duration::from_secs(4);
/// Clients that scan: the machine has one processor.
const SCANNERS: u16 = 2;
/// Rows of a kilobyte that a megabyte has.
const ROWS_PER_MB: u32 = 896;
/// Rows that one query of the scan reads: 2 MB.
const SLICE_ROWS: u32 = 2 * ROWS_PER_MB;
/// MariaDB's accounts for each warehouse that an order entry would have.
const ACCOUNTS_PER_WAREHOUSE: u32 = 10_000;
/// No run has so many transactions of one client.
const NUMBERS_OF_A_RUN: i64 = 1_000_000;
const POSTGRESQL: u16 = 5432;
const MARIADB: u16 = 3306;

fn postgresql(password: &str) -> Config {
    let server = Server {
        host: GUEST.to_owned(),
        port: POSTGRESQL,
        user: "postgres".to_owned(),
        database: "postgres".to_owned(),
        password: Some(password.to_owned()),
    };
    server.config()
}

fn mariadb() -> anyhow::Result<mysql::Server> {
    Ok(mysql::Server {
        address: GUEST.parse()?,
        port: MARIADB,
    })
}

/// True if the database answers.
pub(super) async fn answers(guest: Guest, password: &str) -> anyhow::Result<()> {
    match guest {
        Guest::Postgresql => {
            connect(&postgresql(password)).await?;
            Ok(())
        }
        Guest::Mariadb => mysql::administrate(mariadb()?, password, &[]).await,
    }
}

/// Creates and fills the tables.
pub(super) async fn fill(subject: Subject, password: &str) -> anyhow::Result<()> {
    match subject.load {
        Load::Orders | Load::Statements => {
            orders::create(&postgresql(password), subject.size).await
        }
        Load::Transfers => {
            let text = mysql::setup_statements(subject.size * ACCOUNTS_PER_WAREHOUSE);
            let statements: Vec<&str> = text.split_inclusive(";\n").collect();
            mysql::administrate(mariadb()?, password, &statements).await
        }
        Load::Scan => {
            let client = connect(&postgresql(password)).await?;
            let rows = subject.size * ROWS_PER_MB;
            let make = format!(
                "CREATE UNLOGGED TABLE lines AS
                     SELECT n AS id, repeat(md5(n::text), 30) AS filler FROM generate_series(1, {rows}) n;
                 ALTER TABLE lines ADD PRIMARY KEY (id)"
            );
            client.batch_execute(&make).await?;
            client
                .batch_execute("VACUUM (FREEZE, ANALYZE) lines")
                .await?;
            client.batch_execute("CHECKPOINT").await?;
            Ok(())
        }
    }
}

/// Reads a table, slice by slice.
struct Scan {
    client: Client,
    slice: Statement,
}

impl Work for Scan {
    async fn open(server: &Config) -> Result<Scan, Error> {
        let client = connect(server).await?;
        client
            .batch_execute("SET enable_seqscan = off; SET enable_bitmapscan = off; SET max_parallel_workers_per_gather = 0")
            .await?;
        let slice = client
            .prepare("SELECT sum(length(filler)) FROM lines WHERE id BETWEEN $1 AND $2")
            .await?;
        Ok(Scan { client, slice })
    }

    /// `scale` is the table's megabytes. Clients begin at different places.
    async fn prepare_commit(
        &self,
        client: i32,
        n: i64,
        scale: u32,
        _random: &mut SmallRng,
    ) -> Result<(), Error> {
        let slices = i64::from(scale * ROWS_PER_MB / SLICE_ROWS).max(1);
        let at = (n + i64::from(client) * slices / i64::from(SCANNERS)) % slices;
        let first = i32::try_from(at * i64::from(SLICE_ROWS)).unwrap_or(0) + 1;
        let last = first + SLICE_ROWS as i32 - 1;
        self.client.query(&self.slice, &[&first, &last]).await?;
        Ok(())
    }

    async fn commit(&self) -> Result<(), Error> {
        Ok(())
    }
}

/// Clients at work.
pub(super) enum Running {
    Postgresql(Clients),
    Mariadb(mysql::Load),
}

impl Running {
    /// `run` numbers runs on the same data, so that no transaction has the number of another.
    pub(super) fn start(
        subject: Subject,
        password: &str,
        clients: u16,
        run: u32,
        clock: Clock,
    ) -> anyhow::Result<Running> {
        let options = ClientOptions {
            clients: match subject.load {
                Load::Scan => SCANNERS,
                _ => clients,
            },
            scale: subject.size,
            seed: u64::from(run),
            numbered_after: i64::from(run) * NUMBERS_OF_A_RUN,
            // A login has many round trips, each of which waits for a checkpoint.
            connect_within: BEGINS_WITHIN,
            ..ClientOptions::default()
        };
        let config = postgresql(password);
        Ok(match subject.load {
            Load::Orders => Running::Postgresql(Clients::of::<Orders>(config, options, clock)),
            Load::Statements => {
                Running::Postgresql(Clients::of::<Statements>(config, options, clock))
            }
            Load::Scan => Running::Postgresql(Clients::of::<Scan>(config, options, clock)),
            Load::Transfers => {
                let plan = mysql::Plan {
                    work: mysql::Work::Transfers,
                    clients,
                    first: run as i32 * i32::from(clients),
                    accounts: subject.size * ACCOUNTS_PER_WAREHOUSE,
                    seed: u64::from(run),
                };
                Running::Mariadb(mysql::Load::start(&[mariadb()?], &plan, clock))
            }
        })
    }

    /// Waits until clients are at work: transactions were committed on every connection, if they share alike.
    pub(super) async fn begun(&self, clients: u16) -> anyhow::Result<()> {
        match self {
            Running::Postgresql(load) => {
                let goal = 2 * u64::from(clients);
                load.wait_acknowledged(goal, BEGINS_WITHIN).await?;
            }
            Running::Mariadb(_) => tokio::time::sleep(LOGS_IN_WITHIN).await,
        }
        tokio::time::sleep(WARM_UP).await;
        Ok(())
    }

    pub(super) async fn stop(self) -> anyhow::Result<History> {
        match self {
            Running::Postgresql(clients) => Ok(clients.stop().await),
            Running::Mariadb(clients) => clients.stop().await,
        }
    }
}

/// One run; `meanwhile` is done when it begins to count, and when it ends.
pub(super) async fn timed(
    subject: Subject,
    password: &str,
    clients: u16,
    seconds: u32,
    run: u32,
    mut meanwhile: impl AsyncFnMut() -> anyhow::Result<()>,
) -> anyhow::Result<Rate> {
    let clock = Clock::start();
    let running = Running::start(subject, password, clients, run, clock)?;
    running.begun(clients).await?;
    meanwhile().await?;
    let from = clock.now();
    tokio::time::sleep(Duration::from_secs(u64::from(seconds))).await;
    let to = clock.now();
    meanwhile().await?;
    let history = running.stop().await?;
    let within = |attempt: &&Attempt| from <= attempt.ended && attempt.ended < to;
    let latency = |attempt: &Attempt| attempt.ended.since(attempt.began);
    let mut latencies: Vec<Duration> = history.commits().filter(within).map(latency).collect();
    latencies.sort_unstable();
    anyhow::ensure!(!latencies.is_empty(), "no client got an answer");
    let quantile = |share: f64| {
        let at = (latencies.len() as f64 * share) as usize;
        latencies[at.min(latencies.len() - 1)].as_secs_f64() * 1e3
    };
    Ok(Rate {
        tps: latencies.len() as f64 / to.since(from).as_secs_f64(),
        p50_ms: quantile(0.5),
        p99_ms: quantile(0.99),
    })
}
