//! Sessions that share connections: what is on one, what is believed of it, and who gets it.

use bytes::BytesMut;
use dax::ids::Epoch;
use volume::lsn::Lsn;

use super::super::super::settings::Settings;
use super::super::super::topology::{News, ServerRun, Standby};
use super::super::super::version::ReadMode;
use super::super::desk::{Desk, frames};
use super::super::{Context, Effect, Out, PoolMode, Reported, Role, Server, Session};
use protocol::frame::{self, Refusal};

/// A session of transaction mode on a desk, and what it has asked for.
pub(super) struct Shared {
    pub(super) desk: Desk,
    pub(super) effects: Vec<Effect>,
}

impl Shared {
    pub(super) fn new() -> Shared {
        let mut desk = Desk::new();
        desk.session = Session::new(Settings::default(), Reported::default(), 0);
        desk.rules.mode = PoolMode::Transaction;
        desk.rules.decides = false;
        desk.topology.hear(News::Standbys(vec![Standby {
            name: "s".into(),
            address: "s".into(),
            replayed: Lsn(100),
            run: Some(ServerRun(1)),
            is_spare: false,
        }]));
        Shared {
            desk,
            effects: Vec::new(),
        }
    }

    pub(super) fn with(&mut self, act: impl FnOnce(&mut Session, &Context<'_>, &mut Out)) {
        self.desk.with(act);
        self.effects.append(&mut self.desk.out.effects);
    }

    pub(super) fn say(&mut self, messages: &[(u8, &[u8])]) {
        let mut input = frames(messages);
        self.with(|session, cx, out| session.client_input(cx, &mut input, out));
    }

    pub(super) fn ask(&mut self, text: &str) {
        self.say(&[(b'Q', format!("{text}\0").as_bytes())]);
    }

    pub(super) fn active() -> Box<Server> {
        Box::new(Server::new(Role::Active(Epoch(3)), Reported::default()))
    }

    /// A connection to the standby that the cluster has.
    pub(super) fn standby() -> Box<Server> {
        let mut server = Server::new(Role::Standby("s".into()), Reported::default());
        server.run = Some(ServerRun(1));
        server.replayed = Lsn(100);
        Box::new(server)
    }

    pub(super) fn give(&mut self, server: Box<Server>) {
        self.with(|session, cx, out| session.linked(cx, server, false, out));
    }

    /// The server says that these are complete, then perhaps fails, and is ready.
    pub(super) fn answer(&mut self, tags: &[&str], code: Option<&'static str>, status: u8) {
        let mut input = BytesMut::new();
        for tag in tags {
            frame::put_complete(&mut input, tag);
        }
        if let Some(code) = code {
            Refusal::error(code, "it fails").put(&mut input);
        }
        frame::put_ready(&mut input, status);
        self.hear(input);
    }

    pub(super) fn hear(&mut self, mut input: BytesMut) {
        self.with(|session, cx, out| session.server_input(cx, &mut input, &mut 0, out));
    }

    /// A text on the server in hand or, if there is none, on a new one.
    pub(super) fn run(
        &mut self,
        text: &str,
        tags: &[&str],
        code: Option<&'static str>,
        status: u8,
    ) {
        self.ask(text);
        if self.desk.session.link().is_none() {
            self.give(Shared::active());
        }
        self.answer(tags, code, status);
    }

    /// The connection that was given back last.
    pub(super) fn returned(&mut self) -> Option<Box<Server>> {
        let mut effects = std::mem::take(&mut self.effects).into_iter().rev();
        effects.find_map(|effect| match effect {
            Effect::Return(server) => Some(server),
            _ => None,
        })
    }

    pub(super) fn has(&self, is_it: impl Fn(&Effect) -> bool) -> bool {
        self.effects.iter().any(is_it)
    }
}

/// The next client would run as tenant A.
// hazard: PROXY-42
#[test]
fn a_discard_that_fails_discards_nothing() {
    let mut shared = Shared::new();
    shared.run("SET app.tenant = 'A'", &["SET"], None, b'I');
    let mut server = shared.returned().expect("it is given back");
    assert_eq!(server.settings.value("app.tenant"), Some("A"));
    server.prepared.insert("understudy_xid");
    shared.ask("BEGIN");
    shared.give(server);
    shared.answer(&["BEGIN"], None, b'T');
    shared.run("DISCARD ALL", &[], Some("25001"), b'E');
    shared.run("ROLLBACK", &["ROLLBACK"], None, b'I');
    let server = shared.returned().expect("it is given back");
    assert_eq!(server.settings.value("app.tenant"), Some("A"));
    assert!(server.prepared.contains("understudy_xid"));
}

#[test]
fn a_discard_that_succeeds_is_believed() {
    let mut shared = Shared::new();
    shared.run("SET app.tenant = 'A'", &["SET"], None, b'I');
    let mut server = shared.returned().expect("it is given back");
    server.prepared.insert("understudy_xid");
    shared.ask("DISCARD ALL");
    shared.give(server);
    shared.answer(&["DISCARD ALL"], None, b'I');
    let server = shared.returned().expect("it is given back");
    assert!(server.settings.is_empty());
    assert_eq!(server.prepared.iter().count(), 0);
}

/// The lock would stay on a connection that goes to others.
// hazard: PROXY-42
#[test]
fn statements_before_an_error_count() {
    let mut shared = Shared::new();
    let text = "SELECT pg_advisory_lock(7); SELECT 1 / 0";
    shared.run(text, &["SELECT 1"], Some("22012"), b'I');
    assert!(shared.returned().is_none(), "it has a lock there");
    assert!(shared.desk.session.needs_its_connection());

    let mut shared = Shared::new();
    let text = "SELECT pg_advisory_lock(7), 1 / 0";
    shared.run(text, &[], Some("22012"), b'I');
    assert!(shared.returned().is_none(), "it may have a lock there");

    let mut shared = Shared::new();
    let text = "SELECT 1 / 0; CREATE TEMP TABLE t (a int)";
    shared.run(text, &[], Some("22012"), b'I');
    assert!(shared.returned().is_some(), "it has nothing there");
}

/// A text, what of it is complete, the error that ends it, and what is set then.
type Case = (
    &'static str,
    &'static [&'static str],
    Option<&'static str>,
    Option<&'static str>,
);

