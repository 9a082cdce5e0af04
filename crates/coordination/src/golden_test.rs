//! What nodes of release 0.1 wrote into records and said on channels: later releases have to understand it, and to say it in
//! a way that release 0.1 understands as long as such nodes may be there.
//!
//! The files in `golden` are never changed. Fields may be added, and what is in the files keeps its meaning.

use serde_json::Value;

use crate::channel::golden_message;
use crate::records::{
    ActiveState, Cluster, Control, Heartbeat, HistoryEntry, Horizon, Member, MemberState,
};

/// True if `now` has everything that `then` had.
fn contains(now: &Value, then: &Value) -> bool {
    match (now, then) {
        (Value::Object(now), Value::Object(then)) => then.iter().all(|(key, value)| {
            value.is_null() || now.get(key).is_some_and(|n| contains(n, value))
        }),
        (Value::Array(now), Value::Array(then)) => {
            now.len() == then.len() && now.iter().zip(then).all(|(n, t)| contains(n, t))
        }
        (now, then) => now == then,
    }
}

/// Reads a record, and checks that it would be written with all that it had.
fn kept<R: serde::Serialize + serde::de::DeserializeOwned>(all: &Value, name: &str) -> R {
    let record: R = serde_json::from_value(all[name].clone()).unwrap();
    let written = serde_json::to_value(&record).unwrap();
    assert!(contains(&written, &all[name]), "{name}: {written}");
    record
}

#[test]
fn golden_records_are_understood() {
    let all: Value = serde_json::from_str(include_str!("golden/records-0.1.json")).unwrap();
    let cluster: Cluster = kept(&all, "cluster");
    assert_eq!(
        (cluster.postgres_major, cluster.wal_segment_bytes),
        (15, 16 << 20)
    );
    let beat: Heartbeat = kept(&all, "heartbeat");
    assert!(
        matches!(&beat.state, ActiveState::Released { to: Some(to) } if to.to_string() == "south")
    );
    assert_eq!((beat.epoch.0, beat.timeline), (7, 6));
    let horizon: Horizon = kept(&all, "horizon/7");
    assert!(horizon.xid.is_some());
    let entry: HistoryEntry = kept(&all, "history/3");
    assert_eq!((entry.number, entry.timeline), (3, 6));
    let member: Member = kept(&all, "node/south");
    assert_eq!(member.state, MemberState::Warm);
    assert_eq!(
        member.reads,
        dax::forms::Forms::RELEASE_0_1,
        "it did not say"
    );
    let control: Control = kept(&all, "control");
    assert!(control.is_paused() && control.wanted_standbys() == Some(2));
}

#[test]
fn golden_messages_of_channels_are_understood() {
    for line in include_str!("golden/channel-1.jsonl").lines() {
        let then: Value = serde_json::from_str(line).unwrap();
        let now = golden_message(line).unwrap_or_else(|why| panic!("{line}: {why}"));
        assert!(contains(&now, &then), "{line} became {now}");
    }
}
