//! What reclaim leaves behind: no tombstones before what is read, and few behind it.

use std::time::Duration;

use dax::ids::{BlockKey, FileId, Generation};
use dax::storage::{Lineage, Retention, Storage, SyncScope};
use scylla::client::session::Session;
use scylla::statement::Statement;

use super::backend::{Fresh, SHORT, block, cluster, name};

/// Blocks that every checkpoint writes, all of one partition.
const BLOCKS: u64 = 32;
/// Checkpoints.
const SEALS: u32 = 60;

/// Rows and tombstones that the replicas read for a statement, as Cassandra traces it.
async fn read(cql: &Session, text: &str, volume: &str) -> (u64, u64) {
    let mut statement = Statement::new(text);
    statement.set_tracing(true);
    let result = cql.query_unpaged(statement, (volume,)).await.unwrap();
    let id = result.tracing_id().unwrap();
    let events = cql.get_tracing_info(&id).await.unwrap().events;
    let said = events.iter().filter_map(|event| event.activity.as_deref());
    let read = said.filter_map(|what| what.strip_prefix("Read "));
    let counts = read.filter_map(|what| {
        let (rows, rest) = what.split_once(" live rows and ")?;
        let (tombstones, _) = rest.split_once(" tombstone")?;
        Some((rows.parse().ok()?, tombstones.parse().ok()?))
    });
    counts.max().expect("a trace that says what was read")
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "starts real Cassandra nodes; run by make test-cassandra"]
async fn hot_rows_meet_no_tombstones_and_a_partition_few() {
    let fresh = Fresh::volume(SHORT).await;
    let a = fresh.client().await;
    let epoch = a.own_epoch(&name("a")).await.unwrap();
    let cql = fresh.cql().await;
    let volume = fresh.0.volume.as_str();
    let generation = |number| Generation { epoch, number };
    let rows = "SELECT block, generation FROM understudy.blocks WHERE volume = ? AND file = 9 AND chunk = 0";
    for number in 1..=SEALS {
        for index in 0..BLOCKS {
            let key = BlockKey::new(FileId(9), index);
            a.write(key, generation(number), block(number as u8))
                .unwrap();
        }
        a.csync(SyncScope::Volume).await.unwrap();
        let images = [number.saturating_sub(1).max(1), number];
        let images = images.map(|last| Lineage::up_to(generation(last)));
        let retention = Retention {
            images: images.to_vec(),
        };
        a.retain(retention).await.unwrap();
        // Each is carried out before the next.
        loop {
            let result = cql.query_unpaged(rows, (volume,)).await.unwrap();
            let kept = result.into_rows_result().unwrap().rows_num() as u64;
            if kept <= 2 * BLOCKS {
                break;
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }
    let hot = format!(
        "SELECT generation, writetime(data), data FROM understudy.blocks WHERE volume = ? AND file = 9 AND \
         chunk = 0 AND block = 7 AND generation <= {} LIMIT 1",
        i64::MAX
    );
    let (live, passed) = read(&cql, &hot, volume).await;
    println!("a hot row: {live} rows, {passed} tombstones");
    assert_eq!((live, passed), (1, 0));
    let (live, passed) = read(&cql, rows, volume).await;
    println!(
        "its partition: {live} rows, {passed} tombstones after {SEALS} seals of {BLOCKS} blocks"
    );
    assert_eq!(live, 2 * BLOCKS);
    // Two ends of one range for each block; a tombstone for each row would be 58 of each.
    assert!(passed <= 4 * BLOCKS, "{passed} tombstones");
    let stats = tokio::task::spawn_blocking(|| {
        cluster()
            .tool(0, &["tablestats", "understudy.blocks"])
            .unwrap()
    });
    for line in stats.await.unwrap().lines() {
        if line.contains("per slice")
            || line.contains("Live disk")
            || line.contains("SSTable count")
        {
            println!("{}", line.trim());
        }
    }
}
