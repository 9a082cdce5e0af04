//! A database that goes back to a moment under load, and forth again: the nodes stay, and exchange the volume.

use std::collections::HashSet;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use cluster::clients::verify;
use dax::storage::ReplicaStatus;
use serde_json::Value;

use crate::backups::take_over;
use crate::branched::{Branch, KEEP, acknowledged, command, number};
use crate::operator::json;
use crate::past::registry;
use crate::slots::active;
use crate::stage::{Stage, TIMEOUT};

pub type Commits = HashSet<(i32, i64)>;

/// Runs a command that exchanges the volume, and prints what it says.
pub fn exchange(stage: &Stage, arguments: &[&str]) -> Result<Value> {
    let ran = command(stage, arguments)?;
    ensure!(ran.status.success(), "{arguments:?}: {ran:?}");
    let said = json(&ran)?;
    println!("{said}");
    ensure!(said["pause_ms"].is_u64(), "no node serves it: {said}");
    Ok(said)
}

pub async fn ledger(stage: &mut Stage) -> Result<Commits> {
    let client = active(stage).await?;
    Ok(verify::ledger(&client).await?.into_iter().collect())
}

pub fn has_all(rows: &Commits, known: &Commits, whose: &str) -> Result<()> {
    let missing = known.difference(rows).next();
    ensure!(missing.is_none(), "{missing:?} was acknowledged {whose}");
    Ok(())
}

async fn has_table(stage: &mut Stage) -> Result<bool> {
    let client = active(stage).await?;
    let found = "SELECT count(*) FROM pg_class WHERE relname = 'precious'";
    Ok(number(&client, found).await? == 1)
}

/// The branch that is the database now.
fn current(stage: &Stage) -> Result<Option<String>> {
    let listed = json(&command(stage, &["branch", "list", "--json"])?)?;
    let mut branches = listed.as_array().context("a list")?.iter();
    let current = branches.find(|one| one["current"] == true);
    Ok(current.and_then(|one| one["name"].as_str().map(str::to_owned)))
}

/// The volume that the database has left is still below it: a zone that lost its disk gets that as well.
pub async fn a_lost_disk_is_made_good(stage: &mut Stage) -> Result<()> {
    stage.cluster.kill_zone(1).context("zone 1 runs")?;
    std::fs::remove_dir_all(stage.cluster.options().dir.join("zone-1"))?;
    stage.commits(20).await?;
    stage.cluster.start_zone(1)?;
    let left = registry(stage).await?;
    let deadline = Instant::now() + TIMEOUT;
    loop {
        let status: Value = serde_json::from_str(&stage.cluster.ask("status").await?)?;
        let of_database: Vec<ReplicaStatus> = serde_json::from_value(status["replicas"].clone())?;
        let of_left = left.replicas();
        let is_whole = |one: &ReplicaStatus| one.up && !one.rebuilding && one.missed_blocks == 0;
        if of_database.iter().chain(&of_left).all(is_whole)
            && status["scrub"]["completed_unix_ms"].is_u64()
        {
            break;
        }
        ensure!(Instant::now() < deadline, "{status:#} {of_left:?}");
        tokio::time::sleep(Duration::from_millis(200)).await;
    }
    // From now on every quorum needs it.
    stage.cluster.kill_zone(2).context("zone 2 runs")?;
    take_over(stage, 1).await?;
    let client = active(stage).await?;
    ensure!(number(&client, "SELECT count(*) FROM pgbench_accounts").await? == 100_000);
    drop(client);
    stage.cluster.start_zone(2)
}

/// Another zone takes the place of one, in the database's volume and in those that it has left. Another one is away afterwards.
async fn a_zone_is_replaced(stage: &mut Stage, zone: usize, away: usize) -> Result<()> {
    let old = stage.cluster.zone_address(zone)?;
    let (_, new) = stage.new_zone().await?;
    stage.zone(&["replace", &old, &new]).await?;
    let listed: Value = serde_json::from_str(&stage.zone(&["list", "--json"]).await?)?;
    let others = listed["others"].as_array().context("volumes")?;
    ensure!(!others.is_empty(), "{listed:#}");
    for members in others.iter().chain([&listed]).map(|of| &of["members"]) {
        let members = members["members"].as_array().context("members")?;
        let has = |address: &str| members.iter().any(|member| member["address"] == address);
        ensure!(has(&new) && !has(&old), "{listed:#}");
    }
    stage.cluster.kill_zone(zone).context("the zone runs")?;
    let directory = stage.cluster.options().dir.join(format!("zone-{zone}"));
    std::fs::remove_dir_all(directory)?;
    // From now on every quorum needs the new one, for what is below as well.
    stage.cluster.kill_zone(away).context("the zone runs")?;
    take_over(stage, 1).await?;
    let client = active(stage).await?;
    ensure!(number(&client, "SELECT count(*) FROM pgbench_accounts").await? == 100_000);
    drop(client);
    stage.cluster.start_zone(away)
}

