//! Replication slots go through takeovers: subscribers and readers of changes miss nothing, and get nothing that was lost.

use std::collections::BTreeSet;
use std::path::Path;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use cluster::clients::schema::Server;
use cluster::clients::session::connect;
use cluster::clients::verify::ledger;
use cluster::programs;
use cluster::stock::Stock;
use tokio::time::Instant;
use tokio_postgres::Client;
use tokio_postgres::error::SqlState;

use crate::backups::{take_over, wanted};
use crate::queries::{append, wait_for_feedback};
use crate::stage::{Stage, TIMEOUT, conninfo};
use crate::verbs::{roles, until};

/// Takeovers of each test, and those right behind one another; more of them by hand.
const TAKEOVERS: (&str, u32) = ("UNDERSTUDY_TEST_TAKEOVERS", 2);
const IN_A_ROW: (&str, u32) = ("UNDERSTUDY_TEST_IN_A_ROW", 1);

/// A row of the ledger: the client, and the number of its transaction.
pub type Row = (i32, i64);

pub async fn decoding(test: &str, bin: &Path) -> Result<Stage> {
    Stage::with_options(test, &["north", "south"], |options| {
        options.bin = bin.to_owned();
        let parameters = [
            ("wal_level", "logical"),
            ("checkpoint_timeout", "30s"),
            ("max_prepared_transactions", "5"),
        ];
        let parameters = parameters.map(|(name, value)| (name.to_owned(), value.to_owned()));
        options.parameters.extend(parameters);
    })
    .await
}

pub async fn active(stage: &mut Stage) -> Result<Client> {
    let active = stage.cluster.wait_active(TIMEOUT).await?;
    Ok(connect(&stage.cluster.server(&active)?.config()).await?)
}

/// Makes slots while no table is changed; who changes them goes on afterwards, if anybody does.
///
/// PostgreSQL 15 to 18 leave a transaction that changes tables out of a new slot's snapshot, if it begins and ends at the wrong
/// moments while the slot is made. Reading the slot fails then ("catalog is missing attributes", "could not map filenumber"), on
/// a server without Understudy as well.
pub async fn make(stage: &mut Stage, made: &[&str]) -> Result<Client> {
    let goes_on = stage.churn.is_some();
    stage.stop_churn().await;
    let client = active(stage).await?;
    for statement in made {
        client.batch_execute(statement).await?;
    }
    if goes_on {
        stage.start_churn();
    }
    Ok(client)
}

/// The names of the slots, with what they are.
async fn names(client: &Client) -> Result<Vec<String>> {
    let sql = "SELECT format('%s %s %s %s', slot_name, slot_type, plugin, two_phase) FROM pg_replication_slots \
               WHERE NOT temporary ORDER BY 1";
    let rows = client.query(sql, &[]).await?;
    Ok(rows.iter().map(|row| row.get(0)).collect())
}

/// How often a node has attached again for the slots, by its log.
fn attached_again(stage: &Stage) -> Result<usize> {
    let mut count = 0;
    for name in stage.cluster.names() {
        let log = std::fs::read_to_string(stage.path().join(format!("logs/{name}.log")))?;
        count += log
            .matches("attaching again, with the active's slots")
            .count();
    }
    Ok(count)
}

/// Rows of the ledger that a slot of `test_decoding` has, each time in the order of its client.
async fn consume(client: &Client, slot: &str) -> Result<Vec<Row>> {
    let mut found = Vec::new();
    for text in lines(client, slot).await? {
        if !text.starts_with("table public.understudy_ledger: INSERT:") {
            continue;
        }
        let value = |field: &str| {
            let (_, behind) = text.split_once(field)?;
            behind.split(' ').next()?.parse::<i64>().ok()
        };
        let client = value("client[integer]:").with_context(|| text.clone())?;
        let n = value("n[bigint]:").with_context(|| text.clone())?;
        found.push((client as i32, n));
    }
    for client in found.iter().map(|row| row.0).collect::<BTreeSet<_>>() {
        let of_client: Vec<i64> = found
            .iter()
            .filter(|row| row.0 == client)
            .map(|row| row.1)
            .collect();
        ensure!(
            of_client.is_sorted_by(|a, b| a < b),
            "client {client}: {of_client:?}"
        );
    }
    Ok(found)
}

// hazard: SL1
#[tokio::test(flavor = "multi_thread")]
#[ignore = "system test: make test-system"]
async fn a_subscription_and_a_reader_miss_nothing_over_takeovers() -> Result<()> {
    miss_nothing("slots", &programs::find(None)?).await
}

