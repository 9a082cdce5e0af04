//! Clients of a MariaDB: transactions that are counted, and the search for each of them afterwards.
//!
//! Each client inserts rows `(client, n)` into a ledger in the same transaction as what else it does ([`Work`]); `n` is
//! never used twice. Whatever fails is followed by a new connection and the next `n`.

mod work;

use std::collections::HashSet;
use std::net::Ipv4Addr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use anyhow::{Context, ensure};
use mysql_async::prelude::Queryable;
use mysql_async::{Conn, Opts, OptsBuilder};
use rand::SeedableRng;
use rand::rngs::SmallRng;
use tokio::task::JoinHandle;

pub use self::work::Work;
use super::clock::Clock;
use super::history::{Attempt, History, Outcome};

/// The account that clients use; its password is not a secret in a test.
const USER: &str = "app";
/// How long a client waits before it tries again.
const RETRY_EVERY: Duration = Duration::from_millis(10);
/// A server that says nothing for so long is given up.
const ANSWER_WITHIN: Duration = Duration::from_secs(10);
/// What each account has at first.
const MONEY: i64 = 1000;
/// The code of a server that does not accept who connects.
const ACCESS_DENIED: u16 = 1045;

/// A server that may be the active.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Server {
    /// Where it is.
    pub address: Ipv4Addr,
    /// Port on the loopback address.
    pub port: u16,
}

/// Connects to the server that accepts connections.
///
/// # Errors
/// None does.
pub async fn connect(servers: &[Server]) -> anyhow::Result<Conn> {
    let mut failed = None;
    for server in servers {
        match tokio::time::timeout(ANSWER_WITHIN, log_in(*server)).await {
            Ok(Ok(connection)) => return Ok(connection),
            Ok(Err(error)) => failed = Some(error.into()),
            Err(_) => failed = Some(anyhow::anyhow!("no answer from port {}", server.port)),
        }
    }
    Err(failed.unwrap_or_else(|| anyhow::anyhow!("no servers")))
}

async fn log_in(server: Server) -> Result<Conn, mysql_async::Error> {
    let options = OptsBuilder::default()
        .ip_or_hostname(server.address.to_string())
        .tcp_port(server.port)
        .user(Some(USER))
        .db_name(Some("test"))
        .prefer_socket(false);
    let with_password = options.clone().pass(Some(USER));
    match Conn::new(Opts::from(with_password)).await {
        // The greeting of MySQL 5.5.9 does not end the name of its method as the protocol demands, so that no
        // password can be sent; the account has none there.
        Err(mysql_async::Error::Server(refused)) if refused.code == ACCESS_DENIED => {
            Conn::new(Opts::from(options)).await
        }
        connected => connected,
    }
}

/// What the administrator runs once, by the server's own client on its socket.
pub fn setup_statements(accounts: u32) -> String {
    format!(
        "CREATE DATABASE IF NOT EXISTS test;\n\
         CREATE USER {USER}@'%' IDENTIFIED BY '{USER}';\n\
         GRANT ALL ON test.* TO {USER}@'%';\n\
         USE test;\n{}",
        work::tables(accounts, MONEY)
    )
}

/// The same by the administrator over the network: statements, one after the other.
///
/// # Errors
/// The server does not answer, or refuses one.
pub async fn administrate(
    server: Server,
    password: &str,
    statements: &[&str],
) -> anyhow::Result<()> {
    let options = OptsBuilder::default()
        .ip_or_hostname(server.address.to_string())
        .tcp_port(server.port)
        .user(Some("root"))
        .pass(Some(password))
        .prefer_socket(false);
    let connecting = tokio::time::timeout(ANSWER_WITHIN, Conn::new(Opts::from(options)));
    let mut connection = connecting.await.context("no answer in time")??;
    for statement in statements {
        connection.query_drop(*statement).await?;
    }
    connection.disconnect().await?;
    Ok(())
}

/// The password of the account that clients use, for the server's own programs.
pub fn account() -> (&'static str, &'static str) {
    (USER, USER)
}

