//! What becomes of a machine when more, or something else, is lost than the host that runs it.
//!
//! Each test has a network namespace of its own, two hosts whose lines to each other and to the zones can be cut, and clients that commit
//! all the time. In the end everything that was acknowledged is there, and tables and indexes are sound.

use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use cluster::machine::clients::{Clients, amcheck, set_up};
use cluster::machine::{Kept, Pair, Settings, enter_network, keep};
use cluster::scratch::Scratch;
use vm::driver::Status;
use vm::image::Database;

use super::shared_image;
use crate::stage::program;

const CLIENTS: u16 = 4;
const NORTH: usize = 0;
const SOUTH: usize = 1;
/// Longer than a host waits for another one, before it does something about it.
const LONG: Duration = Duration::from_secs(4);

struct Site {
    pair: Pair,
    password: String,
    clients: Clients,
}

/// Sets up a protected machine under load, does something to it, and looks for everything that was acknowledged.
fn on_site(test: &str, strike: impl AsyncFnOnce(&mut Site) -> Result<()>) -> Result<()> {
    with_site(test, async |_, mut site| {
        strike(&mut site).await?;
        site.verify().await
    })
}

/// Sets up a protected machine under load, and leaves the verdict to `act`, which is told the directory.
fn with_site(test: &str, act: impl AsyncFnOnce(&Path, Site) -> Result<()>) -> Result<()> {
    let scratch = Scratch::new(test)?;
    enter_network()?;
    let mut runtime = tokio::runtime::Builder::new_multi_thread();
    // Its threads are in this thread's network.
    runtime.enable_all().build()?.block_on(async {
        let site = Site::set(&scratch).await?;
        act(scratch.path(), site).await
    })?;
    scratch.succeed()
}

async fn image(scratch: &Scratch) -> Result<Kept> {
    let Some((image, password)) = shared_image() else {
        let say = |what: &str| println!("{what}");
        return keep(scratch.path(), Database::PostgreSql, say).await;
    };
    let password = std::fs::read_to_string(&password)
        .with_context(|| format!("cannot read {}", password.display()))?;
    Ok(Kept {
        image,
        password: password.trim_end().to_owned(),
    })
}

impl Site {
    async fn set(scratch: &Scratch) -> Result<Site> {
        let Kept { image, password } = image(scratch).await?;
        let settings = Settings {
            understudy: program().to_owned(),
            image,
            memory_mb: 256,
            more: Vec::new(),
            has_lines: true,
        };
        let mut pair = Pair::start(scratch.path(), &settings).await?;
        set_up(&password).await?;
        pair.restart(SOUTH)?;
        pair.wait_protected().await?;
        let clients = Clients::start(CLIENTS, &password).await?;
        let site = Site {
            pair,
            password,
            clients,
        };
        site.clients_go_on().await?;
        Ok(site)
    }

    /// Clients commit now.
    async fn clients_go_on(&self) -> Result<()> {
        self.clients.wait_commits_after(Instant::now()).await
    }

    async fn status(&self, at: usize) -> Result<Status> {
        let status = self.pair.status(at).await;
        status.with_context(|| format!("host {at} does not answer"))
    }

    async fn is_protected_by(&mut self, standby: usize) -> Result<()> {
        let active = self.pair.wait_protected().await?;
        ensure!(active == 1 - standby, "host {active} runs the machine");
        self.clients_go_on().await
    }

    async fn verify(self) -> Result<()> {
        self.clients_go_on().await?;
        let seen = self.clients.stop().await?;
        let lost = seen.lost(&self.password).await?;
        println!("{} commits were acknowledged", seen.commits.len());
        ensure!(lost == 0, "{lost} of {} commits", seen.commits.len());
        let found = amcheck(&self.password).await?;
        ensure!(found == "OK", "{found}");
        Ok(())
    }
}

