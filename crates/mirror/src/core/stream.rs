//! Transactions of a stream of logical replication, and how much of it may be confirmed.
//!
//! ```text
//!   messages ──Assembly──▶ pieces of transactions ──▶ logged, or compared ──Confirmed──▶ the position that the server is told
//! ```
//!
//! Invariant: the server is told a position only once everything before it is dealt with: it lets commits go on then, and forgets
//! the past.

use std::collections::{HashMap, VecDeque};

use super::pgoutput::Message;
use super::record::Number;
use super::rows::{Change, Definition, Header, Lsn, Origin, Relation, Row, Rows, Value};

/// The schema of the manager's own tables, whose rows are its own business.
pub const OWN_SCHEMA: &str = "understudy_mirror";
/// The table in which an applier writes which transaction of the log it commits.
const APPLIED: &str = "applied";
/// The table in which event triggers write what was defined.
const DEFINITIONS: &str = "definitions";

/// A transaction, or a piece of a long one.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Captured {
    /// The commit and the piece.
    pub header: Header,
    /// Changed rows, without the manager's own.
    pub rows: Rows,
    /// The numbers that it has written down as executed.
    pub applied: Vec<Number>,
}

/// Something came that cannot follow on what came before it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("the stream of changes is out of order: {0}")]
pub struct Disorder(&'static str);

/// A transaction of which not all has come.
#[derive(Debug, Default)]
struct Open {
    begins: Lsn,
    xid: u32,
    piece: u32,
    rows: Rows,
    /// The places of tables, by their number at the server.
    places: HashMap<u32, u32>,
    applied: Vec<Number>,
    bytes: usize,
}

/// Puts transactions together.
#[derive(Debug)]
pub struct Assembly {
    system: u64,
    timeline: u32,
    piece_bytes: usize,
    relations: HashMap<u32, Relation>,
    open: Option<Open>,
}

impl Assembly {
    /// Of this server; pieces are about as long as this.
    pub fn new(system: u64, timeline: u32, piece_bytes: usize) -> Assembly {
        Assembly {
            system,
            timeline,
            piece_bytes,
            relations: HashMap::new(),
            open: None,
        }
    }

    /// Pieces are about as long as this from now on.
    pub fn cut(&mut self, piece_bytes: usize) {
        self.piece_bytes = piece_bytes;
    }

    /// True if a transaction has begun to come.
    pub fn is_within(&self) -> bool {
        self.open.is_some()
    }

    /// Takes a message.
    ///
    /// # Errors
    /// If it cannot follow on those before it.
    pub fn take(&mut self, message: Message) -> Result<Option<Captured>, Disorder> {
        match message {
            Message::Other => Ok(None),
            Message::Relation(oid, relation) => {
                if let Some(open) = &mut self.open {
                    // It was changed within the transaction.
                    open.places.remove(&oid);
                }
                self.relations.insert(oid, relation);
                Ok(None)
            }
            Message::Begin { at, xid } => {
                let open = Open {
                    begins: at,
                    xid,
                    ..Open::default()
                };
                match self.open.replace(open) {
                    None => Ok(None),
                    Some(_) => Err(Disorder("a transaction begins within another one")),
                }
            }
            Message::Commit { end } => {
                let open = self.open.take();
                let open = open.ok_or(Disorder("a commit without a beginning"))?;
                Ok(Some(self.captured(open, end, true)))
            }
            Message::Insert(oid, new) => self.insert(oid, new),
            Message::Update(oid, old, new) => match self.place(oid)? {
                Some(at) => self.add(Change::Update(at, old, new)),
                None => Ok(None),
            },
            Message::Delete(oid, old) => match self.place(oid)? {
                Some(at) => self.add(Change::Delete(at, old)),
                None => Ok(None),
            },
            Message::Truncate {
                relations,
                restarts,
            } => {
                let places = relations.into_iter().map(|oid| self.place(oid));
                let places = places.collect::<Result<Vec<_>, _>>()?;
                let relations: Vec<u32> = places.into_iter().flatten().collect();
                match relations.is_empty() {
                    true => Ok(None),
                    false => self.add(Change::Truncate {
                        relations,
                        restarts,
                    }),
                }
            }
        }
    }

    fn insert(&mut self, oid: u32, new: Row) -> Result<Option<Captured>, Disorder> {
        if let Some(at) = self.place(oid)? {
            return self.add(Change::Insert(at, new));
        }
        let name = self
            .relations
            .get(&oid)
            .map(|relation| relation.name.as_str());
        match name {
            Some(APPLIED) => {
                let number = new
                    .first()
                    .and_then(text)
                    .and_then(|text| text.parse().ok());
                let number = number.ok_or(Disorder("a transaction's number that is none"))?;
                self.open()?.applied.push(Number(number));
                Ok(None)
            }
            Some(DEFINITIONS) => {
                let said = definition(&new).ok_or(Disorder("a definition that is none"))?;
                self.add(Change::Define(said))
            }
            _ => Ok(None),
        }
    }

    fn open(&mut self) -> Result<&mut Open, Disorder> {
        self.open
            .as_mut()
            .ok_or(Disorder("a row without a transaction"))
    }

    /// The place of a table among those of the rows; nothing if it is the manager's own.
    fn place(&mut self, oid: u32) -> Result<Option<u32>, Disorder> {
        let relation = self.relations.get(&oid);
        let relation = relation.ok_or(Disorder("a row of a table that was not named"))?;
        if relation.schema == OWN_SCHEMA {
            return Ok(None);
        }
        let open = self
            .open
            .as_mut()
            .ok_or(Disorder("a row without a transaction"))?;
        if let Some(at) = open.places.get(&oid) {
            return Ok(Some(*at));
        }
        let at = u32::try_from(open.rows.relations.len()).unwrap_or(u32::MAX);
        open.rows.relations.push(relation.clone());
        open.places.insert(oid, at);
        Ok(Some(at))
    }

    fn add(&mut self, change: Change) -> Result<Option<Captured>, Disorder> {
        let most = self.piece_bytes;
        let open = self.open()?;
        open.bytes += change.bytes();
        open.rows.changes.push(change);
        if open.bytes < most {
            return Ok(None);
        }
        let next = Open {
            begins: open.begins,
            xid: open.xid,
            piece: open.piece + 1,
            ..Open::default()
        };
        let full = std::mem::replace(open, next);
        let begins = full.begins;
        Ok(Some(self.captured(full, begins, false)))
    }

    fn captured(&self, open: Open, end: Lsn, is_last: bool) -> Captured {
        let origin = Origin {
            system: self.system,
            timeline: self.timeline,
            xid: open.xid,
            end,
        };
        Captured {
            header: Header {
                origin,
                piece: open.piece,
                is_last,
            },
            rows: open.rows,
            applied: open.applied,
        }
    }
}

fn text(value: &Value) -> Option<&str> {
    match value {
        Value::Text(text) => std::str::from_utf8(text).ok(),
        _ => None,
    }
}

fn definition(row: &Row) -> Option<Definition> {
    let mut columns = row.iter().map(text);
    let mut next = || columns.next().flatten().map(ToOwned::to_owned);
    Some(Definition {
        tag: next()?,
        text: next()?,
        login: next()?,
        role: next()?,
        settings: next()?,
        result: next()?,
    })
}

/// Why a transaction of the stream is not dealt with.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Awaits {
    /// The log has to have this record.
    Record(Number),
    /// Somebody has to say that the log has it.
    Proof,
}

