//! The registry records over the in-memory storage: written, read, fenced, damaged, pruned.

#![allow(clippy::unwrap_used, reason = "a test that meets an error fails")]

use std::sync::Arc;

use bytes::Bytes;
use coordination::address::Address;
use coordination::config::Tags;
use coordination::records::{
    ActiveState, Cause, Cluster, Decider, Heartbeat, HistoryEntry, Horizon, Incarnation, Lsns,
    Member, MemberState, OldActive, PhaseTiming, Record, RecordError, Role, append_history,
    read_history,
};
use dax::ids::{Epoch, NodeName};
use dax::memory::{MemoryCluster, MemoryStorage};
use dax::storage::{Authority, Storage, VolumeSettings};
use pgdata::xid::Xid8;
use volume::lsn::Lsn;

fn name(name: &str) -> NodeName {
    NodeName::new(name).unwrap()
}

/// A handle that owns an epoch.
async fn owner(cluster: &Arc<MemoryCluster>, who: &str) -> (Arc<MemoryStorage>, Epoch) {
    let storage = cluster.client();
    let epoch = storage.own_epoch(&name(who)).await.unwrap();
    (storage, epoch)
}

fn heartbeat(epoch: Epoch, counter: u64, state: ActiveState) -> Heartbeat {
    Heartbeat {
        epoch,
        counter,
        node: name("a"),
        synced_lsn: Lsn(u64::MAX),
        journal_synced: 3,
        timeline: 2,
        starts: 0,
        configured: 0,
        interval_ms: 200,
        state,
    }
}

fn entry(epoch: Epoch, cause: Cause) -> HistoryEntry {
    let phases = [("fence", 30), ("replay", 12)];
    HistoryEntry {
        number: 0,
        epoch,
        node: name("b"),
        previous: Some(name("a")),
        cause,
        phases: phases
            .map(|(phase, ms)| PhaseTiming {
                phase: phase.into(),
                began_unix_ms: 7,
                ms,
            })
            .into(),
        log_end: Lsn(9),
        lsns: Lsns {
            synced: Some(Lsn(8)),
            applied: Some(Lsn(7)),
            promoted: Some(Lsn(10)),
        },
        horizon: Some(Xid8(750)),
        timeline: 2,
        decided_by: Decider::Operator,
        old_active: Some(OldActive {
            epoch,
            beat: 5,
            state: ActiveState::Released { to: None },
            seen_before_ms: Some(40),
        }),
        unix_ms: 1,
    }
}

#[tokio::test]
async fn heartbeats_of_every_state_come_back_as_written() {
    let cluster = MemoryCluster::new(VolumeSettings::default());
    let (storage, epoch) = owner(&cluster, "a").await;
    assert_eq!(Heartbeat::load(&*storage).await.unwrap(), None);
    let states = [
        ActiveState::TakingOver,
        ActiveState::Serving,
        ActiveState::PostgresDead,
        ActiveState::Released { to: None },
        ActiveState::Released {
            to: Some(name("b")),
        },
    ];
    for (counter, state) in (1..).zip(states) {
        let beat = heartbeat(epoch, counter, state);
        beat.store(&*storage).await.unwrap();
        assert_eq!(
            Heartbeat::load(&*cluster.client()).await.unwrap(),
            Some(beat)
        );
    }
}

#[test]
fn a_watcher_is_as_patient_as_the_beats_ask_for() {
    let own = coordination::config::Heartbeat::default();
    let mut beat = heartbeat(Epoch(1), 1, ActiveState::Serving);
    assert_eq!(beat.timeout(own), own);
    beat.interval_ms = 2_000;
    let patient = beat.timeout(own);
    assert!(patient.timeout >= 2 * std::time::Duration::from_secs(2));
    assert_eq!(patient.poll, own.poll);
    patient.check().unwrap();
}

#[tokio::test]
async fn a_fenced_active_can_no_longer_beat() {
    let cluster = MemoryCluster::new(VolumeSettings::default());
    let (old, old_epoch) = owner(&cluster, "a").await;
    let (new, new_epoch) = owner(&cluster, "b").await;
    let beat = heartbeat(new_epoch, 1, ActiveState::Serving);
    beat.store(&*new).await.unwrap();
    let late = heartbeat(old_epoch, 99, ActiveState::Serving)
        .store(&*old)
        .await;
    assert!(late.unwrap_err().is_fenced());
    assert_eq!(
        Heartbeat::load(&*cluster.client()).await.unwrap(),
        Some(beat)
    );
}