/// A setting that was committed is on the server, whatever came after it or before.
// hazard: PROXY-42
#[test]
fn settings_are_where_their_commit_left_them() {
    let cases: [Case; 5] = [
        (
            "SET app.tenant = 'A'; COMMIT; SELECT 1 / 0",
            &["SET", "COMMIT"],
            Some("22012"),
            Some("A"),
        ),
        (
            "ROLLBACK; SET app.tenant = 'A'",
            &["ROLLBACK", "SET"],
            None,
            Some("A"),
        ),
        (
            "SAVEPOINT s; ROLLBACK TO s; SET app.tenant = 'A'; COMMIT",
            &["SAVEPOINT", "ROLLBACK", "SET", "COMMIT"],
            None,
            Some("A"),
        ),
        (
            "SET app.tenant = 'A'; ROLLBACK",
            &["SET", "ROLLBACK"],
            None,
            None,
        ),
        (
            "COMMIT; SET app.tenant = 'A'; SELECT 1 / 0",
            &["COMMIT", "SET"],
            Some("22012"),
            None,
        ),
    ];
    for (text, tags, code, set) in cases {
        let mut shared = Shared::new();
        shared.run("BEGIN", &["BEGIN"], None, b'T');
        shared.run(text, tags, code, b'I');
        let server = shared.returned().expect("it is given back");
        assert_eq!(server.settings.value("app.tenant"), set, "{text}");
        let keeps = shared
            .desk
            .session
            .session_state
            .settings
            .value("app.tenant");
        assert_eq!(keeps, set, "{text}");
    }
}

