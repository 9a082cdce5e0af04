//! Messages of PostgreSQL's logical replication: the stream around them, and those of `pgoutput`, protocol version 1.
//!
//! Written here, because no library that is kept up does this part alone: those that there are bring a client of their own. The
//! format is that of PostgreSQL 10 to 18 ("Logical Replication Message Formats").
//!
//! Invariant: whatever bytes come, the answer is a message or [`Malformed`]; nothing is read behind their end.

use protocol::frame;

use super::rows::{Lsn, Relation, Row, Value};

/// Bytes that are no message.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("a message of logical replication cannot be read: {0}")]
pub struct Malformed(&'static str);

/// Contents of a `CopyData` of a replication connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Streamed<'a> {
    /// Something of a transaction.
    Data(&'a [u8]),
    /// The server has sent everything up to here, and may want an answer at once.
    Alive {
        /// The position.
        end: Lsn,
        /// It wants an answer.
        is_asked: bool,
    },
}

/// A message of `pgoutput`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Message {
    /// A transaction begins, whose commit begins there in the WAL.
    Begin {
        /// The position.
        at: Lsn,
        /// Its number.
        xid: u32,
    },
    /// It ends there.
    Commit {
        /// The position.
        end: Lsn,
    },
    /// A table, before its first row and after each change of it.
    Relation(u32, Relation),
    /// A new row.
    Insert(u32, Row),
    /// A changed row, with its old key or row.
    Update(u32, Option<Row>, Row),
    /// A row that is gone.
    Delete(u32, Row),
    /// Emptied tables.
    Truncate {
        /// The tables.
        relations: Vec<u32>,
        /// Their sequences begin again.
        restarts: bool,
    },
    /// Nothing that counts: a type, an origin.
    Other,
}

/// Reads what a `CopyData` has.
///
/// # Errors
/// If it is none of both.
pub fn streamed(body: &[u8]) -> Result<Streamed<'_>, Malformed> {
    let mut bytes = Bytes(body);
    match bytes.byte()? {
        b'w' => {
            bytes.take(24)?;
            Ok(Streamed::Data(bytes.0))
        }
        b'k' => {
            let end = Lsn(bytes.long()?);
            bytes.take(8)?;
            let is_asked = bytes.byte()? == 1;
            Ok(Streamed::Alive { end, is_asked })
        }
        _ => Err(Malformed("neither data nor a sign of life")),
    }
}

/// Message to the server: everything up to here is where it shall be.
pub fn confirmation(confirmed: Lsn) -> [u8; 34] {
    let mut out = [0; 34];
    out[0] = b'r';
    for at in [1, 9, 17] {
        out[at..at + 8].copy_from_slice(&confirmed.0.to_be_bytes());
    }
    out
}

/// Reads a message.
///
/// # Errors
/// If it is none.
pub fn read(bytes: &[u8]) -> Result<Message, Malformed> {
    let mut bytes = Bytes(bytes);
    let message = match bytes.byte()? {
        b'B' => {
            let at = Lsn(bytes.long()?);
            bytes.take(8)?;
            Message::Begin {
                at,
                xid: bytes.int()?,
            }
        }
        b'C' => {
            bytes.take(9)?;
            let end = Lsn(bytes.long()?);
            bytes.take(8)?;
            Message::Commit { end }
        }
        b'R' => {
            let oid = bytes.int()?;
            Message::Relation(oid, bytes.relation()?)
        }
        b'I' => {
            let oid = bytes.int()?;
            bytes.expect(b'N')?;
            Message::Insert(oid, bytes.row()?)
        }
        b'U' => {
            let oid = bytes.int()?;
            let old = match bytes.byte()? {
                b'K' | b'O' => {
                    let old = bytes.row()?;
                    bytes.expect(b'N')?;
                    Some(old)
                }
                b'N' => None,
                _ => return Err(Malformed("an update without a new row")),
            };
            Message::Update(oid, old, bytes.row()?)
        }
        b'D' => {
            let oid = bytes.int()?;
            match bytes.byte()? {
                b'K' | b'O' => Message::Delete(oid, bytes.row()?),
                _ => return Err(Malformed("a delete without an old row")),
            }
        }
        b'T' => {
            let count = bytes.int()?;
            let restarts = bytes.byte()? & 2 != 0;
            let relations = (0..count).map(|_| bytes.int()).collect::<Result<_, _>>()?;
            Message::Truncate {
                relations,
                restarts,
            }
        }
        b'Y' | b'O' | b'M' => return Ok(Message::Other),
        _ => return Err(Malformed("a kind that version 1 does not have")),
    };
    match bytes.0 {
        [] => Ok(message),
        _ => Err(Malformed("more than a message has")),
    }
}

/// Bytes that are read from the front.
struct Bytes<'a>(&'a [u8]);

const SHORT: Malformed = Malformed("it ends too early");

