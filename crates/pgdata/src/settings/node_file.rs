//! The configuration file of one node, beside the files that all nodes share.
//!
//! A server takes what its node decides from its command line. PostgreSQL compares its files with that at every reload, and a
//! base backup has the files and no command line. So the shared `postgresql.conf` ends with a line that includes this file,
//! which is private to each node and repeats what is in force and can change at a start only.
//!
//! Invariant: the file has nothing that would be wrong or unsafe where a base backup is started: no address, no directory, and
//! nothing that relies on the volume's atomic writes.

use std::collections::BTreeMap;
use std::fmt::Write;

use super::configuration::{Configuration, NODE_FILE};
use super::managed::quoted;
use crate::control::Capacity;

const COMMENT: &str =
    "# UNDERSTUDY: what this node's server was started with; keep this line the last one";

/// Parameters that change at a start only and that a node may set in place of the shared configuration.
const AT_START: [&str; 6] = [
    "archive_mode",
    "hot_standby",
    "logging_collector",
    "max_logical_replication_workers",
    "pg_prewarm.autoprewarm",
    "shared_preload_libraries",
];

/// True if a path is that of the file, whole or being written.
pub fn is_node_file(path: &str) -> bool {
    path.starts_with(NODE_FILE)
}

/// `text` of the shared `postgresql.conf` with the line that includes the file, behind everything else.
pub fn with_node_file(text: &str) -> String {
    let include = format!("include_if_exists = {}", quoted(NODE_FILE));
    let own = |line: &&str| !matches!(line.trim_end(), line if line == COMMENT || line == include);
    let mut out: String = text.split_inclusive('\n').filter(own).collect();
    if !out.is_empty() && !out.ends_with('\n') {
        out.push('\n');
    }
    // Writing to a String never fails.
    let _ = writeln!(out, "{COMMENT}\n{include}");
    out
}

/// Contents of the file for a server with this command line, of which the last value of a name counts: the node's `own`
/// parameters, the capacities, and what stands otherwise in the `shared` configuration.
pub fn node_file<'a>(
    command_line: &[(String, String)],
    own: impl Iterator<Item = &'a String>,
    shared: &Configuration,
) -> String {
    let own: Vec<String> = own.map(|name| name.to_ascii_lowercase()).collect();
    let capacities = super::capacity(Capacity::default());
    let repeats = |name: &str, value: &str| {
        own.iter().any(|own| own == name)
            || capacities.iter().any(|setting| setting.name == name)
            || (AT_START.contains(&name) && shared.get(name).is_some_and(|said| said != value))
    };
    let in_force: BTreeMap<String, &str> = command_line
        .iter()
        .map(|(name, value)| (name.to_ascii_lowercase(), value.as_str()))
        .collect();
    let mut text = "# Written at each start of the server; changes are lost.\n".to_owned();
    for (name, value) in in_force {
        if repeats(&name, value) {
            let _ = writeln!(text, "{name} = {}", quoted(value));
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_include_is_one_line_behind_all_others() {
        let once = with_node_file("work_mem = 4MB");
        assert!(once.starts_with("work_mem = 4MB\n"));
        assert!(once.ends_with("include_if_exists = 'postgresql.node.conf'\n"));
        assert_eq!(with_node_file(&once), once);
        let more = format!("{once}jit = off\n");
        assert!(with_node_file(&more).contains("jit = off\n# UNDERSTUDY"));
        assert_eq!(with_node_file(&more).matches("include_if").count(), 1);
    }

    /// The file is no reason to keep the owner's libraries apart, as other included files are.
    #[test]
    fn the_include_is_no_included_file_of_the_owners() {
        let read = Configuration::parse([with_node_file("").as_str()]);
        assert_eq!(read, Configuration::default());
    }

    #[test]
    fn the_file_repeats_what_a_reload_or_a_backup_would_miss() {
        let line = |name: &str, value: &str| (name.to_owned(), value.to_owned());
        let command_line = [
            line("max_connections", "100"),
            line("Work_Mem", "8MB"),
            line("max_connections", "300"),
            line("full_page_writes", "off"),
            line("shared_preload_libraries", "a,pg_prewarm"),
            line("archive_mode", "on"),
            line("port", "5433"),
        ];
        let shared = Configuration::parse(["shared_preload_libraries = 'a'\nport = 1\n"]);
        let own = ["work_mem".to_owned()];
        let text = node_file(&command_line, own.iter(), &shared);
        let read = Configuration::parse([text.as_str()]);
        assert_eq!(read.get("max_connections"), Some("300"));
        assert_eq!(read.get("work_mem"), Some("8MB"));
        assert_eq!(read.get("shared_preload_libraries"), Some("a,pg_prewarm"));
        for absent in ["full_page_writes", "port", "archive_mode"] {
            assert_eq!(read.get(absent), None, "{absent}");
        }
    }
}
