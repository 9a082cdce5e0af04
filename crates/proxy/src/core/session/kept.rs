//! Rows that a transaction told, and what becomes of them when it is run once more (R15).
//!
//! Owns which rows are kept, and how a message is written that makes them again ([`kept`]). Invariant: a sequence from which
//! the client got a value is past that value, and a session whose `currval` would be another one than in the first run has
//! none: what uses it fails, and with it the second run.

use bytes::{Bytes, BytesMut};

use super::super::sql::Part;
use super::super::sql::kept::{self, Again, Column, Place, Row};
use super::slots::{Ask, To};
use super::unit::{Noted, Unit};
use super::{Out, Phase, Session};
use protocol::frame;

/// Rows of one unit that are longer in all are not kept.
const LIMIT_BYTES: usize = 64 << 10;
/// What `currval` and `lastval` go by is gone.
const FORGET: &str = "DISCARD SEQUENCES";

/// Rows that the statements of a unit told, and the columns that they have.
#[derive(Debug, Default, Clone)]
pub struct Rows {
    /// Each with the number of its statement in the unit.
    rows: Vec<(usize, Bytes)>,
    columns: Vec<(usize, Bytes)>,
    bytes: usize,
    is_too_long: bool,
}

impl Rows {
    /// A statement told this: a row, or its columns.
    fn note(&mut self, statement: usize, tag: u8, frame: &[u8]) {
        self.bytes += frame.len();
        self.is_too_long |= self.bytes > LIMIT_BYTES;
        if self.is_too_long {
            *self = Rows {
                is_too_long: true,
                ..Rows::default()
            };
            return;
        }
        let kept = (statement, Bytes::copy_from_slice(frame));
        match tag {
            b'D' => self.rows.push(kept),
            _ => self.columns.push(kept),
        }
    }

    /// How long they are.
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    fn rows_of(&self, statement: usize) -> Vec<Row> {
        let rows = self.rows.iter().filter(|(of, _)| *of == statement);
        let copied = |value: Option<&[u8]>| value.map(Bytes::copy_from_slice);
        rows.map(|(_, frame)| frame::columns(frame).map(copied).collect())
            .collect()
    }

    fn columns_of(&self, statement: usize) -> Option<Vec<Column>> {
        let (_, frame) = self.columns.iter().find(|(of, _)| *of == statement)?;
        columns(frame::body(frame))
    }

    /// A statement with the values that it told.
    fn again(&self, statement: usize, text: &str, place: Place) -> Option<Again> {
        let rows = self.rows_of(statement);
        if rows.is_empty() {
            return None;
        }
        kept::again(text, &rows, self.columns_of(statement).as_deref(), place)
    }
}

/// The columns of a `RowDescription`.
fn columns(body: &[u8]) -> Option<Vec<Column>> {
    let (count, mut rest) = body.split_first_chunk::<2>()?;
    let mut columns = Vec::new();
    for _ in 0..u16::from_be_bytes(*count) {
        let (name, about) = frame::name(rest)?;
        let (about, behind) = about.split_at_checked(18)?;
        columns.push(Column {
            name: name.to_owned(),
            type_oid: u32::from_be_bytes(about.get(6..10)?.try_into().ok()?),
        });
        rest = behind;
    }
    Some(columns)
}

fn part(unit: &Unit, at: usize) -> Option<&Part> {
    let mut parts = unit.facts.statements.iter().flat_map(|all| &all.parts);
    parts.nth(at)
}

impl Session {
    /// An answer of the server's for the client: what has to be kept of it is.
    pub(super) fn keep_rows(&mut self, tag: u8, frame: &[u8]) {
        let Some(unit) = &mut self.unit else {
            return;
        };
        let at = unit.complete.len();
        let is_in_block = unit.began_in == b'T' || unit.facts.begins.is_some();
        if matches!(tag, b'D' | b'T')
            && is_in_block
            && self.phase == Phase::Running
            && part(unit, at).is_some_and(|part| part.keeps_values)
        {
            unit.rows.note(at, tag, frame);
        }
    }

