//! `understudy backup list` and `verify`, and `understudy timeline`: what is there, and where it can be restored to.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use backup::drill::Drill;
use backup::log::Log;
use backup::manifest::{self, Manifest};
use backup::repository::Repository;
use backup::timeline::{Span, reachable};
use backup::verify::{repair, verify};
use serde_json::json;
use tokio::sync::OnceCell;
use volume::lsn::Lsn;

use super::opened::{existing, teller};
use crate::cli;
use crate::demo::timeline::thousands;
use crate::exit::Code;

/// How often it is tried again while somebody copies.
const LOOK_AGAIN: Duration = Duration::from_secs(1);

/// An image for people and for programs.
pub(super) fn shown(
    manifest: &Manifest,
    reach: Result<Lsn, String>,
    is_alone: bool,
) -> serde_json::Value {
    json!({
        "image": manifest.id().to_string(),
        "begun_unix_ms": manifest.begun_unix_ms,
        "server": manifest.server,
        "size_bytes": manifest.size_bytes(),
        "read_bytes": manifest.read_bytes,
        "written_bytes": manifest.written_bytes,
        "from": manifest.end.to_string(),
        "to": reach.as_ref().ok().map(Lsn::to_string),
        "alone": is_alone,
        "trouble": reach.err(),
    })
}

pub(super) async fn list(args: cli::BackupRepository) -> anyhow::Result<Code> {
    let repository = existing(&args.place).await?;
    let alone = manifest::alone(&repository).await?;
    let listed = OnceCell::new();
    let mut images = Vec::new();
    for image in manifest::images(&repository).await? {
        let manifest = Manifest::load(&repository, &image).await?;
        let log = listed.get_or_try_init(|| Log::of(&repository, &manifest));
        let reach = log.await.and_then(|log| log.reach(&manifest));
        let reach = reach.map_err(|error| error.to_string());
        images.push(shown(&manifest, reach, alone.contains(&image)));
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
        println!(
            "{:<28} {:<21} {:>10} {:>10}  {}",
            text("image"),
            time(image["begun_unix_ms"].as_u64().unwrap_or(0)),
            megabytes("size_bytes"),
            megabytes("written_bytes"),
            match (image["trouble"].as_str(), image["alone"].as_bool()) {
                (Some(trouble), _) => format!("nowhere: {trouble}"),
                (None, Some(true)) => "as it is: the log behind it was expired".to_owned(),
                (None, _) => format!("{} to {}", text("from"), text("to")),
            }
        );
    }
    Ok(Code::Ok)
}

fn time(unix_ms: u64) -> String {
    let time = UNIX_EPOCH + Duration::from_millis(unix_ms);
    humantime::format_rfc3339_seconds(time).to_string()
}

/// How long ago that was, roughly.
fn ago(unix_ms: u64) -> String {
    let then = UNIX_EPOCH + Duration::from_millis(unix_ms);
    let ago = SystemTime::now().duration_since(then).unwrap_or_default();
    let seconds = match ago.as_secs() {
        seconds @ 0..120 => seconds,
        seconds @ 120..7200 => seconds / 60 * 60,
        seconds => seconds / 3600 * 3600,
    };
    format!(
        "{} ago",
        humantime::format_duration(Duration::from_secs(seconds))
    )
}

pub(super) async fn timeline(args: cli::BackupRepository) -> anyhow::Result<Code> {
    let repository = existing(&args.place).await?;
    let found = reachable(&repository).await?;
    let drill = Drill::last(&repository).await?;
    if args.json {
        let mut json = json!(found);
        json["drill"] = json!(drill);
        println!("{json}");
        return Ok(Code::Ok);
    }
    for one in &found.alone {
        println!(
            "{}  the moment of the image {} alone ({})",
            time(one.begun_unix_ms),
            one.image,
            ago(one.begun_unix_ms)
        );
    }
    for (number, span) in found.spans.iter().enumerate() {
        if number > 0 {
            println!("{:20}  (log is missing in between)", "");
        }
        print_span(span);
    }
    if found.spans.is_empty() {
        println!("nothing can be restored: there is no complete image");
    }
    for takeover in &found.takeovers {
        println!(
            "timeline {} began at {}",
            takeover.timeline.0, takeover.from
        );
    }
    match drill {
        None => println!("a restore was never tried: understudy backup drill"),
        Some(drill) => println!(
            "a restore was tried {}: {}",
            ago(drill.ended_unix_ms),
            match drill.wrong.is_empty() {
                true => "all is well".to_owned(),
                false => drill.wrong.join("; "),
            }
        ),
    }
    Ok(match found.spans.is_empty() {
        true => Code::Failed,
        false => Code::Ok,
    })
}

fn print_span(span: &Span) {
    println!(
        "{}  every moment from here ({}), position {}, by {} images",
        time(span.from_unix_ms),
        ago(span.from_unix_ms),
        span.from,
        span.images
    );
    println!(
        "{}  to here ({}), position {}",
        time(span.to_unix_ms),
        ago(span.to_unix_ms),
        span.to
    );
}

pub(super) async fn verify_all(args: cli::VerifyBackups) -> anyhow::Result<Code> {
    let repository = existing(&args.of.place).await?;
    let mut tell = teller();
    // Pieces are of a megabyte, or less.
    let verified = verify(&repository, |read, of| {
        tell((read as u64) << 20, (of as u64) << 20);
    });
    let verified = verified.await?;
    let aside = match args.repair {
        true => Some(set_aside(&repository, &verified.damaged).await?),
        false => None,
    };
    if args.of.json {
        let mut said = json!(verified);
        if let Some(aside) = aside {
            said["set_aside"] = json!(aside);
        }
        println!("{said}");
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
        if let Some(aside) = aside {
            println!("{aside} damaged objects are set aside: make a new image, and verify again");
        }
    }
    Ok(match verified.wrong.is_empty() {
        true => Code::Ok,
        false => Code::Failed,
    })
}

/// Sets damaged objects aside, once nobody copies.
async fn set_aside(repository: &Repository, damaged: &[String]) -> anyhow::Result<usize> {
    loop {
        match repair(repository, damaged).await? {
            Some(aside) => return Ok(aside),
            None => tokio::time::sleep(LOOK_AGAIN).await,
        }
    }
}
