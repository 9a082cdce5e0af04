//! Shared by all commands of backups: repositories, claims, and words for who waits.

use std::io::IsTerminal;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use backup::create::Progress;
use backup::expire::Keep;
use backup::repository::Repository;
use backup::source::Source;
use coordination::records::{Member, Record};
use dax::credentials::Secret;
use dax::ids::NodeName;
use volume::lsn::Lsn;

use crate::cli;
use crate::commands::registry::{Registry, in_time};
use crate::demo::timeline::thousands;
use crate::exit::{Code, Failure};

/// How often a person hears how far something is.
const TELL_EVERY: Duration = Duration::from_secs(1);

/// Opens a place, which need not be a repository yet.
pub(crate) fn open(place: &str, key_file: Option<&Path>) -> anyhow::Result<Repository> {
    let secret = key_file.map(Secret::load).transpose()?;
    Ok(Repository::open(&self::place(place)?, secret.as_ref())?)
}

/// A place as every process knows it.
pub(crate) fn place(place: &str) -> anyhow::Result<String> {
    Ok(match place.contains("://") {
        true => place.to_owned(),
        false => std::path::absolute(place)?.display().to_string(),
    })
}

/// A repository that is one.
pub(super) async fn existing(place: &cli::BackupPlace) -> anyhow::Result<Repository> {
    let repository = open(&place.repository, place.key_file.as_deref())?;
    match repository.owner().await? {
        Some(_) => Ok(repository),
        None => Err(Failure::new(
            Code::Usage,
            format!("{} is no repository of backups", place.repository),
        )
        .into()),
    }
}

/// The way to a cluster with PostgreSQL.
pub(super) async fn registry(config: &Path) -> anyhow::Result<Registry> {
    let registry = Registry::open(config).await?;
    registry.postgres()?;
    Ok(registry)
}

pub(super) async fn claim(
    registry: &Registry,
    repository: &Repository,
    name: NodeName,
    log_from: Option<Lsn>,
) -> anyhow::Result<Source> {
    let members = in_time(async { Ok(Member::list(registry.storage.as_ref()).await?) }).await?;
    if members.iter().any(|member| member.name == name) {
        let said = format!("{name} is a node: give another --name");
        return Err(Failure::new(Code::Usage, said).into());
    }
    let source = Source::claim(registry.storage.clone(), name, log_from).await?;
    let volume = registry.config.cluster().stored_in().to_string();
    repository
        .belong_to(&volume, &source.cluster().await?)
        .await?;
    Ok(source)
}

/// Says how far something is, where a person looks: so much of so much, in megabytes, and how long the rest takes.
pub(super) fn teller() -> impl FnMut(u64, u64) {
    let began = Instant::now();
    let mut last = began;
    let is_seen = std::io::stderr().is_terminal();
    move |done: u64, of: u64| {
        if is_seen && last.elapsed() > TELL_EVERY && done > 0 {
            last = Instant::now();
            let rest = began.elapsed().as_secs_f64() * of.saturating_sub(done) as f64 / done as f64;
            eprintln!(
                "{} of {} MB, {rest:.0} s to go",
                thousands(done >> 20),
                thousands(of >> 20)
            );
        }
    }
}

pub(super) fn progress() -> impl FnMut(Progress) {
    let mut tell = teller();
    move |progress: Progress| tell(progress.done_bytes, progress.size_bytes)
}

pub(super) fn rules(text: &str) -> anyhow::Result<Keep> {
    Ok(text
        .parse()
        .map_err(|said: String| Failure::new(Code::Usage, said))?)
}

/// The directory of PostgreSQL's programs of a major version: the one that was given, or Debian's.
pub(super) fn programs(given: Option<PathBuf>, major: &str) -> PathBuf {
    given.unwrap_or_else(|| PathBuf::from(format!("/usr/lib/postgresql/{major}/bin")))
}
