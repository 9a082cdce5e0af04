//! `understudy backup`: images and log outside of the zones.

use std::io::IsTerminal;
use std::path::Path;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use backup::archive::{Archiver, Copied};
use backup::create::{Progress, create};
use backup::error::Error;
use backup::manifest::{self, ImageId, Manifest};
use backup::repository::Repository;
use backup::restore::{self, Target};
use backup::source::Source;
use backup::verify::{reach_of, verify};
use coordination::records::{Member, Record};
use dax::ids::NodeName;
use serde_json::json;
use volume::lsn::Lsn;

use super::registry::{Registry, in_time};
use crate::cli;
use crate::demo::timeline::thousands;
use crate::exit::{Code, Failure};

/// How often a person hears how far something is.
const TELL_EVERY: Duration = Duration::from_secs(1);
/// How long an archiver waits before it tries again what failed.
const TRY_AGAIN: Duration = Duration::from_secs(5);

/// Runs what was asked for.
pub async fn run(command: cli::Backup, stopped: impl Future<Output = ()>) -> anyhow::Result<Code> {
    let done = match command {
        cli::Backup::Create(args) => create_now(args).await,
        cli::Backup::Archive(args) => archive(args, stopped).await,
        cli::Backup::List(args) => list(args).await,
        cli::Backup::Verify(args) => verify_all(args).await,
        cli::Backup::Restore(args) => restore_to(args).await,
    };
    done.map_err(explain)
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
        _ => return error,
    };
    let mut failure = Failure::new(advice.0, error.to_string());
    if let Some(hint) = advice.1 {
        failure = failure.advise(hint);
    }
    error.context(failure)
}

