//! `/cluster` and `/history`, in Patroni's form (pure).

use coordination::address::Address;
use coordination::records::{Cause, Control, Heartbeat, HistoryEntry, Member, MemberState, Role};
use serde_json::{Value, json};
use volume::lsn::Lsn;

use super::lsn_number;

/// All nodes, as their records tell.
pub(super) fn cluster(
    scope: &str,
    members: &[Member],
    heartbeat: Option<&Heartbeat>,
    control: &Control,
) -> Value {
    let mut members: Vec<&Member> = members.iter().collect();
    members.sort_by(|a, b| a.name.cmp(&b.name));
    let members: Vec<Value> = members.into_iter().map(|m| member(m, heartbeat)).collect();
    let mut cluster = json!({ "scope": scope, "members": members });
    if control.is_paused() {
        cluster["pause"] = json!(true);
    }
    if let Some(planned) = &control.scheduled_switchover {
        let from = heartbeat.map(|beat| &beat.node);
        cluster["scheduled_switchover"] = json!({ "at": utc(planned.at_unix_ms), "from": from });
        if let Some(to) = &planned.to {
            cluster["scheduled_switchover"]["to"] = json!(to);
        }
    }
    cluster
}

fn member(member: &Member, heartbeat: Option<&Heartbeat>) -> Value {
    let role = match member.role {
        Role::Active => "leader",
        Role::Standby | Role::Spare => "replica",
    };
    let state = match (member.role, member.state) {
        (Role::Standby, MemberState::Warm | MemberState::CatchingUp) => "streaming",
        (_, MemberState::Serving | MemberState::Warm | MemberState::CatchingUp) => "running",
        (_, MemberState::Starting) => "starting",
        (_, MemberState::Restarting) => "restarting",
        (_, MemberState::Failing) => "start failed",
        (_, MemberState::Stopped) => "stopped",
    };
    let mut about = json!({
        "name": member.name, "role": role, "state": state, "tags": member.tags,
    });
    if !member.server.pending_restart.is_empty() {
        about["pending_restart"] = json!(true);
    }
    if let Some(Address::Tcp { host, port }) = &member.rest {
        about["api_url"] = json!(format!("http://{host}:{port}/patroni"));
    }
    if let Address::Tcp { host, port } = &member.postgres {
        (about["host"], about["port"]) = (json!(host), json!(port));
    }
    if let Some(beat) = heartbeat {
        about["timeline"] = json!(beat.timeline);
        if member.role == Role::Standby {
            let lag = beat.synced_lsn.0.saturating_sub(member.applied.0);
            about["lag"] = json!(lag);
        }
    }
    about
}

/// The changes of the active: `[timeline that ended, where, why, when, new leader]`.
pub(super) fn history(entries: &[HistoryEntry]) -> Value {
    let ended = |at: usize| match at {
        0 => 0,
        at => entries[at - 1].timeline,
    };
    let line = |(at, entry): (usize, &HistoryEntry)| {
        let end: Lsn = entry.log_end;
        json!([
            ended(at),
            lsn_number(end) as u64,
            why(&entry.cause),
            utc(entry.unix_ms),
            entry.node,
        ])
    };
    Value::Array(entries.iter().enumerate().map(line).collect())
}

fn why(cause: &Cause) -> String {
    match cause {
        Cause::Created => "created".to_owned(),
        Cause::Started => "started, nobody was active".to_owned(),
        Cause::Failover { evidence } => format!("failover: {evidence}"),
        Cause::Switchover => "switchover".to_owned(),
        Cause::Forced => "failover, as asked".to_owned(),
    }
}

/// A time as people and parsers read it, `2026-01-02T03:04:05Z`.
fn utc(unix_ms: u64) -> String {
    let time = std::time::UNIX_EPOCH + std::time::Duration::from_millis(unix_ms);
    humantime::format_rfc3339_seconds(time).to_string()
}

#[cfg(test)]
mod tests {
    use coordination::records::{ActiveState, Paused, ScheduledSwitchover};

    use dax::ids::{Epoch, NodeName};

    use super::*;
    use crate::rest::tests::member;

    fn node(name: &str, role: Role, state: MemberState) -> Member {
        let mut member = member(name, role, state);
        (member.received, member.applied) = (Lsn(10), Lsn(10));
        member.rest = Some("10.0.0.1:8008".parse().unwrap());
        member
    }

    #[test]
    fn members_have_patronis_columns() {
        let beat = Heartbeat {
            epoch: Epoch(3),
            counter: 9,
            node: NodeName::new("b").unwrap(),
            synced_lsn: Lsn(110),
            journal_synced: 0,
            timeline: 2,
            starts: 0,
            configured: 0,
            interval_ms: 200,
            state: ActiveState::Serving,
        };
        let mut members = [
            node("b", Role::Active, MemberState::Serving),
            node("a", Role::Standby, MemberState::Warm),
        ];
        members[1]
            .server
            .pending_restart
            .push("shared_buffers".into());
        let mut control = Control::default();
        assert_eq!(cluster("main", &[], None, &control).get("pause"), None);
        control.paused = Some(Paused {
            since_unix_ms: 0,
            by: "a".into(),
            reason: None,
        });
        control.scheduled_switchover = Some(ScheduledSwitchover {
            at_unix_ms: 1_700_000_000_000,
            to: Some(NodeName::new("a").unwrap()),
            by: "a".into(),
        });
        let cluster = cluster("main", &members, Some(&beat), &control);
        assert_eq!(cluster["pause"], json!(true));
        let planned = json!({ "at": "2023-11-14T22:13:20Z", "from": "b", "to": "a" });
        assert_eq!(cluster["scheduled_switchover"], planned);
        let members = cluster["members"].as_array().unwrap();
        let of = |at: usize, name: &str| members[at][name].clone();
        assert_eq!([of(0, "name"), of(1, "name")], [json!("a"), json!("b")]);
        assert_eq!(
            [of(0, "role"), of(1, "role")],
            [json!("replica"), json!("leader")]
        );
        assert_eq!(
            [of(0, "state"), of(1, "state")],
            [json!("streaming"), json!("running")]
        );
        assert_eq!(of(0, "pending_restart"), json!(true));
        assert_eq!(of(1, "pending_restart"), Value::Null);
        assert_eq!((of(0, "lag"), of(1, "lag")), (json!(100), Value::Null));
        assert_eq!(of(0, "api_url"), json!("http://10.0.0.1:8008/patroni"));
        assert_eq!(
            (of(1, "host"), of(1, "port")),
            (json!("127.0.0.1"), json!(5432))
        );
    }

    #[test]
    fn history_names_the_timeline_that_ended() {
        let entry = |node: &str, timeline, cause| HistoryEntry {
            number: 0,
            epoch: Epoch(timeline),
            node: NodeName::new(node).unwrap(),
            previous: None,
            cause,
            phases: Vec::new(),
            log_end: Lsn(0x30),
            lsns: coordination::records::Lsns::default(),
            horizon: None,
            timeline,
            decided_by: coordination::records::Decider::Automatic,
            old_active: None,
            unix_ms: 1_700_000_000_000,
        };
        let evidence = "its connection was reset".to_owned();
        let entries = [
            entry("a", 1, Cause::Created),
            entry("b", 2, Cause::Failover { evidence }),
        ];
        let line = json!([
            1,
            0x30,
            "failover: its connection was reset",
            "2023-11-14T22:13:20Z",
            "b"
        ]);
        assert_eq!(history(&entries)[1], line);
    }
}
