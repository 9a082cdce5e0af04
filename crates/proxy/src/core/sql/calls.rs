//! What is known of functions by their names alone.
//!
//! A function is judged by its volatility in the catalog ([`Volatile`]), and a few by their name: those that
//! PostgreSQL itself has and that do something to the session or outside of the transaction.

use std::collections::HashSet;

/// What a catalog says of all functions of a name.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Function {
    /// The name.
    pub name: Box<str>,
    /// One of them is volatile.
    pub is_volatile: bool,
    /// All of them came with PostgreSQL or an extension: nobody changes them in passing.
    pub is_settled: bool,
}

/// The names of the functions of a database of which at least one is volatile, as far as its catalog was
/// read. Names of which nothing is known are volatile.
///
/// A catalog may have changed since it was read. So what it says is good enough to try a statement on a standby, which
/// refuses to write, but not to conclude that a statement did not write.
#[derive(Debug, Default, Clone)]
pub struct Volatile {
    known: HashSet<Box<str>>,
    volatile: HashSet<Box<str>>,
    settled: HashSet<Box<str>>,
    /// Tables and views of which reading may call a function that writes: by a view's query, or a policy.
    writing: HashSet<Box<str>>,
}

impl Volatile {
    /// What is known of these functions. Each name comes once.
    pub fn new(functions: impl IntoIterator<Item = Function>) -> Volatile {
        let mut catalog = Volatile::default();
        for function in functions {
            if function.is_volatile {
                catalog.volatile.insert(function.name.clone());
            } else if function.is_settled {
                catalog.settled.insert(function.name.clone());
            }
            catalog.known.insert(function.name);
        }
        catalog
    }

    /// The same, where reading these tables and views calls volatile functions that are not settled.
    pub fn with_writing(mut self, relations: impl IntoIterator<Item = Box<str>>) -> Volatile {
        self.writing = relations.into_iter().collect();
        self
    }

    /// Whether reading one of these tables and views may write.
    pub fn may_write_when_read<'a>(
        &self,
        relations: impl IntoIterator<Item = &'a Box<str>>,
    ) -> bool {
        let mut relations = relations.into_iter();
        // In most databases there is none, and nothing to look up.
        !self.writing.is_empty() && relations.any(|name| self.writing.contains(name))
    }

    /// Whether a call of `name` may write, also if the catalog has changed since it was read.
    pub fn may_write(&self, name: &str) -> bool {
        !HARMLESS.contains(&name) && !self.settled.contains(name)
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

/// Sets what its arguments say.
pub fn sets(name: &str) -> bool {
    name == "set_config"
}

/// Queues a notification, for which the transaction gets an id when it commits.
pub fn notifies(name: &str) -> bool {
    name == NOTIFIES
}

/// What `NOTIFY` does as well.
pub const NOTIFIES: &str = "pg_notify";

/// Functions of large objects: their descriptors are numbers that one server gave.
pub fn touches_large_objects(name: &str) -> bool {
    name.starts_with("lo_") || matches!(name, "loread" | "lowrite")
}

/// The same by their numbers in PostgreSQL's catalog, which drivers call without a text: `lo_open`, `lo_close`, `loread`,
/// `lowrite`, `lo_lseek`, `lo_creat`, `lo_tell`, `lo_unlink`, `lo_create`, `lo_truncate`, and those of 64 bits.
pub const LARGE_OBJECTS: &[u32] = &[
    952, 953, 954, 955, 956, 957, 958, 964, 715, 1004, 3170, 3171, 3172,
];

/// Takes advisory locks or gives them back. Each server has its own.
pub fn is_about_locks(name: &str) -> bool {
    name.starts_with("pg_advisory_") || name.starts_with("pg_try_advisory_")
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
        let function = |name: &str, is_volatile, is_settled| Function {
            name: name.into(),
            is_volatile,
            is_settled,
        };
        let catalog = Volatile::new([
            function("lower", false, true),
            function("f", true, false),
            function("g", false, false),
            function("setval", true, true),
        ]);
        assert!(catalog.may_run_on_standby("lower"));
        assert!(!catalog.may_run_on_standby("f"));
        assert!(!catalog.may_run_on_standby("unheard_of"));
        assert!(catalog.may_run_on_standby("random"));
        assert!(!catalog.may_run_on_standby("nextval"));
        assert!(catalog.may_run_again("nextval"));
        assert!(!catalog.may_run_again("dblink_exec"));
        // Somebody may just have made it a function that writes.
        assert!(catalog.may_run_on_standby("g") && catalog.may_write("g"));
        for name in ["f", "setval", "unheard_of"] {
            assert!(catalog.may_write(name), "{name}");
        }
        assert!(!catalog.may_write("lower") && !catalog.may_write("random"));
    }
}
