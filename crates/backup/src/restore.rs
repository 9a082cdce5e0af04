//! A data directory made of an image and the log behind it. PostgreSQL of the image's version starts from it, by itself.
//!
//! ```text
//!   base, global, pg_xact, ...   the image
//!   global/pg_control            as it was sealed, but: in archive recovery, consistent at the image's end
//!   postgresql.auto.conf         where the log is, where to stop, and what the server needs at least
//!   understudy_log/              segments, whole; the last one ends in zeros
//!   recovery.signal              written last: without it the directory is not complete
//! ```
//!
//! Invariant: a directory that has `recovery.signal` has everything. PostgreSQL itself refuses to end before the target.

use std::io::Write;
use std::path::Path;

use futures_util::{StreamExt, TryStreamExt, stream};
use nix::unistd::{Gid, Uid};
use pgdata::control::{Capacity, ControlFile};
use pgdata::layout::{CONTROL_FILE, LOG, PostgresLayout};
use pgdata::segment::SegmentName;
use pgdata::timeline::TimelineId;
use tokio::sync::OnceCell;
use volume::lsn::Lsn;

use crate::error::{Error, Result};
use crate::log::Log;
use crate::manifest::{self, File, ImageId, Manifest};
use crate::place::Place;
use crate::repository::{CHUNK_BYTES, Repository};
use crate::verify::short_of_tip;

/// Where the log is, in the data directory.
const LOG_DIRECTORY: &str = "understudy_log";
/// Line before the settings that a restore appends.
pub const RECOVERY_SETTINGS: &str = "# Of the restore by Understudy.";
/// Files that are written at once, and pieces of each that are read.
const FILES_AT_ONCE: usize = 8;
const READS_AT_ONCE: usize = 4;

/// Where to stop.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Target {
    /// At the end of the log.
    Latest,
    /// At a position.
    Lsn(Lsn),
    /// At a time, as PostgreSQL reads it.
    Time(String),
}

impl Target {
    /// The position that a text is, if it is one.
    pub fn position(text: &str) -> Option<Target> {
        pgdata::parse_lsn(text).map(Target::Lsn)
    }
}

/// An image and a moment, to be restored.
#[derive(Debug)]
pub struct Plan {
    /// Image that is restored, before the WAL is replayed.
    pub image: ImageId,
    manifest: Manifest,
    log: Log,
    target: Target,
    /// The end of the log that is there.
    pub log_end: Lsn,
}

impl Plan {
    /// True if it ends at the end of the log that is there.
    pub fn is_to_the_end(&self) -> bool {
        self.target == Target::Latest
    }

    /// Manifest of the image.
    pub fn manifest(&self) -> &Manifest {
        &self.manifest
    }

    /// The major version of the server that can start from it.
    pub fn server(&self) -> &str {
        &self.manifest.server
    }
}