/// The part of the stream that is dealt with.
#[derive(Debug, Default)]
pub struct Confirmed {
    waiting: VecDeque<(Lsn, Option<Awaits>)>,
    reached: Lsn,
}

impl Confirmed {
    /// A transaction that ends there has come, and waits for this, if for anything.
    pub fn push(&mut self, end: Lsn, awaits: Option<Awaits>) {
        self.waiting.push_back((end, awaits));
        self.pop();
    }

    /// The server has sent everything up to here.
    pub fn reach(&mut self, end: Lsn) {
        if self.waiting.is_empty() {
            self.reached = self.reached.max(end);
        }
    }

    /// The log has a record.
    pub fn logged(&mut self, number: Number) {
        let is_it = |awaits: &Option<Awaits>| *awaits == Some(Awaits::Record(number));
        self.settle(|_, awaits| is_it(awaits));
    }

    /// The log has all transactions of this server up to here.
    pub fn proved(&mut self, up_to: Lsn) {
        self.settle(|end, awaits| end <= up_to && *awaits == Some(Awaits::Proof));
    }

    /// The first transaction of which nobody has said that the log has it.
    pub fn unproved(&self) -> Option<Lsn> {
        let is_it = |(_, awaits): &&(Lsn, Option<Awaits>)| *awaits == Some(Awaits::Proof);
        self.waiting.iter().find(is_it).map(|(end, _)| *end)
    }

    /// Up to where everything is dealt with.
    pub fn position(&self) -> Lsn {
        self.reached
    }

    fn settle(&mut self, is_settled: impl Fn(Lsn, &Option<Awaits>) -> bool) {
        for (end, awaits) in &mut self.waiting {
            if is_settled(*end, awaits) {
                *awaits = None;
            }
        }
        self.pop();
    }

