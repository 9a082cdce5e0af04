//! `understudy backup archive`: the log as it becomes durable, images by schedule, and away with what no rule keeps.

use std::convert::Infallible;
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use anyhow::Context;
use backup::archive::{Archiver, Copied};
use backup::config::Config;
use backup::create::{How, Pace, create};
use backup::error::Error;
use backup::expire::expire;
use backup::log::Log;
use backup::manifest::{self, Manifest};
use backup::repository::Repository;
use backup::source::Source;
use coordination::records::{BackupState, Member, Record, RecordError, Role, unix_ms};
use coordination::tier;
use dax::ids::NodeName;
use dax::storage::Storage;
use parking_lot::Mutex;
use tokio::task::JoinHandle;
use volume::lsn::Lsn;

use super::opened::{claim, open, progress, registry, rules};
use super::schedule::{self, Schedule};
use super::turn::{LATELY, is_ours};
use crate::cli;
use crate::commands::registry::Registry;
use crate::exit::{Code, Failure};

/// How long an archiver waits before it tries again what failed.
const TRY_AGAIN: Duration = Duration::from_secs(5);
/// How often it says how far it is, and looks whether a node has become the active.
const SAY_EVERY: Duration = Duration::from_secs(10);
/// How long after an image that failed the next is tried.
const IMAGE_AGAIN: Duration = Duration::from_secs(60);
/// How often what no rule keeps is removed.
const EXPIRE_EVERY: Duration = Duration::from_secs(3600);

/// Archives until it is asked to end.
pub(super) async fn run(args: cli::ArchiveLog) -> anyhow::Result<Code> {
    let stopped = crate::commands::process::asked_to_end(args.until_stdin_closes);
    tokio::pin!(stopped);
    let mut archive = loop {
        match Archive::open(&args).await {
            Ok(archive) => break archive,
            // Beside an agent the zones may not be there yet.
            Err(error) if args.until_stdin_closes && error.downcast_ref::<Failure>().is_none() => {
                tracing::warn!(
                    error = format!("{error:#}"),
                    "backups are tried again in 5 s"
                );
            }
            Err(error) => return Err(error),
        }
        tokio::select! {
            () = &mut stopped => return Ok(Code::Ok),
            () = tokio::time::sleep(TRY_AGAIN) => {}
        }
    };
    loop {
        let failed = tokio::select! {
            () = &mut stopped => return Ok(Code::Ok),
            done = archive.go_on() => done,
        };
        let Err(error) = failed;
        match error.downcast_ref::<Error>() {
            Some(Error::NotOurs(_)) => {
                archive.say_trouble(&error).await;
                return Err(error);
            }
            Some(Error::Volume(volume::error::Error::ClaimLost)) => {
                archive.taken = Some(Instant::now());
            }
            _ => archive.say_trouble(&error).await,
        }
        tracing::warn!(
            error = format!("{error:#}"),
            "the archive is tried again in 5 s"
        );
        tokio::select! {
            () = &mut stopped => return Ok(Code::Ok),
            () = tokio::time::sleep(TRY_AGAIN) => {}
        }
    }
}

/// Settings of the command line, or of `[backup]` in the node's file.
fn settings(args: &cli::ArchiveLog) -> anyhow::Result<Config> {
    let mut config = match &args.repository {
        Some(repository) => {
            let table = toml::Table::from_iter([(
                "repository".to_owned(),
                toml::Value::String(repository.clone()),
            )]);
            Config::parse(&table.to_string())
        }
        None => {
            let advice = "Write [backup] and below it for example repository = \"/mnt/backup\", or give --repository.";
            let check = node::config::Config::check_keys;
            let (_, table) =
                crate::commands::process::load_table(&args.config, check, "backup", advice)?;
            Config::parse(&table)
        }
    }
    .map_err(|said| Failure::new(Code::Usage, said))?;
    config.key_file = args.key_file.clone().or(config.key_file);
    config.images_every = args.images_every.unwrap_or(config.images_every);
    config.log_every = args.log_every.unwrap_or(config.log_every);
    if let Some(text) = &args.keep {
        config.keep = Some(rules(text)?);
    }
    config.log_for = args.log_for.unwrap_or(config.log_for);
    config.rate = args.rate.or(config.rate);
    Ok(config)
}

