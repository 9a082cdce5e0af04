//! Zones that are exchanged while clients work, and what stands in the way of that.

use std::path::Path;
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use serde_json::Value;

use crate::operator::{json, understudy};
use crate::stage::{Stage, TIMEOUT};

impl Stage {
    pub async fn zone(&self, arguments: &[&str]) -> Result<String> {
        let config = self.cluster.node("north")?.config.display().to_string();
        let arguments = [&["zone"], arguments, &["--config", &config]].concat();
        let done = tokio::time::timeout(2 * TIMEOUT, self.cluster.run(&arguments));
        done.await
            .with_context(|| format!("{arguments:?} takes too long"))?
    }

    async fn zone_members(&self) -> Result<Vec<String>> {
        let listed: Value = serde_json::from_str(&self.zone(&["list", "--json"]).await?)?;
        let members = listed["members"]["members"]
            .as_array()
            .context("no members")?;
        let addresses = members
            .iter()
            .filter_map(|member| member["address"].as_str());
        Ok(addresses.map(str::to_owned).collect())
    }

    /// True if every replica is up, and none is being rebuilt.
    fn counts_everywhere(&self) -> Result<bool> {
        let north = self.cluster.node("north")?.config.clone();
        let status = json(&understudy(&["status", "--json"], &north)?)?;
        let replicas = status["replicas"].as_array().context("no replicas")?;
        Ok(replicas
            .iter()
            .all(|r| r["up"] == true && r["rebuilding"] == false))
    }

    /// Another zone with an empty directory, which listens; its number and address.
    pub async fn new_zone(&mut self) -> Result<(usize, String)> {
        let (number, address) = self.cluster.add_zone()?;
        self.cluster.start_zone(number)?;
        listens(&address).await?;
        Ok((number, address))
    }
}

