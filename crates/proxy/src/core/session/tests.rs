//! Batches and transactions whose server is lost, message by message.

mod durability;
mod held;
mod named;
mod shared;
mod standby;

use super::super::sql::Catalog;
use super::desk::{Desk, frames};

/// `BEGIN` and a first `INSERT` in the simple protocol, whose transaction has the id.
fn begin_and_write(desk: &mut Desk, xid: u64) {
    desk.query("BEGIN", "BEGIN", b'T');
    desk.query("INSERT INTO t VALUES (1)", "INSERT 0 1", b'T');
    desk.answer_xid(xid);
    assert_eq!(desk.heard(), "BEGIN ZT INSERT 0 1 ZT");
    desk.written();
}

/// `a` was there twice: the transaction that had been committed was run again as the beginning of the next one.
#[test]
fn committed_part_of_a_chain_is_not_run_again() {
    for (text, tag) in [
        ("COMMIT AND CHAIN", "COMMIT"),
        ("COMMIT; BEGIN", "BEGIN"),
        ("ROLLBACK AND CHAIN", "ROLLBACK"),
    ] {
        let mut desk = Desk::ready();
        begin_and_write(&mut desk, 700);
        desk.query(text, tag, b'T');
        desk.query("SELECT 1", "SELECT 1", b'T');
        desk.heard();
        desk.written();
        desk.take_over(900);
        assert_eq!(desk.written(), "", "{text}: nothing is run again");
        desk.say(b'Q', &[b"SELECT 2\0"]);
        assert_eq!(desk.heard(), "40001 ZE", "{text}");
        desk.say(b'Q', &[b"ROLLBACK\0"]);
        assert_eq!(desk.heard(), "ROLLBACK ZI", "{text}");
    }
}

/// The second transaction was taken for the first one, of which the server said that it had committed.
#[test]
fn a_chained_transaction_is_asked_about_by_its_own_id() {
    for (first, is_committed) in [("COMMIT AND CHAIN", false), ("ROLLBACK AND CHAIN", true)] {
        let mut desk = Desk::ready();
        begin_and_write(&mut desk, 700);
        desk.query(first, "COMMIT", b'T');
        desk.query("INSERT INTO t VALUES (2)", "INSERT 0 1", b'T');
        desk.answer_xid(701);
        desk.heard();
        desk.say(b'Q', &[b"COMMIT\0"]);
        desk.written();
        desk.take_over(900);
        let asked = desk.written();
        assert!(asked.contains("pg_xact_status('701'"), "{first}: {asked}");
        desk.answer_status(if is_committed { "committed" } else { "aborted" });
        let expected = if is_committed {
            "COMMIT ZI"
        } else {
            "40001 ZI"
        };
        assert_eq!(desk.heard(), expected, "{first}");
        assert_eq!(desk.written(), "", "{first}");
    }
}

/// What the client and the next server are told if the server is lost with this text, in a transaction that has written.
fn lose_with(text: &[u8]) -> (String, String) {
    let mut desk = Desk::ready();
    begin_and_write(&mut desk, 700);
    desk.say(b'Q', &[text, b"\0"]);
    desk.written();
    desk.take_over(900);
    (desk.heard(), desk.written())
}

fn pair(heard: &str, written: &str) -> (String, String) {
    (heard.to_owned(), written.to_owned())
}

/// A client that did nothing was told of the loss in between, by messages that it did not wait for. What it sent next, its
/// COMMIT, was answered with ROLLBACK, which most drivers take for a commit.
// hazard: PROXY-69
#[test]
fn a_replay_that_fails_while_its_client_does_nothing_is_told_with_what_comes_next() {
    let mut desk = Desk::ready();
    begin_and_write(&mut desk, 700);
    desk.heard();
    desk.written();
    desk.take_over(900);
    // What is read of the catalog meanwhile says that the next statement must not run twice.
    desk.catalog = Catalog::default();
    desk.answer(&[(b'C', b"BEGIN\0")], b'T');
    assert!(desk.written().contains("INSERT"), "it is run again");
    desk.take_over(950);
    assert_eq!(desk.heard(), "", "nobody waits for anything");
    desk.say(b'Q', &[b"COMMIT\0"]);
    assert_eq!(desk.heard(), "08007 ZI");
}