/// A cluster, its repository, and what was said of it last.
struct Archive {
    registry: Registry,
    repository: Repository,
    config: Config,
    name: NodeName,
    me: String,
    said: Arc<Mutex<BackupState>>,
    /// When the claim was taken from us.
    taken: Option<Instant>,
    expired: Option<Instant>,
    drills: Option<Schedule>,
}

/// Says now and then that somebody archives, whatever takes long; until it is dropped.
struct Beat(JoinHandle<()>);

impl Drop for Beat {
    fn drop(&mut self) {
        self.0.abort();
    }
}

impl Beat {
    fn start(storage: Arc<dyn Storage>, me: String, said: Arc<Mutex<BackupState>>) -> Beat {
        Beat(tokio::spawn(async move {
            loop {
                if let Err(error) = beat(storage.as_ref(), &me, &said).await {
                    tracing::warn!(%error, "cannot write the archive's state to the zones");
                }
                tokio::time::sleep(SAY_EVERY).await;
            }
        }))
    }
}

async fn beat(
    storage: &dyn Storage,
    me: &str,
    said: &Mutex<BackupState>,
) -> Result<(), RecordError> {
    let by_active = is_active(storage, me).await?;
    let state = {
        let mut said = said.lock();
        said.by_active = by_active;
        said.beat = said.beat.wrapping_add(1);
        said.clone()
    };
    state.store(storage).await
}

/// True if the node beside which it runs is the active.
async fn is_active(storage: &dyn Storage, me: &str) -> Result<bool, RecordError> {
    let members = Member::list(storage).await?;
    let mut active = members.iter().filter(|member| member.role == Role::Active);
    Ok(active.any(|member| member.name.as_str() == me))
}

impl Archive {
    async fn open(args: &cli::ArchiveLog) -> anyhow::Result<Archive> {
        let config = settings(args)?;
        let registry = registry(&args.config).await?;
        let repository = open(&config.repository, config.key_file.as_deref())?;
        let me = match args.until_stdin_closes {
            true => registry.config.cluster().name.to_string(),
            false => nix::unistd::gethostname()
                .context("this machine has no name")?
                .to_string_lossy()
                .into_owned(),
        };
        let said = BackupState::new(args.name.clone(), &me, &config.repository);
        Ok(Archive {
            drills: Schedule::new(&config, &registry.postgres()?.postgres),
            said: Arc::new(Mutex::new(said)),
            registry,
            repository,
            config,
            name: args.name.clone(),
            me,
            taken: None,
            expired: None,
        })
    }

    /// Waits for its turn, and archives then until something fails.
    async fn go_on(&mut self) -> anyhow::Result<Infallible> {
        self.wait_turn().await?;
        let last = match self.repository.owner().await? {
            Some(_) => manifest::last(&self.repository).await?,
            None => None,
        };
        let resumed = match &last {
            Some(manifest) => {
                let log = Log::of(&self.repository, manifest).await;
                log.and_then(|log| log.reach(manifest)).ok()
            }
            None => None,
        };
        let name = self.name.clone();
        let mut source = claim(&self.registry, &self.repository, name, resumed).await?;
        if let Some(manifest) = &last {
            self.note_image(manifest);
        }
        let storage = self.registry.storage.clone();
        let _beat = Beat::start(storage, self.me.clone(), self.said.clone());
        let from = resumed.unwrap_or(source.seal().redo);
        let mut archiver = Archiver::begin(&source, &self.repository, from).await?;
        let is_needed = resumed.is_none();
        let is_due = is_needed || last.is_none_or(|last| is_older(&last, self.config.images_every));
        let mut next_image = Instant::now();
        if !is_due {
            next_image += self.config.images_every;
        }
        let mut looked = Instant::now();
        loop {
            if self.copy_log(&mut archiver, &mut source).await? {
                next_image = next_image.min(Instant::now());
            }
            source.keep(archiver.at()).await?;
            if next_image <= Instant::now() {
                next_image = match self.copy_image(&mut source).await {
                    Ok(newer) => {
                        archiver = newer;
                        Instant::now() + self.config.images_every
                    }
                    Err(error) => self.without_image(error, &mut source).await?,
                };
            }
            if looked.elapsed() > SAY_EVERY {
                self.check_moved().await?;
                self.look_after(&source, &archiver).await?;
                looked = Instant::now();
            }
            tokio::time::sleep(self.config.log_every).await;
        }
    }

