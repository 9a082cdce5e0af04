//! Branches of branches: each goes its own way, survives takeovers, can be reset, and leaves nothing behind when it is dropped.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use cluster::clients::schema::Server;
use cluster::clients::session::connect;
use cluster::ports;
use cluster::process::Process;
use dax::storage::Storage;
use rand::random_range;
use serde_json::Value;
use tokio_postgres::Client;
use toml::{Table, Value as Toml};

use crate::backups::{end_load, wanted};
use crate::branched::{names, number};
use crate::operator::{json, understudy};
use crate::past::registry;
use crate::slots::active;
use crate::stage::{Stage, TIMEOUT, program};
use crate::verbs::until;

/// Branches that are made; more of them by hand.
const BRANCHES: (&str, usize) = ("UNDERSTUDY_TEST_BRANCHES", 4);

/// Bytes that a volume may have gained: its own programs write a little.
const SLACK_BYTES: u64 = 4 << 20;

/// A branch on this machine.
struct Branch {
    name: String,
    directory: PathBuf,
    /// Place of its parent; `None` for one of the database.
    of: Option<usize>,
    server: Server,
}

impl Branch {
    fn config(&self) -> PathBuf {
        self.directory.join("node.toml")
    }

    /// Waits until one of its nodes is in this state.
    async fn has_state(&self, state: &str) -> Result<()> {
        let look = async || json(&understudy(&["status", "--json"], &self.config())?);
        let has_one = |status: &Value| {
            let nodes = status["nodes"].as_array();
            nodes.is_some_and(|nodes| nodes.iter().any(|node| node["state"] == state))
        };
        until(state, look, has_one).await?;
        Ok(())
    }

    /// Serves it, until what is returned is dropped.
    async fn serve(&self) -> Result<(Process, Client)> {
        let mut serve = Command::new(program());
        serve.args(["branch", "run", "--until-stdin-closes", "--directory"]);
        serve.arg(&self.directory);
        let log = self.directory.join("agent.log");
        let node = Process::spawn("branch", serve, &log)?;
        let client = session(&self.server).await?;
        // One that is told to stop before does not stop in order.
        self.has_state("serving").await?;
        Ok((node, client))
    }
}

pub async fn session(server: &Server) -> Result<Client> {
    until(
        "it serves",
        async || {
            let client = connect(&server.config()).await;
            let Ok(client) = client else { return Ok(None) };
            let is_standby = client.query_one("SELECT pg_is_in_recovery()", &[]).await;
            Ok(is_standby
                .is_ok_and(|row| !row.get::<_, bool>(0))
                .then_some(client))
        },
        Option::is_some,
    )
    .await?
    .context("it serves")
}

fn run(stage: &Stage, config: &Path, arguments: &[&str]) -> Result<Output> {
    let secret = stage.cluster.options().dir.join("zones.secret");
    let secret = secret.display().to_string();
    understudy(&[arguments, &["--secret-file", &secret]].concat(), config)
}

fn done(output: Output) -> Result<Output> {
    ensure!(output.status.success(), "{output:?}");
    Ok(output)
}

async fn create(
    stage: &mut Stage,
    branches: &[Branch],
    of: Option<usize>,
    ttl: &str,
) -> Result<Branch> {
    let name = format!("b{}", branches.len());
    let directory = stage.path().join(&name);
    let config = match of {
        Some(parent) => branches[parent].config(),
        None => stage.cluster.node("north")?.config.clone(),
    };
    let (place, port) = (directory.display().to_string(), ports::free()?);
    let number = port.to_string();
    let arguments = [
        "branch",
        "create",
        &name,
        "--json",
        "--directory",
        &place,
        "--port",
        &number,
        "--ttl",
        ttl,
    ];
    println!("{}", json(&run(stage, &config, &arguments)?)?);
    let active = stage.cluster.wait_active(TIMEOUT).await?;
    let server = Server {
        port,
        ..stage.cluster.server(&active)?
    };
    Ok(Branch {
        name,
        directory,
        of,
        server,
    })
}

/// Numbers that a branch and those that it comes from have inserted.
fn expected(branches: &[Branch], of: Option<usize>) -> BTreeSet<i32> {
    let mut all = BTreeSet::from([-1]);
    let mut at = of;
    while let Some(branch) = at {
        all.insert(branch as i32);
        at = branches[branch].of;
    }
    all
}

async fn numbers(client: &Client) -> Result<BTreeSet<i32>> {
    let rows = client.query("SELECT n FROM line", &[]).await?;
    Ok(rows.into_iter().map(|row| row.get(0)).collect())
}

