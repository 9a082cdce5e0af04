//! Backups by Understudy itself: any moment is restored, over takeovers and with the archiver killed, and what is damaged is told.

use std::path::{Path, PathBuf};
use std::process::Stdio;

use anyhow::{Context, Result, ensure};
use cluster::clients::history::History;
use cluster::clients::session::connect;
use serde_json::Value;
use tokio::process::{Child, Command};

use crate::backups::{Moment, check_all, take_over};
use crate::elsewhere::{Elsewhere, open_directory};
use crate::stage::{Stage, TIMEOUT, program};
use crate::verbs::until;

/// A cluster with a repository, and who fills it.
struct Archived {
    stage: Stage,
    repository: PathBuf,
    archiver: Option<Child>,
    images_every: &'static str,
}

impl Archived {
    async fn start(test: &str, images_every: &'static str) -> Result<Archived> {
        let stage = Stage::with_options(test, &["north", "south"], |options| {
            let parameter = ("checkpoint_timeout".to_owned(), "30s".to_owned());
            options.parameters.push(parameter);
        })
        .await?;
        let repository = open_directory(stage.path(), "repository")?;
        let mut archived = Archived {
            stage,
            repository,
            archiver: None,
            images_every,
        };
        archived.archive()?;
        Ok(archived)
    }

    fn config(&self) -> Result<String> {
        Ok(self
            .stage
            .cluster
            .node("north")?
            .config
            .display()
            .to_string())
    }

    fn place(&self) -> String {
        self.repository.display().to_string()
    }

    /// Begins to archive, in the place of who did before.
    fn archive(&mut self) -> Result<()> {
        let log = std::fs::File::create(self.repository.with_extension("log"))?;
        let archiver = Command::new(program())
            .args(["backup", "archive", "--config", &self.config()?])
            .args([
                "--repository",
                &self.place(),
                "--images-every",
                self.images_every,
                "--log-every",
                "500ms",
            ])
            .stdin(Stdio::null())
            .stderr(log)
            .kill_on_drop(true)
            .spawn()?;
        self.archiver = Some(archiver);
        Ok(())
    }

    /// Kills who archives.
    async fn kill_archiver(&mut self) -> Result<()> {
        let mut archiver = self.archiver.take().context("nobody archives")?;
        Ok(archiver.kill().await?)
    }

    /// The images that are there; none yet if it is no repository yet.
    async fn images(&self) -> Result<Vec<Value>> {
        if !self.repository.join("understudy.json").exists() {
            let log = std::fs::read_to_string(self.repository.with_extension("log"))?;
            ensure!(!log.contains("panicked"), "{log}");
            return Ok(Vec::new());
        }
        let listed = ["backup", "list", "--json", "--repository", &self.place()];
        Ok(serde_json::from_str(
            &self.stage.cluster.run(&listed).await?,
        )?)
    }

    /// Stops the load, and waits until its last commit is archived.
    async fn end_load(&mut self) -> Result<History> {
        let history = self.stage.load.take().context("no load")?.stop().await;
        self.stage.stop_churn().await;
        let active = self.stage.cluster.wait_active(TIMEOUT).await?;
        let client = connect(&self.stage.cluster.server(&active)?.config()).await?;
        let end = "SELECT pg_current_wal_flush_lsn()::text";
        let end = lsn(client.query_one(end, &[]).await?.get(0));
        let look = async || {
            let images = self.images().await?;
            let last = images.last().context("no image")?;
            Ok(lsn(last["to"].as_str().unwrap_or("0/0")))
        };
        until("the log is archived", look, |to| *to >= end).await?;
        Ok(history)
    }

    async fn restore(&self, directory: &Path, to: &str) -> Result<Elsewhere> {
        let at = directory.display().to_string();
        let place = self.place();
        let asked = [
            "backup",
            "restore",
            "--repository",
            &place,
            "--directory",
            &at,
        ];
        let asked = [&asked[..], &["--to", to]].concat();
        self.stage.cluster.run(&asked).await?;
        Elsewhere::start(&self.stage, directory).await
    }

    /// What `backup verify` finds wrong.
    async fn verify(&self) -> Result<Vec<String>> {
        let asked = ["backup", "verify", "--json", "--repository", &self.place()];
        let output = Command::new(program()).args(asked).output().await?;
        let verified: Value = serde_json::from_slice(&output.stdout)?;
        let wrong: Vec<String> = serde_json::from_value(verified["wrong"].clone())?;
        ensure!(output.status.success() == wrong.is_empty(), "{verified}");
        Ok(wrong)
    }
}

