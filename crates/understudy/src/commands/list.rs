//! `understudy list` and `understudy topology`: the nodes as Patroni's table has them, and as a tree.

use std::collections::BTreeMap;

use coordination::address::Address;
use coordination::records::{MemberState, Role};
use dax::ids::ZoneId;
use serde_json::{Value, json};

use super::notes::{member_notes, notes, version_number};
use super::registry::Registry;
use super::status::{self, Node, Status};
use super::watch::{self, Picture};
use crate::cli;

/// Prints the table of the nodes.
pub async fn run(args: cli::List) -> anyhow::Result<crate::exit::Code> {
    let registry = Registry::open(&args.asking.config).await?;
    watch::show(args.watching, async || {
        let status = status::look(&registry).await?;
        Ok(Picture::new(match args.asking.json {
            true => format!(
                "{}\n",
                Value::Array(rows(&status).iter().map(Row::json).collect())
            ),
            false => table(&status),
        }))
    })
    .await
}

/// Prints the tree of zones and nodes.
pub async fn topology(args: cli::Topology) -> anyhow::Result<crate::exit::Code> {
    let registry = Registry::open(&args.asking.config).await?;
    watch::show(args.watching, async || {
        let status = status::look(&registry).await?;
        Ok(Picture::new(match args.asking.json {
            true => format!("{}\n", tree_json(&status)),
            false => tree(&status),
        }))
    })
    .await
}

const COLUMNS: [&str; 9] = [
    "Member",
    "Host",
    "Role",
    "State",
    "TL",
    "Lag in MB",
    "Version",
    "Pending restart",
    "Tags",
];

/// One node, column by column.
struct Row {
    cluster: String,
    cells: [Value; 9],
}

impl Row {
    fn json(&self) -> Value {
        let mut row = json!({ "Cluster": self.cluster });
        for (name, cell) in COLUMNS.iter().zip(&self.cells) {
            if !cell.is_null() {
                row[*name] = cell.clone();
            }
        }
        row
    }

    fn text(&self) -> [String; 9] {
        std::array::from_fn(|at| match &self.cells[at] {
            Value::Null => String::new(),
            Value::String(text) => text.clone(),
            Value::Bool(true) => "*".to_owned(),
            Value::Object(tags) => {
                let tags = tags.iter().map(|(name, value)| format!("{name}: {value}"));
                tags.collect::<Vec<_>>().join(", ")
            }
            other => other.to_string(),
        })
    }
}

fn rows(status: &Status) -> Vec<Row> {
    status.nodes.iter().map(|node| row(status, node)).collect()
}

fn row(status: &Status, node: &Node) -> Row {
    let member = &node.member;
    let lag = node.lag_bytes.map(|bytes| bytes.div_ceil(1 << 20));
    Row {
        cluster: status.volume.clone(),
        cells: [
            json!(member.name),
            json!(host(&member.postgres)),
            json!(role(member.role)),
            json!(state(node)),
            json!(node.answer["timeline"].as_u64()),
            json!(lag),
            json!(member.server.server_version.as_deref().map(version_number)),
            match member.server.pending_restart.is_empty() {
                true => Value::Null,
                false => json!(true),
            },
            tags(node),
        ],
    }
}

fn host(address: &Address) -> String {
    address.to_string()
}

fn role(role: Role) -> &'static str {
    match role {
        Role::Active => "Leader",
        Role::Standby => "Replica",
        Role::Spare => "Spare",
    }
}

fn state(node: &Node) -> &'static str {
    if !node.reachable {
        return "unreachable";
    }
    match (node.member.role, node.member.state) {
        (Role::Standby, MemberState::Warm) => "streaming",
        (Role::Standby, MemberState::CatchingUp) => "catching up",
        (_, MemberState::Serving | MemberState::Warm | MemberState::CatchingUp) => "running",
        (_, MemberState::Starting) => "starting",
        (_, MemberState::Restarting) => "restarting",
        (_, MemberState::Failing) => "start failed",
        (_, MemberState::Stopped) => "stopped",
    }
}