    /// Goes on with the log after an image that failed. Returns when the next is tried.
    async fn without_image(
        &mut self,
        error: anyhow::Error,
        source: &mut Source,
    ) -> anyhow::Result<Instant> {
        match error.downcast_ref::<Error>() {
            Some(Error::Expiring) => {
                tracing::info!("an image waits until an expiry has ended");
                source.let_image_go().await?;
                return Ok(Instant::now() + TRY_AGAIN);
            }
            Some(Error::Refused(_) | Error::Damaged { .. } | Error::Missing(_)) => {}
            _ => return Err(error),
        }
        tracing::warn!(
            error = format!("{error:#}"),
            "no image is copied; WAL still is"
        );
        self.say_trouble(&error).await;
        source.let_image_go().await?;
        Ok(Instant::now() + IMAGE_AGAIN)
    }

    /// Copies the log. True if a new image is needed, because some of the log is gone.
    async fn copy_log(
        &mut self,
        archiver: &mut Archiver,
        source: &mut Source,
    ) -> Result<bool, Error> {
        let asked_unix_ms = unix_ms();
        match archiver.copy(source).await? {
            Copied::To(end) => {
                self.note_log(end, asked_unix_ms);
                Ok(false)
            }
            Copied::Later => Ok(false),
            Copied::Gap(at) => {
                tracing::warn!(from = %at, "the zones no longer have the WAL that follows: a new image begins");
                Ok(true)
            }
        }
    }

    async fn copy_image(&mut self, source: &mut Source) -> anyhow::Result<Archiver> {
        source.advance().await?;
        let redo = source.seal().redo;
        let mut archiver = Archiver::begin(source, &self.repository, redo).await?;
        let how = How {
            pace: Pace::new(self.config.rate.map(|rate| rate.0)),
            is_full: false,
        };
        let manifest = create(source, &mut archiver, &self.repository, &how, progress()).await?;
        let image = manifest.id();
        let (read_bytes, written_bytes) = (manifest.read_bytes, manifest.written_bytes);
        tracing::info!(%image, read_bytes, written_bytes, "an image is copied");
        source.let_image_go().await?;
        self.note_image(&manifest);
        self.expired = None;
        Ok(archiver)
    }

    /// Everything but log and images: what the next image need not read, drills, expiry.
    async fn look_after(&mut self, source: &Source, archiver: &Archiver) -> anyhow::Result<()> {
        self.repository.put_changes(source).await?;
        if let Some(tip) = archiver.tip() {
            tip.put(&self.repository).await?;
        }
        let drill = schedule::last(&self.repository).await?;
        let has_image = self.said.lock().image.is_some();
        if let Some(drills) = self.drills.as_mut().filter(|_| has_image) {
            drills
                .look(drill.as_ref())
                .context("no restore can be tried")?;
        }
        let good = drill.filter(|drill| drill.wrong.is_empty());
        self.said.lock().drill_unix_ms = good.map(|drill| drill.ended_unix_ms);
        match self.expire().await {
            Err(error @ (Error::Damaged { .. } | Error::Missing(_))) => {
                let error = anyhow::Error::from(error).context("nothing is removed");
                tracing::warn!(error = format!("{error:#}"), "the archive goes on");
                self.say_trouble(&error).await;
                self.expired = Some(Instant::now());
                Ok(())
            }
            done => Ok(done?),
        }
    }

