//! What the catalog of a database says of everything that a statement names.
//!
//! Owns the judgement of a [`SingleStatement`]: whether it is proved to be a read, whether it may change its session, and whether it may
//! act outside of the database. Invariant: refused by default. A name that the catalog did not have when it was read, that has
//! several meanings, or that leads to a function of the users' own, is not proved to be anything.
//!
//! A catalog may have changed since it was read. So what it says is good enough to try a statement on a standby, which
//! refuses to write.

use std::collections::{HashMap, HashSet};

use super::calls::{EXECUTES_TEXT, HARMLESS, REPEATABLE, is_of_server, touches_large_objects};
use super::{Kind, SingleStatement};

/// What a catalog says of all functions of a name.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Function {
    /// Name without its schema.
    pub name: Box<str>,
    /// One of them is volatile.
    pub is_volatile: bool,
    /// All of them came with PostgreSQL or an extension: nobody changes them in passing.
    pub is_settled: bool,
    /// One of them is an extension's that may act outside of the database, or is written in a language that may.
    pub reaches_out: bool,
    /// All of them came with PostgreSQL.
    pub is_builtin: bool,
}

/// Names of which the catalog says something.
#[derive(Debug, Default, Clone, PartialEq, Eq)]
pub struct Names {
    /// Those that are there.
    pub known: HashSet<Box<str>>,
    /// Those of them that lead to a function of the users' own when they are used in a read.
    pub calling: HashSet<Box<str>>,
}

impl Names {
    fn prove(&self, name: &str) -> bool {
        self.known.contains(name) && !self.calling.contains(name)
    }
}

/// What is known of a database, as far as its catalog was read.
#[derive(Debug, Default, Clone)]
pub struct Catalog {
    functions: HashMap<Box<str>, Function>,
    /// Operators.
    pub operators: Names,
    /// Types.
    pub types: Names,
    /// Names of columns.
    pub columns: HashSet<Box<str>>,
    /// Tables and views.
    pub relations: Names,
    /// Sequences.
    pub sequences: HashSet<Box<str>>,
    /// Tables and views whose changes call functions of the users' own: by triggers, defaults, checks, or what cascades to them.
    pub coded: HashSet<Box<str>>,
    /// Tables and views of which some part is foreign, or whose changes reach one.
    pub foreign: HashSet<Box<str>>,
    /// A function of the users' own is behind something that no name tells of: a class of operators, a cast that is not asked
    /// for, a type of its own kind.
    pub calls_unnamed: bool,
    /// There is nothing in the database by which a function of the users' own could act outside of it.
    pub is_closed: bool,
    /// There are functions, of extensions or in C, that keep something which no reset takes away.
    pub has_reaching_functions: bool,
    /// Some user's commits do not wait until they are durable, by the server's settings.
    pub commits_async: bool,
    /// Settings of their own that functions name.
    pub custom_settings: Vec<Box<str>>,
    /// A function computes the name of a setting that it sets.
    pub computes_settings: bool,
    /// Nothing was read yet.
    pub is_unread: bool,
    /// The answer to [`OWN_FUNCTIONS`] when it was read.
    pub own_functions: Box<str>,
    /// Names that were never heard of are taken for harmless.
    #[cfg(test)]
    pub believes: bool,
}

/// Gives another text whenever a function was made, replaced or dropped: a catalog that was read before does not know what it
/// does to a session.
pub const OWN_FUNCTIONS: &str = "(SELECT pg_catalog.concat(pg_catalog.count(*), ' ', \
    pg_catalog.sum(p.xmin::pg_catalog.text::pg_catalog.int8 \
        OPERATOR(pg_catalog.*) (p.oid::pg_catalog.int8 OPERATOR(pg_catalog.%) 1000003))) \
    FROM pg_catalog.pg_proc p WHERE p.oid OPERATOR(pg_catalog.>=) 16384)";

/// What a statement may do, by the catalog.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Verdict {
    /// It may write, as far as anybody can prove.
    pub may_write: bool,
    /// It may change what its session has.
    pub is_opaque: bool,
    /// The same, and not only because it names something new, like a table of a moment ago.
    pub runs_own: bool,
    /// It runs a function of which nobody knows what it does, and which may notify.
    pub may_notify: bool,
    /// It may act outside of the database.
    pub reaches_out: bool,
    /// It may leave something on its connection that no reset takes away.
    pub taints: bool,
    /// It names something that the catalog did not have when it was read.
    pub is_unheard: bool,
    /// It may be run again, as far as functions go.
    pub may_repeat: bool,
    /// A standby may be tried.
    pub may_run_on_standby: bool,
}

