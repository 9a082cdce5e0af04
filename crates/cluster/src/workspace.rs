//! The directory that a demo or a benchmark works in.
//!
//! Invariant: removed at the end unless it shall be kept, and never while something is mounted
//! below it: what is mounted there could be somebody's database.

use std::path::{Path, PathBuf};

use anyhow::{Context, ensure};

use crate::fresh_directory;
use crate::remnants::fuse_mounts_below;

/// Directory of a test or a demonstration, removed at the end unless it is to be kept.
#[derive(Debug)]
pub struct Workspace {
    dir: PathBuf,
    keep: bool,
}

impl Workspace {
    /// Creates `wanted`, which must not hold anything, or a directory of its own.
    ///
    /// # Errors
    /// It is not empty, or cannot be created.
    pub fn create(wanted: Option<&Path>, keep: bool) -> anyhow::Result<Workspace> {
        let dir = match wanted {
            None => fresh_directory(&std::env::temp_dir(), "understudy-demo")?,
            Some(dir) => {
                let dir = std::path::absolute(dir).context("cannot tell where --data is")?;
                std::fs::create_dir_all(&dir)
                    .with_context(|| format!("cannot create {}", dir.display()))?;
                let mut entries = std::fs::read_dir(&dir).context("cannot look into --data")?;
                ensure!(entries.next().is_none(), "{} is not empty", dir.display());
                dir
            }
        };
        Ok(Workspace { dir, keep })
    }

    /// Where it is.
    pub fn path(&self) -> &Path {
        &self.dir
    }

    /// Leaves it in place, to be looked at.
    pub fn keep(&mut self) {
        self.keep = true;
    }

    /// Leaves it in place and says where, if something has to be looked at.
    pub fn keep_unless(&mut self, passed: bool) {
        if !passed {
            self.keep();
            eprintln!("  data and logs stay in {}", self.dir.display());
        }
    }

    /// True if it stays.
    pub fn is_kept(&self) -> bool {
        self.keep
    }
}

impl Drop for Workspace {
    fn drop(&mut self) {
        if self.keep || !fuse_mounts_below(&self.dir).is_empty() {
            return;
        }
        if let Err(error) = std::fs::remove_dir_all(&self.dir) {
            tracing::warn!(%error, dir = %self.dir.display(), "cannot remove the demo's directory");
        }
    }
}
