//! `/ui/state`: what the page shows, as one document (pure).
//!
//! Nodes speak for themselves; what their records say stands in for those that do not answer. A field
//! that nobody tells is left out, so that nodes of two versions can be shown together.

use coordination::address::Address;
use coordination::records::{ActiveState, BackupState, Control, Heartbeat, HistoryEntry, Member};
use dax::ids::ReplicaId;
use dax::storage::{ReplicaStatus, Usage, VolumeSettings};
use serde_json::{Map, Value, json};
use volume::lsn::Lsn;

use super::samples::Sample;
use crate::rest::Facts;

/// An active that does not answer this node still serves, as far as can be told, if it beat so lately.
const BEATS_WITHIN_MS: u64 = 5000;

/// Answer of a node to the request for its status.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum Answer {
    /// The status.
    Status(Value),
    /// Its agent does not run.
    Refused(String),
    /// No answer: the node may run or not.
    Nothing(String),
}

impl Answer {
    fn status(&self) -> Option<&Value> {
        match self {
            Answer::Status(status) => Some(status),
            _ => None,
        }
    }
}

/// What the registry said last.
#[derive(Debug, Clone, Default)]
pub(super) struct Registry {
    pub heartbeat: Option<Heartbeat>,
    pub members: Vec<Member>,
    /// Oldest first.
    pub history: Vec<HistoryEntry>,
    pub usage: Vec<(ReplicaId, Usage)>,
    pub settings: Option<VolumeSettings>,
    pub control: Control,
    pub backups: Vec<BackupState>,
}

/// All that a node knows of the cluster at one moment.
pub(super) struct Sight<'a> {
    pub facts: &'a Facts,
    pub unix_ms: u64,
    pub registry: &'a Registry,
    /// Why the registry could not be read, if so.
    pub trouble: Option<&'a str>,
    /// How long the heartbeat has not moved.
    pub silent_ms: u64,
    /// The nodes of the registry, with what they said.
    pub nodes: &'a [(Member, Answer)],
    pub replicas: &'a [ReplicaStatus],
    /// Since when nobody serves, if nobody did at the last look.
    pub unserved_since_unix_ms: Option<u64>,
}

impl Sight<'_> {
    /// Who serves, as far as can be told from here.
    fn active(&self) -> Option<&Member> {
        let beat = self.registry.heartbeat.as_ref();
        let newest = beat.map_or(0, |beat| u64::from(beat.epoch.0));
        // One of an older epoch is fenced, or will be at its next write.
        let epoch = |status: &Value| status["epoch"].as_u64().filter(|epoch| *epoch >= newest);
        let serving = self.nodes.iter().filter_map(|(member, answer)| {
            let status = answer.status()?;
            let serves = status["role"] == "active" && status["state"] == "serving";
            Some((epoch(status).filter(|_| serves)?, member))
        });
        if let Some((_, member)) = serving.max_by_key(|(epoch, _)| *epoch) {
            return Some(member);
        }
        let beat = beat.filter(|beat| beat.state == ActiveState::Serving)?;
        let beats = self.trouble.is_none() && self.silent_ms < BEATS_WITHIN_MS;
        let found = self.nodes.iter().find(|(m, _)| m.name == beat.node);
        let unheard = |(_, answer): &&(Member, Answer)| matches!(answer, Answer::Nothing(_));
        found.filter(unheard).filter(|_| beats).map(|(m, _)| m)
    }

    fn answer_of(&self, member: &Member) -> Option<&Value> {
        let found = self.nodes.iter().find(|(m, _)| m.name == member.name);
        found.and_then(|(_, answer)| answer.status())
    }
}

