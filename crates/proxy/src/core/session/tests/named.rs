//! Prepared statements on connections that sessions share: by which names, and for how long.

use super::super::Server;
use super::super::desk::frames;
use super::shared::Shared;

/// A session that has prepared `s`, on a connection that it has given back.
fn prepared_on(server: Box<Server>) -> Shared {
    let mut shared = Shared::new();
    shared.say(&[(b'P', b"s\0SELECT 1\0\0\0"), (b'S', b"")]);
    shared.give(server);
    shared.hear(frames(&[(b'1', b""), (b'Z', b"I")]));
    shared.desk.heard();
    shared.desk.written();
    shared
}

/// The server still has it when it skips its `Close` as well: it was prepared once more, which is an error.
#[test]
fn statement_to_be_replaced_behind_an_error_is_there() {
    let mut shared = prepared_on(Shared::active());
    let server = shared.returned().expect("it is given back");
    let mut shared = Shared::new();
    let parse: (u8, &[u8]) = (b'P', b"s\0SELECT 1\0\0\0");
    let bad: (u8, &[u8]) = (b'P', b"\0SELEC\0\0\0");
    shared.say(&[bad, parse, (b'S', b"")]);
    shared.give(server);
    assert_eq!(shared.desk.written(), "P C P S");
    shared.answer(&[], Some("42601"), b'I');
    let server = shared.returned().expect("it is given back");
    assert_eq!(server.prepared.iter().count(), 1);
    // When the error comes behind the `Close`, it is not.
    let mut shared = Shared::new();
    shared.say(&[parse, (b'S', b"")]);
    shared.give(server);
    shared.hear(frames(&[(b'3', b"")]));
    shared.answer(&[], Some("42P01"), b'I');
    let server = shared.returned().expect("it is given back");
    assert_eq!(server.prepared.iter().count(), 0);
}

/// Drivers deallocate in SQL what they have prepared by the protocol: it was an error, and took an open transaction along.
#[test]
fn statement_named_in_sql_has_the_clients_name_for_a_moment() {
    for (text, is_there) in [
        ("DEALLOCATE s", false),
        ("EXECUTE s", true),
        ("EXECUTE t", true),
    ] {
        let mut shared = prepared_on(Shared::active());
        let server = shared.returned().expect("it is given back");
        shared.ask(text);
        shared.give(server);
        let is_known = !text.ends_with('t');
        let lends = if is_known { "C P S " } else { "" };
        let written = shared.desk.written();
        assert!(written.starts_with(&format!("{lends}{text}")), "{written}");
        if is_known {
            shared.hear(frames(&[(b'3', b""), (b'1', b""), (b'Z', b"I")]));
        }
        assert_eq!(shared.desk.heard(), "");
        shared.answer(&["DONE"], None, b'I');
        if text.starts_with("EXECUTE") {
            shared.answer(&["SELECT 0"], None, b'I');
        }
        assert_eq!(shared.desk.heard(), "DONE ZI");
        let server = shared.returned().expect("it is given back");
        // The next one there finds it gone.
        let mut other = Shared::new();
        other.ask("SELECT 1");
        other.give(server);
        assert_eq!(other.desk.written().starts_with("C S"), is_known, "{text}");
        let is_prepared = shared.desk.session.names.definition("s").is_some();
        assert_eq!(is_prepared, is_there, "{text}");
    }
}

/// A statement that comes behind it in the same packet was forgotten with the rest.
#[test]
fn statement_prepared_behind_a_deallocate_is_there() {
    for (text, fails) in [
        (&b"\0DEALLOCATE ALL\0\0\0"[..], false),
        (b"\0DEALLOCATE s\0\0\0", false),
        (b"\0DEALLOCATE s\0\0\0", true),
    ] {
        let mut shared = prepared_on(Shared::active());
        let server = shared.returned().expect("it is given back");
        let all: [(u8, &[u8]); 5] = [
            (b'P', text),
            (b'B', b"\0\0\0\0\0\0\0\0"),
            (b'E', b"\0\0\0\0\0"),
            (b'P', b"s\0SELECT 2\0\0\0"),
            (b'S', b""),
        ];
        shared.say(&all);
        shared.give(server);
        let code = fails.then_some("57014");
        shared.answer(if fails { &[] } else { &["DEALLOCATE"] }, code, b'I');
        // What is prepared behind something that may set is closed.
        shared.hear(frames(&[(b'3', b""), (b'Z', b"I")]));
        assert!(shared.returned().is_some());
        let expected = if fails {
            b"SELECT 1\0\0\0"
        } else {
            b"SELECT 2\0\0\0"
        };
        let definition = shared.desk.session.names.definition("s").expect("there");
        assert_eq!(&definition[..], expected);
    }
}
