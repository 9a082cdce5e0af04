//! A session between two transactions, as one process hands it to another.
//!
//! Owns when a session may leave its process, and what of it goes along. Invariant: what [`Session::unpack`] makes of it
//! cannot be told from the session that was packed, by its client or by its server. Of a transaction nothing goes along, so a
//! session leaves between two of them only.

use serde::{Deserialize, Serialize};
use volume::lsn::Lsn;

use super::super::flaw::Flaw;
use super::super::settings::Settings;
use super::super::sql::Statements;
use super::super::topology::ServerRun;
use super::super::version::Seen;
use super::prepared::{Names, Prepared};
use super::session_state::{self, SessionState};
use super::{Context, Phase, Reported, Role, Server, Session};

use dax::ids::Epoch;

/// A session on its way.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Packed {
    session_state: session_state::Packed,
    /// The client's prepared statements: a name, and what follows it in a `Parse`.
    statements: Vec<(String, Vec<u8>)>,
    told: Vec<(String, String)>,
    seen: Seen,
    lost_epoch: Option<Epoch>,
    turn: u64,
    link: Option<PackedServer>,
}

/// What is known of a connection to the active that goes along.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct PackedServer {
    epoch: Epoch,
    settings: Settings,
    prepared: Vec<String>,
    unnamed: Option<String>,
    reported: Vec<(String, String)>,
    replayed: Lsn,
    run: Option<ServerRun>,
    is_restored: bool,
    is_changed: bool,
    is_tainted: bool,
    must_reset: bool,
}

/// A prepared statement that is none.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("invalid prepared statement in a session of the previous process")]
pub struct Unreadable;

fn pairs_of(reported: &Reported) -> Vec<(String, String)> {
    let pairs = reported.iter();
    pairs
        .map(|(name, value)| (name.to_owned(), value.to_owned()))
        .collect()
}

fn reported_of(pairs: &[(String, String)]) -> Reported {
    let mut reported = Reported::default();
    for (name, value) in pairs {
        reported.put(name, value);
    }
    reported
}

impl PackedServer {
    /// A connection to the active; `None` of a standby, which belongs to nobody between two transactions.
    pub fn of(server: &Server) -> Option<PackedServer> {
        let mut prepared: Vec<String> = server.prepared.iter().map(str::to_owned).collect();
        prepared.sort();
        Some(PackedServer {
            epoch: server.epoch()?,
            settings: server.settings.clone(),
            prepared,
            unnamed: server.unnamed.as_deref().map(str::to_owned),
            reported: pairs_of(&server.reported),
            replayed: server.replayed,
            run: server.run,
            is_restored: server.is_restored,
            is_changed: server.is_changed || server.is_unasked,
            is_tainted: server.is_tainted || server.is_unasked,
            must_reset: server.must_reset,
        })
    }

    /// The same in another process.
    pub fn unpack(&self) -> Server {
        Server {
            role: Role::Active(self.epoch),
            settings: self.settings.clone(),
            prepared: self.prepared.iter().map(String::as_str).collect(),
            unnamed: self.unnamed.as_deref().map(Into::into),
            reported: reported_of(&self.reported),
            replayed: self.replayed,
            run: self.run,
            address: None,
            is_vouched_for: false,
            process: None,
            is_restored: self.is_restored,
            is_unasked: false,
            has_run_own: false,
            is_changed: self.is_changed,
            is_tainted: self.is_tainted,
            must_reset: self.must_reset,
        }
    }
}

impl Packed {
    /// True if its connection goes along.
    pub fn is_linked(&self) -> bool {
        self.link.is_some()
    }
}

impl Session {
    /// True if another process can go on with it now: nothing is open, under way or owed.
    pub fn may_leave(&self, cx: &Context<'_>) -> bool {
        let is_between = self.status == b'I' || cx.lacks(Flaw::LeavesInTransaction);
        let is_linked_to_active = |link: &Server| link.epoch().is_some();
        self.phase == Phase::Idle
            && is_between
            && self.batch.is_none()
            && self.replies.is_empty()
            && self.broken.is_none()
            && self.in_doubt.is_none()
            && self.last_words.is_none()
            && self.dying_word.is_none()
            && self.state.is_none()
            && self.parked.is_none()
            && self.link.as_deref().is_none_or(is_linked_to_active)
    }

    /// True if it has something on its connection that would be lost, or missed, without it.
    pub fn needs_its_connection(&self) -> bool {
        self.session_state.is_bound()
    }

    /// What another process needs to go on with it. Without its connection it finds another one there, as after a takeover.
    pub fn pack(&self, cx: &Context<'_>, with_connection: bool) -> Packed {
        let link = self.link.as_deref().filter(|_| with_connection);
        let statements = self.names.statements();
        Packed {
            session_state: self.session_state.pack(),
            statements: statements
                .map(|(name, prepared)| (name.to_owned(), prepared.definition.to_vec()))
                .collect(),
            told: pairs_of(&self.told),
            seen: match cx.lacks(Flaw::SeenLeftBehind) {
                false => self.seen.clone(),
                true => Seen::default(),
            },
            lost_epoch: self.lost_epoch,
            turn: self.turn,
            link: link.and_then(PackedServer::of),
        }
    }

