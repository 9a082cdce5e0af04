use serde_json::json;

use super::*;

fn page(status: &Value) -> String {
    let facts = Facts {
        scope: "main".into(),
        node: "north".into(),
        server_version: 150_018,
        bin: "/usr/bin".into(),
    };
    metrics(&facts, status, &backups())
}

fn backups() -> Value {
    json!([{ "name": "backup-archive", "age_ms": 86_400_000, "lag_ms": 2500, "lag_bytes": 77,
        "trouble": null }])
}

#[test]
fn backups_tell_their_age_and_how_far_the_log_is() {
    let text = page(&json!({}));
    let labels = "{scope=\"main\",name=\"north\",archiver=\"backup-archive\"}";
    for line in [
        format!("understudy_backup_age_seconds{labels} 86400"),
        format!("understudy_log_archived_lag_seconds{labels} 2.5"),
        format!("understudy_log_archived_lag_bytes{labels} 77"),
        format!("understudy_backup_failing{labels} 0"),
    ] {
        assert!(text.lines().any(|l| l == line), "{line}\n{text}");
    }
    assert!(!text.contains("drill_age"), "none was tried");
}

/// Rules and pictures ask for what nodes tell, and for nothing else.
#[test]
fn alerting_rules_and_dashboard_name_metrics_that_there_are() {
    let told = include_str!("../metrics.rs");
    let by_mirror = include_str!("../../../../mirror/src/driver/command.rs");
    let counters = serde_json::to_value(dax::storage::StorageCounters::default()).unwrap();
    let is_told = |name: &str| {
        if let Some(name) = name.strip_prefix("understudy_mirror_") {
            return by_mirror.contains(&format!("\"{name}\""));
        }
        let counter = name.strip_prefix("understudy_storage_");
        let counter = counter.and_then(|rest| rest.strip_suffix("_total"));
        match counter {
            Some(counter) => counters.get(counter).is_some(),
            None => told.contains(&format!("\"{name}\"")),
        }
    };
    let mut names = 0;
    for text in [
        include_str!("../../../../../packaging/monitoring/alerts.yml"),
        include_str!("../../../../../packaging/monitoring/dashboard.json"),
    ] {
        let words = text.split(|c: char| !c.is_ascii_alphanumeric() && c != '_');
        let named = words.filter(|w| w.starts_with("understudy_") || w.starts_with("patroni_"));
        for name in named {
            names += 1;
            assert!(is_told(name), "{name}");
        }
    }
    assert!(names > 15);
}

#[test]
fn a_standby_tells_how_far_it_is() {
    let text = page(&json!({
        "role": "standby", "state": "warm", "epoch": 7, "timeline": 3, "lag_bytes": 42,
        "received": 0x1_0000_0010_u64, "applied": 0x1_0000_0000_u64,
        "overlay": { "memory_bytes": 8192, "spill_bytes": 0 },
        "base": { "moves": 5 }, "warmth": { "percent": 98.5 },
        "replicas": [{ "address": "127.0.0.1:7101", "zone": 0, "up": true,
            "round_trip": Duration::from_millis(2) }],
        "storage": { "stale_reads": 3 },
        "requests": { "write": 5 },
        "server": { "server_version": "15.19 (Debian)", "pending_restart": ["shared_buffers"] },
        "control": { "paused": { "by": "a" } },
    }));
    for line in [
        "understudy_mount_requests_total{scope=\"main\",name=\"north\",operation=\"write\"} 5",
        "patroni_replica{scope=\"main\",name=\"north\"} 1",
        "patroni_primary{scope=\"main\",name=\"north\"} 0",
        "patroni_xlog_replayed_location{scope=\"main\",name=\"north\"} 4294967296",
        "understudy_lag_bytes{scope=\"main\",name=\"north\"} 42",
        "patroni_pending_restart{scope=\"main\",name=\"north\"} 1",
        "patroni_is_paused{scope=\"main\",name=\"north\"} 1",
        "patroni_postgres_server_version{scope=\"main\",name=\"north\"} 150019",
        "understudy_warm_ratio{scope=\"main\",name=\"north\"} 0.985",
        "understudy_replica_up{scope=\"main\",name=\"north\",zone=\"0\",address=\"127.0.0.1:7101\"} 1",
        "understudy_replica_round_trip_seconds{scope=\"main\",name=\"north\",zone=\"0\",address=\"127.0.0.1:7101\"} 0.002",
        "understudy_storage_stale_reads_total{scope=\"main\",name=\"north\"} 3",
    ] {
        assert!(text.lines().any(|l| l == line), "{line}\n{text}");
    }
}