/// Its client closes it and prepares it again, and would be told for ever that this was done.
// hazard: PROXY-43
#[test]
fn a_statement_that_the_server_cannot_run_any_more_is_prepared_again() {
    let mut shared = Shared::new();
    let parse: (u8, &[u8]) = (b'P', b"s\0SELECT * FROM t\0\0\0");
    let bind: (u8, &[u8]) = (b'B', b"\0s\0\0\0\0\0\0\0");
    let execute: (u8, &[u8]) = (b'E', b"\0\0\0\0\0");
    shared.say(&[parse, (b'S', b"")]);
    shared.give(Shared::active());
    let mut input = BytesMut::new();
    frame::put(&mut input, b'1', &[]);
    frame::put_ready(&mut input, b'I');
    shared.hear(input);
    let server = shared.returned().expect("it is given back");
    assert_eq!(server.prepared.iter().count(), 1);

    shared.say(&[bind, execute, (b'S', b"")]);
    shared.give(server);
    shared.desk.written();
    let mut input = BytesMut::new();
    let fields =
        b"VERROR\0C0A000\0Mcached plan must not change result type\0RRevalidateCachedQuery\0\0";
    frame::put(&mut input, b'E', &[fields]);
    frame::put_ready(&mut input, b'I');
    shared.hear(input);
    assert_eq!(shared.desk.written(), "C S", "the server closes it");
    assert!(shared.returned().is_none());
    let mut input = BytesMut::new();
    frame::put(&mut input, b'3', &[]);
    frame::put_ready(&mut input, b'I');
    shared.hear(input);
    let server = shared.returned().expect("it is given back");
    assert_eq!(server.prepared.iter().count(), 0);

    shared.say(&[(b'C', b"Ss\0"), parse, bind, execute, (b'S', b"")]);
    shared.give(server);
    assert_eq!(shared.desk.written(), "P B E S", "and prepares it again");
}

/// Statements that no client uses any more would stay in the memory of each server for as long as its connection lasts.
// hazard: PROXY-44
#[test]
fn a_server_keeps_no_more_statements_than_it_may() {
    let mut shared = Shared::new();
    shared.desk.rules.max_prepared = 4;
    let mut server = Shared::active();
    let shared_name = |name: &str| format!("understudy_{name}");
    for old in ["a", "b", "c", "d", "e", "a"] {
        server.prepared.insert(&shared_name(old));
    }
    shared.say(&[(b'P', b"s\0SELECT 1\0\0\0"), (b'S', b"")]);
    shared.give(server);
    assert_eq!(shared.desk.written(), "C C S");
    let mut input = BytesMut::new();
    frame::put(&mut input, b'3', &[]);
    frame::put(&mut input, b'3', &[]);
    frame::put_ready(&mut input, b'I');
    shared.hear(input);
    assert_eq!(shared.desk.written(), "P S", "then it is the client's turn");
    let mut input = BytesMut::new();
    frame::put(&mut input, b'1', &[]);
    frame::put_ready(&mut input, b'I');
    shared.hear(input);
    let server = shared.returned().expect("it is given back");
    for (name, is_there) in [("a", true), ("b", false), ("c", false), ("d", true)] {
        let is_held = server.prepared.contains(&shared_name(name));
        assert_eq!(is_held, is_there, "{name}");
    }
}

/// A connection that somebody else has had before has none of what this session listens to.
// hazard: PROXY-45
#[test]
fn a_used_connection_is_given_channels() {
    let mut shared = Shared::new();
    shared.run("SELECT 1", &["SELECT 1"], None, b'I');
    let server = shared.returned().expect("it is given back");
    assert!(!server.is_restored);
}

/// A transaction that was to run again when no server took over in time: its client waited for ever for the answer to what was
/// under way.
// hazard: PROXY-13
#[test]
fn a_transaction_that_finds_no_server_to_run_again_fails() {
    let mut shared = Shared::new();
    shared.run("BEGIN", &["BEGIN"], None, b'T');
    shared.ask("SELECT 1");
    shared.desk.heard();
    shared.with(|session, cx, out| session.server_lost(cx, out));
    let refusal = Refusal::error("57P03", "nobody took over");
    shared.with(|session, cx, out| session.refused(cx, &refusal, out));
    assert_eq!(shared.desk.heard(), "40001 ZE");
}

