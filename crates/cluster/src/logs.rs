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

/// Whether a server says that its mount is gone. That is so when its agent was killed, or it was fenced:
/// the server is being killed as well, and a mount that serves never says so.
fn is_of_a_gone_mount(line: &str) -> bool {
    let said = [
        "Transport endpoint is not connected",
        "Software caused connection abort",
    ];
    said.iter().any(|what| line.contains(what))
}

/// The lines of a file that `wanted` picks, with the file's name.
fn lines(file: &Path, wanted: impl Fn(&str) -> bool) -> Vec<String> {
    let text = std::fs::read(file).unwrap_or_default();
    String::from_utf8_lossy(&text)
        .lines()
        .filter(|line| wanted(line))
        .map(|line| format!("{}: {line}", file.display()))
        .collect()
}