impl<'a> Bytes<'a> {
    fn take(&mut self, count: usize) -> Result<&'a [u8], Malformed> {
        let (taken, rest) = self.0.split_at_checked(count).ok_or(SHORT)?;
        self.0 = rest;
        Ok(taken)
    }

    fn array<const N: usize>(&mut self) -> Result<[u8; N], Malformed> {
        self.take(N)?.try_into().map_err(|_| SHORT)
    }

    fn byte(&mut self) -> Result<u8, Malformed> {
        Ok(self.array::<1>()?[0])
    }

    fn short(&mut self) -> Result<u16, Malformed> {
        Ok(u16::from_be_bytes(self.array()?))
    }

    fn int(&mut self) -> Result<u32, Malformed> {
        Ok(u32::from_be_bytes(self.array()?))
    }

    fn long(&mut self) -> Result<u64, Malformed> {
        Ok(u64::from_be_bytes(self.array()?))
    }

    fn expect(&mut self, kind: u8) -> Result<(), Malformed> {
        match self.byte()? == kind {
            true => Ok(()),
            false => Err(Malformed("another part than comes there")),
        }
    }

    fn name(&mut self) -> Result<String, Malformed> {
        let (text, rest) =
            frame::name(self.0).ok_or(Malformed("a name without an end, or not in UTF-8"))?;
        self.0 = rest;
        Ok(text.to_owned())
    }

    fn relation(&mut self) -> Result<Relation, Malformed> {
        let schema = match self.name()? {
            schema if schema.is_empty() => "pg_catalog".to_owned(),
            schema => schema,
        };
        let name = self.name()?;
        let is_full = self.byte()? == b'f';
        let count = self.short()?;
        let mut columns = Vec::new();
        for _ in 0..count {
            let is_key = self.byte()? & 1 != 0;
            columns.push((self.name()?, is_key));
            self.take(8)?;
        }
        Ok(Relation {
            schema,
            name,
            is_full,
            is_by_key: false,
            columns,
        })
    }

    fn row(&mut self) -> Result<Row, Malformed> {
        let count = self.short()?;
        let mut row = Vec::new();
        for _ in 0..count {
            row.push(match self.byte()? {
                b'n' => Value::Null,
                b'u' => Value::Unchanged,
                b't' => {
                    let len = usize::try_from(self.int()?).map_err(|_| SHORT)?;
                    Value::Text(self.take(len)?.to_vec())
                }
                _ => return Err(Malformed("a value of another kind than text")),
            });
        }
        Ok(row)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// One of each kind, as PostgreSQL 15 has sent them.
    fn all() -> Vec<(Vec<u8>, Message)> {
        let text = |text: &str| Value::Text(text.as_bytes().to_vec());
        let long = |value: u64| value.to_be_bytes().to_vec();
        let made = |parts: &[&[u8]]| parts.concat();
        let relation = Relation {
            schema: "public".to_owned(),
            name: "t".to_owned(),
            is_full: true,
            is_by_key: false,
            columns: vec![("id".to_owned(), true), ("v".to_owned(), false)],
        };
        vec![
            (
                made(&[b"B", &long(80), &long(1), &[0, 0, 3, 9]]),
                Message::Begin { at: Lsn(80), xid: 777 },
            ),
            (
                made(&[b"C\0", &long(80), &long(128), &long(1)]),
                Message::Commit { end: Lsn(128) },
            ),
            (
                b"R\0\0\x40\x01public\0t\0f\0\x02\x01id\0\0\0\0\x17\xff\xff\xff\xff\0v\0\0\0\0\x19\xff\xff\xff\xff".to_vec(),
                Message::Relation(0x4001, relation),
            ),
            (
                b"I\0\0\x40\x01N\0\x02t\0\0\0\x011n".to_vec(),
                Message::Insert(0x4001, vec![text("1"), Value::Null]),
            ),
            (
                b"U\0\0\x40\x01N\0\x02t\0\0\0\x011u".to_vec(),
                Message::Update(0x4001, None, vec![text("1"), Value::Unchanged]),
            ),
            (
                b"U\0\0\x40\x01K\0\x02t\0\0\0\x011nN\0\x02t\0\0\0\x012n".to_vec(),
                Message::Update(0x4001, Some(vec![text("1"), Value::Null]), vec![text("2"), Value::Null]),
            ),
            (
                b"D\0\0\x40\x01O\0\x01t\0\0\0\x011".to_vec(),
                Message::Delete(0x4001, vec![text("1")]),
            ),
            (
                b"T\0\0\0\x02\x03\0\0\x40\x01\0\0\x40\x02".to_vec(),
                Message::Truncate { relations: vec![0x4001, 0x4002], restarts: true },
            ),
        ]
    }

    #[test]
    fn each_kind_is_read() {
        for (bytes, message) in all() {
            assert_eq!(read(&bytes), Ok(message));
        }
        assert_eq!(read(b"Y\0\0\x40\x01public\0mood\0"), Ok(Message::Other));
        let data = [&b"w"[..], &[0; 24], b"C"].concat();
        assert_eq!(streamed(&data), Ok(Streamed::Data(b"C")));
        let alive = [&b"k"[..], &5u64.to_be_bytes(), &[0; 8], &[1]].concat();
        assert_eq!(
            streamed(&alive),
            Ok(Streamed::Alive {
                end: Lsn(5),
                is_asked: true
            })
        );
        let told = confirmation(Lsn(9));
        assert_eq!(
            (told[0], told[8], told[16], told[24], told[33]),
            (b'r', 9, 9, 9, 0)
        );
    }

    #[test]
    fn what_is_cut_off_or_has_too_much_is_refused() {
        for (bytes, _) in all() {
            for len in 0..bytes.len() {
                assert!(read(&bytes[..len]).is_err(), "{:?}", &bytes[..len]);
            }
            let more = [&bytes[..], b"x"].concat();
            assert!(read(&more).is_err());
        }
        for len in 0..25 {
            assert!(streamed(&[b'w'; 25][..len]).is_err());
        }
        assert!(streamed(b"x").is_err());
    }

    /// A length that promises more than there is costs nothing.
    #[test]
    fn what_is_damaged_never_panics() {
        for (bytes, _) in all() {
            for at in 0..bytes.len() {
                for with in [0, 1, 0x7f, 0x80, 0xff] {
                    let mut damaged = bytes.clone();
                    damaged[at] = with;
                    let _ = read(&damaged);
                }
            }
        }
        assert!(read(b"T\xff\xff\xff\xff\0").is_err());
        assert!(read(b"I\0\0\0\x01N\0\x01t\xff\xff\xff\xff").is_err());
    }
}
