//! The files in which PostgreSQL keeps the fate of transactions, past the end of a segment and with the
//! old segments removed. The cluster begins shortly before those ends, as if it had run for long.

use std::os::unix::fs::MetadataExt;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result, ensure};
use cluster::clients::session::connect;
use cluster::clients::verify;
use cluster::scratch::Scratch;
use cluster::stock::Stock;
use cluster::{Cluster, Options, programs};
use tokio_postgres::Client;

use crate::stage::{TIMEOUT, program};

/// Bytes of a segment: 32 pages.
const SEGMENT_BYTES: u64 = 32 * 8192;
/// A segment holds so many transactions, multixacts, members of such: 1,048,576, 65,536 and 52,352.
const BEGIN_AT: [&str; 6] = ["-x", "1048000", "-m", "65000,1", "-O", "52000"];
/// Where they are, and what follows.
const DIRECTORIES: [&str; 3] = ["pg_xact", "pg_multixact/offsets", "pg_multixact/members"];
/// Multixacts of two members.
const MULTIXACTS: u32 = 2000;
const QUESTION: &str = "SELECT (SELECT count(*) || ' ' || sum(n) FROM many) || ' '
     || (SELECT count(*) || ' ' || sum(n) FROM nested) || ' ' || (SELECT count(*) || ' ' || sum(seen) FROM shared)";

// hazard: PAGE-5
#[tokio::test(flavor = "multi_thread")]
#[ignore = "system test: make test-system"]
async fn transactions_go_on_in_new_segments_and_old_ones_are_removed() -> Result<()> {
    let scratch = Scratch::new("transactions")?;
    let bin = programs::find(None)?;
    let stock = Stock::start(&scratch.path().join("stock"), &bin, Vec::new()).await?;
    let data = stock.data();
    drop(stock);
    age(&bin, &data)?;
    let mut cluster = import(&scratch, &bin, &data).await?;
    let client = connect(&cluster.server("north")?.config()).await?;
    spend(&client).await?;
    let holder = share(&cluster, &client).await?;
    client.batch_execute("CHECKPOINT").await?;
    for directory in DIRECTORIES {
        ensure!(has(&cluster, "north", directory, "0001")?, "{directory}");
    }
    same(&mut cluster).await?;
    drop(holder);

    // Everything is frozen: nobody needs the first segments any more.
    freeze(&cluster).await?;
    client
        .batch_execute("INSERT INTO many SELECT generate_series(1, 10)")
        .await?;
    same(&mut cluster).await?;
    for directory in DIRECTORIES {
        for node in ["north", "south"] {
            let still = has(&cluster, node, directory, "0000")?;
            ensure!(!still, "{directory}/0000 is still there on {node}");
        }
    }
    let said = ask(&cluster, "north").await?;
    cluster.kill_node("north").context("it runs")?;
    ensure!(cluster.wait_active(TIMEOUT).await? == "south");
    let heard = ask(&cluster, "south").await?;
    ensure!(said == heard, "after the takeover {heard}, not {said}");
    for directory in DIRECTORIES {
        let back = has(&cluster, "south", directory, "0000")?;
        ensure!(!back, "{directory}/0000 is back");
    }
    let client = connect(&cluster.server("south")?.config()).await?;
    for statement in ["UPDATE shared SET seen = 1", "VACUUM shared", "CHECKPOINT"] {
        client.batch_execute(statement).await?;
    }
    let check = verify::amcheck(&bin, &cluster.server("south")?).await?;
    ensure!(check.passed, "{check:?}");
    cluster.start_node("north")?;
    cluster.wait_follows("north", TIMEOUT).await?;
    ensure!(ask(&cluster, "north").await? == ask(&cluster, "south").await?);
    let found = cluster.unexpected_log_lines(|_, _| false);
    ensure!(found.is_empty(), "{}", found.join("\n"));
    cluster.shutdown();
    scratch.succeed()
}

/// Brings a stopped cluster close to the ends of the first segments.
fn age(bin: &Path, data: &Path) -> Result<()> {
    let owner = std::fs::metadata(data)?;
    let output = Command::new(bin.join("pg_resetwal"))
        .args(BEGIN_AT)
        .arg(data)
        .current_dir(data)
        .uid(owner.uid())
        .gid(owner.gid())
        .output()?;
    ensure!(output.status.success(), "{output:?}");
    for directory in DIRECTORIES {
        let first = data.join(directory).join("0000");
        let file = std::fs::OpenOptions::new().write(true).open(&first);
        let file = file.with_context(|| first.display().to_string())?;
        file.set_len(SEGMENT_BYTES)?;
    }
    Ok(())
}

