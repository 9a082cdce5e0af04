//! The suite over the active's view, on storage in memory.

use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use dax::ids::NodeName;
use dax::memory::MemoryCluster;
use dax::storage::{Storage, VolumeSettings};
use volume::active::{ActiveView, NoObserver, Options};
use volume::latest::{Latest, format};
use volume::layout::{FileClass, Layout};
use volume::lsn::Lsn;
use volume::private::PrivateDir;
use volume::view::{Ownership, Timestamp, View};

use crate::common::fixture::Fixture;

/// Every file of one class.
struct Everything(FileClass);

impl Layout for Everything {
    fn class(&self, _path: &str) -> FileClass {
        self.0
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
        Vec::new()
    }
}

async fn view(class: FileClass, metadata_cache: Duration, place: &std::path::Path) -> ActiveView {
    let storage: Arc<dyn Storage> = MemoryCluster::new(VolumeSettings::default()).client();
    let owner = NodeName::new("test").unwrap();
    storage.own_epoch(&owner).await.unwrap();
    let root = Ownership {
        mode: 0o755,
        uid: nix::unistd::geteuid().as_raw(),
        gid: nix::unistd::getegid().as_raw(),
    };
    format(&storage, root, Timestamp(0)).await.unwrap();
    let latest = Latest::recover(storage, Timestamp(0)).await.unwrap();
    let layout = Arc::new(Everything(class));
    let private = PrivateDir::prepare(place, &*layout, false, root).unwrap();
    let options = Options {
        metadata_cache,
        // Small, so that blocks are read from storage too.
        cache_bytes: 256 << 10,
    };
    let observer = Arc::new(NoObserver);
    ActiveView::open(latest, layout, Arc::new(private), observer, None, options)
        .await
        .unwrap()
}

fn fixture(class: FileClass, metadata_cache: Duration) -> Fixture {
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()
        .unwrap();
    let place = tempfile::tempdir().unwrap();
    let view = runtime.block_on(view(class, metadata_cache, place.path()));
    Fixture::on(runtime, Arc::new(view) as Arc<dyn View>).keeping(place)
}

pub fn data() -> Fixture {
    fixture(FileClass::Data, Duration::from_secs(10))
}

pub fn log() -> Fixture {
    fixture(FileClass::Log, Duration::ZERO)
}

mod data_files {
    crate::posix_suite!(crate::on_active::data);
}

mod log_files {
    crate::posix_suite!(crate::on_active::log);
}
