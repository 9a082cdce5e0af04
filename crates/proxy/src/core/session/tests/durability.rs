//! Commits whose wait for durability was cancelled are told apart from those that are durable.

use super::super::desk::{Desk, frames};
use super::begin_and_write;

const CANCELLED: &[u8] =
    b"SWARNUNG\0VWARNING\0C01000\0Mabgebrochen\0Fsyncrep.c\0L300\0RSyncRepWaitForLSN\0\0";
const TERMINATED: &[u8] = b"SWARNING\0VWARNING\0C57P01\0Mcanceled\0RSyncRepWaitForLSN\0\0";
const OTHER: &[u8] = b"SWARNING\0VWARNING\0C01000\0Msomething\0Rexec_something\0\0";

#[test]
fn a_commit_that_did_not_wait_is_not_known() {
    let mut desk = Desk::ready();
    begin_and_write(&mut desk, 700);
    desk.say(b'Q', &[b"COMMIT\0"]);
    desk.answer(&[(b'N', CANCELLED), (b'C', b"COMMIT\0")], b'I');
    assert_eq!(desk.heard(), "N 08007 ZI");
    assert_eq!(desk.session.counts.in_doubt_unknown, 1);
    // The session goes on, on the same server.
    desk.query("SELECT 1", "SELECT 1", b'I');
    assert_eq!(desk.heard(), "SELECT 1 ZI");
}

#[test]
fn other_warnings_say_nothing_of_a_commit() {
    let mut desk = Desk::ready();
    begin_and_write(&mut desk, 700);
    desk.say(b'Q', &[b"COMMIT\0"]);
    desk.answer(&[(b'N', OTHER), (b'C', b"COMMIT\0")], b'I');
    assert_eq!(desk.heard(), "N COMMIT ZI");
}

#[test]
fn in_the_extended_protocol_nothing_more_is_said_of_it() {
    let mut desk = Desk::ready();
    begin_and_write(&mut desk, 700);
    desk.execute("COMMIT");
    desk.say(b'C', &[b"P\0"]);
    desk.say(b'S', &[]);
    let answers: [(u8, &[u8]); 6] = [
        (b'1', b""),
        (b'2', b""),
        (b'n', b""),
        (b'N', CANCELLED),
        (b'C', b"COMMIT\0"),
        (b'3', b""),
    ];
    desk.answer(&answers, b'I');
    assert_eq!(desk.heard(), "N 1 2 n 08007 ZI");
}

/// It commits in a transaction that the proxy has put around it.
#[test]
fn so_is_a_statement_that_commits_by_itself() {
    let mut desk = Desk::ready();
    desk.say(b'Q', &[b"INSERT INTO t VALUES (1)\0"]);
    assert!(desk.written().starts_with("BEGIN"));
    desk.answer(&[(b'C', b"BEGIN\0")], b'T');
    desk.answer(&[(b'C', b"INSERT 0 1\0")], b'T');
    desk.answer_xid(700);
    desk.answer(&[(b'N', CANCELLED), (b'C', b"COMMIT\0")], b'I');
    assert_eq!(desk.heard(), "N 08007 ZI");
}

/// The warning comes at the `Sync` that commits, behind the answers.
#[test]
fn a_commit_without_an_answer_of_its_own_is_told_at_the_end() {
    let mut desk = Desk::ready();
    desk.rules.decides = false;
    desk.execute("INSERT INTO t VALUES (1)");
    desk.say(b'S', &[]);
    let answers: [(u8, &[u8]); 5] = [
        (b'1', b""),
        (b'2', b""),
        (b'n', b""),
        (b'C', b"INSERT 0 1\0"),
        (b'N', CANCELLED),
    ];
    desk.answer(&answers, b'I');
    assert_eq!(desk.heard(), "N 1 2 n 08007 ZI");
}

/// The server says that the transaction has committed: it has, there.
// hazard: ORDER-12
#[test]
fn a_session_that_is_ended_while_it_waits_is_not_asked_about() {
    let mut desk = Desk::ready();
    begin_and_write(&mut desk, 700);
    desk.say(b'Q', &[b"COMMIT\0"]);
    desk.hear(&frames(&[(b'N', TERMINATED)]));
    desk.written();
    desk.with(|session, cx, out| session.server_lost(cx, out));
    assert_eq!(desk.heard(), "N 08007 ZI");
    assert_eq!(desk.written(), "", "nobody is asked");
}

/// The same server says that it has committed: the question waits until that is durable, and its wait may be cancelled, too.
// hazard: ORDER-12
#[test]
fn a_question_whose_own_wait_was_cancelled_decides_nothing() {
    for (warning, told) in [(Some(CANCELLED), "08007 ZI"), (None, "COMMIT ZI")] {
        let mut desk = Desk::ready();
        begin_and_write(&mut desk, 700);
        desk.say(b'Q', &[b"COMMIT\0"]);
        desk.written();
        desk.take_over(900);
        let asked = desk.written();
        assert!(
            asked.contains("pg_xact_status('700'") && asked.contains("emit_message"),
            "{asked}"
        );
        if let Some(warning) = warning {
            desk.hear(&frames(&[(b'N', warning)]));
        }
        desk.answer_status("committed");
        assert_eq!(desk.heard(), told);
    }
}

