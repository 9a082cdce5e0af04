//! Read-only queries on standbys: that they answer right while everything moves, and what happens when
//! redo or vacuum would take away what they read.

use std::io::Write;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use cluster::clients::schema::Server;
use cluster::clients::session::connect;
use tokio::task::JoinHandle;
use tokio_postgres::error::SqlState;
use tokio_postgres::{Client, SimpleQueryMessage};

use crate::bases::{Repeated, checkpoint, gave_way_to_redo};
use crate::stage::{Stage, TIMEOUT};

/// Rows of the table whose answers are compared.
const ROWS: i64 = 3000;
/// Snapshots that the reader compares at least, in each of the rounds.
const SNAPSHOTS: u64 = 5;
const ROUNDS: usize = 2;
/// Ways to read the same rows: what is switched off, and the node that the plan must then have.
const SCANS: [(&str, &str); 4] = [
    (
        "enable_indexscan, enable_indexonlyscan, enable_bitmapscan",
        "Seq Scan",
    ),
    (
        "enable_seqscan, enable_indexonlyscan, enable_bitmapscan",
        "Index Scan",
    ),
    ("enable_seqscan, enable_bitmapscan", "Index Only Scan"),
    (
        "enable_seqscan, enable_indexscan, enable_indexonlyscan",
        "Bitmap Heap Scan",
    ),
];
/// The same answer whatever the order of the rows.
const ANSWER: &str = "SELECT count(*), sum(place), sum(hashtext(id || ':' || place)::bigint)::bigint \
                      FROM moving WHERE place > -1000000000";
/// Money changes places, rows go and come back, statistics of pages change: nothing of it may show.
const CHANGES: &str = "BEGIN;
    WITH two AS (SELECT (random() * 2900)::int + 1 AS a, (random() * 90)::int + 1 AS d)
      UPDATE moving SET place = place + CASE WHEN id = two.a THEN 7 ELSE -7 END
      FROM two WHERE id IN (two.a, two.a + two.d);
    WITH gone AS (DELETE FROM moving WHERE id % 97 = (random() * 96)::int RETURNING *)
      INSERT INTO kept SELECT * FROM gone;
    INSERT INTO moving SELECT * FROM kept;
    DELETE FROM kept;
    COMMIT";

#[tokio::test(flavor = "multi_thread")]
#[ignore = "system test: make test-system"]
async fn every_scan_gives_the_same_answer_while_the_base_moves() -> Result<()> {
    let mut stage = Stage::with_options("scans", &["north", "south"], |options| {
        // Pages leave the buffers all the time, and come back from the overlay or the base.
        let small = [("shared_buffers", "1MB"), ("max_connections", "40")];
        let small = small.map(|(name, value)| (name.to_owned(), value.to_owned()));
        options.parameters.extend(small);
    })
    .await?;
    let (active, standby) = active_and_standby(&mut stage).await?;
    let client = connect(&active.config()).await?;
    client
        .batch_execute(&format!(
            "CREATE TABLE moving (id int PRIMARY KEY, place int NOT NULL, filler text);
             CREATE TABLE kept (LIKE moving);
             INSERT INTO moving SELECT n, n, repeat('x', 200) FROM generate_series(1, {ROWS}) n;
             CREATE INDEX ON moving (place, id)"
        ))
        .await?;
    client.batch_execute("VACUUM ANALYZE moving").await?;
    let checkpoints = Repeated::start(active.clone(), checkpoint);
    let vacuums = Repeated::start(active.clone(), vacuum);
    for round in 0..ROUNDS {
        let changes = Repeated::start(active.clone(), change);
        stage.cluster.wait_follows("south", TIMEOUT).await?;
        let readers = [&active, &standby].map(|server| Repeated::start(server.clone(), compare));
        let mut compared = Vec::new();
        for reader in readers {
            compared.push(reader.stop(SNAPSHOTS).await?);
        }
        let changed = changes.stop(1).await?;
        stage.cluster.wait_follows("south", TIMEOUT).await?;
        let answers = (settled(&active).await?, settled(&standby).await?);
        println!("round {round}: {changed} changes, {compared:?} snapshots, {answers:?}");
        ensure!(answers.0 == answers.1, "round {round}: {answers:?}");
    }
    vacuums.stop(1).await?;
    checkpoints.stop(1).await?;
    stage.verify().await
}