/// A repository that belongs to the database of a configuration.
async fn open(config: &Path, directory: &Path) -> anyhow::Result<(Registry, Repository)> {
    let registry = Registry::open(config).await?;
    registry.postgres()?;
    Ok((registry, Repository::in_directory(directory)?))
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

/// Says how far a copy is, where a person looks.
fn teller() -> impl FnMut(Progress) {
    let mut last = Instant::now();
    let is_seen = std::io::stderr().is_terminal();
    move |progress: Progress| {
        if is_seen && last.elapsed() > TELL_EVERY {
            last = Instant::now();
            eprintln!(
                "{} of {} MB read, {} MB written",
                thousands(progress.read_bytes >> 20),
                thousands(progress.size_bytes >> 20),
                thousands(progress.written_bytes >> 20)
            );
        }
    }
}

async fn create_now(args: cli::CreateBackup) -> anyhow::Result<Code> {
    let began = Instant::now();
    let (registry, repository) = open(&args.config, &args.to.repository).await?;
    let mut source = claim(&registry, &repository, args.name, None).await?;
    let done = copy_image(&mut source, &repository).await;
    // Whether it succeeded or not, nothing is kept for it any more.
    let released = source.release().await;
    let manifest = done?;
    released?;
    let reach = reach_of(&repository, &manifest.id(), &manifest).await?;
    if args.to.json {
        println!("{}", shown(&manifest, Ok(reach)));
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
async fn copy_image(source: &mut Source, repository: &Repository) -> Result<Manifest, Error> {
    let redo = source.seal().redo;
    let mut archiver = Archiver::begin(source, repository, redo).await?;
    let manifest = create(source, &mut archiver, repository, teller()).await?;
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

async fn archive(args: cli::ArchiveLog, stopped: impl Future<Output = ()>) -> anyhow::Result<Code> {
    let (registry, repository) = open(&args.config, &args.repository).await?;
    tokio::pin!(stopped);
    loop {
        let work = archive_on(&registry, &repository, &args);
        let failed = tokio::select! {
            () = &mut stopped => return Ok(Code::Ok),
            done = work => done,
        };
        let Err(error) = failed;
        if let Some(Error::Refused(_)) = error.downcast_ref::<Error>() {
            return Err(error);
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

async fn archive_on(
    registry: &Registry,
    repository: &Repository,
    args: &cli::ArchiveLog,
) -> anyhow::Result<std::convert::Infallible> {
    let last = last_image(repository).await?;
    let resumed = match &last {
        Some((image, manifest)) => reach_of(repository, image, manifest).await.ok(),
        None => None,
    };
    let mut source = claim(registry, repository, args.name.clone(), resumed).await?;
    let from = resumed.unwrap_or(source.seal().redo);
    let mut archiver = Archiver::begin(&source, repository, from).await?;
    let mut is_due = last.is_none_or(|(_, last)| is_older(&last, args.images_every));
    let mut imaged = Instant::now();
    loop {
        match archiver.copy(&mut source).await? {
            Copied::To(end) => tracing::debug!(%end, "the log is copied"),
            Copied::Later => {}
            Copied::Gap(at) => {
                tracing::warn!(from = %at, "the zones do not have the log any more: a new image begins");
                is_due = true;
            }
        }
        source.keep(archiver.at()).await?;
        if is_due || imaged.elapsed() > args.images_every {
            source.advance().await?;
            archiver = Archiver::begin(&source, repository, source.seal().redo).await?;
            let manifest = create(&mut source, &mut archiver, repository, teller()).await?;
            let (image, written_bytes) = (manifest.id(), manifest.written_bytes);
            tracing::info!(%image, written_bytes, "an image is copied");
            source.let_image_go().await?;
            (is_due, imaged) = (false, Instant::now());
        }
        tokio::time::sleep(args.log_every).await;
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

/// A repository that is one.
async fn existing(directory: &Path) -> anyhow::Result<Repository> {
    let repository = Repository::in_directory(directory)?;
    match repository.owner().await? {
        Some(_) => Ok(repository),
        None => Err(Failure::new(
            Code::Usage,
            format!("{} is no repository of backups", directory.display()),
        )
        .into()),
    }
}

/// An image for people and for programs.
fn shown(manifest: &Manifest, reach: Result<Lsn, String>) -> serde_json::Value {
    json!({
        "image": manifest.id().to_string(),
        "begun_unix_ms": manifest.begun_unix_ms,
        "server": manifest.server,
        "size_bytes": manifest.size_bytes(),
        "written_bytes": manifest.written_bytes,
        "from": manifest.end.to_string(),
        "to": reach.as_ref().ok().map(Lsn::to_string),
        "trouble": reach.err(),
    })
}

async fn list(args: cli::BackupRepository) -> anyhow::Result<Code> {
    let repository = existing(&args.repository).await?;
    let mut images = Vec::new();
    for image in manifest::images(&repository).await? {
        let manifest = Manifest::load(&repository, &image).await?;
        let reach = reach_of(&repository, &image, &manifest).await;
        images.push(shown(&manifest, reach.map_err(|error| error.to_string())));
    }
    if args.json {
        println!("{}", json!(images));
        return Ok(Code::Ok);
    }
    println!(
        "{:<28} {:<21} {:>10} {:>10}  restorable to",
        "image", "begun (UTC)", "MB", "new MB"
    );
    for image in &images {
        let text = |key: &str| image[key].as_str().unwrap_or_default().to_owned();
        let megabytes = |key: &str| thousands(image[key].as_u64().unwrap_or(0) >> 20);
        let begun = Duration::from_millis(image["begun_unix_ms"].as_u64().unwrap_or(0));
        println!(
            "{:<28} {:<21} {:>10} {:>10}  {}",
            text("image"),
            humantime::format_rfc3339_seconds(UNIX_EPOCH + begun),
            megabytes("size_bytes"),
            megabytes("written_bytes"),
            match image["trouble"].as_str() {
                Some(trouble) => format!("nowhere: {trouble}"),
                None => format!("{} to {}", text("from"), text("to")),
            }
        );
    }
    Ok(Code::Ok)
}

async fn verify_all(args: cli::BackupRepository) -> anyhow::Result<Code> {
    let repository = existing(&args.repository).await?;
    let mut last = Instant::now();
    let is_seen = std::io::stderr().is_terminal();
    let verified = verify(&repository, |read, of| {
        if is_seen && last.elapsed() > TELL_EVERY {
            last = Instant::now();
            eprintln!(
                "{} of {} pieces read",
                thousands(read as u64),
                thousands(of as u64)
            );
        }
    });
    let verified = verified.await?;
    if args.json {
        println!("{}", json!(verified));
    } else {
        println!(
            "{} images, {} pieces and {} segments of the log, {} MB read",
            verified.images,
            thousands(verified.chunks as u64),
            thousands(verified.segments as u64),
            thousands(verified.read_bytes >> 20)
        );
        verified
            .wrong
            .iter()
            .for_each(|wrong| println!("wrong: {wrong}"));
        println!(
            "{}",
            if verified.wrong.is_empty() {
                "all is well"
            } else {
                "it is not whole"
            }
        );
    }
    Ok(match verified.wrong.is_empty() {
        true => Code::Ok,
        false => Code::Failed,
    })
}

/// The moment that was asked for, and if it is a time, in Unix milliseconds.
fn moment(text: &str) -> anyhow::Result<(Target, Option<u64>)> {
    if text == "latest" {
        return Ok((Target::Latest, None));
    }
    if let Some(position) = Target::position(text) {
        return Ok((position, None));
    }
    let time = humantime::parse_rfc3339_weak(text).map_err(|error| {
        let said = format!("{text} is no moment: {error}");
        Failure::new(Code::Usage, said)
            .advise("Write \"latest\", a position such as 0/16B3748, or a time in UTC such as \"2026-11-28 14:00:00\".")
    })?;
    let since_1970 = time.duration_since(UNIX_EPOCH).unwrap_or_default();
    // A server that only reads its files knows no abbreviations of time zones.
    let text = humantime::format_rfc3339_micros(time).to_string();
    let text = text.replace('T', " ").replace('Z', "+00");
    Ok((
        Target::Time(text),
        u64::try_from(since_1970.as_millis()).ok(),
    ))
}

async fn restore_to(args: cli::RestoreBackup) -> anyhow::Result<Code> {
    let repository = existing(&args.repository).await?;
    let (target, before) = moment(&args.to)?;
    let owner = pgserver::run_as(&args.owner)?.map(|user| user.owner());
    let directory = std::path::absolute(&args.directory)?;
    let image = args.image.map(|image| image.parse()).transpose();
    let image = image.map_err(|said: String| Failure::new(Code::Usage, said))?;
    let plan = restore::plan(&repository, target, before, image).await?;
    let mut last = Instant::now();
    let is_seen = std::io::stderr().is_terminal();
    restore::restore(&repository, &plan, &directory, owner, |done, of| {
        if is_seen && last.elapsed() > TELL_EVERY {
            last = Instant::now();
            eprintln!("{} of {} MB", thousands(done >> 20), thousands(of >> 20));
        }
    })
    .await?;
    println!(
        "{} was made of the image {} and the log up to {}",
        directory.display(),
        plan.image,
        plan.log_end
    );
    println!(
        "start it: pg_ctl -D {} -w start. It replays the log up to {}, and is a database by itself then",
        directory.display(),
        args.to
    );
    Ok(Code::Ok)
}
