//! The error of the block protocol: a kind that says what the caller must do, a message, the source.

use std::fmt;

/// What the caller must do about an [`Error`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum ErrorKind {
    /// A higher epoch exists, or this writer cannot trust its own memory. Final: it must stop, nothing it does can
    /// succeed again.
    Fenced,
    /// Too few zones answer. Wait and try again; nothing is lost.
    Unavailable,
    /// Stored bytes fail their checksum on every replica that answered. Do not use the data.
    Corrupt,
    /// A zone has no room. Make room; the client waits and retries by itself where it can.
    Full,
    /// No such volume, or the record was never written. Check the name, or create it.
    NotFound,
    /// It exists already, or somebody else was first. Look at what is there.
    Conflict,
    /// The request is invalid as given. The message says what to change.
    Invalid,
    /// The peer speaks something else. Check addresses and versions.
    Protocol,
    /// One side has not the key that the other asks for. Trying again is of no use; the message says
    /// what to change.
    Denied,
}

/// An error of the block protocol.
#[derive(Debug)]
pub struct Error {
    kind: ErrorKind,
    message: String,
    source: Option<Box<dyn std::error::Error + Send + Sync>>,
}

/// Shorthand for results of this crate.
pub type Result<T, E = Error> = std::result::Result<T, E>;

impl Error {
    /// An error of `kind`; the message is one sentence without a full stop.
    pub fn new(kind: ErrorKind, message: impl Into<String>) -> Error {
        Error {
            kind,
            message: message.into(),
            source: None,
        }
    }

    /// The same, keeping what caused it.
    pub fn with_source(
        kind: ErrorKind,
        message: impl Into<String>,
        source: impl Into<Box<dyn std::error::Error + Send + Sync>>,
    ) -> Error {
        Error {
            kind,
            message: message.into(),
            source: Some(source.into()),
        }
    }

    /// What the caller must do.
    pub fn kind(&self) -> ErrorKind {
        self.kind
    }

    /// True if a higher epoch exists, which is final.
    pub fn is_fenced(&self) -> bool {
        self.kind == ErrorKind::Fenced
    }
}

/// An error with what caused it, in a line: causes that it tells itself are left out.
pub fn describe(error: &(dyn std::error::Error + 'static)) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(cause) = source {
        let said = cause.to_string();
        if !text.contains(&said) {
            text = format!("{text}: {said}");
        }
        source = cause.source();
    }
    text
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

impl std::error::Error for Error {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        self.source
            .as_ref()
            .map(|s| &**s as &(dyn std::error::Error + 'static))
    }
}