#[test]
fn the_past_tells_what_it_takes() {
    let text = page(&json!({ "role": "active", "state": "serving", "past": {
        "images": [{ "generation": "1/g3", "unix_ms": 1 }], "used_bytes": 2048, "pins": [],
        "branches": [{ "name": "test", "used_bytes": 4096, "expires_unix_ms": 5000 }, { "name": "new", "used_bytes": null }],
    } }));
    for line in [
        "understudy_past_images{scope=\"main\",name=\"north\"} 1",
        "understudy_past_bytes{scope=\"main\",name=\"north\"} 2048",
        "understudy_branch_used_bytes{scope=\"main\",name=\"north\",branch=\"test\"} 4096",
        "understudy_branch_expires_seconds{scope=\"main\",name=\"north\",branch=\"test\"} 5",
    ] {
        assert!(text.lines().any(|l| l == line), "{line}\n{text}");
    }
}

#[test]
fn slots_tell_what_they_hold() {
    let text = page(&json!({ "role": "active", "state": "serving", "slots": [
        { "slot_name": "cdc", "active": true, "held_bytes": 1024, "wal_status": "reserved" },
        { "slot_name": "old", "active": false, "held_bytes": null, "wal_status": "lost" },
    ] }));
    let of = |slot: &str| format!("{{scope=\"main\",name=\"north\",slot=\"{slot}\"}}");
    for line in [
        format!("understudy_slot_held_bytes{} 1024", of("cdc")),
        format!("understudy_slot_active{} 1", of("cdc")),
        format!("understudy_slot_active{} 0", of("old")),
        format!("understudy_slot_lost{} 1", of("old")),
    ] {
        assert!(text.lines().any(|l| l == line), "{line}\n{text}");
    }
}

#[test]
fn proxies_are_counted_together() {
    let text = page(&json!({ "role": "active", "state": "serving", "proxies": [
        { "report": { "clients": 5, "on_standbys": 70 } },
        { "report": { "clients": 2, "on_standbys": 1 } },
        { "report": null },
    ] }));
    for line in [
        "understudy_proxies{scope=\"main\",name=\"north\"} 3",
        "understudy_proxy_clients{scope=\"main\",name=\"north\"} 7",
        "understudy_proxy_on_standbys_total{scope=\"main\",name=\"north\"} 71",
    ] {
        assert!(text.lines().any(|l| l == line), "{line}\n{text}");
    }
}

#[test]
fn unknown_values_are_left_out() {
    let text = page(&json!({ "role": "starting" }));
    assert!(text.contains("patroni_postgres_running{scope=\"main\",name=\"north\"} 0"));
    assert!(!text.contains("understudy_lag_bytes") && !text.contains("timeline"));
}

#[test]
fn every_sample_has_its_type_before_it() {
    let text = page(&json!({ "role": "active", "state": "serving", "synced_lsn": "0/10" }));
    let mut last = "";
    for line in text.lines() {
        match line.strip_prefix("# TYPE ") {
            Some(typed) => last = typed.split(' ').next().unwrap(),
            None if line.starts_with('#') => {}
            None => assert!(line.starts_with(last) && !last.is_empty(), "{line}"),
        }
    }
}
