//! Contents of a branch: a data directory without its data files, which the branch's volume has from the image.
//!
//! ```text
//!   postgresql.conf, ...         configuration as it is now, with what recovery needs
//!   global/pg_control            as it was sealed, but: in archive recovery, consistent at the image's end
//!   pg_wal/                      the log from the image's redo to the moment, and no byte of later log
//!   recovery.signal              a server that is started on all this recovers, and begins a timeline of its own
//! ```

use std::collections::BTreeSet;
use std::path::Path;

use dax::ids::FileId;
use nix::unistd::{Gid, Uid};
use pgdata::control::ControlFile;
use pgdata::layout::{CONTROL_FILE, LOG};
use pgdata::segment::SegmentName;
use pgdata::timeline::TimelineId;
use volume::layout::FileClass;
use volume::lsn::Lsn;

use crate::create::{files_of, is_unlogged};
use crate::error::{Error, Result};
use crate::place::Place;
use crate::restore::{NO_MORE_LOG, Target, settings};
use crate::source::{Shown, Source};

/// A moment of a volume.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Moment {
    /// Everything that is durable now.
    Now,
    /// A position of the log.
    Lsn(Lsn),
    /// The end of the image.
    Image,
    /// A time, as PostgreSQL reads it, and a position of the log behind it, if one is known.
    Time(String, Option<Lsn>),
}

/// Files and log that were written.
#[derive(Debug)]
pub struct Contents {
    /// The data files that belong to it.
    pub files: BTreeSet<FileId>,
    /// The log goes to here.
    pub log_end: Lsn,
    /// Bytes of log from the image's redo on.
    pub log_bytes: u64,
}

/// Writes the contents of a branch at a moment into an empty directory, for this owner.
///
/// # Errors
/// [`Error::Refused`] if the log does not go there, or is not kept any more; those of the zones and of this machine's disk.
pub async fn write(
    source: &mut Source,
    moment: &Moment,
    directory: &Path,
    owner: Option<(Uid, Gid)>,
) -> Result<Contents> {
    let shown = source.look_anew().await?;
    let to = end_of(source, moment, &shown)?;
    let place = Place::new(directory.to_path_buf(), owner);
    place.make_root()?;
    let live = source.live().clone();
    let (directories, found) = files_of(source, &live)?;
    for one in directories {
        place.directory(&one.path)?;
    }
    place.server_directories(source.layout())?;
    let mut files = BTreeSet::new();
    for one in found {
        if one.class == FileClass::Data {
            if !is_unlogged(source, &one.path) {
                files.insert(one.id);
            }
            continue;
        }
        let bytes = source.read_live(&live, one.id, 0..one.size).await?;
        place.write_with(&one.path, one.mode, &bytes)?;
    }
    let timeline = write_log(source, &shown, to, &place).await?;
    let end = source.seal().end;
    let control = ControlFile::in_archive_recovery(&source.seal().payload, end)
        .map_err(|error| Error::Volume(volume::error::Error::Damaged(error.to_string())))?;
    place.write(CONTROL_FILE, &control)?;
    let target = match moment {
        Moment::Time(time, _) => Target::Time(time.clone()),
        Moment::Now | Moment::Lsn(_) | Moment::Image => Target::Latest,
    };
    let capacity = source.control().capacity;
    place.append(
        "postgresql.auto.conf",
        &settings(NO_MORE_LOG, timeline, &target, capacity),
    )?;
    place.write("recovery.signal", b"")?;
    Ok(Contents {
        files,
        log_end: to,
        log_bytes: to.bytes_since(source.seal().redo),
    })
}

/// Where the log of a moment ends.
fn end_of(source: &Source, moment: &Moment, shown: &Shown) -> Result<Lsn> {
    let image = source.seal().end;
    let wanted = match moment {
        Moment::Now => shown.end,
        Moment::Image => image,
        Moment::Lsn(lsn) => *lsn,
        Moment::Time(_, known) => known.unwrap_or(shown.end),
    };
    match image <= wanted && wanted <= shown.end {
        true => Ok(wanted),
        false => Err(Error::Refused(format!(
            "{wanted} is out of reach: from this image the log goes from {image} to {}",
            shown.end
        ))),
    }
}

/// Writes segments from the image's redo on up to `to`, with zeros behind that, and all history files. Returns the timeline of `to`.
async fn write_log(source: &Source, shown: &Shown, to: Lsn, place: &Place) -> Result<TimelineId> {
    let size = source.segment_size();
    let bytes = size.bytes();
    let redo = source.seal().redo;
    let history = shown.history.up_to(to);
    let mut start = Lsn(redo.0 - redo.0 % bytes);
    while start < to {
        // A timeline that forked in this segment has a copy of what is before the fork; what it was copied from may be gone.
        let segment = source.segment_at(shown, start)?;
        let name = SegmentName::candidates(&history, start, size).next();
        let (segment, name) = segment.zip(name).ok_or_else(|| {
            Error::Refused(format!(
                "the log from {start} on is not kept any more: take another image, or a later moment"
            ))
        })?;
        let len = segment.end.min(to).bytes_since(start);
        let mut whole = Vec::from(source.read_log(&segment, 0..len).await?);
        whole.resize(bytes as usize, 0);
        place.write(&format!("{LOG}/{}", name.file_name(size)), &whole)?;
        start = Lsn(start.0 + bytes);
    }
    // All of them, also those that begin later: the branch's own timeline gets a number that the database has not used.
    for entry in shown.history.entries() {
        if let Some(text) = source.history_file(entry.timeline).await? {
            place.write(
                &format!("{LOG}/{}", entry.timeline.history_file_name()),
                &text,
            )?;
        }
    }
    Ok(history.timeline())
}