/// The tags that say something.
fn tags(node: &Node) -> Value {
    let all = serde_json::to_value(&node.member.tags).unwrap_or_default();
    let says = |value: &Value| !matches!(value, Value::Null | Value::Bool(false)) && *value != 0;
    let told = all.as_object().into_iter().flatten();
    // Zone 0 is a zone.
    let told = told.filter(|(name, value)| says(value) || (*name == "zone" && value.is_u64()));
    let told: serde_json::Map<String, Value> = told
        .map(|(name, value)| (name.clone(), value.clone()))
        .collect();
    match told.is_empty() {
        true => Value::Null,
        false => Value::Object(told),
    }
}

fn table(status: &Status) -> String {
    let rows: Vec<[String; 9]> = rows(status).iter().map(Row::text).collect();
    let width = |at: usize| {
        let cells = rows.iter().map(|row| row[at].chars().count());
        cells.max().unwrap_or(0).max(COLUMNS[at].len())
    };
    let widths: [usize; 9] = std::array::from_fn(width);
    let rule = |title: &str| {
        let cells: Vec<String> = widths.iter().map(|w| "-".repeat(w + 2)).collect();
        let line = format!("+{}+", cells.join("+"));
        match line.get(title.len()..) {
            Some(rest) if !title.is_empty() => format!("{title}{rest}\n"),
            _ => format!("{line}\n"),
        }
    };
    let line = |cells: &[String; 9]| {
        let cells = cells.iter().zip(widths);
        let cells: Vec<String> = cells.map(|(cell, w)| format!(" {cell:<w$} ")).collect();
        format!("|{}|\n", cells.join("|"))
    };
    let id = status.cluster.as_ref().map_or(0, |c| c.system_identifier);
    let title = format!("+ Cluster: {} ({id}) ", status.volume);
    let mut out = rule(&title);
    out += &line(&COLUMNS.map(str::to_owned));
    out += &rule("");
    for row in &rows {
        out += &line(row);
    }
    out += &rule("");
    let members = status.nodes.iter().map(|node| &node.member);
    out + &notes(&status.control) + &member_notes(&status.control, status.cluster.as_ref(), members)
}

/// The nodes of each zone, in the order of the zones; last those that are in none.
fn by_zone(status: &Status) -> BTreeMap<Option<u8>, Vec<&Node>> {
    let mut zones: BTreeMap<Option<u8>, Vec<&Node>> = BTreeMap::new();
    for replica in &status.replicas {
        zones
            .entry(Some(number_of(replica.status.zone)))
            .or_default();
    }
    for node in &status.nodes {
        zones.entry(node.member.tags.zone).or_default().push(node);
    }
    zones
}

fn number_of(zone: ZoneId) -> u8 {
    zone.0
}

fn tree(status: &Status) -> String {
    let mut out = format!("{}, epoch {}\n", status.volume, status.epoch);
    let mut zones: Vec<_> = by_zone(status).into_iter().collect();
    // None sorts before every number, and belongs to the end.
    let homeless = zones.first().is_some_and(|(zone, _)| zone.is_none());
    zones.rotate_left(usize::from(homeless));
    for (zone, nodes) in zones {
        let servers: Vec<String> = servers(status, zone)
            .map(|(address, up)| format!("{address} {}", if up { "up" } else { "DOWN" }))
            .collect();
        out += &match zone {
            Some(zone) => format!("+ zone {zone}: {}\n", servers.join(", ")),
            None => "+ in no zone\n".to_owned(),
        };
        for node in nodes {
            let row = row(status, node).text();
            let lag = match row[5].as_str() {
                "" => String::new(),
                lag => format!(", {lag} MB behind"),
            };
            let [name, host, role, state, ..] = &row;
            out += &format!("  + {name} ({role}, {state}{lag}) {host}\n");
        }
    }
    out + &notes(&status.control)
}

