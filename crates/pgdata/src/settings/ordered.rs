//! What an ordered log needs of the server whose log it is, and when a configuration rules it out.
//!
//! The settings are pinned when a server starts, also on a standby, which may be promoted: they cannot be taken away
//! while it runs. A server without them has a strict log for as long as it lives.

use super::{Configuration, Setting};
use crate::confirm::CONFIRMS;

const NAMES: &str = "synchronous_standby_names";

/// What is pinned besides the rest.
pub fn ordered() -> Vec<Setting> {
    vec![
        // Commits wait for what the agent confirms. Nothing but a restart can end that: PostgreSQL lets all go that wait
        // when the list becomes empty.
        Setting::new(NAMES, format!("FIRST 1 ({CONFIRMS})")),
        // A subscription tells its publisher that it has what is flushed here, and the publisher sends it no more.
        Setting::new("max_logical_replication_workers", "0"),
    ]
}

/// True if a server that was started with these settings has what an ordered log needs.
pub fn is_ordered(settings: &[(String, String)]) -> bool {
    let last = |name: &str| {
        let mut set = settings.iter().rev();
        set.find(|(set, _)| set.eq_ignore_ascii_case(name))
    };
    ordered()
        .iter()
        .all(|setting| last(setting.name).is_some_and(|(_, value)| *value == setting.value))
}

/// Why the log of a server with this configuration must be strict; `None` if it may be ordered.
pub fn why_strict(configuration: &Configuration) -> Option<String> {
    let names = configuration.get(NAMES).map(str::trim).unwrap_or_default();
    if !names.is_empty() {
        return Some(format!(
            "{NAMES} = '{names}' names standbys that would have to connect to this server, and none can beside an \
             ordered log; make it empty, or set [storage] wal_sync = \"strict\""
        ));
    }
    let waits = configuration.get("synchronous_commit").map(str::trim);
    let early = ["local", "off", "false", "no", "0"];
    if let Some(value) =
        waits.filter(|value| early.iter().any(|one| value.eq_ignore_ascii_case(one)))
    {
        return Some(format!(
            "synchronous_commit = {value} makes commits wait for the flush at most, which is not durable yet where the log \
             is ordered; set it to on, or set [storage] wal_sync = \"strict\""
        ));
    }
    let level = configuration.get("wal_level").unwrap_or("replica");
    if level.eq_ignore_ascii_case("logical") {
        return Some(
            "wal_level = logical lets slots hand out changes that are not durable yet; set it to replica, or set \
             [storage] wal_sync = \"strict\""
                .to_owned(),
        );
    }
    if configuration.capacity().max_wal_senders == 0 {
        return Some(
            "max_wal_senders = 0 leaves no place for the connection that confirms commits; set it to 1 or more, or \
             set [storage] wal_sync = \"strict\""
                .to_owned(),
        );
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    fn why(text: &str) -> Option<String> {
        why_strict(&Configuration::parse([text]))
    }

    // hazard: ORDER-9
    #[test]
    fn an_operators_standbys_slots_and_no_places_rule_it_out() {
        assert_eq!(why(""), None);
        assert_eq!(
            why("synchronous_standby_names = ' '\nwal_level = replica\n"),
            None
        );
        let names = why("synchronous_standby_names = 'ANY 1 (a, b)'\n").unwrap();
        assert!(names.contains("'ANY 1 (a, b)'") && names.contains("strict"));
        assert!(why("wal_level = Logical\n").unwrap().contains("replica"));
        assert!(why("max_wal_senders = 0\n").unwrap().contains("1 or more"));
    }

    // hazard: ORDER-21
    #[test]
    fn so_do_commits_that_do_not_wait() {
        for early in ["local", "Off", "'no'", "false", "0"] {
            let why = why(&format!("synchronous_commit = {early}\n")).unwrap();
            assert!(why.contains("synchronous_commit"), "{why}");
        }
        for waits in ["on", "remote_write", "remote_apply"] {
            assert_eq!(why(&format!("synchronous_commit = {waits}\n")), None);
        }
    }

    #[test]
    fn a_server_is_known_by_what_it_was_started_with() {
        let pinned: Vec<_> = ordered()
            .into_iter()
            .map(|setting| (setting.name.to_owned(), setting.value))
            .collect();
        assert!(is_ordered(&pinned));
        assert!(!is_ordered(&pinned[1..]) && !is_ordered(&[]));
        // The last of a name counts.
        let own = |value: &str| vec![(NAMES.to_owned(), value.to_owned())];
        assert!(is_ordered(&[own("x"), pinned.clone()].concat()));
        assert!(!is_ordered(&[pinned, own("x")].concat()));
    }
}
