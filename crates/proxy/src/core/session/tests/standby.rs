//! Reads on standbys: what a session has seen and asks for, and what it must not do there.

use bytes::BytesMut;
use volume::lsn::Lsn;

use super::super::super::topology::ServerRun;
use super::super::super::version::ReadMode;
use super::super::Effect;
use super::shared::Shared;
use protocol::frame::Refusal;

/// An active that was cut off has less than the standby that the session has read on.
// hazard: PROXY-48
#[test]
fn a_session_leaves_a_standby_for_a_proven_active_only() {
    let is_question = |effect: &Effect| matches!(effect, Effect::AskPosition { .. });
    let is_for_active = |effect: &Effect| matches!(effect, Effect::AcquireActive { .. });
    let reader = || {
        let mut shared = Shared::new();
        shared.desk.rules.read = ReadMode::Session;
        shared.ask("SELECT 1");
        shared.give(Shared::standby());
        shared.answer(&["SELECT 1"], None, b'I');
        assert!(shared.returned().is_some(), "it has read on the standby");
        shared.ask("SELECT 1");
        shared
    };
    let mut shared = reader();
    shared.give(Shared::standby());
    shared.effects.clear();
    shared.answer(&[], Some("40001"), b'I');
    assert!(shared.has(is_question) && !shared.has(is_for_active));

    let mut shared = reader();
    shared.effects.clear();
    let refusal = Refusal::error("57P03", "it does not answer");
    shared.with(|session, cx, out| session.refused(cx, &refusal, out));
    assert!(shared.has(is_question) && !shared.has(is_for_active));
    shared.with(|session, cx, out| session.position(cx, Some(Lsn(200)), out));
    assert!(shared.has(is_for_active));
}

/// A standby shows a commit before the active itself does: who leaves the standbys waits until that shows what they may have shown.
#[test]
fn a_strong_read_that_leaves_standbys_waits_for_what_they_showed() {
    let asks = |wanted| move |effect: &Effect| matches!(effect, Effect::AskPosition { shown } if *shown == wanted);
    let is_for_active = |effect: &Effect| matches!(effect, Effect::AcquireActive { .. });
    let mut shared = Shared::new();
    shared.desk.rules.read = ReadMode::Strong;
    shared.ask("SELECT 1");
    assert!(shared.has(asks(false)), "it is durable on a standby");
    shared.with(|session, cx, out| session.position(cx, Some(Lsn(200)), out));
    shared.effects.clear();
    // No standby gets there in time.
    shared.with(|session, cx, out| session.woken(cx, out));
    assert!(shared.has(asks(true)) && !shared.has(is_for_active));
    shared.with(|session, cx, out| session.position(cx, Some(Lsn(200)), out));
    assert!(shared.has(is_for_active));
}

/// The connection was lost behind a commit whose server process went on: it was durable, and not shown yet, when the session looked.
#[test]
fn a_session_whose_commit_is_in_doubt_waits_until_it_would_be_shown() {
    let waits = |effect: &Effect| matches!(effect, Effect::AskPosition { shown: true });
    let mut shared = Shared::new();
    shared.desk.rules.read = ReadMode::Session;
    shared.ask("INSERT INTO t VALUES (1)");
    shared.give(Shared::active());
    shared.with(|session, cx, out| session.server_lost(cx, out));
    assert_eq!(shared.desk.heard(), "08007 ZI");
    shared.effects.clear();
    // It must not be run on a standby.
    shared.ask("SELECT count(*) FROM t FOR UPDATE");
    assert!(shared.has(waits));
    shared.effects.clear();
    shared.with(|session, cx, out| session.position(cx, Some(Lsn(200)), out));
    assert!(shared.has(|effect| matches!(effect, Effect::AcquireActive { .. })));
}

