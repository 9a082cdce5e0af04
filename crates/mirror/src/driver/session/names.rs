//! A client's prepared statements.
//!
//! Invariant: a name stands for the text that the member has under it, whatever the member refuses: what a message changes here is
//! undone unless the member has answered it, and of batches that were sent together only what has failed is undone.

use std::collections::{HashMap, VecDeque};

use protocol::frame;

use crate::core::moving::Statement;

/// A statement of a client's.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Prepared {
    pub text: String,
    pub types: Vec<u32>,
}

/// Step back from a message that the member has not answered.
#[derive(Debug)]
enum Undo {
    /// The statement of that name before it.
    Statement(String, Option<Prepared>),
    /// Nothing of it is kept here.
    Nothing,
    /// A batch ends.
    End,
}

/// See the module.
#[derive(Default)]
pub struct Names {
    statements: HashMap<String, Prepared>,
    /// For each `Parse` and `Close` without an answer, and for each end of a batch.
    undo: VecDeque<Undo>,
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

    /// `Parse`.
    pub fn parse(&mut self, name: &str, prepared: Prepared) {
        let before = self.statements.insert(name.to_owned(), prepared);
        self.undo
            .push_back(Undo::Statement(name.to_owned(), before));
    }

    /// `Close`.
    pub fn close(&mut self, body: &[u8]) {
        let name = body.get(1..).and_then(frame::name).map(|(name, _)| name);
        let undo = match (body.first(), name) {
            (Some(b'S'), Some(name)) => {
                Undo::Statement(name.to_owned(), self.statements.remove(name))
            }
            _ => Undo::Nothing,
        };
        self.undo.push_back(undo);
    }

    /// A batch was sent.
    pub fn end(&mut self) {
        self.undo.push_back(Undo::End);
    }

    /// Makes one batch of the messages so far, of which the end is still to come.
    pub fn join(&mut self) {
        self.undo.retain(|undo| !matches!(undo, Undo::End));
    }

    /// The member has answered the next `Parse` or `Close`.
    pub fn answered(&mut self) {
        if !matches!(self.undo.front(), Some(Undo::End)) {
            self.undo.pop_front();
        }
    }

    /// The member has ended a batch.
    pub fn ended(&mut self) {
        while !matches!(self.undo.pop_front(), Some(Undo::End) | None) {}
    }

    /// The member skips the rest of the batch.
    pub fn fail(&mut self) {
        let is_end = |undo: &Undo| matches!(undo, Undo::End);
        let end = self.undo.iter().position(is_end);
        let later = self.undo.split_off(end.unwrap_or(self.undo.len()));
        let mut failed = std::mem::replace(&mut self.undo, later);
        while let Some(undo) = failed.pop_back() {
            if let Undo::Statement(name, before) = undo {
                self.put_back(name, before);
            }
        }
    }

    /// Gives a name back to the statement that it had before something that was not done.
    fn put_back(&mut self, name: String, before: Option<Prepared>) {
        let later = self.undo.iter_mut().find_map(|undo| match undo {
            Undo::Statement(other, before) if *other == name => Some(before),
            _ => None,
        });
        match (later, before) {
            // Something that was sent later has changed it since.
            (Some(later), before) => *later = before,
            (None, Some(before)) => drop(self.statements.insert(name, before)),
            (None, None) => drop(self.statements.remove(&name)),
        }
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
        names.parse(name, prepared);
    }

    fn text(names: &Names, name: &str) -> Option<String> {
        names.statement(name).map(|one| one.text.clone())
    }

    /// A name that the member refused stood for the text that was refused, and another was executed than was looked into.
    #[test]
    fn what_the_member_refuses_is_undone() {
        let mut names = Names::default();
        parse(&mut names, "s", "one");
        names.end();
        names.answered();
        names.ended();
        parse(&mut names, "t", "two");
        parse(&mut names, "s", "three");
        names.end();
        assert_eq!(text(&names, "s").as_deref(), Some("three"));
        names.answered();
        names.fail();
        names.ended();
        assert_eq!(text(&names, "s").as_deref(), Some("one"));
        assert_eq!(text(&names, "t").as_deref(), Some("two"));
        assert!(names.undo.is_empty());
    }

    #[test]
    fn what_is_closed_comes_back_if_the_batch_fails_before_it() {
        let mut names = Names::default();
        parse(&mut names, "s", "one");
        names.answered();
        names.close(b"Ss\0");
        parse(&mut names, "s", "two");
        names.fail();
        assert_eq!(text(&names, "s").as_deref(), Some("one"));
        names.close(b"Ss\0");
        names.answered();
        names.fail();
        assert_eq!(text(&names, "s"), None);
    }

    /// Whoever sends batches without waiting lost what came after one that failed, when the session went on elsewhere.
    #[test]
    fn of_batches_that_are_sent_together_only_what_fails_is_undone() {
        let mut names = Names::default();
        parse(&mut names, "s", "bad");
        parse(&mut names, "u", "skipped");
        names.end();
        parse(&mut names, "t", "well");
        parse(&mut names, "s", "good");
        names.end();
        names.fail();
        names.ended();
        names.answered();
        names.answered();
        names.ended();
        assert_eq!(text(&names, "t").as_deref(), Some("well"));
        assert_eq!(text(&names, "s").as_deref(), Some("good"));
        assert_eq!(text(&names, "u"), None);
        // The later one fails as well.
        parse(&mut names, "v", "bad");
        names.end();
        parse(&mut names, "v", "worse");
        names.end();
        for _ in 0..2 {
            names.fail();
            names.ended();
        }
        assert_eq!(text(&names, "v"), None);
        assert!(names.undo.is_empty());
    }
}
