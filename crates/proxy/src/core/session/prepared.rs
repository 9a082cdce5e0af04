//! Prepared statements: the client's names, and the servers'.
//!
//! In transaction mode a client's statements follow it from server to server. Each gets one name on all
//! servers, a sum of its text, its parameter types and what literals are read by, so that clients with the same statement share
//! it. Invariant: what a server has under a name is what it would make of the text for whoever uses that name.

use std::borrow::Cow;
use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use bytes::Bytes;
use xxhash_rust::xxh3::xxh3_128_with_seed;

use super::super::sql::{Statement, Statements};
use super::batch::RequestBatch;
use super::replies::{ReplyOwner, SentMessage};
use super::server::SHARED;
use super::{Context, Out, Session};
use protocol::frame::{self, Malformed};

/// A prepared statement.
#[derive(Debug)]
pub struct Prepared {
    /// Its name on servers that sessions share, if they read texts so.
    pub shared_name: Box<str>,
    reading: u64,
    /// A literal in it means the time when it is prepared, like `'today'`.
    pub is_of_moment: bool,
    /// The rest of its `Parse`, behind the name: the text and the types of parameters.
    pub definition: Bytes,
    /// What it does.
    pub statement: Arc<Statement>,
}

/// A statement that a text needs by the name that its client has given it, and what it is made of.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Needed {
    /// The client's name.
    pub name: Box<str>,
    /// The rest of its `Parse`, behind the name.
    pub definition: Bytes,
}

/// A session's prepared statements and portals.
#[derive(Debug, Clone, Default)]
pub struct Names {
    statements: BTreeMap<Box<str>, Arc<Prepared>>,
    portals: HashMap<Box<str>, Arc<Statement>>,
    /// What the names meant when the transaction began, for those that have changed since.
    before: HashMap<Box<str>, Option<Arc<Prepared>>>,
}

impl Prepared {
    /// Reads the body of a `Parse`: the name, and the statement. `reading` is what the session's server reads texts by.
    pub fn read<'a>(
        body: &'a [u8],
        statements: &Statements,
        reading: u64,
    ) -> Result<(&'a str, Prepared), Malformed> {
        let (name, definition) = frame::name(body).ok_or(Malformed::Body(b'P'))?;
        let (text, _) = frame::text(definition).ok_or(Malformed::Body(b'P'))?;
        let prepared = Prepared {
            shared_name: name_of(definition, reading),
            reading,
            is_of_moment: names_a_moment(text),
            definition: Bytes::copy_from_slice(definition),
            statement: statements.look(text),
        };
        Ok((name, prepared))
    }

    /// Its name on shared servers that read texts so.
    pub fn name_where(&self, reading: u64) -> Cow<'_, str> {
        match reading == self.reading {
            true => Cow::Borrowed(&self.shared_name),
            false => Cow::Owned(name_of(&self.definition, reading).into()),
        }
    }

    /// The same for a session whose server reads texts so now.
    fn where_read(&self, reading: u64) -> Prepared {
        Prepared {
            shared_name: name_of(&self.definition, reading),
            reading,
            is_of_moment: self.is_of_moment,
            definition: self.definition.clone(),
            statement: self.statement.clone(),
        }
    }
}

fn name_of(definition: &[u8], reading: u64) -> Box<str> {
    format!("{SHARED}{:032x}", xxh3_128_with_seed(definition, reading)).into()
}

/// True if a string in it may be a time that is told by a word. (`now()` is no string.)
fn names_a_moment(text: &[u8]) -> bool {
    const WORDS: [&[u8]; 4] = [b"now", b"today", b"tomorrow", b"yesterday"];
    let is_moment = |word: &[u8]| WORDS.iter().any(|one| word.eq_ignore_ascii_case(one));
    let strings = text.split(|&byte| byte == b'\'').skip(1).step_by(2);
    let mut words = strings.flat_map(|string| string.split(|byte| !byte.is_ascii_alphabetic()));
    words.any(is_moment)
}

impl Names {
    /// The statement of this name, for a server that reads texts so.
    pub fn statement(&mut self, name: &str, reading: u64) -> Option<Arc<Prepared>> {
        let prepared = self.statements.get_mut(name)?;
        if prepared.reading != reading {
            *prepared = Arc::new(prepared.where_read(reading));
        }
        Some(prepared.clone())
    }

    /// Definition of the statement of this name.
    pub fn definition(&self, name: &str) -> Option<&Bytes> {
        let prepared = self.statements.get(name)?;
        Some(&prepared.definition)
    }

    /// All statements, by their names.
    pub fn statements(&self) -> impl Iterator<Item = (&str, &Arc<Prepared>)> {
        let all = self.statements.iter();
        all.map(|(name, prepared)| (&**name, prepared))
    }

    /// What executing the portal of this name does.
    pub fn portal(&self, name: &str) -> Option<&Arc<Statement>> {
        self.portals.get(name)
    }

    /// The name means this from now on, or nothing.
    pub fn define(&mut self, name: &str, prepared: Option<Arc<Prepared>>) {
        let old = match prepared {
            Some(prepared) => self.statements.insert(name.into(), prepared),
            None => self.statements.remove(name),
        };
        self.before.entry(name.into()).or_insert(old);
    }

    /// A portal was bound.
    pub fn bind(&mut self, portal: &str, statement: Arc<Statement>) {
        match self.portals.get_mut(portal) {
            Some(bound) => *bound = statement,
            None => {
                self.portals.insert(portal.into(), statement);
            }
        }
    }

    /// Forgets all statements.
    pub fn clear(&mut self) {
        let names: Vec<_> = self.statements.keys().cloned().collect();
        names.iter().for_each(|name| self.define(name, None));
    }

