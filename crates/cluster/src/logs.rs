//! What the processes of a cluster wrote that no healthy run writes.

use std::path::Path;

use pgdata::expected_warnings::{Situation, is_expected};

use super::Cluster;

impl Cluster {
    /// Panics of ours, and of PostgreSQL's log whatever is worse than a note, has no reason around a
    /// takeover, and is not `excused`, which is asked with a node's name and the line.
    pub fn unexpected_log_lines(&self, excused: impl Fn(&str, &str) -> bool) -> Vec<String> {
        let mut found = Vec::new();
        for node in &self.settings {
            found.extend(lines(&node.data.join("postgresql.log"), |line| {
                let expected = is_expected(line, Situation::Takeover) || is_of_a_gone_mount(line);
                !(expected || excused(&node.name, line))
            }));
        }
        found.extend(self.agent_log_lines("panicked at"));
        found
    }

    /// Lines with this text in the logs of agents and zones.
    pub fn agent_log_lines(&self, text: &str) -> Vec<String> {
        let logs = std::fs::read_dir(self.logs()).into_iter().flatten();
        logs.flatten()
            .flat_map(|log| lines(&log.path(), |line| line.contains(text)))
            .collect()
    }
}

/// True if a server says that its mount is gone. That is so when its agent was killed, or it was fenced:
/// the server is being killed as well, and a mount that serves never says so.
fn is_of_a_gone_mount(line: &str) -> bool {
    let said = [
        "Transport endpoint is not connected",
        "Software caused connection abort",
    ];
    said.iter().any(|what| line.contains(what))
}

/// The lines of a file that `wanted` picks, with the file's name. What a server says in detail belongs to its line.
fn lines(file: &Path, wanted: impl Fn(&str) -> bool) -> Vec<String> {
    let text = std::fs::read(file).unwrap_or_default();
    let text = String::from_utf8_lossy(&text);
    let lines: Vec<&str> = text.lines().collect();
    let counting = (0..lines.len()).filter(|at| !is_of_a_stop(&lines, *at));
    let whole = counting.map(|at| match detail_of(&lines, at) {
        Some(detail) => format!("{} {detail}", lines[at]),
        None => lines[at].to_owned(),
    });
    whole
        .filter(|line| wanted(line))
        .map(|line| format!("{}: {line}", file.display()))
        .collect()
}

/// True if a server that stops says that it has removed log which it was about to send. Its checkpoint does so on a busy machine, and
/// the agent throws that log away.
fn is_of_a_stop(lines: &[&str], at: usize) -> bool {
    let stops = |line: &&str| match line {
        line if line.contains("received fast shutdown request") => Some(true),
        line if line.contains("database system is ready") => Some(false),
        _ => None,
    };
    lines[at].contains("requested WAL segment")
        && lines[..at].iter().rev().find_map(stops) == Some(true)
}

/// What the process of this line says of it in detail: its next line, which those of others may come before.
fn detail_of<'a>(lines: &[&'a str], at: usize) -> Option<&'a str> {
    let process = |line: &'a str| Some(line.split_once(" [")?.1.split_once("] ")?.0);
    let said_by = process(lines[at])?;
    let next = lines.iter().skip(at + 1).take(20);
    let own = next.copied().find(|line| process(line) == Some(said_by))?;
    own.split_once("] DETAIL:").map(|(_, detail)| detail.trim())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The agent's connection was a segment behind when the server stopped, on a machine with a load of ten.
    #[test]
    fn log_that_is_removed_is_missed_by_nobody_while_a_server_stops() {
        let removed =
            "[9] ERROR:  requested WAL segment 000000010000000000000006 has already been removed";
        let (ready, stops) = (
            "[1] LOG:  database system is ready to accept connections",
            "[1] LOG:  received fast shutdown request",
        );
        assert!(is_of_a_stop(&[ready, stops, removed], 2));
        assert!(!is_of_a_stop(&[ready, removed], 1));
        assert!(!is_of_a_stop(&[stops, ready, removed], 2));
        assert!(!is_of_a_stop(&[ready, stops], 1));
    }

    /// A server that was fenced could not read the status of a transaction: that was taken for damage, because only the
    /// detail says why.
    #[test]
    fn a_detail_belongs_to_its_line() {
        let log = [
            "2026-01-01 [7] ERROR:  could not access status of transaction 5",
            "2026-01-01 [8] ERROR:  could not read block 1",
            "2026-01-01 [7] DETAIL:  Could not read from file: Input/output error.",
            "2026-01-01 [7] STATEMENT:  SELECT 1",
        ];
        let detail = "Could not read from file: Input/output error.";
        assert_eq!(detail_of(&log, 0), Some(detail));
        assert_eq!(detail_of(&log, 1), None);
        assert_eq!(detail_of(&log, 2), None);
        let dir = tempfile::tempdir().expect("a directory");
        let file = dir.path().join("postgresql.log");
        std::fs::write(&file, log.join("\n")).expect("it can be written");
        let is_damage = |line: &str| line.contains("status") && !line.contains("Input/output");
        assert!(lines(&file, is_damage).is_empty());
        assert_eq!(lines(&file, |line| line.contains("read block")).len(), 1);
    }
}
