//! What is noted of a statement besides its text: the settings that it may depend on, the sequences that it has advanced.

use bytes::BytesMut;
use proxy::core::settings::quote_literal;

use super::super::wire::{Said, Wire, columns};
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
            .ask_again(&format!("SELECT current_user, {}", names.join(", ")))
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

    /// Asks how far a statement has advanced sequences, by itself.
    pub(super) async fn ask_sequences(&mut self, names: &[String]) -> Result<Option<Box<Said>>> {
        if names.is_empty() {
            return Ok(None);
        }
        let reply = self.ask_again(&question(names)).await?;
        if let Some(said) = reply.error {
            return Ok(Some(said));
        }
        self.note_sequences(&reply.messages)?;
        Ok(None)
    }

    /// Puts the same question behind a statement, in its batch.
    pub(super) fn put_sequences(&mut self, names: &[String]) -> Result<()> {
        if !names.is_empty() {
            let Wire {
                statements, output, ..
            } = &mut self.server;
            statements.put_open(output, &question(names), &[], &[])?;
        }
        Ok(())
    }

    /// Notes what was answered to it.
    pub(super) fn note_sequences(&mut self, answer: &[BytesMut]) -> Result<()> {
        for row in answer.iter().filter(|message| message[0] == b'D') {
            let mut row = columns(row).into_iter().flatten();
            let (Some(name), Some(value)) = (row.next(), row.next()) else {
                // Nobody has ever advanced it.
                continue;
            };
            let Ok(value) = value.parse() else {
                continue;
            };
            let transaction = self.transaction()?;
            transaction.sequences.retain(|(other, _)| *other != name);
            transaction.sequences.push((name, value));
        }
        Ok(())
    }
}

/// How far sequences are. Others may have advanced them as well: it does no harm if they are further on the other member.
fn question(names: &[String]) -> String {
    let names: Vec<String> = names
        .iter()
        .map(|name| format!("{}::pg_catalog.regclass", quote_literal(name)))
        .collect();
    format!(
        "SELECT pg_catalog.format('%I.%I', n.nspname, c.relname), pg_catalog.pg_sequence_last_value(c.oid) \
         FROM pg_catalog.pg_class c JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace WHERE c.oid IN ({})",
        names.join(", ")
    )
}
