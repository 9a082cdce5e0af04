//! Clocks that jump: each member's wall clock shows what a file says, by Debian's libfaketime, which answers for the C
//! library's clock functions. A member's monotonic clock is left alone: no machine's jumps. (Time namespaces move
//! monotonic clocks only, and only before a process starts.)

use std::path::{Path, PathBuf};

use anyhow::Context;

/// Where the library keeps what the processes of a family share, and how those files are called in front of the
/// process id of the first of them. It leaves them there if that one is killed.
const SHARED: (&str, [&str; 2]) = ("/dev/shm", ["faketime_shm_", "sem.faketime_sem_"]);
/// Where Debian has the library for programs with threads.
const LIBRARY: &str = "faketime/libfaketimeMT.so.1";

/// The clocks of a cluster's members, if the library is there.
#[derive(Debug)]
pub(crate) struct Clocks {
    dir: PathBuf,
    library: PathBuf,
}

impl Clocks {
    /// Clocks whose files are in a directory; none if the library is not installed.
    ///
    /// # Errors
    /// The directory cannot be made.
    pub fn find(dir: &Path) -> anyhow::Result<Option<Clocks>> {
        let places = std::fs::read_dir("/usr/lib")
            .into_iter()
            .flatten()
            .flatten();
        let libraries = places.map(|place| place.path().join(LIBRARY));
        let Some(library) = libraries.into_iter().find(|path| path.exists()) else {
            return Ok(None);
        };
        std::fs::create_dir_all(dir).with_context(|| format!("cannot create {}", dir.display()))?;
        Ok(Some(Clocks {
            dir: dir.to_owned(),
            library,
        }))
    }

    fn file(&self, member: &str) -> PathBuf {
        self.dir.join(member)
    }

    /// What runs a member's command with its clock, which is right at first.
    ///
    /// # Errors
    /// Its file cannot be written.
    pub fn wrapper(&self, member: &str) -> anyhow::Result<Vec<String>> {
        self.set(member, 0)?;
        Ok(vec![
            "env".into(),
            format!("LD_PRELOAD={}", self.library.display()),
            format!("FAKETIME_TIMESTAMP_FILE={}", self.file(member).display()),
            "FAKETIME_CACHE_DURATION=1".into(),
            "FAKETIME_DONT_FAKE_MONOTONIC=1".into(),
            "NO_FAKE_STAT=1".into(),
        ])
    }

    /// Lets a member's clock show so many seconds more from now on.
    ///
    /// # Errors
    /// Its file cannot be written.
    pub fn set(&self, member: &str, seconds: i32) -> anyhow::Result<()> {
        let file = self.file(member);
        // Whoever reads it meanwhile sees the old one or the new one.
        let new = file.with_extension("new");
        std::fs::write(&new, format!("{seconds:+}\n"))
            .and_then(|()| std::fs::rename(&new, &file))
            .with_context(|| format!("cannot write {}", file.display()))
    }
}

impl Drop for Clocks {
    /// Removes what the library left of processes that are gone.
    fn drop(&mut self) {
        let (dir, prefixes) = SHARED;
        for entry in std::fs::read_dir(dir).into_iter().flatten().flatten() {
            let name = entry.file_name().to_string_lossy().into_owned();
            let mut pids = prefixes
                .iter()
                .filter_map(|prefix| name.strip_prefix(prefix));
            let gone = |pid: &str| !Path::new("/proc").join(pid).exists();
            if pids.any(gone) && std::fs::remove_file(entry.path()).is_err() {
                tracing::debug!(name, "was removed meanwhile");
            }
        }
    }
}
