//! State of a session beside its transaction: settings, channels, prepared statements, and what binds it to one server.
//!
//! Invariant: what a transaction changed counts when it has committed, and not before.

use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize};

use super::super::settings::{Change, Settings, join, quote_identifier};
use super::super::sql::{Effect, ServerAffinity};

#[derive(Debug, Clone, PartialEq, Eq)]
enum Pending {
    Effect(Effect),
    Savepoint(Box<str>),
}

/// State of a session beside its transaction.
#[derive(Debug, Default)]
pub struct SessionState {
    /// Settings that differ from a new connection's.
    pub settings: Settings,
    /// What the client's startup message asked for: `DISCARD ALL` goes back to it.
    startup: Settings,
    listens: BTreeSet<Box<str>>,
    prepared: BTreeMap<Box<str>, Box<str>>,
    affinities: BTreeSet<ServerAffinity>,
    pending: Vec<Pending>,
}

/// The same between two transactions, for another process.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Packed {
    settings: Settings,
    startup: Settings,
    listens: BTreeSet<Box<str>>,
    prepared: BTreeMap<Box<str>, Box<str>>,
    affinities: BTreeSet<ServerAffinity>,
}

impl SessionState {
    /// What it is between two transactions.
    pub fn pack(&self) -> Packed {
        Packed {
            settings: self.settings.clone(),
            startup: self.startup.clone(),
            listens: self.listens.clone(),
            prepared: self.prepared.clone(),
            affinities: self.affinities.clone(),
        }
    }

    /// What was packed.
    pub fn unpack(packed: Packed) -> SessionState {
        SessionState {
            settings: packed.settings,
            startup: packed.startup,
            listens: packed.listens,
            prepared: packed.prepared,
            affinities: packed.affinities,
            pending: Vec::new(),
        }
    }

    /// With the settings of a startup message.
    pub fn new(startup: Settings) -> SessionState {
        SessionState {
            settings: startup.clone(),
            startup,
            ..SessionState::default()
        }
    }

    /// A statement was executed that does this, if its transaction commits. What binds the session to its
    /// server binds it at once.
    pub fn note(&mut self, effect: &Effect) {
        match effect {
            Effect::Affinity(affinity) => {
                // What was let go before in the same transaction is there again.
                let lets_go = Pending::Effect(Effect::NoAffinity(*affinity));
                self.pending.retain(|entry| *entry != lets_go);
                self.affinities.insert(*affinity);
                self.note_behind_discard(effect);
            }
            Effect::Prepare(name, text) => {
                self.prepared.insert(name.clone(), text.clone());
                self.note_behind_discard(effect);
            }
            Effect::Deallocate(Some(name)) => {
                self.prepared.remove(name);
            }
            Effect::Deallocate(None) => self.prepared.clear(),
            Effect::Execute(_) => {}
            Effect::Set(_)
            | Effect::Listen(_)
            | Effect::Unlisten(_)
            | Effect::NoAffinity(_)
            | Effect::DiscardAll => self.pending.push(Pending::Effect(effect.clone())),
        }
    }

    /// What counts at once is taken away by a `DISCARD ALL` that came before it, when that counts; then it is there again.
    fn note_behind_discard(&mut self, effect: &Effect) {
        let discards = Pending::Effect(Effect::DiscardAll);
        if self.pending.contains(&discards) {
            self.pending.push(Pending::Effect(effect.clone()));
        }
    }

    /// `SAVEPOINT` was executed.
    pub fn savepoint(&mut self, name: &str) {
        self.pending.push(Pending::Savepoint(name.into()));
    }

    /// `ROLLBACK TO` was executed: what changed since is undone.
    pub fn rollback_to(&mut self, name: &str) {
        let is_it =
            |entry: &Pending| matches!(entry, Pending::Savepoint(of) if of.as_ref() == name);
        if let Some(at) = self.pending.iter().rposition(is_it) {
            self.pending.truncate(at + 1);
        }
    }

    /// `RELEASE` was executed: the savepoint is gone, and all that came after it; what changed since stays.
    pub fn release(&mut self, name: &str) {
        let is_it =
            |entry: &Pending| matches!(entry, Pending::Savepoint(of) if of.as_ref() == name);
        if let Some(at) = self.pending.iter().rposition(is_it) {
            let behind = self.pending.split_off(at).into_iter();
            let is_change = |entry: &Pending| matches!(entry, Pending::Effect(_));
            self.pending.extend(behind.filter(is_change));
        }
    }

    /// True if the transaction has set this, and not taken it back.
    pub fn sets(&self, name: &str) -> bool {
        let last = self.pending.iter().rev().find_map(|entry| match entry {
            Pending::Effect(Effect::Set(Change::Set { name: of, .. })) => {
                (&**of == name).then_some(true)
            }
            Pending::Effect(Effect::Set(Change::Reset(of))) => (&**of == name).then_some(false),
            Pending::Effect(Effect::Set(Change::ResetAll) | Effect::DiscardAll) => Some(false),
            _ => None,
        });
        last.unwrap_or(false)
    }

