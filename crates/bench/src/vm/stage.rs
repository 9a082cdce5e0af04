//! The machine whose clients are measured: booted, filled, protected, and not.

use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::Context;
use clap::ValueEnum;
use cluster::machine::{Kept, Pair, Settings, keep};
use nix::sys::statvfs::statvfs;
use serde::{Deserialize, Serialize};
use understudy::exit::{Code, Failure};
use vm::driver::Status;
use vm::image::Database;

use super::loads::{self, Load};
use super::ways::Way;
use super::{Options, Subject};

/// The database in the machine.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, ValueEnum)]
#[serde(rename_all = "snake_case")]
pub enum Guest {
    /// PostgreSQL.
    Postgresql,
    /// MariaDB, for which there is no commit protection.
    Mariadb,
}

impl Guest {
    pub(super) fn takes(self, load: Load) -> bool {
        (self == Guest::Mariadb) == (load == Load::Transfers)
    }

    /// All ways that it can be protected.
    pub(super) fn ways(self) -> &'static [Way] {
        match self {
            Guest::Postgresql => &[
                Way::Plain,
                Way::Compression,
                Way::ReadTracking,
                Way::Memory,
                Way::Commits,
                Way::All,
            ],
            Guest::Mariadb => &[Way::Plain, Way::Compression, Way::ReadTracking, Way::Memory],
        }
    }

    /// Those that are compared where something else is varied.
    pub(super) fn fewer_ways(self) -> &'static [Way] {
        match self {
            Guest::Postgresql => &[Way::Plain, Way::Memory, Way::All],
            Guest::Mariadb => &[Way::Plain, Way::Memory],
        }
    }

    fn database(self) -> Database {
        match self {
            Guest::Postgresql => Database::PostgreSql,
            Guest::Mariadb => Database::MariaDb,
        }
    }
}

impl std::fmt::Display for Guest {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Guest::Postgresql => "PostgreSQL",
            Guest::Mariadb => "MariaDB",
        })
    }
}

const QEMU: &str = "/usr/bin/qemu-system-x86_64";
const MEMORY: &str = "/dev/shm";
/// What hosts and zones need beside the machine's memory.
const MORE_MB: u64 = 512;
const BOOTS_WITHIN: Duration = Duration::from_secs(180);

/// Says what is needed, and fails if it is not there.
///
/// # Errors
/// Something is missing; what to do about it.
pub fn needs(options: &Options, say: impl Fn(&str)) -> anyhow::Result<()> {
    let largest = match options.parts.contains(&super::Measurement::Memory) {
        true => options.multiples.iter().copied().max().unwrap_or(1),
        false => 1,
    };
    let memory_mb = 2 * options.memory_mb * u64::from(largest) + MORE_MB;
    say(&format!(
        "needed: root, {QEMU}, /dev/net/tun, {memory_mb} MB free in {MEMORY}; an image of each database in {}, which is made if it is \
         not there (a minute each, from Debian's packages)",
        options.images.display()
    ));
    let missing = |what: String, advice: &str| {
        let failure = Failure::new(Code::Unavailable, what).advise(advice.to_owned());
        Err(anyhow::Error::from(failure))
    };
    if !Path::new(QEMU).exists() {
        return missing(format!("there is no {QEMU}"), "Run scripts/packages --vm.");
    }
    if !Path::new("/dev/net/tun").exists() {
        return missing(
            "there is no /dev/net/tun".to_owned(),
            "Load the module: modprobe tun.",
        );
    }
    let free = statvfs(MEMORY).with_context(|| format!("cannot look at {MEMORY}"))?;
    let free_mb = (free.blocks_available() * free.fragment_size()) >> 20;
    if free_mb < memory_mb {
        let what = format!("{MEMORY} has {free_mb} MB free, and {memory_mb} are needed");
        return missing(what, "Choose a smaller --memory-mb, or make it larger.");
    }
    Ok(())
}

/// A machine with data. Dropping it ends everything.
pub(super) struct Stage {
    pub pair: Pair,
    pub password: String,
    /// Which host runs the machine.
    pub active: usize,
    runs: u32,
}

impl Stage {
    /// Boots a machine and fills it.
    pub(super) async fn set(
        options: &Options,
        subject: Subject,
        dir: &Path,
        say: &impl Fn(&str),
    ) -> anyhow::Result<Stage> {
        let Kept { image, password } =
            keep(&options.images, subject.guest.database(), |what| say(what)).await?;
        std::fs::create_dir_all(dir)?;
        let settings = Settings {
            understudy: options.understudy.clone(),
            image,
            memory_mb: subject.memory_mb,
            more: Way::Memory.settings(options.epoch_ms),
            has_lines: false,
        };
        say(&format!(
            "a machine with {}, {} MB of memory and data for \"{}\" of size {}",
            subject.guest, subject.memory_mb, subject.load, subject.size
        ));
        let pair = Pair::start(dir, &settings).await?;
        let stage = Stage {
            pair,
            password,
            active: 0,
            runs: 0,
        };
        let deadline = Instant::now() + BOOTS_WITHIN;
        while let Err(error) = loads::answers(subject.guest, &stage.password).await {
            anyhow::ensure!(
                Instant::now() < deadline,
                "the machine's database does not answer: {error:#}"
            );
            tokio::time::sleep(Duration::from_millis(250)).await;
        }
        loads::fill(subject, &stage.password).await?;
        Ok(stage)
    }

    /// Runs have numbers of their own.
    pub(super) fn next_run(&mut self) -> u32 {
        self.runs += 1;
        self.runs
    }

    /// Starts the standby, and waits until it holds checkpoints.
    pub(super) async fn protect(&mut self) -> anyhow::Result<()> {
        self.pair.restart(1 - self.active)?;
        self.active = self.pair.wait_protected().await?;
        Ok(())
    }

    /// Stops the standby, and waits until the machine runs without one.
    pub(super) async fn unprotect(&mut self) -> anyhow::Result<()> {
        self.pair.kill(1 - self.active)?;
        self.pair.wait_alone(self.active).await
    }

    pub(super) async fn status(&self) -> anyhow::Result<Status> {
        let status = self.pair.status(self.active).await;
        status.context("the active host does not answer")
    }
}