/// Active and standby, of two nodes.
async fn active_and_standby(stage: &mut Stage) -> Result<(Server, Server)> {
    let active = stage.cluster.wait_active(TIMEOUT).await?;
    ensure!(active == "north", "{active} is active");
    let server = |name| stage.cluster.server(name);
    Ok((server("north")?, server("south")?))
}

async fn vacuum(client: Arc<Client>) -> Result<()> {
    client.batch_execute("VACUUM moving").await?;
    tokio::time::sleep(Duration::from_millis(300)).await;
    Ok(())
}

async fn change(client: Arc<Client>) -> Result<()> {
    client.batch_execute(CHANGES).await?;
    Ok(())
}

/// All scans in one snapshot: the same answer, and the one that never changes where it must not.
async fn compare(client: Arc<Client>) -> Result<()> {
    let compared = compare_in_transaction(&client).await;
    if compared.is_err() {
        // The error says what happened, also to the connection.
        drop(client.batch_execute("ROLLBACK").await);
    }
    compared
}

async fn compare_in_transaction(client: &Client) -> Result<()> {
    client
        .batch_execute("BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY")
        .await?;
    let mut answers = Vec::new();
    for (off, _) in SCANS {
        answers.push(answer(client, off).await?);
    }
    client.batch_execute("COMMIT").await?;
    ensure!(
        answers.iter().all(|answer| *answer == answers[0]),
        "scans in one snapshot differ: {answers:?}"
    );
    let sum: i64 = ROWS * (ROWS + 1) / 2;
    let invariant = format!("{ROWS} {sum} ");
    ensure!(answers[0].starts_with(&invariant), "{}", answers[0]);
    Ok(())
}

/// The answer, with these ways to scan switched off for it.
async fn answer(client: &Client, off: &str) -> Result<String> {
    let off = off.split(", ").map(|way| format!("SET LOCAL {way} = off;"));
    let off: String = off.collect();
    let on = "SET LOCAL enable_seqscan = on; SET LOCAL enable_indexscan = on; \
              SET LOCAL enable_indexonlyscan = on; SET LOCAL enable_bitmapscan = on;";
    client.batch_execute(&format!("{on}{off}")).await?;
    let row = client.query_one(ANSWER, &[]).await?;
    let numbers: [i64; 3] = [row.get(0), row.get(1), row.get(2)];
    Ok(numbers.map(|number| number.to_string()).join(" "))
}

/// The answer at a quiet point, of all scans, having looked that they are what they are called.
async fn settled(server: &Server) -> Result<Vec<String>> {
    let deadline = Instant::now() + TIMEOUT;
    loop {
        match settled_once(server).await {
            // Vacuum goes on, and redo with it.
            Err(error) if gave_way_to_redo(&error) && Instant::now() < deadline => {}
            other => return other,
        }
    }
}

