//! What is known of functions by their names alone.
//!
//! A function is judged by its volatility in the catalog ([`Volatile`]), and a few by their name: those that
//! PostgreSQL itself has and that do something to the session or outside of the transaction.

use std::collections::HashSet;

/// The names of the functions of a database of which at least one is volatile, as far as its catalog was
/// read. Names of which nothing is known are volatile.
#[derive(Debug, Default, Clone)]
pub struct Volatile {
    known: HashSet<Box<str>>,
    volatile: HashSet<Box<str>>,
}

impl Volatile {
    /// From pairs of a name and whether a function of that name is volatile.
    pub fn new(functions: impl IntoIterator<Item = (Box<str>, bool)>) -> Volatile {
        let mut catalog = Volatile::default();
        for (name, is_volatile) in functions {
            if is_volatile {
                catalog.volatile.insert(name.clone());
            }
            catalog.known.insert(name);
        }
        catalog
    }

    /// Whether a call of `name` may run on a standby: it is stable or immutable, or one of those volatile
    /// ones of PostgreSQL that only tell the time or a random number.
    pub fn may_run_on_standby(&self, name: &str) -> bool {
        HARMLESS.contains(&name) || self.known.contains(name) && !self.volatile.contains(name)
    }

    /// Whether a call of `name` leaves no trace that a rollback does not take away, so that the transaction
    /// may be run again.
    pub fn may_run_again(&self, name: &str) -> bool {
        REPEATABLE.contains(&name) || self.may_run_on_standby(name)
    }
}

/// Volatile functions of PostgreSQL without effects, the same on any server.
const HARMLESS: &[&str] = &[
    "clock_timestamp",
    "gen_random_uuid",
    "pg_sleep",
    "pg_sleep_for",
    "pg_sleep_until",
    "random",
    "random_normal",
    "statement_timestamp",
    "timeofday",
    "uuidv4",
    "uuidv7",
];

/// Volatile functions of PostgreSQL whose effects end with the transaction, or may happen twice.
const REPEATABLE: &[&str] = &[
    "currval",
    "lastval",
    "nextval",
    "pg_advisory_xact_lock",
    "pg_advisory_xact_lock_shared",
    "pg_current_xact_id",
    "pg_notify",
    "pg_try_advisory_xact_lock",
    "pg_try_advisory_xact_lock_shared",
    "set_config",
    "setseed",
    "setval",
    "txid_current",
];

/// Functions of large objects: their descriptors are numbers that one server gave.
pub fn touches_large_objects(name: &str) -> bool {
    name.starts_with("lo_") || matches!(name, "loread" | "lowrite")
}

/// Takes an advisory lock that the session keeps.
pub fn takes_advisory_lock(name: &str) -> bool {
    matches!(
        name,
        "pg_advisory_lock"
            | "pg_advisory_lock_shared"
            | "pg_try_advisory_lock"
            | "pg_try_advisory_lock_shared"
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_unknown_is_volatile() {
        let catalog = Volatile::new([
            ("lower".into(), false),
            ("f".into(), true),
            ("f".into(), false),
        ]);
        assert!(catalog.may_run_on_standby("lower"));
        assert!(!catalog.may_run_on_standby("f"));
        assert!(!catalog.may_run_on_standby("unheard_of"));
        assert!(catalog.may_run_on_standby("random"));
        assert!(!catalog.may_run_on_standby("nextval"));
        assert!(catalog.may_run_again("nextval"));
        assert!(!catalog.may_run_again("dblink_exec"));
    }
}
