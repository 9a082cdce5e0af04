//! Backups by Understudy itself: any moment is restored, over takeovers and with the archiver killed, and what is damaged is told.

use std::path::{Path, PathBuf};
use std::process::Stdio;

use anyhow::{Context, Result, ensure};
use cluster::Options;
use cluster::clients::history::History;
use cluster::clients::session::connect;
use cluster::elsewhere::{Elsewhere, open_directory};
use dax::credentials::{Secret, write_new};
use serde_json::Value;
use tokio::process::{Child, Command};

#[path = "../../../backup/tests/support/object_server.rs"]
mod object_server;

use self::object_server::ObjectServer;
use crate::backups::{Moment, check_all, take_over, wanted};
use crate::rest::ask;
use crate::stage::{Stage, TIMEOUT, program};
use crate::verbs::until;

/// A cluster with a repository, and who fills it.
pub struct Archived {
    pub stage: Stage,
    place: Place,
    archiver: Option<Child>,
    images_every: &'static str,
}

/// Where a repository is, with everything that a command needs to know of it.
enum Place {
    Directory(PathBuf),
    /// A bucket whose objects lie in this directory, encrypted with the key of this file.
    Bucket {
        server: ObjectServer,
        directory: PathBuf,
        key: PathBuf,
    },
}

impl Place {
    fn directory(home: &Path) -> Result<Place> {
        Ok(Place::Directory(open_directory(home, "repository")?))
    }

    async fn bucket(home: &Path) -> Result<Place> {
        let directory = open_directory(home, "objects")?;
        std::fs::create_dir(directory.join("backups"))?;
        let key = home.join("backup.key");
        write_new(&key, &Secret::random()?.to_hex())?;
        Ok(Place::Bucket {
            server: ObjectServer::start(&directory).await,
            directory,
            key,
        })
    }

    /// The object that every repository has.
    fn marker(&self) -> PathBuf {
        match self {
            Place::Directory(directory) => directory.join("understudy.json"),
            Place::Bucket { directory, .. } => directory.join("backups/app/understudy.json"),
        }
    }

    /// A command of backups, on this repository.
    fn command(&self, verb: &[&str]) -> Command {
        let mut command = Command::new(program());
        command.args(verb).stdin(Stdio::null()).kill_on_drop(true);
        match self {
            Place::Directory(directory) => {
                command.arg("--repository").arg(directory);
            }
            Place::Bucket { server, key, .. } => {
                command.args(["--repository", "s3://backups/app", "--key-file"]);
                command.arg(key).envs(server.environment());
            }
        }
        command
    }

    async fn run(&self, verb: &[&str]) -> Result<String> {
        let output = self.command(verb).output().await?;
        ensure!(output.status.success(), "{verb:?}: {output:?}");
        Ok(String::from_utf8_lossy(&output.stdout).into_owned())
    }
}

impl Archived {
    /// Begins, with the PostgreSQL in `bin` or else the usual one.
    pub async fn start(
        test: &str,
        images_every: &'static str,
        is_bucket: bool,
        bin: Option<&Path>,
    ) -> Result<Archived> {
        let stage = Stage::with_options(test, &["north", "south"], |options| {
            often_sealed(options);
            options.bin = bin.map_or(options.bin.clone(), Path::to_owned);
        })
        .await?;
        let place = match is_bucket {
            true => Place::bucket(stage.path()).await?,
            false => Place::directory(stage.path())?,
        };
        let mut archived = Archived {
            stage,
            place,
            archiver: None,
            images_every,
        };
        archived.archive()?;
        Ok(archived)
    }

    /// Begins to archive, in the place of who did before.
    fn archive(&mut self) -> Result<()> {
        let log = std::fs::File::create(self.log())?;
        let north = &self.stage.cluster.node("north")?.config;
        let archiver = self
            .place
            .command(&["backup", "archive", "--log-every", "500ms"])
            .args(["--images-every", self.images_every, "--config"])
            .arg(north)
            .stderr(log)
            .spawn()?;
        self.archiver = Some(archiver);
        Ok(())
    }

