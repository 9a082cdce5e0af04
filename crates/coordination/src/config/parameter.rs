//! The value of a PostgreSQL parameter, as files and documents write it.

use serde::Deserialize;

/// A parameter's value; numbers and booleans may be written without quotes.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(untagged)]
pub enum Parameter {
    /// `on` or `off`.
    Bool(bool),
    /// A number without a unit.
    Integer(i64),
    /// Everything else.
    Text(String),
}

impl std::fmt::Display for Parameter {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Parameter::Bool(on) => f.write_str(if *on { "on" } else { "off" }),
            Parameter::Integer(n) => write!(f, "{n}"),
            Parameter::Text(text) => f.write_str(text),
        }
    }
}