    async fn expire(&mut self) -> Result<(), Error> {
        let Some(policy) = self.config.policy() else {
            return Ok(());
        };
        if self
            .expired
            .is_some_and(|last| last.elapsed() < EXPIRE_EVERY)
        {
            return Ok(());
        }
        let gone = expire(&self.repository, &policy).await?;
        let (images, segments, chunks) = (gone.images.len(), gone.segments, gone.chunks);
        if images + segments + chunks > 0 {
            tracing::info!(images, segments, chunks, "what no rule keeps was removed");
        }
        self.expired = Some(Instant::now());
        Ok(())
    }

    /// Waits until nobody else archives.
    async fn wait_turn(&self) -> anyhow::Result<()> {
        let storage = self.registry.storage.as_ref();
        let name = self.said.lock().name();
        let (mut last, mut since) = (None, Instant::now());
        loop {
            self.check_moved().await?;
            let seen = BackupState::load_named(storage, &name).await?;
            let sign = seen.as_ref().map(|state| (state.by.clone(), state.beat));
            let is_alive = last.is_some() && sign != last;
            if sign != last {
                (last, since) = (sign, Instant::now());
            }
            if let Some(other) = seen.as_ref().filter(|_| is_alive)
                && other.repository != self.config.repository
            {
                let (name, place) = (&self.name, &other.repository);
                return Err(Error::NotOurs(format!(
                    "{name} archives into {place} already: give this archiver another --name"
                ))
                .into());
            }
            let is_active = is_active(storage, &self.me).await?;
            let silent = since.elapsed();
            let was_taken = self.taken.is_some_and(|when| when.elapsed() < LATELY);
            if is_ours(&self.me, is_active, seen.as_ref(), silent, was_taken) {
                return Ok(());
            }
            tokio::time::sleep(TRY_AGAIN).await;
        }
    }

    /// Ends the archive of a volume that the database has left: what follows there is another history.
    async fn check_moved(&self) -> anyhow::Result<()> {
        let storage = self.registry.storage.as_ref();
        match tier::has_moved(self.registry.config.cluster(), storage).await? {
            None => Ok(()),
            Some(moved) => Err(Error::NotOurs(format!(
                "the database goes on in the volume {}: give that a repository of its own",
                moved.volume
            ))
            .into()),
        }
    }

    fn note_image(&self, manifest: &Manifest) {
        let mut said = self.said.lock();
        said.image = Some(manifest.id().to_string());
        said.image_unix_ms = Some(manifest.begun_unix_ms);
        said.trouble = None;
    }

    fn note_log(&self, end: Lsn, asked_unix_ms: u64) {
        let mut said = self.said.lock();
        said.archived = Some(end);
        said.archived_unix_ms = Some(asked_unix_ms);
    }

    /// Leaves word of a failure. That this fails as well is likely, and of no use to know.
    async fn say_trouble(&self, error: &anyhow::Error) {
        let state = {
            let mut said = self.said.lock();
            said.trouble = Some(format!("{error:#}"));
            said.clone()
        };
        let stored = state.store(self.registry.storage.as_ref());
        let stored = tokio::time::timeout(TRY_AGAIN, stored).await;
        tracing::debug!(?stored, "the failure is reported");
    }
}

fn is_older(manifest: &Manifest, than: Duration) -> bool {
    let begun = UNIX_EPOCH + Duration::from_millis(manifest.begun_unix_ms);
    SystemTime::now()
        .duration_since(begun)
        .is_ok_and(|age| age > than)
}