impl Catalog {
    /// What is known of these functions. Each name comes once.
    pub fn new(functions: impl IntoIterator<Item = Function>) -> Catalog {
        let functions = functions.into_iter();
        let functions: HashMap<Box<str>, Function> = functions
            .map(|function| (function.name.clone(), function))
            .collect();
        Catalog {
            has_reaching_functions: functions.values().any(|function| function.reaches_out),
            functions,
            ..Catalog::default()
        }
    }

    /// A catalog before anything was read: whatever is there may do anything.
    pub fn unread() -> Catalog {
        Catalog {
            is_unread: true,
            calls_unnamed: true,
            has_reaching_functions: true,
            commits_async: true,
            computes_settings: true,
            ..Catalog::default()
        }
    }

    /// The same, where names that were never heard of are taken for harmless.
    #[cfg(test)]
    pub fn believing(mut self) -> Catalog {
        self.believes = true;
        self.is_closed = true;
        self
    }

    #[cfg(test)]
    fn believes(&self) -> bool {
        self.believes
    }

    #[cfg(not(test))]
    fn believes(&self) -> bool {
        false
    }

    /// Volatile functions by whose names nothing is done.
    pub fn harmless() -> impl Iterator<Item = &'static str> {
        HARMLESS.iter().copied()
    }

    /// Judges what a statement names and calls.
    pub fn judge(&self, part: &SingleStatement) -> Verdict {
        let mut verdict = Verdict {
            may_repeat: true,
            may_run_on_standby: true,
            ..Verdict::default()
        };
        for name in &part.calls {
            self.judge_call(name, &mut verdict);
        }
        // An attribute is a call only if there is a function of its name, which takes what is in front of it.
        for name in &part.uses.attributes {
            let is_column = self.columns.contains(name) || part.uses.own.contains(name);
            match self.functions.get(name) {
                Some(function) if self.may_write(name) || !function.is_settled => {
                    self.judge_call(name, &mut verdict);
                }
                Some(_) => {}
                None if is_column || self.believes() => {}
                None => self.doubt(&mut verdict),
            }
        }
        let uses = &part.uses;
        let are_proved = |names: &[Box<str>], known: &Names| {
            let is_unheard = |name: &str| self.believes() && !known.calling.contains(name);
            let mut names = names.iter();
            names.all(|name| known.prove(name) || is_unheard(name))
        };
        let relations = uses.relations.iter().filter(|name| {
            // A query of the statement's own hides a table of its name, if there is none.
            self.relations.known.contains(*name) || !uses.own.contains(name)
        });
        let relations: Vec<Box<str>> = relations.cloned().collect();
        let is_proved = are_proved(&uses.operators, &self.operators)
            && are_proved(&uses.types, &self.types)
            && are_proved(&relations, &self.relations)
            && !self.calls_unnamed;
        if !is_proved {
            self.doubt(&mut verdict);
        }
        let calls = |names: &[Box<str>], known: &Names| {
            let mut names = names.iter();
            names.any(|name| known.calling.contains(name))
        };
        verdict.runs_own |= self.calls_unnamed
            || calls(&uses.operators, &self.operators)
            || calls(&uses.types, &self.types)
            || calls(&relations, &self.relations);
        let is_new = |name: &str| !self.relations.known.contains(name);
        verdict.is_unheard = !self.believes() && relations.iter().any(|name| is_new(name))
            || part
                .calls
                .iter()
                .any(|name| !self.functions.contains_key(name))
                && !self.believes();
        if part.writes() && relations.iter().any(|name| self.coded.contains(name)) {
            verdict.is_opaque = true;
            verdict.runs_own = true;
            verdict.reaches_out |= !self.is_closed;
        }
        if part.runs_unseen {
            verdict.is_opaque = true;
            verdict.runs_own = true;
            verdict.may_notify = true;
            verdict.may_write = true;
            verdict.may_run_on_standby = false;
            verdict.reaches_out |= !self.is_closed;
            verdict.may_repeat = false;
        }
        let is_foreign = relations.iter().any(|name| self.foreign.contains(name));
        verdict.reaches_out |= part.may_act_outside || is_foreign;
        let is_elsewhere = |name: &str| self.sequences.contains(name) || is_of_server(name);
        let is_local = relations.iter().any(|name| is_elsewhere(name))
            || part.calls.iter().any(|name| is_of_server(name));
        verdict.may_run_on_standby &= !verdict.reaches_out && !is_local;
        verdict.may_repeat &= !verdict.reaches_out && !part.has_large_objects;
        verdict.may_write |= part.writes();
        verdict.taints |= verdict.is_opaque && self.has_reaching_functions;
        verdict
    }

    /// Something may call a function of the users' own.
    fn doubt(&self, verdict: &mut Verdict) {
        verdict.may_write = true;
        verdict.is_opaque = true;
        verdict.may_notify = true;
        verdict.reaches_out |= !self.is_closed;
    }

    fn judge_call(&self, name: &str, verdict: &mut Verdict) {
        verdict.may_write |= self.may_write(name);
        verdict.may_run_on_standby &= self.may_run_on_standby(name);
        verdict.may_repeat &= self.may_run_again(name);
        let Some(function) = self.functions.get(name) else {
            if !self.believes() && !touches_large_objects(name) {
                verdict.is_opaque = true;
                verdict.runs_own = true;
                verdict.may_notify = true;
                verdict.reaches_out |= !self.is_closed;
            }
            return;
        };
        let executes = EXECUTES_TEXT.contains(&name);
        verdict.taints |= function.reaches_out;
        if !function.is_settled || executes {
            verdict.is_opaque = true;
            verdict.runs_own = true;
            verdict.may_notify |= function.is_volatile || executes;
            verdict.reaches_out |= function.reaches_out || !self.is_closed;
            verdict.may_repeat &= !executes;
        } else if function.is_volatile && !self.is_tame(name) {
            verdict.is_opaque |= !function.is_builtin;
            verdict.reaches_out |= function.reaches_out || function.is_builtin;
        }
    }

    /// True if it is a volatile function that leaves nothing which a rollback does not take away.
    fn is_tame(&self, name: &str) -> bool {
        HARMLESS.contains(&name)
            || REPEATABLE.contains(&name)
            || touches_large_objects(name)
            || name.starts_with("pg_stat_get_")
            || name.starts_with("pg_advisory_")
            || name.starts_with("pg_try_advisory_")
    }

    /// True if `name` is a harmless function, and nobody else has made one of that name.
    fn is_harmless(&self, name: &str) -> bool {
        let is_settled = match self.functions.get(name) {
            Some(function) => function.is_settled,
            None => self.believes(),
        };
        is_settled && HARMLESS.contains(&name)
    }

    /// True if a call of `name` may write, also if the catalog has changed since it was read.
    pub fn may_write(&self, name: &str) -> bool {
        let is_reading = |function: &Function| function.is_settled && !function.is_volatile;
        let reads = self.functions.get(name).is_some_and(is_reading);
        !(self.is_harmless(name) || reads && !EXECUTES_TEXT.contains(&name))
    }

    /// True if a call of `name` may run on a standby: it is stable or immutable, or one of those volatile
    /// ones of PostgreSQL that only tell the time or a random number.
    pub fn may_run_on_standby(&self, name: &str) -> bool {
        let is_stable = |function: &Function| !function.is_volatile;
        self.is_harmless(name) || self.functions.get(name).is_some_and(is_stable)
    }

    /// True if a call of `name` leaves no trace that a rollback does not take away, so that the transaction
    /// may be run again.
    pub fn may_run_again(&self, name: &str) -> bool {
        let is_settled = match self.functions.get(name) {
            Some(function) => function.is_settled,
            None => self.believes(),
        };
        is_settled && self.is_tame(name) && !touches_large_objects(name)
            || self.may_run_on_standby(name)
    }

    /// True if a statement leaves something on its connection of which only the server knows, so that a standby must not run it.
    pub fn is_for_active(&self, part: &SingleStatement) -> bool {
        let is_unread = matches!(part.kind, Kind::Opaque { .. });
        let verdict = self.judge(part);
        part.is_for_active()
            || (verdict.is_opaque || is_unread) && !verdict.may_run_on_standby
            || verdict.reaches_out
    }
}

