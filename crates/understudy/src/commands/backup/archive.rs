//! `understudy backup archive`: the log as it becomes durable, images by schedule, and away with what no rule keeps.

use std::convert::Infallible;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use anyhow::Context;
use backup::archive::{Archiver, Copied};
use backup::config::Config;
use backup::create::{Pace, create};
use backup::drill::Drill;
use backup::error::Error;
use backup::expire::expire;
use backup::manifest::{self, ImageId, Manifest};
use backup::repository::Repository;
use backup::source::Source;
use backup::verify::reach_of;
use coordination::records::{BackupState, Member, Record, Role, unix_ms};
use dax::ids::NodeName;
use volume::lsn::Lsn;

use super::opened::{claim, open, progress, registry, rules};
use super::turn::{LATELY, is_ours};
use crate::cli;
use crate::commands::registry::Registry;
use crate::exit::{Code, Failure};

/// How long an archiver waits before it tries again what failed.
const TRY_AGAIN: Duration = Duration::from_secs(5);
/// How often it says how far it is, and looks whether a node has become the active.
const SAY_EVERY: Duration = Duration::from_secs(10);
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
        if let Some(Error::Refused(_)) = error.downcast_ref::<Error>() {
            archive.say_trouble(&error).await;
            return Err(error);
        }
        match error.downcast_ref::<Error>() {
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
    said: BackupState,
    /// When the claim was taken from us.
    taken: Option<Instant>,
    expired: Option<Instant>,
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
        Ok(Archive {
            said: BackupState {
                name: args.name.clone(),
                by: me.clone(),
                by_active: false,
                beat: 0,
                repository: config.repository.clone(),
                image: None,
                image_unix_ms: None,
                archived: None,
                archived_unix_ms: None,
                drill_unix_ms: None,
                trouble: None,
            },
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
        let last = last_image(&self.repository).await?;
        let resumed = match &last {
            Some((image, manifest)) => reach_of(&self.repository, image, manifest).await.ok(),
            None => None,
        };
        let name = self.name.clone();
        let mut source = claim(&self.registry, &self.repository, name, resumed).await?;
        if let Some((_, manifest)) = &last {
            self.note_image(manifest);
        }
        self.say().await?;
        let from = resumed.unwrap_or(source.seal().redo);
        let mut archiver = Archiver::begin(&source, &self.repository, from).await?;
        let mut is_due = last.is_none_or(|(_, last)| is_older(&last, self.config.images_every));
        let (mut imaged, mut told) = (Instant::now(), Instant::now());
        loop {
            is_due |= self.copy_log(&mut archiver, &mut source).await?;
            source.keep(archiver.at()).await?;
            if is_due || imaged.elapsed() > self.config.images_every {
                archiver = self.copy_image(&mut source).await?;
                (is_due, imaged) = (false, Instant::now());
            }
            if told.elapsed() > SAY_EVERY {
                self.say().await?;
                told = Instant::now();
            }
            self.expire().await?;
            tokio::time::sleep(self.config.log_every).await;
        }
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
                tracing::warn!(from = %at, "the zones do not have the log any more: a new image begins");
                Ok(true)
            }
        }
    }

    async fn copy_image(&mut self, source: &mut Source) -> anyhow::Result<Archiver> {
        source.advance().await?;
        let redo = source.seal().redo;
        let mut archiver = Archiver::begin(source, &self.repository, redo).await?;
        let pace = Pace::new(self.config.rate.map(|rate| rate.0));
        let manifest = create(source, &mut archiver, &self.repository, &pace, progress()).await?;
        let (image, written_bytes) = (manifest.id(), manifest.written_bytes);
        tracing::info!(%image, written_bytes, "an image is copied");
        source.let_image_go().await?;
        self.note_image(&manifest);
        self.expired = None;
        Ok(archiver)
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
        let (mut last, mut since) = (None, Instant::now());
        loop {
            let seen = BackupState::load_named(storage, &self.said.name()).await?;
            let sign = seen.as_ref().map(|state| (state.by.clone(), state.beat));
            if sign != last {
                (last, since) = (sign, Instant::now());
            }
            let is_active = self.is_active().await?;
            let silent = since.elapsed();
            let was_taken = self.taken.is_some_and(|when| when.elapsed() < LATELY);
            if is_ours(&self.me, is_active, seen.as_ref(), silent, was_taken) {
                return Ok(());
            }
            tokio::time::sleep(TRY_AGAIN).await;
        }
    }

    /// True if the node beside which it runs is the active.
    async fn is_active(&self) -> anyhow::Result<bool> {
        let members = Member::list(self.registry.storage.as_ref()).await?;
        let mut active = members.iter().filter(|member| member.role == Role::Active);
        Ok(active.any(|member| member.name.as_str() == self.me))
    }

    fn note_image(&mut self, manifest: &Manifest) {
        self.said.image = Some(manifest.id().to_string());
        self.said.image_unix_ms = Some(manifest.begun_unix_ms);
    }

    fn note_log(&mut self, end: Lsn, asked_unix_ms: u64) {
        self.said.archived = Some(end);
        self.said.archived_unix_ms = Some(asked_unix_ms);
        self.said.trouble = None;
    }

    async fn say(&mut self) -> anyhow::Result<()> {
        self.said.by_active = self.is_active().await?;
        self.said.beat = self.said.beat.wrapping_add(1);
        let drill = Drill::last(&self.repository).await?;
        let good = drill.filter(|drill| drill.wrong.is_empty());
        self.said.drill_unix_ms = good.map(|drill| drill.ended_unix_ms);
        Ok(self.said.store(self.registry.storage.as_ref()).await?)
    }

    /// Leaves word of a failure. That this fails as well is likely, and of no use to know.
    async fn say_trouble(&mut self, error: &anyhow::Error) {
        self.said.trouble = Some(format!("{error:#}"));
        let storage = self.registry.storage.as_ref();
        let stored = tokio::time::timeout(TRY_AGAIN, self.said.store(storage)).await;
        tracing::debug!(?stored, "the failure is told");
    }
}

async fn last_image(repository: &Repository) -> Result<Option<(ImageId, Manifest)>, Error> {
    if repository.owner().await?.is_none() {
        return Ok(None);
    }
    match manifest::images(repository).await?.pop() {
        Some(image) => {
            let manifest = Manifest::load(repository, &image).await?;
            Ok(Some((image, manifest)))
        }
        None => Ok(None),
    }
}

fn is_older(manifest: &Manifest, than: Duration) -> bool {
    let begun = UNIX_EPOCH + Duration::from_millis(manifest.begun_unix_ms);
    SystemTime::now()
        .duration_since(begun)
        .is_ok_and(|age| age > than)
}