// hazard: MOVE-1, MOVE-5, ZONE-47
#[tokio::test(flavor = "multi_thread")]
#[ignore = "system test: make test-system"]
async fn a_dropped_table_comes_back_by_a_rewind_and_the_rewind_is_undone() -> Result<()> {
    let mut stage = Stage::with_options("rewound", &["north", "south"], |options| {
        options.past.push(KEEP.to_owned());
    })
    .await?;
    back_and_forth(&mut stage, true).await?;
    stage.end().await
}

/// On zones, one loses its disk in between.
pub async fn back_and_forth(stage: &mut Stage, on_zones: bool) -> Result<()> {
    let client = active(stage).await?;
    let make = "CREATE TABLE precious AS SELECT generate_series(1, 1000) AS number; CHECKPOINT";
    client.batch_execute(make).await?;
    stage.commits(100).await?;
    let before_drop = acknowledged(stage)?;
    let position = client.query_one("SELECT pg_current_wal_insert_lsn()::text", &[]);
    let position: String = position.await?.get(0);
    client.batch_execute("DROP TABLE precious").await?;
    stage.commits(100).await?;
    // A takeover, so that the database's epoch is above the one that the branch begins with.
    take_over(stage, 1).await?;

    let left_with = acknowledged(stage)?;
    let rewound = exchange(stage, &["rewind", "--json", "--to", &position])?;
    let at_return = acknowledged(stage)?;
    ensure!(has_table(stage).await?, "the table is not back");
    has_all(&ledger(stage).await?, &before_drop, "before the moment")?;
    let name = rewound["branch"].as_str().context("a name")?.to_owned();
    ensure!(current(stage)?.as_deref() == Some(name.as_str()));
    let again = command(stage, &["branch", "promote", &name])?;
    ensure!(again.status.code() == Some(4), "{again:?}");
    let dropped = command(stage, &["branch", "drop", &name])?;
    ensure!(dropped.status.code() == Some(4), "{dropped:?}");
    // It is a cluster as before: commits go on, and a standby takes over.
    stage.commits(100).await?;
    take_over(stage, 1).await?;
    ensure!(has_table(stage).await?);
    let since: Commits = acknowledged(stage)?
        .difference(&at_return)
        .copied()
        .collect();
    let rows = ledger(stage).await?;
    has_all(&rows, &before_drop, "before the moment")?;
    has_all(&rows, &since, "since the rewind")?;

    // A branch of the database that is a branch: three volumes above each other.
    let branch = Branch::create(stage, "above", "now").await?;
    let rows = branch.ledger().await?;
    has_all(&rows, &before_drop, "before the moment")?;
    has_all(&rows, &since, "since the rewind")?;
    let client = branch.session().await?;
    ensure!(number(&client, "SELECT count(*) FROM precious").await? == 1000);
    client
        .batch_execute("UPDATE precious SET number = -number")
        .await?;
    drop(client);
    branch.stop()?;
    let dropped = command(stage, &["branch", "drop", "above"])?;
    ensure!(dropped.status.success(), "{dropped:?}");

    if on_zones {
        a_lost_disk_is_made_good(stage).await?;
        a_zone_is_replaced(stage, 1, 2).await?;
    }

    let left = rewound["left"].as_str().context("a name")?.to_owned();
    exchange(stage, &["branch", "promote", "--json", &left])?;
    ensure!(!has_table(stage).await?, "the rewind is not undone");
    has_all(&ledger(stage).await?, &left_with, "before the rewind")?;
    stage.commits(50).await?;
    if on_zones {
        // The database is below the branch that it has left.
        a_zone_is_replaced(stage, 3, 4).await?;
    }

    exchange(stage, &["branch", "promote", "--json", &name])?;
    ensure!(has_table(stage).await?, "it is not the branch again");
    let rows = ledger(stage).await?;
    has_all(&rows, &before_drop, "before the moment")?;
    has_all(&rows, &since, "since the rewind")?;
    stage.commits(50).await?;
    Ok(())
}
