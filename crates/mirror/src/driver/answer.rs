//! Answers of a server: messages up to `ReadyForQuery`, and its errors.

use std::io;

use bytes::{Buf, BytesMut};
use protocol::frame::{self, error_fields};

/// An error of a server.
#[derive(Debug, Clone)]
pub struct ServerError {
    /// SQLSTATE.
    pub code: String,
    /// The primary message.
    pub message: String,
    /// The whole `ErrorResponse`.
    pub frame: BytesMut,
}

impl ServerError {
    pub fn read(message: BytesMut) -> ServerError {
        let fields = error_fields(&message);
        ServerError {
            code: String::from_utf8_lossy(fields.code).into_owned(),
            message: String::from_utf8_lossy(fields.message).into_owned(),
            frame: message,
        }
    }
}

/// Why a server has not answered as it should.
#[derive(Debug, thiserror::Error)]
pub enum WireError {
    /// The connection is gone; nobody knows what was done.
    #[error("the connection to the member is lost")]
    Lost(#[from] io::Error),
    /// The server refused.
    #[error("{}: {}", .0.code, .0.message)]
    Server(Box<ServerError>),
}

/// Answer up to `ReadyForQuery`.
#[derive(Debug, Default)]
pub struct Reply {
    /// Messages, without `ReadyForQuery`, and notices.
    pub messages: Vec<BytesMut>,
    /// The error, if the server refused.
    pub error: Option<Box<ServerError>>,
    /// Settings that have changed.
    pub reported: Vec<BytesMut>,
    /// The transaction's state after it.
    pub status: u8,
}

impl Reply {
    /// The rows as text.
    pub fn rows(&self) -> Vec<Vec<Option<String>>> {
        let rows = self.messages.iter().filter(|message| message[0] == b'D');
        rows.map(|row| columns(row)).collect()
    }

    /// The first row as text; empty if there is none.
    pub fn row(&self) -> Vec<Option<String>> {
        let first = self.messages.iter().find(|message| message[0] == b'D');
        first.map_or_else(Vec::new, |row| columns(row))
    }

    /// The first column of the first row.
    pub fn value(&self) -> Option<String> {
        self.row().into_iter().next().flatten()
    }

    /// Fails if the server refused.
    pub fn checked(self) -> Result<Reply, WireError> {
        match self.error {
            Some(error) => Err(WireError::Server(error)),
            None => Ok(self),
        }
    }
}

/// The state of a session that `ReadyForQuery` tells.
pub fn status(message: &[u8]) -> u8 {
    frame::body(message).first().copied().unwrap_or(b'I')
}

/// The tag of the last statement that was answered.
pub fn tag(messages: &[BytesMut]) -> String {
    let last = messages.iter().rev().find(|message| message[0] == b'C');
    let text = last.and_then(|message| frame::name(frame::body(message)));
    text.map_or_else(String::new, |(tag, _)| tag.to_owned())
}

/// The columns of a `DataRow`, as text.
fn columns(row: &[u8]) -> Vec<Option<String>> {
    fields(row)
        .into_iter()
        .map(|field| field.map(|field| String::from_utf8_lossy(field).into_owned()))
        .collect()
}

/// The columns of a `DataRow`.
fn fields(row: &[u8]) -> Vec<Option<&[u8]>> {
    let mut body = frame::body(row);
    let mut fields = Vec::new();
    if body.len() < 2 {
        return fields;
    }
    for _ in 0..body.get_u16() {
        if body.len() < 4 {
            break;
        }
        let len = usize::try_from(body.get_i32()).ok();
        fields.push(match len {
            Some(len) if len <= body.len() => {
                let (field, rest) = body.split_at(len);
                body = rest;
                Some(field)
            }
            _ => None,
        });
    }
    fields
}