/// The document, without samples.
pub(super) fn document(sight: &Sight<'_>) -> Value {
    let active = sight.active();
    let said = active.and_then(|active| sight.answer_of(active));
    let heartbeat = sight.registry.heartbeat.as_ref().map(|beat| {
        let mut shown = json!(beat);
        shown["silent_ms"] = json!(sight.silent_ms);
        shown
    });
    let unserved = match active {
        Some(_) => None,
        None => sight.unserved_since_unix_ms.or(Some(sight.unix_ms)),
    };
    let zones = sight
        .replicas
        .iter()
        .map(|replica| zone(replica, said, &sight.registry.usage));
    let settings = sight.registry.settings.as_ref();
    let synced = sight
        .registry
        .heartbeat
        .as_ref()
        .map(|beat| beat.synced_lsn);
    let backups = sight.registry.backups.iter();
    let backups = backups.map(|one| backup(one, synced, sight.unix_ms));
    let mut document = json!({
        "volume": sight.facts.scope,
        "node": sight.facts.node,
        "version": env!("CARGO_PKG_VERSION"),
        "seen_unix_ms": sight.unix_ms,
        "nodes": sight.nodes.iter().map(|(m, a)| node(m, a, sight)).collect::<Vec<_>>(),
        "zones": zones.collect::<Vec<_>>(),
        "backups": backups.collect::<Vec<_>>(),
        "takeovers": sight.registry.history.iter().rev().collect::<Vec<_>>(),
    });
    let fields = document.as_object_mut().expect("it was made as an object");
    set(fields, "active", active.map(|active| &active.name));
    set(fields, "heartbeat", heartbeat);
    set(fields, "protection", said.and_then(protection));
    set(fields, "proxies", said.and_then(|said| said.get("proxies")));
    let branches = said.and_then(|said| said.pointer("/past/branches"));
    set(fields, "branches", branches);
    set(fields, "unserved_since_unix_ms", unserved);
    set(fields, "trouble", sight.trouble);
    let control = &sight.registry.control;
    set(fields, "paused", control.paused.as_ref());
    let scheduled = control.scheduled_switchover.as_ref();
    set(fields, "scheduled_switchover", scheduled);
    set(fields, "replicas", settings.map(|s| s.replicas));
    set(fields, "sync_replicas", settings.map(|s| s.sync_replicas));
    document
}

/// Sets what is known.
fn set(fields: &mut Map<String, Value>, name: &str, value: Option<impl serde::Serialize>) {
    if let Some(value) = value {
        fields.insert(name.to_owned(), json!(value));
    }
}

/// What the active says about protection; one that only says yes or no gets a level all the same.
fn protection(status: &Value) -> Option<Value> {
    let mut protection = status.get("protection")?.clone();
    let fields = protection.as_object_mut()?;
    if !fields.contains_key("level") {
        let level = match fields.get("protected")?.as_bool()? {
            true => "protected",
            false => "unprotected",
        };
        fields.insert("level".to_owned(), json!(level));
    }
    Some(protection)
}

/// A repository of backups, with ages.
fn backup(state: &BackupState, synced: Option<Lsn>, now: u64) -> Value {
    let mut about = json!(state);
    let fields = about.as_object_mut().expect("it was made as an object");
    let age = |then: Option<u64>| then.map(|then| now.saturating_sub(then));
    set(fields, "age_ms", age(state.image_unix_ms));
    set(fields, "drill_age_ms", age(state.drill_unix_ms));
    set(fields, "lag_ms", age(state.archived_unix_ms));
    let lag = synced.zip(state.archived);
    let lag = lag.map(|(synced, archived)| synced.bytes_since(archived));
    set(fields, "lag_bytes", lag);
    about
}

fn node(member: &Member, answer: &Answer, sight: &Sight<'_>) -> Value {
    let mut about = json!({
        "name": member.name,
        "role": member.role,
        "state": member.state,
        "reachable": answer.status().is_some(),
        "postgres": member.postgres.to_string(),
        "nofailover": member.tags.nofailover,
    });
    let fields = about.as_object_mut().expect("it was made as an object");
    set(fields, "zone", member.tags.zone);
    if let Some(Address::Tcp { .. }) = &member.rest {
        set(
            fields,
            "rest",
            member.rest.as_ref().map(ToString::to_string),
        );
    }
    let status = match answer {
        Answer::Status(status) => status,
        Answer::Refused(why) | Answer::Nothing(why) => {
            set(fields, "trouble", Some(why));
            return about;
        }
    };
    let same = |name: &str| status.get(name).filter(|value| !value.is_null());
    for name in ["role", "state", "epoch", "timeline", "pending_restart"] {
        set(fields, name, same(name));
    }
    let told = [
        ("trouble", "/error"),
        ("warm_percent", "/warmth/percent"),
        ("base_moves", "/base/moves"),
        ("commits_per_second", "/throughput/commits_per_second"),
        ("log_bytes_per_second", "/throughput/log_bytes_per_second"),
    ];
    for (name, place) in told {
        set(
            fields,
            name,
            status.pointer(place).filter(|value| !value.is_null()),
        );
    }
    let overlay = |part: &str| status.pointer(part).and_then(Value::as_u64);
    let memory = overlay("/overlay/memory_bytes");
    let spilled = overlay("/overlay/spill_bytes");
    set(
        fields,
        "overlay_bytes",
        memory.map(|memory| memory + spilled.unwrap_or(0)),
    );
    set(
        fields,
        "lag_bytes",
        lag(status, sight.registry.heartbeat.as_ref()),
    );
    about
}