/// Drivers close statements without looking at what becomes of it. The error was told there, and the COMMIT behind it was
/// answered with ROLLBACK: an application had its commit acknowledged, and none of its rows.
// hazard: PROXY-70
#[test]
fn an_error_is_not_told_to_a_close_that_nobody_waits_for() {
    for is_under_way in [true, false] {
        let mut desk = Desk::ready();
        begin_and_write(&mut desk, 700);
        let close = |desk: &mut Desk| {
            desk.say(b'C', &[b"Ss\0"]);
            desk.say(b'S', &[]);
        };
        if is_under_way {
            close(&mut desk);
        }
        desk.take_over(900);
        desk.answer(&[(b'C', b"BEGIN\0")], b'T');
        desk.answer(&[(b'C', b"INSERT 0 7\0")], b'T');
        if !is_under_way {
            assert_eq!(desk.heard(), "", "nobody waits for anything");
            close(&mut desk);
        }
        assert_eq!(desk.heard(), "3 ZT");
        desk.say(b'Q', &[b"COMMIT\0"]);
        assert_eq!(desk.heard(), "40001 ZI");
    }
}

/// To most drivers a COMMIT that is answered with ROLLBACK looks like one that has committed. A client that has heard of an
/// error in its transaction knows better.
// hazard: PROXY-69
#[test]
fn a_rollback_in_place_of_a_commit_is_told_as_an_error() {
    let mut desk = Desk::ready();
    begin_and_write(&mut desk, 700);
    desk.heard();
    desk.query("COMMIT", "ROLLBACK", b'I');
    assert_eq!(desk.heard(), "ROLLBACK 40001 ZI");
}

/// The client was told that it was in another transaction, and was in none: what followed committed bit by bit.
#[test]
fn a_chain_in_doubt_is_not_known() {
    assert_eq!(lose_with(b"COMMIT AND CHAIN"), pair("08007 ZI", ""));
}

/// One id was taken for the outcome of both, or both were run again.
#[test]
fn two_commits_in_one_pipeline_are_not_decided_by_one_id() {
    let mut desk = Desk::ready();
    for text in ["BEGIN", "INSERT INTO t VALUES (1)", "COMMIT"].repeat(2) {
        desk.execute(text);
    }
    desk.say(b'S', &[]);
    // The id of the first one is heard, and nothing else.
    let done: [(u8, &[u8]); 4] = [(b'1', b""), (b'2', b""), (b'n', b""), (b'C', b"-\0")];
    let row: [(u8, &[u8]); 5] = [
        (b'1', b""),
        (b'2', b""),
        (b'D', b"\0\x01\0\0\0\x03700"),
        (b'C', b"SELECT 1\0"),
        (b'3', b""),
    ];
    desk.hear(&frames(&[&done[..], &done, &done[..3], &row].concat()));
    assert_eq!(desk.heard(), "1 2 n - 1 2 n - 1 2 n");
    desk.written();
    desk.take_over(900);
    assert_eq!((desk.heard(), desk.written()), pair("08007 ZI", ""));
}

#[test]
fn statement_behind_a_rollback_commits_by_itself() {
    let text = b"ROLLBACK; INSERT INTO t VALUES (2)";
    assert_eq!(lose_with(text), pair("08007 ZE", ""));
    // What is rolled back only is run again.
    assert_eq!(lose_with(b"ROLLBACK; BEGIN"), pair("", "BEGIN"));
}

/// A text that was not parsed was taken for one that commits nothing.
// hazard: PROXY-4
#[test]
fn a_text_that_nobody_understands_may_have_committed() {
    let text = b"INSERT INTO u VALUES ('\xe9'); COMMIT";
    assert_eq!(lose_with(text), pair("08007 ZE", ""));
    // It has not, but nobody knows what it calls.
    assert_eq!(
        lose_with(b"INSERT INTO u VALUES ('\xe9')"),
        pair("40001 ZE", "")
    );
}

/// What a block of code had done elsewhere was there twice.
// hazard: PROXY-55
#[test]
fn effects_outside_of_the_transaction_are_not_run_again() {
    let text = "DO $$ BEGIN PERFORM dblink_exec('', ''); END $$";
    assert_eq!(lose_with(text.as_bytes()), pair("40001 ZE", ""));
    let mut desk = Desk::ready();
    begin_and_write(&mut desk, 700);
    desk.query(text, "DO", b'T');
    desk.heard();
    desk.written();
    desk.take_over(900);
    desk.say(b'Q', &[b"SELECT 1\0"]);
    assert_eq!((desk.heard(), desk.written()), pair("40001 ZE", ""));
}

