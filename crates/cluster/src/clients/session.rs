//! One client's connection: the statements of the transaction, prepared and pipelined.
//!
//! Invariant: COMMIT is sent only after every earlier statement of the transaction succeeded. (A
//! COMMIT in a failed transaction is answered with "ROLLBACK", which a client could mistake.)

use std::time::Duration;

use rand::Rng;
use rand::rngs::SmallRng;
use tokio::time::timeout;
use tokio_postgres::config::Host;
use tokio_postgres::{Client, Config, Error, NoTls, Statement};

use super::work::Work;

/// What one transaction does: pgbench's TPC-B, and one row of the ledger.
#[derive(Debug, Clone, Copy)]
struct Transaction {
    client: i32,
    /// Its number for this client.
    n: i64,
    /// `pgbench_accounts.aid`.
    account: i32,
    /// `pgbench_tellers.tid`.
    teller: i32,
    /// `pgbench_branches.bid`.
    branch: i32,
    /// What is added to all three balances.
    delta: i32,
}

/// A connection to the active, with prepared statements.
#[derive(Debug)]
pub struct Session {
    client: Client,
    account: Statement,
    balance: Statement,
    teller: Statement,
    branch: Statement,
    history: Statement,
    ledger: Statement,
}

impl Transaction {
    fn draw(client: i32, n: i64, scale: u32, random: &mut SmallRng) -> Transaction {
        let scale = i32::try_from(scale).unwrap_or(i32::MAX / 100_000);
        Transaction {
            client,
            n,
            account: random.random_range(1..=100_000 * scale),
            teller: random.random_range(1..=10 * scale),
            branch: random.random_range(1..=scale),
            delta: random.random_range(-5000..=5000),
        }
    }
}

impl Work for Session {
    async fn open(server: &Config) -> Result<Session, Error> {
        let client = connect(server).await?;
        let (account, balance, teller, branch, history, ledger) = tokio::try_join!(
            client.prepare("UPDATE pgbench_accounts SET abalance = abalance + $1 WHERE aid = $2"),
            client.prepare("SELECT abalance FROM pgbench_accounts WHERE aid = $1"),
            client.prepare("UPDATE pgbench_tellers SET tbalance = tbalance + $1 WHERE tid = $2"),
            client.prepare("UPDATE pgbench_branches SET bbalance = bbalance + $1 WHERE bid = $2"),
            client.prepare(
                "INSERT INTO pgbench_history (tid, bid, aid, delta, mtime) \
                 VALUES ($1, $2, $3, $4, CURRENT_TIMESTAMP)"
            ),
            client.prepare("INSERT INTO understudy_ledger (client, n) VALUES ($1, $2)"),
        )?;
        Ok(Session {
            client,
            account,
            balance,
            teller,
            branch,
            history,
            ledger,
        })
    }

    /// Sent at once and answered in order.
    async fn prepare_commit(
        &self,
        client: i32,
        n: i64,
        scale: u32,
        random: &mut SmallRng,
    ) -> Result<(), Error> {
        let t = &Transaction::draw(client, n, scale, random);
        let client = &self.client;
        tokio::try_join!(
            client.batch_execute("BEGIN"),
            async {
                client
                    .execute(&self.ledger, &[&t.client, &t.n])
                    .await
                    .map(drop)
            },
            async {
                client
                    .execute(&self.account, &[&t.delta, &t.account])
                    .await
                    .map(drop)
            },
            async { client.query(&self.balance, &[&t.account]).await.map(drop) },
            async {
                client
                    .execute(&self.teller, &[&t.delta, &t.teller])
                    .await
                    .map(drop)
            },
            async {
                client
                    .execute(&self.branch, &[&t.delta, &t.branch])
                    .await
                    .map(drop)
            },
            async {
                let row: [&(dyn tokio_postgres::types::ToSql + Sync); 4] =
                    [&t.teller, &t.branch, &t.account, &t.delta];
                client.execute(&self.history, &row).await.map(drop)
            },
        )?;
        Ok(())
    }

    async fn commit(&self) -> Result<(), Error> {
        self.client.batch_execute("COMMIT").await
    }
}

/// Connects, and drives the connection in the background until the client is dropped.
///
/// # Errors
/// Nobody answers, or nobody of the wanted kind does.
pub async fn connect(server: &Config) -> Result<Client, Error> {
    let (client, connection) = server.connect(NoTls).await?;
    tokio::spawn(async move {
        if let Err(error) = connection.await {
            tracing::debug!(%error, "a client's connection broke");
        }
    });
    Ok(client)
}

/// Connects to the first server that answers as wanted, each within a time, as libpq tries them; nobody if none does.
///
/// A machine that hangs takes connections and says nothing, and one whose network was cut never ends them: the time is
/// for all of connecting, not for TCP's part alone.
pub async fn connect_any(all: &Config, within: Duration) -> Option<Client> {
    for server in each_server(all) {
        if let Ok(Ok(client)) = timeout(within, connect(&server)).await {
            return Some(client);
        }
    }
    None
}

/// The same connection string for one server at a time, as libpq tries them.
pub fn each_server(all: &Config) -> Vec<Config> {
    let places = all.get_hosts().iter().zip(all.get_ports());
    let one = |(host, port): (&Host, &u16)| {
        let mut one = Config::new();
        match host {
            Host::Tcp(name) => one.host(name),
            Host::Unix(path) => one.host_path(path),
        };
        one.port(*port)
            .user(all.get_user().unwrap_or_default())
            .dbname(all.get_dbname().unwrap_or_default())
            .target_session_attrs(all.get_target_session_attrs())
            .application_name(all.get_application_name().unwrap_or_default());
        if let Some(password) = all.get_password() {
            one.password(password);
        }
        one
    };
    places.map(one).collect()
}
