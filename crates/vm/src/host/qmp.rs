//! QEMU's control protocol: a client for one connection.
//!
//! ```text
//!   ◀ {"QMP": ...}            greeting
//!   ▶ qmp_capabilities        once
//!   ▶ {"execute", "id"}  ◀ {"return", "id"} or {"error", "id"}; {"event"} at any time between
//! ```
//!
//! Invariant: an answer is taken for the command that it answers, by its id, never for another one. After an error
//! other than [`QmpError::Refused`] it is not known how far QEMU is.

mod ready;

pub use ready::Ready;

use std::collections::VecDeque;
use std::io::{self, Read, Write};
use std::os::fd::AsRawFd;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::{Duration, Instant};

use nix::errno::Errno;
use nix::sys::socket::{MsgFlags, recv};
use serde_json::{Value, json};

/// The longest line that is accepted. The longest that QEMU sends here has some kilobytes.
const LINE_BYTES: usize = 1 << 20;
/// Events that nobody takes are dropped, the oldest first.
const EVENTS_KEPT: usize = 256;

/// Why a command did not succeed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum QmpError {
    /// QEMU understood, and says no. The connection is good.
    #[error("QEMU refuses \"{command}\": {reason}")]
    Refused {
        /// What it was told.
        command: String,
        /// What it answers.
        reason: String,
    },
    /// There is no answer in time.
    #[error("QEMU does not answer \"{command}\" within {after:?}")]
    Timeout {
        /// What it was told.
        command: String,
        /// How long it was waited for.
        after: Duration,
    },
    /// QEMU has closed the connection, as it does when it ends.
    #[error("QEMU closed the connection")]
    Closed,
    /// What answers does not speak the protocol.
    #[error("this is not QEMU's control protocol: {0}")]
    Malformed(String),
    /// The connection failed.
    #[error("cannot talk to QEMU")]
    System(#[from] io::Error),
}

/// Something that QEMU tells by itself.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Event {
    /// Its name, such as `STOP`.
    pub name: String,
    /// What belongs to it.
    pub data: Value,
}

/// A connection to QEMU.
#[derive(Debug)]
pub struct Qmp {
    stream: UnixStream,
    /// What was received and not read.
    received: Vec<u8>,
    events: VecDeque<Event>,
    last: u64,
}

impl Qmp {
    /// Connects, and agrees on the protocol.
    ///
    /// # Errors
    /// See [`QmpError`]. `System` with `NotFound` or `ConnectionRefused` if QEMU does not listen yet.
    pub fn connect(path: &Path, within: Duration) -> Result<Qmp, QmpError> {
        Qmp::over(UnixStream::connect(path)?, within)
    }

    fn over(stream: UnixStream, within: Duration) -> Result<Qmp, QmpError> {
        let mut qmp = Qmp {
            stream,
            received: Vec::new(),
            events: VecDeque::new(),
            last: 0,
        };
        let deadline = Instant::now() + within;
        let greeting = qmp
            .message(deadline)
            .map_err(|error| late(error, "greeting", within))?;
        if greeting.get("QMP").is_none() {
            return Err(malformed("no greeting", &greeting));
        }
        qmp.run("qmp_capabilities", Value::Null, within)?;
        Ok(qmp)
    }

    /// Runs a command, and returns what it returns. `arguments` is an object, or null for none.
    ///
    /// # Errors
    /// See [`QmpError`].
    pub fn run(
        &mut self,
        command: &str,
        arguments: Value,
        within: Duration,
    ) -> Result<Value, QmpError> {
        let mut message = self.next(command, arguments);
        message.push('\n');
        let deadline = Instant::now() + within;
        self.send(message.as_bytes(), deadline)
            .map_err(|error| late(error, command, within))?;
        self.answer(command, deadline)
            .map_err(|error| late(error, command, within))
    }

    /// Reads what QEMU has told by itself, without waiting. A connection on which nobody asks anything must do this now and then, or
    /// what was told would gather in QEMU.
    ///
    /// # Errors
    /// See [`QmpError`].
    pub fn listen(&mut self) -> Result<(), QmpError> {
        let mut part = [0; 16 << 10];
        let flags = MsgFlags::MSG_DONTWAIT;
        match recv(self.stream.as_raw_fd(), &mut part, flags) {
            Ok(0) => return Err(QmpError::Closed),
            Ok(count) => self.received.extend_from_slice(&part[..count]),
            Err(Errno::EAGAIN | Errno::EINTR) => {}
            Err(error) => return Err(ended(error.into())),
        }
        while let Some(line) = self.received_line(0) {
            let message = object(&line)?;
            let id = message.get("id").and_then(Value::as_u64);
            if message.get("event").is_some() {
                self.keep_event(&message)?;
            } else if id.is_none_or(|id| id > self.last) {
                return Err(malformed("an answer that nobody waits for", &message));
            }
        }
        self.bounded()
    }