fn servers(status: &Status, zone: Option<u8>) -> impl Iterator<Item = (String, bool)> {
    let of_zone = status.replicas.iter().map(|replica| &replica.status);
    let of_zone = of_zone.filter(move |replica| Some(number_of(replica.zone)) == zone);
    of_zone.map(|replica| (replica.address.to_string(), replica.up))
}

fn tree_json(status: &Status) -> Value {
    let zones = by_zone(status).into_iter().map(|(zone, nodes)| {
        let servers: Vec<Value> = servers(status, zone)
            .map(|(address, up)| json!({ "address": address, "up": up }))
            .collect();
        let members: Vec<Value> = nodes.iter().map(|node| row(status, node).json()).collect();
        json!({ "zone": zone, "servers": servers, "members": members })
    });
    json!({
        "cluster": status.volume,
        "epoch": status.epoch,
        "zones": zones.collect::<Vec<_>>(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn example() -> Status {
        let node = |name: &str, role: &str, state: &str, answer: Value, more: Value| {
            let mut member = json!({
                "name": name, "role": role, "state": state, "incarnation": "1",
                "postgres": format!("{name}:5432"), "channel": "127.0.0.1:1",
                "tags": { "zone": 0, "nofailover": false },
            });
            for (field, value) in more.as_object().unwrap() {
                member[field] = value.clone();
            }
            Node {
                member: serde_json::from_value(member).unwrap(),
                reachable: true,
                lag_bytes: (role == "standby").then_some(3 << 20),
                answer,
            }
        };
        let pending =
            json!({ "pending_restart": ["shared_buffers"], "server_version": "15.6 (D)" });
        Status::of_nodes(vec![
            node(
                "north",
                "active",
                "serving",
                json!({ "timeline": 7 }),
                pending,
            ),
            node(
                "south",
                "standby",
                "warm",
                json!({ "timeline": 7 }),
                json!({}),
            ),
        ])
    }

    #[test]
    fn the_table_has_patronis_columns() {
        let text = table(&example());
        for part in [
            "+ Cluster: main (0) -",
            "| Member | Host       | Role    | State     | TL | Lag in MB | Version | Pending restart | Tags    |",
            "| north  | north:5432 | Leader  | running   | 7  |           | 15.6    | *               | zone: 0 |",
            "| south  | south:5432 | Replica | streaming | 7  | 3         |         |                 | zone: 0 |",
        ] {
            assert!(text.contains(part), "{part} is missing in\n{text}");
        }
        let widths: Vec<usize> = text.lines().map(str::len).collect();
        assert!(widths.windows(2).all(|w| w[0] == w[1]), "{text}");
        let rows: Vec<Value> = rows(&example()).iter().map(Row::json).collect();
        assert_eq!(rows[0]["Pending restart"], true);
        assert_eq!(rows[1]["Lag in MB"], 3);
        assert_eq!(rows[1].get("Pending restart"), None);
    }

    #[test]
    fn notes_in_force_stand_below_the_table() {
        let mut status = example();
        assert_eq!(notes(&status.control), "");
        status.control = serde_json::from_value(json!({
            "paused": { "since_unix_ms": 1_700_000_000_000_u64, "by": "north", "reason": "switches" },
            "scheduled_switchover": { "at_unix_ms": 1_700_000_000_000_u64, "to": "south", "by": "x" },
        }))
        .unwrap();
        let text = tree(&status);
        for part in [
            "+ zone 0",
            "  + south (Replica, streaming, 3 MB behind) south:5432",
            "PAUSED since 2023-11-14 22:13:20 UTC by north: switches",
            "scheduled at: 2023-11-14 22:13:20 UTC to south, by x",
        ] {
            assert!(text.contains(part), "{part} is missing in\n{text}");
        }
    }
}