/// What a group of clients does.
#[derive(Debug, Clone)]
pub struct Plan {
    /// What each does.
    pub work: Work,
    /// How many they are.
    pub clients: u16,
    /// The number of the first; no two groups on the same database may share numbers.
    pub first: i32,
    /// Accounts that there are.
    pub accounts: u32,
    /// Decides which are touched.
    pub seed: u64,
}

/// Clients at work.
#[derive(Debug)]
pub struct Load {
    stop: Arc<AtomicBool>,
    clients: Vec<JoinHandle<Vec<Attempt>>>,
}

impl Load {
    /// Starts the clients of a plan.
    pub fn start(servers: &[Server], plan: &Plan, clock: Clock) -> Load {
        let stop = Arc::new(AtomicBool::new(false));
        let client = |number: u16| {
            let client = Client {
                number: plan.first + i32::from(number),
                servers: servers.to_vec(),
                work: plan.work,
                accounts: plan.accounts,
                rng: SmallRng::seed_from_u64(plan.seed ^ u64::from(number) << 32),
                clock,
                stop: Arc::clone(&stop),
            };
            tokio::spawn(client.run())
        };
        Load {
            clients: (0..plan.clients).map(client).collect(),
            stop,
        }
    }

    /// Ends them; what they saw.
    ///
    /// # Errors
    /// One panicked.
    pub async fn stop(self) -> anyhow::Result<History> {
        self.stop.store(true, Ordering::Relaxed);
        let mut attempts = Vec::new();
        for client in self.clients {
            attempts.extend(client.await.context("a client panicked")?);
        }
        Ok(History::new(attempts))
    }
}

struct Client {
    number: i32,
    servers: Vec<Server>,
    work: Work,
    accounts: u32,
    rng: SmallRng,
    clock: Clock,
    stop: Arc<AtomicBool>,
}

impl Client {
    async fn run(mut self) -> Vec<Attempt> {
        let mut attempts = Vec::new();
        let mut connection = None;
        let mut n = 0;
        while !self.stop.load(Ordering::Relaxed) {
            if connection.is_none() {
                connection = connect(&self.servers).await.ok();
            }
            let Some(open) = &mut connection else {
                tokio::time::sleep(RETRY_EVERY).await;
                continue;
            };
            n += 1;
            let began = self.clock.now();
            let tried = tokio::time::timeout(ANSWER_WITHIN, self.transact(open, n)).await;
            let outcome = tried.unwrap_or(Outcome::Unknown);
            if outcome != Outcome::Acknowledged {
                connection = None;
                tokio::time::sleep(RETRY_EVERY).await;
            }
            attempts.push(Attempt {
                client: self.number,
                n,
                outcome,
                began,
                ended: self.clock.now(),
            });
        }
        attempts
    }

    async fn transact(&mut self, connection: &mut Conn, n: i64) -> Outcome {
        let statements = self
            .work
            .statements(self.number, n, self.accounts, &mut self.rng);
        for statement in statements {
            if connection.query_drop(statement).await.is_err() {
                return Outcome::Refused;
            }
        }
        if !self.work.commits() {
            return Outcome::Acknowledged;
        }
        match connection.query_drop("COMMIT").await {
            Ok(()) => Outcome::Acknowledged,
            // The server itself says no: nothing was committed.
            Err(mysql_async::Error::Server(_)) => Outcome::Refused,
            Err(_) => Outcome::Unknown,
        }
    }
}

/// What is in the database, beside what its clients saw.
#[derive(Debug, Clone, Default, PartialEq, Eq, serde::Serialize)]
pub struct Verdict {
    /// Commits the clients were told of.
    pub acknowledged: u64,
    /// Rows in the ledger.
    pub present: u64,
    /// Acknowledged commits that are not there.
    pub lost: u64,
    /// Rows of transactions whose COMMIT was never sent.
    pub unexpected: u64,
    /// Commits whose answer was lost with the connection; each may be there or not.
    pub unknown: u64,
    /// True if the accounts have as much money together as at the beginning.
    pub sums_agree: bool,
}

impl Verdict {
    /// True if nothing is lost or invented.
    pub fn holds(&self) -> bool {
        self.lost == 0 && self.unexpected == 0 && self.sums_agree
    }
}

