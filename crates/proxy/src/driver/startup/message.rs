//! The startup message: who, which database, and settings.

use crate::core::settings::Settings;
use protocol::frame::{self, Refusal};

/// Contents of a startup message.
pub struct Startup {
    /// Minor version of protocol 3.
    pub minor: u32,
    pub user: String,
    pub database: String,
    /// Everything else, sorted.
    pub parameters: Vec<(String, String)>,
    /// Options of the protocol that we do not have.
    pub unknown: Vec<String>,
}

/// Reads a startup message of protocol 3.`minor`.
///
/// # Errors
/// What to tell the client.
pub fn read_startup(minor: u32, mut body: &[u8]) -> Result<Startup, Refusal> {
    let malformed = || {
        Refusal::fatal(
            "08P01",
            "invalid startup packet layout: expected terminator as last byte",
        )
    };
    let mut startup = Startup {
        minor,
        user: String::new(),
        database: String::new(),
        parameters: Vec::new(),
        unknown: Vec::new(),
    };
    loop {
        let (name, rest) = frame::name(body).ok_or_else(malformed)?;
        if name.is_empty() {
            break;
        }
        let (value, rest) = frame::name(rest).ok_or_else(malformed)?;
        match name {
            "user" => value.clone_into(&mut startup.user),
            "database" => value.clone_into(&mut startup.database),
            name if name.starts_with("_pq_.") => startup.unknown.push(name.to_owned()),
            name => startup.parameters.push((name.to_owned(), value.to_owned())),
        }
        body = rest;
    }
    if startup.user.is_empty() {
        let text = "no PostgreSQL user name specified in startup packet";
        return Err(Refusal::fatal("28000", text));
    }
    if startup.database.is_empty() {
        startup.database.clone_from(&startup.user);
    }
    startup.parameters.sort();
    Ok(startup)
}

/// Puts the address of a client behind the name of its application.
pub fn add_host(parameters: &mut Vec<(String, String)>, host: std::net::IpAddr) {
    let name = "application_name";
    match parameters.iter_mut().find(|(one, _)| one == name) {
        Some((_, value)) if !value.is_empty() => *value = format!("{value} - {host}"),
        Some((_, value)) => *value = host.to_string(),
        None => {
            parameters.push((name.to_owned(), host.to_string()));
            parameters.sort();
        }
    }
}

/// Adds settings that the client has not asked for itself.
pub fn add_settings(
    parameters: &mut Vec<(String, String)>,
    settings: impl IntoIterator<Item = (String, String)>,
) {
    let asked = settings_of(parameters);
    let new = settings.into_iter().filter(|(name, _)| !asked.has(name));
    parameters.extend(new);
    parameters.sort();
}

/// Kinds of replication connections.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Replication {
    /// Physical replication, of the whole server.
    Physical,
    /// Logical replication, of one database.
    Logical,
}

/// The replication that the connection is for, if it is.
pub fn replicates(parameters: &[(String, String)]) -> Option<Replication> {
    // The server takes the last one, and reads it like this.
    let mut asked = parameters.iter().rev();
    let (_, value) = asked.find(|(name, _)| name == "replication")?;
    if value == "database" {
        return Some(Replication::Logical);
    }
    let value = value.to_ascii_lowercase();
    let begins = |word: &str, least| value.len() >= least && word.starts_with(&value);
    let is_off = begins("false", 1) || begins("no", 1) || begins("off", 2) || value == "0";
    (!is_off).then_some(Replication::Physical)
}

/// The settings that parameters of a startup message are.
pub fn settings_of(parameters: &[(String, String)]) -> Settings {
    let mut settings = Settings::default();
    for (name, value) in parameters {
        if name == "options" {
            for (name, value) in options(value) {
                settings.set(&name, &value);
            }
        } else {
            settings.set(name, value);
        }
    }
    settings
}

/// The settings in `-c name=value --name=value`.
fn options(text: &str) -> Vec<(String, String)> {
    let mut words = Vec::new();
    let mut word = String::new();
    let mut is_escaped = false;
    for character in text.chars() {
        match character {
            _ if is_escaped => {
                word.push(character);
                is_escaped = false;
            }
            '\\' => is_escaped = true,
            ' ' | '\t' | '\n' => words.push(std::mem::take(&mut word)),
            _ => word.push(character),
        }
    }
    words.push(word);
    words.retain(|word| !word.is_empty() && word != "-c");
    let pair = |word: String| {
        let word = word
            .strip_prefix("--")
            .or(word.strip_prefix("-c"))
            .unwrap_or(&word);
        let (name, value) = word.split_once('=')?;
        Some((name.replace('-', "_"), value.to_owned()))
    };
    words.into_iter().filter_map(pair).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn options_are_settings() {
        let pair = |name: &str, value: &str| (name.to_owned(), value.to_owned());
        assert_eq!(
            options("-c work_mem=1MB --search-path=a\\ b  -cgeqo=off"),
            [
                pair("work_mem", "1MB"),
                pair("search_path", "a b"),
                pair("geqo", "off")
            ]
        );
    }

    /// Rules for replication must not let in what the server takes for an ordinary session.
    #[test]
    fn replication_is_what_the_server_takes_it_for() {
        let of = |values: &[&str]| {
            let pairs = values
                .iter()
                .map(|value| ("replication".to_owned(), (*value).to_owned()));
            replicates(&pairs.collect::<Vec<_>>())
        };
        for value in ["false", "F", "n", "NO", "of", "off", "0", "fal"] {
            assert_eq!(of(&[value]), None, "{value}");
        }
        for value in ["true", "1", "on", "y", "o", "Database"] {
            assert_eq!(of(&[value]), Some(Replication::Physical), "{value}");
        }
        assert_eq!(of(&["true", "database"]), Some(Replication::Logical));
        assert_eq!(of(&["true", "f"]), None);
        assert_eq!(of(&[]), None);
    }

    #[test]
    fn a_client_has_the_last_word_on_settings() {
        let pair = |name: &str, value: &str| (name.to_owned(), value.to_owned());
        let mut parameters = vec![pair("Work_Mem", "1MB"), pair("options", "-c geqo=off")];
        let settings = ["work_mem", "geqo", "search_path"].map(|name| pair(name, "2"));
        add_settings(&mut parameters, settings);
        assert_eq!(
            parameters,
            [
                pair("Work_Mem", "1MB"),
                pair("options", "-c geqo=off"),
                pair("search_path", "2")
            ]
        );
    }

    #[test]
    fn a_startup_message_without_a_user_is_refused() {
        let refused = read_startup(0, b"database\0d\0\0").err().expect("refused");
        assert_eq!(refused.code, "28000");
        let refused = read_startup(0, b"user\0u").err().expect("refused");
        assert_eq!(refused.code, "08P01");
        let startup = read_startup(0, b"user\0u\0_pq_.x\0y\0\0").expect("accepted");
        assert_eq!(startup.database, "u");
        assert_eq!(startup.unknown, ["_pq_.x"]);
    }
}
