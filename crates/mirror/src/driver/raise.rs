//! Sequences that transactions with statements have advanced.
//!
//! Invariant: a sequence is at least as far as the log says, and is set back by nobody.

use proxy::core::settings::quote_literal;

use super::apply::{Applier, Failed};
use super::deputy::Deputy;
use super::member::Member;
use super::wire::WireError;
use crate::core::manager::Life;

/// How far ahead sequences are set, so that they need not be set each time.
const AHEAD: i64 = 32;

impl Member {
    /// True if a sequence has to be set.
    pub(super) async fn lacks(
        &self,
        life: Life,
        sequences: &mut impl Iterator<Item = &(String, i64)>,
    ) -> bool {
        let mut raised = self.raised.lock().await;
        let raised = raised.of(life);
        let is_raised =
            |name: &String, value: &i64| raised.get(name).is_some_and(|raised| raised >= value);
        sequences.any(|(name, value)| !is_raised(name, value))
    }

    /// Sets sequences at least so far, with the rights that it takes: a client need not have them. Sequences that the transaction itself
    /// has made or locked only its own session can set, as whoever has made them.
    pub(super) async fn raise_all(
        &self,
        applier: &mut Applier,
        sequences: &[(String, i64)],
        may_set_back: bool,
    ) -> Result<(), Failed> {
        if may_set_back {
            self.raised.lock().await.of(applier.life).clear();
        }
        // The transaction may have run as somebody with fewer rights.
        let own_role = "SET LOCAL ROLE NONE; SAVEPOINT understudy";
        for (name, value) in sequences {
            let is_own = applier.deputy == Deputy::Own.name();
            if is_own || may_set_back {
                applier.session.query(own_role).await?;
                match self.raise(applier, name, *value).await {
                    Err(Failed::Wire(WireError::Said(_))) if !is_own => {
                        applier.session.query("ROLLBACK TO understudy").await?;
                    }
                    raised => {
                        raised?;
                        continue;
                    }
                }
            }
            let mut own = self.applier(applier.life, &Deputy::Own).await?;
            own.reset().await?;
            self.raise(&mut own, name, *value).await?;
            self.give_back(own);
        }
        Ok(())
    }

    /// Sets a sequence at least so far. One after the other, so that none is set back. The session may have its client's path still, in
    /// which that client may have defined operators.
    async fn raise(&self, applier: &mut Applier, name: &str, value: i64) -> Result<(), Failed> {
        let mut raised = self.raised.lock().await;
        let raised = raised.of(applier.life);
        if raised.get(name).is_some_and(|raised| *raised >= value) {
            return Ok(());
        }
        let session = &mut applier.session;
        let name_text = quote_literal(name);
        let described = session
            .query(&format!(
                "SELECT seqincrement, pg_catalog.pg_sequence_last_value(seqrelid) FROM pg_catalog.pg_sequence \
                 WHERE seqrelid OPERATOR(pg_catalog.=) {name_text}::pg_catalog.regclass"
            ))
            .await?;
        let row = described.row();
        let number = |at: usize| row.get(at)?.as_ref()?.parse::<i64>().ok();
        let (increment, last) = (number(0).unwrap_or(1), number(1));
        let ahead = value.saturating_add(increment.saturating_mul(AHEAD));
        let is_behind =
            |last: i64| (increment > 0 && last < value) || (increment <= 0 && last > value);
        let mut reached = last.unwrap_or(value);
        if last.is_none_or(is_behind) {
            // Not where its range ends: after a takeover it would be at its end before it is.
            let set = format!(
                "SELECT pg_catalog.setval(s.seqrelid::pg_catalog.regclass, \
                 CASE WHEN {ahead} OPERATOR(pg_catalog.>=) s.seqmin AND {ahead} OPERATOR(pg_catalog.<=) s.seqmax \
                 THEN {ahead} ELSE {value} END) \
                 FROM pg_catalog.pg_sequence s WHERE s.seqrelid OPERATOR(pg_catalog.=) {name_text}::pg_catalog.regclass"
            );
            let set = session.query(&set).await?.value();
            reached = set.and_then(|set| set.parse().ok()).unwrap_or(value);
        }
        // What a client's session says is its word.
        if increment > 0 && applier.deputy == Deputy::Own.name() {
            raised.insert(name.to_owned(), reached);
        }
        Ok(())
    }
}
