//! Volumes that are laid over others: what they show, and how both are removed.

use cassandra::{Client, create_volume, remove_volume};
use dax::error::ErrorKind;
use dax::ids::{BlockKey, FileId, Generation};
use dax::storage::{Authority, Lineage, Storage, SyncScope, VolumeSettings};

use super::backend::{Fresh, SHORT, block, name};

/// Rows of a volume in a table.
async fn rows(fresh: &Fresh, table: &str) -> i64 {
    let text = format!("SELECT count(*) FROM understudy.{table} WHERE volume = ? ALLOW FILTERING");
    let cql = fresh.cql().await;
    let result = cql.query_unpaged(text, (fresh.0.volume.as_str(),)).await;
    let rows = result.unwrap().into_rows_result().unwrap();
    rows.first_row::<(i64,)>().unwrap().0
}

// hazard: LAYER-1, LAYER-2, LAYER-6
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "starts real Cassandra nodes; run by make test-cassandra"]
async fn a_child_shows_the_image_below_it_until_it_is_removed() {
    let fresh = Fresh::volume(SHORT).await;
    let parent = fresh.client().await;
    let epoch = parent.own_epoch(&name("a")).await.unwrap();
    let of = |number| Generation { epoch, number };
    let key = |index| BlockKey::new(FileId(9), index);
    for number in 1..=3 {
        for index in 0..4 {
            parent
                .write(key(index), of(number), block(number as u8))
                .unwrap();
        }
    }
    let single = (BlockKey::new(FileId(3), 0), Generation::SINGLE);
    parent.write(single.0, single.1, block(9)).unwrap();
    parent.csync(SyncScope::Volume).await.unwrap();

    let child = fresh.child(Lineage::up_to(of(2))).await;
    let own = child.client().await;
    let first = own.settings().layer.clone().unwrap().first_epoch;
    assert_eq!(own.accepted_epoch().await.unwrap().epoch, epoch);
    assert_eq!(own.own_epoch(&name("b")).await.unwrap(), first);
    let generation = Generation {
        epoch: first,
        number: 1,
    };
    own.write(key(0), generation, block(7)).unwrap();
    own.put_record("r", block(1), Authority::Owner)
        .await
        .unwrap();
    own.csync(SyncScope::Volume).await.unwrap();
    // A grandchild begins after that.
    let grandchild = child.child(Lineage::up_to(generation)).await;
    let reader = grandchild.client().await;
    for (index, byte) in [(0, 7), (1, 2), (1, 2), (3, 2)] {
        for client in [&own, &reader] {
            let found = client.read(key(index), Generation::MAX).await.unwrap();
            assert_eq!(found.unwrap().data, block(byte), "{index}");
        }
    }
    let image = own.read(key(0), of(2)).await.unwrap().unwrap();
    assert_eq!(image.data, block(2));
    let earlier = reader.read(key(1), of(1)).await.unwrap().unwrap();
    assert_eq!(earlier.data, block(1));
    assert_eq!(own.read(key(4), Generation::MAX).await.unwrap(), None);
    assert_eq!(own.scrub(None).await.unwrap().files, [FileId(9)]);
    assert_eq!(own.read(single.0, single.1).await.unwrap(), None);
    for stays in [&fresh, &child] {
        let refused = remove_volume(&stays.0).await.unwrap_err();
        assert_eq!(refused.kind(), ErrorKind::Conflict);
        let above = format!("{}-child lies over it", stays.0.volume);
        assert!(refused.to_string().contains(&above), "{refused}");
    }
    for gone in [&grandchild, &child, &child] {
        remove_volume(&gone.0).await.unwrap();
    }
    for table in ["blocks", "chunks", "records"] {
        assert_eq!(rows(&child, table).await, 0, "{table}");
    }
    // Its owner is deposed, and nobody owns it again.
    own.fenced().await;
    let opened = Client::connect(child.0.clone()).await.unwrap_err();
    assert_eq!(opened.kind(), ErrorKind::NotFound, "{opened}");
    let again = create_volume(&child.0, &VolumeSettings::default()).await;
    assert_eq!(again.unwrap_err().kind(), ErrorKind::Conflict);
    let found = parent.read(key(0), Generation::MAX).await.unwrap();
    assert_eq!(found.unwrap().data, block(3));
    assert_eq!(parent.confirm().await.unwrap(), epoch);
    remove_volume(&fresh.0).await.unwrap();
    assert_eq!(rows(&fresh, "blocks").await, 0);
}
