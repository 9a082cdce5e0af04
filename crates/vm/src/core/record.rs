//! What the record on the zones says.

use std::fmt;

use serde::{Deserialize, Serialize};

/// A checkpoint: counted by the host that makes them, from 1 on.
#[derive(
    Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Serialize, Deserialize,
)]
pub struct Number(pub u64);

impl Number {
    /// The one after it.
    pub fn next(self) -> Number {
        Number(self.0 + 1)
    }
}

impl fmt::Display for Number {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// A host, in one of its lives: what it had in memory in another one is gone.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Who {
    /// Its name in the configuration.
    pub name: String,
    /// Drawn when it starts, and whenever it begins again.
    pub life: u64,
}

impl fmt::Display for Who {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}#{:x}", self.name, self.life)
    }
}

/// Record on the zones: the active host, and the standby that may take over.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Record {
    /// The epoch that it was written in.
    pub epoch: u32,
    /// Who runs the machine.
    pub active: Who,
    /// Who may take over: it has held every checkpoint that covers what was let out.
    pub standby: Option<Who>,
    /// The boot of the active's host in which what clients were told was not synced to its disk. After another boot that disk may lack
    /// some of it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub unsynced_in: Option<String>,
}
