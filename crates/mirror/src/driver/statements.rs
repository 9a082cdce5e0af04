//! The statements that a session of the member has been given under a name, so that a text that comes again is read there once.
//!
//! Many texts come only once, because values were put into them: a text has a name from the second time on. Invariant: a name is used for one text only, and never again once it is not certain that the member has it.

use std::collections::{HashMap, HashSet, VecDeque};
use std::hash::{BuildHasher, RandomState};

use bytes::BytesMut;
use postgres_protocol::message::frontend;

use super::member::{PORTAL, put_bind};

/// So many are kept.
const MOST: usize = 256;
/// Of so many it is known that they came once.
const MOST_ONCE: usize = 4096;
/// A longer text is not worth its memory.
const MOST_BYTES: usize = 8 << 10;

type Key = (String, Vec<u32>);

/// A value that is bound to a parameter.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Parameter {
    /// Its type; 0 if the server shall tell.
    pub type_oid: u32,
    /// Its text; `None` if it is null.
    pub value: Option<Vec<u8>>,
}

/// See the module.
#[derive(Debug, Default)]
pub struct Statements {
    /// No text has a name.
    pub parses_always: bool,
    names: HashMap<Key, u64>,
    /// Hashes of texts that came once.
    once: HashSet<u64>,
    /// Those of them whose answers were not seen yet.
    unseen: Vec<Key>,
    /// Names that the member is to forget.
    stale: VecDeque<u64>,
    next: u64,
    hasher: RandomState,
}

fn name(number: u64) -> String {
    format!("understudy_{number}")
}

impl Statements {
    /// Puts a statement's execution up to `Sync`; it is parsed if the member has not seen it.
    pub fn put(
        &mut self,
        out: &mut BytesMut,
        text: &str,
        parameters: &[Parameter],
    ) -> std::io::Result<()> {
        self.put_open(out, text, parameters)?;
        frontend::sync(out);
        Ok(())
    }

    /// The same without `Sync`; how many answers come before those of its execution.
    pub fn put_open(
        &mut self,
        out: &mut BytesMut,
        text: &str,
        parameters: &[Parameter],
    ) -> std::io::Result<usize> {
        if self.parses_always {
            return super::member::put_parsed(out, text, parameters);
        }
        let types = parameters.iter().map(|parameter| parameter.type_oid);
        let key = (text.to_owned(), types.clone().collect::<Vec<u32>>());
        if !self.names.contains_key(&key) && (text.len() > MOST_BYTES || self.is_first(&key)) {
            return super::member::put_parsed(out, text, parameters);
        }
        // Closed, and bound.
        let mut answers = 2 + self.stale.len();
        for number in self.stale.drain(..) {
            frontend::close(b'S', &name(number), out)?;
        }
        // It outlives an execution within a transaction.
        frontend::close(b'P', PORTAL, out)?;
        let number = match self.names.get(&key) {
            Some(number) => *number,
            None => {
                if self.names.len() >= MOST {
                    self.drop_all();
                }
                self.next += 1;
                frontend::parse(&name(self.next), text, types, out)?;
                answers += 1;
                self.names.insert(key.clone(), self.next);
                self.unseen.push(key);
                self.next
            }
        };
        put_bind(out, &name(number), parameters)?;
        Ok(answers)
    }

    /// True if a text comes for the first time, as far as is known.
    fn is_first(&mut self, key: &Key) -> bool {
        if self.once.len() >= MOST_ONCE {
            self.once.clear();
        }
        self.once.insert(self.hasher.hash_one(key))
    }

    /// What was put has been answered without an error.
    pub fn seen(&mut self) {
        self.unseen.clear();
    }

    /// Something that was put has failed: whether it was parsed is not certain.
    pub fn failed(&mut self) {
        for key in self.unseen.drain(..) {
            self.stale.extend(self.names.remove(&key));
        }
    }

    /// The member is to forget all: they may mean something else now.
    pub fn drop_all(&mut self) {
        self.unseen.clear();
        self.stale
            .extend(self.names.drain().map(|(_, number)| number));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn put(statements: &mut Statements, text: &str) -> String {
        let mut out = BytesMut::new();
        statements.put(&mut out, text, &[]).expect("it fits");
        let mut kinds = String::new();
        let mut rest = &out[..];
        while let [kind, a, b, c, d, ..] = *rest {
            kinds.push(char::from(kind));
            rest = &rest[1 + u32::from_be_bytes([a, b, c, d]) as usize..];
        }
        kinds
    }

    #[test]
    fn a_text_that_comes_again_is_parsed_once_more_and_never_again() {
        let mut statements = Statements::default();
        // Closed, parsed, bound, executed: as what has no name of its own.
        assert_eq!(put(&mut statements, "SELECT 1"), "CCPBES");
        assert_eq!(put(&mut statements, "SELECT 1"), "CPBES");
        assert_eq!(put(&mut statements, "SELECT 1"), "CBES");
        assert_eq!(put(&mut statements, "SELECT 2"), "CCPBES");
    }

    /// It was bound again under a name that the member did not have.
    #[test]
    fn what_failed_is_parsed_again_under_another_name() {
        let mut statements = Statements::default();
        for _ in 0..2 {
            put(&mut statements, "SELECT 1");
        }
        statements.seen();
        for _ in 0..2 {
            put(&mut statements, "SELECT x");
        }
        statements.failed();
        // The first name is closed, and the second one with it.
        assert_eq!(put(&mut statements, "SELECT 1"), "CCBES");
        assert_eq!(put(&mut statements, "SELECT x"), "CPBES");
        assert_eq!(statements.next, 3);
    }

    #[test]
    fn no_more_are_kept_than_so_many() {
        let mut statements = Statements::default();
        for number in 0..=MOST {
            put(&mut statements, &format!("SELECT {number}"));
            put(&mut statements, &format!("SELECT {number}"));
        }
        assert_eq!(statements.names.len(), 1);
    }
}