/// The test, with these programs of PostgreSQL.
pub async fn miss_nothing(test: &str, bin: &Path) -> Result<()> {
    let mut stage = decoding(test, bin).await?;
    let made = [
        "CREATE PUBLICATION ledger FOR TABLE understudy_ledger WITH (publish = 'insert')",
        "SELECT pg_create_physical_replication_slot('copy', true)",
        "SELECT pg_create_logical_replication_slot('prepared', 'test_decoding', false, true)",
        "SELECT pg_create_logical_replication_slot('reader', 'test_decoding')",
    ];
    // Copying a table has a slot of its own.
    stage.stop_churn().await;
    let publisher = make(&mut stage, &made).await?;
    let mut consumed: BTreeSet<Row> = ledger(&publisher).await?.into_iter().collect();
    let mut proxy = stage.cluster.start_proxy(&[]).await?;
    let subscriber = Subscriber::start(&stage, proxy.server()).await?;
    let takeovers = wanted(TAKEOVERS)?;
    let look = async || names(&publisher).await;
    let before = until("the copies end", look, |names| names.len() == 5).await?;
    stage.start_churn();
    for number in 0..takeovers {
        follow(&mut stage).await?;
        match number % 2 {
            0 => take_over(&mut stage, 1).await?,
            _ => freeze(&mut stage).await?,
        }
        let client = active(&mut stage).await?;
        let now = names(&client).await?;
        ensure!(now == before, "{now:?}, and {before:?} before");
        let more = consume(&client, "reader").await?;
        ensure!(!more.is_empty());
        consumed.extend(more);
    }
    ensure!(
        attached_again(&stage)? == 0,
        "the standbys' slots could follow"
    );
    // Before its standby has followed.
    take_over(&mut stage, wanted(IN_A_ROW)?).await?;
    let before_late = attached_again(&stage)?;
    // One that was made just now, and one that was dropped: no standby knows of it.
    let late = [
        "SELECT pg_drop_replication_slot('copy')",
        "SELECT pg_create_logical_replication_slot('late', 'test_decoding')",
    ];
    let client = make(&mut stage, &late).await?;
    let changed = names(&client).await?;
    take_over(&mut stage, 1).await?;
    let client = active(&mut stage).await?;
    ensure!(names(&client).await? == changed, "{changed:?}");
    ensure!(attached_again(&stage)? == before_late + 1);
    ensure!(!consume(&client, "late").await?.is_empty());

    let history = stage.load.take().context("no load")?.stop().await;
    stage.stop_churn().await;
    consumed.extend(consume(&client, "reader").await?);
    let all = ledger(&client).await?;
    ensure!(
        consumed.iter().copied().eq(all.iter().copied()),
        "the reader has other rows than the table"
    );
    subscriber.has(&all).await?;
    proxy.check_running()?;
    ensure!(
        history
            .commits()
            .all(|one| consumed.contains(&(one.client, one.n)))
    );
    subscriber.end().await?;
    drop(proxy);
    stage.end().await
}

/// The active hangs, another node takes over, and the active wakes up.
async fn freeze(stage: &mut Stage) -> Result<()> {
    let (old, other) = roles(stage).await?;
    let paused = stage.freeze_active(&old, &other).await?;
    stage.outage_after(paused).await?;
    stage.commits(50).await?;
    stage.cluster.wait_follows(&old, TIMEOUT).await
}

/// A server that subscribes to the ledger twice: at whoever is the active, and through a proxy.
struct Subscriber {
    stock: Stock,
    /// One for each subscription, in a database of its own.
    clients: Vec<Client>,
}

impl Subscriber {
    async fn start(stage: &Stage, proxy: &Server) -> Result<Subscriber> {
        let directory = stage.path().join("subscriber");
        let stock = Stock::start(&directory, &stage.cluster.options().bin, Vec::new()).await?;
        let servers = stage.cluster.names().map(|name| stage.cluster.server(name));
        let servers = servers.collect::<Result<Vec<_>>>()?;
        let mut clients = Vec::new();
        for (name, publisher) in [
            ("postgres", conninfo(&servers)),
            ("proxied", conninfo(std::slice::from_ref(proxy))),
        ] {
            let mut config = stock.server().config();
            if name != "postgres" {
                let client = connect(&config).await?;
                client
                    .batch_execute(&format!("CREATE DATABASE {name}"))
                    .await?;
                config.dbname(name);
            }
            let client = connect(&config).await?;
            // The table has no key there: what came twice would stay.
            let table = "CREATE TABLE understudy_ledger (client integer, n bigint)";
            client.batch_execute(table).await?;
            let subscription =
                format!("CREATE SUBSCRIPTION {name} CONNECTION '{publisher}' PUBLICATION ledger");
            client.batch_execute(&subscription).await?;
            until(
                "it has copied the table",
                async || ledger(&client).await,
                |rows| !rows.is_empty(),
            )
            .await?;
            clients.push(client);
        }
        Ok(Subscriber { stock, clients })
    }