/// It has no id that could be asked about if it is not known to write.
#[test]
fn a_copy_that_writes_runs_in_a_transaction_of_the_proxys() {
    let mut desk = Desk::ready();
    desk.say(
        b'Q',
        &[b"COPY (INSERT INTO t VALUES (1) RETURNING a) TO STDOUT\0"],
    );
    let written = desk.written();
    assert!(
        written.starts_with("BEGIN COPY") && written.ends_with("COMMIT"),
        "{written}"
    );
    desk.take_over(900);
    assert_eq!(
        (desk.heard().as_str(), desk.written().as_str()),
        ("08007 ZI", "")
    );
}

/// An error and the end of the answer were put into the row, whose length said that they belonged to it.
// hazard: PROXY-7
#[test]
fn client_with_half_of_a_row_gets_nothing_more() {
    let row = [&[0, 1, 0, 1, 0, 0][..], &[b'x'; 65536]].concat();
    let row = frames(&[(b'D', &row)]);
    let mut desk = Desk::ready();
    desk.query("BEGIN", "BEGIN", b'T');
    desk.heard();
    desk.say(b'Q', &[b"SELECT a FROM t\0"]);
    desk.hear(&row[..40_000]);
    assert_eq!(desk.out.client.split().len(), 40_000);
    desk.take_over(900);
    assert!(desk.out.client.is_empty() && desk.session.is_closed());

    // At the end of a row it is told.
    let mut desk = Desk::ready();
    desk.query("BEGIN", "BEGIN", b'T');
    desk.say(b'Q', &[b"SELECT a FROM t\0"]);
    desk.hear(&row[..40_000]);
    desk.hear(&row[40_000..]);
    desk.heard();
    desk.take_over(900);
    assert_eq!(desk.heard(), "40001 ZE");
}

/// The end of data that the client sends after an error left something behind for which no answer came: from then on each
/// answer was taken for that of the statement before.
// hazard: PROXY-8
#[test]
fn a_copy_that_fails_in_the_middle_leaves_nothing_behind() {
    let error = b"SERROR\0VERROR\0C22P02\0Mno number\0\0";
    for end in [b'c', b'f'] {
        let mut desk = Desk::ready();
        desk.execute("COPY t FROM STDIN");
        desk.say(b'S', &[]);
        desk.hear(&frames(&[
            (b'1', b""),
            (b'2', b""),
            (b'n', b""),
            (b'G', b"\0\0\0"),
        ]));
        desk.say(b'd', &[b"x\n"]);
        desk.hear(&frames(&[(b'E', error)]));
        desk.say(end, &[b"\0"]);
        desk.say(b'S', &[]);
        desk.answer(&[], b'I');
        assert_eq!(desk.heard(), "1 2 n G 22P02 ZI");
        assert!(desk.session.replies.is_empty() && desk.session.is_idle());
        desk.query("SELECT 1", "SELECT 1", b'I');
        assert_eq!(desk.heard(), "SELECT 1 ZI");
    }
}

/// The client was told of a transaction block that it had not begun.
#[test]
fn statement_refused_in_a_function_is_reported_as_without_the_proxy() {
    let mut desk = Desk::ready();
    desk.say(b'Q', &[b"INSERT INTO t SELECT f()\0"]);
    assert!(desk.written().starts_with("BEGIN INSERT"));
    desk.answer(&[(b'C', b"BEGIN\0")], b'T');
    let error = b"SERROR\0VERROR\0C25001\0MVACUUM cannot run inside a transaction block\0RPreventInTransactionBlock\0\0";
    desk.answer(&[(b'E', error)], b'E');
    desk.answer(&[], b'E');
    desk.answer(&[(b'C', b"ROLLBACK\0")], b'I');
    let told = String::from_utf8_lossy(&desk.out.client).into_owned();
    assert!(
        told.contains("VACUUM cannot be executed from a function"),
        "{told}"
    );
    assert!(!told.contains("block"), "{told}");
}

