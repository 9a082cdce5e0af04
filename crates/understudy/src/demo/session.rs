//! One client's connection: the statements of the transaction, prepared and pipelined.
//!
//! Invariant: COMMIT is sent only after every earlier statement of the transaction succeeded. (A
//! COMMIT in a failed transaction is answered with "ROLLBACK", which a client could mistake.)

use tokio_postgres::{Client, Config, Error, NoTls, Statement};

/// What one transaction does: pgbench's TPC-B, and one row of the ledger.
#[derive(Debug, Clone, Copy)]
pub struct Transaction {
    /// Which client.
    pub client: i32,
    /// Its number for this client.
    pub n: i64,
    /// `pgbench_accounts.aid`.
    pub account: i32,
    /// `pgbench_tellers.tid`.
    pub teller: i32,
    /// `pgbench_branches.bid`.
    pub branch: i32,
    /// What is added to all three balances.
    pub delta: i32,
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

impl Session {
    /// Connects to the one of the hosts of `server` that accepts writes.
    ///
    /// # Errors
    /// None of them does, or the tables are missing.
    pub async fn open(server: &Config) -> Result<Session, Error> {
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

    /// Everything of a transaction but its COMMIT, sent at once and answered in order.
    ///
    /// # Errors
    /// A statement failed or the connection broke: the transaction is not committed.
    pub async fn prepare_commit(&self, t: &Transaction) -> Result<(), Error> {
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

    /// Commits what [`prepare_commit`](Session::prepare_commit) did.
    ///
    /// # Errors
    /// The answer did not come or was no: it may be committed or not.
    pub async fn commit(&self) -> Result<(), Error> {
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
