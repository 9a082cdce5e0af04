//! Two releases in one cluster: the release before and this one, upgraded one process after the other under load, and back until
//! the upgrade is finished.
//!
//! `UNDERSTUDY_TEST_BEFORE` is the program of the release before, as `scripts/release-before` prints it.

use std::path::PathBuf;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use serde_json::Value;

use crate::operator::{json, understudy};
use crate::stage::{Stage, TIMEOUT, program};

fn before() -> Result<PathBuf> {
    let program = std::env::var_os("UNDERSTUDY_TEST_BEFORE");
    Ok(program
        .context("UNDERSTUDY_TEST_BEFORE is not set: make test-upgrade")?
        .into())
}

impl Stage {
    /// Starts every zone anew with this program, one after the other, and waits each time until all of them count.
    async fn zones_run(&mut self, release: &std::path::Path) -> Result<()> {
        self.cluster.use_program(release);
        for zone in 1..=3 {
            self.cluster.kill_zone(zone).context("it runs")?;
            self.cluster.start_zone(zone)?;
            self.zones_count().await?;
            self.commits(20).await?;
        }
        Ok(())
    }

    /// Waits until every zone is up and has what it missed.
    async fn zones_count(&self) -> Result<()> {
        let north = self.cluster.node("north")?.config.clone();
        let deadline = Instant::now() + TIMEOUT;
        loop {
            let status = json(&understudy(&["status", "--json"], &north)?)?;
            let replicas = status["replicas"].as_array().context("no replicas")?;
            let counts = |r: &Value| r["up"] == true && r["missed_blocks"] == 0;
            if replicas.iter().all(counts) {
                return Ok(());
            }
            ensure!(
                Instant::now() < deadline,
                "not all zones count: {replicas:#?}"
            );
            tokio::time::sleep(Duration::from_millis(200)).await;
        }
    }

    /// Starts a standby anew with this program, and waits until it is warm.
    async fn standby_runs(&mut self, name: &str, release: &std::path::Path) -> Result<()> {
        self.cluster.use_program(release);
        self.cluster.stop_node(name, TIMEOUT)?;
        self.cluster.start_node(name)?;
        self.cluster.wait_follows(name, TIMEOUT).await?;
        self.commits(50).await
    }

    /// Kills the active, which the other node replaces, and starts it again with the program that it had.
    async fn fails_over(&mut self, from: &str, release: &std::path::Path) -> Result<()> {
        let (dead, killed) = self.kill_active().await?;
        ensure!(dead == from, "{dead} was the active, not {from}");
        self.outage_after(killed).await?;
        self.commits(50).await?;
        self.cluster.use_program(release);
        self.cluster.start_node(from)?;
        self.cluster.wait_follows(from, TIMEOUT).await?;
        self.commits(50).await
    }

    /// Answer of `understudy upgrade` of this release: its exit code, and its words.
    fn upgrade(&self, what: &str) -> Result<(Option<i32>, String)> {
        let north = self.cluster.node("north")?.config.clone();
        let done = understudy(&["upgrade", what, "--json"], &north)?;
        let words = [done.stdout, done.stderr].concat();
        Ok((
            done.status.code(),
            String::from_utf8_lossy(&words).into_owned(),
        ))
    }

    fn agent_says(&self, node: &str, words: &str) -> Result<bool> {
        let log = std::fs::read_to_string(self.cluster.logs().join(format!("{node}.log")))?;
        Ok(log.contains(words))
    }

    async fn epoch(&self) -> Result<u64> {
        let north = self.cluster.node("north")?.config.clone();
        let status = json(&understudy(&["status", "--json"], &north)?)?;
        status["epoch"].as_u64().context("no epoch")
    }
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "system test: make test-upgrade"]
async fn releases_work_side_by_side_and_go_back_until_the_upgrade_is_finished() -> Result<()> {
    let (old, new) = (before()?, program());
    let mut stage = Stage::with_options("upgrade", &["north", "south"], |options| {
        options.understudy = old.clone();
        options.memory = vec!["differences = \"16MiB\"".to_owned()];
    })
    .await?;
    // Old nodes on new zones.
    stage.zones_run(new).await?;
    // An old active and a new standby, which takes over; then the old one is its standby, and takes over from it.
    stage.standby_runs("south", new).await?;
    let (code, refused) = stage.upgrade("finish")?;
    ensure!(
        code == Some(4) && refused.contains("node north reads forms up to 1"),
        "{refused}"
    );
    stage.fails_over("north", &old).await?;
    stage.fails_over("south", new).await?;
    // New nodes on old zones, and all the way back.
    stage.zones_run(&old).await?;
    stage.fails_over("north", new).await?;
    let (code, refused) = stage.upgrade("finish")?;
    ensure!(
        code == Some(4) && refused.contains("knows forms up to 1"),
        "{refused}"
    );
    stage.standby_runs("north", &old).await?;
    stage.fails_over("south", &old).await?;
    // Everything is new, and stays so.
    stage.zones_run(new).await?;
    stage.standby_runs("south", new).await?;
    stage.fails_over("north", new).await?;
    let (code, said) = stage.upgrade("status")?;
    ensure!(
        code == Some(0) && said.contains("\"finished\":false"),
        "{said}"
    );
    let (code, said) = stage.upgrade("finish")?;
    ensure!(
        code == Some(0) && said.contains("\"finished\":true"),
        "{said}"
    );
    stage.commits(50).await?;

    // The release before is not let in, and fences nobody.
    let epoch = stage.epoch().await?;
    stage.cluster.stop_node("north", TIMEOUT)?;
    stage.cluster.use_program(&old);
    stage.cluster.start_node("north")?;
    let deadline = Instant::now() + TIMEOUT;
    while !stage.agent_says("north", "reads them up to 1: upgrade it")? {
        ensure!(
            Instant::now() < deadline,
            "north does not say that it is refused"
        );
        tokio::time::sleep(Duration::from_millis(200)).await;
    }
    stage.commits(50).await?;
    ensure!(stage.epoch().await? == epoch, "somebody was fenced");
    if let Some(process) = stage.cluster.node_process("north") {
        process.kill_all();
    }
    stage.cluster.use_program(new);
    stage.cluster.start_node("north")?;
    stage.cluster.wait_follows("north", TIMEOUT).await?;
    stage.fails_over("south", new).await?;
    stage.verify().await
}
