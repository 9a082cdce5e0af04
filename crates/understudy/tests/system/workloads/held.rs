//! What is under way when the active dies: prepared transactions, row locks that many hold, numbers
//! of a sequence, open transactions, temporary tables.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use parking_lot::Mutex;
use tokio::task::JoinHandle;
use tokio_postgres::Client;

use super::theatre::{Theatre, each};
use crate::stage::TIMEOUT;

/// Rows that two sessions lock together: more multixacts than the 2048 of a page.
const SHARED_ROWS: i64 = 3000;
/// Numbers of the sequence that are given before the kill at least.
const NUMBERS: usize = 300;

pub struct Held {
    /// Open transactions, which end with the server.
    sessions: Vec<Client>,
    /// Every number that a client was given.
    numbers: Arc<Mutex<BTreeSet<i64>>>,
    counting: JoinHandle<()>,
}

impl Held {
    pub async fn open(theatre: &Theatre) -> Result<Held> {
        let client = theatre.client().await?;
        client
            .batch_execute(
                "CREATE TABLE promised (name text PRIMARY KEY, n int);
                 INSERT INTO promised VALUES ('locked', 0), ('undone', 0);
                 CREATE TABLE shared (n bigint PRIMARY KEY, seen int NOT NULL DEFAULT 0);
                 CREATE TABLE open (n int);
                 CREATE SEQUENCE numbers; CREATE SEQUENCE cached CACHE 20",
            )
            .await?;
        let fill = format!("INSERT INTO shared SELECT generate_series(1, {SHARED_ROWS})");
        client.batch_execute(&fill).await?;
        // H7: two whose state is in files, and two that are in the log only.
        prepare(&client, "kept_early", "locked").await?;
        prepare(&client, "undone_early", "undone").await?;
        prepare(&client, "done", "").await?;
        each(&client, &["CHECKPOINT", "COMMIT PREPARED 'done'"]).await?;
        let mut sessions = vec![
            shares(theatre, "FOR KEY SHARE").await?,
            shares(theatre, "FOR SHARE").await?,
        ];
        // An update of no key, by a third, while others hold the row: a multixact with an update.
        let third = theatre.client().await?;
        third
            .batch_execute("CREATE TABLE mixed (n int PRIMARY KEY, seen int); INSERT INTO mixed SELECT g, 0 FROM generate_series(1, 500) g")
            .await?;
        let holder = theatre.client().await?;
        holder
            .batch_execute("BEGIN; SELECT count(*) FROM (SELECT 1 FROM mixed FOR KEY SHARE) x")
            .await?;
        third.batch_execute("UPDATE mixed SET seen = 1").await?;
        sessions.push(holder);
        client.batch_execute("CHECKPOINT").await?;
        prepare(&client, "kept_late", "").await?;
        prepare(&client, "undone_late", "").await?;
        sessions.push(open_transaction(theatre).await?);
        let (numbers, counting) = count(theatre).await?;
        Ok(Held {
            sessions,
            numbers,
            counting,
        })
    }

