//! `understudy status`: what the zones' records and the nodes themselves say.

use std::time::Duration;

use coordination::channel::{self, Party, Request};
use coordination::records::{
    BackupState, Cluster, Control, EngineFacts, Heartbeat, Member, MemberState, Record, Role,
    written_forms,
};
use dax::forms::Forms;
use dax::ids::{Generation, ReplicaId};
use dax::storage::{ReplicaStatus, StorageCounters, Usage};
use serde::Serialize;
use serde_json::Value;
use volume::standby::{OverlayStats, ReadStats};

use super::cassandra::CassandraView;
use super::notes::{ago, member_notes, notes, version_number};
use super::proxies;
use super::registry::{Registry, in_time};
use super::watch::{self, Picture};
use super::{repositories, upkeep};
use crate::cli;
use crate::demo::timeline::thousands;
use crate::exit::Code;

const ANSWER_WITHIN: Duration = Duration::from_secs(2);

/// Everything that is known, as `--json` prints it.
#[derive(Debug, Serialize)]
pub(super) struct Status {
    pub volume: String,
    /// Who serves, if anybody does.
    active: Option<String>,
    pub epoch: u32,
    /// True if a standby could take over at once.
    protected: bool,
    /// Since when that is so, as the active says, Unix milliseconds.
    protection_since_unix_ms: Option<u64>,
    /// How many standbys there are and should be, as the active says.
    pub protection: Option<Value>,
    pub cluster: Option<Cluster>,
    /// If the volume hosts another server than PostgreSQL.
    #[serde(skip_serializing_if = "Option::is_none")]
    engine: Option<EngineFacts>,
    heartbeat: Option<Heartbeat>,
    /// What operators want of the whole cluster.
    pub control: Control,
    /// Which forms of what is stored may be written.
    pub forms: Forms,
    pub nodes: Vec<Node>,
    pub replicas: Vec<Replica>,
    /// If Apache Cassandra keeps the blocks.
    #[serde(skip_serializing_if = "Option::is_none")]
    cassandra: Option<CassandraView>,
    scrub: Option<Value>,
    /// The proxies that are connected to the active's agent.
    proxies: Option<Value>,
    /// The repositories of backups, as who archives into each last said.
    backups: Vec<BackupState>,
    /// What is kept beyond the present, and for whom, as the active says.
    retained: Option<Value>,
    /// Images of the past, and pins.
    past: Option<Value>,
    /// The image of a repository that is copied into the zones, and how far that is.
    filling: Option<Value>,
}

/// A replica: how it looks from here, and what it says that it does for the volume.
#[derive(Debug, Serialize)]
pub(super) struct Replica {
    #[serde(flatten)]
    pub status: ReplicaStatus,
    usage: Option<Usage>,
    writes_per_second: Option<f64>,
    reads_per_second: Option<f64>,
}

impl Replica {
    fn new(status: ReplicaStatus, usage: &[(ReplicaId, Usage)]) -> Replica {
        let usage = usage.iter().find(|(replica, _)| *replica == status.replica);
        let usage = usage.map(|(_, usage)| usage.clone());
        Replica {
            status,
            writes_per_second: usage.as_ref().map(Usage::writes_per_second),
            reads_per_second: usage.as_ref().map(Usage::reads_per_second),
            usage,
        }
    }
}

/// One node: its record, and its own answer if it gave one.
#[derive(Debug, Serialize)]
pub(super) struct Node {
    #[serde(flatten)]
    pub member: Member,
    /// True if its agent answered.
    pub reachable: bool,
    /// How far its replay is behind the active's durable log.
    pub lag_bytes: Option<u64>,
    /// What it said, or why it did not.
    pub answer: Value,
}

/// Prints the state of the cluster. Ends with "unavailable" if nobody serves.
pub async fn run(args: cli::Status) -> anyhow::Result<Code> {
    let registry = Registry::open(&args.asking.config).await?;
    watch::show(args.watching, async || {
        let status = look(&registry).await?;
        Ok(Picture {
            text: match args.asking.json {
                true => format!("{}\n", serde_json::to_string(&status)?),
                false => table(&status),
            },
            code: match status.active {
                Some(_) => Code::Ok,
                None => Code::Unavailable,
            },
        })
    })
    .await
}