    /// A command with the next number.
    fn next(&mut self, command: &str, arguments: Value) -> String {
        self.last += 1;
        let mut message = json!({"execute": command, "id": self.last});
        if !arguments.is_null() {
            message["arguments"] = arguments;
        }
        message.to_string()
    }

    /// What QEMU told since the last call.
    pub fn take_events(&mut self) -> Vec<Event> {
        self.events.drain(..).collect()
    }

    fn send(&mut self, bytes: &[u8], deadline: Instant) -> Result<(), QmpError> {
        self.stream.set_write_timeout(Some(left(deadline)?))?;
        self.stream.write_all(bytes).map_err(ended)
    }

    fn answer(&mut self, command: &str, deadline: Instant) -> Result<Value, QmpError> {
        loop {
            let mut message = self.message(deadline)?;
            if message.get("event").is_some() {
                self.keep_event(&message)?;
                continue;
            }
            match message.get("id").and_then(Value::as_u64) {
                // Of a command that was given up.
                Some(id) if id < self.last => continue,
                Some(id) if id == self.last => {}
                _ => return Err(malformed("an answer that nobody waits for", &message)),
            }
            if let Some(error) = message.get("error") {
                let reason = error
                    .get("desc")
                    .and_then(Value::as_str)
                    .unwrap_or("no reason given");
                return Err(QmpError::Refused {
                    command: command.to_owned(),
                    reason: reason.to_owned(),
                });
            }
            return match message.get_mut("return") {
                Some(value) => Ok(value.take()),
                None => Err(malformed("neither a result nor an error", &message)),
            };
        }
    }

    fn keep_event(&mut self, message: &Value) -> Result<(), QmpError> {
        let name = message.get("event").and_then(Value::as_str);
        let name = name.ok_or_else(|| malformed("an event without a name", message))?;
        if self.events.len() == EVENTS_KEPT {
            self.events.pop_front();
        }
        self.events.push_back(Event {
            name: name.to_owned(),
            data: message.get("data").cloned().unwrap_or_default(),
        });
        Ok(())
    }

    /// The next line, as an object.
    fn message(&mut self, deadline: Instant) -> Result<Value, QmpError> {
        object(&self.line(deadline)?)
    }

    fn line(&mut self, deadline: Instant) -> Result<Vec<u8>, QmpError> {
        let mut searched = 0;
        loop {
            if let Some(line) = self.received_line(searched) {
                return Ok(line);
            }
            searched = self.received.len();
            self.bounded()?;
            self.stream.set_read_timeout(Some(left(deadline)?))?;
            let mut part = [0; 16 << 10];
            match self.stream.read(&mut part) {
                Ok(0) => return Err(QmpError::Closed),
                Ok(count) => self.received.extend_from_slice(&part[..count]),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(ended(error)),
            }
        }
    }

    /// The first line, if all of it was received; its end is not before `searched`.
    fn received_line(&mut self, searched: usize) -> Option<Vec<u8>> {
        let unseen = &self.received[searched..];
        let end = unseen.iter().position(|byte| *byte == b'\n')?;
        let mut line: Vec<u8> = self.received.drain(..=searched + end).collect();
        line.pop();
        Some(line)
    }

    fn bounded(&self) -> Result<(), QmpError> {
        match self.received.len() > LINE_BYTES {
            true => Err(QmpError::Malformed(format!(
                "a line of more than {LINE_BYTES} bytes"
            ))),
            false => Ok(()),
        }
    }
}

fn object(line: &[u8]) -> Result<Value, QmpError> {
    let shown = || String::from_utf8_lossy(&line[..line.len().min(200)]).into_owned();
    match serde_json::from_slice(line) {
        Ok(Value::Object(object)) => Ok(Value::Object(object)),
        Ok(_) => Err(QmpError::Malformed(format!("not an object: {}", shown()))),
        Err(error) => Err(QmpError::Malformed(format!("{error}: {}", shown()))),
    }
}

/// The time until the deadline, which is not zero.
fn left(deadline: Instant) -> Result<Duration, QmpError> {
    let left = deadline.saturating_duration_since(Instant::now());
    if left.is_zero() {
        return Err(QmpError::System(io::ErrorKind::TimedOut.into()));
    }
    Ok(left)
}

/// An error of the connection: QEMU's end is told in more than one way.
fn ended(error: io::Error) -> QmpError {
    match error.kind() {
        io::ErrorKind::BrokenPipe | io::ErrorKind::ConnectionReset => QmpError::Closed,
        _ => QmpError::System(error),
    }
}

/// Gives an error that is a time limit its name.
fn late(error: QmpError, command: &str, after: Duration) -> QmpError {
    match error {
        QmpError::System(e)
            if matches!(
                e.kind(),
                io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut
            ) =>
        {
            QmpError::Timeout {
                command: command.to_owned(),
                after,
            }
        }
        other => other,
    }
}

fn malformed(what: &str, message: &Value) -> QmpError {
    let text: String = message.to_string().chars().take(200).collect();
    QmpError::Malformed(format!("{what}: {text}"))
}

#[cfg(test)]
mod tests;
