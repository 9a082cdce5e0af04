//! A database that serves from a repository while it is copied into the zones.

use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result, ensure};
use cluster::clients::schema::Server;
use cluster::ports;
use coordination::records::{Filling, Record};
use dax::client::Client;
use node::config::Config;

use crate::backups::take_over;
use crate::branched::{acknowledged, command, number, serve};
use crate::family::session;
use crate::operator::{json, understudy};
use crate::past::registry;
use crate::repository::Archived;
use crate::slots::active;
use crate::stage::TIMEOUT;
use crate::verbs::until;

/// Pages of a table that is large enough for the copy to be interrupted.
const FILLER: &str = "CREATE TABLE filler AS SELECT n, md5(n::text) || repeat(md5((n + 1)::text), 30) AS pad \
    FROM generate_series(1, 20000) AS n; CREATE INDEX ON filler (n)";
const SUM: &str = "SELECT sum(hashtext(pad))::bigint FROM filler";

/// A table is dropped. A branch has it back from the repository at once, whatever is killed while it is filled, and needs the
/// repository no more when that is done. Then the database itself goes back.
// hazard: FILL-1, FILL-2, FILL-3
#[tokio::test(flavor = "multi_thread")]
#[ignore = "system test: make test-system"]
async fn a_database_serves_from_a_repository_until_it_is_in_the_zones() -> Result<()> {
    let mut archived = Archived::start("refilled", "1h", false, None).await?;
    let repository = archived.directory().context("a directory")?.to_owned();
    let place = repository.display().to_string();
    let client = active(&mut archived.stage).await?;
    for statement in FILLER.split("; ") {
        client.batch_execute(statement).await?;
    }
    client
        .batch_execute("CREATE TABLE precious AS SELECT generate_series(1, 1000) AS number")
        .await?;
    let sum = number(&client, SUM).await?;
    client.batch_execute("CHECKPOINT").await?;
    // An image that has the tables.
    archived.kill_archiver().await?;
    archived.archive_every("5s")?;
    archived.stage.commits(100).await?;
    archived.has_images(2).await?;
    let known = acknowledged(&archived.stage)?;
    let position = client.query_one("SELECT pg_current_wal_insert_lsn()::text", &[]);
    let position: String = position.await?.get(0);
    client.batch_execute("DROP TABLE precious, filler").await?;
    archived.stage.commits(50).await?;
    archived.has_log(&position).await?;
    archived.kill_archiver().await?;

    let directory = archived.stage.path().join("back");
    let (text, port) = (directory.display().to_string(), ports::free()?);
    let number_of_port = port.to_string();
    let create = [
        "branch",
        "create",
        "back",
        "--json",
        "--at",
        &position,
        "--repository",
        &place,
        "--directory",
        &text,
        "--port",
        &number_of_port,
    ];
    println!("{}", json(&command(&archived.stage, &create)?)?);
    let name = archived.stage.cluster.wait_active(TIMEOUT).await?;
    let server = Server {
        port,
        ..archived.stage.cluster.server(&name)?
    };
    let config = directory.join("node.toml");
    let mut node = serve(&directory)?;
    let client = session(&server).await?;
    ensure!(number(&client, "SELECT count(*) FROM precious").await? == 1000);
    for change in [
        "UPDATE precious SET number = -number",
        "DELETE FROM filler WHERE n > 19000",
        "VACUUM filler",
    ] {
        client.batch_execute(change).await?;
    }
    let elsewhere = directory.join("child");
    let elsewhere = elsewhere.to_str().context("a path is text")?;
    let busy = understudy(
        &["branch", "create", "child", "--directory", elsewhere],
        &config,
    )?;
    ensure!(!busy.status.success(), "{busy:?}");
    // In the middle of the copy.
    node.kill_all();
    drop(client);
    let mount = directory.join("node/pgdata");
    let _ = Command::new("fusermount3")
        .args(["-u", "-z"])
        .arg(mount)
        .output();
    let mut node = serve(&directory)?;
    let client = session(&server).await?;
    let left = "SELECT count(*) FROM precious WHERE number < 0";
    ensure!(number(&client, left).await? == 1000);
    let filled = until(
        "everything is in the zones",
        async || is_filled(&config).await,
        |is_filled| *is_filled,
    );
    filled.await?;
    drop(client);
    ensure!(node.terminate(TIMEOUT));

    // Nobody needs the repository any more.
    let away = repository.with_extension("away");
    std::fs::rename(&repository, &away)?;
    let mut node = serve(&directory)?;
    let client = session(&server).await?;
    ensure!(number(&client, left).await? == 1000);
    ensure!(number(&client, "SELECT count(*) FROM filler").await? == 19000);
    let rows: std::collections::HashSet<_> = cluster::clients::verify::ledger(&client)
        .await?
        .into_iter()
        .collect();
    let missing = known.iter().find(|one| !rows.contains(one));
    ensure!(missing.is_none(), "{missing:?} was acknowledged before");
    client.batch_execute("CREATE EXTENSION amcheck").await?;
    let checked = "SELECT count(bt_index_check(c.oid, true)) FROM pg_class c JOIN pg_index i ON i.indexrelid = c.oid \
        JOIN pg_am a ON a.oid = c.relam WHERE a.amname = 'btree' AND c.relpersistence = 'p'";
    ensure!(number(&client, checked).await? > 50);
    drop(client);
    ensure!(node.terminate(TIMEOUT));
    std::fs::rename(&away, &repository)?;
    let dropped = command(&archived.stage, &["branch", "drop", "back"])?;
    ensure!(dropped.status.success(), "{dropped:?}");
    let storage = registry(&archived.stage).await?;
    let (_, usage) = storage.usage().await?.remove(0);
    ensure!(usage.relatives.is_empty(), "{usage:?}");

    let rewind = [
        "rewind",
        "--json",
        "--to",
        &position,
        "--repository",
        &place,
    ];
    println!("{}", json(&command(&archived.stage, &rewind)?)?);
    let client = active(&mut archived.stage).await?;
    ensure!(number(&client, "SELECT count(*) FROM precious").await? == 1000);
    archived.stage.commits(50).await?;
    // The next active goes on with the copy.
    take_over(&mut archived.stage, 1).await?;
    let client = active(&mut archived.stage).await?;
    ensure!(number(&client, SUM).await? == sum);
    archived.stage.end().await
}

/// True if the volume of this configuration needs no repository any more.
async fn is_filled(config: &Path) -> Result<bool> {
    let config = Config::load(config)?;
    let storage = Client::connect(config.cluster.client("test")?).await?;
    let filling = Filling::load(storage.as_ref()).await?;
    Ok(filling.context("it was filled")?.done)
}