// hazard: VM-5
#[test]
#[ignore = "system test: make test-vm"]
fn hosts_that_lose_each_other_do_not_both_run_the_machine() -> Result<()> {
    on_site("machine-links", async |site| {
        let before = site.clients.connections();
        // Each could take the other one for dead. The zones let the one that runs the machine go on, and the other one not.
        site.pair.cut(true)?;
        site.pair.wait_alone(NORTH).await?;
        site.clients_go_on().await?;
        tokio::time::sleep(LONG).await;
        ensure!(site.status(SOUTH).await?.role != "active");
        site.pair.cut(false)?;
        site.is_protected_by(SOUTH).await?;

        // A host that reaches neither the other one nor the zones still reaches its clients, and is not heard by them any more.
        site.pair.isolate(NORTH, true)?;
        site.pair.wait_active(SOUTH).await?;
        site.clients_go_on().await?;
        let cut_off = site.status(NORTH).await?;
        ensure!(cut_off.role == "active", "it cannot know: {cut_off:?}");
        ensure!(
            cut_off.waiting > 0,
            "its machine speaks, and nobody hears it"
        );
        site.pair.isolate(NORTH, false)?;
        site.is_protected_by(NORTH).await?;

        // What its disk and memory were has been overwritten: it has what was acknowledged since.
        let killed = site.pair.kill(SOUTH)?;
        site.pair.wait_active(NORTH).await?;
        site.clients.wait_commits_after(killed).await?;
        let kept = site.clients.kept(&before);
        ensure!(kept == u64::from(CLIENTS), "{kept} connections went on");
        Ok(())
    })
}

#[test]
#[ignore = "system test: make test-vm"]
fn a_standby_that_is_lost_while_it_applies_is_not_used() -> Result<()> {
    on_site("machine-standby", async |site| {
        let before = site.clients.connections();
        // One that hangs is given up, and is told so when it goes on.
        site.pair.freeze(SOUTH, true)?;
        site.pair.wait_alone(NORTH).await?;
        site.clients_go_on().await?;
        site.pair.freeze(SOUTH, false)?;
        site.is_protected_by(SOUTH).await?;
        let kept = site.clients.kept(&before);
        ensure!(kept == u64::from(CLIENTS), "{kept} connections went on");

        // Both hosts are lost, the standby wherever it is in a checkpoint. The record names it, but it has another life now.
        site.pair.kill(SOUTH)?;
        site.pair.kill(NORTH)?;
        site.pair.restart(SOUTH)?;
        tokio::time::sleep(LONG).await;
        ensure!(site.status(SOUTH).await?.role != "active");
        // The machine boots from the disk that was flushed whenever it asked for it.
        site.pair.restart(NORTH)?;
        site.pair.wait_active(NORTH).await?;
        site.is_protected_by(SOUTH).await?;

        // Twice in a row, the second time with the host that was lost first.
        for lost in [NORTH, SOUTH] {
            let killed = site.pair.kill(lost)?;
            site.pair.wait_active(1 - lost).await?;
            site.clients.wait_commits_after(killed).await?;
            site.pair.restart(lost)?;
            site.is_protected_by(lost).await?;
        }
        Ok(())
    })
}

/// The host that ran the machine last is gone for good. The other one's disk is older, so nobody starts the machine from it unasked.
#[test]
#[ignore = "system test: make test-vm"]
fn an_operator_says_which_disk_counts() -> Result<()> {
    with_site("machine-disk", async |directory, mut site| {
        site.pair.kill(SOUTH)?;
        site.pair.wait_alone(NORTH).await?;
        site.clients_go_on().await?;
        site.pair.kill(NORTH)?;
        site.pair.restart(SOUTH)?;
        tokio::time::sleep(LONG).await;
        ensure!(site.status(SOUTH).await?.role == "looking");
        let config = directory.join("south-host.toml");
        let mut order = Command::new(program());
        order
            .args(["vm", "start-from-disk", "--config"])
            .arg(&config);
        let said = order.output()?;
        let text = String::from_utf8_lossy(&said.stderr);
        ensure!(said.status.success(), "{text}");
        site.pair.wait_active(SOUTH).await?;
        site.clients_go_on().await?;
        let again = order.output()?;
        ensure!(!again.status.success(), "it runs already");
        drop(site.clients.stop().await?);
        let found = amcheck(&site.password).await?;
        ensure!(found == "OK", "{found}");
        Ok(())
    })
}