/// Nothing else would bring it notifications.
// hazard: PROXY-45
#[test]
fn listening_client_has_a_server_after_an_unknown_outcome_too() {
    let mut shared = Shared::new();
    shared.run("LISTEN jobs", &["LISTEN"], None, b'I');
    shared.ask("INSERT INTO t VALUES (1)");
    let is_asked_for = |effect: &Effect| matches!(effect, Effect::AcquireActive { .. });
    shared.effects.clear();
    shared.with(|session, cx, out| session.server_lost(cx, out));
    assert!(shared.has(|effect| matches!(effect, Effect::Drop)));
    assert!(shared.has(is_asked_for));
    shared.effects.clear();
    shared.give(Shared::active());
    assert_eq!(shared.desk.written(), "LISTEN \"jobs\"", "it listens there");

    let mut shared = Shared::new();
    shared.run("LISTEN jobs", &["LISTEN"], None, b'I');
    shared.run("BEGIN", &["BEGIN"], None, b'T');
    shared.desk.rules.replays = false;
    shared.with(|session, cx, out| session.server_lost(cx, out));
    shared.effects.clear();
    shared.ask("ROLLBACK");
    assert!(shared.has(is_asked_for));
}

/// The position could not be asked for, and nothing was done: what the session has on its server it still has.
// hazard: PROXY-46
#[test]
fn a_read_that_cannot_be_strong_costs_no_connection() {
    let mut shared = Shared::new();
    shared.desk.rules.read = ReadMode::Strong;
    shared.ask("SELECT pg_advisory_lock(7)");
    shared.with(|session, cx, out| session.position(cx, Some(Lsn(100)), out));
    shared.give(Shared::active());
    shared.answer(&["SELECT 1"], None, b'I');
    assert!(shared.desk.session.needs_its_connection());
    shared.effects.clear();
    shared.ask("SELECT 1");
    shared.with(|session, cx, out| session.position(cx, None, out));
    assert!(!shared.has(|effect| matches!(effect, Effect::Drop)));
    assert!(shared.desk.session.link().is_some());
    assert!(shared.desk.session.is_idle());
}

/// What is parsed behind an error the server skips: it was taken to be there, and every later use of it failed, whoever had the
/// connection.
// hazard: PROXY-51
#[test]
fn statements_behind_an_error_are_not_there() {
    let insert: [(u8, &[u8]); 3] = [
        (b'P', b"\0INSERT INTO t VALUES (1)\0\0\0"),
        (b'B', b"\0\0\0\0\0\0\0\0"),
        (b'E', b"\0\0\0\0\0"),
    ];
    let mut shared = Shared::new();
    shared.desk.rules.decides = true;
    shared.say(&[&insert[..], &[(b'H', b"")]].concat());
    shared.give(Shared::active());
    assert_eq!(shared.desk.written(), "P B E H");
    let mut input = frames(&[(b'1', b""), (b'2', b"")]);
    Refusal::error("23505", "it is there").put(&mut input);
    shared.hear(input);
    assert_eq!(shared.desk.heard(), "1 2 23505");
    shared.say(&[(b'P', b"s\0SELECT 1\0\0\0"), (b'C', b"Ss\0")]);
    assert_eq!(shared.desk.heard(), "", "nothing is answered up to the end");
    shared.say(&[(b'S', b"")]);
    assert_eq!(shared.desk.written(), "S", "nothing is asked either");
    shared.answer(&[], None, b'I');
    let server = shared.returned().expect("it is given back");
    assert_eq!(server.prepared.iter().count(), 0);

    // The error may come when everything is on its way.
    let mut shared = Shared::new();
    shared.desk.rules.decides = true;
    let parse: (u8, &[u8]) = (b'P', b"s\0SELECT 1\0\0\0");
    shared.say(&[&insert[..], &[parse, (b'S', b"")]].concat());
    shared.give(Shared::active());
    shared.answer(&[], Some("23505"), b'I');
    let server = shared.returned().expect("it is given back");
    assert_eq!(server.prepared.iter().count(), 0);
}