    /// The repository, if it is a directory.
    pub fn directory(&self) -> Option<&Path> {
        match &self.place {
            Place::Directory(directory) => Some(directory),
            Place::Bucket { .. } => None,
        }
    }

    /// Waits until the log is in the repository up to there.
    pub async fn has_log(&self, position: &str) -> Result<()> {
        let look = async || {
            let images = self.images().await?;
            let last = images.last().context("no image")?;
            Ok(lsn(last["to"].as_str().unwrap_or("0/0")))
        };
        let position = lsn(position);
        until("the log is archived", look, |to| *to >= position).await?;
        Ok(())
    }

    fn log(&self) -> PathBuf {
        self.stage.path().join("archiver.log")
    }

    /// Begins to archive, with an image every so often.
    pub fn archive_every(&mut self, images_every: &'static str) -> Result<()> {
        self.images_every = images_every;
        self.archive()
    }

    /// Waits until there are so many images.
    pub async fn has_images(&self, count: usize) -> Result<()> {
        let look = async || self.images().await;
        until("there is an image", look, |images| images.len() >= count).await?;
        Ok(())
    }

    /// Kills who archives.
    pub async fn kill_archiver(&mut self) -> Result<()> {
        let mut archiver = self.archiver.take().context("nobody archives")?;
        Ok(archiver.kill().await?)
    }

    /// The images that are there; none yet if it is no repository yet.
    async fn images(&self) -> Result<Vec<Value>> {
        if !self.place.marker().exists() {
            let log = std::fs::read_to_string(self.log()).unwrap_or_default();
            ensure!(!log.contains("panicked"), "{log}");
            return Ok(Vec::new());
        }
        let listed = self.place.run(&["backup", "list", "--json"]).await?;
        Ok(serde_json::from_str(&listed)?)
    }

    /// Stops the load, and waits until its last commit is archived.
    pub async fn end_load(&mut self) -> Result<History> {
        let history = self.stage.load.take().context("no load")?.stop().await;
        self.stage.stop_churn().await;
        let active = self.stage.cluster.wait_active(TIMEOUT).await?;
        let client = connect(&self.stage.cluster.server(&active)?.config()).await?;
        let end = "SELECT pg_current_wal_flush_lsn()::text";
        let end: String = client.query_one(end, &[]).await?.get(0);
        self.has_log(&end).await?;
        Ok(history)
    }

    pub async fn restore(&self, directory: &Path, to: &str) -> Result<Elsewhere> {
        let at = directory.display().to_string();
        let asked = ["backup", "restore", "--directory", &at, "--to", to];
        self.place.run(&asked).await?;
        Elsewhere::start(&self.stage.cluster, directory, TIMEOUT).await
    }

    /// What `backup verify` finds wrong.
    pub async fn verify(&self) -> Result<Vec<String>> {
        let output = self.place.command(&["backup", "verify", "--json"]).output();
        let output = output.await?;
        let verified: Value = serde_json::from_slice(&output.stdout)?;
        let wrong: Vec<String> = serde_json::from_value(verified["wrong"].clone())?;
        ensure!(output.status.success() == wrong.is_empty(), "{verified}");
        Ok(wrong)
    }
}

