//! Clients of the machine: each commits one transaction after the other, and writes down what it was told and when.
//!
//! Invariant: a transaction's number is used once, and what was acknowledged is written down after the client was told.

use std::collections::HashSet;
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicI64, Ordering};
use std::time::{Duration, Instant};

use anyhow::Context;
use parking_lot::Mutex;
use tokio::task::JoinHandle;
use tokio_postgres::{Client, NoTls};

use super::GUEST;
use crate::programs;

const ACCOUNTS: i32 = 10_000;
const ANSWERS_WITHIN: Duration = Duration::from_secs(30);
const COMMITS_WITHIN: Duration = Duration::from_secs(60);
const BOOTS_WITHIN: Duration = Duration::from_secs(120);

/// A commit that a client was told of.
#[derive(Debug, Clone, Copy)]
pub struct Commit {
    /// The client, and its number.
    pub key: (i32, i64),
    /// When the client was told.
    pub at: Instant,
}

/// What clients saw.
#[derive(Debug)]
pub struct Seen {
    /// Commits that they were told of, in the order in which they were.
    pub commits: Vec<Commit>,
    /// How long they ran.
    pub ran: Duration,
}

#[derive(Debug, Default)]
struct Shared {
    commits: Mutex<Vec<Commit>>,
    /// Of each client, which connection it has; 0 if none.
    connections: Mutex<Vec<u64>>,
    is_over: AtomicBool,
    next: AtomicI64,
}

/// Clients that run.
#[derive(Debug)]
pub struct Clients {
    shared: Arc<Shared>,
    tasks: Vec<JoinHandle<()>>,
    started: Instant,
}

/// A connection to the machine's PostgreSQL.
///
/// # Errors
/// Nobody answers, or not in time.
pub async fn connect(password: &str) -> anyhow::Result<Client> {
    let mut config = tokio_postgres::Config::new();
    config
        .host(GUEST)
        .user("postgres")
        .password(password)
        .dbname("postgres")
        .connect_timeout(Duration::from_secs(3));
    let (client, connection) = config.connect(NoTls).await?;
    tokio::spawn(async move {
        if let Err(error) = connection.await {
            tracing::debug!(%error, "a connection ended");
        }
    });
    Ok(client)
}

/// Waits until the machine's PostgreSQL answers, and makes what the clients write to.
///
/// # Errors
/// It does not.
pub async fn set_up(password: &str) -> anyhow::Result<()> {
    let client = first_connection(password).await?;
    let statements = format!(
        "CREATE TABLE accounts (id int PRIMARY KEY, balance bigint NOT NULL, filler text);
         INSERT INTO accounts SELECT n, 0, repeat('x', 80) FROM generate_series(1, {ACCOUNTS}) n;
         CREATE TABLE commits (client int, n bigint, PRIMARY KEY (client, n));
         CHECKPOINT"
    );
    client
        .batch_execute(&statements)
        .await
        .context("cannot fill the tables")
}

async fn first_connection(password: &str) -> anyhow::Result<Client> {
    let deadline = Instant::now() + BOOTS_WITHIN;
    loop {
        match connect(password).await {
            Ok(client) => return Ok(client),
            Err(error) => anyhow::ensure!(
                Instant::now() < deadline,
                "the machine's database does not answer: {error:#}"
            ),
        }
        tokio::time::sleep(Duration::from_millis(200)).await;
    }
}

/// What `pg_amcheck` finds in the machine: "OK", or its complaints.
///
/// # Errors
/// It cannot be run.
pub async fn amcheck(password: &str) -> anyhow::Result<String> {
    let mut command = Command::new(programs::find(None)?.join("pg_amcheck"));
    command
        .args(["-h", GUEST, "-U", "postgres", "--all"])
        .args(["--install-missing", "--heapallindexed"])
        .env("PGPASSWORD", password);
    let output = tokio::task::spawn_blocking(move || command.output()).await??;
    Ok(match output.status.success() {
        true => "OK".to_owned(),
        false => String::from_utf8_lossy(&[output.stdout, output.stderr].concat()).into_owned(),
    })
}

/// Every commit that is there.
///
/// # Errors
/// The machine does not answer.
async fn committed(password: &str) -> anyhow::Result<HashSet<(i32, i64)>> {
    let client = connect(password).await?;
    let rows = client.query("SELECT client, n FROM commits", &[]).await?;
    Ok(rows.iter().map(|row| (row.get(0), row.get(1))).collect())
}

impl Clients {
    /// Starts them, and waits until each is connected.
    ///
    /// # Errors
    /// One is not.
    pub async fn start(count: u16, password: &str) -> anyhow::Result<Clients> {
        let shared = Arc::new(Shared::default());
        shared.connections.lock().resize(usize::from(count), 0);
        let mut tasks = Vec::new();
        for number in 0..count {
            let connected = connect(password).await?;
            let (shared, password) = (shared.clone(), password.to_owned());
            tasks.push(tokio::spawn(async move {
                let mut client = Some(connected);
                while !shared.is_over.load(Ordering::Acquire) {
                    client = live(&shared, usize::from(number), client, &password).await;
                }
            }));
        }
        Ok(Clients {
            shared,
            tasks,
            started: Instant::now(),
        })
    }