/// A connection to a standby goes to others after each transaction: the next client ran as somebody else's tenant, and a lock
/// was held that nobody on the active knew of.
// hazard: PROXY-49
#[test]
fn lasting_state_is_made_on_the_active() {
    for text in [
        "SELECT set_config('app.tenant', 'a' || 'b', false)",
        "SELECT pg_advisory_lock(5)",
        "SELECT pg_advisory_xact_lock(5)",
        "DECLARE c CURSOR WITH HOLD FOR SELECT 1",
        "PREPARE p AS SELECT 1",
        "DEALLOCATE ALL",
        "LOAD 'auto_explain'",
    ] {
        let mut shared = Shared::new();
        shared.desk.rules.read = ReadMode::Any;
        shared.ask("BEGIN READ ONLY");
        shared.give(Shared::standby());
        shared.answer(&["BEGIN"], None, b'T');
        assert_eq!(shared.desk.written(), "BEGIN READ ONLY");
        shared.ask(text);
        assert_eq!(shared.desk.written(), "", "{text}: the standby hears of it");
        assert!(
            shared.has(|effect| matches!(effect, Effect::Drop)),
            "{text}"
        );
        shared.give(Shared::active());
        shared.answer(&["BEGIN"], None, b'T');
        assert_eq!(shared.desk.written(), format!("BEGIN READ ONLY {text}"));
        shared.answer(&["DONE"], None, b'T');
        assert_eq!(shared.desk.heard(), "BEGIN ZT DONE ZT");
    }
}

/// Whoever vouches for a function does not vouch for what it leaves behind.
// hazard: PROXY-49
#[test]
fn a_hint_moves_no_lock_to_a_standby() {
    let mut shared = Shared::new();
    shared.desk.rules.read = ReadMode::Any;
    shared.ask("/* understudy.read = standby */ SELECT pg_advisory_lock(5)");
    let is_for_active = |effect: &Effect| matches!(effect, Effect::AcquireActive { .. });
    assert!(shared.has(is_for_active));
}

/// A client that was told to look for what its lost statement did looked on a standby that did not have it yet, and did it again.
// hazard: PROXY-50
#[test]
fn a_session_looks_for_what_it_did_on_a_server_that_is_lost() {
    let is_question = |effect: &Effect| matches!(effect, Effect::AskPosition { .. });
    let mut shared = Shared::new();
    shared.desk.rules.read = ReadMode::Session;
    shared.ask("SELECT 1");
    shared.give(Shared::standby());
    shared.answer(&["SELECT 1"], None, b'I');
    shared.ask("INSERT INTO t VALUES (1)");
    shared.give(Shared::active());
    shared.with(|session, cx, out| session.server_lost(cx, out));
    assert!(shared.desk.heard().ends_with("08007 ZI"));
    shared.effects.clear();
    shared.ask("SELECT 1");
    assert!(shared.has(is_question));
}

/// A transaction had read what only its standby had, and was tried again on one that was behind.
// hazard: PROXY-50
#[test]
fn a_transaction_that_fails_has_seen_what_its_standby_had() {
    let is_question = |effect: &Effect| matches!(effect, Effect::AskPosition { .. });
    let mut shared = Shared::new();
    shared.desk.rules.read = ReadMode::Session;
    shared.desk.rules.replays = false;
    shared.ask("BEGIN READ ONLY");
    shared.give(Shared::standby());
    shared.answer(&["BEGIN"], None, b'T');
    shared.run("SELECT a FROM t", &["SELECT 1"], None, b'T');
    shared.with(|session, cx, out| session.server_lost(cx, out));
    shared.ask("ROLLBACK");
    assert!(shared.desk.heard().ends_with("ROLLBACK ZI"));
    shared.effects.clear();
    shared.ask("SELECT a FROM t");
    let mut other = Shared::standby();
    other.run = Some(ServerRun(2));
    shared.give(other);
    assert!(shared.has(is_question), "another run of it may be behind");
}