/// Changes of its own, which nobody else sees, and every index is as it must be.
async fn go_own_way(branches: &[Branch], place: usize) -> Result<()> {
    let branch = &branches[place];
    let (mut node, client) = branch.serve().await?;
    let inherited = expected(branches, branch.of);
    ensure!(
        numbers(&client).await? == inherited,
        "{} begins otherwise",
        branch.name
    );
    let change = format!(
        "INSERT INTO line VALUES ({place}); UPDATE pgbench_accounts SET filler = '{place}' WHERE aid % 10 = {}; \
         DELETE FROM pgbench_accounts WHERE aid > 90000; VACUUM pgbench_accounts; CHECKPOINT",
        place % 10
    );
    for statement in change.split("; ") {
        client.batch_execute(statement).await?;
    }
    client
        .batch_execute("CREATE EXTENSION IF NOT EXISTS amcheck")
        .await?;
    let checked = "SELECT count(bt_index_check(c.oid, true)) FROM pg_class c JOIN pg_index i ON i.indexrelid = c.oid \
        JOIN pg_am a ON a.oid = c.relam WHERE a.amname = 'btree' AND c.relpersistence = 'p'";
    ensure!(number(&client, checked).await? > 50);
    drop(client);
    ensure!(node.terminate(TIMEOUT), "{} does not end", branch.name);
    Ok(())
}

/// A second node for a branch, made as the documents say.
fn standby(branch: &Branch) -> Result<(Process, Server)> {
    let mut table: Table = std::fs::read_to_string(branch.config())?.parse()?;
    let directory = branch.directory.join("second");
    std::fs::create_dir(&directory)?;
    let text = |path: PathBuf| Toml::String(path.display().to_string());
    let address = |port: u16| Toml::String(format!("127.0.0.1:{port}"));
    let port = ports::free()?;
    table.insert("name".into(), Toml::String("second".into()));
    table.insert("data".into(), text(directory.join("node")));
    let mut set = |of: &str, key: &str, value| -> Result<()> {
        let below = table.get_mut(of).and_then(Toml::as_table_mut);
        below.context("it is there")?.insert(key.into(), value);
        Ok(())
    };
    set("postgres", "port", Toml::Integer(port.into()))?;
    set(
        "channel",
        "listen",
        Toml::String(format!("unix:{}", directory.join("channel").display())),
    )?;
    set("rest", "listen", address(ports::free()?))?;
    let config = directory.join("node.toml");
    std::fs::write(&config, toml::to_string(&table)?)?;
    let mut node = Command::new(program());
    node.args(["node", "--until-stdin-closes", "--config"])
        .arg(&config);
    let node = Process::spawn("second", node, &directory.join("agent.log"))?;
    let server = Server {
        port,
        ..branch.server.clone()
    };
    Ok((node, server))
}

/// The nodes of a branch and of the database die at once.
async fn both_take_over(stage: &mut Stage, branch: &Branch) -> Result<()> {
    let (mut first, client) = branch.serve().await?;
    client
        .batch_execute("CREATE TABLE last (n int); INSERT INTO last VALUES (7)")
        .await?;
    let (mut second, server) = standby(branch)?;
    branch.has_state("warm").await?;
    first.kill_all();
    // The load has ended, so nothing tells when commits go on.
    let (dead, _) = stage.kill_active().await?;
    until(
        "another node serves the database",
        async || stage.cluster.wait_active(TIMEOUT).await,
        |active| *active != dead,
    )
    .await?;
    stage.cluster.start_node(&dead)?;
    let client = session(&server).await?;
    ensure!(number(&client, "SELECT n::bigint FROM last").await? == 7);
    drop(client);
    ensure!(
        second.terminate(TIMEOUT),
        "the standby of {} does not end",
        branch.name
    );
    // The first one's mount is still there.
    let data = branch.directory.join("node/pgdata");
    let _ = Command::new("fusermount3")
        .args(["-u", "-z"])
        .arg(data)
        .output();
    Ok(())
}

/// Room that the database's volume takes in a zone, and the volumes that share its blocks.
async fn used(storage: &Arc<dyn Storage>) -> Result<(u64, u64, usize)> {
    let usage = storage.usage().await?;
    let (_, usage) = usage.first().context("a zone answers")?;
    Ok((usage.used_bytes, usage.past_blocks, usage.relatives.len()))
}

