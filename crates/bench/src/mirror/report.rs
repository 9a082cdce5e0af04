//! The report as tables for a person.

use std::fmt::Write as _;

use super::Report;

/// See the module.
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
        "\n  transactions a second, share of the first way's, and the middle latency in milliseconds (TPC-B: scale {})\n\n  {:<30}",
        report.scale, ""
    );
    for way in report.workloads.iter().take(1).flat_map(|one| &one.ways) {
        let _ = write!(out, " {:>8} {:>5} {:>6}", way.way, "share", "p50");
    }
    let _ = writeln!(out);
    for workload in &report.workloads {
        let name = match workload.records {
            0 => format!("{:?}, {} clients", workload.load, workload.clients),
            records => format!(
                "{:?} {records}, {} clients",
                workload.load, workload.clients
            ),
        };
        let _ = write!(out, "  {name:<30}");
        for way in &workload.ways {
            let (tps, p50_ms) = (way.tps.median, way.p50_ms.median);
            let _ = write!(out, " {tps:>8.0} {:>5.2} {p50_ms:>6.2}", way.ratio);
        }
        let _ = writeln!(out);
    }
}
