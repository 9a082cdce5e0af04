//! The report as tables for a person.

use std::fmt::Write as _;

use super::Report;

/// Tables of a report, as text.
pub fn table(report: &Report) -> String {
    let mut out = format!(
        "\n  {} processors, {} rounds of {} s; medians\n",
        report.processors, report.rounds, report.seconds
    );
    if !report.workloads.is_empty() {
        workloads(&mut out, report);
    }
    // Writing to a string cannot fail, here and below.
    if let Some(transfer) = &report.transfer {
        let _ = writeln!(
            out,
            "\n  state transfer of {:.2} GB in {:.1} s: commits stood still for {:.0} ms at most; {:.0} a second, {:.0} before",
            transfer.bytes as f64 / 1e9,
            transfer.seconds,
            transfer.pause_ms,
            transfer.tps_during,
            transfer.tps_before
        );
    }
    if let Some(cuts) = &report.cuts {
        let _ = writeln!(
            out,
            "\n  {} cuts of the network, {} takeovers: {} commits acknowledged, {} reads; {} by two primaries at once, {} old reads, \
             {} LOST, {} applied twice, {} times different",
            cuts.cuts,
            cuts.takeovers,
            cuts.acknowledged,
            cuts.reads,
            cuts.primaries_at_once,
            cuts.old_reads,
            cuts.lost,
            cuts.applied_twice,
            cuts.different
        );
    }
    if let Some(random) = &report.random {
        let _ = writeln!(
            out,
            "\n  sqlsmith for {:.0} s: {} statements wrote, {} read, {} failed or were refused; compared {} times, {} times different",
            random.seconds,
            random.wrote,
            random.read,
            random.failed.values().sum::<u64>(),
            random.compared,
            random.different
        );
    }
    if let Some(upgrade) = &report.upgrade {
        let _ = writeln!(
            out,
            "\n  {} to {}: {} errors at clients {:?}, no commits for {:.0} ms, and for {:.0} ms on the way back; members {}",
            upgrade.from,
            upgrade.to,
            upgrade.client_errors,
            upgrade.errors,
            upgrade.pause_ms,
            upgrade.pause_back_ms,
            if upgrade.equal { "equal" } else { "DIFFERENT" }
        );
    }
    out.push('\n');
    out
}

fn workloads(out: &mut String, report: &Report) {
    let _ = write!(
        out,
        "\n  transactions a second, share of the first way's, the middle latency in milliseconds, and for a transaction the \
         databases' processor time\n  and everybody else's in microseconds (TPC-B: scale {}; each: a slice of {} % of a \
         processor for each server; together: one for all)\n\n  {:<44}",
        report.scale, report.slice_percent, ""
    );
    for way in report.workloads.iter().take(1).flat_map(|one| &one.ways) {
        let _ = write!(
            out,
            " {:>8} {:>5} {:>6} {:>5} {:>5}",
            way.way, "share", "p50", "db", "other"
        );
    }
    let _ = writeln!(out);
    for workload in &report.workloads {
        let records = match workload.records {
            0 => String::new(),
            records => format!(" {records}"),
        };
        let (load, clients, limit) = (workload.load, workload.clients, workload.limit);
        let limit = format!("{limit:?}").to_lowercase();
        let name = format!("{load:?}{records}, {clients} clients, limit {limit}");
        let _ = write!(out, "  {name:<44}");
        for way in &workload.ways {
            let (tps, p50_ms) = (way.tps.median, way.p50_ms.median);
            let _ = write!(
                out,
                " {tps:>8.0} {:>5.2} {p50_ms:>6.2} {:>5.0} {:>5.0}",
                way.ratio, way.databases_us.median, way.others_us.median
            );
        }
        let _ = writeln!(out);
    }
}
