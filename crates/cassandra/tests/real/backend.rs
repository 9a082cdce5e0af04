//! The backend over three real nodes, each a data centre.

use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use cassandra::server::{Cluster, Options};
use cassandra::{Client, Config, Fencing, create_volume};
use dax::conformance::Volume;
use dax::conformance_tests;
use dax::error::ErrorKind;
use dax::ids::{BlockKey, Epoch, FileId, Generation, NodeName, VolumeName};
use dax::layer::Layer;
use dax::storage::{Lineage, Storage, SyncScope, VolumeSettings};
use scylla::client::session::Session;
use scylla::client::session_builder::SessionBuilder;
use tempfile::TempDir;

/// One cluster for all tests of this process; it ends with it.
pub fn cluster() -> &'static Cluster {
    static CLUSTER: OnceLock<(Cluster, TempDir)> = OnceLock::new();
    let (cluster, _) = CLUSTER.get_or_init(|| {
        let dir = tempfile::tempdir().unwrap();
        (Cluster::start(Options::new(dir.path())).unwrap(), dir)
    });
    cluster
}

fn contact_points() -> Vec<String> {
    let points = cluster().contact_points().into_iter();
    points.map(|address| address.to_string()).collect()
}

pub fn name(name: &str) -> NodeName {
    NodeName::new(name).unwrap()
}

/// A fresh volume.
pub struct Fresh(pub Config);

impl Fresh {
    pub async fn volume(fencing: Fencing) -> Fresh {
        Fresh::in_keyspace("understudy", fencing).await
    }

    /// A volume over the image of another one.
    pub async fn child(&self, image: Lineage) -> Fresh {
        let layer = Layer {
            parent: self.0.volume.clone(),
            first_epoch: image.end().epoch.next(),
            image,
            proof: None,
        };
        let name = format!("{}-child", self.0.volume);
        let config = Config {
            volume: VolumeName::new(name).unwrap(),
            ..self.0.clone()
        };
        let settings = VolumeSettings::default().under(layer);
        create_volume(&config, &settings).await.unwrap();
        Fresh(config)
    }

    async fn in_keyspace(keyspace: &str, fencing: Fencing) -> Fresh {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let volume = format!("v{}", COUNT.fetch_add(1, Ordering::Relaxed));
        let points = tokio::task::spawn_blocking(contact_points).await.unwrap();
        let volume = VolumeName::new(volume).unwrap();
        let mut config = Config::new(points, keyspace, volume).unwrap();
        config.fencing = fencing;
        config.data_centre = Some("dc1".to_owned());
        create_volume(&config, &VolumeSettings::default())
            .await
            .unwrap();
        Fresh(config)
    }

    pub async fn client(&self) -> Arc<Client> {
        Client::connect(self.0.clone()).await.unwrap()
    }

    pub async fn cql(&self) -> Session {
        let builder = SessionBuilder::new().known_nodes(&self.0.contact_points);
        builder.build().await.unwrap()
    }
}

#[async_trait]
impl Volume for Fresh {
    async fn open(&self) -> Arc<dyn Storage> {
        self.client().await
    }
}

pub const SHORT: Fencing = Fencing::Lease(Duration::from_millis(500));

mod with_leases {
    use super::*;
    conformance_tests!(
        Fresh::volume(SHORT).await,
        ignore = "starts real Cassandra nodes; run by make test-cassandra"
    );
}

mod verifying {
    use super::*;
    conformance_tests!(
        Fresh::volume(Fencing::Verify).await,
        ignore = "starts real Cassandra nodes; run by make test-cassandra"
    );
}

mod layered {
    use super::*;

    async fn child() -> Fresh {
        let end = Generation {
            epoch: Epoch(1),
            number: 1,
        };
        let parent = Fresh::volume(SHORT).await;
        parent.child(Lineage::up_to(end)).await
    }

    conformance_tests!(
        child().await,
        ignore = "starts real Cassandra nodes; run by make test-cassandra"
    );
}

pub fn block(byte: u8) -> Bytes {
    Bytes::from(vec![byte; 8192])
}

/// Writes a block as a client of a dead epoch does whose request was under way for long.
async fn late_write(fresh: &Fresh, key: BlockKey, epoch: i64) {
    let cql = fresh.cql().await;
    let text = format!(
        "INSERT INTO understudy.blocks (volume, file, chunk, block, generation, data) \
         VALUES (?, ?, 0, ?, 0, 0x00) USING TIMESTAMP {}",
        (epoch << 40) + 1000
    );
    let values = (
        fresh.0.volume.as_str(),
        key.file.0 as i64,
        key.block.0 as i64,
    );
    cql.query_unpaged(text, values).await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "starts real Cassandra nodes; run by make test-cassandra"]
