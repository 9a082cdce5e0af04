//! A command that QEMU begins at once when it is wanted.
//!
//! QEMU reads what it is told byte by byte, each in a turn of a loop with several system calls, and the command that saves devices has more
//! than a hundred. Here all of it is sent in advance, but for the brace that ends it.
//!
//! Invariant: QEMU does nothing before [`begin`](Ready::begin). Each such command has a connection of its own, on which nothing else can be
//! said meanwhile.

use std::path::Path;
use std::time::{Duration, Instant};

use serde_json::Value;

use super::{Qmp, QmpError, late};

/// What ends a command.
const END: &[u8] = b"}\n";

/// Commands that are sent but for their last byte, so that the pause is short.
#[derive(Debug)]
pub struct Ready {
    qmp: Qmp,
    command: &'static str,
    arguments: Value,
    within: Duration,
    /// True if QEMU has all but the end.
    is_ready: bool,
    /// When the answer is late, if one is waited for.
    deadline: Option<Instant>,
}

impl Ready {
    /// Of a connection that is used for nothing else. QEMU may take so long for the command.
    ///
    /// # Errors
    /// See [`QmpError`].
    pub fn connect(
        path: &Path,
        command: &'static str,
        arguments: Value,
        within: Duration,
    ) -> Result<Ready, QmpError> {
        Ready::over(Qmp::connect(path, within)?, command, arguments, within)
    }

    pub(super) fn over(
        qmp: Qmp,
        command: &'static str,
        arguments: Value,
        within: Duration,
    ) -> Result<Ready, QmpError> {
        let mut ready = Ready {
            qmp,
            command,
            arguments,
            within,
            is_ready: false,
            deadline: None,
        };
        ready.prepare()?;
        Ok(ready)
    }

    /// Sends all but the end, unless that was done.
    ///
    /// # Errors
    /// See [`QmpError`].
    pub fn prepare(&mut self) -> Result<(), QmpError> {
        if self.is_ready {
            return Ok(());
        }
        let message = self.qmp.next(self.command, self.arguments.clone());
        let begin = message.strip_suffix('}').unwrap_or(&message);
        self.send(begin.as_bytes(), Instant::now() + self.within)?;
        self.is_ready = true;
        Ok(())
    }

    /// Sends the end: QEMU begins. [`end`](Ready::end) waits for the answer.
    ///
    /// # Errors
    /// See [`QmpError`].
    pub fn begin(&mut self) -> Result<(), QmpError> {
        self.prepare()?;
        let deadline = Instant::now() + self.within;
        self.is_ready = false;
        self.deadline = Some(deadline);
        self.send(END, deadline)
    }

    /// True if it was begun, and nobody has waited for the answer.
    pub fn is_begun(&self) -> bool {
        self.deadline.is_some()
    }

    /// Waits for the answer to what was begun; begins if nothing was.
    ///
    /// # Errors
    /// See [`QmpError`].
    pub fn end(&mut self) -> Result<Value, QmpError> {
        if !self.is_begun() {
            self.begin()?;
        }
        let deadline = self.deadline.take().unwrap_or_else(Instant::now);
        let answer = self.qmp.answer(self.command, deadline);
        answer.map_err(|error| late(error, self.command, self.within))
    }

    fn send(&mut self, bytes: &[u8], deadline: Instant) -> Result<(), QmpError> {
        let sent = self.qmp.send(bytes, deadline);
        sent.map_err(|error| late(error, self.command, self.within))
    }
}