    /// The text of a query that is run once more, with the values that it told.
    pub(super) fn queries_again(&mut self, unit: &Unit, noted: &Noted, out: &mut Out) -> bool {
        let is_one = noted
            .statement
            .as_ref()
            .is_some_and(|statement| statement.only().is_some_and(|part| part.keeps_values));
        let body = frame::body(&unit.bytes[unit.written..noted.end]);
        let text = frame::name(body).map(|(text, _)| text);
        let again = text
            .filter(|_| is_one && self.phase == Phase::Replaying)
            .and_then(|text| unit.rows.again(0, text, Place::Text));
        let Some(again) = again else {
            return false;
        };
        let moves = again.moves.unwrap_or_default();
        let first = format!("{moves};{FORGET}");
        for (text, to) in [
            (first.as_str(), To::Nobody),
            (again.text.as_str(), To::Client),
        ] {
            frame::put(&mut out.server, b'Q', &[text.as_bytes(), b"\0"]);
            self.slots.push(Ask::Query, to);
        }
        if let Some(link) = &mut self.link {
            link.unnamed = None;
        }
        true
    }

    /// The same for a statement that is bound: it is prepared with parameters for the values behind the client's own. What is
    /// bound is the next that the unit executes.
    pub(super) fn binds_again(&mut self, unit: &Unit, noted: &Noted, out: &mut Out) -> bool {
        let Some(prepared) = noted.prepared.as_deref() else {
            return false;
        };
        let frame = &unit.bytes[unit.written..noted.end];
        let at = unit.written_parts;
        let is_next = part(unit, at)
            .is_some_and(|part| part.keeps_values && prepared.statement.only() == Some(part));
        if !is_next || self.phase != Phase::Replaying {
            return false;
        }
        let written = Binding::read(frame::body(frame)).and_then(|binding| {
            let (text, types) = frame::name(&prepared.definition)?;
            let place = Place::Parameters(binding.parameters);
            let again = unit.rows.again(at, text, place)?;
            let bind = binding.with(&again.parameters);
            Some((again, Bytes::copy_from_slice(types), bind))
        });
        let Some((again, types, bind)) = written else {
            return false;
        };
        if let Some(moves) = &again.moves {
            self.execute_for_us(moves, out);
        }
        self.execute_for_us(FORGET, out);
        let pieces = [b"\0".as_slice(), again.text.as_bytes(), b"\0", &types];
        frame::put(&mut out.server, b'P', &pieces);
        self.slots.push(Ask::Parse(None), To::Nobody);
        frame::put(&mut out.server, b'B', &[&bind]);
        self.slots.push(Ask::Bind, To::Client);
        if let Some(link) = &mut self.link {
            link.unnamed = None;
        }
        true
    }

    /// A statement of our own among messages of the extended protocol; if it fails, so does what follows.
    fn execute_for_us(&mut self, text: &str, out: &mut Out) {
        frame::put(&mut out.server, b'P', &[b"\0", text.as_bytes(), b"\0\0\0"]);
        frame::put(&mut out.server, b'B', &[b"\0\0\0\0\0\0\0\0"]);
        frame::put(&mut out.server, b'E', &[b"\0\0\0\0\0"]);
        for ask in [Ask::Parse(None), Ask::Bind, Ask::Execute] {
            self.slots.push(ask, To::Nobody);
        }
    }
}

/// A `Bind`, taken apart.
struct Binding<'a> {
    portal: &'a [u8],
    /// The form of each parameter.
    formats: Vec<u16>,
    parameters: usize,
    values: &'a [u8],
    /// The forms of results, as they came.
    results: &'a [u8],
}