/// A cluster of two nodes on a copy of `data`.
async fn import(scratch: &Scratch, bin: &Path, data: &Path) -> Result<Cluster> {
    let mut options = Options::new(scratch.path(), bin, program());
    options.heartbeat = "wide".into();
    options.parameters.push(("autovacuum".into(), "off".into()));
    let mut cluster = Cluster::create(options)?;
    for zone in 1..=3 {
        cluster.start_zone(zone)?;
    }
    let config = cluster.node("north")?.config.display().to_string();
    let data = data.display().to_string();
    cluster
        .run(&["init", "--config", &config, "--import", &data])
        .await?;
    cluster.start_node("north")?;
    cluster.wait_active(TIMEOUT).await?;
    cluster.start_node("south")?;
    cluster.wait_follows("south", TIMEOUT).await?;
    Ok(cluster)
}

/// Transactions, and nested ones, into the second segment.
async fn spend(client: &Client) -> Result<()> {
    let statements = [
        "CREATE TABLE many (n int)",
        "CREATE TABLE nested (n int)",
        "SET synchronous_commit = off",
        "DO $$ BEGIN FOR i IN 1..1000 LOOP INSERT INTO many VALUES (i); COMMIT; END LOOP; END $$",
        "DO $$ BEGIN FOR i IN 1..3000 LOOP
             BEGIN
                 INSERT INTO nested VALUES (i);
                 IF i % 4 = 0 THEN RAISE EXCEPTION 'undo'; END IF;
             EXCEPTION WHEN raise_exception THEN NULL;
             END;
         END LOOP; END $$",
        "SET synchronous_commit = on",
    ];
    for statement in statements {
        let done = client.batch_execute(statement).await;
        done.with_context(|| statement.to_owned())?;
    }
    Ok(())
}

/// One session that holds a row, and many transactions that hold it as well, one after the other: as many
/// multixacts. Returns the first.
async fn share(cluster: &Cluster, client: &Client) -> Result<Client> {
    client
        .batch_execute("CREATE TABLE shared AS SELECT n, 0 AS seen FROM generate_series(1, 10) n")
        .await?;
    let holder = connect(&cluster.server("north")?.config()).await?;
    holder
        .batch_execute("BEGIN; SELECT * FROM shared FOR KEY SHARE")
        .await?;
    let others = format!(
        "DO $$ BEGIN FOR i IN 1..{MULTIXACTS} LOOP
             PERFORM n FROM shared WHERE n = 1 FOR SHARE;
             COMMIT;
         END LOOP; END $$"
    );
    client.batch_execute("SET synchronous_commit = off").await?;
    client.batch_execute(&others).await?;
    client.batch_execute("SET synchronous_commit = on").await?;
    Ok(holder)
}

/// Freezes every database, so that the oldest segments go.
async fn freeze(cluster: &Cluster) -> Result<()> {
    let mut server = cluster.server("north")?;
    let client = connect(&server.config()).await?;
    client
        .batch_execute("UPDATE pg_database SET datallowconn = true")
        .await?;
    for database in ["template0", "template1", "postgres"] {
        server.database = database.into();
        let client = connect(&server.config()).await?;
        client.batch_execute("VACUUM (FREEZE)").await?;
    }
    client.batch_execute("CHECKPOINT").await?;
    Ok(())
}

/// True if a node's mount has a segment.
fn has(cluster: &Cluster, node: &str, directory: &str, segment: &str) -> Result<bool> {
    let mount = cluster.node(node)?.data.join("pgdata");
    Ok(mount.join(directory).join(segment).try_exists()?)
}

async fn ask(cluster: &Cluster, node: &str) -> Result<String> {
    let client = connect(&cluster.server(node)?.config()).await?;
    Ok(client.query_one(QUESTION, &[]).await?.get(0))
}

/// The standby, once it has replayed all, says what the active says.
async fn same(cluster: &mut Cluster) -> Result<()> {
    cluster.wait_follows("south", TIMEOUT).await?;
    let (said, heard) = (ask(cluster, "north").await?, ask(cluster, "south").await?);
    ensure!(said == heard, "south says {heard}, not {said}");
    Ok(())
}
