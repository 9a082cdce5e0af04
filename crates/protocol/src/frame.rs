//! One message of PostgreSQL's protocol as a stretch of bytes.
//!
//! Most messages only pass: of those the proxy looks at the tag and the length and nothing else. Messages
//! that it makes itself are built here: those of a client by `postgres-protocol`, those of a server by
//! `pgwire`.

use bytes::{Buf, BufMut, Bytes, BytesMut};
use pgwire::messages::Message;
use pgwire::messages::data::{DataRow, FieldDescription, RowDescription};
use pgwire::messages::response::{CommandComplete, ErrorResponse};
use pgwire::messages::startup::ParameterStatus;

/// Tag and length.
pub const HEADER_BYTES: usize = 5;

/// A message that is invalid; the connection cannot go on.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Malformed {
    /// A length below its own size.
    #[error("invalid length {0} of a message")]
    Length(u32),
    /// A message above the limit.
    #[error("a message of {0} bytes, more than is allowed here")]
    TooLarge(usize),
    /// Its contents are not what its tag says.
    #[error("invalid contents of a message of type {:?}", char::from(*.0))]
    Body(u8),
}

/// The tag and the length, with tag, of the message that `input` begins with; `None` if it is too short to
/// tell.
pub fn head(input: &[u8]) -> Result<Option<(u8, usize)>, Malformed> {
    if input.len() < HEADER_BYTES {
        return Ok(None);
    }
    let length = u32::from_be_bytes([input[1], input[2], input[3], input[4]]);
    if length < 4 {
        return Err(Malformed::Length(length));
    }
    Ok(Some((input[0], length as usize + 1)))
}

/// A startup message cannot be longer, as in PostgreSQL.
const STARTUP_BYTES: usize = 10_000;

/// What a connection begins with instead of a protocol's version: a request to cancel a statement.
pub const CANCEL: u32 = (1234 << 16) | 5678;
/// A request for TLS.
pub const SSL: u32 = (1234 << 16) | 5679;
/// A request for encryption by GSSAPI.
pub const GSS: u32 = (1234 << 16) | 5680;

/// Takes a message without a tag off `input`, as a connection begins with, without its length, if all of it is there.
pub fn take_packet(input: &mut BytesMut) -> Result<Option<BytesMut>, Malformed> {
    let Some(length) = input
        .first_chunk()
        .map(|length| u32::from_be_bytes(*length))
    else {
        return Ok(None);
    };
    let len = length as usize;
    if !(8..=STARTUP_BYTES).contains(&len) {
        return Err(Malformed::Length(length));
    }
    if input.len() < len {
        return Ok(None);
    }
    let mut packet = input.split_to(len);
    packet.advance(4);
    Ok(Some(packet))
}

/// Takes the first message off `input` if all of it is there.
pub fn take(input: &mut BytesMut, limit_bytes: usize) -> Result<Option<BytesMut>, Malformed> {
    let Some((_, len)) = head(input)? else {
        return Ok(None);
    };
    if len > limit_bytes {
        return Err(Malformed::TooLarge(len));
    }
    if input.len() < len {
        return Ok(None);
    }
    Ok(Some(input.split_to(len)))
}

/// What follows the header.
pub fn body(frame: &[u8]) -> &[u8] {
    &frame[HEADER_BYTES..]
}

/// The string that `bytes` begin with, and what follows its end.
pub fn text(bytes: &[u8]) -> Option<(&[u8], &[u8])> {
    let end = bytes.iter().position(|&byte| byte == 0)?;
    Some((&bytes[..end], &bytes[end + 1..]))
}

/// The same as UTF-8.
pub fn name(bytes: &[u8]) -> Option<(&str, &[u8])> {
    let (text, rest) = text(bytes)?;
    Some((std::str::from_utf8(text).ok()?, rest))
}

/// Puts a message of `tag` whose body is `pieces`.
pub fn put(out: &mut BytesMut, tag: u8, pieces: &[&[u8]]) {
    let len: usize = pieces.iter().map(|piece| piece.len()).sum();
    out.reserve(HEADER_BYTES + len);
    out.put_u8(tag);
    out.put_u32(u32::try_from(len + 4).expect("pieces of one message that was below the limit"));
    for piece in pieces {
        out.put_slice(piece);
    }
}