/// A conflict with replay on a standby ended the session, with everything that it had elsewhere.
// hazard: PROXY-56
#[test]
fn a_session_outlives_its_connection_to_a_standby() {
    let on_standby = || {
        let mut shared = Shared::new();
        shared.desk.rules.read = ReadMode::Any;
        shared.ask("BEGIN READ ONLY");
        shared.give(Shared::standby());
        shared.answer(&["BEGIN"], None, b'T');
        shared.desk.heard();
        shared.desk.written();
        shared
    };
    let end = |shared: &mut Shared, code: &'static str| {
        let mut input = BytesMut::new();
        Refusal::fatal(code, "the connection ends").put(&mut input);
        shared.hear(input);
    };
    for code in ["40001", "57P01"] {
        let mut shared = on_standby();
        end(&mut shared, code);
        assert_eq!(shared.desk.heard(), "");
        shared.give(Shared::active());
        assert_eq!(shared.desk.written(), "BEGIN READ ONLY");
        shared.answer(&["BEGIN"], None, b'T');
        shared.run("SELECT 1", &["SELECT 1"], None, b'T');
        assert_eq!(shared.desk.heard(), "SELECT 1 ZT");
    }
    let mut shared = on_standby();
    end(&mut shared, "25P03");
    assert_eq!(shared.desk.heard(), "25P03");
    assert!(shared.desk.session.is_closed());
}

/// Another session had written on the next active and passed on where: the one that was cut off answered, as it did not know of it.
// hazard: PROXY-57
#[test]
fn a_version_that_was_asked_for_is_proved_to_be_there() {
    let is_question = |effect: &Effect| matches!(effect, Effect::AskPosition { .. });
    let is_for_active = |effect: &Effect| matches!(effect, Effect::AcquireActive { .. });
    let asking = |mode| {
        let mut shared = Shared::new();
        shared.desk.rules.read = mode;
        shared.run("SET understudy.min_version = '0/C8'", &["SET"], None, b'I');
        let server = shared.returned().expect("it is given back");
        shared.desk.heard();
        (shared, server)
    };
    for mode in [ReadMode::Active, ReadMode::Any] {
        let (mut shared, server) = asking(mode);
        shared.ask("SELECT 1");
        if mode == ReadMode::Any {
            assert!(!shared.has(is_question), "it waits for a standby first");
            shared.with(|session, cx, out| session.woken(cx, out));
        }
        assert!(
            shared.has(is_question) && !shared.has(is_for_active),
            "{mode:?}"
        );
        shared.with(|session, cx, out| session.position(cx, Some(Lsn(200)), out));
        assert!(shared.has(is_for_active), "{mode:?}: it has waited already");
        shared.give(server);
        shared.answer(&["SELECT 1"], None, b'I');
        if mode == ReadMode::Active {
            shared.effects.clear();
            shared.ask("SELECT 1");
            assert!(!shared.has(is_question), "it is proved");
        }
    }

    // Without proof it is not read, but it can be taken back.
    let (mut shared, server) = asking(ReadMode::Active);
    shared.ask("BEGIN READ ONLY");
    shared.with(|session, cx, out| session.position(cx, None, out));
    assert_eq!(shared.desk.heard(), "57P03 ZI");
    shared.ask("RESET understudy.min_version");
    shared.give(server);
    shared.answer(&["RESET"], None, b'I');
    shared.run("SELECT 1", &["SELECT 1"], None, b'I');
    assert_eq!(shared.desk.heard(), "RESET ZI SELECT 1 ZI");
}

/// `EXECUTE` was taken for a write, which proves by its commit that its active is active.
// hazard: PROXY-64
#[test]
fn possible_read_is_as_strong_as_a_read() {
    for text in [
        "SELECT 1",
        "EXECUTE p",
        "CALL f(NULL)",
        "SELECT '\u{fffd}' \\ '",
    ] {
        let mut shared = Shared::new();
        shared.desk.rules.read = ReadMode::Strong;
        shared.ask(text);
        assert!(
            shared.has(|effect| matches!(effect, Effect::AskPosition { .. })),
            "{text}"
        );
    }
    let mut shared = Shared::new();
    shared.desk.rules.read = ReadMode::Strong;
    shared.ask("INSERT INTO t VALUES (1)");
    assert!(!shared.has(|effect| matches!(effect, Effect::AskPosition { .. })));
}
