//! Tables and keys of a file, as the page shows them.

/// A table of a file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Table {
    /// Name with the tables around it, as `proxy.takeover`; empty for the top level.
    pub name: String,
    /// The table may be there several times: `[[link]]`.
    pub is_list: bool,
    /// Description.
    pub meaning: String,
    /// Keys that are no tables.
    pub keys: Vec<Key>,
}

/// A key.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Key {
    /// Name in the file.
    pub name: String,
    /// Type in words.
    pub kind: String,
    /// Value without the key.
    pub default: Default,
    /// Description.
    pub meaning: String,
}

/// Value of a key that is not given.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Default {
    /// The key must be given.
    Required,
    /// There is no value.
    Absent,
    /// The value, as TOML writes it.
    Value(String),
}
