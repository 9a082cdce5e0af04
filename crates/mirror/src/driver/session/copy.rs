//! `COPY ... FROM STDIN`: what the client sends is passed on, and kept for the other member.

use postgres_protocol::message::frontend;
use protocol::frame::{self, Refusal};

use super::super::member::digest;
use super::super::wire::{Reply, Said, status};
use super::run::{Form, Ran};
use super::transaction::too_long;
use super::{End, PENDING_BYTES, Result, Session};
use crate::core::record::Statement;
use crate::sql::Write;

impl Session {
    /// Passes on what a client copies, and keeps it in `kept`, of which there may be so much; the member is told to give it up
    /// if there is more, or if what was kept is refused in the end.
    pub(super) async fn copy_in(
        &mut self,
        mut kept: Option<(&mut Vec<u8>, usize)>,
        refuses: impl Fn(&[u8]) -> bool,
        form: Form<'_>,
    ) -> Result<()> {
        self.client.flush().await?;
        loop {
            let message = self.client.receive().await?;
            match message[0] {
                b'd' => {
                    if let Some((kept, room)) = &mut kept {
                        kept.extend_from_slice(frame::body(&message));
                        if kept.len() > *room {
                            // What the client sends from here on is ignored, as after any failure.
                            let why = "it is too long for the mirror's log";
                            frontend::copy_fail(why, &mut self.server.output)?;
                            return self.end_copy(form).await;
                        }
                    }
                    self.server.output.extend_from_slice(&message);
                    if self.server.output.len() >= PENDING_BYTES {
                        self.server.flush().await?;
                    }
                }
                b'c' | b'f' => {
                    let is_refused = kept.as_ref().is_some_and(|(kept, _)| refuses(kept));
                    match is_refused {
                        true => frontend::copy_fail("it is refused", &mut self.server.output)?,
                        false => self.server.output.extend_from_slice(&message),
                    }
                    return self.end_copy(form).await;
                }
                // PostgreSQL ignores them while it copies.
                b'H' | b'S' => {}
                b'X' => return Err(End::Terminated),
                kind => return Err(misplaced(kind)),
            }
        }
    }

    /// Sends the end of what is copied, whichever it is.
    async fn end_copy(&mut self, form: Form<'_>) -> Result<()> {
        if !matches!(form, Form::Simple) {
            // PostgreSQL ignored the one before the data.
            frontend::sync(&mut self.server.output);
        }
        self.server.flush().await?;
        Ok(())
    }

    /// Has the member copy what the client sends, and notes it.
    pub(super) async fn run_copy(
        &mut self,
        write: &Write,
        text: &str,
        form: Form<'_>,
    ) -> Result<Ran> {
        self.send(text, form)?;
        self.server.flush().await?;
        let room = self.room()?;
        let refuses = |copied: &[u8]| {
            write
                .times
                .as_ref()
                .is_some_and(|times| times.are_in(copied))
        };
        let mut copied = Vec::new();
        let mut answer = Reply::default();
        loop {
            let message = self.server.receive().await?;
            match message[0] {
                b'Z' => {
                    self.status = status(&message);
                    break;
                }
                b'E' => answer.error = Some(Box::new(Said::read(message))),
                b'G' => {
                    self.client.output.extend_from_slice(&message);
                    self.copy_in(Some((&mut copied, room)), refuses, form)
                        .await?;
                }
                b'C' => answer.messages.push(message),
                _ => {}
            }
        }
        let most = self.hub.config.transaction_bytes;
        if copied.len() > room {
            return Ok(Ran::Refused(too_long(most)));
        }
        if let Some(said) = answer.error {
            return Ok(match said.code == COPY_FAILED && refuses(&copied) {
                true => Ran::Refused(copies_a_time()),
                false => Ran::Failed(said),
            });
        }
        let statement = Statement {
            text: text.to_owned(),
            copied: Some(copied),
            digest: Some(digest(&answer)),
            ..Statement::default()
        };
        let transaction = self.transaction()?;
        transaction.note(statement);
        if let Some(refusal) = transaction.beyond(most) {
            return Ok(Ran::Refused(refusal));
        }
        super::pass(&answer.messages, &mut self.client.output);
        Ok(Ran::Well)
    }
}

/// What PostgreSQL says of a `COPY` that was given up.
const COPY_FAILED: &str = "57014";

fn copies_a_time() -> Refusal {
    Refusal::error("0A000", "what is copied cannot be mirrored")
        .detail("A field of a date or a time is \"now\", \"today\", \"tomorrow\" or \"yesterday\", which each member would read at its own time.")
        .hint("Write the date or time itself.")
}

/// The client sends something that is no part of a copy, while it copies: as PostgreSQL says it.
fn misplaced(kind: u8) -> End {
    let text = format!("unexpected message type 0x{kind:02X} during COPY from stdin");
    let refusal = Refusal::fatal("08P01", text);
    End::Told(Box::new(
        refusal.hint("End the copy with CopyDone or CopyFail first."),
    ))
}
