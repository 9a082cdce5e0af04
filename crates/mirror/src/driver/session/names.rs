//! A client's prepared statements and portals, and the batch of messages that has begun.
//!
//! Invariant: a name stands for the text that the member has under it, whatever the member refuses: what a message changes here is
//! undone unless the member has answered it. A statement that the manager looked into is the one that is executed.

use std::collections::VecDeque;

use bytes::BytesMut;
use protocol::frame;

use super::ByName;
use crate::core::moving::Statement;
use crate::core::record::Parameter;

/// A statement of a client's.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Prepared {
    pub text: String,
    pub types: Vec<u32>,
}

/// A statement with its parameters.
#[derive(Debug, Clone, Default)]
pub struct Portal {
    pub statement: Prepared,
    pub parameters: Vec<Parameter>,
    pub result_formats: Vec<i16>,
    /// What binds it has not been sent yet.
    pub is_pending: bool,
    /// The client has closed it.
    pub is_closed: bool,
}

/// What a statement's name stood for before a message that the member has not answered.
#[derive(Debug)]
enum Undo {
    Statement(String, Option<Prepared>),
    /// Nothing of it is kept here.
    Nothing,
}

/// See the module.
#[derive(Default)]
pub struct Names {
    statements: ByName<Prepared>,
    pub portals: ByName<Portal>,
    /// Messages that the member has not been sent.
    pub pending: BytesMut,
    /// Which they are; `t` for the question what a statement is like.
    kinds: Vec<u8>,
    /// For each `Parse` and `Close` without an answer.
    undo: VecDeque<Undo>,
    /// A batch has begun.
    pub is_open: bool,
    /// Something in the batch has failed: everything is skipped until its end.
    pub has_failed: bool,
    /// Answers that count only if the batch commits.
    pub held: BytesMut,
}

impl Names {
    /// A statement.
    pub fn statement(&self, name: &str) -> Option<&Prepared> {
        self.statements.get(name)
    }

    /// The client's statements.
    pub fn statements(&self) -> Vec<Statement> {
        let statements = self.statements.iter();
        let mut statements: Vec<Statement> = statements
            .map(|(name, prepared)| Statement {
                name: name.clone(),
                text: prepared.text.clone(),
                types: prepared.types.clone(),
            })
            .collect();
        statements.sort_by(|one, other| one.name.cmp(&other.name));
        statements
    }

    /// A statement was prepared.
    pub fn learn(&mut self, statement: &Statement) {
        let prepared = Prepared {
            text: statement.text.clone(),
            types: statement.types.clone(),
        };
        self.statements.insert(statement.name.clone(), prepared);
    }

    /// A statement is gone, or all of them.
    pub fn forget(&mut self, name: Option<&str>) {
        match name {
            Some(name) => drop(self.statements.remove(name)),
            None => self.statements.clear(),
        }
    }

    /// A message waits to be sent.
    pub fn keep(&mut self, message: &[u8]) {
        let is_of_statement = message[0] == b'D' && frame::body(message).first() == Some(&b'S');
        self.kinds
            .push(if is_of_statement { b't' } else { message[0] });
        self.pending.extend_from_slice(message);
    }

    /// `Parse`.
    pub fn parse(&mut self, name: &str, prepared: Prepared, message: &[u8]) {
        let before = self.statements.insert(name.to_owned(), prepared);
        self.undo
            .push_back(Undo::Statement(name.to_owned(), before));
        self.keep(message);
    }

    /// `Close`.
    pub fn close(&mut self, message: &[u8]) {
        let body = frame::body(message);
        let name = body.get(1..).and_then(frame::name).map(|(name, _)| name);
        let undo = match (body.first(), name) {
            (Some(b'S'), Some(name)) => {
                Undo::Statement(name.to_owned(), self.statements.remove(name))
            }
            (_, Some(name)) => {
                if let Some(portal) = self.portals.get_mut(name) {
                    portal.is_closed = true;
                }
                Undo::Nothing
            }
            _ => Undo::Nothing,
        };
        self.undo.push_back(undo);
        self.keep(message);
    }