/// Asks the registry and every node.
pub(super) async fn look(registry: &Registry) -> anyhow::Result<Status> {
    let storage = &*registry.storage;
    let (cluster, engine, heartbeat, members, control, forms, backups) = in_time(async {
        Ok((
            Cluster::load(storage).await?,
            EngineFacts::load(storage).await?,
            Heartbeat::load(storage).await?,
            Member::list(storage).await?,
            Control::read(storage).await?,
            written_forms(storage).await?,
            BackupState::list(storage).await?,
        ))
    })
    .await?;
    // Without it the rest is worth knowing all the same.
    let usage = in_time(async { Ok(storage.usage().await?) }).await;
    let usage = usage.unwrap_or_default();
    let me = Party::new(registry.config.cluster())?;
    let mut asked = tokio::task::JoinSet::new();
    for member in members {
        asked.spawn(ask(member, me.clone(), heartbeat.clone()));
    }
    let mut nodes = asked.join_all().await;
    nodes.sort_by(|a, b| a.member.name.cmp(&b.member.name));
    let protection = active(&nodes).map(|node| &node.answer["protection"]);
    let protection_since_unix_ms = protection.and_then(|p| p["since_unix_ms"].as_u64());
    let replicas = replicas(&nodes, registry);
    Ok(Status {
        cassandra: CassandraView::new(registry.config.cluster(), &replicas),
        protection_since_unix_ms,
        protection: protection.cloned(),
        volume: registry.config.cluster().volume.to_string(),
        active: active(&nodes).map(|node| node.member.name.to_string()),
        epoch: heartbeat.as_ref().map_or(0, |beat| beat.epoch.0),
        protected: nodes.iter().any(|node| {
            let waits = if engine.is_some() {
                Role::Spare
            } else {
                Role::Standby
            };
            node.is(waits, MemberState::Warm) && node.member.misfit.is_none()
        }),
        cluster,
        engine,
        heartbeat,
        control,
        forms,
        backups,
        replicas: replicas
            .into_iter()
            .map(|status| Replica::new(status, &usage))
            .collect(),
        scrub: active(&nodes).map(|node| node.answer["scrub"].clone()),
        proxies: active(&nodes).map(|node| node.answer["proxies"].clone()),
        retained: active(&nodes).map(|node| node.answer["retained"].clone()),
        past: active(&nodes).map(|node| node.answer["past"].clone()),
        filling: active(&nodes).map(|node| node.answer["filling"].clone()),
        nodes,
    })
}

fn active(nodes: &[Node]) -> Option<&Node> {
    let serving = |node: &&Node| node.is(Role::Active, MemberState::Serving);
    nodes.iter().find(serving)
}

/// The replicas as seen from here, with what only the active knows of them.
fn replicas(nodes: &[Node], registry: &Registry) -> Vec<ReplicaStatus> {
    let mut replicas = registry.storage.replicas();
    let known = active(nodes).map(|node| node.answer["replicas"].clone());
    let known: Vec<ReplicaStatus> = known
        .and_then(|known| serde_json::from_value(known).ok())
        .unwrap_or_default();
    for replica in &mut replicas {
        if let Some(known) = known.iter().find(|k| k.replica == replica.replica) {
            replica.pending_bytes = known.pending_bytes;
            replica.missed_blocks = known.missed_blocks;
            replica.scrub_wanted = known.scrub_wanted;
        }
    }
    replicas
}

impl Node {
    fn is(&self, role: Role, state: MemberState) -> bool {
        self.reachable && self.member.role == role && self.member.state == state
    }
}

/// The member's record, brought up to date by what its agent says.
async fn ask(mut member: Member, me: Party, heartbeat: Option<Heartbeat>) -> Node {
    let answer = channel::request(&member.channel, &me, Request::Status, ANSWER_WITHIN).await;
    let (reachable, answer) = match answer {
        Ok(answer) => (true, answer),
        Err(error) => (false, Value::String(error.to_string())),
    };
    refresh(&mut member, &answer);
    let behind = |beat: Heartbeat| beat.synced_lsn.0.saturating_sub(member.applied.0);
    let standby = reachable && member.role == Role::Standby;
    Node {
        lag_bytes: heartbeat.filter(|_| standby).map(behind),
        member,
        reachable,
        answer,
    }
}

/// Takes over what the answer knows better than the record.
fn refresh(member: &mut Member, answer: &Value) {
    fn take<T: serde::de::DeserializeOwned>(answer: &Value, name: &str, into: &mut T) {
        if let Some(value) = answer.get(name)
            && let Ok(value) = serde_json::from_value(value.clone())
        {
            *into = value;
        }
    }
    take(answer, "role", &mut member.role);
    take(answer, "state", &mut member.state);
    take(answer, "received", &mut member.received);
    take(answer, "applied", &mut member.applied);
    take(answer, "server", &mut member.server);
}

