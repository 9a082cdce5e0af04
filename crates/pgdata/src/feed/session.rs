//! The protocol of one connection, without the connection.
//!
//! ```text
//!  startup --> ready <---------------------------+
//!                | START_REPLICATION             | result of both ends' CopyDone
//!                v                               |
//!            streaming --CopyDone (either)--> ending
//! ```
//!
//! Invariant: bytes to send are complete messages in the order of the calls; nothing but a keepalive
//! or log is sent while streaming, and nothing while the other side has been told of the end.

use bytes::{BufMut, Bytes, BytesMut};
use pgwire::error::PgWireError;
use pgwire::messages::copy::{CopyBothResponse, CopyData, CopyDone};
use pgwire::messages::data::{DataRow, FieldDescription, RowDescription};
use pgwire::messages::response::{
    CommandComplete, ErrorResponse, ReadyForQuery, SslResponse, TransactionStatus,
};
use pgwire::messages::startup::{Authentication, BackendKeyData, ParameterStatus, SecretKey};
use pgwire::messages::{
    DecodeContext, Message, PgWireFrontendMessage, ProtocolVersion, SslNegotiationMetaMessage,
};
use volume::lsn::Lsn;

use super::command::Command;
use super::{Feedback, ReplayLimit, RowsNeeded};
use crate::timeline::TimelineId;

const TEXT: u32 = 25;
const INT8: u32 = 20;
const BYTEA: u32 = 17;

