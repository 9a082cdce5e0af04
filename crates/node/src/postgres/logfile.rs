//! The server log: where PostgreSQL's standard error goes, and what can be learnt from it.

use std::fs::{File, OpenOptions};
use std::io::{self, Read, Seek, SeekFrom};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

/// How much of the end of a log is looked at.
const TAIL_BYTES: u64 = 64 << 10;

/// A server log, and where this server's part of it begins.
#[derive(Debug, Clone)]
pub struct LogFile {
    path: PathBuf,
    begin: u64,
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
        };
        Ok((log, file))
    }

    /// The last lines that this server wrote, oldest first.
    pub fn tail(&self, lines: usize) -> Vec<String> {
        // A log that cannot be read has nothing to tell; the exit status is told anyway.
        let text = self.read_end().unwrap_or_default();
        let all: Vec<&str> = text.lines().collect();
        let last = &all[all.len().saturating_sub(lines)..];
        last.iter().map(|l| (*l).to_owned()).collect()
    }

    fn read_end(&self) -> io::Result<String> {
        let mut file = File::open(&self.path)?;
        let length = file.metadata()?.len();
        // A rotated log is shorter than where this server began.
        let begin = if self.begin <= length { self.begin } else { 0 };
        file.seek(SeekFrom::Start(
            begin.max(length.saturating_sub(TAIL_BYTES)),
        ))?;
        let mut bytes = Vec::new();
        file.read_to_end(&mut bytes)?;
        Ok(String::from_utf8_lossy(&bytes).into_owned())
    }
}

/// The last line that says why a server ended, if any does.
pub fn reason(lines: &[String]) -> Option<&str> {
    let says = |level: &str| lines.iter().rev().find(|l| l.contains(level));
    says("PANIC:  ")
        .or_else(|| says("FATAL:  "))
        .map(String::as_str)
}

/// Whether the server ended because it could not redo the log. Attaching at the same seal again
/// would end in the same way.
pub fn redo_failed(lines: &[String]) -> bool {
    let fatal = |l: &String| l.contains("FATAL:  ") || l.contains("PANIC:  ");
    let Some(last) = lines.iter().rposition(fatal) else {
        return false;
    };
    let during_redo = |l: &String| l.contains("CONTEXT:  WAL redo at ");
    let by_itself = [
        "WAL contains references to invalid pages",
        "could not locate a valid checkpoint record",
    ];
    by_itself.iter().any(|s| lines[last].contains(s))
        || lines[last + 1..].iter().take(3).any(during_redo)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write;

    fn lines(text: &str) -> Vec<String> {
        text.lines().map(str::to_owned).collect()
    }

    #[test]
    fn only_this_servers_part_is_shown() {
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

    #[test]
    fn redo_failures_are_told_from_others() {
        let redo = lines(
            "LOG:  redo starts\nPANIC:  could not open file \"base/5/2\"\nCONTEXT:  WAL redo at 0/5 for Heap/INSERT\nLOG:  startup process was terminated",
        );
        assert!(redo_failed(&redo));
        assert_eq!(
            reason(&redo),
            Some("PANIC:  could not open file \"base/5/2\"")
        );
        assert!(redo_failed(&lines(
            "PANIC:  WAL contains references to invalid pages"
        )));
        assert!(!redo_failed(&lines(
            "FATAL:  could not create any TCP/IP sockets"
        )));
        // A warning in redo long before another death is not why it died.
        assert!(!redo_failed(&lines(
            "WARNING:  x\nCONTEXT:  WAL redo at 0/5\nFATAL:  out of memory"
        )));
        assert!(!redo_failed(&[]));
    }
}