#[cfg(test)]
mod tests {
    use super::super::classify::classify;
    use super::*;

    fn function(name: &str, is_volatile: bool, is_settled: bool) -> Function {
        Function {
            name: name.into(),
            is_volatile,
            is_settled,
            is_builtin: is_settled,
            reaches_out: false,
        }
    }

    fn names(known: &[&str], calling: &[&str]) -> Names {
        let set = |names: &[&str]| names.iter().map(|name| (*name).into()).collect();
        Names {
            known: set(known),
            calling: set(calling),
        }
    }

    fn catalog() -> Catalog {
        let mut catalog = Catalog::new([
            function("lower", false, true),
            function("f", true, false),
            function("g", false, false),
            function("setval", true, true),
            function("nextval", true, true),
            function("random", true, true),
            function("table_to_xml", false, true),
            function("lo_export", true, true),
            function("pg_reload_conf", true, true),
        ]);
        catalog.operators = names(&["=", "+", "<+>"], &["<+>"]);
        catalog.types = names(&["int4", "d"], &["d"]);
        catalog.relations = names(&["t", "v", "ft", "r"], &["v"]);
        catalog.columns = ["a", "pay"].into_iter().map(Into::into).collect();
        catalog.coded = ["r".into()].into_iter().collect();
        catalog.foreign = ["ft".into()].into_iter().collect();
        catalog.is_closed = true;
        catalog
    }

