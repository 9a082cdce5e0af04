//! `understudy backup` and `understudy timeline`: images and log outside of the zones.

mod archive;
mod drill;
mod restore;
mod show;
mod turn;

use std::io::IsTerminal;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use backup::archive::{Archiver, Copied};
use backup::create::{Pace, Progress, create};
use backup::error::Error;
use backup::expire::{Keep, Policy, expire};
use backup::manifest::Manifest;
use backup::repository::Repository;
use backup::source::Source;
use backup::verify::reach_of;
use coordination::records::{Member, Record};
use dax::credentials::Secret;
use dax::ids::NodeName;
use serde_json::json;
use volume::lsn::Lsn;

use super::registry::{Registry, in_time};
use crate::cli;
use crate::demo::timeline::thousands;
use crate::exit::{Code, Failure};

/// How often a person hears how far something is.
const TELL_EVERY: Duration = Duration::from_secs(1);

/// Runs what was asked for.
pub async fn run(command: cli::Backup) -> anyhow::Result<Code> {
    let done = match command {
        cli::Backup::Create(args) => create_now(args).await,
        cli::Backup::Archive(args) => archive::run(args).await,
        cli::Backup::List(args) => show::list(args).await,
        cli::Backup::Verify(args) => show::verify_all(args).await,
        cli::Backup::Restore(args) => restore::run(args).await,
        cli::Backup::Drill(args) => drill::run(args).await,
        cli::Backup::Expire(args) => expire_now(args).await,
    };
    done.map_err(explain)
}

/// `understudy timeline`
pub async fn timeline(args: cli::BackupRepository) -> anyhow::Result<Code> {
    show::timeline(args).await.map_err(explain)
}

/// Exit code and advice for an error, for who gave the command.
fn explain(error: anyhow::Error) -> anyhow::Error {
    let advice = match error.downcast_ref::<Error>() {
        Some(Error::Refused(_) | Error::OutOfReach { .. }) => (Code::Refused, None),
        Some(Error::Volume(volume::error::Error::ClaimLost)) => (
            Code::Failed,
            Some(
                "The active gave back what was being read: it needed more log than storage.claim_cap allows, or the zones were out of \
                 reach for ten minutes. What was copied is of use to the next try.",
            ),
        ),
        Some(Error::Damaged { .. } | Error::Missing(_)) => (
            Code::Failed,
            Some(
                "Look what else is damaged with understudy backup verify, and restore from another image or repository.",
            ),
        ),
        Some(Error::Store(_)) => (
            Code::Unavailable,
            Some(
                "A directory must exist. For S3 set AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY, AWS_REGION, and for another server \
                 than Amazon's AWS_ENDPOINT (with AWS_ALLOW_HTTP=true if it is without TLS); the bucket must exist.",
            ),
        ),
        _ => return error,
    };
    let mut failure = Failure::new(advice.0, error.to_string());
    if let Some(hint) = advice.1 {
        failure = failure.advise(hint);
    }
    error.context(failure)
}

/// Opens a place, which need not be a repository yet.
fn open(place: &str, key_file: Option<&Path>) -> anyhow::Result<Repository> {
    let secret = key_file.map(Secret::load).transpose()?;
    let place = match place.contains("://") {
        true => place.to_owned(),
        false => std::path::absolute(place)?.display().to_string(),
    };
    Ok(Repository::open(&place, secret.as_ref())?)
}

/// A repository that is one.
async fn existing(place: &cli::BackupPlace) -> anyhow::Result<Repository> {
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
async fn registry(config: &Path) -> anyhow::Result<Registry> {
    let registry = Registry::open(config).await?;
    registry.postgres()?;
    Ok(registry)
}

async fn claim(
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
    let volume = registry.config.cluster().volume.to_string();
    let system_identifier = source.control().system_identifier;
    repository.belong_to(system_identifier, &volume).await?;
    Ok(source)
}

/// Says how far something is, where a person looks: so much of so much, in megabytes, and how long the rest takes.
fn teller() -> impl FnMut(u64, u64) {
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

async fn create_now(args: cli::CreateBackup) -> anyhow::Result<Code> {
    let began = Instant::now();
    let registry = registry(&args.config).await?;
    let place = &args.to.place;
    let repository = open(&place.repository, place.key_file.as_deref())?;
    let mut source = claim(&registry, &repository, args.name, None).await?;
    let pace = Pace::new(args.rate.map(|rate| rate.0));
    let done = copy_image(&mut source, &repository, &pace).await;
    // Whether it succeeded or not, nothing is kept for it any more.
    let released = source.release().await;
    let manifest = done?;
    released?;
    let reach = reach_of(&repository, &manifest.id(), &manifest).await?;
    if args.to.json {
        println!("{}", show::shown(&manifest, Ok(reach), false));
    } else {
        println!(
            "image {}: {} MB, of which {} MB were new, in {:.1} s; restorable from {} to {reach}",
            manifest.id(),
            thousands(manifest.size_bytes() >> 20),
            thousands(manifest.written_bytes >> 20),
            began.elapsed().as_secs_f64(),
            manifest.end
        );
    }
    Ok(Code::Ok)
}

/// Copies the image that the source stands on, and the log from there up to what is durable at the end.
async fn copy_image(
    source: &mut Source,
    repository: &Repository,
    pace: &Pace,
) -> Result<Manifest, Error> {
    let redo = source.seal().redo;
    let mut archiver = Archiver::begin(source, repository, redo).await?;
    let manifest = create(source, &mut archiver, repository, pace, progress()).await?;
    loop {
        match archiver.copy(source).await? {
            Copied::To(end) if end >= manifest.end => return Ok(manifest),
            Copied::Gap(at) => {
                return Err(Error::Refused(format!(
                    "the log from {at} on was given back while the image was copied"
                )));
            }
            Copied::To(_) | Copied::Later => tokio::time::sleep(Duration::from_millis(100)).await,
        }
    }
}

fn progress() -> impl FnMut(Progress) {
    let mut tell = teller();
    move |progress: Progress| tell(progress.read_bytes, progress.size_bytes)
}

async fn expire_now(args: cli::ExpireBackups) -> anyhow::Result<Code> {
    let repository = existing(&args.from.place).await?;
    let policy = Policy {
        keep: rules(&args.keep)?,
        log_for: args.log_for,
        grace: args.grace,
    };
    let expired = expire(&repository, &policy).await?;
    if args.from.json {
        println!("{}", json!(expired));
    } else if expired.is_copying {
        println!("somebody copies into the repository: nothing was removed");
    } else {
        println!(
            "removed: {} images, {} segments of the log, {} pieces with {} MB; {} more pieces that no image has go after {}",
            expired.images.len(),
            expired.segments,
            expired.chunks,
            thousands(expired.bytes >> 20),
            expired.noted,
            humantime::format_duration(policy.grace)
        );
    }
    Ok(Code::Ok)
}

fn rules(text: &str) -> anyhow::Result<Keep> {
    Ok(text
        .parse()
        .map_err(|said: String| Failure::new(Code::Usage, said))?)
}

/// The directory of PostgreSQL's programs of a major version: the one that was given, or Debian's.
fn programs(given: Option<PathBuf>, major: &str) -> PathBuf {
    given.unwrap_or_else(|| PathBuf::from(format!("/usr/lib/postgresql/{major}/bin")))
}
