//! The simple protocol: texts with any number of statements.

use bytes::BytesMut;
use protocol::frame::{self, Refusal};

use super::run::Form;
use super::{Done, Result, Session};
use crate::sql::Plan;

/// True if a text asks for the name of a transaction.
pub(super) fn is_show_token(text: &str) -> bool {
    text.trim()
        .trim_end_matches(';')
        .eq_ignore_ascii_case("show understudy.transaction")
}

impl Session {
    /// Executes a text.
    pub(super) async fn simple(&mut self, message: &[u8]) -> Result<()> {
        let text = frame::name(frame::body(message)).map(|(text, _)| text.to_owned());
        let Some(text) = text else {
            self.refuse(&Refusal::error(
                "22021",
                "invalid byte sequence for encoding \"UTF8\"",
            ))
            .await?;
            self.ready();
            return Ok(());
        };
        if is_show_token(&text) {
            self.show_token();
            self.ready();
            return Ok(());
        }
        if let Done::Failed = self.pass_pending(true).await? {
            self.prepared.has_failed = true;
            return Ok(());
        }
        let plans = self.outline(&text).await?;
        if plans.is_empty() {
            frame::put(&mut self.client.output, b'I', &[]);
            self.ready();
            return Ok(());
        }
        match self.hub.config.single {
            true => self.simple_singly(&text, plans).await?,
            false => self.run_all(&plans).await?,
        }
        self.ready();
        Ok(())
    }

    fn show_token(&mut self) {
        let token = self.last_token.clone().unwrap_or_default();
        frame::put_table(
            &mut self.client.output,
            &["understudy.transaction"],
            &[vec![token]],
        );
        frame::put_complete(&mut self.client.output, "SHOW");
    }

    /// Executes statements until one fails. Outside of a transaction those of one text are one.
    async fn run_all(&mut self, plans: &[(String, Plan)]) -> Result<()> {
        let has_steps = plans.iter().any(|(_, plan)| matches!(plan, Plan::Step(_)));
        // What is not known yet may be made by a statement before it.
        let has_writes = plans
            .iter()
            .any(|(_, plan)| matches!(plan, Plan::Write(_) | Plan::Unknown(_)));
        let together = plans.len() > 1 && !has_steps && has_writes && self.status == b'I';
        if together {
            self.ask("BEGIN").await?;
            self.transaction()?.is_own = true;
        }
        for (at, (source, plan)) in plans.iter().enumerate() {
            let before = self.client.output.len();
            // Statements before it may have changed what it means.
            let again = match at == 0 && !matches!(plan, Plan::Unknown(_)) {
                true => None,
                false => Some(self.plan(source, false).await?),
            };
            let plan = again
                .as_ref()
                .and_then(|plans| plans.first())
                .map_or(plan, |(_, plan)| plan);
            let done = self.run(source, plan, Form::Simple).await?;
            if let Done::Failed = done {
                return self.end_own(false).await;
            }
            if !together && self.is_own() {
                // What it answered counts only if it commits.
                let held = self
                    .client
                    .output
                    .split_off(before.min(self.client.output.len()));
                self.end_held(held).await?;
            }
        }
        if together {
            let held = self.client.output.split();
            self.end_held(held).await?;
        }
        Ok(())
    }

    pub(super) fn is_own(&self) -> bool {
        self.transaction
            .as_ref()
            .is_some_and(|transaction| transaction.is_own)
    }

    /// Commits a transaction that the manager has begun; its answers are told if it does.
    pub(super) async fn end_held(&mut self, held: BytesMut) -> Result<()> {
        if let Done::Well = self.commit().await? {
            self.client.output.extend_from_slice(&held);
        }
        Ok(())
    }

    /// Ends a transaction that the manager has begun.
    pub(super) async fn end_own(&mut self, well: bool) -> Result<()> {
        if !self.is_own() {
            return Ok(());
        }
        match well {
            true => self.end_held(BytesMut::new()).await,
            false => self.roll_back().await,
        }
    }
}
