//! Answers of a statement that commits by itself, whose server is lost while it commits.

use super::super::desk::{Desk, frames};

const INSERT: &str = "INSERT INTO t VALUES (1) RETURNING id";

/// Answers of a server to it, with the key that it chose.
fn answers(key: u8) -> bytes::BytesMut {
    let row = [0, 1, 0, 0, 0, 1, b'0' + key];
    frames(&[
        (b'1', b""),
        (b'2', b""),
        (b'T', b"\0\0"),
        (b'D', &row),
        (b'C', b"INSERT 0 1\0"),
    ])
}

fn xid() -> bytes::BytesMut {
    frames(&[
        (b'1', b""),
        (b'2', b""),
        (b'D', b"\0\x01\0\0\0\x03700"),
        (b'C', b"SELECT 1\0"),
        (b'3', b""),
    ])
}

/// The client had the row when the server was lost that committed it. Run again, it had another key, and the client was told
/// that it had been rolled back.
// hazard: PROXY-71
#[test]
fn held_answer_of_an_uncommitted_transaction_was_not_sent() {
    let mut desk = Desk::ready();
    desk.execute(INSERT);
    desk.say(b'S', &[]);
    desk.hear(&[&answers(1)[..], &xid()].concat());
    assert_eq!(desk.heard(), "");
    desk.take_over(900);
    desk.answer_status("aborted");
    desk.hear(&[&answers(2)[..], &xid(), &frames(&[(b'Z', b"I")])].concat());
    let told = String::from_utf8_lossy(&desk.out.client).into_owned();
    assert!(
        told.contains("\u{1}2") && !told.contains("\u{1}1"),
        "{told:?}"
    );
    assert_eq!(desk.heard(), "1 2 T D INSERT 0 1 ZI");
}

#[test]
fn held_answer_of_a_committed_transaction_is_sent_as_it_was() {
    let mut desk = Desk::ready();
    desk.execute(INSERT);
    desk.say(b'S', &[]);
    desk.hear(&[&answers(1)[..], &xid()].concat());
    desk.take_over(900);
    desk.answer_status("committed");
    assert_eq!(desk.heard(), "1 2 T D INSERT 0 1 ZI");
}

/// It asked for the answers before their end, so it had them.
// hazard: PROXY-71
#[test]
fn client_with_other_answers_is_not_told_that_nothing_was_done() {
    let mut desk = Desk::ready();
    desk.execute(INSERT);
    desk.say(b'H', &[]);
    desk.hear(&answers(1));
    assert_eq!(desk.heard(), "1 2 T D INSERT 0 1");
    desk.say(b'S', &[]);
    desk.hear(&xid());
    desk.take_over(900);
    desk.answer_status("aborted");
    desk.hear(&answers(2));
    assert_eq!(desk.heard(), "08007 ZI", "it commits");
}
