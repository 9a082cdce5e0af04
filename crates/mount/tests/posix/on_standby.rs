//! The suite over a standby's overlay: what its PostgreSQL changes for itself.

use std::sync::Arc;

use dax::memory::MemoryCluster;
use dax::storage::VolumeSettings;
use volume::layout::FileClass;
use volume::private::PrivateDir;
use volume::seal::{Base, load_seals};
use volume::standby::{StandbyOptions, StandbyView};
use volume::view::View;

use crate::common::fixture::Fixture;
use crate::common::volume::{Everything, new_runtime, new_volume, owner};

async fn view(place: &std::path::Path) -> Arc<StandbyView> {
    let layout = Arc::new(Everything(FileClass::Data));
    let storage = new_volume(&MemoryCluster::new(VolumeSettings::default())).await;
    let seals = load_seals(&storage).await.unwrap();
    let base = Base::load(&storage, seals.last().unwrap()).await.unwrap();
    let live = base.namespace.clone();
    let private = PrivateDir::prepare(place, &*layout, true, owner()).unwrap();
    let options = StandbyOptions {
        spill_dir: place.to_path_buf(),
        // Small, so that blocks spill.
        memory_bytes_max: 256 << 10,
        cache_bytes: 256 << 10,
        claim: None,
    };
    StandbyView::attach(storage, layout, base, live, Arc::new(private), options).unwrap()
}

pub fn fixture() -> Fixture {
    let runtime = new_runtime();
    let place = tempfile::tempdir().unwrap();
    let view = runtime.block_on(view(place.path()));
    Fixture::on(runtime, view as Arc<dyn View>).keeping(place)
}

// The overlay keeps neither the times nor the link counts of directories.
mod overlay {
    crate::posix_contents!(crate::on_standby::fixture);
    crate::posix_names!(crate::on_standby::fixture);
    crate::posix_cases!(crate::on_standby::fixture, bookkeeping: names_in_no_encoding;);
}
