//! `understudy mirror` as real processes: managers, members and machines are lost under load.

use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use cluster::clients::session::connect;
use cluster::mirror::{DATABASE, Mirror, Options};
use cluster::programs;
use cluster::scratch::Scratch;

use crate::stage::{TIMEOUT, program};

/// The primary's machine is lost with its disk, and comes back; then whatever else the seed chooses.
// hazard: MIRROR-47
#[test]
#[ignore = "system test: make test-system"]
fn nothing_is_lost_with_a_machine_or_its_disk() -> Result<()> {
    let scratch = Scratch::new("mirrored")?;
    let work = scratch.path().join("work");
    let output = Command::new(program())
        .args(["demo", "--mirror", "--json", "--kills", "4", "--seed", "5"])
        .args([
            "--duration",
            "8s",
            "--scale",
            "1",
            "--clients",
            "4",
            "--data",
        ])
        .arg(&work)
        .stdin(Stdio::null())
        .output()?;
    let said = String::from_utf8_lossy(&output.stderr);
    ensure!(output.status.success(), "{}: {said}", output.status);
    let report: serde_json::Value = serde_json::from_slice(&output.stdout)?;
    println!("{report:#}");
    for name in ["lost", "applied_twice", "diverged"] {
        ensure!(report[name] == 0, "{name}");
    }
    ensure!(report["acknowledged"].as_u64() > Some(200));
    ensure!(report["downtime_ms"].as_f64() > Some(0.0));
    ensure!(report["transfer_s"].as_f64() > Some(0.0));
    ensure!(report["rounds"].as_array().map(Vec::len) == Some(4));
    ensure!(!work.exists(), "the demo's data is still there");
    scratch.succeed()
}

/// The log is all that a mirror has in its zones, and nobody scrubbed it: a zone that had lost its disk never counted again, and
/// with the next one the mirror was lost.
// hazard: MIRROR-57
#[tokio::test(flavor = "multi_thread")]
#[ignore = "system test: make test-system"]
async fn a_zone_that_lost_its_disk_counts_again() -> Result<()> {
    let scratch = Scratch::new("mirrored-zone")?;
    let options = Options::new(scratch.path(), &programs::find(None)?, program());
    let mut mirror = Mirror::prepare(options).await?;
    mirror.start(TIMEOUT).await?;
    let client = connect(&mirror.any_writable()).await?;
    client
        .batch_execute("CREATE TABLE seen (number int PRIMARY KEY)")
        .await?;
    let insert = async |number: i32| {
        let text = format!("INSERT INTO seen VALUES ({number})");
        let done = tokio::time::timeout(TIMEOUT, client.batch_execute(&text)).await;
        done.context("no answer")?.context("refused")
    };
    mirror.zones().kill_zone(1).context("zone 1 runs")?;
    std::fs::remove_dir_all(scratch.path().join("zone-1"))?;
    insert(1).await?;
    mirror.zones().start_zone(1)?;
    let deadline = Instant::now() + TIMEOUT;
    let is_rebuilt = |log: &str| log.contains("the replica is rebuilt and counts again");
    while !is_rebuilt(&std::fs::read_to_string(mirror.logs().join("north.log"))?) {
        ensure!(Instant::now() < deadline, "zone 1 is not rebuilt");
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    mirror.zones().kill_zone(2).context("zone 2 runs")?;
    insert(2).await.context("with zones 1 and 3")?;
    mirror.zones().start_zone(2)?;
    mirror.settle(TIMEOUT).await?;
    for at in 0..2 {
        let member = connect(&mirror.member(at).config()).await?;
        let count: i64 = member
            .query_one("SELECT count(*) FROM seen", &[])
            .await?
            .get(0);
        ensure!(count == 2, "{count} rows in {DATABASE} of member {at}");
    }
    tokio::task::block_in_place(|| mirror.shutdown());
    scratch.succeed()
}
