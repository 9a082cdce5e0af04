//! The cluster's configuration as operators see and change it: one document, of which an edit is a
//! patch (pure, but for asking PostgreSQL's own program whether a value makes sense).
//!
//! Invariant: what gets into the control record can be used. Parameters that the nodes control
//! themselves are refused with the reason, values that PostgreSQL would not take with its words, and
//! timings with which a healthy active would be suspected as [`Heartbeat::check`] says.

use std::collections::BTreeMap;
use std::fmt::Write;
use std::path::Path;
use std::time::Duration;

use coordination::config::{Heartbeat, HeartbeatChoice, Parameter};
use coordination::records::{Control, EditError, edit_control};
use dax::storage::Storage;
use pgdata::settings::{is_parameter_name, quoted, why_controlled};
use pgserver::Installation;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

/// How long other editors may keep one waiting.
const TIMEOUT: Duration = Duration::from_secs(10);

/// What can be edited of the control record.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Settings {
    /// Number of standbys that the cluster wants.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub standbys: Option<u8>,
    /// Times that replace those in the nodes' files.
    pub heartbeat: HeartbeatChoice,
    /// Settings of all PostgreSQL servers.
    pub postgresql: Postgresql,
}

/// What is the same on all servers.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Postgresql {
    /// Parameters of PostgreSQL on all nodes.
    #[serde(deserialize_with = "texts")]
    pub parameters: BTreeMap<String, String>,
}

/// Numbers and booleans may be written as such.
fn texts<'de, D: serde::Deserializer<'de>>(from: D) -> Result<BTreeMap<String, String>, D::Error> {
    let read = BTreeMap::<String, Parameter>::deserialize(from)?;
    // As PostgreSQL reads them: no parameter is there twice.
    let text = |(name, value): (String, Parameter)| (name.to_ascii_lowercase(), value.to_string());
    Ok(read.into_iter().map(text).collect())
}

impl Settings {
    /// What a control record says.
    pub fn of(control: &Control) -> Settings {
        Settings {
            standbys: control.standbys,
            heartbeat: control.heartbeat.clone(),
            postgresql: Postgresql {
                parameters: control.parameters.clone(),
            },
        }
    }

    /// Reads a whole document, in TOML.
    ///
    /// # Errors
    /// [`EditError::Refused`] with the reason.
    pub fn from_toml(text: &str) -> Result<Settings, EditError> {
        toml::from_str(text).map_err(|e| EditError::Refused(e.to_string()))
    }

    /// The document in TOML.
    pub fn to_toml(&self) -> String {
        // Strings, numbers and tables of them can always be written.
        toml::to_string_pretty(self).unwrap_or_default()
    }

    /// These settings with `patch` merged into them: a JSON object, in which null takes a value away.
    ///
    /// # Errors
    /// [`EditError::Refused`] if it is invalid.
    pub fn patched(&self, patch: &Value) -> Result<Settings, EditError> {
        let refused = |e: serde_json::Error| EditError::Refused(e.to_string());
        let mut document = serde_json::to_value(self).map_err(refused)?;
        merge(&mut document, patch);
        serde_json::from_value(document).map_err(refused)
    }

    fn put(self, control: &mut Control) {
        control.standbys = self.standbys;
        control.heartbeat = self.heartbeat;
        control.parameters = self.postgresql.parameters;
    }

    /// Refuses what no node could go by.
    fn check(&self) -> Result<(), EditError> {
        self.heartbeat.over(Heartbeat::default())?;
        for name in self.postgresql.parameters.keys() {
            if !is_parameter_name(name) {
                return Err(EditError::Refused(format!(
                    "{name:?} is no parameter's name"
                )));
            }
            if let Some(why) = why_controlled(name) {
                let why = format!("\"{name}\" is not the cluster's to set: {why}");
                return Err(EditError::Refused(why));
            }
        }
        let parameter = |name: &str| self.postgresql.parameters.get(name).map(String::as_str);
        let mut configuration = pgdata::settings::Configuration::default();
        for name in ["wal_level", "synchronous_standby_names"] {
            if let Some(value) = parameter(name) {
                configuration.set(name, value);
            }
        }
        pgdata::settings::check(&configuration).map_err(|refusals| {
            let all: Vec<String> = refusals.iter().map(ToString::to_string).collect();
            EditError::Refused(all.join("; "))
        })
    }
}

