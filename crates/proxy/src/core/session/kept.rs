//! Rows that a transaction told, and what becomes of them when it is run once more (R15).
//!
//! Owns which rows are kept, and how a message is written that makes them again ([`kept`]). Invariant: a sequence from which
//! the client got a value is past that value, and a session whose `currval` would be another one than in the first run has
//! none: what uses it fails, and with it the second run.

use bytes::{Bytes, BytesMut};

use super::super::sql::kept::{self, Again, Column, Place, Row};
use protocol::frame;

/// Rows of one batch that are longer in all are not kept.
const LIMIT_BYTES: usize = 64 << 10;

/// Rows that the statements of a batch told, and the columns that they have.
#[derive(Debug, Default, Clone)]
pub struct Rows {
    /// Each with the number of its statement in the batch.
    rows: Vec<(usize, Bytes)>,
    columns: Vec<(usize, Bytes)>,
    bytes: usize,
    is_too_long: bool,
}

impl Rows {
    /// A statement told this: a row, or its columns.
    pub fn note(&mut self, statement: usize, tag: u8, frame: &[u8]) {
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
    pub fn again(&self, statement: usize, text: &str, place: Place) -> Option<Again> {
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

/// A `Bind`, taken apart.
pub struct Binding<'a> {
    portal: &'a [u8],
    /// The form of each parameter.
    formats: Vec<u16>,
    /// How many parameters it has.
    pub parameters: usize,
    values: &'a [u8],
    /// The forms of results, as they came.
    results: &'a [u8],
}

impl<'a> Binding<'a> {
    /// Reads the body of one.
    pub fn read(body: &'a [u8]) -> Option<Binding<'a>> {
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
    pub fn with(&self, more: &[(Option<usize>, Option<Bytes>)]) -> Vec<u8> {
        let results = numbers(self.results).map_or(Vec::new(), |(results, _)| results);
        let form = |column: usize| match results.as_slice() {
            [] => 0,
            [all] => *all,
            each => each.get(column).copied().unwrap_or(0),
        };
        let mut formats = self.formats.clone();
        formats.extend(more.iter().map(|(column, _)| column.map_or(0, form)));
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
        let more = [(Some(1), Some(Bytes::from_static(b"yz"))), (None, None)];
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
