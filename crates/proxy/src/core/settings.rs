//! The settings of a session, and how a server is given them.
//!
//! A setting is kept as the statement that set it, so that whatever the statement means it means again.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

/// A change of a setting that outlives its transaction.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Change {
    /// `SET`.
    Set {
        /// In lower case.
        name: Box<str>,
        /// The statement.
        statement: Box<str>,
        /// The value, if it is a single constant.
        value: Option<Box<str>>,
    },
    /// `RESET` of one setting.
    Reset(Box<str>),
    /// `RESET ALL`.
    ResetAll,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
struct Setting {
    statement: Box<str>,
    value: Option<Box<str>>,
}

impl Change {
    /// A setting gets this value, which is taken as it is: `SET` would take a list for one name.
    pub fn to_value(name: &str, value: &str) -> Change {
        let name = name.to_ascii_lowercase();
        let (of, to) = (quote_literal(&name), quote_literal(value));
        Change::Set {
            statement: format!("SELECT pg_catalog.set_config({of}, {to}, false)").into(),
            name: name.into(),
            value: Some(value.into()),
        }
    }
}

/// Joins statements to one text, whatever they end with: a comment goes on to the end of its line.
pub fn join(statements: &[String]) -> String {
    statements.join("\n; ")
}

/// The settings that differ from what a new connection of this user to this database has.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Settings(BTreeMap<Box<str>, Setting>);

/// Whom the session is taken for. Whatever changes it takes the role away.
const AUTHORIZATION: &str = "session_authorization";
/// Whose privileges it has.
const ROLE: &str = "role";
/// `RESET ALL` does not touch these.
const WHO: &[&str] = &[ROLE, AUTHORIZATION];

impl Settings {
    /// Makes a change.
    pub fn apply(&mut self, change: &Change) {
        if let Change::Set { name, .. } | Change::Reset(name) = change
            && &**name == AUTHORIZATION
        {
            self.0.remove(ROLE);
        }
        match change {
            Change::Set {
                name,
                statement,
                value,
            } => {
                let setting = Setting {
                    statement: statement.clone(),
                    value: value.clone(),
                };
                self.0.insert(name.clone(), setting);
            }
            Change::Reset(name) => {
                self.0.remove(name);
            }
            Change::ResetAll => self.0.retain(|name, _| WHO.contains(&name.as_ref())),
        }
    }

    /// Sets `name` to a value from a startup message.
    pub fn set(&mut self, name: &str, value: &str) {
        self.apply(&Change::to_value(name, value));
    }

    /// Takes over from `others` what is not set here.
    pub fn apply_all_missing(&mut self, others: &Settings) {
        for (name, setting) in &others.0 {
            self.0
                .entry(name.clone())
                .or_insert_with(|| setting.clone());
        }
    }

    /// The value of a setting, if it was set to a single constant.
    pub fn value(&self, name: &str) -> Option<&str> {
        self.0.get(name)?.value.as_deref()
    }

    /// True if `name` is set, to whatever.
    pub fn has(&self, name: &str) -> bool {
        self.0.contains_key(name)
    }

    /// The names of what is set.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.0.keys().map(AsRef::as_ref)
    }

    /// `name` is not set any more.
    pub fn remove(&mut self, name: &str) {
        self.apply(&Change::Reset(name.into()));
    }

    /// True if nothing is set.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Nothing is set any more.
    pub fn clear(&mut self) {
        self.0.clear();
    }

    /// The statements that take a server from these settings to `wanted`, joined to one text; `None` if
    /// it has them. Who the user is comes last when it is set, and first when it is reset.
    pub fn statements_to(&self, wanted: &Settings) -> Option<String> {
        if self == wanted {
            return None;
        }
        let loses_role = self.0.get(AUTHORIZATION) != wanted.0.get(AUTHORIZATION);
        let mut statements = Vec::new();
        let gone = self.0.keys().filter(|name| !wanted.0.contains_key(*name));
        let (who, what): (Vec<_>, Vec<_>) = gone.partition(|name| WHO.contains(&name.as_ref()));
        for name in who.into_iter().chain(what) {
            statements.push(format!("RESET {}", quote_identifier(name)));
        }
        let new = wanted.0.iter().filter(|(name, setting)| {
            self.0.get(*name) != Some(setting) || loses_role && &***name == ROLE
        });
        let (who, what): (Vec<_>, Vec<_>) = new.partition(|(name, _)| WHO.contains(&name.as_ref()));
        // The role comes last: the other one would take it away.
        for (_, setting) in what.into_iter().chain(who.into_iter().rev()) {
            statements.push(setting.statement.to_string());
        }
        Some(join(&statements))
    }
}