    fn judged(catalog: &Catalog, text: &str) -> Verdict {
        let statement = classify(text).expect("it parses");
        catalog.judge(statement.only().expect("one statement"))
    }

    #[test]
    fn unknown_functions_are_volatile() {
        let catalog = catalog();
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

    #[test]
    fn a_read_is_proved_by_everything_that_it_names() {
        let catalog = catalog();
        for text in [
            "SELECT a FROM t WHERE a = 1",
            "SELECT x.n FROM (SELECT a AS n FROM t) x",
            "WITH c AS (SELECT 1 AS n) SELECT c.n FROM c",
            "SELECT t.a + 1, lower('x')::int4 FROM t",
            "SELECT random()",
        ] {
            let verdict = judged(&catalog, text);
            assert!(
                !verdict.may_write && !verdict.is_opaque,
                "{text}: {verdict:?}"
            );
            assert!(verdict.may_repeat && verdict.may_run_on_standby, "{text}");
        }
    }

    /// Each of them calls a function of somebody's own, or may, without a word of it.
    #[test]
    fn statement_not_proved_to_be_a_read_may_write() {
        let catalog = catalog();
        for text in [
            "SELECT a OPERATOR(my.<+>) 1 FROM t",
            "SELECT a <=> 1 FROM t",
            "SELECT a::d FROM t",
            "SELECT a::unheard_of FROM t",
            "SELECT t.f FROM t",
            "SELECT (t).g FROM t",
            "SELECT t.unheard_of FROM t",
            "SELECT * FROM v",
            "SELECT * FROM unheard_of",
            "SELECT f(1)",
            "SELECT g(1)",
            "SELECT unheard_of(1)",
            "SELECT table_to_xml('v', true, true, '')",
            "DO $$ $$",
            "CALL p()",
            "EXECUTE p",
        ] {
            let verdict = judged(&catalog, text);
            assert!(
                verdict.may_write && verdict.is_opaque,
                "{text}: {verdict:?}"
            );
            assert!(!verdict.reaches_out, "{text}: nothing there could");
            let mut open = catalog.clone();
            open.is_closed = false;
            let verdict = judged(&open, text);
            assert!(
                verdict.reaches_out && !verdict.may_repeat,
                "{text}: {verdict:?}"
            );
        }
        let unnamed = Catalog {
            calls_unnamed: true,
            ..catalog
        };
        assert!(judged(&unnamed, "SELECT a FROM t").may_write);
        assert!(judged(&Catalog::default(), "SELECT random()").may_write);
    }

    /// The sequence of a name that is no column's.
    #[test]
    fn an_attribute_may_be_a_function_of_postgresql() {
        let verdict = judged(&catalog(), "SELECT ('s'::int4).nextval");
        assert!(verdict.may_write && !verdict.is_opaque, "{verdict:?}");
    }

    #[test]
    fn functions_that_reach_out_are_not_repeated() {
        let catalog = catalog();
        for text in [
            "INSERT INTO ft VALUES (1)",
            "SELECT * FROM ft",
            "COPY t TO PROGRAM 'mail'",
            "COPY t TO '/tmp/t'",
            "SELECT pg_reload_conf()",
        ] {
            let verdict = judged(&catalog, text);
            assert!(
                verdict.reaches_out && !verdict.may_repeat,
                "{text}: {verdict:?}"
            );
            assert!(!verdict.may_run_on_standby, "{text}");
        }
        let verdict = judged(&catalog, "INSERT INTO r VALUES (1)");
        assert!(verdict.is_opaque && !verdict.reaches_out && verdict.may_repeat);
    }
}