    /// Waits until it has these rows, each once, by both ways.
    async fn has(&self, all: &[Row]) -> Result<()> {
        for client in &self.clients {
            until(
                "the subscriber has every row once",
                async || ledger(client).await,
                |rows| rows == all,
            )
            .await?;
        }
        Ok(())
    }

    async fn end(self) -> Result<()> {
        for (client, name) in self.clients.iter().zip(["postgres", "proxied"]) {
            client
                .batch_execute(&format!("DROP SUBSCRIPTION {name}"))
                .await?;
        }
        drop(self.stock);
        Ok(())
    }
}

/// Waits until the standby's slots are the active's.
pub async fn follow(stage: &mut Stage) -> Result<()> {
    let (active, standby) = roles(stage).await?;
    let (active, standby) = (
        stage.cluster.server(&active)?,
        stage.cluster.server(&standby)?,
    );
    let look = async || {
        let (active, standby) = (
            connect(&active.config()).await?,
            connect(&standby.config()).await?,
        );
        Ok(names(&active).await? == names(&standby).await?)
    };
    until("the standby has the slots", look, |same| *same).await?;
    Ok(())
}

/// Changes that a slot of `test_decoding` has, line by line.
async fn lines(client: &Client, slot: &str) -> Result<Vec<String>> {
    let sql = "SELECT data FROM pg_logical_slot_get_changes($1, NULL, NULL)";
    let deadline = Instant::now() + TIMEOUT;
    loop {
        match client.query(sql, &[&slot]).await {
            Ok(rows) => return Ok(rows.iter().map(|row| row.get(0)).collect()),
            // A new active moves it forward first, and nobody else can use it meanwhile.
            Err(error) if error.code() == Some(&SqlState::OBJECT_IN_USE) => {
                ensure!(Instant::now() < deadline, "{error}");
                tokio::time::sleep(Duration::from_millis(200)).await;
            }
            Err(error) => return Err(error.into()),
        }
    }
}

fn has(lines: &[String], what: &str) -> bool {
    lines.iter().any(|line| line.contains(what))
}

// hazard: SL2
#[tokio::test(flavor = "multi_thread")]
#[ignore = "system test: make test-system"]
async fn slots_go_through_planned_work_and_prepared_transactions_are_decoded_once() -> Result<()> {
    let mut stage = decoding("planned", &programs::find(None)?).await?;
    let made = [
        "CREATE TABLE kept (n integer)",
        "SELECT pg_create_logical_replication_slot('prepared', 'test_decoding', false, true)",
        "SELECT pg_create_logical_replication_slot('gone', 'test_decoding', true)",
        "SELECT pg_create_physical_replication_slot('copy', true)",
    ];
    let client = make(&mut stage, &made).await?;
    client
        .batch_execute("BEGIN; INSERT INTO kept VALUES (1); PREPARE TRANSACTION 'p1'")
        .await?;
    let before = lines(&client, "prepared").await?;
    ensure!(has(&before, "PREPARE TRANSACTION 'p1'"), "{before:?}");
    // So that what was read is read.
    client.batch_execute("CHECKPOINT").await?;
    take_over(&mut stage, 1).await?;
    let client = active(&mut stage).await?;
    client.batch_execute("COMMIT PREPARED 'p1'").await?;
    let after = lines(&client, "prepared").await?;
    ensure!(has(&after, "COMMIT PREPARED 'p1'"));
    ensure!(
        !has(&after, "PREPARE TRANSACTION 'p1'") && !has(&after, "table public.kept"),
        "twice"
    );
    // The slot of the session went with its server, and its name is free.
    let again = "SELECT pg_create_logical_replication_slot('gone', 'test_decoding')";
    let client = make(&mut stage, &[again]).await?;
    let wanted = names(&client).await?;

    let config = stage.cluster.node("north")?.config.display().to_string();
    stage
        .cluster
        .run(&["switchover", "--config", &config])
        .await?;
    let now = names(&active(&mut stage).await?).await?;
    ensure!(now == wanted, "{now:?}");
    let (serves, _) = roles(&mut stage).await?;
    let restart = ["restart", serves.as_str(), "--config", &config];
    stage.cluster.run(&restart).await?;
    let client = active(&mut stage).await?;
    let now = names(&client).await?;
    ensure!(now == wanted, "{now:?}");
    ensure!(has(
        &lines(&client, "gone").await?,
        "table public.understudy_ledger: INSERT:"
    ));
    stage.commits(50).await?;
    stage.end().await
}

