//! The table of nodes and zones, as people read it.

use coordination::address::Address;
use dax::ids::NodeName;
use serde_json::json;

use super::*;

fn standby(answer: Value) -> Node {
    let address = Address::Tcp {
        host: "south".into(),
        port: 7100,
    };
    let member = json!({
        "name": NodeName::new("south").unwrap(),
        "role": Role::Standby,
        "state": MemberState::Warm,
        "incarnation": "x",
        "postgres": address,
        "channel": address,
    });
    Node {
        member: serde_json::from_value(member).unwrap(),
        reachable: true,
        lag_bytes: None,
        answer,
    }
}

#[test]
fn a_standby_has_a_line_about_its_base() {
    let generation = Generation {
        epoch: dax::ids::Epoch(3),
        number: 14,
    };
    let overlay = OverlayStats {
        items: 9,
        memory_bytes: 3 << 20,
        spill_bytes: 8192,
    };
    let mut answer = json!({
        "base": {
            "generation": generation, "redo": 0x10, "end": 0x20,
            "moves": 5, "last_pause_ms": 1.25,
        },
        "overlay": overlay,
    });
    assert_eq!(
        base_line(&standby(answer.clone())).unwrap(),
        "south         base e3/g14 at 0/20, moved 5 times, the last time within 1.25 ms; \
         overlay 3,072 kB in memory, 8 kB on disk\n"
    );
    answer["base"]["last_pause_ms"] = Value::Null;
    answer["warmth"] = json!({ "percent": 98.5 });
    let line = base_line(&standby(answer.clone())).unwrap();
    assert!(line.contains("moved 5 times; overlay"), "{line}");
    assert!(line.ends_with("on disk; 98.5 % warm\n"), "{line}");
    answer["prefetch"] = json!({ "fetched": 1200, "used": 1100 });
    answer["skips"] = json!({ "count": 0, "last": null });
    let line = base_line(&standby(answer.clone())).unwrap();
    let ahead = "98.5 % warm; 1,200 blocks fetched ahead, 1,100 used\n";
    assert!(line.ends_with(ahead), "{line}");
    answer["skips"] = json!({ "count": 2, "last": "slow", "last_unix_ms": 1 });
    let line = base_line(&standby(answer.clone())).unwrap();
    assert!(line.contains("used; SKIPPED 2 times, last "), "{line}");
    assert_eq!(base_line(&standby(json!({ "role": "active" }))), None);
}

#[test]
fn a_standby_has_a_line_about_its_reads() {
    let reads = ReadStats {
        cached: 5000,
        expected: 400,
        unknown: 30,
        known_blocks: 600,
        ..ReadStats::default()
    };
    let storage = StorageCounters {
        reads_stale: 7,
        reads_escalated: 2,
        ..StorageCounters::default()
    };
    let mut answer = json!({ "reads": reads, "storage": storage });
    assert_eq!(
        reads_line(&standby(answer.clone())).unwrap(),
        "south         reads 5,000 cached, 400 by one zone (7 stale answers, 2 by a quorum after \
         all), 30 by a quorum; knows 600 blocks\n"
    );
    answer["reads"]["moves_unlisted"] = json!(1);
    let line = reads_line(&standby(answer)).unwrap();
    assert!(line.ends_with("; 1 moves without lists\n"), "{line}");
    assert_eq!(reads_line(&standby(json!({ "role": "active" }))), None);
}