    /// Which connection each client has.
    pub fn connections(&self) -> Vec<(usize, u64)> {
        let connections = self.shared.connections.lock();
        connections
            .iter()
            .copied()
            .enumerate()
            .filter(|(_, id)| *id != 0)
            .collect()
    }

    /// How many of those there were are there still.
    pub fn kept(&self, before: &[(usize, u64)]) -> u64 {
        let now = self.shared.connections.lock();
        before
            .iter()
            .filter(|(client, id)| now[*client] == *id)
            .count() as u64
    }

    /// Waits until something was committed by every second client after a moment.
    ///
    /// # Errors
    /// They do not for a minute.
    pub async fn wait_commits_after(&self, at: Instant) -> anyhow::Result<()> {
        let wanted = self.tasks.len().div_ceil(2);
        let deadline = Instant::now() + COMMITS_WITHIN;
        loop {
            let clients: HashSet<i32> = {
                let commits = self.shared.commits.lock();
                commits
                    .iter()
                    .rev()
                    .take_while(|it| it.at > at)
                    .map(|it| it.key.0)
                    .collect()
            };
            if clients.len() >= wanted {
                return Ok(());
            }
            anyhow::ensure!(Instant::now() < deadline, "nobody commits after the kill");
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    }

    /// Lets them finish what they do.
    ///
    /// # Errors
    /// One has panicked.
    pub async fn stop(self) -> anyhow::Result<Seen> {
        self.shared.is_over.store(true, Ordering::Release);
        let ran = self.started.elapsed();
        for task in self.tasks {
            task.await.context("a client panicked")?;
        }
        let mut commits = std::mem::take(&mut *self.shared.commits.lock());
        commits.sort_by_key(|commit| commit.at);
        Ok(Seen { commits, ran })
    }
}

/// Commits on one connection until it breaks.
async fn live(
    shared: &Shared,
    number: usize,
    client: Option<Client>,
    password: &str,
) -> Option<Client> {
    let mut client = match client {
        Some(client) => client,
        None => match connect(password).await {
            Ok(client) => client,
            Err(_) => {
                tokio::time::sleep(Duration::from_millis(50)).await;
                return None;
            }
        },
    };
    let id = shared.next.fetch_add(1, Ordering::AcqRel) as u64 + 1;
    shared.connections.lock()[number] = id;
    while !shared.is_over.load(Ordering::Acquire) {
        let n = shared.next.fetch_add(1, Ordering::AcqRel);
        let done =
            tokio::time::timeout(ANSWERS_WITHIN, commit(&mut client, number as i32, n)).await;
        match done {
            Ok(Ok(())) => {
                let commit = Commit {
                    key: (number as i32, n),
                    at: Instant::now(),
                };
                shared.commits.lock().push(commit);
            }
            Ok(Err(error)) if error.is_closed() || error.code().is_none() => break,
            Ok(Err(error)) => tracing::debug!(%error, "a transaction failed"),
            Err(_) => break,
        }
    }
    if shared.is_over.load(Ordering::Acquire) {
        return Some(client);
    }
    shared.connections.lock()[number] = 0;
    None
}

async fn commit(client: &mut Client, number: i32, n: i64) -> Result<(), tokio_postgres::Error> {
    // Rows in turn: which ones is of no interest.
    let account = (n.wrapping_mul(7919).unsigned_abs() % ACCOUNTS as u64) as i32 + 1;
    let transaction = client.transaction().await?;
    transaction
        .execute(
            "UPDATE accounts SET balance = balance + 1 WHERE id = $1",
            &[&account],
        )
        .await?;
    transaction
        .execute("INSERT INTO commits VALUES ($1, $2)", &[&number, &n])
        .await?;
    transaction.commit().await
}

impl Seen {
    /// How many of them the machine has not.
    ///
    /// # Errors
    /// It does not answer.
    pub async fn lost(&self, password: &str) -> anyhow::Result<u64> {
        let there = committed(password).await?;
        let lost = self.commits.iter().filter(|it| !there.contains(&it.key));
        Ok(lost.count() as u64)
    }

    /// From the last commit before a moment to the first one after it.
    pub fn outage_ms(&self, at: Instant) -> f64 {
        let before = self.commits.iter().rfind(|commit| commit.at <= at);
        let after = self
            .commits
            .iter()
            .find(|commit| commit.at > at + Duration::from_millis(30));
        match (before, after) {
            (Some(before), Some(after)) => (after.at - before.at).as_secs_f64() * 1e3,
            _ => f64::INFINITY,
        }
    }
}