/// A name in double quotes.
pub fn quote_name(name: &str) -> String {
    format!("\"{}\"", name.replace('"', "\"\""))
}

/// A name in double quotes; each piece of one with dots.
pub fn quote_identifier(name: &str) -> String {
    let pieces: Vec<String> = name.split('.').map(quote_name).collect();
    pieces.join(".")
}

/// A string in single quotes.
pub fn quote_literal(text: &str) -> String {
    let quoted = text.replace('\'', "''");
    if quoted.contains('\\') {
        format!("E'{}'", quoted.replace('\\', "\\\\"))
    } else {
        format!("'{quoted}'")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_server_gets_what_it_lacks_and_loses_what_is_not_wanted() {
        let mut server = Settings::default();
        let mut wanted = Settings::default();
        assert_eq!(server.statements_to(&wanted), None);
        server.set("a.b", "old");
        server.set("work_mem", "1MB");
        server.set("role", "somebody");
        wanted.set("work_mem", "1MB");
        wanted.set("a.c", "it's");
        wanted.set("session_authorization", "me");
        assert_eq!(
            server.statements_to(&wanted).as_deref(),
            Some(
                "RESET \"role\"\n; RESET \"a\".\"b\"\n; \
                 SELECT pg_catalog.set_config('a.c', 'it''s', false)\n; \
                 SELECT pg_catalog.set_config('session_authorization', 'me', false)"
            )
        );
    }

    /// A server of which another session had taken the authorization must not be left with the privileges of
    /// its login: setting or resetting the authorization takes the role away.
    #[test]
    fn the_role_is_set_again_when_the_authorization_changes() {
        let mut server = Settings::default();
        server.set("session_authorization", "other");
        server.set("role", "limited");
        let mut wanted = Settings::default();
        wanted.set("role", "limited");
        assert_eq!(
            server.statements_to(&wanted).as_deref(),
            Some(
                "RESET \"session_authorization\"\n; SELECT pg_catalog.set_config('role', 'limited', false)"
            )
        );
        assert_eq!(
            wanted.statements_to(&server).as_deref(),
            Some(
                "SELECT pg_catalog.set_config('session_authorization', 'other', false)\n; \
                 SELECT pg_catalog.set_config('role', 'limited', false)"
            )
        );
        server.set("session_authorization", "third");
        assert_eq!(server.value("role"), None);
    }

    /// A server that is told `SET search_path TO 'a, b'` looks for one schema of that name.
    #[test]
    fn a_list_stays_a_list() {
        let mut wanted = Settings::default();
        wanted.set("search_path", "app, public");
        assert_eq!(
            Settings::default().statements_to(&wanted).as_deref(),
            Some("SELECT pg_catalog.set_config('search_path', 'app, public', false)")
        );
    }

    /// The role after it would not be set, and be taken for set.
    #[test]
    fn a_comment_at_the_end_hides_nothing() {
        let mut wanted = Settings::default();
        for (name, statement) in [("a.b", "SET a.b = 1 -- why"), ("role", "SET ROLE limited")] {
            wanted.apply(&Change::Set {
                name: name.into(),
                statement: statement.into(),
                value: None,
            });
        }
        assert_eq!(
            Settings::default().statements_to(&wanted).as_deref(),
            Some("SET a.b = 1 -- why\n; SET ROLE limited")
        );
    }

    #[test]
    fn reset_all_keeps_who_the_user_is() {
        let mut settings = Settings::default();
        settings.set("role", "somebody");
        settings.set("work_mem", "1MB");
        settings.apply(&Change::ResetAll);
        assert_eq!(settings.value("role"), Some("somebody"));
        assert_eq!(settings.value("work_mem"), None);
    }

    #[test]
    fn backslashes_are_escaped_whatever_the_session_has_set() {
        assert_eq!(quote_literal("a\\'b"), "E'a\\\\''b'");
    }
}
