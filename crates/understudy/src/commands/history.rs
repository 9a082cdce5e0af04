//! `understudy history`: who was active when, why it changed, and how long that took.

use node::records::{Cause, HistoryEntry, read_history};

use super::registry::{Registry, in_time};
use super::watch::{self, Picture};
use crate::cli;
use crate::demo::timeline::thousands;
use crate::exit::Code;

/// Prints the last changes of the active, oldest first.
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
        if !entry.phases.is_empty() {
            let phases: Vec<String> = entry
                .phases
                .iter()
                .map(|phase| format!("{} {}", phase.phase, phase.ms))
                .collect();
            out.push_str(&format!("{:<57}{}\n", "", phases.join(", ")));
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
                "unix_ms": 1700000000000}"#,
        )
        .unwrap();
        let said = table(&[entry]);
        for part in [
            "2023-11-14 22:13:20",
            "123 ms",
            "north was gone: connection reset",
            "detect 120, fence 3",
        ] {
            assert!(said.contains(part), "{part} is missing in\n{said}");
        }
    }
}
