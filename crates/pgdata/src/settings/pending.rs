//! Which parameters of a running server's command line would have another value after a restart.
//!
//! PostgreSQL tells of parameters that its files changed. What a server has on its command line comes from the node's own
//! configuration, which does not change while the agent runs, or from the shared files, and only a change there is pending.

use std::collections::BTreeMap;

use super::Configuration;
use crate::control::Capacity;

const LIBRARIES: &str = "shared_preload_libraries";
const ARCHIVE: &str = "archive_mode";

/// Values that a server got on its command line and that depend on the shared files.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Derived(BTreeMap<String, String>);

impl Derived {
    /// Takes them from a command line, of which the last value of a name counts, without the node's `own` parameters.
    pub fn new<'a>(
        command_line: &[(String, String)],
        own: impl Iterator<Item = &'a String>,
    ) -> Derived {
        let own: Vec<String> = own.map(|name| name.to_ascii_lowercase()).collect();
        let capacities = super::capacity(Capacity::default());
        let names = capacities.iter().map(|setting| setting.name);
        let names: Vec<&str> = names.chain([LIBRARIES, ARCHIVE]).collect();
        let given = command_line
            .iter()
            .map(|(name, value)| (name.to_ascii_lowercase(), value.clone()));
        let derived =
            given.filter(|(name, _)| names.contains(&name.as_str()) && !own.contains(name));
        Derived(derived.collect())
    }

    /// Names of the parameters, to ask the files for.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.0.keys().map(String::as_str)
    }

    /// Names of those that would have another value after a restart with these `shared` files. A standby keeps capacities
    /// that are larger than they say, because the log may need them.
    pub fn pending(&self, shared: &Configuration, in_recovery: bool) -> Vec<String> {
        let capacities = super::capacity(shared.capacity());
        let differs = |(name, value): &(&String, &String)| match name.as_str() {
            LIBRARIES => libraries(value) != libraries(shared.get(LIBRARIES).unwrap_or_default()),
            // A standby that must not archive has "on" for "always", and an active that was one has it still.
            ARCHIVE => match shared.get(ARCHIVE).unwrap_or("off") {
                always if always.eq_ignore_ascii_case("always") => false,
                mode => !mode.eq_ignore_ascii_case(value),
            },
            name => capacities
                .iter()
                .find(|capacity| capacity.name == name)
                .is_some_and(|wanted| is_other(&wanted.value, value, in_recovery)),
        };
        let pending = self.0.iter().filter(differs);
        pending.map(|(name, _)| name.clone()).collect()
    }
}

fn is_other(wanted: &str, given: &str, in_recovery: bool) -> bool {
    match (wanted.parse::<u32>(), given.parse::<u32>()) {
        (Ok(wanted), Ok(given)) if in_recovery => wanted > given,
        (Ok(wanted), Ok(given)) => wanted != given,
        _ => false,
    }
}

/// Libraries of a list, without the one that nodes add.
fn libraries(list: &str) -> Vec<&str> {
    let names = list.split(',').map(str::trim);
    names
        .filter(|name| !name.is_empty() && *name != crate::warmth::LIBRARY)
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn derived(pairs: &[(&str, &str)], own: &[&str]) -> Derived {
        let line: Vec<(String, String)> = pairs
            .iter()
            .map(|(name, value)| ((*name).to_owned(), (*value).to_owned()))
            .collect();
        let own: Vec<String> = own.iter().map(|name| (*name).to_owned()).collect();
        Derived::new(&line, own.iter())
    }

    fn pending(derived: &Derived, shared: &str, in_recovery: bool) -> String {
        let shared = Configuration::parse([shared]);
        derived.pending(&shared, in_recovery).join(",")
    }

    #[test]
    fn a_nodes_own_parameter_never_waits_for_a_restart() {
        let own = derived(&[("Max_Connections", "300")], &["max_connections"]);
        assert_eq!(own.names().count(), 0);
        assert_eq!(pending(&own, "max_connections = 100", false), "");
    }

    #[test]
    fn a_capacity_waits_where_a_restart_would_change_it() {
        let given = derived(
            &[("max_connections", "300"), ("max_wal_senders", "10")],
            &[],
        );
        for (shared, in_recovery, expected) in [
            ("max_connections = 300", false, ""),
            ("max_connections = 100", false, "max_connections"),
            ("max_connections = 100", true, ""),
            ("max_connections = 400", true, "max_connections"),
            ("", false, "max_connections"),
        ] {
            assert_eq!(pending(&given, shared, in_recovery), expected, "{shared}");
        }
    }

    #[test]
    fn libraries_wait_only_if_the_owners_change() {
        let given = derived(&[("shared_preload_libraries", "a, b,pg_prewarm")], &[]);
        assert_eq!(
            pending(&given, "shared_preload_libraries = 'a,b'", false),
            ""
        );
        assert_eq!(
            pending(&given, "shared_preload_libraries = 'a'", false),
            "shared_preload_libraries"
        );
    }

    #[test]
    fn archiving_always_is_archiving_on_a_node_of_this_kind() {
        let given = derived(&[("archive_mode", "on")], &[]);
        assert_eq!(pending(&given, "archive_mode = always", true), "");
        assert_eq!(pending(&given, "archive_mode = off", true), "archive_mode");
    }
}