/// What the other side did wrong.
#[derive(Debug, thiserror::Error)]
pub(super) enum SessionError {
    #[error("not PostgreSQL's protocol: {0}")]
    Protocol(#[from] PgWireError),
    #[error("unexpected message while {0:?}: {1}")]
    Unexpected(State, String),
    #[error("a status update of {0} bytes")]
    ShortStatus(usize),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum State {
    Startup,
    Ready,
    Streaming,
    /// Told that the log ends here; waiting for its CopyDone.
    Ending,
    Closed,
}

/// What the driver must react to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Event {
    /// A command waits for its answer.
    Command(Command),
    /// A status update; whether it wants an answer.
    Status(Feedback, bool),
    /// Which rows the standby's queries may still read; `None`: it does not say.
    Needed(Option<RowsNeeded>),
    /// The other side ended the stream (or confirmed our end).
    StreamEnded,
    /// The other side is gone.
    Closed,
}

#[derive(Debug)]
pub(super) struct Session {
    context: DecodeContext,
    input: BytesMut,
    output: BytesMut,
    state: State,
    server_version: String,
}

impl Session {
    /// `server_version` is what is announced, e.g. `15`.
    pub fn new(server_version: &str) -> Session {
        Session {
            context: DecodeContext::new(ProtocolVersion::PROTOCOL3_0),
            input: BytesMut::new(),
            output: BytesMut::new(),
            state: State::Startup,
            server_version: server_version.to_owned(),
        }
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

    /// What the received bytes ask for; `None` until more come.
    pub fn next_event(&mut self) -> Result<Option<Event>, SessionError> {
        loop {
            let Some(message) = PgWireFrontendMessage::decode(&mut self.input, &self.context)?
            else {
                return Ok(None);
            };
            if let Some(event) = self.react(message)? {
                return Ok(Some(event));
            }
        }
    }

    fn react(&mut self, message: PgWireFrontendMessage) -> Result<Option<Event>, SessionError> {
        use PgWireFrontendMessage as Front;
        Ok(match (self.state, message) {
            (State::Startup, Front::SslNegotiation(request)) => {
                self.negotiate(&request);
                None
            }
            (State::Startup, Front::Startup(_)) => {
                self.welcome()?;
                None
            }
            (State::Startup, Front::CancelRequest(_)) | (_, Front::Terminate(_)) => {
                self.state = State::Closed;
                Some(Event::Closed)
            }
            (State::Ready, Front::Query(query)) => {
                Some(Event::Command(Command::parse(&query.query)))
            }
            (State::Streaming | State::Ending, Front::CopyData(copied)) => status(&copied.data)?,
            (State::Streaming, Front::CopyDone(_) | Front::CopyFail(_)) => {
                CopyDone::new().encode(&mut self.output)?;
                self.state = State::Ready;
                Some(Event::StreamEnded)
            }
            (State::Ending, Front::CopyDone(_) | Front::CopyFail(_)) => {
                self.state = State::Ready;
                Some(Event::StreamEnded)
            }
            (state, other) => {
                return Err(SessionError::Unexpected(state, format!("{other:?}")));
            }
        })
    }

    /// Neither TLS nor GSS on a local socket.
    fn negotiate(&mut self, request: &SslNegotiationMetaMessage) {
        match request {
            SslNegotiationMetaMessage::PostgresSsl(_)
            | SslNegotiationMetaMessage::PostgresGss(_) => {
                self.output.put_u8(SslResponse::BYTE_REFUSE);
            }
            SslNegotiationMetaMessage::None => self.context.awaiting_frontend_ssl = false,
        }
    }

    fn welcome(&mut self) -> Result<(), SessionError> {
        self.context.awaiting_frontend_startup = false;
        Authentication::Ok.encode(&mut self.output)?;
        let version = self.server_version.clone();
        for (name, value) in [
            ("server_version", version.as_str()),
            ("server_encoding", "UTF8"),
            ("client_encoding", "UTF8"),
            ("DateStyle", "ISO, MDY"),
            ("TimeZone", "UTC"),
            ("integer_datetimes", "on"),
            ("standard_conforming_strings", "on"),
        ] {
            ParameterStatus::new(name.to_owned(), value.to_owned()).encode(&mut self.output)?;
        }
        BackendKeyData::new(1, SecretKey::I32(0)).encode(&mut self.output)?;
        self.ready()
    }

    fn ready(&mut self) -> Result<(), SessionError> {
        self.state = State::Ready;
        ReadyForQuery::new(TransactionStatus::Idle).encode(&mut self.output)?;
        Ok(())
    }

    /// Answers IDENTIFY_SYSTEM.
    pub fn identify(&mut self, system: u64, replay_limit: ReplayLimit) -> Result<(), SessionError> {
        let columns = [
            ("systemid", TEXT),
            ("timeline", INT8),
            ("xlogpos", TEXT),
            ("dbname", TEXT),
        ];
        let timeline = replay_limit.timeline.to_string();
        let (system, end) = (system.to_string(), replay_limit.end.to_string());
        let values = [
            Some(system.as_bytes()),
            Some(timeline.as_bytes()),
            Some(end.as_bytes()),
            None,
        ];
        self.row(&columns, &values)?;
        self.complete("IDENTIFY_SYSTEM")?;
        self.ready()
    }

    /// Answers TIMELINE_HISTORY.
    pub fn history(&mut self, timeline: TimelineId, file: &[u8]) -> Result<(), SessionError> {
        let name = timeline.history_file_name();
        let values = [Some(name.as_bytes()), Some(file)];
        self.row(&[("filename", TEXT), ("content", BYTEA)], &values)?;
        self.complete("TIMELINE_HISTORY")?;
        self.ready()
    }

    /// Answers SHOW.
    pub fn show(&mut self, name: &str, value: &str) -> Result<(), SessionError> {
        self.row(&[(name, TEXT)], &[Some(value.as_bytes())])?;
        self.complete("SHOW")?;
        self.ready()
    }

    /// Answers START_REPLICATION: log follows.
    pub fn start_streaming(&mut self) -> Result<(), SessionError> {
        CopyBothResponse::new(0, 0, Vec::new()).encode(&mut self.output)?;
        self.state = State::Streaming;
        Ok(())
    }

    /// Sends log that starts at `at`, while the log known ends at `end`. `now` is in microseconds
    /// since 2000, PostgreSQL's clock.
    pub fn log(&mut self, at: Lsn, end: Lsn, log: &[u8], now: i64) -> Result<(), SessionError> {
        let mut data = BytesMut::with_capacity(25 + log.len());
        data.put_u8(b'w');
        data.put_u64(at.0);
        data.put_u64(end.0);
        data.put_i64(now);
        data.put_slice(log);
        CopyData::new(data.freeze()).encode(&mut self.output)?;
        Ok(())
    }

    /// Tells the end of the log known, and perhaps asks for a status update.
    pub fn keepalive(&mut self, end: Lsn, now: i64, reply: bool) -> Result<(), SessionError> {
        let mut data = BytesMut::with_capacity(18);
        data.put_u8(b'k');
        data.put_u64(end.0);
        data.put_i64(now);
        data.put_u8(reply.into());
        CopyData::new(data.freeze()).encode(&mut self.output)?;
        Ok(())
    }

    /// No more log on this timeline: ends the stream; the other side confirms.
    pub fn end_stream(&mut self) -> Result<(), SessionError> {
        CopyDone::new().encode(&mut self.output)?;
        self.state = State::Ending;
        Ok(())
    }

    /// After the stream (or instead of it, if it would be empty): where the timeline goes on.
    /// `None` if the other side ended the stream before the log did.
    pub fn finish(&mut self, next: Option<(TimelineId, Lsn)>) -> Result<(), SessionError> {
        if let Some((timeline, begins)) = next {
            let columns = [("next_tli", INT8), ("next_tli_startpos", TEXT)];
            let (timeline, begins) = (timeline.to_string(), begins.to_string());
            self.row(
                &columns,
                &[Some(timeline.as_bytes()), Some(begins.as_bytes())],
            )?;
            self.complete("START_STREAMING")?;
        }
        self.complete("START_REPLICATION")?;
        self.ready()
    }

    /// Refuses a command.
    pub fn refuse(&mut self, code: &str, message: &str) -> Result<(), SessionError> {
        let field = |kind: u8, text: &str| (kind, text.to_owned());
        let fields = vec![
            field(b'S', "ERROR"),
            field(b'V', "ERROR"),
            field(b'C', code),
            field(b'M', message),
        ];
        ErrorResponse::new(fields).encode(&mut self.output)?;
        self.ready()
    }

    fn row(
        &mut self,
        columns: &[(&str, u32)],
        values: &[Option<&[u8]>],
    ) -> Result<(), SessionError> {
        let field = |(name, kind): &(&str, u32)| {
            let bytes = if *kind == INT8 { 8 } else { -1 };
            FieldDescription::new((*name).to_owned(), 0, 0, *kind, bytes, -1, 0)
        };
        RowDescription::new(columns.iter().map(field).collect()).encode(&mut self.output)?;
        let mut data = BytesMut::new();
        for value in values {
            let length = value.map_or(-1, |bytes| i32::try_from(bytes.len()).unwrap_or(-1));
            data.put_i32(length);
            data.put_slice(value.unwrap_or_default());
        }
        let count = i16::try_from(values.len()).unwrap_or(i16::MAX);
        DataRow::new(data, count).encode(&mut self.output)?;
        Ok(())
    }

    fn complete(&mut self, tag: &str) -> Result<(), SessionError> {
        CommandComplete::new(tag.to_owned()).encode(&mut self.output)?;
        Ok(())
    }
}

/// What a standby reports: `r` is its progress, `h` the rows that it needs.
fn status(data: &[u8]) -> Result<Option<Event>, SessionError> {
    match data.first() {
        Some(b'r') => progress(data).map(Some),
        Some(b'h') => needed(data).map(Some),
        _ => Ok(None),
    }
}

fn progress(data: &[u8]) -> Result<Event, SessionError> {
    let lsn = |at| bytes(data, at).map(u64::from_be_bytes).map(Lsn);
    let feedback = Feedback {
        write: lsn(1)?,
        flush: lsn(9)?,
        apply: lsn(17)?,
    };
    let wants_answer = data.get(33).is_some_and(|flag| *flag != 0);
    Ok(Event::Status(feedback, wants_answer))
}

fn needed(data: &[u8]) -> Result<Event, SessionError> {
    let number = |at| bytes(data, at).map(u32::from_be_bytes);
    let rows = RowsNeeded {
        xmin: number(9)?,
        epoch: number(13)?,
        catalog_xmin: number(17)?,
        catalog_epoch: number(21)?,
    };
    // A standby that stops to report sends zeros once.
    let any = rows.xmin != 0 || rows.catalog_xmin != 0;
    Ok(Event::Needed(any.then_some(rows)))
}

fn bytes<const N: usize>(data: &[u8], at: usize) -> Result<[u8; N], SessionError> {
    let found = data.get(at..at + N).and_then(|bytes| bytes.try_into().ok());
    found.ok_or(SessionError::ShortStatus(data.len()))
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIMIT: ReplayLimit = ReplayLimit {
        timeline: TimelineId(3),
        end: Lsn(0x5000),
    };

    /// A message of the protocol: kind, length, body.
    fn message(kind: u8, body: &[u8]) -> Vec<u8> {
        let mut bytes = vec![kind];
        bytes.extend(u32::try_from(body.len() + 4).unwrap().to_be_bytes());
        bytes.extend(body);
        bytes
    }

    fn startup() -> Vec<u8> {
        let body = b"\0\x03\0\0user\0x\0replication\0true\0\0";
        message(0, body)[1..].to_vec()
    }

    /// The kinds of the messages sent.
    fn kinds(mut bytes: &[u8]) -> String {
        let mut kinds = String::new();
        while let [kind, a, b, c, d, ..] = *bytes {
            kinds.push(char::from(kind));
            bytes = &bytes[1 + u32::from_be_bytes([a, b, c, d]) as usize..];
        }
        kinds
    }

    fn ready() -> Session {
        let mut session = Session::new("15");
        session.input().extend_from_slice(&startup());
        assert_eq!(session.next_event().unwrap(), None);
        assert_eq!(kinds(&session.take_output()), "RSSSSSSSKZ");
        session
    }

    fn status_update(wants_answer: bool) -> Vec<u8> {
        let mut body = vec![b'r'];
        for lsn in [3u64, 2, 1, 0] {
            body.extend(lsn.to_be_bytes());
        }
        body.push(wants_answer.into());
        message(b'd', &body)
    }

    #[test]
    fn encryption_is_refused_and_the_session_goes_on() {
        let mut session = Session::new("15");
        for code in [80_877_103u32, 80_877_104] {
            session
                .input()
                .extend_from_slice(&message(0, &code.to_be_bytes())[1..]);
            assert_eq!(session.next_event().unwrap(), None);
            assert_eq!(&session.take_output()[..], b"N");
        }
        session.input().extend_from_slice(&startup());
        assert_eq!(session.next_event().unwrap(), None);
        assert_eq!(session.state(), State::Ready);
    }

    #[test]
    fn commands_arrive_in_any_pieces() {
        let mut session = ready();
        for byte in message(b'Q', b"IDENTIFY_SYSTEM\0") {
            assert_eq!(session.next_event().unwrap(), None);
            session.input().put_u8(byte);
        }
        let event = session.next_event().unwrap();
        assert_eq!(event, Some(Event::Command(Command::IdentifySystem)));
        session.identify(7, LIMIT).unwrap();
        assert_eq!(kinds(&session.take_output()), "TDCZ");
    }

    #[test]
    fn progress_is_reported_while_streaming_only() {
        let mut session = ready();
        session.input().extend_from_slice(&status_update(true));
        assert!(session.next_event().is_err(), "no stream yet");
        let mut session = ready();
        session.start_streaming().unwrap();
        session.input().extend_from_slice(&status_update(true));
        let progress = Feedback {
            write: Lsn(3),
            flush: Lsn(2),
            apply: Lsn(1),
        };
        assert_eq!(
            session.next_event().unwrap(),
            Some(Event::Status(progress, true))
        );
        session.input().extend_from_slice(&message(b'd', b"r\0\0"));
        assert!(session.next_event().is_err(), "cut short");
    }

    #[test]
    fn needed_rows_are_reported_until_there_are_none() {
        let mut session = ready();
        session.start_streaming().unwrap();
        let feedback = |numbers: [u32; 4]| {
            let mut body = vec![b'h'];
            body.extend(9u64.to_be_bytes());
            body.extend(numbers.into_iter().flat_map(u32::to_be_bytes));
            message(b'd', &body)
        };
        session.input().extend(feedback([700, 1, 650, 1]));
        let needed = RowsNeeded {
            xmin: 700,
            epoch: 1,
            catalog_xmin: 650,
            catalog_epoch: 1,
        };
        assert_eq!(
            session.next_event().unwrap(),
            Some(Event::Needed(Some(needed)))
        );
        session.input().extend(feedback([0; 4]));
        assert_eq!(session.next_event().unwrap(), Some(Event::Needed(None)));
        session.input().extend_from_slice(&message(b'd', b"h\0\0"));
        assert!(session.next_event().is_err(), "cut short");
    }

    #[test]
    fn both_ends_can_end_the_stream() {
        let mut session = ready();
        session.start_streaming().unwrap();
        session.end_stream().unwrap();
        session.input().extend_from_slice(&message(b'c', b""));
        assert_eq!(session.next_event().unwrap(), Some(Event::StreamEnded));
        session.finish(Some((TimelineId(4), Lsn(0x5000)))).unwrap();
        assert_eq!(kinds(&session.take_output()), "WcTDCCZ");

        session.start_streaming().unwrap();
        session.input().extend_from_slice(&message(b'c', b""));
        assert_eq!(session.next_event().unwrap(), Some(Event::StreamEnded));
        session.finish(None).unwrap();
        assert_eq!(kinds(&session.take_output()), "WcCZ");
    }
}