fn table(status: &Status) -> String {
    let mut out = format!("volume {}, epoch {}: ", status.volume, status.epoch);
    let since = status.protection_since_unix_ms.map_or(String::new(), ago);
    let protection = status.protection.as_ref();
    let degraded = protection.is_some_and(|p| p["level"] == "degraded");
    let engine = status.engine.as_ref();
    out.push_str(&match (&status.active, status.protected) {
        (Some(active), protected) if engine.is_some() => engine.map_or(String::new(), |engine| {
            engine_line(active, engine, protected)
        }),
        (Some(active), true) if degraded => {
            format!(
                "{active} serves, DEGRADED{since}: {}\n\n",
                short_of(protection)
            )
        }
        (Some(active), true) => {
            let restored = upkeep::restored(protection);
            format!("{active} serves, protected by a warm standby{since}{restored}\n\n")
        }
        (Some(active), false) => {
            format!("{active} serves, NOT PROTECTED{since}: no warm standby\n\n")
        }
        (None, _) => "NOBODY SERVES\n\n".to_owned(),
    });
    out.push_str(&notes(&status.control));
    if status.forms < Forms::NEWEST {
        out.push_str(" Upgrade not finished: see understudy upgrade status\n");
    }
    let members = status.nodes.iter().map(|node| &node.member);
    out.push_str(&member_notes(
        &status.control,
        status.cluster.as_ref(),
        members,
    ));
    out.push_str(&format!(
        "{:<14}{:<9}{:<13}{:>16}{:>16}{:>12}  {:<9}{}\n",
        "node", "role", "state", "received", "applied", "lag", "version", "postgres"
    ));
    for node in &status.nodes {
        out.push_str(&node_line(node));
    }
    out.push('\n');
    let bases: String = status.nodes.iter().filter_map(standby_lines).collect();
    if !bases.is_empty() {
        out.push_str(&bases);
        out.push('\n');
    }
    out.push_str(&proxies::lines(status.proxies.as_ref()));
    if let Some(cassandra) = &status.cassandra {
        out.push_str(&cassandra.line());
    }
    for replica in &status.replicas {
        out.push_str(&replica_line(replica));
    }
    let synced = status.heartbeat.as_ref().map(|beat| beat.synced_lsn);
    out.push_str(&repositories::lines(&status.backups, synced));
    out.push_str(&upkeep::scrub_line(status.scrub.as_ref()));
    out.push_str(&upkeep::retained_lines(status.retained.as_ref()));
    out.push_str(&upkeep::past_lines(status.past.as_ref()));
    out.push_str(&upkeep::filling_line(status.filling.as_ref()));
    out
}

/// Who serves a database of another kind than PostgreSQL.
fn engine_line(active: &str, engine: &EngineFacts, protected: bool) -> String {
    let waits = match protected {
        true => "another node waits to take over",
        false => "NO OTHER NODE waits to take over",
    };
    let version = engine.version.as_ref().map(|version| format!(" {version}"));
    let version = version.unwrap_or_default();
    format!("{active} serves {}{version}, {waits}\n\n", engine.engine)
}

/// How many standbys are missing.
fn short_of(protection: Option<&Value>) -> String {
    let count = |name: &str| {
        protection
            .and_then(|p| p[name].as_u64())
            .unwrap_or_default()
    };
    format!("{} of {} standbys warm", count("warm"), count("wanted"))
}

/// How long the last loss of protection lasted.
fn node_line(node: &Node) -> String {
    let member = &node.member;
    let state = match node.reachable {
        true => word(&member.state),
        false => "unreachable".to_owned(),
    };
    let standby = member.role == Role::Standby;
    let server = &member.server;
    let pending = match server.pending_restart.is_empty() {
        true => String::new(),
        false => format!("  RESTART PENDING: {}", server.pending_restart.join(", ")),
    };
    let position = |lsn: volume::lsn::Lsn| if standby { lsn.to_string() } else { "-".into() };
    let lag = node
        .lag_bytes
        .map_or("-".to_owned(), |bytes| format!("{} B", thousands(bytes)));
    format!(
        "{:<14}{:<9}{state:<13}{:>16}{:>16}{lag:>12}  {:<9}{}{pending}\n",
        member.name.as_str(),
        word(&member.role),
        position(member.received),
        position(member.applied),
        server.server_version.as_deref().map_or("-", version_number),
        member.postgres
    )
}

/// What a replica does for the volume.
fn usage_note(replica: &Replica) -> String {
    let Some(usage) = &replica.usage else {
        return String::new();
    };
    let mib = usage.used_bytes as f64 / f64::from(1 << 20);
    let rate = |rate: f64| thousands(rate.round() as u64);
    format!(
        "; {mib:.1} MiB used, {} writes/s, {} reads/s",
        rate(usage.writes_per_second()),
        rate(usage.reads_per_second())
    )
}

/// What a standby says of itself.
fn standby_lines(node: &Node) -> Option<String> {
    Some(base_line(node)? + &reads_line(node).unwrap_or_default())
}

