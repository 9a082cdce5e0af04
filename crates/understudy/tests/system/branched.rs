//! Branches under load: what they have, what they cost, and that neither side sees anything of the other.

use std::collections::HashSet;
use std::path::PathBuf;
use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use cluster::clients::schema::Server;
use cluster::clients::session::connect;
use cluster::clients::verify;
use cluster::ports;
use cluster::process::Process;
use serde_json::Value;
use tokio_postgres::Client;
use volume::past::Pin;

use crate::backups::take_over;
use crate::operator::{json, understudy};
use crate::past::registry;
use crate::slots::active;
use crate::stage::{Stage, TIMEOUT, program};

pub const KEEP: &str = "keep = [\"all for 1h\"]";

/// A branch that is served.
pub struct Branch {
    name: &'static str,
    made: Value,
    server: Server,
    node: Process,
}

/// Output of a command on this cluster's branches.
pub fn command(stage: &Stage, arguments: &[&str]) -> Result<std::process::Output> {
    let secret = stage.cluster.options().dir.join("zones.secret");
    let secret = secret.display().to_string();
    let arguments = match arguments[1] {
        "list" => arguments.to_vec(),
        _ => [arguments, &["--secret-file", &secret]].concat(),
    };
    understudy(&arguments, &stage.cluster.node("north")?.config)
}

impl Branch {
    /// Makes a branch at a moment, and serves it.
    pub async fn create(stage: &mut Stage, name: &'static str, at: &str) -> Result<Branch> {
        let directory = stage.path().join(name);
        let place = directory.display().to_string();
        let port = ports::free()?;
        let arguments = [
            "branch",
            "create",
            name,
            "--json",
            "--at",
            at,
            "--directory",
            &place,
            "--port",
            &port.to_string(),
        ];
        let made = json(&command(stage, &arguments)?)?;
        println!("{made}");
        let active = stage.cluster.wait_active(TIMEOUT).await?;
        let server = Server {
            port,
            ..stage.cluster.server(&active)?
        };
        let branch = Branch {
            name,
            made,
            server,
            node: serve(&directory)?,
        };
        branch.session().await?;
        Ok(branch)
    }

    /// A session, as soon as it is served.
    pub async fn session(&self) -> Result<Client> {
        let deadline = Instant::now() + TIMEOUT;
        loop {
            match connect(&self.server.config()).await {
                Ok(client) => return Ok(client),
                Err(error) if Instant::now() > deadline => {
                    let log = std::fs::read_to_string(self.node.log())?;
                    return Err(error)
                        .with_context(|| format!("{} does not serve: {log}", self.name));
                }
                Err(_) => tokio::time::sleep(Duration::from_millis(200)).await,
            }
        }
    }

    pub async fn ledger(&self) -> Result<HashSet<(i32, i64)>> {
        let rows = verify::ledger(&self.session().await?).await?;
        Ok(rows.into_iter().collect())
    }

    /// Ends its node.
    pub fn stop(mut self) -> Result<()> {
        ensure!(self.node.terminate(TIMEOUT), "{} does not end", self.name);
        Ok(())
    }
}

pub fn serve(directory: &PathBuf) -> Result<Process> {
    let mut serve = Command::new(program());
    serve
        .args(["branch", "run", "--until-stdin-closes", "--directory"])
        .arg(directory);
    Process::spawn("branch", serve, &directory.join("agent.log"))
}

/// Commits that were acknowledged so far.
pub fn acknowledged(stage: &Stage) -> Result<HashSet<(i32, i64)>> {
    let history = stage.history()?;
    Ok(history.commits().map(|one| (one.client, one.n)).collect())
}

/// Names of the branches.
pub fn names(stage: &Stage) -> Result<Vec<String>> {
    let listed = json(&command(stage, &["branch", "list", "--json"])?)?;
    let listed = listed.as_array().context("a list")?.iter();
    Ok(listed
        .filter_map(|one| one["name"].as_str().map(str::to_owned))
        .collect())
}

pub async fn number(client: &Client, sql: &str) -> Result<i64> {
    Ok(client.query_one(sql, &[]).await?.get(0))
}

// hazard: LAYER-2
#[tokio::test(flavor = "multi_thread")]
#[ignore = "system test: make test-system"]
async fn a_branch_has_all_that_was_acknowledged_and_goes_its_own_way() -> Result<()> {
    let mut stage = Stage::with_options("branched", &["north", "south"], |options| {
        options.past.push(KEEP.to_owned());
    })
    .await?;
    go_their_own_ways(&mut stage).await?;
    stage.verify().await
}

