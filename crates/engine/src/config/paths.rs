//! The local directory of a node that hosts a server: what lives where.

use std::path::{Path, PathBuf};

/// Places below a node's `data` directory.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Paths {
    base: PathBuf,
}

impl Paths {
    /// Places below `base`.
    pub fn new(base: impl Into<PathBuf>) -> Paths {
        Paths { base: base.into() }
    }

    /// The directory itself.
    pub fn base(&self) -> &Path {
        &self.base
    }

    /// Where the volume is mounted: the server's data directory.
    pub fn mount(&self) -> PathBuf {
        self.base.join("volume")
    }

    /// Files that are never shared.
    pub fn private(&self) -> PathBuf {
        self.base.join("private")
    }

    /// The server's socket and pid file.
    pub fn run(&self) -> PathBuf {
        self.base.join("run")
    }

    /// The server's temporary files.
    pub fn tmp(&self) -> PathBuf {
        self.base.join("tmp")
    }

    /// The server's log.
    pub fn log(&self) -> PathBuf {
        self.base.join("server.log")
    }
}
