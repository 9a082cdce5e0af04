//! `understudy history`: who was active when, why it changed, and how long that took.

use coordination::records::{ActiveState, Cause, Decider, HistoryEntry, read_history};
use volume::lsn::Lsn;

use super::registry::{Registry, in_time};
use super::watch::{self, Picture};
use crate::cli;
use crate::demo::timeline::thousands;
use crate::exit::Code;

/// Prints the last changes of the active, oldest first, with all that is known of each.
pub async fn run(args: cli::History) -> anyhow::Result<Code> {
    let registry = Registry::open(&args.asking.config).await?;
    watch::show(args.watching, async || {
        let entries = async { Ok(read_history(&*registry.storage, args.last).await?) };
        let entries = in_time(entries).await?;
        Ok(Picture::new(match args.asking.json {
            true => format!("{}\n", serde_json::to_string(&entries)?),
            false => table(&entries),
        }))
    })
    .await
}

fn table(entries: &[HistoryEntry]) -> String {
    let mut out = format!(
        "{:<20}  {:>6}  {:<12}  {:>9}  why\n",
        "when (UTC)", "epoch", "active", "took"
    );
    for entry in entries {
        let took = match entry.total_ms() {
            0 => String::new(),
            ms => format!("{} ms", thousands(ms)),
        };
        out.push_str(&format!(
            "{:<20}  {:>6}  {:<12}  {took:>9}  {}\n",
            utc(entry.unix_ms),
            entry.epoch.0,
            entry.node,
            why(entry)
        ));
        for more in details(entry) {
            out.push_str(&format!("{:<57}{more}\n", ""));
        }
    }
    out
}

fn why(entry: &HistoryEntry) -> String {
    let previous = entry
        .previous
        .as_ref()
        .map_or("nobody", |node| node.as_str());
    match &entry.cause {
        Cause::Created => "the database was created".into(),
        Cause::Started => "started; nobody was active".into(),
        Cause::Failover { evidence } => format!("{previous} was gone: {evidence}"),
        Cause::Switchover => format!("{previous} handed over, as asked"),
        Cause::Forced => format!("forced by an operator; {previous} was active"),
    }
}

/// What is known besides: a line each.
fn details(entry: &HistoryEntry) -> Vec<String> {
    let mut lines = Vec::new();
    if !entry.phases.is_empty() {
        let phases = entry.phases.iter();
        let phases: Vec<String> = phases.map(|p| format!("{} {}", p.phase, p.ms)).collect();
        lines.push(phases.join(", "));
    }
    let by = match entry.decided_by {
        Decider::Operator => "an operator decided",
        Decider::Automatic => "decided by itself",
    };
    lines.push(format!("{by}; timeline {}", entry.timeline));
    let lsn = |what: &str, lsn: Option<Lsn>| lsn.map(|lsn| format!("{what} {lsn}"));
    let lsns: Vec<String> = [
        lsn("known durable", entry.lsns.synced),
        lsn("replayed", entry.lsns.applied),
        lsn(
            "log ended",
            Some(entry.log_end).filter(|end| *end > Lsn::ZERO),
        ),
        lsn("promoted at", entry.lsns.promoted),
    ]
    .into_iter()
    .flatten()
    .collect();
    if !lsns.is_empty() {
        lines.push(lsns.join(", "));
    }
    if let Some(horizon) = entry.horizon {
        lines.push(format!("transactions before it have ids below {horizon}"));
    }
    if let Some(old) = &entry.old_active {
        let seen = match old.seen_before_ms {
            Some(ms) => format!(", seen {} ms before", thousands(ms)),
            None => String::new(),
        };
        lines.push(format!(
            "the last of epoch {} was beat {}, {}{seen}",
            old.epoch.0,
            old.beat,
            doing(&old.state)
        ));
    }
    lines
}

fn doing(state: &ActiveState) -> String {
    match state {
        ActiveState::TakingOver => "taking over".into(),
        ActiveState::Serving => "serving".into(),
        ActiveState::PostgresDead => "without its PostgreSQL".into(),
        ActiveState::Released { to: None } => "stopped cleanly".into(),
        ActiveState::Released { to: Some(to) } => format!("stopped cleanly for {to}"),
    }
}

/// Unix milliseconds as date and time of day.
pub(super) fn utc(unix_ms: u64) -> String {
    let time = std::time::UNIX_EPOCH + std::time::Duration::from_millis(unix_ms);
    humantime::format_rfc3339_seconds(time)
        .to_string()
        .replace('T', " ")
        .replace('Z', "")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_failover_is_told_with_its_evidence_and_its_phases() {
        let entry: HistoryEntry = serde_json::from_str(
            r#"{"number": 2, "epoch": 2, "node": "south", "previous": "north",
                "cause": "failover", "evidence": "connection reset",
                "phases": [{"phase": "detect", "ms": 120}, {"phase": "fence", "ms": 3}],
                "decided_by": "automatic", "timeline": 4, "log_end": 48,
                "horizon": 750, "lsns": {"synced": 32, "applied": 16, "promoted": 64},
                "old_active": {"epoch": 1, "beat": 77, "state": "serving", "seen_before_ms": 1500},
                "unix_ms": 1700000000000}"#,
        )
        .unwrap();
        let said = table(&[entry]);
        for part in [
            "2023-11-14 22:13:20",
            "123 ms",
            "north was gone: connection reset",
            "detect 120, fence 3",
            "decided by itself; timeline 4",
            "known durable 0/20, replayed 0/10, log ended 0/30, promoted at 0/40",
            "transactions before it have ids below 750",
            "the last of epoch 1 was beat 77, serving, seen 1,500 ms before",
        ] {
            assert!(said.contains(part), "{part} is missing in\n{said}");
        }
    }
}
