//! Statements that both members execute as they are: the primary's member is sent the client's own messages, and with them all
//! that the manager wants to know.
//!
//! ```text
//!   BEGIN, if there was none yet   the client's Parse, Bind, Describe, Execute   the time, if it is needed   Sync
//! ```
//!
//! Invariant: nothing of the client's is executed outside of its transaction. `BEGIN` goes before it in the same batch, so if that
//! fails the member skips what follows.

use bytes::BytesMut;

use super::super::member::{answers, digest_of_last, split_last};
use super::super::wire::{Reply, Said, Wire, columns, reply};
use super::run::{Form, Ran, refuse_own_types};
use super::{End, Result, Session};
use crate::core::record::{Parameter, Statement};
use crate::sql::Write;

/// When the transaction began, in a form that no setting changes the meaning of.
const TIME: &str =
    "SELECT pg_catalog.to_char(pg_catalog.now() AT TIME ZONE 'UTC', 'YYYY-MM-DD HH24:MI:SS.US+00')";
/// The type `timestamp with time zone`.
const TIME_TYPE: u32 = 1184;

impl Session {
    /// Puts the beginning of a transaction that the member has not been sent yet, before something that goes up to `Sync`.
    pub(super) fn put_begin(&mut self) -> Result<()> {
        if self.forget_begin() {
            let Wire {
                statements, output, ..
            } = &mut self.server;
            let answers = statements.put_open(output, "BEGIN", &[], &[])?;
            self.server.skip(answers + 1);
        }
        Ok(())
    }

    /// Sends it by itself, where what follows is of the simple protocol, which does not skip what follows an error.
    pub(super) async fn begin_alone(&mut self) -> Result<Option<Box<Said>>> {
        match self.forget_begin() {
            true => Ok(self.ask("BEGIN").await?.error),
            false => Ok(None),
        }
    }

    /// The beginning need not be sent any more, if it was not.
    pub(super) fn forget_begin(&mut self) -> bool {
        std::mem::take(&mut self.begins)
    }

    /// Has the member execute what the client has sent; `execute` is the last message of it.
    pub(super) async fn run_as_it_is(
        &mut self,
        write: &Write,
        form: Form<'_>,
        execute: &[u8],
    ) -> Result<Ran> {
        let asks = !write.needs.is_empty() && self.transaction()?.time.is_none();
        self.put_own(execute)?;
        if asks {
            let Wire {
                statements, output, ..
            } = &mut self.server;
            statements.put_open(output, TIME, &[], &[])?;
        }
        self.put_sequences(&write.sequences)?;
        self.server.sync();
        self.server.flush().await?;
        let mut reply = reply(&mut self.server).await?;
        self.status = reply.status;
        self.note_answers(&reply);
        if let Some(said) = reply.error {
            self.server.statements.failed();
            super::pass(&reply.messages, &mut self.client.output);
            return Ok(Ran::Failed(said));
        }
        self.server.statements.seen();
        let asked = usize::from(asks) + usize::from(!write.sequences.is_empty());
        let mut answered = split_last(&mut reply.messages, asked).into_iter();
        if asks {
            let answer = answered.next().unwrap_or_default();
            let row = answer.iter().find(|message| message[0] == b'D');
            self.transaction()?.time =
                row.and_then(|row| columns(row).into_iter().next().flatten());
        }
        if let Some(answer) = answered.next() {
            self.note_sequences(&answer)?;
        }
        if reply.messages.last().is_none_or(|last| last[0] != b'C') {
            let text = "the member has not executed a statement, and does not say why";
            return Err(End::Lost(std::io::Error::other(text)));
        }
        if write.is_logged
            && let Some(refusal) = refuse_own_types(&reply.messages, form)
        {
            self.pass_before_refusal(&reply);
            return Ok(Ran::Refused(refusal));
        }
        if write.is_logged {
            let mut parameters: Vec<Parameter> =
                form.parameters().iter().map(Parameter::portable).collect();
            let mut values = Vec::new();
            if !write.needs.is_empty() {
                let Some(time) = self.transaction()?.time.clone() else {
                    let text = "the member has not said what time it is";
                    return Err(End::Lost(std::io::Error::other(text)));
                };
                let number = parameters.len() + 1;
                parameters.push(Parameter {
                    type_oid: TIME_TYPE,
                    is_binary: false,
                    value: Some(time.into_bytes()),
                });
                let value = format!("CAST(${number} AS timestamp with time zone)");
                values = vec![value; write.needs.len()];
            }
            let statement = Statement {
                text: write.template.fill(&values),
                parameters,
                result_formats: form.result_formats().to_vec(),
                copied: None,
                digest: Some(digest_of_last(&reply)),
            };
            self.transaction()?.note(statement);
        }
        let most = self.hub.config.transaction_bytes;
        if let Some(refusal) = self.transaction()?.beyond(most) {
            self.pass_before_refusal(&reply);
            return Ok(Ran::Refused(refusal));
        }
        let ran = self.after_write(write).await?;
        match ran {
            Ran::Well => super::pass(&reply.messages, &mut self.client.output),
            _ => self.pass_before_refusal(&reply),
        }
        Ok(ran)
    }

    /// Passes on what the member has answered before a statement whose answer is replaced by an error: that names were taken and
    /// portals bound stays so, and a driver that is not told tries to take the name again.
    fn pass_before_refusal(&mut self, reply: &Reply) {
        super::pass(before_last(&reply.messages), &mut self.client.output);
    }

    /// Puts what the client has sent, up to `execute`.
    pub(super) fn put_own(&mut self, execute: &[u8]) -> Result<()> {
        self.put_begin()?;
        self.prepared.send(&mut self.server.output);
        self.server.output.extend_from_slice(execute);
        Ok(())
    }
}

/// What was answered before the rows, or the end, of the last statement.
fn before_last(messages: &[BytesMut]) -> &[BytesMut] {
    let last = answers(messages).last().unwrap_or_default();
    let begins = messages.len() - last.len();
    let is_execution = |message: &BytesMut| matches!(message[0], b'D' | b'C' | b'I');
    let rows = last.iter().position(is_execution);
    &messages[..begins + rows.unwrap_or(last.len())]
}

#[cfg(test)]
mod tests {
    use super::*;

    fn messages(kinds: &str) -> Vec<BytesMut> {
        let of = |kind: u8| BytesMut::from(&[kind, 0, 0, 0, 4][..]);
        kinds.bytes().map(of).collect()
    }

    /// A driver prepared under a name that was taken, again and again, because it was not told that it had been.
    #[test]
    fn what_comes_before_a_refusal_is_told() {
        for (answered, told) in [
            ("12C", "12"),
            ("12TDDC", "12T"),
            ("12TDC12TDC", "12TDC12T"),
            ("C", ""),
            ("", ""),
        ] {
            assert_eq!(before_last(&messages(answered)), messages(told));
        }
    }
}