/// `ReadyForQuery`.
pub fn put_ready(out: &mut BytesMut, status: u8) {
    put(out, b'Z', &[&[status]]);
}

/// `CommandComplete`.
pub fn put_complete(out: &mut BytesMut, tag: &str) {
    put_message(out, &CommandComplete::new(tag.to_owned()));
}

/// `ParameterStatus`.
pub fn put_parameter(out: &mut BytesMut, name: &str, value: &str) {
    put_message(
        out,
        &ParameterStatus::new(name.to_owned(), value.to_owned()),
    );
}

/// A whole answer of text columns: `RowDescription` and rows.
pub fn put_table(out: &mut BytesMut, columns: &[&str], rows: &[Vec<String>]) {
    const TEXT_OID: u32 = 25;
    let fields = columns
        .iter()
        .map(|name| FieldDescription::new((*name).to_owned(), 0, 0, TEXT_OID, -1, -1, 0))
        .collect();
    put_message(out, &RowDescription::new(fields));
    for row in rows {
        let mut data = BytesMut::new();
        for value in row {
            data.put_i32(i32::try_from(value.len()).unwrap_or(0));
            data.put_slice(value.as_bytes());
        }
        put_message(
            out,
            &DataRow::new(data, i16::try_from(row.len()).unwrap_or(0)),
        );
    }
}

/// Any message of a server.
pub fn put_message(out: &mut BytesMut, message: &impl Message) {
    // It fails on a message above the library's limits only; ours are far below.
    if let Err(error) = message.encode(out) {
        debug_assert!(false, "{error}");
    }
}

/// An error as a client is told it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Refusal {
    /// `ERROR` or `FATAL`.
    pub severity: &'static str,
    /// SQLSTATE.
    pub code: &'static str,
    /// What happened.
    pub message: String,
    /// Why, if there is more to say.
    pub detail: Option<String>,
    /// What to do.
    pub hint: Option<String>,
}

impl Refusal {
    /// A failed statement.
    pub fn error(code: &'static str, message: impl Into<String>) -> Refusal {
        Refusal {
            severity: "ERROR",
            code,
            message: message.into(),
            detail: None,
            hint: None,
        }
    }

    /// The end of a connection.
    pub fn fatal(code: &'static str, message: impl Into<String>) -> Refusal {
        Refusal {
            severity: "FATAL",
            ..Refusal::error(code, message)
        }
    }

    /// With a reason.
    pub fn detail(mut self, detail: impl Into<String>) -> Refusal {
        self.detail = Some(detail.into());
        self
    }

    /// With an advice.
    pub fn hint(mut self, hint: impl Into<String>) -> Refusal {
        self.hint = Some(hint.into());
        self
    }

    /// `ErrorResponse`.
    pub fn put(&self, out: &mut BytesMut) {
        let mut fields = vec![
            (b'S', self.severity.to_owned()),
            (b'V', self.severity.to_owned()),
            (b'C', self.code.to_owned()),
            (b'M', self.message.clone()),
        ];
        fields.extend(self.detail.clone().map(|detail| (b'D', detail)));
        fields.extend(self.hint.clone().map(|hint| (b'H', hint)));
        put_message(out, &ErrorResponse::new(fields));
    }

    /// The same by itself.
    pub fn to_bytes(&self) -> Bytes {
        let mut out = BytesMut::new();
        self.put(&mut out);
        out.freeze()
    }
}

/// What the proxy looks at in an `ErrorResponse` of a server.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ErrorFields<'a> {
    /// `ERROR`, `FATAL` or `PANIC`, whatever the language.
    pub severity: &'a [u8],
    /// SQLSTATE.
    pub code: &'a [u8],
    /// What happened.
    pub message: &'a [u8],
    /// The function of PostgreSQL's source that says so, whatever the language.
    pub routine: &'a [u8],
}

/// The fields of an `ErrorResponse`.
pub fn error_fields(frame: &[u8]) -> ErrorFields<'_> {
    let mut fields = ErrorFields {
        severity: b"",
        code: b"",
        message: b"",
        routine: b"",
    };
    let mut rest = body(frame);
    while let [tag, after @ ..] = rest {
        let Some((value, after)) = text(after) else {
            break;
        };
        match tag {
            b'V' => fields.severity = value,
            b'C' => fields.code = value,
            b'M' => fields.message = value,
            b'R' => fields.routine = value,
            _ => {}
        }
        rest = after;
    }
    fields
}

