//! Which sessions go on at the other manager when theirs stops being primary, and what they take along.
//!
//! ```text
//!            not primary any more,                    let in, with what it has
//!            nothing under way
//!   here ──────────────────────▶ without a place ───────────────────────────▶ there
//!    ▲                             │        ▲                                   │
//!    └─────────────────────────────┘        └───────────────────────────────────┘
//!      this one is primary (again)            that one is not primary any more
//! ```
//!
//! The client's connection stays where it was made: a session that is elsewhere is relayed, and one that leaves there comes back
//! with what it has by then, so that there is never a chain. Invariant: a session moves only between transactions, so nothing is ever
//! in doubt because of it, and with all that it has or not at all.

use std::collections::BTreeSet;

use proxy::core::sql::ServerAffinity;
use serde::{Deserialize, Serialize};

/// Asks a member's session what it has that no other one can be given: temporary objects, advisory locks, cursors, channels.
pub const BONDS: &str = "SELECT \
    (SELECT pg_catalog.count(*) FROM pg_catalog.pg_class WHERE relnamespace = pg_catalog.pg_my_temp_schema()) + \
    (SELECT pg_catalog.count(*) FROM pg_catalog.pg_type WHERE typnamespace = pg_catalog.pg_my_temp_schema()) + \
    (SELECT pg_catalog.count(*) FROM pg_catalog.pg_proc WHERE pronamespace = pg_catalog.pg_my_temp_schema()), \
    (SELECT pg_catalog.count(*) FROM pg_catalog.pg_locks WHERE locktype = 'advisory' AND pid = pg_catalog.pg_backend_pid()), \
    (SELECT pg_catalog.count(*) FROM pg_catalog.pg_cursors WHERE is_holdable), \
    (SELECT pg_catalog.count(*) FROM pg_catalog.pg_listening_channels())";

/// What a session has that no other server can be given.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Holds {
    /// Things that a server keeps for it.
    pub bonds: BTreeSet<ServerAffinity>,
    /// It waits for notifications; those that come in between would be lost.
    pub listens: bool,
}

impl Holds {
    /// What the member has answered to [`BONDS`]; it knows best. `noted` is what was seen from outside, of which the member knows
    /// nothing if nobody can read it.
    pub fn told(row: &[Option<String>], noted: &Holds) -> Holds {
        let has = |at: usize| {
            row.get(at)
                .cloned()
                .flatten()
                .is_none_or(|text| text != "0")
        };
        let asked = [
            ServerAffinity::Temporary,
            ServerAffinity::Advisory,
            ServerAffinity::HeldCursor,
        ];
        let mut bonds: BTreeSet<ServerAffinity> = asked
            .into_iter()
            .enumerate()
            .filter_map(|(at, bond)| has(at).then_some(bond))
            .collect();
        bonds.extend(noted.bonds.get(&ServerAffinity::Unknown));
        Holds {
            bonds,
            listens: has(3),
        }
    }
}

/// How a client has proved who it is, and whether that can be done again in its place.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Proved {
    /// It was not asked, or what was asked can be proved again.
    Repeatably,
    /// By another of the protocol's methods.
    Once(u32),
}

/// Why a session between transactions cannot move.
///
/// # Errors
/// The reason, as a client is told it.
pub fn may_move(holds: &Holds, proved: Proved) -> Result<(), String> {
    if let Some(bond) = holds.bonds.first() {
        return Err(format!("It has {}.", bond.what()));
    }
    if holds.listens {
        return Err("It listens for notifications, and could miss some.".to_owned());
    }
    match proved {
        Proved::Repeatably => Ok(()),
        Proved::Once(method) => Err(format!(
            "Its client was let in by authentication method {method}, which only the client can repeat."
        )),
    }
}

/// A statement of the extended protocol.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Statement {
    /// Its name; empty for the one without.
    pub name: String,
    /// Its text.
    pub text: String,
    /// The types of its parameters, as far as they were given.
    pub types: Vec<u32>,
}

/// What a session takes along.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Belongings {
    /// The startup message, without its length.
    pub startup: Vec<u8>,
    /// Statements that set what was set since.
    pub settings: Option<String>,
    /// Statements that prepare what was prepared by SQL.
    pub prepares: Option<String>,
    /// What was prepared by the extended protocol.
    pub statements: Vec<Statement>,
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(values: [&str; 4]) -> Vec<Option<String>> {
        values.map(|value| Some(value.to_owned())).to_vec()
    }

    #[test]
    fn what_has_nothing_moves() {
        let holds = Holds::told(&row(["0", "0", "0", "0"]), &Holds::default());
        assert_eq!(may_move(&holds, Proved::Repeatably), Ok(()));
    }

    #[test]
    fn what_a_server_keeps_stays_there() {
        for (at, what) in ["temporary table", "advisory lock", "WITH HOLD", "listens"]
            .into_iter()
            .enumerate()
        {
            let mut values = ["0"; 4];
            values[at] = "2";
            let holds = Holds::told(&row(values), &Holds::default());
            let why = may_move(&holds, Proved::Repeatably).expect_err("it stays");
            assert!(why.contains(what), "{why}");
        }
    }

    #[test]
    fn the_member_knows_best_but_for_what_it_cannot_tell() {
        let noted = Holds {
            bonds: [ServerAffinity::Advisory, ServerAffinity::Unknown].into(),
            listens: true,
        };
        let holds = Holds::told(&row(["0", "0", "0", "0"]), &noted);
        assert_eq!(holds.bonds, [ServerAffinity::Unknown].into());
        assert!(!holds.listens);
        assert!(may_move(&holds, Proved::Repeatably).is_err());
        assert!(Holds::told(&[], &noted).listens, "no answer is no");
    }

    #[test]
    fn who_cannot_be_let_in_again_stays() {
        let why = may_move(&Holds::default(), Proved::Once(3)).expect_err("a password in clear");
        assert!(why.contains("method 3"), "{why}");
    }
}