async fn listens(address: &str) -> Result<()> {
    let deadline = tokio::time::Instant::now() + TIMEOUT;
    while tokio::net::TcpStream::connect(address).await.is_err() {
        ensure!(
            tokio::time::Instant::now() < deadline,
            "{address} does not listen"
        );
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    Ok(())
}

/// Three zones, then another third one, then five, then three others: clients notice nothing, and what they were told is
/// kept by those who are left.
// hazard: ZONE-3, ZONE-22
#[tokio::test(flavor = "multi_thread")]
#[ignore = "system test: make test-system"]
async fn zones_are_exchanged_under_load_and_clients_see_no_error() -> Result<()> {
    let mut stage = Stage::set("exchange").await?;
    let old = (1..=3)
        .map(|zone| stage.cluster.zone_address(zone))
        .collect::<Result<Vec<_>>>()?;
    let (four, new) = stage.new_zone().await?;
    stage.zone(&["replace", &old[2], &new]).await?;
    ensure!(stage.zone_members().await? == [&old[0], &old[1], &new].map(String::clone));
    stage.cluster.kill_zone(3).context("zone 3 runs")?;
    stage.commits(100).await?;
    // It waits for another use with an empty directory, where all configurations still list it: they are out of date,
    // and a node that starts with one finds the members by the others.
    std::fs::remove_dir_all(stage.cluster.options().dir.join("zone-3"))?;
    stage.cluster.start_zone(3)?;
    listens(&old[2]).await?;
    stage.cluster.stop_node("south", Duration::from_secs(30))?;
    stage.cluster.start_node("south")?;
    stage.cluster.wait_follows("south", TIMEOUT).await?;

    let (five, fifth) = stage.new_zone().await?;
    let (_, sixth) = stage.new_zone().await?;
    stage.zone(&["add", &fifth, &sixth]).await?;
    ensure!(stage.zone_members().await?.len() == 5);
    stage.commits(100).await?;
    stage.zone(&["remove", &old[0], &sixth]).await?;
    let trouble = stage.load.as_ref().context("load")?.trouble();
    ensure!(trouble.is_none(), "clients met {trouble:?}");
    stage.cluster.kill_zone(1).context("zone 1 runs")?;
    stage.cluster.kill_zone(five + 1).context("it runs")?;

    // Two of those who are left are enough, also for a takeover; the configurations list two that are gone.
    stage.cluster.kill_zone(2).context("zone 2 runs")?;
    stage.commits(100).await?;
    let (_, killed) = stage.kill_active().await?;
    stage.outage_after(killed).await?;
    stage.commits(100).await?;
    ensure!(four == 4);
    stage.verify().await
}

/// An exchange is cut off by the deaths of the active, of the newcomer and of another zone; whoever takes over goes on
/// with it, and the same command watches it to its end.
// hazard: ZONE-3
#[tokio::test(flavor = "multi_thread")]
#[ignore = "system test: make test-system"]
async fn an_exchange_outlives_the_active_and_zones() -> Result<()> {
    let mut stage = Stage::set("exchange-cut").await?;
    let old = stage.cluster.zone_address(3)?;
    let (four, new) = stage.new_zone().await?;
    stage.zone(&["replace", "--no-wait", &old, &new]).await?;
    let (dead, killed) = stage.kill_active().await?;
    stage.outage_after(killed).await?;
    stage.cluster.start_node(&dead)?;
    stage.cluster.kill_zone(four).context("the new zone runs")?;
    stage.commits(50).await?;
    stage.cluster.start_zone(four)?;
    stage.cluster.kill_zone(1).context("zone 1 runs")?;
    tokio::time::sleep(Duration::from_secs(1)).await;
    stage.cluster.start_zone(1)?;
    stage.zone(&["replace", &old, &new]).await?;
    ensure!(stage.zone_members().await?.contains(&new));
    stage.cluster.wait_follows(&dead, TIMEOUT).await?;

    // Given up as well: the members are as before.
    stage.cluster.kill_zone(3).context("zone 3 runs")?;
    let before = stage.zone_members().await?;
    let (_, next) = stage.new_zone().await?;
    stage.zone(&["add", "--no-wait", &next]).await?;
    // It may have ended before that.
    if stage.zone(&["cancel"]).await.is_ok() {
        ensure!(stage.zone_members().await? == before);
    }
    let (_, killed) = stage.kill_active().await?;
    stage.outage_after(killed).await?;
    stage.commits(100).await?;
    stage.verify().await
}

/// Node north lists zones a, b and d, node south a, b and c: what a and d acknowledged was lost once south served with b
/// and c. A node that lists a stranger says so and does not serve.
// hazard: ZONE-2
#[tokio::test(flavor = "multi_thread")]
#[ignore = "system test: make test-system"]
async fn a_node_that_lists_another_zone_is_refused() -> Result<()> {
    let mut stage = Stage::set("exchange-lists").await?;
    let (_, stranger) = stage.new_zone().await?;
    let listed = stage.cluster.zone_address(3)?;
    let config = stage.cluster.node("south")?.config.clone();
    let text = std::fs::read_to_string(&config)?;
    let changed = config.with_extension("changed.toml");
    std::fs::write(&changed, text.replace(&listed, &stranger))?;
    for command in [["status"].as_slice(), &["zone", "list"]] {
        let output = understudy(command, &changed)?;
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        ensure!(!output.status.success(), "{command:?}: {said}");
        ensure!(said.contains("is not one of the volume's zones"), "{said}");
        ensure!(
            said.contains(&listed),
            "it does not say which zones there are: {said}"
        );
    }
    stage.cluster.stop_node("south", Duration::from_secs(30))?;
    std::fs::rename(&changed, &config)?;
    let node = Command::new(crate::stage::program())
        .args(["node", "--config"])
        .arg(&config)
        .stdin(std::process::Stdio::null())
        .output()?;
    let said = String::from_utf8_lossy(&node.stderr).into_owned();
    ensure!(!node.status.success(), "it serves: {said}");
    ensure!(said.contains("is not one of the volume's zones"), "{said}");

    // With any zone of the volume it finds the others.
    let second = stage.cluster.zone_address(2)?;
    let one = text.lines().map(|line| match line.starts_with("zones = ") {
        true => format!("zones = [\"{second}\"]"),
        false => line.to_owned(),
    });
    std::fs::write(&config, one.collect::<Vec<_>>().join("\n"))?;
    stage.cluster.start_node("south")?;
    stage.cluster.wait_follows("south", TIMEOUT).await?;
    stage.commits(50).await?;
    stage.verify().await
}

/// A zone's directory was put back to a copy: the zone is rebuilt before it counts.
// hazard: ZONE-4
#[tokio::test(flavor = "multi_thread")]
#[ignore = "system test: make test-system"]
async fn a_zone_on_an_old_copy_of_its_directory_is_rebuilt() -> Result<()> {
    let mut stage = Stage::set("exchange-back").await?;
    let directory = stage.cluster.options().dir.join("zone-3");
    let copy = directory.with_extension("copy");
    stage.cluster.kill_zone(3).context("zone 3 runs")?;
    copy_directory(&directory, &copy)?;
    stage.cluster.start_zone(3)?;
    stage.commits(200).await?;
    // Stores are told of each other every five seconds.
    tokio::time::sleep(Duration::from_secs(6)).await;
    stage.cluster.kill_zone(3).context("zone 3 runs")?;
    std::fs::remove_dir_all(&directory)?;
    std::fs::rename(&copy, &directory)?;
    stage.commits(50).await?;
    stage.cluster.start_zone(3)?;
    let log = stage.cluster.logs().join("zone-3.log");
    let deadline = tokio::time::Instant::now() + TIMEOUT;
    let said = "holds an earlier state";
    while !std::fs::read_to_string(&log)?.contains(said) || !stage.counts_everywhere()? {
        ensure!(tokio::time::Instant::now() < deadline, "it is not rebuilt");
        tokio::time::sleep(Duration::from_millis(200)).await;
    }

    // Every quorum needs it from now on.
    stage.cluster.kill_zone(1).context("zone 1 runs")?;
    stage.commits(100).await?;
    let (_, killed) = stage.kill_active().await?;
    stage.outage_after(killed).await?;
    stage.commits(100).await?;
    stage.verify().await
}

fn copy_directory(from: &Path, to: &Path) -> Result<()> {
    std::fs::create_dir(to)?;
    for entry in std::fs::read_dir(from)? {
        let entry = entry?;
        let (path, copy) = (entry.path(), to.join(entry.file_name()));
        match path.is_dir() {
            true => copy_directory(&path, &copy)?,
            false => drop(std::fs::copy(&path, &copy)?),
        }
    }
    Ok(())
}