/// Chooses the image to restore from: the newest one that ends before the target.
///
/// `before` is the target's time in Unix milliseconds, if it is one. A position is compared with images' ends.
///
/// # Errors
/// [`Error::OutOfReach`] if no image does, or its log does not go to the target; what is damaged.
pub async fn plan(
    repository: &Repository,
    target: Target,
    before_unix_ms: Option<u64>,
    image: Option<ImageId>,
) -> Result<Plan> {
    let alone = manifest::alone(repository).await?;
    let is_chosen = image.is_some();
    let candidates = match image {
        Some(image) => vec![image],
        None => manifest::images(repository).await?,
    };
    let mut unusable = None;
    let listed = OnceCell::new();
    for image in candidates.into_iter().rev() {
        let manifest = match Manifest::load(repository, &image).await {
            Err(error @ (Error::Damaged { .. } | Error::Missing(_))) if !is_chosen => {
                tracing::warn!(%image, %error, "an older image is taken");
                unusable.get_or_insert(error);
                continue;
            }
            loaded => loaded?,
        };
        let is_before = match &target {
            Target::Latest => true,
            Target::Lsn(lsn) => manifest.end <= *lsn,
            // Whatever the image has was durable before the copy began.
            Target::Time(_) => before_unix_ms.is_some_and(|time| manifest.begun_unix_ms <= time),
        };
        if !is_before {
            continue;
        }
        let log = listed
            .get_or_try_init(|| Log::of(repository, &manifest))
            .await?;
        let log_end = match log.reach(&manifest) {
            Err(error @ (Error::OutOfReach { .. } | Error::Refused(_))) if !is_chosen => {
                tracing::warn!(%image, %error, "an older image is taken");
                unusable.get_or_insert(error);
                continue;
            }
            reached => reached?,
        };
        let last = log.end();
        if let Some(missing) = short_of_tip(repository, log).await? {
            match target {
                Target::Latest => {
                    return Err(Error::Refused(format!(
                        "{missing}. To restore what is there, give the position {log_end} or a time in place of latest"
                    )));
                }
                _ => tracing::warn!("{missing}"),
            }
        }
        let is_alone = alone.contains(&image);
        if is_alone && matches!(target, Target::Time(_)) {
            return Err(Error::Refused(format!(
                "the log behind the image {image} was expired: it can be restored as it is, by --image {image} --to latest, or take a \
                 later time"
            )));
        }
        let missed = match &target {
            Target::Lsn(lsn) => (log_end < *lsn).then(|| lsn.to_string()),
            Target::Latest => {
                (log_end < last && !is_alone).then(|| format!("the latest moment, {last}"))
            }
            // The server does not end its recovery before it.
            Target::Time(_) => None,
        };
        if let Some(wanted) = missed {
            let (from, to) = (manifest.end, log_end);
            return Err(Error::OutOfReach { wanted, from, to });
        }
        // PostgreSQL stops at a record that begins there, and there is none.
        let target = match target {
            Target::Lsn(lsn) if lsn == log_end => Target::Latest,
            target => target,
        };
        return Ok(Plan {
            log: listed.into_inner().expect("it was listed"),
            image,
            manifest,
            target,
            log_end,
        });
    }
    if let Some(error) = unusable {
        return Err(error);
    }
    Err(Error::Refused(match target {
        Target::Latest => {
            "the repository has no image: understudy backup create makes one".to_owned()
        }
        Target::Lsn(lsn) => format!("no image ends before {lsn}: see understudy backup list"),
        Target::Time(time) => format!("no image is older than {time}: see understudy backup list"),
    }))
}

/// Contents of the directory that is made.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Parts {
    /// A whole data directory, which a server starts from.
    Everything,
    /// Everything but the files whose blocks a volume has from the image; the log is where a server looks for it first.
    AllButBlocks,
}

/// A program that finds nothing: all log is there already.
pub(crate) const NO_MORE_LOG: &str = "false";

/// Makes the directory, which must be empty or not there. Its files belong to `owner`, if one is given.
///
/// # Errors
/// The directory has something in it; what is damaged or missing in the repository; those of this machine's disk. What was made
/// stays, without `recovery.signal`, so nothing starts from it by mistake.
pub async fn restore(
    repository: &Repository,
    plan: &Plan,
    parts: Parts,
    directory: &Path,
    owner: Option<(Uid, Gid)>,
    mut tell: impl FnMut(u64, u64),
) -> Result<()> {
    let place = Place::new(directory.to_path_buf(), owner);
    place.make_root()?;
    let manifest = &plan.manifest;
    let control = ControlFile::parse(&manifest.control)
        .map_err(|error| Error::damaged(format!("images/{}", plan.image), error))?;
    for one in &manifest.directories {
        place.directory(&one.path)?;
    }
    place.server_directories(&PostgresLayout::new(control.segment_size))?;
    let wanted = |file: &&File| parts == Parts::Everything || file.id.is_none();
    let files = manifest.files.iter().filter(wanted);
    let size = files.clone().map(|file| file.size_bytes).sum();
    let mut done = 0;
    // Most files are small, and each waits for the repository.
    let mut files = stream::iter(files.map(|file| restore_file(repository, &place, file)))
        .buffer_unordered(FILES_AT_ONCE);
    while let Some(size_bytes) = files.try_next().await? {
        done += size_bytes;
        tell(done, size);
    }
    let (log, command) = match parts {
        Parts::Everything => (LOG_DIRECTORY, copy_from(&place.root.join(LOG_DIRECTORY))),
        Parts::AllButBlocks => (LOG, NO_MORE_LOG.to_owned()),
    };
    place.directory(log)?;
    restore_log(repository, plan, &place, log).await?;
    let in_recovery = ControlFile::in_archive_recovery(&manifest.control, manifest.end)
        .map_err(|error| Error::damaged(format!("images/{}", plan.image), error))?;
    place.write(CONTROL_FILE, &in_recovery)?;
    place.append(
        "postgresql.auto.conf",
        &settings(
            &command,
            plan.log.history.timeline(),
            &plan.target,
            control.capacity,
        ),
    )?;
    place.sync()?;
    place.write("recovery.signal", b"")?;
    place.sync()
}

