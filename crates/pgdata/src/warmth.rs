//! Which blocks a server has in its buffers, as the server itself tells.
//!
//! PostgreSQL's own extension `pg_prewarm` writes the list into a file of the data directory from time
//! to time, and loads what the list names when a server starts, also a standby. It needs no object in
//! any database, only to be among the preloaded libraries ([`settings`]). So the active's list, which
//! is a shared file like a configuration, tells standbys what its clients read and no log mentions
//! (multi-version replication, section 4.5: the list of hot pages).

use std::path::{Path, PathBuf};
use std::time::Duration;

use crate::relation::{Fork, Relation, RelationBlock};
use crate::settings::{Configuration, Setting};

/// The file, relative to the data directory. While it is written it has a suffix.
pub const BUFFERS_FILE: &str = "autoprewarm.blocks";

/// The library's name.
pub(crate) const LIBRARY: &str = "pg_prewarm";
const PRELOADED: &str = "shared_preload_libraries";
const INTERVAL: &str = "pg_prewarm.autoprewarm_interval";

/// True if a path is that of the list, whole or being written.
pub fn is_buffers_file(path: &str) -> bool {
    path.starts_with(BUFFERS_FILE)
}

/// Where the library is, for servers with programs in `bin`; `None` if it is not installed.
pub fn library(bin: &Path) -> Option<PathBuf> {
    let places = ["../lib", "../lib/postgresql", "../lib64"];
    let places = places.map(|place| bin.join(place).join(format!("{LIBRARY}.so")));
    places.into_iter().find(|place| place.is_file())
}

/// What makes a server write its list every so often, besides what its configuration says; nothing
/// where the configuration includes files that may name libraries, which must not be lost.
pub fn settings(configuration: &Configuration, every: Duration) -> Vec<Setting> {
    let includes = ["include", "include_dir", "include_if_exists"];
    if includes
        .iter()
        .any(|name| configuration.get(name).is_some())
    {
        return Vec::new();
    }
    let mut libraries = configuration.get(PRELOADED).unwrap_or("").trim().to_owned();
    if !libraries.split(',').any(|name| name.trim() == LIBRARY) {
        if !libraries.is_empty() {
            libraries.push(',');
        }
        libraries.push_str(LIBRARY);
    }
    let mut settings = vec![
        Setting::new(PRELOADED, libraries),
        Setting::new("pg_prewarm.autoprewarm", "on"),
    ];
    if configuration.get(INTERVAL).is_none() {
        settings.push(Setting::new(
            INTERVAL,
            format!("{}s", every.as_secs().max(1)),
        ));
    }
    settings
}

/// Parses a list. Forks that this code does not know are left out; `None` if it is not a whole list.
pub fn parse(text: &str) -> Option<Vec<RelationBlock>> {
    let mut lines = text.lines();
    let count: usize = lines
        .next()?
        .strip_prefix("<<")?
        .strip_suffix(">>")?
        .parse()
        .ok()?;
    let mut blocks = Vec::new();
    let mut seen = 0;
    for line in lines {
        seen += 1;
        blocks.extend(block(line)?);
    }
    (seen == count).then_some(blocks)
}

/// `database,tablespace,number,fork,block`; the outer `None` if it is something else, the inner if the
/// fork is unknown.
fn block(line: &str) -> Option<Option<RelationBlock>> {
    let mut numbers = line.split(',').map(str::parse::<u32>);
    let mut next = || numbers.next()?.ok();
    let (database, tablespace, number, fork, block) = (next()?, next()?, next()?, next()?, next()?);
    let relation = Relation {
        tablespace,
        database,
        number,
    };
    let fork = u8::try_from(fork).ok().and_then(Fork::from_number);
    Some(fork.map(|fork| RelationBlock {
        relation,
        fork,
        block,
    }))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_list_is_parsed_whole_or_not_at_all() {
        let text = "<<3>>\n0,1664,1260,0,0\n5,1663,16384,2,7\n5,1663,16384,9,7\n";
        let blocks = parse(text).unwrap();
        assert_eq!(blocks.len(), 2, "one has a fork that nobody knows");
        assert_eq!(
            blocks[1].location(131_072),
            Some(("base/5/16384_vm".to_owned(), 7))
        );
        assert_eq!(parse("<<2>>\n5,1663,16384,0,7\n"), None);
        assert_eq!(parse("<<1>>\n5,1663,16384,0\n"), None);
        assert_eq!(parse("\0\0\0"), None);
        assert_eq!(parse("<<0>>\n"), Some(vec![]));
    }

    #[test]
    fn the_owners_libraries_stay_and_their_interval_as_well() {
        let value = |configuration: &str, name: &str| {
            let configuration = Configuration::parse([configuration]);
            let settings = settings(&configuration, Duration::from_secs(30));
            let found = settings.into_iter().find(|s| s.name == name);
            found.map(|setting| setting.value)
        };
        assert_eq!(value("", PRELOADED).as_deref(), Some("pg_prewarm"));
        let two = "shared_preload_libraries = 'pg_stat_statements, auto_explain'";
        assert_eq!(
            value(two, PRELOADED).as_deref(),
            Some("pg_stat_statements, auto_explain,pg_prewarm")
        );
        let has =
            "shared_preload_libraries = 'x, pg_prewarm'\npg_prewarm.autoprewarm_interval = 5min";
        assert_eq!(value(has, PRELOADED).as_deref(), Some("x, pg_prewarm"));
        assert_eq!(value(has, INTERVAL), None);
        assert_eq!(value("", INTERVAL).as_deref(), Some("30s"));
        assert_eq!(value("include_dir = 'conf.d'", PRELOADED), None);
    }
}