pub async fn go_their_own_ways(stage: &mut Stage) -> Result<()> {
    let client = active(stage).await?;
    client
        .batch_execute(
            "CREATE TABLE precious AS SELECT generate_series(1, 1000) AS number; CHECKPOINT",
        )
        .await?;
    stage.commits(100).await?;
    let before_drop = acknowledged(stage)?;
    let position = client.query_one("SELECT pg_current_wal_insert_lsn()::text", &[]);
    let position: String = position.await?.get(0);
    let time = client.query_one(
        "SELECT to_char(clock_timestamp() AT TIME ZONE 'UTC', 'YYYY-MM-DD HH24:MI:SS.US')",
        &[],
    );
    let time: String = time.await?.get(0);
    client.batch_execute("DROP TABLE precious").await?;
    stage.commits(50).await?;

    let known = acknowledged(stage)?;
    let now = Branch::create(stage, "now", "now").await?;
    let rows = now.ledger().await?;
    let missing = known.iter().find(|one| !rows.contains(one));
    ensure!(missing.is_none(), "{missing:?} was acknowledged before");
    let branch = now.session().await?;
    ensure!(
        number(
            &branch,
            "SELECT count(*) FROM pg_class WHERE relname = 'precious'"
        )
        .await?
            == 0
    );
    branch
        .batch_execute("CREATE TABLE own (n int); INSERT INTO own VALUES (1); DELETE FROM pgbench_accounts; CHECKPOINT")
        .await?;

    let mut undone = Vec::new();
    for (name, at) in [("undone", &position), ("then", &time)] {
        let branch = Branch::create(stage, name, at).await?;
        let client = branch.session().await?;
        ensure!(number(&client, "SELECT count(*) FROM precious").await? == 1000);
        let rows = branch.ledger().await?;
        let missing = before_drop.iter().find(|one| !rows.contains(one));
        ensure!(
            missing.is_none(),
            "{missing:?} was acknowledged before {at}"
        );
        undone.push(branch);
    }
    let then = undone.pop().context("two branches")?;
    let undone = undone.pop().context("two branches")?;

    take_over(stage, 1).await?;
    stage.commits(50).await?;
    let client = active(stage).await?;
    ensure!(number(&client, "SELECT count(*) FROM pgbench_accounts").await? == 100_000);
    ensure!(
        number(
            &client,
            "SELECT count(*) FROM pg_class WHERE relname IN ('own', 'precious')"
        )
        .await?
            == 0
    );
    // The parent goes on, and the branch does not see it.
    client.batch_execute("VACUUM FULL pgbench_branches").await?;
    client
        .batch_execute("UPDATE pgbench_accounts SET filler = 'later'; CHECKPOINT")
        .await?;
    let branch = undone.session().await?;
    ensure!(
        number(
            &branch,
            "SELECT count(*) FROM pgbench_accounts WHERE filler = 'later'"
        )
        .await?
            == 0
    );
    branch.batch_execute("CREATE EXTENSION amcheck").await?;
    let checked = "SELECT count(*) FROM pg_class c JOIN pg_index i ON i.indexrelid = c.oid JOIN pg_am a ON a.oid = c.relam, \
        LATERAL bt_index_check(c.oid, true) WHERE a.amname = 'btree' AND c.relpersistence = 'p'";
    ensure!(number(&branch, checked).await? > 50);

    let listed = names(stage)?;
    ensure!(listed == ["now", "then", "undone"], "{listed:?}");
    a_failed_mask_leaves_nothing_that_serves(stage)?;
    let pins = Pin::all(&registry(stage).await?).await?;
    let keeps_log = pins.iter().any(|pin| pin.log.is_some());
    ensure!(pins.len() == 3 && !keeps_log, "branches keep WAL: {pins:?}");
    let taken = command(
        stage,
        &["branch", "create", "now", "--directory", "/dev/null/now"],
    )?;
    ensure!(taken.status.code() == Some(4), "{taken:?}");
    ensure!(now.made["end"].is_string() && undone.made["end"].is_string());
    now.stop()?;
    undone.stop()?;
    then.stop()?;
    for name in ["now", "undone", "then"] {
        let dropped = command(stage, &["branch", "drop", name])?;
        ensure!(dropped.status.success(), "{dropped:?}");
    }
    let listed = json(&command(stage, &["branch", "list", "--json"])?)?;
    ensure!(listed == Value::Array(Vec::new()), "{listed}");
    Ok(())
}

/// The branch is there by name alone, until it is dropped.
fn a_failed_mask_leaves_nothing_that_serves(stage: &Stage) -> Result<()> {
    let mask = stage.path().join("mask.sql");
    std::fs::write(&mask, "UPDATE nothing SET secret = NULL;\n")?;
    let (mask, place) = (mask.display().to_string(), stage.path().join("masked"));
    let place = place.display().to_string();
    let arguments = [
        "branch",
        "create",
        "masked",
        "--mask",
        &mask,
        "--directory",
        &place,
    ];
    let failed = command(stage, &arguments)?;
    let said = String::from_utf8_lossy(&failed.stderr);
    ensure!(
        !failed.status.success() && said.contains("nothing"),
        "{failed:?}"
    );
    let listed = json(&command(stage, &["branch", "list", "--json"])?)?;
    let states = listed.as_array().context("a list")?.iter();
    let masked: Vec<_> = states.filter(|one| one["name"] == "masked").collect();
    ensure!(
        masked.len() == 1 && masked[0]["state"] == "making",
        "{listed}"
    );
    let dropped = command(stage, &["branch", "drop", "masked"])?;
    ensure!(dropped.status.success(), "{dropped:?}");
    Ok(())
}