/// What a standby stands on, and what it keeps on top of that.
fn base_line(node: &Node) -> Option<String> {
    let (base, overlay) = (node.answer.get("base")?, node.answer.get("overlay")?);
    let generation: Generation = serde_json::from_value(base["generation"].clone()).ok()?;
    let end: volume::lsn::Lsn = serde_json::from_value(base["end"].clone()).ok()?;
    let overlay: OverlayStats = serde_json::from_value(overlay.clone()).ok()?;
    let pause = base["last_pause_ms"].as_f64();
    let pause = pause.map_or(String::new(), |ms| {
        format!(", the last time within {ms} ms")
    });
    let warm = node.answer["warmth"]["percent"].as_f64();
    let warm = warm.map_or(String::new(), |percent| format!("; {percent} % warm"));
    Some(format!(
        "{:<14}base {generation} at {end}, moved {} times{pause}; overlay {} kB in memory, {} kB on disk{warm}{}{}\n",
        node.member.name.as_str(),
        base["moves"],
        thousands(overlay.memory_bytes >> 10),
        thousands(overlay.spill_bytes >> 10),
        prefetch_note(&node.answer["prefetch"]),
        skips_note(&node.answer["skips"]),
    ))
}

/// How a standby's data blocks were read, and what of that its storage found stale.
fn reads_line(node: &Node) -> Option<String> {
    let reads: ReadStats = serde_json::from_value(node.answer.get("reads")?.clone()).ok()?;
    let storage = node.answer.get("storage");
    let counters = storage.and_then(|s| serde_json::from_value::<StorageCounters>(s.clone()).ok());
    let counters = counters.unwrap_or_default();
    let forgot = match reads.moves_unlisted {
        0 => String::new(),
        n => format!("; {} moves without lists", thousands(n)),
    };
    Some(format!(
        "{:<14}reads {} cached, {} by one zone ({} stale answers, {} by a quorum after all), {} by a quorum; \
         knows {} blocks{forgot}\n",
        node.member.name.as_str(),
        thousands(reads.cached),
        thousands(reads.expected),
        thousands(counters.reads_stale),
        thousands(counters.reads_escalated),
        thousands(reads.unknown),
        thousands(reads.known_blocks),
    ))
}

/// What came of reading ahead of redo.
fn prefetch_note(prefetch: &Value) -> String {
    let count = |name: &str| prefetch[name].as_u64().unwrap_or_default();
    match count("fetched") {
        0 => String::new(),
        fetched => format!(
            "; {} blocks fetched ahead, {} used",
            thousands(fetched),
            thousands(count("used"))
        ),
    }
}

/// How often it began anew because it was too far behind.
fn skips_note(skips: &Value) -> String {
    match skips["count"].as_u64().unwrap_or_default() {
        0 => String::new(),
        count => {
            let ago = skips["last_unix_ms"].as_u64().map_or(String::new(), ago);
            let last = ago.trim_start_matches(" for ");
            format!("; SKIPPED {count} times, last {last} ago")
        }
    }
}

fn replica_line(replica: &Replica) -> String {
    let usage = usage_note(replica);
    let replica = &replica.status;
    let state = match (replica.up, replica.round_trip, &replica.trouble) {
        (true, ..) if replica.rebuilding => "up, REBUILDING after it lost its disk".into(),
        (true, _, None) if replica.missed_blocks > 0 => {
            format!("up, lacks {} blocks yet", thousands(replica.missed_blocks))
        }
        (true, Some(time), None) => format!("up, {:.1} ms away", time.as_secs_f64() * 1000.0),
        (true, _, Some(trouble)) => format!("up, but {trouble}"),
        (true, None, None) => "up".into(),
        (false, _, Some(trouble)) => format!("DOWN: {trouble}"),
        (false, _, None) => "DOWN".into(),
    };
    let zone = replica.zone.to_string();
    format!("{zone:<8}{:<28}{state}{usage}\n", replica.address)
}

/// A state's name as it is in the JSON.
fn word(state: &impl Serialize) -> String {
    match serde_json::to_value(state) {
        Ok(Value::String(word)) => word.replace('_', " "),
        _ => String::new(),
    }
}

#[cfg(test)]
impl Status {
    /// Of a cluster of which only these are known.
    pub(super) fn of_nodes(nodes: Vec<Node>) -> Status {
        Status {
            volume: "main".to_owned(),
            active: active(&nodes).map(|node| node.member.name.to_string()),
            epoch: 1,
            protected: false,
            protection_since_unix_ms: None,
            protection: None,
            cluster: None,
            engine: None,
            heartbeat: None,
            control: Control::default(),
            forms: Forms::NEWEST,
            nodes,
            replicas: Vec::new(),
            cassandra: None,
            scrub: None,
            proxies: None,
            backups: Vec::new(),
            retained: None,
            past: None,
            filling: None,
        }
    }
}

#[cfg(test)]
mod tests;
