//! `understudy backup restore`: a data directory of a moment.

use std::path::Path;
use std::time::UNIX_EPOCH;

use backup::repository::Repository;
use backup::restore::{self, Parts, Plan, Target};
use supervise::RunAs;

use super::opened::{existing, teller};
use crate::cli;
use crate::exit::{Code, Failure};

/// The moment that was asked for, and if it is a time, in Unix milliseconds.
pub(crate) fn moment(text: &str) -> anyhow::Result<(Target, Option<u64>)> {
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

/// Restores to a moment.
pub(super) async fn to_directory(
    repository: &Repository,
    to: &str,
    image: Option<String>,
    directory: &Path,
    run_as: Option<&RunAs>,
) -> anyhow::Result<Plan> {
    let (target, before) = moment(to)?;
    let image = image.map(|image| image.parse()).transpose();
    let image = image.map_err(|said: String| Failure::new(Code::Usage, said))?;
    let plan = restore::plan(repository, target, before, image).await?;
    let owner = run_as.map(RunAs::owner);
    restore::restore(
        repository,
        &plan,
        Parts::Everything,
        directory,
        owner,
        teller(),
    )
    .await?;
    Ok(plan)
}

pub(super) async fn run(args: cli::RestoreBackup) -> anyhow::Result<Code> {
    let repository = existing(&args.place).await?;
    let run_as = pgserver::run_as(&args.owner)?;
    let directory = std::path::absolute(&args.directory)?;
    let plan = to_directory(
        &repository,
        &args.to,
        args.image,
        &directory,
        run_as.as_ref(),
    )
    .await?;
    println!(
        "{} was made of the image {} and the log up to {}",
        directory.display(),
        plan.image,
        plan.log_end
    );
    println!(
        "start it: pg_ctl -D {} -w start. It replays the log up to {}; when pg_is_in_recovery() is false, it is a database by itself",
        directory.display(),
        args.to
    );
    Ok(Code::Ok)
}
