//! `DROP TABLE` under load, undone by a restore to the moment before it.

use std::collections::HashSet;
use std::path::Path;

use anyhow::{Result, ensure};
use cluster::clients::session::connect;
use cluster::clients::verify;
use cluster::elsewhere::open_directory;
use cluster::programs;

use crate::backups::{check_all, take_over};
use crate::repository::Archived;
use crate::slots::active;

const ROWS: i64 = 1000;

#[tokio::test(flavor = "multi_thread")]
#[ignore = "system test: make test-system"]
async fn a_dropped_table_is_restored_with_everything_that_was_acknowledged_before() -> Result<()> {
    is_undone("dropped", &programs::find(None)?).await
}

/// The same with the PostgreSQL in `bin`.
pub async fn is_undone(test: &str, bin: &Path) -> Result<()> {
    let mut archived = Archived::start(test, "15s", false, Some(bin)).await?;
    let make = format!("CREATE TABLE precious AS SELECT generate_series(1, {ROWS}) AS number");
    let client = active(&mut archived.stage).await?;
    client.batch_execute(&make).await?;
    archived.stage.commits(100).await?;
    take_over(&mut archived.stage, 1).await?;

    let history = archived.stage.history()?;
    let before: Vec<(i32, i64)> = history.commits().map(|one| (one.client, one.n)).collect();
    let client = active(&mut archived.stage).await?;
    let position = client.query_one("SELECT pg_current_wal_insert_lsn()::text", &[]);
    let position: String = position.await?.get(0);
    client.batch_execute("DROP TABLE precious").await?;
    archived.stage.commits(100).await?;
    let history = archived.end_load().await?;
    archived.kill_archiver().await?;

    let home = open_directory(archived.stage.path(), "restored")?;
    let restored = archived.restore(&home.join("before"), &position).await?;
    let client = connect(&restored.server.config()).await?;
    let rows = client.query_one("SELECT count(*) FROM precious", &[]);
    ensure!(rows.await?.get::<_, i64>(0) == ROWS);
    let rows: HashSet<(i32, i64)> = verify::ledger(&client).await?.into_iter().collect();
    let missing = before.iter().find(|one| !rows.contains(one));
    ensure!(missing.is_none(), "{missing:?} was acknowledged before");
    let later = history
        .commits()
        .filter(|one| !rows.contains(&(one.client, one.n)));
    ensure!(later.count() >= 90, "the restore went past {position}");
    drop(restored);

    let restored = archived.restore(&home.join("latest"), "latest").await?;
    check_all(&restored, &history).await?;
    let client = connect(&restored.server.config()).await?;
    let gone = client.query_one("SELECT to_regclass('precious') IS NULL", &[]);
    ensure!(gone.await?.get::<_, bool>(0), "the newest state lacks it");
    drop(restored);
    ensure!(archived.verify().await?.is_empty());
    archived.stage.end().await
}
