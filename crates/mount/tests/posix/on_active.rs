//! The suite over the active's view, on storage in memory.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use dax::memory::MemoryCluster;
use dax::storage::VolumeSettings;
use volume::active::{ActiveView, NoObserver, Options};
use volume::latest::Latest;
use volume::layout::FileClass;
use volume::private::PrivateDir;
use volume::view::{Timestamp, View};

use crate::common::fixture::Fixture;
use crate::common::volume::{Everything, PRIVATE, new_runtime, new_volume, owner};

async fn view(class: FileClass, metadata_cache: Duration, place: &Path) -> ActiveView {
    let layout = Arc::new(Everything(class));
    let storage = new_volume(&MemoryCluster::new(VolumeSettings::default())).await;
    let latest = Latest::recover(storage, Timestamp(0)).await.unwrap();
    let private = PrivateDir::prepare(place, &*layout, false, owner()).unwrap();
    let options = Options {
        metadata_cache,
        // Small, so that blocks are read from storage too.
        cache_bytes: 256 << 10,
        ..Options::default()
    };
    let observer = Arc::new(NoObserver);
    ActiveView::open(latest, layout, Arc::new(private), observer, None, options)
        .await
        .unwrap()
}

fn fixture(class: FileClass, metadata_cache: Duration) -> Fixture {
    let runtime = new_runtime();
    let place = tempfile::tempdir().unwrap();
    let view = runtime.block_on(view(class, metadata_cache, place.path()));
    Fixture::on(runtime, Arc::new(view) as Arc<dyn View>).keeping(place)
}

pub fn data() -> Fixture {
    fixture(FileClass::Data, Duration::from_secs(10))
}

pub fn private() -> Fixture {
    fixture(FileClass::Private, Duration::from_secs(10)).below(PRIVATE)
}

pub fn log() -> Fixture {
    fixture(FileClass::Log, Duration::ZERO)
}

mod data_files {
    crate::posix_contents!(crate::on_active::data);
    crate::posix_names!(crate::on_active::data);
    crate::posix_cases!(crate::on_active::data, bookkeeping: names_in_no_encoding, link_counts, times_move;);
}

mod log_files {
    crate::posix_contents!(crate::on_active::log);
}

// Private paths are text: names in no encoding are refused.
mod private_files {
    crate::posix_contents!(crate::on_active::private);
    crate::posix_names!(crate::on_active::private);
    crate::posix_cases!(crate::on_active::private, bookkeeping: link_counts, times_move;);
}