    /// The server that the transaction commits on has these settings: they change there as it says. A setting that is reset
    /// is gone there, whatever the session's startup message asked for: the server does not know of that.
    pub fn change_on_server(&self, settings: &mut Settings) {
        for entry in &self.pending {
            match entry {
                Pending::Effect(Effect::Set(change)) => settings.apply(change),
                Pending::Effect(Effect::DiscardAll) => settings.clear(),
                _ => {}
            }
        }
    }

    /// The transaction is over.
    pub fn end(&mut self, has_committed: bool) {
        if self.pending.is_empty() {
            return;
        }
        for entry in std::mem::take(&mut self.pending) {
            if let (Pending::Effect(effect), true) = (entry, has_committed) {
                self.commit(effect);
            }
        }
    }

    fn commit(&mut self, effect: Effect) {
        match effect {
            Effect::Set(Change::Reset(name)) => match self.startup.value(&name) {
                Some(value) => self.settings.set(&name, value),
                None => self.settings.apply(&Change::Reset(name)),
            },
            Effect::Set(change) => {
                self.settings.apply(&change);
                if change == Change::ResetAll {
                    self.settings.apply_all_missing(&self.startup);
                }
            }
            Effect::Listen(channel) => {
                self.listens.insert(channel);
            }
            Effect::Unlisten(Some(channel)) => {
                self.listens.remove(&channel);
            }
            Effect::Unlisten(None) => self.listens.clear(),
            Effect::NoAffinity(affinity) => {
                self.affinities.remove(&affinity);
            }
            Effect::DiscardAll => *self = SessionState::new(std::mem::take(&mut self.startup)),
            Effect::Affinity(affinity) => {
                self.affinities.insert(affinity);
            }
            Effect::Prepare(name, text) => {
                self.prepared.insert(name, text);
            }
            Effect::Deallocate(_) | Effect::Execute(_) => {}
        }
    }

    /// The transaction is run once more: what it changed so far it will change again.
    pub fn rewind(&mut self) {
        self.pending.clear();
    }

    /// The session has something that no other server has.
    pub fn bind(&mut self, affinity: ServerAffinity) {
        self.affinities.insert(affinity);
    }

    /// Its server says what it has, between two transactions.
    pub fn has_on_server(
        &mut self,
        affinities: &[ServerAffinity],
        listens: Vec<Box<str>>,
        prepared: Vec<(Box<str>, Box<str>)>,
    ) {
        self.affinities
            .retain(|affinity| *affinity == ServerAffinity::Unknown);
        self.affinities.extend(affinities);
        self.listens = listens.into_iter().collect();
        self.prepared = prepared.into_iter().collect();
    }

    /// What no other server can be given.
    pub fn affinities(&self) -> impl Iterator<Item = ServerAffinity> + '_ {
        self.affinities.iter().copied()
    }

    /// True if SQL has prepared a statement of this name.
    pub fn has_prepared(&self, name: &str) -> bool {
        self.prepared.contains_key(name)
    }

    /// True if the session must keep the server it has.
    pub fn is_bound(&self) -> bool {
        !self.affinities.is_empty() || !self.listens.is_empty() || !self.prepared.is_empty()
    }

    /// True if something of the session is lost with its server.
    pub fn cannot_move(&self) -> bool {
        !self.affinities.is_empty()
    }

    /// True if the session waits for notifications, which only a connection brings.
    pub fn listens(&self) -> bool {
        !self.listens.is_empty()
    }

    /// The statements that give a new server what an old one had, apart from settings.
    pub fn restore(&self) -> Option<String> {
        let prepared = self.prepared.values().map(|text| text.to_string());
        let listens = self
            .listens
            .iter()
            .map(|channel| format!("LISTEN {}", quote_identifier(channel)));
        let all: Vec<String> = prepared.chain(listens).collect();
        (!all.is_empty()).then(|| join(&all))
    }
}