// hazard: LAYER-7
#[tokio::test(flavor = "multi_thread")]
#[ignore = "system test: make test-system"]
async fn branches_of_branches_are_dropped_in_any_order_and_leave_nothing() -> Result<()> {
    let mut stage = Stage::set("family").await?;
    let client = active(&mut stage).await?;
    client
        .batch_execute("CREATE TABLE line AS SELECT -1 AS n")
        .await?;
    client.batch_execute("CHECKPOINT").await?;
    stage.commits(100).await?;
    end_load(&mut stage).await?;
    for _ in 0..3 {
        client.batch_execute("CHECKPOINT").await?;
    }
    let storage = registry(&stage).await?;
    let before = used(&storage).await?;

    let mut branches: Vec<Branch> = Vec::new();
    for place in 0..wanted(BRANCHES)? {
        // The second is of the database as well, and the others of anything.
        let of = (place > 1).then(|| random_range(0..=place));
        let of = of.filter(|parent| *parent < place);
        let ttl = if place == 0 { "1s" } else { "7d" };
        let branch = create(&mut stage, &branches, of, ttl).await?;
        branches.push(branch);
        go_own_way(&branches, place).await?;
    }
    let config = stage.cluster.node("north")?.config.clone();
    let status = until(
        "the status tells what the branches take",
        async || json(&understudy(&["status", "--json"], &config)?),
        |status| {
            let branches = status["past"]["branches"].as_array();
            branches.is_some_and(|all| {
                all.iter()
                    .any(|one| one["used_bytes"].as_u64() > Some(1 << 20))
            })
        },
    );
    println!("{}", status.await?["past"]["branches"]);

    both_take_over(&mut stage, &branches[0]).await?;
    let parents: BTreeSet<usize> = branches.iter().filter_map(|one| one.of).collect();
    let leaf =
        (0..branches.len()).find(|place| !parents.contains(place) && branches[*place].of.is_none());
    if let Some(leaf) = leaf {
        a_reset_takes_its_changes_back(&stage, &config, &branches[leaf]).await?;
    }

    let mut left: BTreeSet<usize> = (0..branches.len()).collect();
    while !left.is_empty() {
        let all: Vec<usize> = left.iter().copied().collect();
        let place = all[random_range(0..all.len())];
        let branch = &branches[place];
        let has_children = left.iter().any(|other| branches[*other].of == Some(place));
        let of = branch.of.map(|parent| branches[parent].config());
        let dropped = run(
            &stage,
            of.as_ref().unwrap_or(&config),
            &["branch", "drop", &branch.name],
        )?;
        ensure!(
            dropped.status.success() != has_children,
            "{}: {dropped:?}",
            branch.name
        );
        if !has_children {
            left.remove(&place);
        }
    }
    let client = active(&mut stage).await?;
    until(
        "the zones are rid of them",
        async || {
            // The active says with each seal what must be kept.
            client.batch_execute("CHECKPOINT").await?;
            used(&storage).await
        },
        |(bytes, past, relatives)| {
            *past == 0 && *relatives == 0 && *bytes <= before.0 + SLACK_BYTES
        },
    )
    .await?;
    stage.end().await
}

/// It has what the database has now, and nothing of its own.
async fn a_reset_takes_its_changes_back(
    stage: &Stage,
    config: &Path,
    branch: &Branch,
) -> Result<()> {
    let place = branch.directory.display().to_string();
    let (mut node, client) = branch.serve().await?;
    drop(client);
    let reset = [
        "branch",
        "reset",
        &branch.name,
        "--json",
        "--directory",
        &place,
    ];
    let refused = run(stage, config, &reset)?;
    ensure!(
        refused.status.code() == Some(4),
        "it is served: {refused:?}"
    );
    ensure!(node.terminate(TIMEOUT));
    println!("{}", json(&done(run(stage, config, &reset)?)?)?);
    let (mut node, client) = branch.serve().await?;
    ensure!(numbers(&client).await? == BTreeSet::from([-1]));
    ensure!(number(&client, "SELECT count(*) FROM pgbench_accounts").await? == 100_000);
    drop(client);
    ensure!(node.terminate(TIMEOUT));
    let listed = names(stage)?;
    ensure!(!listed.iter().any(|name| name.contains('-')), "{listed:?}");
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "system test: make test-system"]
async fn branches_go_when_their_time_is_over() -> Result<()> {
    let mut stage = Stage::set("expiring").await?;
    let config = stage.cluster.node("north")?.config.clone();
    let mut branches = Vec::new();
    for ttl in ["1s", "7d"] {
        branches.push(create(&mut stage, &branches, None, ttl).await?);
    }
    tokio::time::sleep(Duration::from_secs(1)).await;
    done(run(&stage, &config, &["branch", "drop", "--expired"])?)?;
    let listed = names(&stage)?;
    ensure!(listed == ["b1"], "{listed:?}");
    done(run(&stage, &config, &["branch", "drop", "b1"])?)?;
    stage.verify().await
}