async fn settled_once(server: &Server) -> Result<Vec<String>> {
    let client = &connect(&server.config()).await?;
    let mut answers = Vec::new();
    for (off, node) in SCANS {
        client.batch_execute("BEGIN READ ONLY").await?;
        answers.push(answer(client, off).await?);
        let plan = client.simple_query(&format!("EXPLAIN {ANSWER}")).await?;
        client.batch_execute("COMMIT").await?;
        let lines = plan.iter().filter_map(|message| match message {
            SimpleQueryMessage::Row(row) => row.get(0),
            _ => None,
        });
        let plan: String = lines.flat_map(|line| [line, "\n"]).collect();
        ensure!(plan.contains(node), "no {node}:\n{plan}");
    }
    Ok(answers)
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "system test: make test-system"]
async fn queries_give_way_to_redo_unless_the_active_keeps_their_rows() -> Result<()> {
    let mut stage = Stage::set("conflicts").await?;
    let (active, standby) = active_and_standby(&mut stage).await?;
    let client = connect(&active.config()).await?;
    client
        .batch_execute("CREATE TABLE read_long AS SELECT generate_series(1, 1000) AS n")
        .await?;

    // Without feedback: cancelled, in the words that PostgreSQL documents.
    stage.cluster.wait_follows("south", TIMEOUT).await?;
    let reading = Reading::start(&standby).await?;
    delete_and_vacuum(&client).await?;
    wait_until_vacuumed(&client).await?;
    let error = reading.cancelled().await?;
    ensure!(
        error.message() == "canceling statement due to conflict with recovery"
            && error.code() == &SqlState::T_R_SERIALIZATION_FAILURE
            && error
                .detail()
                .is_some_and(|why| why.contains("row versions")),
        "{error:?}"
    );
    ensure!(
        feedback_connections(&client).await?.is_empty(),
        "nobody asked for one"
    );

    // With it: the rows stay until the reader is done.
    stage.cluster.stop_node("south", TIMEOUT)?;
    append(&stage, "south", "[standby]\nfeedback = true\n")?;
    client
        .batch_execute("INSERT INTO read_long SELECT generate_series(1, 1000)")
        .await?;
    stage.cluster.start_node("south")?;
    stage.cluster.wait_follows("south", TIMEOUT).await?;
    wait_for_feedback(&client, &["south"]).await?;
    let reader = connect(&standby.config()).await?;
    reader
        .batch_execute("BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY")
        .await?;
    ensure!(count(&reader).await? == 1000, "before");
    // Its snapshot must have been reported, and so is everything younger.
    wait_until_held(&client, &reader).await?;
    let kept = delete_and_vacuum(&client).await?;
    ensure!(
        kept == 1000,
        "vacuum removed rows that are still read: {kept}"
    );
    stage.commits(100).await?;
    stage.cluster.wait_follows("south", TIMEOUT).await?;
    ensure!(count(&reader).await? == 1000, "after redo of the vacuum");
    reader.batch_execute("COMMIT").await?;
    wait_until_vacuumed(&client).await?;

    // It ends with the standby, and does not hold up a handover to it either.
    let killed = stage.cluster.kill_node("south");
    killed.context("it runs")?;
    wait_for_feedback(&client, &[]).await?;
    stage.cluster.start_node("south")?;
    stage.cluster.wait_follows("south", TIMEOUT).await?;
    wait_for_feedback(&client, &["south"]).await?;
    let moved = stage.clock.now();
    let config = stage.cluster.node("north")?.config.display().to_string();
    stage
        .cluster
        .run(&["failover", "--config", &config])
        .await?;
    stage.outage_after(moved).await?;
    stage.commits(100).await?;
    stage.verify().await
}

/// What a standby answers, asked again when redo was in the way.
async fn ask(standby: &Server, query: &str) -> Result<Option<String>> {
    let deadline = Instant::now() + TIMEOUT;
    loop {
        let asked = async {
            let client = connect(&standby.config()).await?;
            let row = client.query_opt(query, &[]).await?;
            anyhow::Ok(row.and_then(|row| row.get(0)))
        };
        match asked.await {
            Err(error) if gave_way_to_redo(&error) && Instant::now() < deadline => {}
            other => return other,
        }
    }
}

/// A query on a standby that reads for long.
struct Reading(JoinHandle<Result<(), tokio_postgres::Error>>);