/// The client was told that a `SELECT` before its `COMMIT` had no columns, and was one itself.
// hazard: PROXY-6
#[test]
fn answers_before_a_commit_are_not_made_up() {
    let mut desk = Desk::ready();
    begin_and_write(&mut desk, 700);
    desk.execute("SELECT a FROM t");
    desk.execute("COMMIT");
    desk.say(b'S', &[]);
    assert_eq!(
        desk.written(),
        "P B D E P B D H E S",
        "they are asked for first"
    );
    desk.take_over(900);
    desk.answer_status("committed");
    assert_eq!(desk.heard(), "08007 ZI");

    // What is there before the commit's own answer is known to be there.
    let mut desk = Desk::ready();
    begin_and_write(&mut desk, 700);
    desk.execute("SELECT a FROM t");
    desk.execute("COMMIT");
    desk.say(b'S', &[]);
    let first = [
        (b'1', &b""[..]),
        (b'2', b""),
        (b'T', b"\0\0"),
        (b'C', b"SELECT 0\0"),
    ];
    desk.hear(&frames(&first));
    desk.take_over(900);
    desk.answer_status("committed");
    assert_eq!(desk.heard(), "1 2 T SELECT 0 1 2 n COMMIT ZI");
}

#[test]
fn answers_before_a_commit_in_one_text_are_not_made_up() {
    let mut desk = Desk::ready();
    begin_and_write(&mut desk, 700);
    desk.say(b'Q', &[b"SELECT a FROM t; COMMIT\0"]);
    desk.take_over(900);
    desk.answer_status("committed");
    assert_eq!(desk.heard(), "08007 ZI");
}

/// A client that never ended its pipeline filled the proxy's memory.
// hazard: PROXY-9, PROXY-62
#[test]
fn a_pipeline_without_an_end_is_not_kept() {
    let mut desk = Desk::ready();
    desk.rules.replay_bytes = 100_000;
    desk.query("BEGIN", "BEGIN", b'T');
    let value = "x".repeat(10_000);
    for _ in 0..100 {
        desk.execute(&format!("SELECT '{value}'"));
        desk.say(b'H', &[]);
        desk.hear(&frames(&[
            (b'1', b""),
            (b'2', b""),
            (b'T', b"\0\0"),
            (b'C', b"SELECT 1\0"),
        ]));
        desk.heard();
        let kept = desk
            .session
            .batch
            .as_ref()
            .map_or(0, |batch| batch.bytes.capacity());
        assert!(kept < 300_000, "{kept} bytes");
        let batch = desk.session.batch.as_ref();
        let count = batch.map_or(0, |batch| {
            batch.facts.statements.len() + batch.complete.len()
        });
        assert!(count < 50, "{count} statements");
    }
    desk.take_over(900);
    assert_eq!(desk.heard(), "40001");
    desk.say(b'S', &[]);
    assert_eq!(desk.heard(), "ZE");
}

/// The transaction had no id when it was asked for, as it gets one when it commits: it was run again, and everybody was notified
/// twice.
// hazard: PROXY-60
#[test]
fn a_notification_in_doubt_is_not_known() {
    let no_id: [(u8, &[u8]); 4] = [
        (b'1', b""),
        (b'2', b""),
        (b'D', b"\0\x01\xff\xff\xff\xff"),
        (b'C', b"SELECT 1\0"),
    ];
    for (text, tag) in [
        ("NOTIFY jobs", &b"NOTIFY\0"[..]),
        ("SELECT pg_notify('jobs', '')", b"SELECT 1\0"),
        ("UPDATE t SET a = 1 WHERE false", b"UPDATE 0\0"),
    ] {
        let mut desk = Desk::ready();
        desk.say(b'Q', &[text.as_bytes(), b"\0"]);
        assert!(desk.written().starts_with("BEGIN"), "{text}");
        desk.answer(&[(b'C', b"BEGIN\0")], b'T');
        desk.answer(&[(b'C', tag)], b'T');
        desk.answer(&no_id, b'T');
        desk.heard();
        desk.take_over(900);
        let is_run_again = desk.written().starts_with("BEGIN");
        assert_eq!(is_run_again, text.starts_with("UPDATE"), "{text}");
        let told = if is_run_again { "" } else { "08007 ZI" };
        assert_eq!(desk.heard(), told, "{text}");
    }
}

/// A view's function had written, its answer was lost, and it wrote once more.
// hazard: PROXY-63
#[test]
fn a_view_that_may_write_is_not_run_again_without_a_question() {
    for is_writing in [false, true] {
        let mut desk = Desk::ready();
        let views = is_writing.then(|| "v".into());
        desk.catalog.relations.calling = views.into_iter().collect();
        desk.say(b'Q', &[b"SELECT * FROM app.v\0"]);
        let written = desk.written();
        assert_eq!(written.starts_with("BEGIN"), is_writing, "{written}");
        desk.take_over(900);
        let told = if is_writing { "08007 ZI" } else { "" };
        assert_eq!(desk.heard(), told);
    }
}
