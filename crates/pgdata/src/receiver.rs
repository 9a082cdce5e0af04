//! The receiver's side of a physical replication connection that wants no log, without the connection.
//!
//! ```text
//!   starting ──ready──▶ identifying ──ready──▶ asking ──CopyBoth──▶ streaming
//!      └─ready, if it only takes a place──▶ idle
//! ```
//!
//! Invariant: reports are encoded while streaming only; the log that comes is thrown away.

use bytes::{BufMut, Bytes, BytesMut};
use pgwire::error::PgWireError;
use pgwire::messages::copy::CopyData;
use pgwire::messages::response::ErrorResponse;
use pgwire::messages::simplequery::Query;
use pgwire::messages::startup::{Authentication, Startup};
use pgwire::messages::terminate::Terminate;
use pgwire::messages::{DecodeContext, Message, PgWireBackendMessage, ProtocolVersion};

use volume::lsn::Lsn;

use crate::feed::RowsNeeded;

/// What the server did.
#[derive(Debug, thiserror::Error)]
pub(crate) enum SessionError {
    #[error("not PostgreSQL's protocol: {0}")]
    Protocol(#[from] PgWireError),
    /// Its words, and why if that is known.
    #[error("{0}")]
    Refused(String, Refusal),
    #[error("it asks for a password: trust the agent's user on the local socket in pg_hba.conf")]
    Password,
    #[error("unexpected message while {0:?}: {1}")]
    Unexpected(State, String),
}

/// What a server has against a connection.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub enum Refusal {
    /// Nothing that it says, or nothing that lasts.
    #[default]
    None,
    /// It does not let this user connect: only its configuration changes that.
    Forbidden,
    /// All places for replication connections are taken.
    Crowded,
}

impl SessionError {
    pub(crate) fn refusal(&self) -> Refusal {
        match self {
            SessionError::Refused(_, refusal) => *refusal,
            SessionError::Password => Refusal::Forbidden,
            SessionError::Protocol(_) | SessionError::Unexpected(..) => Refusal::None,
        }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum State {
    Starting,
    Identifying,
    Asking,
    Streaming,
    Idle,
}

/// What a connection is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Purpose {
    /// To report on a stream.
    Stream,
    /// To be there, so that nobody else is in its place.
    Place,
}

/// What the driver must react to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Event {
    /// The stream stands: reports can be sent.
    Streaming,
    /// The place is taken.
    Placed,
    /// The server wants a report now.
    Asked,
    /// The server ended the stream.
    Ended,
}

#[derive(Debug)]
pub(crate) struct Session {
    context: DecodeContext,
    input: BytesMut,
    output: BytesMut,
    state: State,
    purpose: Purpose,
    /// Where the stream can start: the end of the flushed log and its timeline.
    start: Option<(String, String)>,
}

impl Session {
    /// Greets; `name` is the application's name.
    pub fn new(user: &str, name: &str) -> Result<Session, SessionError> {
        Session::greet(Purpose::Stream, user, name, "")
    }

    /// The same for a purpose, with options for the server process (`-c name=value`).
    pub fn greet(
        purpose: Purpose,
        user: &str,
        name: &str,
        options: &str,
    ) -> Result<Session, SessionError> {
        let mut startup = Startup::new();
        let parameters = [
            ("user", user),
            ("replication", "true"),
            ("application_name", name),
            ("options", options),
        ];
        for (key, value) in parameters
            .into_iter()
            .filter(|(_, value)| !value.is_empty())
        {
            startup.parameters.insert(key.into(), value.into());
        }
        let mut output = BytesMut::new();
        startup.encode(&mut output)?;
        Ok(Session {
            context: DecodeContext::new(ProtocolVersion::PROTOCOL3_0),
            input: BytesMut::new(),
            output,
            state: State::Starting,
            purpose,
            start: None,
        })
    }

    pub fn state(&self) -> State {
        self.state
    }

    /// Where to put received bytes.
    pub fn input(&mut self) -> &mut BytesMut {
        &mut self.input
    }

    /// What is to be sent, which is then taken as sent.
    pub fn take_output(&mut self) -> Bytes {
        self.output.split().freeze()
    }

    /// What the received bytes say; `None` until more come.
    pub fn next_event(&mut self) -> Result<Option<Event>, SessionError> {
        while let Some(message) = PgWireBackendMessage::decode(&mut self.input, &self.context)? {
            if let Some(event) = self.react(message)? {
                return Ok(Some(event));
            }
        }
        Ok(None)
    }