/// A text in another encoding than the parser reads set something that the next client had.
// hazard: PROXY-54
#[test]
fn client_that_may_have_left_something_keeps_the_connection() {
    let text: (u8, &[u8]) = (b'Q', b"SET app.user = 'M\xfcller'\0");
    let mut shared = Shared::new();
    shared.say(&[text]);
    shared.give(Shared::active());
    shared.answer(&["SET"], None, b'I');
    assert_eq!(
        shared.desk.heard(),
        "",
        "it is told when it is known what the session has"
    );
    shared.answer(&["SELECT 0"], None, b'I');
    assert_eq!(shared.desk.heard(), "SET ZI");
    assert!(shared.returned().is_none());
    assert!(shared.desk.session.needs_its_connection());

    let call = |number: u32| [&number.to_be_bytes()[..], &[0; 6]].concat();
    for (number, is_kept) in [(2880, true), (952, false)] {
        let mut shared = Shared::new();
        shared.say(&[(b'F', &call(number))]);
        shared.give(Shared::active());
        shared.hear(frames(&[(b'V', b"\xff\xff\xff\xff")]));
        shared.answer(&[], None, b'I');
        assert_eq!(shared.returned().is_none(), is_kept, "function {number}");
    }
}

/// A session in New York was answered by a statement whose literals had been read in London.
// hazard: PROXY-59
#[test]
fn a_statement_is_shared_by_those_who_read_it_alike() {
    let parse: [(u8, &[u8]); 2] = [
        (b'P', b"s\0SELECT '2024-06-01'::timestamptz\0\0\0"),
        (b'S', b""),
    ];
    let mut server = Shared::active();
    for (zone, application, written) in [
        ("Europe/London", "one", "P S"),
        ("Europe/London", "two", "C P S"),
        ("America/New_York", "two", "P S"),
        ("Europe/London", "one", "C P S"),
    ] {
        let mut shared = Shared::new();
        server.reported.put("TimeZone", zone);
        server.reported.put("application_name", application);
        shared.say(&parse);
        shared.give(server);
        assert_eq!(shared.desk.written(), written, "{zone}, {application}");
        let closed = written.starts_with('C').then_some((b'3', &b""[..]));
        let answer: Vec<_> = closed.into_iter().chain([(b'1', &b""[..])]).collect();
        let mut input = frames(&answer);
        frame::put_ready(&mut input, b'I');
        shared.hear(input);
        assert!(shared.desk.heard().ends_with("1 ZI"), "{zone}");
        server = shared.returned().expect("it is given back");
    }
    assert_eq!(server.prepared.iter().count(), 2);
}

/// What was read when nobody knew by what, or on what day, is nobody else's.
// hazard: PROXY-59
#[test]
fn a_statement_that_others_would_read_otherwise_does_not_stay() {
    let set: [(u8, &[u8]); 3] = [
        (b'P', b"\0SET TimeZone = 'Asia/Tokyo'\0\0\0"),
        (b'B', b"\0\0\0\0\0\0\0\0"),
        (b'E', b"\0\0\0\0\0"),
    ];
    let of_moment: (u8, &[u8]) = (b'P', b"s\0SELECT 'today'::date\0\0\0");
    let other: (u8, &[u8]) = (b'P', b"s\0SELECT '2024-06-01'::timestamptz\0\0\0");
    let done: [(u8, &[u8]); 3] = [(b'1', b""), (b'2', b""), (b'C', b"SET\0")];
    for (messages, answers) in [
        (vec![of_moment], vec![]),
        ([&set[..], &[other]].concat(), done.to_vec()),
    ] {
        let mut shared = Shared::new();
        shared.say(&[&messages[..], &[(b'S', b"")]].concat());
        shared.give(Shared::active());
        shared.desk.written();
        let mut input = frames(&[&answers[..], &[(b'1', b"")]].concat());
        frame::put_ready(&mut input, b'I');
        shared.hear(input);
        assert_eq!(shared.desk.written(), "C S");
        assert!(shared.returned().is_none());
        let mut input = frames(&[(b'3', b"")]);
        frame::put_ready(&mut input, b'I');
        shared.hear(input);
        let server = shared.returned().expect("it is given back");
        assert_eq!(server.prepared.iter().count(), 0);
    }
}