/// Merges a patch as RFC 7396 says.
fn merge(document: &mut Value, patch: &Value) {
    let Value::Object(patch) = patch else {
        *document = patch.clone();
        return;
    };
    if !document.is_object() {
        *document = Value::Object(Map::new());
    }
    if let Value::Object(document) = document {
        for (name, value) in patch {
            if value.is_null() {
                document.remove(name);
            } else {
                merge(document.entry(name).or_insert(Value::Null), value);
            }
        }
    }
}

/// A patch from `key=value` as the command line has it: `heartbeat.preset=wide`, `standbys=2`. Without
/// a value the key is taken away.
///
/// # Errors
/// [`EditError::Refused`] if there is no `=`.
pub fn setting(text: &str) -> Result<Value, EditError> {
    let (key, value) = assignment(text)?;
    let value = match value {
        "" | "null" => Value::Null,
        // Numbers and booleans are themselves, everything else is text.
        text => serde_json::from_str(text).unwrap_or_else(|_| Value::String(text.to_owned())),
    };
    Ok(nested(key.split('.'), value))
}

/// A patch from `name=value` for a parameter of PostgreSQL; without a value it is taken away.
///
/// # Errors
/// [`EditError::Refused`] if there is no `=`.
pub fn parameter(text: &str) -> Result<Value, EditError> {
    let (name, value) = assignment(text)?;
    let name = name.to_ascii_lowercase();
    let value = match value {
        "" | "null" => Value::Null,
        text => Value::String(text.to_owned()),
    };
    let path = ["postgresql", "parameters", &name];
    Ok(nested(path.into_iter(), value))
}

fn assignment(text: &str) -> Result<(&str, &str), EditError> {
    let pair = text.split_once('=');
    let pair = pair.map(|(name, value)| (name.trim(), value.trim()));
    pair.filter(|(name, _)| !name.is_empty())
        .ok_or_else(|| EditError::Refused(format!("{text:?}: write name=value")))
}

fn nested<'a>(path: impl DoubleEndedIterator<Item = &'a str>, value: Value) -> Value {
    path.rev().fold(value, |inner, name| {
        Value::Object(Map::from_iter([(name.to_owned(), inner)]))
    })
}

/// Which version an edit is made from, and what it makes of the settings.
#[derive(Debug, Clone)]
pub enum Edit {
    /// These take the place of the settings of this version.
    Replace {
        /// The version that was looked at.
        version: u64,
        /// The new settings.
        settings: Settings,
    },
    /// Patches, merged one after the other into whatever there is.
    Patch(Vec<Value>),
}

/// Changes the cluster's settings; `bin` holds PostgreSQL's programs, which judge values.
///
/// # Errors
/// [`EditError`]; nothing has changed then, but see [`edit_control`].
pub async fn edit(
    storage: &dyn Storage,
    by: &str,
    edit: &Edit,
    bin: &Path,
) -> Result<Control, EditError> {
    let made = |from: &Control| match edit {
        Edit::Replace { settings, .. } => Ok(settings.clone()),
        Edit::Patch(patches) => patches
            .iter()
            .try_fold(Settings::of(from), |settings, patch| {
                settings.patched(patch)
            }),
    };
    let expected = match edit {
        Edit::Replace { version, .. } => Some(*version),
        Edit::Patch(_) => None,
    };
    // Judged before, because nobody else can edit meanwhile; and again then, if it became another one.
    let now = Control::read(storage).await?;
    let judged = made(&now)?;
    judged.check()?;
    judge(bin, &judged.postgresql.parameters).await?;
    edit_control(storage, by, expected, TIMEOUT, |control| {
        let settings = made(control)?;
        if settings != judged {
            return Err(EditError::Changed {
                expected: now.version,
                found: control.version,
            });
        }
        settings.put(control);
        Ok(())
    })
    .await
}

