//! Bringing in an existing database, and an `init` that is killed while it does.

use std::fs::File;
use std::io::Write;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use cluster::clients::session::connect;
use cluster::remnants::fuse_mounts_below;
use cluster::scratch::Scratch;
use cluster::stock::Stock;
use cluster::{Cluster, Options, programs};
use serde_json::Value;

use crate::stage::{TIMEOUT, program};

/// A file that takes a while to copy.
const BALLAST_BYTES: usize = 256 << 20;

// A killed `init --import` once stayed as a process with a mount that only `umount -f` removed: its threads waited for
// answers of their own process.
// hazard: SEAL-3
#[tokio::test(flavor = "multi_thread")]
#[ignore = "system test: make test-system"]
async fn a_killed_import_leaves_nothing_and_is_repeated() -> Result<()> {
    let scratch = Scratch::new("import")?;
    let bin = programs::find(None)?;
    let stock = Stock::start(&scratch.path().join("stock"), &bin, Vec::new()).await?;
    let data = stock.data();
    drop(stock);
    let ballast = data.join("base/1/99999");
    File::create(&ballast)?.write_all(&vec![7; BALLAST_BYTES])?;
    let mut cluster = Cluster::create(Options::new(scratch.path(), &bin, program()))?;
    for zone in 1..=3 {
        cluster.start_zone(zone)?;
    }
    let north = cluster.node("north")?;
    let (config, mount) = (
        north.config.display().to_string(),
        north.data.join("pgdata"),
    );
    let data = data.display().to_string();
    let arguments = ["init", "--config", &config, "--import", &data, "--json"];

    let mut killed = Command::new(program())
        .args(arguments)
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()?;
    let deadline = Instant::now() + TIMEOUT;
    // What is in the mount only a child may ask, as ever.
    while !is_copying(&mount) {
        ensure!(killed.try_wait()?.is_none(), "it ended by itself");
        ensure!(Instant::now() < deadline, "it does not begin to copy");
        std::thread::sleep(Duration::from_millis(20));
    }
    std::thread::sleep(Duration::from_millis(200));
    killed.kill()?;
    let deadline = Instant::now() + Duration::from_secs(20);
    while killed.try_wait()?.is_none() {
        ensure!(Instant::now() < deadline, "it cannot be killed");
        std::thread::sleep(Duration::from_millis(20));
    }

    // Only its ballast is no part of the database.
    std::fs::remove_file(&ballast)?;
    let created: Value = serde_json::from_str(&cluster.run(&arguments).await?)?;
    let bytes = created["bytes"].as_u64().context("it tells the size")?;
    ensure!(
        bytes < BALLAST_BYTES as u64,
        "{bytes} bytes: something was left"
    );
    ensure!(
        fuse_mounts_below(scratch.path()).is_empty(),
        "a mount was left"
    );
    cluster.start_node("north")?;
    cluster.wait_active(TIMEOUT).await?;
    let client = connect(&cluster.server("north")?.config()).await?;
    client
        .batch_execute("CREATE TABLE t AS SELECT 1 AS n")
        .await?;
    cluster.shutdown();
    scratch.succeed()
}

/// True if the database's first file has arrived.
fn is_copying(mount: &std::path::Path) -> bool {
    let seen = Command::new("timeout")
        .args(["1", "stat", "--"])
        .arg(mount.join("PG_VERSION"))
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .status();
    seen.is_ok_and(|status| status.success())
}
