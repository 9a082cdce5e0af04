//! The directory of a system test.
//!
//! Invariant: it is there afterwards exactly if the test did not succeed.

use std::path::{Path, PathBuf};

use anyhow::{Context, ensure};

use crate::fresh_directory;
use crate::remnants::fuse_mounts_below;

/// A directory for one test; removed only when it succeeds.
#[derive(Debug)]
pub struct Scratch {
    path: PathBuf,
    succeeded: bool,
}

impl Scratch {
    /// A new one, whose name begins with `test`, below `UNDERSTUDY_TEST_DIR` or the temporary directory.
    ///
    /// # Errors
    /// It cannot be made.
    pub fn new(test: &str) -> anyhow::Result<Scratch> {
        let base =
            std::env::var_os("UNDERSTUDY_TEST_DIR").map_or_else(std::env::temp_dir, PathBuf::from);
        let path = fresh_directory(&base, test)?;
        Ok(Scratch {
            path,
            succeeded: false,
        })
    }

    /// Where it is.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Checks that nothing is mounted any more, and removes the directory.
    ///
    /// # Errors
    /// Something is mounted, or a file cannot be removed.
    pub fn succeed(mut self) -> anyhow::Result<()> {
        let mounts = fuse_mounts_below(&self.path);
        ensure!(mounts.is_empty(), "left mounted: {mounts:?}");
        self.succeeded = true;
        std::fs::remove_dir_all(&self.path).context("cannot remove the test's directory")
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        if !self.succeeded {
            eprintln!("logs and data are in {}", self.path.display());
        }
    }
}