/// How far a standby is behind: as it says, but at least what the heartbeat tells, of which a standby
/// that hears nothing from the active does not know.
fn lag(status: &Value, heartbeat: Option<&Heartbeat>) -> Option<u64> {
    let own = status["lag_bytes"].as_u64()?;
    let applied = serde_json::from_value::<Lsn>(status["applied"].clone()).ok();
    let behind = applied
        .zip(heartbeat)
        .map(|(applied, beat)| beat.synced_lsn.bytes_since(applied));
    Some(own.max(behind.unwrap_or(0)))
}

/// A zone's server as seen from here, with what only the active knows of it.
fn zone(replica: &ReplicaStatus, active: Option<&Value>, usage: &[(ReplicaId, Usage)]) -> Value {
    let known = active.and_then(|status| {
        let all: Vec<ReplicaStatus> = serde_json::from_value(status["replicas"].clone()).ok()?;
        all.into_iter()
            .find(|known| known.replica == replica.replica)
    });
    let mut about = json!({
        "zone": replica.zone,
        "address": replica.address,
        "up": replica.up,
        "rebuilding": replica.rebuilding,
        "missed_blocks": known.as_ref().map_or(replica.missed_blocks, |k| k.missed_blocks),
    });
    let fields = about.as_object_mut().expect("it was made as an object");
    let usage = usage.iter().find(|(id, _)| *id == replica.replica);
    let usage = usage.map(|(_, usage)| usage).filter(|_| replica.up);
    let away = replica.round_trip.map(|time| time.as_secs_f64() * 1000.0);
    set(fields, "round_trip_ms", away);
    set(fields, "trouble", replica.trouble.as_ref());
    set(fields, "used_bytes", usage.map(|u| u.used_bytes));
    set(
        fields,
        "writes_per_second",
        usage.map(Usage::writes_per_second),
    );
    set(
        fields,
        "reads_per_second",
        usage.map(Usage::reads_per_second),
    );
    about
}

/// What a document says of this moment.
pub(super) fn sample(document: &Value) -> Sample {
    let nodes = document["nodes"].as_array().into_iter().flatten();
    let standbys = nodes.clone().filter(|node| node["role"] == "standby");
    let lag = standbys.filter_map(|node| {
        Some((
            node["name"].as_str()?.to_owned(),
            node["lag_bytes"].as_u64()?,
        ))
    });
    let lag_bytes = lag.collect();
    let active = document["active"].as_str();
    let active_node = nodes.clone().find(|node| node["name"].as_str() == active);
    // A tenth is more than anybody sees, and short to send.
    let tenths = |rate: f64| (rate * 10.0).round() / 10.0;
    let rate = |name: &str| active_node.and_then(|node| node[name].as_f64()).map(tenths);
    Sample {
        unix_ms: document["seen_unix_ms"].as_u64().unwrap_or_default(),
        active: active.map(str::to_owned),
        commits_per_second: rate("commits_per_second"),
        log_bytes_per_second: rate("log_bytes_per_second"),
        lag_bytes,
    }
}

#[cfg(test)]
mod tests {
    use coordination::records::{MemberState, Role};
    use dax::ids::{Epoch, NodeName, ZoneId};
    use std::time::Duration;

    use super::*;
    use crate::rest::tests;

    fn facts() -> Facts {
        Facts {
            scope: "main".into(),
            node: "a".into(),
            server_version: 150_018,
            bin: "/usr/bin".into(),
        }
    }

    fn beat(node: &str, epoch: u32, state: ActiveState) -> Heartbeat {
        Heartbeat {
            epoch: Epoch(epoch),
            counter: 9,
            node: NodeName::new(node).unwrap(),
            synced_lsn: Lsn(1000),
            journal_synced: 0,
            timeline: 2,
            starts: 0,
            configured: 0,
            interval_ms: 0,
            state,
        }
    }

    fn active(epoch: u32) -> Answer {
        Answer::Status(json!({
            "role": "active", "state": "serving", "epoch": epoch, "timeline": 2,
            "protection": { "protected": true, "since_unix_ms": 5 },
            "proxies": [{ "who": { "node": "app" }, "report": { "clients": 3 } }],
            "past": { "branches": [{ "name": "test", "state": "ready" }] },
            "throughput": { "commits_per_second": 812.34, "log_bytes_per_second": 1e6 },
            "replicas": [{
                "replica": 1, "zone": 1, "address": "z1", "up": true, "round_trip": null, "pending_bytes": 0,
                "missed_blocks": 7, "scrub_wanted": false, "rebuilding": false, "trouble": null,
            }],
        }))
    }

    fn standby(applied: u64, lag: u64) -> Answer {
        Answer::Status(json!({
            "role": "standby", "state": "warm", "epoch": 3, "applied": Lsn(applied), "lag_bytes": lag,
            "warmth": { "percent": 93.5 }, "overlay": { "memory_bytes": 10, "spill_bytes": 5 },
        }))
    }

