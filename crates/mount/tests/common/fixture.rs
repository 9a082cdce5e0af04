//! A mount in a temporary directory of its own, gone when dropped, also by a panic.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use mount::{Mount, MountOptions};
use tempfile::TempDir;
use tokio::runtime::Runtime;
use volume::view::View;

/// See the module. Fields drop in order: the mount before the directory it is on.
pub struct Fixture {
    pub mount: Mount,
    pub runtime: Runtime,
    root: PathBuf,
    _directory: TempDir,
    _kept: Option<TempDir>,
}

impl Fixture {
    /// Mounts a view; panics with the remedy where FUSE cannot be used, for tests must not be
    /// skipped in silence.
    pub fn new(view: Arc<dyn View>) -> Fixture {
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(2)
            .enable_all()
            .build()
            .unwrap();
        Fixture::on(runtime, view)
    }

    /// The same, on a runtime that the view needs too.
    pub fn on(runtime: Runtime, view: Arc<dyn View>) -> Fixture {
        let directory = tempfile::tempdir().unwrap();
        let options = MountOptions::new(directory.path());
        if options.allow_other {
            // Tests look in as other users.
            let open = std::os::unix::fs::PermissionsExt::from_mode(0o755);
            std::fs::set_permissions(directory.path(), open).unwrap();
        }
        let mount = Mount::start(view, options, runtime.handle().clone())
            .unwrap_or_else(|e| panic!("these tests need FUSE: {e}"));
        Fixture {
            root: mount.path().to_path_buf(),
            mount,
            runtime,
            _directory: directory,
            _kept: None,
        }
    }

    /// Keeps a directory that the view needs.
    pub fn keeping(mut self, directory: TempDir) -> Fixture {
        self._kept = Some(directory);
        self
    }

    /// Works below a directory from now on.
    pub fn below(mut self, name: &str) -> Fixture {
        self.root.push(name);
        self
    }

    /// Where to work: the mounted root.
    pub fn root(&self) -> &Path {
        &self.root
    }

    /// A path below the root.
    pub fn at(&self, name: &str) -> PathBuf {
        self.root().join(name)
    }
}