impl ServerAffinity {
    /// What it is, in words.
    pub fn what(self) -> &'static str {
        match self {
            ServerAffinity::Temporary => "a temporary table",
            ServerAffinity::Advisory => "an advisory lock",
            ServerAffinity::HeldCursor => "a cursor WITH HOLD",
            ServerAffinity::Unknown | ServerAffinity::Unread => {
                "settings made in a way that cannot be repeated"
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn set(value: &str) -> Effect {
        Effect::Set(Change::Set {
            name: "a.b".into(),
            statement: format!("SET a.b = {value}").into(),
            value: Some(value.into()),
        })
    }

    #[test]
    fn rolled_back_changes_did_not_happen() {
        let mut keeps = SessionState::default();
        keeps.note(&set("1"));
        keeps.end(true);
        keeps.note(&set("2"));
        keeps.note(&Effect::Listen("c".into()));
        keeps.end(false);
        assert_eq!(keeps.settings.value("a.b"), Some("1"));
        assert!(!keeps.listens());
    }

    #[test]
    fn a_savepoint_undoes_what_came_after() {
        let mut keeps = SessionState::default();
        keeps.note(&set("1"));
        keeps.savepoint("s");
        keeps.note(&set("2"));
        keeps.rollback_to("s");
        keeps.end(true);
        assert_eq!(keeps.settings.value("a.b"), Some("1"));
    }

    /// There were two of one name: what was set behind the first was kept, although the server had undone it.
    // hazard: PROXY-61
    #[test]
    fn a_savepoint_that_was_released_is_gone() {
        let mut keeps = SessionState::default();
        keeps.savepoint("s");
        keeps.note(&set("1"));
        keeps.savepoint("s");
        keeps.savepoint("t");
        keeps.note(&set("2"));
        keeps.release("s");
        assert!(keeps.sets("a.b"));
        keeps.rollback_to("t");
        keeps.rollback_to("s");
        keeps.end(true);
        assert_eq!(keeps.settings.value("a.b"), None);
    }

    #[test]
    fn discard_all_goes_back_to_the_startup_message() {
        let mut startup = Settings::default();
        startup.set("a.b", "0");
        let mut keeps = SessionState::new(startup);
        keeps.note(&Effect::Affinity(ServerAffinity::Temporary));
        keeps.note(&set("1"));
        keeps.end(true);
        assert!(keeps.cannot_move());
        keeps.note(&Effect::DiscardAll);
        keeps.end(true);
        assert_eq!(keeps.settings.value("a.b"), Some("0"));
        assert!(!keeps.is_bound());
    }

    /// The connection went to the next client with the lock.
    // hazard: PROXY-52
    #[test]
    fn state_that_is_taken_again_is_there() {
        for affinity in [
            ServerAffinity::Advisory,
            ServerAffinity::Temporary,
            ServerAffinity::HeldCursor,
        ] {
            for is_undone in [false, true] {
                let mut keeps = SessionState::default();
                keeps.note(&Effect::Affinity(affinity));
                keeps.end(true);
                keeps.note(&Effect::NoAffinity(affinity));
                keeps.savepoint("s");
                keeps.note(&Effect::Affinity(affinity));
                if is_undone {
                    // A lock stays, and so may the rest.
                    keeps.rollback_to("s");
                }
                keeps.end(true);
                assert!(keeps.cannot_move(), "{affinity:?}");
                keeps.note(&Effect::NoAffinity(affinity));
                keeps.end(true);
                assert!(!keeps.is_bound(), "{affinity:?}");
            }
        }
    }

    /// A pipeline may go on behind it.
    // hazard: PROXY-52
    #[test]
    fn state_behind_a_discard_is_there() {
        let mut keeps = SessionState::default();
        keeps.note(&Effect::Prepare(
            "gone".into(),
            "PREPARE gone AS SELECT 1".into(),
        ));
        keeps.end(true);
        keeps.note(&Effect::DiscardAll);
        keeps.note(&Effect::Affinity(ServerAffinity::Temporary));
        keeps.note(&Effect::Prepare("p".into(), "PREPARE p AS SELECT 1".into()));
        keeps.end(true);
        assert!(keeps.cannot_move());
        assert_eq!(keeps.restore().as_deref(), Some("PREPARE p AS SELECT 1"));
    }

    /// The server has lost what the startup message asked for, and must be given it again.
    #[test]
    fn a_server_does_not_know_of_the_startup_message() {
        for effect in [
            Effect::Set(Change::Reset("a.b".into())),
            Effect::Set(Change::ResetAll),
            Effect::DiscardAll,
        ] {
            let mut startup = Settings::default();
            startup.set("a.b", "0");
            let mut keeps = SessionState::new(startup.clone());
            let mut on_server = startup;
            keeps.note(&set("1"));
            keeps.note(&effect);
            keeps.change_on_server(&mut on_server);
            keeps.end(true);
            let given = on_server.statements_to(&keeps.settings);
            assert_eq!(
                given.as_deref(),
                Some("SELECT pg_catalog.set_config('a.b', '0', false)"),
                "{effect:?}"
            );
        }
    }

    #[test]
    fn a_new_server_is_given_what_the_old_one_had() {
        let mut keeps = SessionState::default();
        keeps.note(&Effect::Listen("Jobs".into()));
        keeps.note(&Effect::Prepare("p".into(), "PREPARE p AS SELECT 1".into()));
        keeps.end(true);
        assert_eq!(
            keeps.restore().as_deref(),
            Some("PREPARE p AS SELECT 1\n; LISTEN \"Jobs\"")
        );
    }
}