fn often_sealed(options: &mut Options) {
    let parameter = ("checkpoint_timeout".to_owned(), "30s".to_owned());
    options.parameters.push(parameter);
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

/// Rounds of the test of moments, and moments of each; more of them by hand.
const ROUNDS: (&str, usize) = ("UNDERSTUDY_TEST_ROUNDS", 3);
const MOMENTS: (&str, usize) = ("UNDERSTUDY_TEST_MOMENTS", 1);

// BK1
// hazard: BACKUP-1, BACKUP-2
#[tokio::test(flavor = "multi_thread")]
#[ignore = "system test: make test-system"]
async fn any_moment_is_restored_over_takeovers() -> Result<()> {
    let mut archived = Archived::start("repository", "15s", true, None).await?;
    let mut moments = Vec::new();
    let rounds = wanted(ROUNDS)?;
    for round in 0..rounds {
        archived.stage.commits(100).await?;
        until(
            "there is an image",
            async || archived.images().await,
            |images| images.len() > round.min(2),
        )
        .await?;
        let is_killed = round % 3 == 1;
        if is_killed {
            archived.kill_archiver().await?;
        }
        for _ in 0..wanted(MOMENTS)? {
            moments.push(Moment::now(&mut archived.stage).await?);
            archived.stage.commits(100).await?;
        }
        take_over(&mut archived.stage, 1).await?;
        if is_killed {
            archived.archive()?;
        }
    }
    archived.stage.commits(200).await?;
    let history = archived.end_load().await?;
    archived.kill_archiver().await?;

    let home = open_directory(archived.stage.path(), "restored")?;
    let restored = archived.restore(&home.join("latest"), "latest").await?;
    check_all(&restored, &history).await?;
    drop(restored);
    for (number, moment) in moments.iter().enumerate() {
        let time = in_utc(&mut archived.stage, &moment.time).await?;
        let directory = home.join(format!("then-{number}"));
        let restored = archived.restore(&directory, &time).await?;
        moment.check(&restored, &history).await?;
        drop(restored);
        std::fs::remove_dir_all(&directory)?;
    }
    ensure!(archived.verify().await?.is_empty());
    archived.stage.end().await
}

/// Makes an image of what was written since the last one, and one of the same moment for which all is read: that finds nothing
/// that is not there.
async fn nothing_is_taken_over_that_was_written(archived: &mut Archived) -> Result<()> {
    let active = archived.stage.cluster.wait_active(TIMEOUT).await?;
    let client = connect(&archived.stage.cluster.server(&active)?.config()).await?;
    client.batch_execute("CHECKPOINT").await?;
    let north = &archived.stage.cluster.node("north")?.config;
    let config = north.display().to_string();
    let create = ["backup", "create", "--json", "--config", &config];
    let last = archived.images().await?.pop().context("no image")?;
    let look = async || {
        let told = archived.place.run(&create).await?;
        Ok(serde_json::from_str::<Value>(&told)?)
    };
    let is_newer = |image: &Value| image["from"] != last["from"];
    let image = until("the checkpoint is sealed", look, is_newer).await?;
    let number = |image: &Value, key: &str| image[key].as_u64().unwrap_or_default();
    let (read, size) = (number(&image, "read_bytes"), number(&image, "size_bytes"));
    // Catalogs of other databases alone are more than a tenth.
    ensure!(
        read > 0 && read < size / 10 * 9,
        "{read} of {size} bytes were read"
    );
    let full = archived
        .place
        .run(&[&create[..], &["--full"]].concat())
        .await?;
    let full: Value = serde_json::from_str(&full)?;
    ensure!(full["from"] == image["from"], "{full} is of another moment");
    ensure!(number(&full, "read_bytes") == size, "{full}");
    ensure!(
        number(&full, "written_bytes") == 0,
        "{full} has what {image} lacks"
    );
    Ok(())
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
// hazard: BACKUP-3, BACKUP-4, BACKUP-6, BACKUP-9, BACKUP-14
#[tokio::test(flavor = "multi_thread")]
#[ignore = "system test: make test-system"]
async fn a_backup_with_one_bit_changed_or_an_object_missing_is_told() -> Result<()> {
    let mut archived = Archived::start("rotten", "1h", false, None).await?;
    archived.stage.commits(100).await?;
    let look = async || archived.images().await;
    until("there is an image", look, |images| !images.is_empty()).await?;
    archived.end_load().await?;
    archived.kill_archiver().await?;
    ensure!(archived.verify().await?.is_empty());
    let home = open_directory(archived.stage.path(), "restored")?;
    let Place::Directory(repository) = &archived.place else {
        unreachable!("it was made as a directory");
    };
    for (number, kind) in ["chunks", "images", "log"].into_iter().enumerate() {
        let mut all = files(&repository.join(kind))?;
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
    let piece = files(&repository.join("chunks"))?
        .pop()
        .context("no piece")?;
    let whole = std::fs::read(&piece)?;
    std::fs::write(&piece, &whole[1..])?;
    let repair = ["backup", "verify", "--repair", "--json"];
    let output = archived.place.command(&repair).output().await?;
    let said: Value = serde_json::from_slice(&output.stdout)?;
    ensure!(said["set_aside"] == 1 && !piece.exists(), "{said}");
    let aside = repository
        .join("damaged")
        .join(piece.strip_prefix(repository)?);
    ensure!(std::fs::read(aside)? == whole[1..], "it is kept");
    std::fs::write(&piece, &whole)?;
    nothing_is_taken_over_that_was_written(&mut archived).await?;
    archived.stage.end().await
}

// BK3
// hazard: BACKUP-7, BACKUP-13
#[tokio::test(flavor = "multi_thread")]
#[ignore = "system test: make test-system"]
async fn agents_archive_in_turns_and_a_drill_shows_that_it_can_be_restored() -> Result<()> {
    let mut repository = None;
    let stage = Stage::with_options("turns", &["north", "south"], |options| {
        often_sealed(options);
        let made = open_directory(&options.dir, "repository");
        let drills = open_directory(&options.dir, "drills");
        if let (Ok(directory), Ok(drills)) = (&made, drills) {
            options.backup = vec![
                format!("repository = \"{}\"", directory.display()),
                "images_every = \"20s\"".to_owned(),
                "log_every = \"500ms\"".to_owned(),
                "keep = \"all for 1d\"".to_owned(),
                "drill_every = \"1d\"".to_owned(),
                format!("drill_directory = \"{}/drill\"", drills.display()),
            ];
        }
        repository = Some(made);
    })
    .await?;
    let mut archived = Archived {
        stage,
        place: Place::Directory(repository.context("options were asked for")??),
        archiver: None,
        images_every: "20s",
    };
    archived.stage.commits(100).await?;
    for _ in 0..2 {
        let active = archived.stage.cluster.wait_active(TIMEOUT).await?;
        let look = async || {
            let status: Value = serde_json::from_str(&archived.stage.cluster.ask("status").await?)?;
            Ok(status["backups"][0].clone())
        };
        let archives = |told: &Value| {
            let by = told["by"].as_str().unwrap_or_default();
            !by.is_empty()
                && by != active
                && !told["image"].is_null()
                && !told["archived"].is_null()
        };
        until("a standby archives", look, archives).await?;
        archived.stage.commits(100).await?;
        take_over(&mut archived.stage, 1).await?;
    }
    let history = archived.end_load().await?;
    let look = async || {
        let told = archived.place.run(&["timeline", "--json"]).await?;
        Ok(serde_json::from_str::<Value>(&told)?["drill"]["wrong"].clone())
    };
    let is_well = |wrong: &Value| wrong.as_array().is_some_and(Vec::is_empty);
    until("a restore was tried by itself", look, is_well).await?;
    let home = open_directory(archived.stage.path(), "restored")?;
    let restored = archived.restore(&home.join("latest"), "latest").await?;
    check_all(&restored, &history).await?;
    drop(restored);

    let directory = home.join("drill").display().to_string();
    let drill = ["backup", "drill", "--directory", &directory, "--query"];
    let asked = "SELECT count(*) > 100 FROM understudy_ledger";
    let told = archived.place.run(&[&drill[..], &[asked]].concat()).await?;
    ensure!(told.contains("all is well"), "{told}");
    ensure!(!home.join("drill").exists(), "nothing of it stays");
    let asks = [&drill[..], &["SELECT false"]].concat();
    let wrong = archived.place.command(&asks).output().await?;
    let said = String::from_utf8_lossy(&wrong.stdout);
    ensure!(
        wrong.status.code() == Some(1) && said.contains("SELECT false"),
        "{wrong:?}"
    );
    let told = archived.place.run(&["timeline"]).await?;
    ensure!(told.contains("SELECT false"), "{told}");
    ensure!(told.contains("every moment from here"), "{told}");
    ensure!(archived.verify().await?.is_empty());

    let port = archived.stage.cluster.node("north")?.rest_port;
    let look = async || Ok(ask(port, "GET /metrics", "", "").await?.1);
    let shown = |text: &String| text.contains("understudy_backup_age_seconds{");
    until("a node shows it", look, shown).await?;
    archived.stage.end().await
}