    /// The transaction is over: its portals are gone.
    pub fn end(&mut self) {
        self.portals.clear();
        self.before.clear();
    }

    /// Goes back to what the names meant when the transaction began, to run it once more.
    pub fn rewind(&mut self) {
        for (name, old) in std::mem::take(&mut self.before) {
            match old {
                Some(old) => self.statements.insert(name, old),
                None => self.statements.remove(&name),
            };
        }
        self.portals.clear();
    }
}

impl Session {
    /// The server in hand cannot run one of the statements that the batch names any more. Its client prepares it again; but
    /// here others prepare it under the same name, and the server must do so, too.
    pub(super) fn note_stale(&mut self, cx: &Context<'_>) {
        let is_shared = self.is_shared(cx);
        if let (Some(batch), Some(link), true) = (&mut self.batch, &self.link, is_shared) {
            let names = batch.named.iter().map(|named| &named.shared_name);
            let there = names.filter(|name| link.prepared.contains(name));
            batch.stale.extend(there.cloned());
        }
    }

    /// Closes statements that are too many for a server that sessions share, between two transactions; the `Sync` that was
    /// written behind them has no slot yet. Whether there were any.
    pub(super) fn close_surplus(&mut self, cx: &Context<'_>, out: &mut Out) -> bool {
        let may_close = self.status == b'I' && self.is_shared(cx);
        let Some(link) = self.link.as_mut().filter(|_| may_close) else {
            return false;
        };
        let mut surplus = link.prepared.surplus(cx.rules.max_prepared);
        surplus.extend(link.prepared.lent());
        for name in &surplus {
            link.prepared.remove(name);
            self.replies.push(SentMessage::Close, ReplyOwner::Nobody);
            put_close(name, out);
        }
        if !surplus.is_empty() {
            frame::put(&mut out.server, b'S', &[]);
        }
        !surplus.is_empty()
    }

    /// A statement is on the server in hand since `batch`. If it may be another one there for other sessions, or later, it goes
    /// with the batch.
    pub(super) fn note_prepared(&self, batch: &mut RequestBatch, prepared: &Prepared) {
        if let Some(link) = &self.link
            && (prepared.is_of_moment || batch.may_have_set)
        {
            let name = prepared.name_where(link.reported.reading());
            batch.stale.push(name.into());
        }
    }

    /// Closes the statements that the server cannot run any more, or must not keep, before the batch is over. Whether there are any.
    pub(super) fn closes_stale(&mut self, out: &mut Out) -> bool {
        let (Some(batch), Some(link)) = (&mut self.batch, &mut self.link) else {
            return false;
        };
        let stale = std::mem::take(&mut batch.stale);
        for name in &stale {
            link.prepared.remove(name);
            put_close(name, out);
            self.replies.push(SentMessage::Close, ReplyOwner::Nobody);
        }
        if !stale.is_empty() {
            frame::put(&mut out.server, b'S', &[]);
            self.replies.push(SentMessage::Sync, ReplyOwner::Client);
        }
        !stale.is_empty()
    }
}

/// `Parse` under another name.
pub(super) fn put_parse(name: &str, definition: &[u8], out: &mut Out) {
    let pieces = [name.as_bytes(), b"\0", definition];
    frame::put(&mut out.server, b'P', &pieces);
}

/// `Close` of a statement.
pub(super) fn put_close(name: &str, out: &mut Out) {
    frame::put(&mut out.server, b'C', &[b"S", name.as_bytes(), b"\0"]);
}

#[cfg(test)]
mod tests {
    use super::*;

    fn prepared(text: &str) -> Arc<Prepared> {
        let body = [b"s\0", text.as_bytes(), b"\0\0\0"].concat();
        let statements = Statements::default();
        Arc::new(Prepared::read(&body, &statements, 0).expect("valid").1)
    }

    #[test]
    fn the_same_statement_has_the_same_name_everywhere() {
        assert_eq!(
            prepared("SELECT 1").shared_name,
            prepared("SELECT 1").shared_name
        );
        assert_ne!(
            prepared("SELECT 1").shared_name,
            prepared("SELECT 2").shared_name
        );
    }

    /// PostgreSQL makes a value of a literal when it prepares a statement.
    #[test]
    fn a_literal_is_another_one_where_it_is_read_otherwise() {
        let one = prepared("SELECT '2024-06-01'::timestamptz");
        assert_eq!(one.name_where(0), *one.shared_name);
        assert_ne!(one.name_where(1), *one.shared_name);
        let mut names = Names::default();
        names.define("a", Some(one.clone()));
        let renamed = names.statement("a", 1).expect("it is there");
        assert_eq!(*renamed.shared_name, one.name_where(1));
        for text in ["SELECT 'Today'::date", "SELECT 'it''s now '"] {
            assert!(prepared(text).is_of_moment, "{text}");
        }
        for text in ["SELECT now() - '1 day'::interval", "SELECT 'unknown'"] {
            assert!(!prepared(text).is_of_moment, "{text}");
        }
    }

    #[test]
    fn names_go_back_to_where_the_transaction_began() {
        let mut names = Names::default();
        let (one, two) = (prepared("SELECT 1"), prepared("SELECT 2"));
        names.define("a", Some(one.clone()));
        names.end();
        names.define("a", Some(two.clone()));
        names.define("b", Some(two));
        names.define("a", None);
        names.rewind();
        assert!(
            names
                .statement("a", 0)
                .is_some_and(|now| Arc::ptr_eq(&now, &one))
        );
        assert!(names.statement("b", 0).is_none());
    }

    #[test]
    fn a_parse_without_an_end_is_refused() {
        assert!(Prepared::read(b"name", &Statements::default(), 0).is_err());
        assert!(Prepared::read(b"name\0text", &Statements::default(), 0).is_err());
    }
}