    fn react(&mut self, message: PgWireBackendMessage) -> Result<Option<Event>, SessionError> {
        use PgWireBackendMessage as Back;
        match (self.state, message) {
            (_, Back::ErrorResponse(error)) => return Err(refused(&error)),
            (_, Back::NoticeResponse(_) | Back::ParameterStatus(_) | Back::BackendKeyData(_)) => {}
            (State::Starting, Back::Authentication(Authentication::Ok)) => {}
            (State::Starting, Back::Authentication(_)) => return Err(SessionError::Password),
            (State::Starting, Back::ReadyForQuery(_)) if self.purpose == Purpose::Place => {
                self.state = State::Idle;
                return Ok(Some(Event::Placed));
            }
            (State::Starting, Back::ReadyForQuery(_)) => {
                self.command("IDENTIFY_SYSTEM", State::Identifying)?;
            }
            (State::Identifying, Back::RowDescription(_) | Back::CommandComplete(_)) => {}
            (State::Identifying, Back::DataRow(row)) => self.start = identified(&row.data),
            (State::Identifying, Back::ReadyForQuery(_)) => {
                let Some((at, timeline)) = self.start.take() else {
                    let nothing = "no position".to_owned();
                    return Err(SessionError::Unexpected(self.state, nothing));
                };
                let start = format!("START_REPLICATION PHYSICAL {at} TIMELINE {timeline}");
                self.command(&start, State::Asking)?;
            }
            (State::Asking, Back::CopyBothResponse(_)) => {
                self.state = State::Streaming;
                return Ok(Some(Event::Streaming));
            }
            (State::Streaming, Back::CopyData(copied)) => {
                let asked = copied.data.first() == Some(&b'k') && copied.data.last() == Some(&1);
                return Ok(asked.then_some(Event::Asked));
            }
            (State::Streaming, Back::CopyDone(_) | Back::CommandComplete(_)) => {
                return Ok(Some(Event::Ended));
            }
            (state, other) => return Err(SessionError::Unexpected(state, format!("{other:?}"))),
        }
        Ok(None)
    }

    fn command(&mut self, text: &str, next: State) -> Result<(), SessionError> {
        Query::new(text.to_owned()).encode(&mut self.output)?;
        self.state = next;
        Ok(())
    }

    /// Sends how far the receiver is, as receivers do. `now` is in microseconds since 2000.
    pub fn progress(&mut self, flushed: Lsn, applied: Lsn, now: i64) -> Result<(), SessionError> {
        let mut progress = BytesMut::with_capacity(34);
        progress.put_u8(b'r');
        for lsn in [flushed, flushed, applied] {
            progress.put_u64(lsn.0);
        }
        progress.put_i64(now);
        progress.put_u8(0);
        CopyData::new(progress.freeze()).encode(&mut self.output)?;
        Ok(())
    }

    /// Sends which rows must be kept for those who read at the receiver.
    pub fn needed(&mut self, rows: &RowsNeeded, now: i64) -> Result<(), SessionError> {
        let mut needed = BytesMut::with_capacity(25);
        needed.put_u8(b'h');
        needed.put_i64(now);
        for number in [rows.xmin, rows.epoch, rows.catalog_xmin, rows.catalog_epoch] {
            needed.put_u32(number);
        }
        CopyData::new(needed.freeze()).encode(&mut self.output)?;
        Ok(())
    }

    /// Says goodbye, so that the server writes nothing about a lost connection into its log.
    pub fn terminate(&mut self) -> Result<(), SessionError> {
        Terminate::new().encode(&mut self.output)?;
        Ok(())
    }
}

/// Position and timeline in the row that answers IDENTIFY_SYSTEM: system, timeline, position, database.
fn identified(mut row: &[u8]) -> Option<(String, String)> {
    let mut column = || {
        let (length, rest) = row.split_first_chunk::<4>()?;
        let length = usize::try_from(i32::from_be_bytes(*length)).ok()?;
        let (text, rest) = rest.split_at_checked(length)?;
        row = rest;
        Some(String::from_utf8_lossy(text).into_owned())
    };
    let (_system, timeline, at) = (column()?, column()?, column()?);
    Some((at, timeline))
}