/// An `ErrorResponse` whose message ends otherwise; `None` if it does not end in `end`.
pub fn reworded(frame: &[u8], end: &[u8], other: &[u8]) -> Option<Bytes> {
    let mut fields = BytesMut::with_capacity(frame.len() + other.len());
    let mut is_reworded = false;
    let mut rest = body(frame);
    while let [tag, after @ ..] = rest
        && let Some((value, after)) = text(after)
    {
        fields.put_u8(*tag);
        match value.strip_suffix(end) {
            Some(kept) if *tag == b'M' => {
                fields.put_slice(kept);
                fields.put_slice(other);
                is_reworded = true;
            }
            _ => fields.put_slice(value),
        }
        fields.put_u8(0);
        rest = after;
    }
    let mut out = BytesMut::new();
    put(&mut out, b'E', &[&fields, b"\0"]);
    is_reworded.then(|| out.freeze())
}

/// The first column of a `DataRow`, if it is not null.
pub fn first_column(frame: &[u8]) -> Option<&[u8]> {
    let mut body = body(frame);
    if body.len() < 6 || body.get_i16() < 1 {
        return None;
    }
    let len = usize::try_from(body.get_i32()).ok()?;
    body.get(..len)
}

/// The columns of a `DataRow`, in order; `None` for null.
pub fn columns(frame: &[u8]) -> impl Iterator<Item = Option<&[u8]>> {
    let mut body = body(frame);
    if body.len() >= 2 {
        body.advance(2);
    }
    std::iter::from_fn(move || {
        let len = body.split_off(..4)?;
        let len = i32::from_be_bytes(len.try_into().ok()?);
        match usize::try_from(len) {
            Ok(len) => body.split_off(..len).map(Some),
            Err(_) => Some(None),
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_row_has_columns() {
        let mut out = BytesMut::new();
        let pieces: [&[u8]; 4] = [&[0, 2], &[0, 0, 0, 1], b"a", &[255, 255, 255, 255]];
        put(&mut out, b'D', &pieces);
        let found: Vec<_> = columns(&out).collect();
        assert_eq!(found, [Some(&b"a"[..]), None]);
    }

    #[test]
    fn the_end_of_a_message_is_exchanged() {
        let error = |message: &str| {
            let mut out = BytesMut::new();
            let fields = format!("SERROR\0C25001\0M{message}\0RRoutine\0\0");
            put(&mut out, b'E', &[fields.as_bytes()]);
            out.freeze()
        };
        let other = reworded(&error("X is here"), b"is here", b"was there, once");
        assert_eq!(other, Some(error("X was there, once")));
        assert_eq!(reworded(&error("X is here"), b"is not", b""), None);
    }

    #[test]
    fn frames_are_taken_whole() {
        let mut input = BytesMut::from(&b"Q\0\0\0\x06a\0S\0\0"[..]);
        assert_eq!(
            take(&mut input, 100).expect("valid").as_deref(),
            Some(&b"Q\0\0\0\x06a\0"[..])
        );
        assert_eq!(take(&mut input, 100).expect("valid"), None);
        assert_eq!(&input[..], b"S\0\0");
    }

    #[test]
    fn impossible_lengths_are_refused() {
        let mut input = BytesMut::from(&b"Q\0\0\0\x03"[..]);
        assert_eq!(take(&mut input, 100), Err(Malformed::Length(3)));
        let mut input = BytesMut::from(&b"Q\0\x10\0\0"[..]);
        assert_eq!(
            take(&mut input, 100),
            Err(Malformed::TooLarge((1 << 20) + 1))
        );
    }

    #[test]
    fn an_error_is_read_as_it_was_made() {
        let refusal = Refusal::fatal("57P01", "gone").detail("why").hint("do");
        let bytes = refusal.to_bytes();
        let fields = error_fields(&bytes);
        assert_eq!(fields.severity, b"FATAL");
        assert_eq!(fields.code, b"57P01");
        assert_eq!(fields.message, b"gone");
    }

    #[test]
    fn the_first_column() {
        let mut out = BytesMut::new();
        put_table(&mut out, &["a"], &[vec!["17".to_owned()]]);
        let (_, len) = head(&out).expect("valid").expect("there");
        assert_eq!(first_column(&out[len..]), Some(&b"17"[..]));
    }
}