    /// The session that was packed.
    ///
    /// # Errors
    /// If a prepared statement of it is none.
    pub fn unpack(packed: Packed, statements: &Statements) -> Result<Session, Unreadable> {
        let mut names = Names::default();
        let told = reported_of(&packed.told);
        for (name, definition) in &packed.statements {
            let body = [name.as_bytes(), b"\0", definition].concat();
            let read = Prepared::read(&body, statements, told.reading());
            let (_, prepared) = read.map_err(|_| Unreadable)?;
            names.define(name, Some(prepared.into()));
        }
        names.end();
        let mut session = Session::new(Settings::default(), told, packed.turn);
        session.session_state = SessionState::unpack(packed.session_state);
        session.names = names;
        session.seen = packed.seen;
        session.lost_epoch = packed.lost_epoch;
        session.link = packed.link.map(|link| Box::new(link.unpack()));
        Ok(session)
    }
}

#[cfg(test)]
mod tests {
    use super::super::super::handover::FORMAT;
    use super::super::desk::Desk;
    use super::*;

    #[test]
    fn sessions_leave_between_transactions_only() {
        let mut desk = Desk::new();
        desk.rules.decides = false;
        assert!(desk.may_leave());
        desk.say(b'P', &[b"s\0SELECT 1\0\0\0"]);
        assert!(!desk.may_leave(), "it has begun to say something");
        desk.say(b'S', &[]);
        desk.answer(&[(b'C', b"SET\0")], b'I');
        assert!(!desk.may_leave(), "it waits for an answer");
        desk.answer(&[(b'1', b"")], b'I');
        assert!(desk.may_leave());
        desk.query("BEGIN", "BEGIN", b'T');
        assert!(!desk.may_leave(), "a transaction is open");
        desk.query("COMMIT", "COMMIT", b'I');
        assert!(desk.may_leave());
    }

    /// What a session has is the same behind it: settings, those of its startup message, statements, channels, what binds it,
    /// what its client was told, and what is known of its connection.
    #[test]
    fn nothing_is_lost_on_the_way() {
        let mut desk = Desk::new();
        desk.rules.decides = false;
        desk.say(b'P', &[b"s\0SELECT $1::int\0\0\0"]);
        desk.say(b'S', &[]);
        desk.answer(&[(b'C', b"SET\0")], b'I');
        desk.answer(&[(b'1', b"")], b'I');
        desk.query("SET work_mem = '1MB'", "SET", b'I');
        desk.query("LISTEN jobs", "LISTEN", b'I');
        desk.query("CREATE TEMPORARY TABLE t (i int)", "CREATE TABLE", b'I');
        assert!(desk.session.needs_its_connection());
        let packed = desk.with(|session, cx, _| session.pack(cx, true));
        let bytes = postcard::to_stdvec(&packed).expect("it can be written");
        let read: Packed = postcard::from_bytes(&bytes).expect("it can be read");
        assert_eq!(read, packed);
        let there = Statements::default();
        let session = Session::unpack(read, &there).expect("it makes sense");
        assert_eq!(
            session.session_state.settings.value("work_mem"),
            Some("1MB")
        );
        assert_eq!(session.session_state.settings.value("a.b"), Some("0"));
        assert!(session.session_state.listens() && session.session_state.cannot_move());
        assert!(session.names.statements().any(|(name, _)| name == "s"));
        assert_eq!(session.told, desk.session.told);
        let again = Desk {
            session,
            ..Desk::new()
        };
        let mut again = again;
        assert_eq!(again.with(|session, cx, _| session.pack(cx, true)), packed);
        let alone = again.with(|session, cx, _| session.pack(cx, false));
        assert!(packed.is_linked() && !alone.is_linked());
    }

    /// Another version of the program reads what this one writes. If this fails, what is written has changed: raise
    /// [`FORMAT`], and change the sum here.
    // hazard: PROXY-28
    #[test]
    fn the_format_is_what_it_says() {
        let mut desk = Desk::new();
        desk.rules.decides = false;
        desk.say(b'P', &[b"s\0SELECT 1\0\0\0"]);
        desk.say(b'S', &[]);
        desk.answer(&[(b'C', b"SET\0")], b'I');
        desk.answer(&[(b'1', b"")], b'I');
        desk.query("LISTEN jobs", "LISTEN", b'I');
        let packed = desk.with(|session, cx, _| session.pack(cx, true));
        let bytes = postcard::to_stdvec(&packed).expect("it can be written");
        let sum = xxhash_rust::xxh3::xxh3_64(&bytes);
        assert_eq!((FORMAT, sum), (5, 0xfc39_6e83_3dfc_030d), "{sum:#x}");
    }
}