fn refused(error: &ErrorResponse) -> SessionError {
    let field = |wanted: u8| {
        let mut fields = error.fields.iter();
        fields
            .find(|(kind, _)| *kind == wanted)
            .map_or("", |(_, text)| text.as_str())
    };
    let refusal = match (field(b'C'), field(b'R')) {
        ("28000" | "28P01", _) => Refusal::Forbidden,
        // Too many clients of all kinds are refused elsewhere.
        ("53300", "InitProcess") => Refusal::Crowded,
        _ => Refusal::None,
    };
    SessionError::Refused(field(b'M').to_owned(), refusal)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn message(kind: u8, body: &[u8]) -> Vec<u8> {
        let mut bytes = vec![kind];
        bytes.extend(u32::try_from(body.len() + 4).unwrap().to_be_bytes());
        bytes.extend(body);
        bytes
    }

    fn row(values: &[&str]) -> Vec<u8> {
        let mut body = u16::try_from(values.len() + 1)
            .unwrap()
            .to_be_bytes()
            .to_vec();
        for value in values {
            body.extend(u32::try_from(value.len()).unwrap().to_be_bytes());
            body.extend(value.as_bytes());
        }
        body.extend((-1i32).to_be_bytes());
        message(b'D', &body)
    }

    fn streaming() -> Session {
        let mut session = Session::new("postgres", "south").unwrap();
        let startup = session.take_output();
        assert!(startup.windows(5).any(|bytes| bytes == b"south"));
        for (bytes, sent) in [
            (message(b'R', &[0; 4]), &b""[..]),
            (message(b'Z', b"I"), b"Q\0\0\0\x14IDENTIFY_SYSTEM\0"),
            (row(&["7", "3", "0/5000"]), b""),
            (message(b'C', b"IDENTIFY_SYSTEM\0"), b""),
        ] {
            session.input().extend_from_slice(&bytes);
            assert_eq!(session.next_event().unwrap(), None);
            assert_eq!(&session.take_output()[..], sent);
        }
        session.input().extend_from_slice(&message(b'Z', b"I"));
        assert_eq!(session.next_event().unwrap(), None);
        let start = session.take_output();
        assert!(start.ends_with(b"START_REPLICATION PHYSICAL 0/5000 TIMELINE 3\0"));
        session.input().extend_from_slice(&message(b'W', &[0; 3]));
        assert_eq!(session.next_event().unwrap(), Some(Event::Streaming));
        session
    }

    #[test]
    fn receiver_asks_for_wal_from_its_end_and_discards_it() {
        let mut session = streaming();
        let mut log = vec![b'w'; 1000];
        log.push(1);
        session.input().extend_from_slice(&message(b'd', &log));
        assert_eq!(session.next_event().unwrap(), None);
        let mut keepalive = vec![b'k'; 17];
        keepalive.push(0);
        session
            .input()
            .extend_from_slice(&message(b'd', &keepalive));
        assert_eq!(session.next_event().unwrap(), None);
        keepalive[17] = 1;
        session
            .input()
            .extend_from_slice(&message(b'd', &keepalive));
        assert_eq!(session.next_event().unwrap(), Some(Event::Asked));
    }

    #[test]
    fn reports_are_what_a_receiver_sends() {
        let mut session = streaming();
        let needed = RowsNeeded {
            xmin: 700,
            epoch: 1,
            catalog_xmin: 0,
            catalog_epoch: 0,
        };
        session.progress(Lsn(3), Lsn(1), 9).unwrap();
        session.needed(&needed, 9).unwrap();
        let mut progress = vec![b'r'];
        for number in [3u64, 3, 1, 9] {
            progress.extend(number.to_be_bytes());
        }
        progress.push(0);
        let mut needed = vec![b'h'];
        needed.extend(9u64.to_be_bytes());
        for number in [700u32, 1, 0, 0] {
            needed.extend(number.to_be_bytes());
        }
        let expected = [message(b'd', &progress), message(b'd', &needed)].concat();
        assert_eq!(&session.take_output()[..], expected);
    }

    #[test]
    fn receiver_that_takes_a_place_asks_for_nothing() {
        let options = "-c idle_session_timeout=0";
        let mut session = Session::greet(Purpose::Place, "postgres", "place", options).unwrap();
        let startup = session.take_output();
        assert!(
            startup
                .windows(options.len())
                .any(|bytes| bytes == options.as_bytes())
        );
        session.input().extend_from_slice(&message(b'R', &[0; 4]));
        session.input().extend_from_slice(&message(b'Z', b"I"));
        assert_eq!(session.next_event().unwrap(), Some(Event::Placed));
        assert_eq!(session.take_output().len(), 0);
    }

    #[test]
    fn a_refusal_is_told_in_the_servers_words() {
        for (body, refusal) in [
            (
                &b"SFATAL\0C53300\0Mno\0RInitProcess\0\0"[..],
                Refusal::Crowded,
            ),
            (
                b"SFATAL\0C53300\0Mno\0RProcessStartupPacket\0\0",
                Refusal::None,
            ),
            (
                b"SFATAL\0C28000\0Mno\0RClientAuthentication\0\0",
                Refusal::Forbidden,
            ),
            (b"SFATAL\0C28P01\0Mno\0\0", Refusal::Forbidden),
            (b"SFATAL\0C57P03\0Mno\0\0", Refusal::None),
        ] {
            let mut session = Session::new("postgres", "south").unwrap();
            session.input().extend_from_slice(&message(b'E', body));
            let error = session.next_event().unwrap_err();
            assert_eq!(
                (error.to_string().as_str(), error.refusal()),
                ("no", refusal)
            );
        }
    }

    #[test]
    fn a_question_for_a_password_is_a_refusal() {
        let mut session = Session::new("postgres", "south").unwrap();
        let asks = message(b'R', &3u32.to_be_bytes());
        session.input().extend_from_slice(&asks);
        let error = session.next_event().unwrap_err();
        assert_eq!(error.refusal(), Refusal::Forbidden);
    }
}