    fn look(beat: Option<Heartbeat>, silent_ms: u64, answers: Vec<(&str, Answer)>) -> Value {
        let registry = Registry {
            heartbeat: beat,
            ..Registry::default()
        };
        let member = |name: &str| tests::member(name, Role::Active, MemberState::Serving);
        let nodes: Vec<_> = answers.into_iter().map(|(n, a)| (member(n), a)).collect();
        let replicas = [ReplicaStatus {
            replica: ReplicaId(1),
            zone: ZoneId(1),
            address: "z1".into(),
            store: None,
            up: true,
            round_trip: Some(Duration::from_micros(1500)),
            pending_bytes: 0,
            missed_blocks: 0,
            scrub_wanted: false,
            rebuilding: false,
            reads: None,
            full: false,
            trouble: None,
        }];
        document(&Sight {
            facts: &facts(),
            unix_ms: 10_000,
            registry: &registry,
            trouble: None,
            silent_ms,
            nodes: &nodes,
            replicas: &replicas,
            unserved_since_unix_ms: None,
        })
    }

    fn nothing() -> Answer {
        Answer::Nothing("no answer".into())
    }

    #[test]
    fn a_healthy_cluster_is_told_by_its_nodes() {
        let nodes = vec![("a", active(3)), ("b", standby(400, 10))];
        let seen = look(Some(beat("a", 3, ActiveState::Serving)), 100, nodes);
        assert_eq!(seen["active"], "a");
        assert_eq!(
            seen["protection"],
            json!({ "level": "protected", "protected": true, "since_unix_ms": 5 })
        );
        assert_eq!(seen["proxies"][0]["report"]["clients"], 3);
        assert_eq!(seen["branches"][0]["name"], "test");
        assert_eq!(
            seen["nodes"][1]["lag_bytes"], 600,
            "the heartbeat knows of more"
        );
        assert_eq!(
            seen["nodes"][1]["role"], "standby",
            "not what the record says"
        );
        assert_eq!(seen["nodes"][1]["overlay_bytes"], 15);
        assert_eq!(seen["zones"][0]["missed_blocks"], 7);
        assert_eq!(seen["zones"][0]["round_trip_ms"], 1.5);
        assert!(seen.get("unserved_since_unix_ms").is_none());
        let sample = sample(&seen);
        assert_eq!(
            (sample.unix_ms, sample.commits_per_second),
            (10_000, Some(812.3))
        );
        assert_eq!(sample.active.as_deref(), Some("a"));
        assert_eq!(
            sample.lag_bytes.into_iter().collect::<Vec<_>>(),
            [("b".to_owned(), 600)]
        );
    }

    #[test]
    fn an_active_of_an_older_epoch_does_not_serve() {
        let nodes = vec![("a", active(3)), ("b", active(4))];
        let seen = look(Some(beat("b", 4, ActiveState::Serving)), 100, nodes);
        assert_eq!(seen["active"], "b");
        let taking = Some(beat("b", 4, ActiveState::TakingOver));
        let seen = look(taking, 100, vec![("a", active(3)), ("b", standby(1, 1))]);
        assert_eq!(seen["active"], Value::Null);
        assert_eq!(seen["heartbeat"]["state"], "taking_over");
        assert_eq!(seen["unserved_since_unix_ms"], 10_000);
        assert_eq!(sample(&seen).active, None);
    }

    #[test]
    fn an_active_that_this_node_cannot_reach_serves_while_it_beats() {
        let beat = || Some(beat("a", 3, ActiveState::Serving));
        assert_eq!(look(beat(), 100, vec![("a", nothing())])["active"], "a");
        assert_eq!(
            look(beat(), 6000, vec![("a", nothing())])["active"],
            Value::Null
        );
        let refused = Answer::Refused("no agent listens".into());
        let seen = look(beat(), 100, vec![("a", refused)]);
        assert_eq!(seen["active"], Value::Null);
        assert_eq!(seen["nodes"][0]["trouble"], "no agent listens");
    }

    #[test]
    fn a_node_that_says_little_is_shown_with_little() {
        let bare =
            Answer::Status(json!({ "role": "none", "state": "failing", "error": "no disk" }));
        let seen = look(None, 0, vec![("a", bare)]);
        assert_eq!(seen["nodes"][0]["state"], "failing");
        assert_eq!(seen["nodes"][0]["trouble"], "no disk");
        assert!(seen["nodes"][0].get("lag_bytes").is_none());
        assert!(seen.get("protection").is_none() && seen.get("heartbeat").is_none());
    }
}
