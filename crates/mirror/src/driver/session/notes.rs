//! What is noted of a statement besides its text: the settings that it may depend on, the sequences that it has advanced.

use proxy::core::settings::quote_literal;

use super::super::wire::Said;
use super::{Result, Session};
use crate::core::record::Statement;

/// Settings that what a statement does or answers may depend on.
const SETTINGS: &[&str] = &[
    "search_path",
    "TimeZone",
    "DateStyle",
    "IntervalStyle",
    "bytea_output",
    "extra_float_digits",
    "client_encoding",
    "default_text_search_config",
    "array_nulls",
    "transform_null_equals",
    "check_function_bodies",
    "default_tablespace",
    "default_table_access_method",
    "row_security",
    "xmlbinary",
    "backslash_quote",
    "lc_monetary",
    "lc_numeric",
    "lc_time",
];

impl Session {
    /// Notes what the session's settings are, before the first statement that may depend on them.
    pub(super) async fn note_settings(&mut self) -> Result<Option<Box<Said>>> {
        if self.transaction()?.has_settings {
            return Ok(None);
        }
        if let Some(settings) = self.memory.settings() {
            let transaction = self.transaction()?;
            transaction.has_settings = true;
            transaction.note(settings);
            return Ok(None);
        }
        let names: Vec<String> = SETTINGS
            .iter()
            .map(|name| format!("pg_catalog.current_setting('{name}')"))
            .collect();
        let reply = self
            .ask(&format!("SELECT current_user, {}", names.join(", ")))
            .await?;
        if let Some(said) = reply.error {
            return Ok(Some(said));
        }
        let mut row = reply.row().into_iter().flatten();
        let user = row.next().unwrap_or_default();
        let mut sets: Vec<String> = SETTINGS
            .iter()
            .zip(row)
            .map(|(name, value)| {
                format!(
                    "pg_catalog.set_config('{name}', {}, false)",
                    quote_literal(&value)
                )
            })
            .collect();
        sets.push(format!(
            "pg_catalog.set_config('role', {}, false)",
            quote_literal(&user)
        ));
        let settings = Statement {
            text: format!("SELECT {}", sets.join(", ")),
            ..Statement::default()
        };
        self.memory.learn_settings(settings.clone());
        let transaction = self.transaction()?;
        transaction.has_settings = true;
        transaction.note(settings);
        Ok(None)
    }

    /// Notes how far a statement has advanced sequences.
    pub(super) async fn note_sequences(&mut self, names: &[String]) -> Result<Option<Box<Said>>> {
        for name in names {
            let text = format!(
                "SELECT pg_catalog.currval({0}::pg_catalog.regclass), pg_catalog.format('%I.%I', n.nspname, c.relname) \
                 FROM pg_catalog.pg_class c JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace \
                 WHERE c.oid = {0}::pg_catalog.regclass",
                quote_literal(name)
            );
            let savepoint = self.ask("SAVEPOINT understudy_sequence").await?;
            if let Some(said) = savepoint.error {
                return Ok(Some(said));
            }
            let reply = self.ask(&text).await?;
            let row = reply.row();
            if reply.error.is_some() {
                // No row was made, and the sequence was not advanced.
                self.ask("ROLLBACK TO SAVEPOINT understudy_sequence")
                    .await?;
            }
            self.ask("RELEASE SAVEPOINT understudy_sequence").await?;
            let value = row
                .first()
                .cloned()
                .flatten()
                .and_then(|value| value.parse().ok());
            let full = row.get(1).cloned().flatten();
            if let (Some(value), Some(full)) = (value, full) {
                let transaction = self.transaction()?;
                transaction.sequences.retain(|(other, _)| *other != full);
                transaction.sequences.push((full, value));
            }
        }
        Ok(None)
    }
}
