//! A client asks whether a transaction has committed.
//!
//! ```text
//!   SELECT understudy_mirror.committed('5-17') ──▶ waits while that is open or committing ──▶ the member answers
//! ```
//!
//! Invariant: the member says no only of a transaction of which this manager has seen, while it was primary, that it is not under way any
//! more. Elsewhere, and where the manager cannot read which one is meant, it says that nobody knows.

use std::time::Duration;

use proxy::core::settings::quote_literal;
use tokio::time::Instant;

use super::{Result, Session, gone};
use crate::core::record::{Parameter, Token};
use crate::sql;

const LOOK_AGAIN: Duration = Duration::from_millis(10);

impl Session {
    /// Waits for transactions that a statement asks about, as long as a statement waits for others at most, and tells the member that
    /// they are over.
    pub(super) async fn settle_asked(
        &mut self,
        source: &str,
        parameters: &[Parameter],
    ) -> Result<()> {
        // A transaction above READ COMMITTED may read what was there before the wait.
        if self.hub.config.single || self.names.has_snapshot {
            return Ok(());
        }
        let asked = sql::asked(source, parameters);
        if asked.is_empty() {
            return Ok(());
        }
        let own = self.transaction.as_ref().map(|own| own.token);
        let deadline = Instant::now() + self.hub.config.lock_timeout;
        let mut over = Vec::new();
        for text in asked {
            let Some(token) = Token::parse(&text).filter(|token| Some(*token) != own) else {
                continue;
            };
            while self.hub.is_under_way(token) && Instant::now() < deadline {
                tokio::select! {
                    gone = gone(&mut self.serving) => return Err(gone),
                    () = tokio::time::sleep(LOOK_AGAIN) => {}
                }
            }
            if !self.hub.is_under_way(token) {
                over.push(text);
            }
        }
        let over = quote_literal(&over.join(" "));
        let text = format!("SELECT pg_catalog.set_config('understudy_mirror.over', {over}, false)");
        self.ask(&text).await.map(drop)
    }
}