fn lsn(text: &str) -> u64 {
    let parts = text.split_once('/').map(|(high, low)| {
        let part = |digits: &str| u64::from_str_radix(digits, 16).unwrap_or(0);
        (part(high) << 32) | part(low)
    });
    parts.unwrap_or(0)
}

/// The time as `backup restore` reads it.
async fn in_utc(stage: &mut Stage, time: &str) -> Result<String> {
    let active = stage.cluster.wait_active(TIMEOUT).await?;
    let client = connect(&stage.cluster.server(&active)?.config()).await?;
    let asked =
        "SELECT to_char($1::text::timestamptz AT TIME ZONE 'UTC', 'YYYY-MM-DD HH24:MI:SS.US')";
    Ok(client.query_one(asked, &[&time]).await?.get(0))
}

// BK1
#[tokio::test(flavor = "multi_thread")]
#[ignore = "system test: make test-system"]
async fn any_moment_is_restored_over_takeovers() -> Result<()> {
    let mut archived = Archived::start("repository", "15s").await?;
    let mut moments = Vec::new();
    for round in 0..3 {
        archived.stage.commits(100).await?;
        until(
            "there is an image",
            async || archived.images().await,
            |images| images.len() > round.min(2),
        )
        .await?;
        if round == 1 {
            archived.kill_archiver().await?;
        }
        moments.push(Moment::now(&mut archived.stage).await?);
        archived.stage.commits(100).await?;
        take_over(&mut archived.stage, 1).await?;
        if round == 1 {
            archived.archive()?;
        }
    }
    archived.stage.commits(200).await?;
    let history = archived.end_load().await?;

    let home = open_directory(archived.stage.path(), "restored")?;
    let restored = archived.restore(&home.join("latest"), "latest").await?;
    check_all(&restored, &history).await?;
    drop(restored);
    for (number, moment) in moments.iter().enumerate() {
        let time = in_utc(&mut archived.stage, &moment.time).await?;
        let directory = home.join(format!("then-{number}"));
        let restored = archived.restore(&directory, &time).await?;
        moment.check(&restored, &history).await?;
    }
    ensure!(archived.verify().await?.is_empty());
    archived.kill_archiver().await?;
    archived.stage.end().await
}

/// Every file below a directory.
fn files(directory: &Path) -> Result<Vec<PathBuf>> {
    let mut all = Vec::new();
    for entry in std::fs::read_dir(directory)? {
        let path = entry?.path();
        match path.is_dir() {
            true => all.extend(files(&path)?),
            false => all.push(path),
        }
    }
    all.sort();
    Ok(all)
}

// BK2
#[tokio::test(flavor = "multi_thread")]
#[ignore = "system test: make test-system"]
async fn a_backup_with_one_bit_changed_or_an_object_missing_is_told() -> Result<()> {
    let mut archived = Archived::start("rotten", "1h").await?;
    archived.stage.commits(100).await?;
    let look = async || archived.images().await;
    until("there is an image", look, |images| !images.is_empty()).await?;
    archived.end_load().await?;
    archived.kill_archiver().await?;
    ensure!(archived.verify().await?.is_empty());
    let home = open_directory(archived.stage.path(), "restored")?;
    for (number, kind) in ["chunks", "images", "log"].into_iter().enumerate() {
        let mut all = files(&archived.repository.join(kind))?;
        if kind == "log" {
            // The beginning of the segment that redo begins in.
            all.retain(|path| {
                path.file_name()
                    .is_some_and(|name| name.to_string_lossy().starts_with("00000000-"))
            });
            all.truncate(1);
        }
        let victim = all.get(all.len() / 2).context("there is none")?;
        let whole = std::fs::read(victim)?;
        let name = victim
            .file_name()
            .context("it has a name")?
            .to_string_lossy()
            .into_owned();
        for damage in ["a bit", "all of it"] {
            match damage {
                "a bit" => {
                    let mut bytes = whole.clone();
                    let middle = bytes.len() / 2;
                    bytes[middle] ^= 4;
                    std::fs::write(victim, bytes)?;
                }
                _ => std::fs::remove_file(victim)?,
            }
            let wrong = archived.verify().await?;
            let is_told = |line: &String| {
                let is_missed = line.contains("does not reach") || line.contains("no image");
                line.contains(&name) || is_missed && kind != "chunks"
            };
            ensure!(wrong.iter().any(is_told), "{kind}, {damage}: {wrong:?}");
            let directory = home.join(format!("none-{number}-{}", damage.len()));
            let refused = archived.restore(&directory, "latest").await;
            let signal = directory.join("recovery.signal");
            ensure!(refused.is_err() && !signal.exists(), "{kind}, {damage}");
            std::fs::write(victim, &whole)?;
        }
    }
    ensure!(archived.verify().await?.is_empty(), "it is whole again");
    archived.stage.end().await
}