/// Asks PostgreSQL's own program whether it would start with these parameters.
async fn judge(bin: &Path, parameters: &BTreeMap<String, String>) -> Result<(), EditError> {
    if parameters.is_empty() {
        return Ok(());
    }
    let installation = Installation::find(bin).map_err(|e| EditError::Refused(e.to_string()))?;
    let mut text = String::new();
    for (name, value) in parameters {
        // Writing to a String never fails.
        let _ = writeln!(text, "{name} = {}", quoted(value));
    }
    let judged = tokio::task::spawn_blocking(move || installation.judge(&text)).await;
    match judged {
        Ok(Ok(complaints)) if complaints.is_empty() => Ok(()),
        Ok(Ok(complaints)) => Err(EditError::Refused(complaints.join("; "))),
        Ok(Err(error)) => Err(EditError::Refused(error.to_string())),
        Err(gone) => Err(EditError::Refused(gone.to_string())),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn refusal(result: Result<impl std::fmt::Debug, EditError>) -> String {
        result.unwrap_err().to_string()
    }

    #[test]
    fn an_edit_is_a_patch() {
        let settings = Settings::default();
        let settings = settings
            .patched(&parameter("work_mem=8MB").unwrap())
            .unwrap();
        let settings = settings
            .patched(&setting("heartbeat.preset=wide").unwrap())
            .unwrap();
        let settings = settings.patched(&setting("standbys=2").unwrap()).unwrap();
        assert_eq!(settings.postgresql.parameters["work_mem"], "8MB");
        assert_eq!(settings.standbys, Some(2));
        assert_eq!(Settings::from_toml(&settings.to_toml()).unwrap(), settings);
        let patch = json!({"postgresql": {"parameters": {"work_mem": null, "jit": false}}});
        let settings = settings.patched(&patch).unwrap();
        assert_eq!(settings.postgresql.parameters["jit"], "off");
        assert_eq!(settings.postgresql.parameters.len(), 1);
        let settings = settings.patched(&setting("standbys=").unwrap()).unwrap();
        assert_eq!(settings.standbys, None);
    }

    #[test]
    fn a_parameter_with_a_dot_is_one_name() {
        let patch = parameter("auto_explain.log_min_duration=1s").unwrap();
        let settings = Settings::default().patched(&patch).unwrap();
        assert!(
            settings
                .postgresql
                .parameters
                .contains_key("auto_explain.log_min_duration")
        );
    }

    #[test]
    fn invalid_edits_are_refused_with_the_reason() {
        let settings = Settings::default();
        assert!(refusal(settings.patched(&json!({"heartbaet": {}}))).contains("heartbaet"));
        assert!(refusal(settings.patched(&json!({"standbys": "many"}))).contains("many"));
        assert!(refusal(parameter("work_mem")).contains("name=value"));
        let with = |patch: &str| {
            settings
                .patched(&parameter(patch).unwrap())
                .unwrap()
                .check()
        };
        assert!(refusal(with("fsync=off")).contains("durable"));
        assert!(refusal(with("wal_level=minimal")).contains("replica"));
        assert!(refusal(with("wo rk=1")).contains("name"));
        assert!(refusal(with("Include=/etc/passwd")).contains("files"));
        assert!(with("wal_level=logical").is_ok());
        let short = settings
            .patched(&json!({"heartbeat": {"timeout": "50ms"}}))
            .unwrap();
        assert!(refusal(short.check()).contains("heartbeat.timeout"));
    }
}