/// Looks for every transaction of a history.
///
/// # Errors
/// The database does not answer.
pub async fn verify(
    servers: &[Server],
    history: &History,
    accounts: u32,
) -> anyhow::Result<Verdict> {
    let mut connection = connect(servers).await?;
    let rows: Vec<(i32, i64)> = connection.query("SELECT client, n FROM ledger").await?;
    let money: Option<i64> = connection
        .query_first("SELECT CAST(SUM(money) AS SIGNED) FROM accounts")
        .await?;
    let money = money.context("no accounts")?;
    drop(connection);
    Ok(judge(&rows, money, history, accounts))
}

fn judge(rows: &[(i32, i64)], money: i64, history: &History, accounts: u32) -> Verdict {
    let present: HashSet<(i32, i64)> = rows.iter().copied().collect();
    let outcomes = history.outcomes();
    let acknowledged = outcomes
        .iter()
        .filter(|(_, outcome)| **outcome == Outcome::Acknowledged);
    let lost = acknowledged
        .filter(|(key, _)| !present.contains(key))
        .count();
    let may_be = |key: &&(i32, i64)| {
        let outcome = outcomes.get(key);
        matches!(outcome, Some(Outcome::Acknowledged | Outcome::Unknown))
    };
    let expected = present.iter().filter(may_be).count();
    Verdict {
        acknowledged: history.count(Outcome::Acknowledged),
        present: rows.len() as u64,
        lost: lost as u64,
        unexpected: (present.len() - expected) as u64,
        unknown: history.count(Outcome::Unknown),
        sums_agree: money == i64::from(accounts) * MONEY,
    }
}

/// Counts what is wrong with the large rows that clients with numbers from `first` on wrote; no such client may be at
/// work.
///
/// # Errors
/// The database does not answer.
pub async fn wrong_large_rows(servers: &[Server], first: i32) -> anyhow::Result<u64> {
    let mut connection = connect(servers).await?;
    let mut wrong = 0;
    for question in [work::damaged_rows(), work::misplaced_rows(first)] {
        let count: Option<u64> = connection.query_first(question).await?;
        wrong += count.context("no count")?;
    }
    Ok(wrong)
}

/// Has the server check all tables.
///
/// # Errors
/// It finds something, or does not answer.
pub async fn check_tables(servers: &[Server]) -> anyhow::Result<()> {
    let mut connection = connect(servers).await?;
    for table in ["ledger", "accounts", "large"] {
        let rows: Vec<(String, String, String, String)> = connection
            .query(format!("CHECK TABLE {table} EXTENDED"))
            .await?;
        let last = rows.last().context("no answer to CHECK TABLE")?;
        ensure!(last.3 == "OK", "CHECK TABLE {table}: {rows:?}");
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::clients::clock::Offset;

    fn history(outcomes: &[(i64, Outcome)]) -> History {
        let attempt = |(n, outcome): &(i64, Outcome)| Attempt {
            client: 1,
            n: *n,
            outcome: *outcome,
            began: Offset(*n),
            ended: Offset(*n + 1),
        };
        History::new(outcomes.iter().map(attempt).collect())
    }

    #[test]
    fn missing_and_invented_rows_are_counted() {
        let seen = history(&[
            (1, Outcome::Acknowledged),
            (2, Outcome::Acknowledged),
            (3, Outcome::Unknown),
            (4, Outcome::Refused),
        ]);
        let good = judge(&[(1, 1), (1, 2), (1, 3)], 2000, &seen, 2);
        assert!(good.holds(), "{good:?}");
        assert_eq!((good.acknowledged, good.present, good.unknown), (2, 3, 1));
        assert_eq!(judge(&[(1, 1)], 2000, &seen, 2).lost, 1);
        assert_eq!(
            judge(&[(1, 1), (1, 2), (1, 4), (9, 9)], 2000, &seen, 2).unexpected,
            2
        );
        assert!(!judge(&[(1, 1), (1, 2)], 1999, &seen, 2).holds());
    }
}
