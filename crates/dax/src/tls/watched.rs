//! What is read from files, and read again when they change.
//!
//! Invariant: there is always something that made sense once.

use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use parking_lot::Mutex;

use crate::error::Result;

/// A value that follows its files.
pub(super) struct Watched<T> {
    paths: Vec<PathBuf>,
    load: Box<dyn Fn() -> Result<T> + Send + Sync>,
    state: Mutex<State<T>>,
}

struct State<T> {
    /// What the files looked like when they were read last, for good or bad.
    seen: Vec<Stamp>,
    value: Arc<T>,
}

impl<T> Watched<T> {
    /// Reads it for the first time.
    pub fn new(
        paths: Vec<PathBuf>,
        load: impl Fn() -> Result<T> + Send + Sync + 'static,
    ) -> Result<Watched<T>> {
        let seen = stamps(&paths);
        let value = Arc::new(load()?);
        Ok(Watched {
            paths,
            load: Box::new(load),
            state: Mutex::new(State { seen, value }),
        })
    }

    /// The files.
    pub fn paths(&self) -> &[PathBuf] {
        &self.paths
    }

    /// Contents of the files now, or their last valid ones.
    pub fn get(&self) -> Arc<T> {
        let mut state = self.state.lock();
        let now = stamps(&self.paths);
        if state.seen != now {
            state.seen = now;
            match (self.load)() {
                Ok(value) => {
                    tracing::info!(files = ?self.paths, "new certificates, for new connections");
                    state.value = Arc::new(value);
                }
                Err(error) => tracing::error!(
                    files = ?self.paths, %error,
                    "the certificates are invalid; the previous ones remain in use"
                ),
            }
        }
        state.value.clone()
    }
}

fn stamps(paths: &[PathBuf]) -> Vec<Stamp> {
    paths.iter().map(|path| Stamp::of(path)).collect()
}

/// Differs when a file was written or replaced; `None` if it is not there.
#[derive(Debug, PartialEq, Eq)]
struct Stamp(Option<[i64; 6]>);

impl Stamp {
    fn of(path: &Path) -> Stamp {
        let metadata = std::fs::metadata(path).ok();
        Stamp(metadata.map(|m| {
            // Only compared, never read as numbers.
            let (inode, length) = (m.ino().cast_signed(), m.len().cast_signed());
            let (written, changed) = (m.mtime_nsec(), m.ctime_nsec());
            [inode, length, m.mtime(), written, m.ctime(), changed]
        }))
    }
}
