//! A branch that has become the database is filled under load: what it was made of goes, and everything else stays.

use anyhow::{Context, Result, ensure};

use crate::backups::take_over;
use crate::branched::{KEEP, acknowledged, command, number};
use crate::operator::json;
use crate::rewound::{Commits, a_lost_disk_is_made_good, exchange, has_all, ledger};
use crate::slots::active;
use crate::stage::Stage;

/// Takes the database back to now, so that it goes on in another volume; the name of that branch.
async fn rewind(stage: &mut Stage) -> Result<String> {
    let client = active(stage).await?;
    let position = client.query_one("SELECT pg_current_wal_insert_lsn()::text", &[]);
    let position: String = position.await?.get(0);
    drop(client);
    stage.commits(20).await?;
    let rewound = exchange(stage, &["rewind", "--json", "--to", &position])?;
    let name = rewound["branch"].as_str().context("a name")?;
    Ok(name.to_owned())
}

// hazard: LAYER-13, MOVE-7
#[tokio::test(flavor = "multi_thread")]
#[ignore = "system test: make test-system"]
async fn a_branch_is_filled_under_load_and_what_it_was_made_of_is_dropped() -> Result<()> {
    let mut stage = Stage::with_options("filled", &["north", "south"], |options| {
        options.past.push(KEEP.to_owned());
    })
    .await?;
    fill_and_drop(&mut stage, true).await?;
    stage.end().await
}

/// The same on zones and on Apache Cassandra.
pub async fn fill_and_drop(stage: &mut Stage, has_zones: bool) -> Result<()> {
    stage.commits(100).await?;
    let first = acknowledged(stage)?;
    let below = rewind(stage).await?;
    stage.commits(50).await?;
    let client = active(stage).await?;
    let make = "CREATE TABLE precious AS SELECT generate_series(1, 1000) AS number; CHECKPOINT";
    client.batch_execute(make).await?;
    drop(client);
    let name = rewind(stage).await?;
    let at_return = acknowledged(stage)?;
    // The database is in the third volume, which lies over the second, and that over the first.
    let client = active(stage).await?;
    for change in [
        "UPDATE pgbench_accounts SET filler = 'own' WHERE aid <= 1000",
        "VACUUM FULL pgbench_tellers",
    ] {
        client.batch_execute(change).await?;
    }
    drop(client);
    let refused = command(stage, &["branch", "drop", &below])?;
    ensure!(!refused.status.success(), "{refused:?}");
    stage.commits(20).await?;

    let filled = command(stage, &["branch", "fill", &name, "--json"])?;
    ensure!(filled.status.success(), "{filled:?}");
    println!("{}", json(&filled)?);
    let again = command(stage, &["branch", "fill", &name])?;
    ensure!(again.status.success(), "{again:?}");
    let dropped = command(stage, &["branch", "drop", &below])?;
    ensure!(dropped.status.success(), "{dropped:?}");

    stage.commits(50).await?;
    // Whoever starts finds the database without the volume that was in between.
    take_over(stage, 1).await?;
    stage.commits(50).await?;
    if has_zones {
        a_lost_disk_is_made_good(stage).await?;
    }
    stage.commits(50).await?;
    let client = active(stage).await?;
    ensure!(number(&client, "SELECT count(*) FROM precious").await? == 1000);
    let own = "SELECT count(*) FROM pgbench_accounts WHERE filler LIKE 'own%'";
    ensure!(number(&client, own).await? == 1000);
    client.batch_execute("CREATE EXTENSION amcheck").await?;
    let checked = "SELECT count(*) FROM pg_class c JOIN pg_index i ON i.indexrelid = c.oid JOIN pg_am a ON a.oid = c.relam, \
        LATERAL bt_index_check(c.oid, true) WHERE a.amname = 'btree' AND (c.oid < 16384 OR c.relname LIKE 'pgbench%')";
    ensure!(number(&client, checked).await? > 50);
    drop(client);
    let known = acknowledged(stage)?;
    let since: Commits = known.difference(&at_return).copied().collect();
    let rows = ledger(stage).await?;
    has_all(&rows, &first, "before the first moment")?;
    has_all(&rows, &since, "since the second moment")
}