impl<'a> Binding<'a> {
    fn read(body: &'a [u8]) -> Option<Binding<'a>> {
        let (portal, rest) = frame::text(body)?;
        let (_, rest) = frame::text(rest)?;
        let (formats, rest) = numbers(rest)?;
        let (parameters, values) = number(rest)?;
        let mut results = values;
        for _ in 0..parameters {
            let (len, rest) = results.split_first_chunk::<4>()?;
            let len = usize::try_from(i32::from_be_bytes(*len)).unwrap_or(0);
            results = rest.get(len..)?;
        }
        let parameters = usize::from(parameters);
        let formats = match formats.as_slice() {
            [] => vec![0; parameters],
            [all] => vec![*all; parameters],
            _ => formats,
        };
        Some(Binding {
            portal,
            formats,
            parameters,
            values: &values[..values.len() - results.len()],
            results,
        })
    }

    /// The body of the same for the unnamed statement, with more parameters, each in the form in which its column was told.
    fn with(&self, more: &[(usize, Option<Bytes>)]) -> Vec<u8> {
        let results = numbers(self.results).map_or(Vec::new(), |(results, _)| results);
        let form = |column: usize| match results.as_slice() {
            [] => 0,
            [all] => *all,
            each => each.get(column).copied().unwrap_or(0),
        };
        let mut formats = self.formats.clone();
        formats.extend(more.iter().map(|(column, _)| form(*column)));
        let count = |len: usize| u16::try_from(len).unwrap_or(u16::MAX).to_be_bytes();
        let mut body = BytesMut::new();
        body.extend_from_slice(self.portal);
        body.extend_from_slice(b"\0\0");
        body.extend_from_slice(&count(formats.len()));
        for form in formats {
            body.extend_from_slice(&form.to_be_bytes());
        }
        body.extend_from_slice(&count(self.parameters + more.len()));
        body.extend_from_slice(self.values);
        for (_, value) in more {
            let len = value
                .as_ref()
                .map_or(-1, |value| i32::try_from(value.len()).unwrap_or(-1));
            body.extend_from_slice(&len.to_be_bytes());
            body.extend_from_slice(value.as_deref().unwrap_or_default());
        }
        body.extend_from_slice(self.results);
        body.to_vec()
    }
}

fn number(bytes: &[u8]) -> Option<(u16, &[u8])> {
    let (number, rest) = bytes.split_first_chunk::<2>()?;
    Some((u16::from_be_bytes(*number), rest))
}

fn numbers(bytes: &[u8]) -> Option<(Vec<u16>, &[u8])> {
    let (count, mut rest) = number(bytes)?;
    let mut numbers = Vec::new();
    for _ in 0..count {
        let (one, behind) = number(rest)?;
        numbers.push(one);
        rest = behind;
    }
    Some((numbers, rest))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_binding_gets_more_parameters_in_the_form_of_their_columns() {
        // Portal p, statement s; one form for both parameters (binary); results: text, binary.
        let body = b"p\0s\0\0\x01\0\x01\0\x02\0\0\0\x01x\xff\xff\xff\xff\0\x02\0\0\0\x01";
        let binding = Binding::read(body).expect("it is one");
        assert_eq!(binding.parameters, 2);
        let more = [(1, Some(Bytes::from_static(b"yz"))), (0, None)];
        let with = binding.with(&more);
        let expected = b"p\0\0\0\x04\0\x01\0\x01\0\x01\0\0\0\x04\0\0\0\x01x\xff\xff\xff\xff\0\0\0\x02yz\xff\xff\xff\xff\0\x02\0\0\0\x01";
        assert_eq!(with, expected);
        assert!(Binding::read(b"p\0s\0\0\x01\0\x01\0\x02\0\0\0\x09x").is_none());
    }

    #[test]
    fn columns_are_read_from_their_description() {
        let about = [
            0, 0, 0, 9, 0, 1, 0, 0, 0, 20, 0, 8, 255, 255, 255, 255, 0, 0,
        ];
        let body = [b"\0\x01id\0".as_slice(), &about].concat();
        let one = Column {
            name: "id".to_owned(),
            type_oid: 20,
        };
        assert_eq!(columns(&body), Some(vec![one]));
        assert_eq!(columns(&body[..9]), None);
    }
}