impl Reading {
    async fn start(standby: &Server) -> Result<Reading> {
        let client = connect(&standby.config()).await?;
        let long = "SELECT count(*), pg_sleep(600) FROM read_long";
        let reading = tokio::spawn(async move { client.batch_execute(long).await });
        let waiting = "SELECT 'yes' FROM pg_stat_activity WHERE wait_event = 'PgSleep'";
        let deadline = Instant::now() + TIMEOUT;
        while !reading.is_finished() && ask(standby, waiting).await?.is_none() {
            ensure!(Instant::now() < deadline, "the query does not start");
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        Ok(Reading(reading))
    }

    async fn cancelled(self) -> Result<tokio_postgres::error::DbError> {
        let ended = tokio::time::timeout(TIMEOUT, self.0).await;
        match ended.context("the query goes on")?? {
            Ok(()) => bail!("the query was not cancelled"),
            Err(error) => error.as_db_error().cloned().context("no words"),
        }
    }
}

async fn count(client: &Client) -> Result<i64> {
    let row = client
        .query_one("SELECT count(*) FROM read_long", &[])
        .await?;
    Ok(row.get(0))
}

/// Deletes all rows and vacuums; how many are dead and still there.
async fn delete_and_vacuum(client: &Client) -> Result<i64> {
    client.batch_execute("DELETE FROM read_long").await?;
    dead_rows(client).await
}

async fn dead_rows(client: &Client) -> Result<i64> {
    client
        .batch_execute("CREATE EXTENSION IF NOT EXISTS pgstattuple")
        .await?;
    client.batch_execute("VACUUM read_long").await?;
    let dead = "SELECT dead_tuple_count FROM pgstattuple('read_long')";
    Ok(client.query_one(dead, &[]).await?.get(0))
}

async fn wait_until_vacuumed(client: &Client) -> Result<()> {
    let deadline = Instant::now() + TIMEOUT;
    while dead_rows(client).await? > 0 {
        ensure!(Instant::now() < deadline, "dead rows are kept for nobody");
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    Ok(())
}

/// Whom the active's PostgreSQL sees, with the positions that they reported.
async fn feedback_connections(client: &Client) -> Result<Vec<String>> {
    let seen = "SELECT application_name FROM pg_stat_replication
                WHERE state = 'streaming' AND backend_xmin IS NOT NULL AND replay_lsn > '0/0'
                ORDER BY 1";
    let rows = client.query(seen, &[]).await?;
    Ok(rows.iter().map(|row| row.get(0)).collect())
}

pub async fn wait_for_feedback(client: &Client, names: &[&str]) -> Result<()> {
    let deadline = Instant::now() + TIMEOUT;
    loop {
        let found = feedback_connections(client).await?;
        if found == names {
            return Ok(());
        }
        ensure!(Instant::now() < deadline, "{found:?}, not {names:?}");
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
}

/// Waits until the active keeps what the transaction of `reader` sees.
async fn wait_until_held(active: &Client, reader: &Client) -> Result<()> {
    let row = reader
        .query_one("SELECT pg_snapshot_xmin(pg_current_snapshot())::text", &[])
        .await?;
    let xmin: String = row.get(0);
    let held =
        format!("SELECT 1 FROM pg_stat_replication WHERE backend_xmin::text::bigint <= {xmin}");
    let deadline = Instant::now() + TIMEOUT;
    while active.query_opt(&held, &[]).await?.is_none() {
        ensure!(Instant::now() < deadline, "nothing is kept for {xmin}");
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    Ok(())
}

/// Appends to a node's configuration.
pub fn append(stage: &Stage, node: &str, text: &str) -> Result<()> {
    let config = &stage.cluster.node(node)?.config;
    let mut file = std::fs::OpenOptions::new().append(true).open(config)?;
    Ok(write!(file, "\n{text}")?)
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "system test: make test-system"]
async fn a_standby_grows_with_its_active() -> Result<()> {
    let mut stage = Stage::set("larger").await?;
    let (_, standby) = active_and_standby(&mut stage).await?;
    // So that the same node becomes the active again, with settings of its own that are larger.
    stage.cluster.stop_node("south", TIMEOUT)?;
    append(&stage, "south", "[tags]\nnofailover = true\n")?;
    stage.cluster.start_node("south")?;
    stage.cluster.wait_follows("south", TIMEOUT).await?;
    append(
        &stage,
        "north",
        "[postgres.parameters]\nmax_connections = 131\nmax_worker_processes = 9\nmax_wal_senders = 11\n\
         max_prepared_transactions = 5\nmax_locks_per_transaction = 70\n",
    )?;
    let killed = stage.clock.now();
    stage.cluster.kill_node("north").context("it runs")?;
    stage.cluster.start_node("north")?;
    stage.outage_after(killed).await?;
    stage.commits(50).await?;
    stage.cluster.wait_follows("south", TIMEOUT).await?;
    let settings = "SELECT string_agg(setting, ' ' ORDER BY name) FROM pg_settings WHERE name IN (
        'max_connections', 'max_worker_processes', 'max_wal_senders',
        'max_prepared_transactions', 'max_locks_per_transaction')";
    let found = ask(&standby, settings).await?;
    ensure!(found.as_deref() == Some("131 70 5 11 9"), "{found:?}");

    // It can take over, and the other follows with its own.
    let config = stage.cluster.node("south")?.config.clone();
    let text = std::fs::read_to_string(&config)?;
    std::fs::write(
        &config,
        text.replace("nofailover = true", "nofailover = false"),
    )?;
    stage.cluster.stop_node("south", TIMEOUT)?;
    stage.cluster.start_node("south")?;
    stage.cluster.wait_follows("south", TIMEOUT).await?;
    let (_, killed) = stage.kill_active().await?;
    stage.outage_after(killed).await?;
    stage.cluster.start_node("north")?;
    stage.cluster.wait_follows("north", TIMEOUT).await?;
    stage.commits(50).await?;
    stage.verify().await
}
