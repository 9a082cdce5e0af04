//! `understudy backup` and `understudy timeline`: images and log outside of the zones.

mod archive;
mod drill;
pub(crate) mod opened;
pub(crate) mod restore;
mod schedule;
mod show;
mod turn;

use std::time::{Duration, Instant};

use backup::archive::Archiver;
use backup::create::{How, Pace, create};
use backup::error::Error;
use backup::expire::{Policy, expire};
use backup::log::Log;
use backup::manifest::Manifest;
use backup::repository::Repository;
use backup::source::Source;
use serde_json::json;

use self::opened::{claim, existing, open, progress, registry, rules};
use crate::cli;
use crate::demo::timeline::thousands;
use crate::exit::{Code, Failure};

/// How often a copy looks whether an expiry has ended.
const LOOK_EVERY: Duration = Duration::from_secs(1);

/// Runs what was asked for.
pub async fn run(command: cli::Backup) -> anyhow::Result<Code> {
    // What is copied is the database: nobody else on this machine reads it.
    nix::sys::stat::umask(nix::sys::stat::Mode::from_bits_truncate(0o077));
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
        Some(Error::Refused(_) | Error::NotOurs(_) | Error::OutOfReach { .. }) => {
            (Code::Refused, None)
        }
        Some(Error::Volume(volume::error::Error::ClaimLost)) => (
            Code::Failed,
            Some(
                "The active gave back what was being read: it needed more log than storage.max_retained_wal allows, or the zones were out of \
                 reach for ten minutes. What was copied is of use to the next try.",
            ),
        ),
        Some(Error::Damaged { .. } | Error::Missing(_)) => (
            Code::Failed,
            Some(
                "Look what else is damaged with understudy backup verify, and restore from another image or repository. With --repair it sets \
                 damaged pieces and images aside, so that a new image writes them again, and expiry goes on.",
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

async fn create_now(args: cli::CreateBackup) -> anyhow::Result<Code> {
    let began = Instant::now();
    let registry = registry(&args.config).await?;
    let place = &args.to.place;
    let repository = open(&place.repository, place.key_file.as_deref())?;
    let mut source = claim(&registry, &repository, args.name, None).await?;
    let how = How {
        pace: Pace::new(args.rate.map(|rate| rate.0)),
        is_full: args.full,
    };
    let done = copy_image(&mut source, &repository, &how).await;
    // Whether it succeeded or not, nothing is kept for it any more.
    let released = source.release().await;
    let manifest = done?;
    released?;
    let reach = Log::of(&repository, &manifest).await?.reach(&manifest)?;
    if args.to.json {
        println!("{}", show::shown(&manifest, Ok(reach), false));
    } else {
        println!(
            "image {}: {} MB, of which {} MB were read and {} MB were new, in {:.1} s; restorable from {} to {reach}",
            manifest.id(),
            thousands(manifest.size_bytes() >> 20),
            thousands(manifest.read_bytes >> 20),
            thousands(manifest.written_bytes >> 20),
            began.elapsed().as_secs_f64(),
            manifest.end
        );
    }
    Ok(Code::Ok)
}

/// Copies the image that the source stands on, as soon as no expiry is under way.
async fn copy_image(
    source: &mut Source,
    repository: &Repository,
    how: &How,
) -> Result<Manifest, Error> {
    let redo = source.seal().redo;
    let mut archiver = Archiver::begin(source, repository, redo).await?;
    let mut is_told = false;
    loop {
        match create(source, &mut archiver, repository, how, progress()).await {
            Err(error @ Error::Expiring) => {
                if !std::mem::replace(&mut is_told, true) {
                    eprintln!("{error}");
                }
                source.keep(archiver.at()).await?;
                tokio::time::sleep(LOOK_EVERY).await;
            }
            done => return done,
        }
    }
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
        println!("a copy into the repository is under way: nothing was removed");
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
