//! Volumes in memory, for tests over the real views.

use std::ops::Range;
use std::sync::Arc;

use dax::ids::NodeName;
use dax::memory::MemoryCluster;
use dax::storage::Storage;
use tokio::runtime::Runtime;
use volume::latest::format;
use volume::layout::{FileClass, Layout};
use volume::lsn::Lsn;
use volume::view::{Ownership, Timestamp};

/// The directory whose files are on local disk.
pub const PRIVATE: &str = "private";

/// Every file of one class, but for those in [`PRIVATE`].
pub struct Everything(pub FileClass);

impl Layout for Everything {
    fn class(&self, path: &str) -> FileClass {
        let private = path == PRIVATE || path.starts_with(&format!("{PRIVATE}/"));
        match (private, self.0) {
            (true, _) => FileClass::Private,
            (false, FileClass::Private) => FileClass::Data,
            (false, class) => class,
        }
    }

    fn hidden_on_standby(&self, _path: &str) -> bool {
        false
    }

    fn hidden_by(&self, _name: &str) -> Option<String> {
        None
    }

    fn log_range(&self, _path: &str) -> Option<Range<Lsn>> {
        None
    }

    fn private_directories(&self, _standby: bool) -> Vec<String> {
        match self.0 {
            FileClass::Private => vec![PRIVATE.to_owned()],
            _ => vec![],
        }
    }
}

/// Who runs the tests, as the owner of a root directory.
pub fn owner() -> Ownership {
    Ownership {
        mode: 0o755,
        uid: nix::unistd::geteuid().as_raw(),
        gid: nix::unistd::getegid().as_raw(),
    }
}

/// An empty volume, in the hands of its first owner.
pub async fn new_volume(cluster: &Arc<MemoryCluster>) -> Arc<dyn Storage> {
    let storage: Arc<dyn Storage> = cluster.client();
    storage
        .own_epoch(&NodeName::new("test").unwrap())
        .await
        .unwrap();
    format(&storage, owner(), Timestamp(0)).await.unwrap();
    storage
}

/// Two threads for what waits.
pub fn new_runtime() -> Runtime {
    let mut builder = tokio::runtime::Builder::new_multi_thread();
    builder.worker_threads(2).enable_all().build().unwrap()
}