    fn pop(&mut self) {
        while let Some((end, None)) = self.waiting.front() {
            self.reached = self.reached.max(*end);
            self.waiting.pop_front();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn named(schema: &str, name: &str) -> Relation {
        Relation {
            schema: schema.to_owned(),
            name: name.to_owned(),
            is_full: false,
            is_by_key: false,
            columns: vec![("id".to_owned(), true)],
        }
    }

    fn row(values: &[&str]) -> Row {
        values
            .iter()
            .map(|value| Value::Text(value.as_bytes().to_vec()))
            .collect()
    }

    fn assembly(piece_bytes: usize) -> Assembly {
        let mut assembly = Assembly::new(7, 1, piece_bytes);
        for (oid, schema, name) in [
            (1, "public", "t"),
            (2, OWN_SCHEMA, APPLIED),
            (3, OWN_SCHEMA, DEFINITIONS),
            (4, OWN_SCHEMA, "state"),
        ] {
            let named = Message::Relation(oid, named(schema, name));
            assert_eq!(assembly.take(named), Ok(None));
        }
        assembly
    }

    /// Transactions that messages become.
    fn take(assembly: &mut Assembly, messages: Vec<Message>) -> Vec<Captured> {
        let taken = messages.into_iter().map(|message| assembly.take(message));
        taken.filter_map(|taken| taken.expect("in order")).collect()
    }

    fn begin(xid: u32) -> Message {
        Message::Begin { at: Lsn(80), xid }
    }

    #[test]
    fn a_transaction_is_put_together_without_what_is_the_managers() {
        let mut assembly = assembly(usize::MAX);
        let captured = take(
            &mut assembly,
            vec![
                begin(9),
                Message::Insert(1, row(&["1"])),
                Message::Insert(2, row(&["12", "1-1"])),
                Message::Insert(
                    3,
                    row(&["CREATE TABLE", "CREATE TABLE u ()", "app", "app", "{}", ""]),
                ),
                Message::Update(4, None, row(&["t"])),
                Message::Truncate {
                    relations: vec![4, 1],
                    restarts: false,
                },
                Message::Commit { end: Lsn(90) },
            ],
        );
        let [captured] = &captured[..] else {
            panic!("one: {captured:?}");
        };
        let origin = Origin {
            system: 7,
            timeline: 1,
            xid: 9,
            end: Lsn(90),
        };
        assert_eq!(
            captured.header,
            Header {
                origin,
                piece: 0,
                is_last: true
            }
        );
        assert_eq!(captured.applied, [Number(12)]);
        assert_eq!(captured.rows.relations, [named("public", "t")]);
        assert!(matches!(
            &captured.rows.changes[..],
            [Change::Insert(0, _), Change::Define(_), Change::Truncate { relations, .. }] if relations == &[0]
        ));
        assert!(!assembly.is_within());
    }

    #[test]
    fn a_long_transaction_comes_in_pieces() {
        let mut assembly = assembly(30);
        let mut messages = vec![begin(9)];
        messages.extend((0..5).map(|_| Message::Insert(1, row(&["1234567890"]))));
        messages.push(Message::Commit { end: Lsn(90) });
        let captured = take(&mut assembly, messages);
        let headers: Vec<(u32, bool)> = captured
            .iter()
            .map(|one| (one.header.piece, one.header.is_last))
            .collect();
        assert_eq!(headers, [(0, false), (1, false), (2, true)]);
        let rows: usize = captured.iter().map(|one| one.rows.changes.len()).sum();
        assert_eq!(rows, 5);
        assert!(captured.iter().all(|one| one.rows.relations.len() == 1));
    }

    #[test]
    fn what_is_out_of_order_is_told() {
        for messages in [
            vec![begin(1), begin(2)],
            vec![Message::Commit { end: Lsn(1) }],
            vec![Message::Insert(1, row(&["1"]))],
            vec![begin(1), Message::Insert(77, row(&["1"]))],
            vec![begin(1), Message::Insert(2, row(&["x"]))],
            vec![begin(1), Message::Insert(3, row(&["x"]))],
        ] {
            let mut assembly = assembly(usize::MAX);
            let last = messages
                .into_iter()
                .map(|message| assembly.take(message))
                .last();
            assert!(matches!(last, Some(Err(Disorder(_)))), "{last:?}");
        }
    }

    #[test]
    fn nothing_is_confirmed_before_what_comes_before_it() {
        let mut confirmed = Confirmed::default();
        confirmed.reach(Lsn(10));
        assert_eq!(confirmed.position(), Lsn(10));
        confirmed.push(Lsn(20), Some(Awaits::Record(Number(1))));
        confirmed.push(Lsn(30), Some(Awaits::Record(Number(2))));
        confirmed.push(Lsn(40), None);
        // The server says that it has sent more: that is not dealt with.
        confirmed.reach(Lsn(50));
        confirmed.logged(Number(2));
        assert_eq!(confirmed.position(), Lsn(10));
        confirmed.logged(Number(1));
        assert_eq!(confirmed.position(), Lsn(40));
        confirmed.reach(Lsn(50));
        assert_eq!(confirmed.position(), Lsn(50));
        confirmed.push(Lsn(60), Some(Awaits::Proof));
        confirmed.push(Lsn(70), Some(Awaits::Proof));
        assert_eq!(confirmed.unproved(), Some(Lsn(60)));
        confirmed.proved(Lsn(65));
        assert_eq!(
            (confirmed.position(), confirmed.unproved()),
            (Lsn(60), Some(Lsn(70)))
        );
    }
}