async fn promoted_absence_withstands_a_late_write() {
    let fresh = Fresh::volume(SHORT).await;
    let a = fresh.client().await;
    let dead = a.own_epoch(&name("a")).await.unwrap();
    let (asked, not_asked) = (BlockKey::new(FileId(9), 0), BlockKey::new(FileId(9), 1));
    let b = fresh.client().await;
    b.own_epoch(&name("b")).await.unwrap();
    assert_eq!(b.read_promote(asked).await.unwrap(), None);
    for key in [asked, not_asked] {
        late_write(&fresh, key, i64::from(dead.0)).await;
    }
    assert_eq!(b.read_promote(asked).await.unwrap(), None);
    let c = fresh.client().await;
    assert_eq!(c.read(asked, Generation::MAX).await.unwrap(), None);
    // It is there, only hidden: where nobody has looked it is seen (and has no checksum).
    let seen = c.read(not_asked, Generation::MAX).await.unwrap_err();
    assert_eq!(seen.kind(), ErrorKind::Corrupt);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "starts real Cassandra nodes; run by make test-cassandra"]
async fn a_released_epoch_is_taken_over_without_waiting() {
    let fresh = Fresh::volume(Fencing::Lease(Duration::from_secs(3600))).await;
    let a = fresh.client().await;
    a.own_epoch(&name("a")).await.unwrap();
    let key = BlockKey::new(FileId(9), 0);
    a.write(key, Generation::SINGLE, block(1)).unwrap();
    a.csync(SyncScope::Volume).await.unwrap();
    a.release().await.unwrap();
    assert!(a.csync(SyncScope::Volume).await.unwrap_err().is_fenced());
    let b = fresh.client().await;
    b.own_epoch(&name("b")).await.unwrap();
    let found = b.read_promote(key).await.unwrap().unwrap();
    assert_eq!(found.data, block(1));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "starts real Cassandra nodes; run by make test-cassandra"]
async fn superseded_generations_and_removed_files_leave_the_tables() {
    let fresh = Fresh::volume(SHORT).await;
    let a = fresh.client().await;
    let epoch = a.own_epoch(&name("a")).await.unwrap();
    let generation = |number| Generation { epoch, number };
    for number in 1..=5 {
        for index in [0, 1, 200] {
            let key = BlockKey::new(FileId(9), index);
            a.write(key, generation(number), block(number as u8))
                .unwrap();
        }
        a.csync(SyncScope::Volume).await.unwrap();
    }
    let cql = fresh.cql().await;
    let count = async || {
        let text = "SELECT count(*) FROM understudy.blocks WHERE volume = ? AND file = 9 AND chunk IN (0, 1)";
        let result = cql.query_unpaged(text, (fresh.0.volume.as_str(),)).await;
        let rows = result.unwrap().into_rows_result().unwrap();
        rows.first_row::<(i64,)>().unwrap().0
    };
    assert_eq!(count().await, 15);
    let images = [3, 5].map(|number| dax::storage::Lineage::up_to(generation(number)));
    let retention = dax::storage::Retention {
        images: images.to_vec(),
    };
    a.retain(retention).await.unwrap();
    while count().await > 6 {
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    // An image goes that alone needs what is superseded, and nothing was written since.
    let last = vec![dax::storage::Lineage::up_to(generation(5))];
    a.retain(dax::storage::Retention { images: last })
        .await
        .unwrap();
    while count().await > 3 {
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    a.remove_files(&[FileId(9)]).await.unwrap();
    assert_eq!(count().await, 0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "starts real Cassandra nodes; run by make test-cassandra"]
async fn settings_that_break_a_guarantee_are_found_at_the_next_open() {
    let fresh = Fresh::in_keyspace("checked", SHORT).await;
    let cql = fresh.cql().await;
    for (change, back, advice) in [
        (
            "ALTER TABLE checked.blocks WITH read_repair = 'NONE'",
            "ALTER TABLE checked.blocks WITH read_repair = 'BLOCKING'",
            "ALTER TABLE checked.blocks WITH read_repair = 'BLOCKING'",
        ),
        (
            "ALTER TABLE checked.records WITH gc_grace_seconds = 0",
            "ALTER TABLE checked.records WITH gc_grace_seconds = 10800",
            "gc_grace_seconds = 10800",
        ),
        (
            "ALTER TABLE checked.blocks WITH speculative_retry = 'NEVER'",
            "ALTER TABLE checked.blocks WITH speculative_retry = '50ms'",
            "speculative_retry = '50ms'",
        ),
        (
            "ALTER TABLE checked.blocks WITH compression = {'enabled': 'false'}",
            "ALTER TABLE checked.blocks WITH compression = {'class': 'LZ4Compressor'}",
            "compression =",
        ),
        (
            "ALTER KEYSPACE checked WITH replication = {'class': 'NetworkTopologyStrategy', 'dc1': 1, 'dc2': 1}",
            "ALTER KEYSPACE checked WITH replication = {'class': 'NetworkTopologyStrategy', 'dc1': 1, 'dc2': 1, 'dc3': 1}",
            "ALTER KEYSPACE checked back",
        ),
        (
            "ALTER KEYSPACE checked WITH durable_writes = false",
            "ALTER KEYSPACE checked WITH durable_writes = true",
            "durable_writes = true",
        ),
    ] {
        cql.query_unpaged(change, ()).await.unwrap();
        let error = Client::connect(fresh.0.clone()).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Conflict, "{change}");
        assert!(error.to_string().contains(advice), "{error}");
        cql.query_unpaged(back, ()).await.unwrap();
    }
    fresh.client().await;
}