// hazard: SL3
#[tokio::test(flavor = "multi_thread")]
#[ignore = "system test: make test-system"]
async fn a_cluster_that_subscribes_gets_each_change_once() -> Result<()> {
    let mut stage = Stage::set("subscribes").await?;
    let directory = stage.path().join("publisher");
    let bin = stage.cluster.options().bin.clone();
    let parameters = vec![("wal_level".to_owned(), "logical".to_owned())];
    let stock = Stock::start(&directory, &bin, parameters).await?;
    let publisher = connect(&stock.server().config()).await?;
    publisher
        .batch_execute("CREATE TABLE told (n integer); CREATE PUBLICATION told FOR TABLE told")
        .await?;
    let subscription = format!(
        "CREATE SUBSCRIPTION told CONNECTION 'host=127.0.0.1 port={} user=postgres dbname=postgres' PUBLICATION told",
        stock.server().port
    );
    let client = active(&mut stage).await?;
    client
        .batch_execute("CREATE TABLE told (n integer)")
        .await?;
    client.batch_execute(&subscription).await?;
    let config = stock.server().config();
    let tells = tokio::spawn(async move {
        let client = connect(&config).await?;
        for n in 0..3000 {
            client
                .execute("INSERT INTO told VALUES ($1)", &[&n])
                .await?;
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        anyhow::Ok(())
    });
    take_over(&mut stage, wanted(TAKEOVERS)?).await?;
    tells.await??;
    let client = active(&mut stage).await?;
    let look = async || {
        let row = client
            .query_one("SELECT count(*), count(DISTINCT n) FROM told", &[])
            .await?;
        Ok((row.get::<_, i64>(0), row.get::<_, i64>(1)))
    };
    until("it has every row once", look, |counts| {
        *counts == (3000, 3000)
    })
    .await?;
    client.batch_execute("DROP SUBSCRIPTION told").await?;
    drop((publisher, stock));
    stage.end().await
}

/// PostgreSQL 16 and later: a slot that was made on a standby goes on when that node takes over, and then as every slot of an
/// active.
pub async fn of_a_standby(test: &str, bin: &Path) -> Result<()> {
    let mut stage = decoding(test, bin).await?;
    let (active, standby) = roles(&mut stage).await?;
    stage.cluster.stop_node(&standby, TIMEOUT)?;
    append(&stage, &standby, "[standby]\nfeedback = true\n")?;
    stage.cluster.start_node(&standby)?;
    stage.cluster.wait_follows(&standby, TIMEOUT).await?;
    let publisher = connect(&stage.cluster.server(&active)?.config()).await?;
    wait_for_feedback(&publisher, &[standby.as_str()]).await?;
    stage.stop_churn().await;
    let reader = connect(&stage.cluster.server(&standby)?.config()).await?;
    let made = "SELECT pg_create_logical_replication_slot('mine', 'test_decoding')";
    let made = async {
        tokio::select! {
            // It waits for what the active logs of running transactions.
            made = reader.batch_execute(made) => made?,
            never = log_transactions(&publisher) => never?,
        }
        anyhow::Ok(())
    };
    tokio::time::timeout(TIMEOUT, made).await??;
    let before: BTreeSet<Row> = ledger(&reader).await?.into_iter().collect();
    stage.start_churn();
    stage.commits(100).await?;
    let mut consumed: BTreeSet<Row> = consume(&reader, "mine").await?.into_iter().collect();
    ensure!(!consumed.is_empty());
    for _ in 0..2 {
        take_over(&mut stage, 1).await?;
        let client = self::active(&mut stage).await?;
        let more = consume(&client, "mine").await?;
        ensure!(!more.is_empty());
        consumed.extend(more);
        follow(&mut stage).await?;
    }
    stage.load.take().context("no load")?.stop().await;
    let client = self::active(&mut stage).await?;
    consumed.extend(consume(&client, "mine").await?);
    let missing: Vec<Row> = ledger(&client)
        .await?
        .into_iter()
        .filter(|row| !consumed.contains(row) && !before.contains(row))
        .collect();
    ensure!(missing.is_empty(), "{missing:?}");
    stage.end().await
}

async fn log_transactions(publisher: &Client) -> Result<()> {
    loop {
        publisher
            .batch_execute("SELECT pg_log_standby_snapshot()")
            .await?;
        tokio::time::sleep(Duration::from_millis(200)).await;
    }
}