/// A client's answer to one batch says nothing of the next batch.
#[test]
fn the_next_commit_is_judged_by_itself() {
    let mut desk = Desk::ready();
    for (warning, told) in [(CANCELLED, "N 08007 ZI"), (OTHER, "N COMMIT ZI")] {
        begin_and_write(&mut desk, 700);
        desk.say(b'Q', &[b"COMMIT\0"]);
        desk.answer(&[(b'N', warning), (b'C', b"COMMIT\0")], b'I');
        assert_eq!(desk.heard(), told);
        desk.written();
    }
}

/// Answers of a server that asks for data behind a commit whose wait was cancelled.
const COPIES: [(u8, &[u8]); 3] = [(b'N', CANCELLED), (b'C', b"COMMIT\0"), (b'G', b"\0\0\0")];
const NO_COPY: &[u8] = b"SERROR\0VERROR\0C57014\0MCOPY from stdin failed\0\0";

/// The client had its answer, and sent no data; the server waited for them.
#[test]
fn a_copy_behind_such_a_commit_gets_no_data() {
    let mut desk = Desk::ready();
    begin_and_write(&mut desk, 700);
    desk.say(b'Q', &[b"COMMIT; COPY t FROM STDIN\0"]);
    desk.written();
    desk.hear(&frames(&COPIES));
    assert_eq!(desk.heard(), "N 08007");
    assert_eq!(desk.written(), "f");
    assert!(
        !desk.session.takes_client(),
        "what it sends next is no data"
    );
    desk.answer(&[(b'E', NO_COPY)], b'I');
    assert_eq!(desk.heard(), "ZI");
    desk.query("SELECT 1", "SELECT 1", b'I');
    assert_eq!(desk.heard(), "SELECT 1 ZI");
}

/// A `COMMIT` and a `COPY` in one pipeline.
fn commit_and_copy() -> Desk {
    let mut desk = Desk::ready();
    begin_and_write(&mut desk, 700);
    desk.execute("COMMIT");
    desk.execute("COPY t FROM STDIN");
    desk
}

const COMMITTED: [(u8, &[u8]); 5] = [
    (b'1', b""),
    (b'2', b""),
    (b'n', b""),
    (b'N', CANCELLED),
    (b'C', b"COMMIT\0"),
];
const ASKS: [(u8, &[u8]); 4] = [(b'1', b""), (b'2', b""), (b'n', b""), (b'G', b"\0\0\0")];

/// The server ignores each `Sync` that comes before the end of the data.
#[test]
fn a_pipeline_with_such_a_copy_ends_at_a_sync_behind_the_refusal() {
    let mut desk = commit_and_copy();
    desk.say(b'S', &[]);
    desk.written();
    desk.hear(&frames(&[&COMMITTED[..], &ASKS].concat()));
    assert_eq!(desk.heard(), "1 2 n N 08007");
    assert_eq!(desk.written(), "f S");
    desk.answer(&[(b'E', NO_COPY)], b'I');
    assert_eq!(desk.heard(), "ZI");
    desk.query("SELECT 1", "SELECT 1", b'I');
    assert_eq!(desk.heard(), "SELECT 1 ZI");
}

/// One that is to come is enough, before or after the server has said that it goes on without.
#[test]
fn a_pipeline_that_is_not_at_its_end_gets_no_sync_of_the_proxys() {
    for is_early in [true, false] {
        let mut desk = commit_and_copy();
        desk.say(b'H', &[]);
        desk.written();
        desk.hear(&frames(&[&COMMITTED[..], &ASKS].concat()));
        assert_eq!(desk.heard(), "1 2 n N 08007");
        assert_eq!(desk.written(), "f");
        if is_early {
            desk.say(b'S', &[]);
            desk.hear(&frames(&[(b'E', NO_COPY)]));
        } else {
            desk.hear(&frames(&[(b'E', NO_COPY)]));
            desk.say(b'S', &[]);
        }
        assert_eq!(desk.written(), "S", "{is_early}");
        desk.answer(&[], b'I');
        assert_eq!(desk.heard(), "ZI");
    }
}

/// It is the client's own end of the data that the server finds next.
#[test]
fn data_that_were_sent_unasked_are_taken() {
    let mut desk = commit_and_copy();
    desk.say(b'H', &[]);
    for (tag, piece) in [(b'd', &b"1\n"[..]), (b'c', b""), (b'S', b"")] {
        desk.say(tag, &[piece]);
    }
    desk.written();
    desk.hear(&frames(&[&COMMITTED[..], &ASKS].concat()));
    assert_eq!(desk.written(), "");
    desk.answer(&[(b'C', b"COPY 1\0")], b'I');
    assert_eq!(desk.heard(), "1 2 n N 08007 ZI");
}

/// A row that was passed on in pieces came behind the error.
#[test]
fn long_rows_behind_such_a_commit_are_swallowed_as_short_ones() {
    let mut desk = Desk::ready();
    begin_and_write(&mut desk, 700);
    desk.say(b'Q', &[b"COMMIT; SELECT repeat('x', 100000)\0"]);
    let row = vec![b'x'; 100_000];
    let answers = frames(&[
        (b'N', CANCELLED),
        (b'C', b"COMMIT\0"),
        (b'D', &row),
        (b'C', b"SELECT 1\0"),
        (b'Z', b"I"),
    ]);
    let (first, rest) = answers.split_at(90_000);
    desk.hear_in_pieces(&[first, rest]);
    assert_eq!(desk.heard(), "N 08007 ZI");
}
