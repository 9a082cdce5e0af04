//! One session of session mode on a desk: a test is its client, its server and its cluster.

use crate::core::choice::NoLoad;
use bytes::BytesMut;
use dax::ids::Epoch;

use super::super::outcome::Horizon;
use super::super::settings::Settings;
use super::super::sql::{Catalog, Statements};
use super::super::topology::{News, Topology};
use super::{Context, Effect, Out, PoolMode, Reported, Role, Rules, Server, Session};
use protocol::frame;

/// One session of session mode, and what it goes by.
pub struct Desk {
    pub rules: Rules,
    pub statements: Statements,
    pub catalog: Catalog,
    pub topology: Topology,
    pub session: Session,
    pub out: Out,
    pub epoch: Epoch,
    pub rest: usize,
}

impl Desk {
    pub fn new() -> Desk {
        let mut topology = Topology::default();
        topology.hear(News::ActiveIs {
            epoch: Epoch(3),
            address: "a".into(),
            run: None,
            horizons: Vec::new(),
        });
        let mut startup = Settings::default();
        startup.set("a.b", "0");
        let mut told = Reported::default();
        told.put("TimeZone", "UTC");
        Desk {
            rules: Rules {
                mode: PoolMode::Session,
                ..Rules::default()
            },
            statements: Statements::default(),
            catalog: Catalog::default().believing(),
            topology,
            session: Session::new(startup, told, 5),
            out: Out::default(),
            epoch: Epoch(3),
            rest: 0,
        }
    }

    /// One that has had its settings.
    pub fn ready() -> Desk {
        let mut desk = Desk {
            session: Session::new(Settings::default(), Reported::default(), 5),
            ..Desk::new()
        };
        desk.query("SHOW a.b", "SHOW", b'I');
        desk.heard();
        desk.written();
        desk
    }

    pub fn with<T>(&mut self, act: impl FnOnce(&mut Session, &Context<'_>, &mut Out) -> T) -> T {
        let cx = Context {
            rules: &self.rules,
            statements: &self.statements,
            catalog: &self.catalog,
            topology: &self.topology,
            load: &NoLoad,
        };
        act(&mut self.session, &cx, &mut self.out)
    }

    /// The client says one message.
    pub fn say(&mut self, tag: u8, pieces: &[&[u8]]) {
        let mut input = BytesMut::new();
        frame::put(&mut input, tag, pieces);
        self.with(|session, cx, out| session.client_input(cx, &mut input, out));
        self.link();
    }

    /// The client says what parses, binds, describes and executes a statement.
    pub fn execute(&mut self, text: &str) {
        self.say(b'P', &[b"\0", text.as_bytes(), b"\0\0\0"]);
        self.say(b'B', &[b"\0\0\0\0\0\0\0\0"]);
        self.say(b'D', &[b"P\0"]);
        self.say(b'E', &[b"\0\0\0\0\0"]);
    }

    /// Gives the session the connection that it asks for, if it does.
    fn link(&mut self) {
        let mut effects = self.out.effects.drain(..);
        if effects.any(|one| matches!(one, Effect::AcquireActive { .. })) {
            drop(effects);
            let server = Box::new(Server::new(Role::Active(self.epoch), Reported::default()));
            self.with(|session, cx, out| session.linked(cx, server, false, out));
        }
    }

    /// The server says this.
    pub fn hear(&mut self, bytes: &[u8]) {
        self.hear_in_pieces(&[bytes]);
    }

    /// The server says this, and what is not taken of a piece is there with the next one.
    pub fn hear_in_pieces(&mut self, pieces: &[&[u8]]) {
        let mut input = BytesMut::new();
        for piece in pieces {
            input.extend_from_slice(piece);
            let mut rest = self.rest;
            self.with(|session, cx, out| session.server_input(cx, &mut input, &mut rest, out));
            self.rest = rest;
        }
    }

    /// The server answers everything, with this status at the end.
    pub fn answer(&mut self, tags: &[(u8, &[u8])], status: u8) {
        let mut input = frames(tags);
        frame::put_ready(&mut input, status);
        self.hear(&input);
    }

    pub fn query(&mut self, text: &str, tag: &str, status: u8) {
        self.say(b'Q', &[text.as_bytes(), b"\0"]);
        if self.session.is_waiting() {
            // It is given the session's settings first.
            self.answer(&[(b'C', b"SET\0")], b'I');
        }
        self.answer(&[(b'C', format!("{tag}\0").as_bytes())], status);
    }

    pub fn may_leave(&mut self) -> bool {
        self.with(|session, cx, _| session.may_leave(cx))
    }

    /// The server answers the question for the transaction's id.
    pub fn answer_xid(&mut self, xid: u64) {
        let text = xid.to_string();
        let len = u32::try_from(text.len()).expect("short").to_be_bytes();
        let row = [&[0, 1], &len[..], text.as_bytes()].concat();
        self.answer(
            &[
                (b'1', b""),
                (b'2', b""),
                (b'D', &row),
                (b'C', b"SELECT 1\0"),
            ],
            b'T',
        );
    }

    /// The active is lost, and another one takes over, in whose log are ids below the horizon.
    pub fn take_over(&mut self, horizon: u64) {
        self.epoch = self.epoch.next();
        self.topology.hear(News::ActiveIs {
            epoch: self.epoch,
            address: "b".into(),
            run: None,
            horizons: vec![(self.epoch, Some(Horizon(horizon)))],
        });
        self.rest = 0;
        self.with(|session, cx, out| session.news(cx, out));
        self.link();
    }

    /// The new active says what became of the transaction that it is asked about.
    pub fn answer_status(&mut self, status: &str) {
        let len = u32::try_from(status.len()).expect("short").to_be_bytes();
        let row = [&[0, 1], &len[..], status.as_bytes()].concat();
        self.answer(&[(b'D', &row), (b'C', b"SELECT 1\0")], b'I');
    }

    /// What the client was told since it was looked at last: the kinds of messages, what was done, codes of errors, and
    /// the status.
    pub fn heard(&mut self) -> String {
        let told = self.out.client.split();
        let mut words = Vec::new();
        let mut at = 0;
        while let Ok(Some((tag, len))) = frame::head(&told[at..]) {
            let message = &told[at..(at + len).min(told.len())];
            let body = frame::body(message);
            words.push(match tag {
                b'C' => frame::name(body).map_or("", |(tag, _)| tag).to_owned(),
                b'E' => String::from_utf8_lossy(frame::error_fields(message).code).into_owned(),
                b'Z' => format!("Z{}", char::from(body[0])),
                tag => char::from(tag).to_string(),
            });
            at += len;
        }
        words.join(" ")
    }

    /// The texts of queries, and the kinds of other messages, that went to servers since it was looked at last.
    pub fn written(&mut self) -> String {
        let sent = self.out.server.split();
        let mut words = Vec::new();
        let mut at = 0;
        while let Ok(Some((tag, len))) = frame::head(&sent[at..]) {
            let text =
                frame::text(frame::body(&sent[at..at + len])).map_or(&b""[..], |(text, _)| text);
            words.push(match tag {
                b'Q' => String::from_utf8_lossy(text).into_owned(),
                tag => char::from(tag).to_string(),
            });
            at += len;
        }
        words.join(" ")
    }
}

/// Messages one after the other.
pub fn frames(all: &[(u8, &[u8])]) -> BytesMut {
    let mut bytes = BytesMut::new();
    for (tag, body) in all {
        frame::put(&mut bytes, *tag, &[body]);
    }
    bytes
}
