//! What is noted of a statement besides its text: the settings that it may depend on, the sequences that it has advanced.

use bytes::BytesMut;
use protocol::frame::Refusal;
use proxy::core::settings::quote_literal;

use super::super::wire::{Said, Wire, columns};
use super::run::Ran;
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
    "standard_conforming_strings",
    "lc_monetary",
    "lc_numeric",
    "lc_time",
];

/// Settings that must be what they are on the other member, which is not told them. The last says what transactions are that do
/// not say it themselves.
const CHECKED: &[&str] = &[
    "session_replication_role",
    "transaction_isolation",
    "default_transaction_isolation",
];

/// True if transactions of this isolation see what was there when they began.
fn is_snapshot(isolation: &str) -> bool {
    matches!(isolation, "repeatable read" | "serializable")
}

/// True if statements do the same on the other member with this setting.
fn is_fit(name: &str, value: &str) -> bool {
    match name {
        "session_replication_role" => value == "origin",
        "transaction_isolation" => !is_snapshot(value),
        "standard_conforming_strings" => value == "on",
        "extra_float_digits" => value.parse().is_ok_and(|digits: i32| digits > 0),
        // A server without an encoding passes on what it is sent.
        "client_encoding" => matches!(value, "UTF8" | "SQL_ASCII"),
        _ => true,
    }
}

/// A refusal of what is written with such a setting, however it was made.
fn unfit(name: &str, value: &str) -> Refusal {
    let (why, what) = match name {
        "transaction_isolation" => (
            "The transaction sees what was there when it began, and the other member would see what is there when it executes it.",
            "READ COMMITTED",
        ),
        "session_replication_role" => (
            "Triggers and foreign keys do something else then than on the other member.",
            "origin",
        ),
        "client_encoding" => (
            "What is written would be lost on the way to the other member.",
            "UTF8",
        ),
        "extra_float_digits" => (
            "Numbers would be rounded on the way to the other member.",
            "1",
        ),
        _ => ("Texts mean something else then than to the mirror.", "on"),
    };
    Refusal::error("0A000", format!("with {name} = \"{value}\" nothing can be written through the mirror"))
        .detail(why)
        .hint(format!(
            "Set it to {what} where it was set: in the session, by ALTER ROLE or ALTER DATABASE, in the connection's options, or in \
             the server's configuration."
        ))
}

/// A refusal of what is written as somebody else than before.
fn another_login() -> Refusal {
    Refusal::error("0A000", "a transaction that has written as another session user cannot go on through the mirror")
        .detail("The other member executes a transaction in a session of whoever has logged in, and of nobody else.")
        .hint("End the transaction before SET SESSION AUTHORIZATION, or use SET ROLE.")
}

impl Session {
    /// Notes what the session's settings are, before the first statement that may depend on them. `Some` if that cannot be, or
    /// with these it could do something else on the other member.
    pub(super) async fn note_settings(&mut self) -> Result<Option<Ran>> {
        if self.transaction()?.has_settings {
            return Ok(None);
        }
        if let Some(settings) = self.memory.settings() {
            let transaction = self.transaction()?;
            transaction.has_settings = true;
            transaction.note(settings);
            return Ok(None);
        }
        let asked = CHECKED.iter().chain(SETTINGS);
        let names: Vec<String> = asked
            .map(|name| format!("pg_catalog.current_setting('{name}')"))
            .collect();
        let reply = self
            .ask_again(&format!(
                "SELECT session_user, current_user, {}",
                names.join(", ")
            ))
            .await?;
        if let Some(said) = reply.error {
            return Ok(Some(Ran::Failed(said)));
        }
        let mut row = reply.row().into_iter().flatten();
        let login = row.next().unwrap_or_default();
        let user = row.next().unwrap_or_default();
        let checked: Vec<String> = row.by_ref().take(CHECKED.len()).collect();
        let values: Vec<String> = row.collect();
        let all = || {
            let names = CHECKED.iter().chain(SETTINGS).copied();
            names.zip(checked.iter().chain(&values).map(String::as_str))
        };
        if let Some((name, value)) = all().find(|(name, value)| !is_fit(name, value)) {
            return Ok(Some(Ran::Refused(unfit(name, value))));
        }
        let mut sets: Vec<String> = SETTINGS
            .iter()
            .zip(&values)
            .map(|(name, value)| {
                format!(
                    "pg_catalog.set_config('{name}', {}, false)",
                    quote_literal(value)
                )
            })
            .collect();
        sets.push(format!(
            "pg_catalog.set_config('role', {}, false)",
            quote_literal(&user)
        ));
        if self.transaction()?.login().is_some_and(|own| own != login) {
            return Ok(Some(Ran::Refused(another_login())));
        }
        let settings = Statement::settings(&sets.join(", "), &login);
        // The next transaction is as this one only if it begins as most do.
        if checked.last().is_some_and(|default| !is_snapshot(default)) {
            self.memory.learn_settings(settings.clone());
        }
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
         FROM pg_catalog.pg_class c JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace \
         WHERE c.relpersistence <> 't' AND c.oid IN ({})",
        names.join(", ")
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_does_the_same_on_both_members_is_fit() {
        for (name, value) in [
            ("session_replication_role", "replica"),
            ("transaction_isolation", "serializable"),
            ("transaction_isolation", "repeatable read"),
            ("standard_conforming_strings", "off"),
            ("extra_float_digits", "0"),
            ("extra_float_digits", "-15"),
            ("client_encoding", "LATIN1"),
        ] {
            assert!(!is_fit(name, value), "{name} {value}");
            assert!(unfit(name, value).hint.is_some());
        }
        for (name, value) in [
            ("session_replication_role", "origin"),
            ("transaction_isolation", "read committed"),
            ("default_transaction_isolation", "serializable"),
            ("standard_conforming_strings", "on"),
            ("extra_float_digits", "3"),
            ("client_encoding", "UTF8"),
            ("TimeZone", "Asia/Tokyo"),
        ] {
            assert!(is_fit(name, value), "{name} {value}");
        }
    }
}
