//! The classes of a hosted server's paths: every file keeps single versions (DAX 5), but for what a recipe
//! says is of this run only.
//!
//! Invariant: a name that the server renames to another is in the same class as the other, because shared and
//! private files are on different devices: so whole directories and temporary names are private, never the
//! one half of a pair.

use std::ops::Range;

use volume::layout::{FileClass, Layout};
use volume::lsn::Lsn;

/// The directory tree of a server of any kind.
#[derive(Debug, Clone, Default)]
pub struct HostedLayout {
    private: Vec<Pattern>,
}

/// What a server writes for its present run only: a directory (`tmp/`), a name at the top of the tree
/// (`ibtmp1`), or names at the top with an ending (`*.pid`).
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Pattern {
    /// A directory at the top, and what is below.
    Directory(String),
    /// A file at the top.
    Name(String),
    /// Files at the top whose names end so.
    Ending(String),
}

impl Pattern {
    /// Reads one as configurations write it.
    ///
    /// # Errors
    /// A sentence that says what can be written.
    pub fn parse(text: &str) -> Result<Pattern, String> {
        let refuse = || {
            format!(
                "{text:?} is no private file; write a directory at the top (\"tmp/\"), a name (\"lock\") or an \
                 ending (\"*.pid\")"
            )
        };
        let plain = |name: &str| {
            !name.is_empty() && !name.contains(['/', '*']) && name != "." && name != ".."
        };
        let (pattern, name) = if let Some(name) = text.strip_suffix('/') {
            (Pattern::Directory(name.to_owned()), name)
        } else if let Some(ending) = text.strip_prefix('*') {
            (Pattern::Ending(ending.to_owned()), ending)
        } else {
            (Pattern::Name(text.to_owned()), text)
        };
        if plain(name) {
            Ok(pattern)
        } else {
            Err(refuse())
        }
    }

    fn matches(&self, path: &str) -> bool {
        let (top, below) = path.split_once('/').unwrap_or((path, ""));
        match self {
            Pattern::Directory(name) => top == name,
            Pattern::Name(name) => path == name,
            Pattern::Ending(ending) => {
                below.is_empty() && top.len() > ending.len() && top.ends_with(ending)
            }
        }
    }
}

impl HostedLayout {
    /// With these private files; everything else is shared.
    pub fn new(private: Vec<Pattern>) -> HostedLayout {
        HostedLayout { private }
    }
}

impl Layout for HostedLayout {
    fn class(&self, path: &str) -> FileClass {
        match self.private.iter().any(|pattern| pattern.matches(path)) {
            true => FileClass::Private,
            false => FileClass::Live,
        }
    }

    fn hidden_on_standby(&self, _: &str) -> bool {
        false
    }

    fn hidden_by(&self, _: &str) -> Option<String> {
        None
    }

    fn log_range(&self, _: &str) -> Option<Range<Lsn>> {
        None
    }

    fn private_directories(&self, _: bool) -> Vec<String> {
        let directories = self.private.iter().filter_map(|pattern| match pattern {
            Pattern::Directory(name) => Some(name.clone()),
            _ => None,
        });
        directories.collect()
    }

    /// No file of it means anything to us.
    fn control_file(&self) -> &str {
        ""
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn everything_is_shared_but_what_a_pattern_names() {
        let patterns = ["#tmp/", "ibtmp1", "*.pid"].map(|text| Pattern::parse(text).unwrap());
        let layout = HostedLayout::new(patterns.to_vec());
        for private in ["#tmp", "#tmp/a/b", "ibtmp1", "host.pid"] {
            assert_eq!(layout.class(private), FileClass::Private, "{private}");
        }
        for shared in [
            "",
            "ibdata1",
            "db/ibtmp1",
            "db/x.pid",
            ".pid",
            "#tmpx",
            "mysql",
        ] {
            assert_eq!(layout.class(shared), FileClass::Live, "{shared}");
        }
        assert_eq!(layout.private_directories(false), ["#tmp"]);
    }

    #[test]
    fn invalid_patterns_are_refused() {
        for text in ["", "/", "a/b", "*", "..", "../", "a*b", "a/b/"] {
            assert!(Pattern::parse(text).is_err(), "{text}");
        }
    }
}