    /// Waits until clients were given enough numbers.
    pub async fn numbers_given(&self) -> Result<()> {
        let deadline = Instant::now() + TIMEOUT;
        while self.numbers.lock().len() < NUMBERS {
            ensure!(Instant::now() < deadline, "hardly any number is given");
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        Ok(())
    }

    /// Looks at what became of all that on the new active.
    pub async fn judge(self, theatre: &Theatre) -> Result<()> {
        // Its connection ended with its server; what it was given before is complete then.
        self.counting.await?;
        drop(self.sessions);
        let numbers = self.numbers.lock().clone();
        let client = theatre.client().await?;
        let line = async |sql: &str| -> Result<String> {
            let row = client.query_one(sql, &[]).await;
            Ok(row.with_context(|| sql.to_owned())?.get(0))
        };
        let prepared =
            line("SELECT string_agg(gid, ' ' ORDER BY gid) FROM pg_prepared_xacts").await?;
        ensure!(
            prepared == "kept_early kept_late undone_early undone_late",
            "prepared after the takeover: {prepared}"
        );
        let locked = client
            .batch_execute("SELECT 1 FROM promised WHERE name = 'locked' FOR UPDATE NOWAIT")
            .await;
        ensure!(locked.is_err(), "a prepared transaction lost its lock");
        let ends = [
            "COMMIT PREPARED 'kept_early'",
            "COMMIT PREPARED 'kept_late'",
            "ROLLBACK PREPARED 'undone_early'",
            "ROLLBACK PREPARED 'undone_late'",
        ];
        each(&client, &ends).await?;
        let kept = line("SELECT string_agg(name || n, ' ' ORDER BY name) FROM promised").await?;
        ensure!(
            kept == "done1 kept_early1 kept_late1 locked1 undone0",
            "{kept}"
        );

        let shared = "SELECT count(*) || ' ' || sum(seen) FROM shared";
        let held = line(shared).await?;
        ensure!(held == format!("{SHARED_ROWS} 0"), "{held}");
        client.batch_execute("UPDATE shared SET seen = 1").await?;
        let mixed =
            line("SELECT count(*) || ' ' || sum(seen) FROM (SELECT * FROM mixed FOR UPDATE) x")
                .await?;
        ensure!(
            mixed == "500 500",
            "rows that were shared and updated: {mixed}"
        );
        client
            .batch_execute("VACUUM (FREEZE) mixed, shared")
            .await?;
        let open = line("SELECT count(*)::text FROM open").await?;
        ensure!(open == "0", "{open} rows of a transaction that never ended");
        judge_numbers(&client, &numbers).await?;
        client
            .batch_execute("CREATE TEMP TABLE scratch AS SELECT 1 AS n; DROP TABLE scratch")
            .await?;
        Ok(())
    }
}

/// A transaction that adds a row, and locks another if that has a name, and is prepared.
async fn prepare(client: &Client, name: &str, locked: &str) -> Result<()> {
    let statements = format!(
        "BEGIN; INSERT INTO promised VALUES ('{name}', 1);
         UPDATE promised SET n = 1 WHERE name = '{locked}';
         PREPARE TRANSACTION '{name}'"
    );
    let done = client.batch_execute(&statements).await;
    done.with_context(|| format!("cannot prepare {name}"))
}

/// A session that holds a lock on every row of `shared`.
async fn shares(theatre: &Theatre, how: &str) -> Result<Client> {
    let client = theatre.client().await?;
    let lock = format!("BEGIN; SELECT count(*) FROM (SELECT 1 FROM shared {how}) x");
    client.batch_execute(&lock).await?;
    Ok(client)
}

/// A session within a transaction of a hundred nested ones, and with a temporary table.
async fn open_transaction(theatre: &Theatre) -> Result<Client> {
    let client = theatre.client().await?;
    client
        .batch_execute("CREATE TEMP TABLE scratch AS SELECT generate_series(1, 10000) AS n; BEGIN")
        .await?;
    for depth in 0..100 {
        let nest = format!("SAVEPOINT s{depth}; INSERT INTO open VALUES ({depth})");
        client.batch_execute(&nest).await?;
    }
    Ok(client)
}

/// A client that is given numbers until its server is gone; those of `cached` count as negative.
async fn count(theatre: &Theatre) -> Result<(Arc<Mutex<BTreeSet<i64>>>, JoinHandle<()>)> {
    let client = theatre.client().await?;
    let numbers = Arc::new(Mutex::new(BTreeSet::new()));
    let given = Arc::clone(&numbers);
    let counting = tokio::spawn(async move {
        let next = "SELECT nextval('numbers'), nextval('cached')";
        // A number counts once its transaction is known to be committed.
        while let Ok(row) = client.query_one(next, &[]).await {
            let (number, cached): (i64, i64) = (row.get(0), row.get(1));
            given.lock().extend([number, -cached]);
        }
    });
    Ok((numbers, counting))
}

/// No number is given twice, whatever the log knew of those that were given.
async fn judge_numbers(client: &Client, given: &BTreeSet<i64>) -> Result<()> {
    for (sequence, factor) in [("numbers", 1), ("cached", -1)] {
        let row = client
            .query_one("SELECT nextval($1::text::regclass)", &[&sequence])
            .await?;
        let next: i64 = row.get(0);
        ensure!(
            given.iter().all(|number| number * factor < next),
            "{sequence} goes back to {next}"
        );
    }
    Ok(())
}