#[tokio::test]
async fn members_are_listed_and_an_unreadable_one_hides_no_other() {
    let cluster = MemoryCluster::new(VolumeSettings::default());
    let storage = cluster.client();
    let member = |who: &str| Member {
        role: Role::Standby,
        state: MemberState::Warm,
        tags: Tags {
            zone: Some(2),
            ..Tags::default()
        },
        received: Lsn(7),
        applied: Lsn(6),
        updated: 1,
        ..Member::starting(
            name(who),
            Incarnation("1".into()),
            "127.0.0.1:5432".parse().unwrap(),
            Address::Unix("/run/u/a".into()),
        )
    };
    // Nodes own no epoch.
    member("a").store(&*storage).await.unwrap();
    member("c").store(&*storage).await.unwrap();
    let nonsense = Bytes::from_static(b"{}");
    storage
        .put_record("node/b", nonsense, Authority::Node)
        .await
        .unwrap();
    assert_eq!(
        Member::list(&*storage).await.unwrap(),
        [member("a"), member("c")]
    );
    let error = Member::load_named(&*storage, "node/b").await.unwrap_err();
    assert!(matches!(&error, RecordError::Damaged { name, .. } if name == "node/b"));
}

#[tokio::test]
async fn records_of_newer_and_older_versions_are_understood() {
    let cluster = MemoryCluster::new(VolumeSettings::default());
    let (storage, _) = owner(&cluster, "a").await;
    let text = r#"{"system_identifier": 18446744073709551615, "postgres_major": 15, "wal_segment_bytes": 16777216,
                   "page_bytes": 8192, "added_later": [1]}"#;
    storage
        .put_record("cluster", Bytes::from(text), Authority::Owner)
        .await
        .unwrap();
    let facts = Cluster::load(&*storage).await.unwrap().unwrap();
    assert_eq!(facts.system_identifier, u64::MAX);
    assert_eq!(facts.superuser, "postgres");
}

#[tokio::test]
async fn history_is_numbered_in_order_and_kept_short() {
    let cluster = MemoryCluster::new(VolumeSettings::default());
    let (storage, epoch) = owner(&cluster, "b").await;
    let causes = [
        Cause::Created,
        Cause::Started,
        Cause::Failover {
            evidence: "no heartbeat".into(),
        },
        Cause::Switchover,
        Cause::Forced,
    ];
    for (number, cause) in (1..).zip(causes.clone()) {
        assert_eq!(
            append_history(&*storage, entry(epoch, cause))
                .await
                .unwrap(),
            number
        );
    }
    let all = read_history(&*storage, 99).await.unwrap();
    assert_eq!(
        all.iter().map(|e| e.cause.clone()).collect::<Vec<_>>(),
        causes
    );
    assert_eq!(all[0].total_ms(), 42);
    let last: Vec<u64> = read_history(&*storage, 2)
        .await
        .unwrap()
        .iter()
        .map(|e| e.number)
        .collect();
    assert_eq!(last, [4, 5]);
    assert!(read_history(&*storage, 0).await.is_err());

    let mut late = entry(epoch, Cause::Forced);
    late.number = 5_000;
    late.store(&*storage).await.unwrap();
    append_history(&*storage, entry(epoch, Cause::Forced))
        .await
        .unwrap();
    let numbers: Vec<u64> = read_history(&*storage, 99)
        .await
        .unwrap()
        .iter()
        .map(|e| e.number)
        .collect();
    assert_eq!(numbers, [5_000, 5_001]);
}

#[tokio::test]
async fn a_fenced_node_writes_no_history() {
    let cluster = MemoryCluster::new(VolumeSettings::default());
    let (old, epoch) = owner(&cluster, "a").await;
    let (_new, _) = owner(&cluster, "b").await;
    let refused = append_history(&*old, entry(epoch, Cause::Started)).await;
    assert!(refused.unwrap_err().is_fenced());
}

#[tokio::test]
async fn horizons_are_in_the_order_of_epochs_and_kept_short() {
    let cluster = MemoryCluster::new(VolumeSettings::default());
    let (storage, epoch) = owner(&cluster, "b").await;
    assert_eq!(epoch, Epoch(1));
    let horizon = |epoch, xid| Horizon {
        epoch: Epoch(epoch),
        xid,
    };
    // Epoch 2 was served by a release that knew no horizons.
    for served in [1, 2] {
        let served = entry(Epoch(served), Cause::Started);
        append_history(&*storage, served).await.unwrap();
    }
    let recorded = [
        horizon(1, Some(Xid8(700))),
        horizon(10, Some(Xid8(5_000_000_000))),
        horizon(9, None),
    ];
    for recorded in recorded {
        recorded.store(&*storage).await.unwrap();
    }
    Horizon::prune(&*storage).await.unwrap();
    let known = Horizon::known(&*storage).await.unwrap();
    assert_eq!(
        known,
        [recorded[0], horizon(2, None), recorded[2], recorded[1]]
    );
    for epoch in 11..=1009 {
        horizon(epoch, None).store(&*storage).await.unwrap();
    }
    Horizon::prune(&*storage).await.unwrap();
    let left = Horizon::list(&*storage).await.unwrap();
    assert_eq!((left.len(), left[0].epoch), (1000, Epoch(10)));
}