/// Makes a file. Returns its length.
async fn restore_file(repository: &Repository, place: &Place, file: &File) -> Result<u64> {
    let mut to = place.create(&file.path, file.mode)?;
    let fetch = |chunk: Option<_>| async move {
        match chunk {
            Some(id) => repository.chunk(id).await.map(Some),
            None => Ok(None),
        }
    };
    let chunks = file.chunks.iter().copied();
    let mut chunks = stream::iter(chunks).map(fetch).buffered(READS_AT_ONCE);
    let failed = || Error::system(format!("cannot write {}", file.path));
    let mut at = 0;
    while let Some(chunk) = chunks.try_next().await? {
        let len = (file.size_bytes - at).min(CHUNK_BYTES as u64);
        match chunk {
            Some(bytes) if bytes.len() as u64 == len => {
                to.write_all(&bytes).map_err(failed())?;
            }
            Some(_) => return Err(Error::damaged(&file.path, "a piece has another length")),
            None => {
                std::io::Seek::seek_relative(&mut to, len as i64).map_err(failed())?;
            }
        }
        at += len;
    }
    if at != file.size_bytes {
        return Err(Error::damaged(&file.path, "pieces are missing"));
    }
    to.set_len(at).map_err(failed())?;
    Ok(at)
}

async fn restore_log(
    repository: &Repository,
    plan: &Plan,
    place: &Place,
    directory: &str,
) -> Result<()> {
    let Log { index, history } = &plan.log;
    let size = plan.manifest.segment_size()?;
    let segments = index.files(history, plan.manifest.redo, plan.log_end);
    let restore = |segment: SegmentName| async move {
        let bytes = repository.segment(index, segment).await?;
        let path = format!("{directory}/{}", segment.file_name(size));
        place.write(&path, &bytes)
    };
    let mut segments = stream::iter(segments)
        .map(restore)
        .buffer_unordered(READS_AT_ONCE);
    while let Some(()) = segments.try_next().await? {}
    drop(segments);
    for timeline in index.histories() {
        let text = repository.history_file(timeline).await?;
        place.write(
            &format!("{directory}/{}", timeline.history_file_name()),
            &text,
        )?;
    }
    Ok(())
}

/// The command that takes log from a directory, as it is quoted in a configuration file.
fn copy_from(log: &Path) -> String {
    let log = log.display().to_string();
    let log = log.replace('%', "%%").replace('\'', "''");
    format!("cp \"{log}/%f\" \"%p\"")
}

/// Settings of the server. It is a server by itself: without what a node of a cluster has.
///
/// The timeline is named: PostgreSQL itself looks for the next one's history until one is missing.
pub(crate) fn settings(
    restore_command: &str,
    timeline: TimelineId,
    target: &Target,
    capacity: Capacity,
) -> String {
    let mut text = format!(
        "\n{RECOVERY_SETTINGS}\nrestore_command = '{restore_command}'\nrecovery_target_timeline = '{}'\n",
        timeline.0
    );
    text += &match target {
        Target::Latest => String::new(),
        Target::Lsn(lsn) => format!("recovery_target_lsn = '{lsn}'\n"),
        Target::Time(time) => format!("recovery_target_time = '{}'\n", time.replace('\'', "''")),
    };
    text +=
        "recovery_target_action = 'promote'\narchive_mode = off\nsynchronous_standby_names = ''\n";
    for (name, least) in [
        ("max_connections", capacity.max_connections),
        ("max_worker_processes", capacity.max_worker_processes),
        ("max_wal_senders", capacity.max_wal_senders),
        (
            "max_prepared_transactions",
            capacity.max_prepared_transactions,
        ),
        (
            "max_locks_per_transaction",
            capacity.max_locks_per_transaction,
        ),
    ] {
        text += &format!("{name} = {least}\n");
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn settings_are_quoted_and_cover_what_the_cluster_had() {
        let capacity = Capacity {
            max_connections: 77,
            ..Capacity::default()
        };
        let target = Target::Time("it's".to_owned());
        let text = settings(
            &copy_from(Path::new("/a'b/50%/log")),
            TimelineId(7),
            &target,
            capacity,
        );
        assert!(
            text.contains("restore_command = 'cp \"/a''b/50%%/log/%f\" \"%p\"'\n"),
            "{text}"
        );
        assert!(text.contains("recovery_target_time = 'it''s'\n"), "{text}");
        assert!(text.contains("max_connections = 77\n"), "{text}");
        assert!(text.contains("recovery_target_timeline = '7'\n"), "{text}");
        assert!(
            !settings("l", TimelineId(1), &Target::Latest, capacity).contains("target_time = ")
        );
    }
}