    /// The messages that wait are sent: how many answers they have.
    pub fn send(&mut self, out: &mut BytesMut) -> usize {
        out.extend_from_slice(&self.pending.split());
        for portal in self.portals.values_mut() {
            portal.is_pending = false;
        }
        std::mem::take(&mut self.kinds).len()
    }

    /// The member has answered this.
    pub fn answered(&mut self, kind: u8) {
        match kind {
            b'1' | b'3' => drop(self.undo.pop_front()),
            b'E' => self.fail(),
            _ => {}
        }
    }

    /// The rest of the batch is skipped.
    pub fn fail(&mut self) {
        self.pending.clear();
        self.kinds.clear();
        for portal in self.portals.values_mut() {
            // The member may have another one of this name.
            portal.is_closed |= portal.is_pending;
        }
        while let Some(undo) = self.undo.pop_back() {
            if let Undo::Statement(name, before) = undo {
                match before {
                    Some(before) => drop(self.statements.insert(name, before)),
                    None => drop(self.statements.remove(&name)),
                }
            }
        }
    }

    /// Answers what waits in the member's place, if that is nothing but the `Bind` of a statement that returns no rows, and the
    /// question what it returns: the member is never sent it.
    pub fn answer_bind(&mut self, out: &mut BytesMut) -> bool {
        if !matches!(self.kinds.as_slice(), [b'B'] | [b'B', b'D']) {
            return false;
        }
        frame::put(out, b'2', &[]);
        if self.kinds.len() > 1 {
            frame::put(out, b'n', &[]);
        }
        self.pending.clear();
        self.kinds.clear();
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(names: &mut Names, name: &str, text: &str) {
        let prepared = Prepared {
            text: text.to_owned(),
            types: Vec::new(),
        };
        names.parse(name, prepared, b"P....");
    }

    fn text(names: &Names, name: &str) -> Option<String> {
        names.statement(name).map(|one| one.text.clone())
    }

    /// A name that the member refused stood for the text that was refused, and another was executed than was looked into.
    #[test]
    fn what_the_member_refuses_is_undone() {
        let mut names = Names::default();
        parse(&mut names, "s", "one");
        names.answered(b'1');
        parse(&mut names, "t", "two");
        parse(&mut names, "s", "three");
        assert_eq!(text(&names, "s").as_deref(), Some("three"));
        names.answered(b'1');
        names.answered(b'E');
        assert_eq!(text(&names, "s").as_deref(), Some("one"));
        assert_eq!(text(&names, "t").as_deref(), Some("two"));
    }

    #[test]
    fn what_is_closed_comes_back_if_the_batch_fails_before_it() {
        let mut names = Names::default();
        parse(&mut names, "s", "one");
        names.answered(b'1');
        let mut close = BytesMut::new();
        frame::put(&mut close, b'C', &[b"Ss\0"]);
        names.close(&close);
        parse(&mut names, "s", "two");
        names.fail();
        assert_eq!(text(&names, "s").as_deref(), Some("one"));
        assert!(names.pending.is_empty());
        names.close(&close);
        names.answered(b'3');
        names.fail();
        assert_eq!(text(&names, "s"), None);
    }

    #[test]
    fn only_a_bind_by_itself_is_answered_in_the_members_place() {
        let mut names = Names::default();
        let mut out = BytesMut::new();
        assert!(!names.answer_bind(&mut out));
        names.keep(b"B....");
        names.keep(b"D....");
        assert!(names.answer_bind(&mut out));
        assert_eq!(&out[..], b"2\0\0\0\x04n\0\0\0\x04");
        assert!(names.pending.is_empty());
        parse(&mut names, "", "BEGIN");
        names.keep(b"B....");
        assert!(!names.answer_bind(&mut out));
    }
}
