//! The server log: where a server's standard error goes, and how it is kept from growing for ever.
//!
//! The server holds the file open for good, so a rotation copies it and cuts it. What is written in the
//! moment between the two is lost; the copy is followed to the end right before the cut, so that moment
//! is a few microseconds.

use std::fs::{File, OpenOptions};
use std::io::{self, Read, Seek, SeekFrom};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

/// How much of the end of a log is looked at.
const TAIL_BYTES: u64 = 64 << 10;

/// A server log, and where this server's part of it begins.
#[derive(Debug, Clone)]
pub struct LogFile {
    path: PathBuf,
    begin: u64,
    opened: SystemTime,
}

/// When a log is rotated, and how much of it is kept.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Rotation {
    /// It is rotated when it is as large; 0: never.
    pub bytes: u64,
    /// So many older ones are kept, the newest as `.1`.
    pub kept: u32,
}

/// How often the size is looked at.
const LOOK_EVERY: Duration = Duration::from_secs(10);

/// Rotates the log at `path` for as long as it is polled.
pub async fn keep_rotating(path: PathBuf, rotation: Rotation) {
    loop {
        tokio::time::sleep(LOOK_EVERY).await;
        let place = path.clone();
        let rotated = tokio::task::spawn_blocking(move || rotate(&place, rotation)).await;
        if let Ok(Err(error)) = rotated {
            tracing::warn!(%error, log = %path.display(), "the server log was not rotated");
        }
    }
}

/// Rotates the log if it is large enough; whether it was.
///
/// # Errors
/// What the file system says. The log is whole then.
pub fn rotate(path: &Path, rotation: Rotation) -> io::Result<bool> {
    if rotation.bytes == 0 || !path.exists() {
        return Ok(false);
    }
    let mut log = OpenOptions::new().read(true).write(true).open(path)?;
    if log.metadata()?.len() < rotation.bytes {
        return Ok(false);
    }
    if rotation.kept > 0 {
        for number in (1..rotation.kept).rev() {
            match std::fs::rename(numbered(path, number), numbered(path, number + 1)) {
                Err(e) if e.kind() != io::ErrorKind::NotFound => return Err(e),
                _ => {}
            }
        }
        let mut copy = OpenOptions::new()
            .create(true)
            .truncate(true)
            .write(true)
            .mode(0o600)
            .open(numbered(path, 1))?;
        // The second time there is next to nothing left.
        while io::copy(&mut log, &mut copy)? > 0 {}
    }
    log.set_len(0)?;
    Ok(true)
}

/// The name of an older log.
fn numbered(path: &Path, number: u32) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(format!(".{number}"));
    name.into()
}

impl LogFile {
    /// Opens `path` for appending (creates it for its owner only).
    ///
    /// # Errors
    /// What the file system says.
    pub fn open(path: &Path) -> io::Result<(LogFile, File)> {
        let file = OpenOptions::new()
            .create(true)
            .append(true)
            .mode(0o600)
            .open(path)?;
        let log = LogFile {
            path: path.to_owned(),
            begin: file.metadata()?.len(),
            opened: SystemTime::now(),
        };
        Ok((log, file))
    }

    /// The last lines that this server wrote, oldest first.
    pub fn tail(&self, lines: usize) -> Vec<String> {
        // A log that cannot be read has nothing to tell; the exit status is told anyway.
        let begin = self.before_rotation().unwrap_or_default();
        let text = begin + &self.read_end().unwrap_or_default();
        let all: Vec<&str> = text.lines().collect();
        let last = &all[all.len().saturating_sub(lines)..];
        last.iter().map(|l| (*l).to_owned()).collect()
    }

    fn was_rotated(&self) -> bool {
        // File times are a little behind the clock.
        let since = self.opened - Duration::from_secs(1);
        let modified =
            std::fs::metadata(numbered(&self.path, 1)).and_then(|about| about.modified());
        modified.is_ok_and(|modified| modified >= since)
    }

    /// The end of the part that was rotated away while this server ran.
    fn before_rotation(&self) -> io::Result<String> {
        if !self.was_rotated() {
            return Ok(String::new());
        }
        let mut file = File::open(numbered(&self.path, 1))?;
        let begin = file.metadata()?.len().saturating_sub(TAIL_BYTES);
        file.seek(SeekFrom::Start(begin))?;
        let mut bytes = Vec::new();
        file.read_to_end(&mut bytes)?;
        Ok(String::from_utf8_lossy(&bytes).into_owned())
    }

    fn read_end(&self) -> io::Result<String> {
        let mut file = File::open(&self.path)?;
        let length = file.metadata()?.len();
        // A rotated log is shorter than where this server began.
        let ours = self.begin <= length && !self.was_rotated();
        let begin = if ours { self.begin } else { 0 };
        file.seek(SeekFrom::Start(
            begin.max(length.saturating_sub(TAIL_BYTES)),
        ))?;
        let mut bytes = Vec::new();
        file.read_to_end(&mut bytes)?;
        Ok(String::from_utf8_lossy(&bytes).into_owned())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write;

    #[test]
    fn a_large_log_is_kept_in_numbered_parts() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("server.log");
        let rotation = Rotation { bytes: 10, kept: 2 };
        assert!(!rotate(&path, rotation).unwrap(), "there is none");
        let (log, mut file) = LogFile::open(&path).unwrap();
        for part in ["first part", "second part", "third part"] {
            writeln!(file, "{part}").unwrap();
            assert!(rotate(&path, rotation).unwrap());
        }
        writeln!(file, "last").unwrap();
        assert!(!rotate(&path, rotation).unwrap());
        let read = |path: &Path| std::fs::read_to_string(path).unwrap();
        // The server goes on at the file's new end.
        assert_eq!(read(&path), "last\n");
        assert_eq!(read(&numbered(&path, 1)), "third part\n");
        assert_eq!(read(&numbered(&path, 2)), "second part\n");
        assert!(!numbered(&path, 3).exists());
        assert_eq!(log.tail(2), ["third part", "last"]);
    }

    #[test]
    fn excerpt_is_this_servers_part_of_the_log() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("log");
        std::fs::write(&path, "FATAL:  of yesterday\n").unwrap();
        let (log, mut file) = LogFile::open(&path).unwrap();
        assert!(log.tail(9).is_empty());
        writeln!(file, "one\ntwo\nthree").unwrap();
        assert_eq!(log.tail(2), ["two", "three"]);
        std::fs::write(&path, "rotated\n").unwrap();
        assert_eq!(log.tail(2), ["rotated"]);
    }
}
