//! The report as tables for a person.

use std::fmt::Write as _;

use super::measure::{Case, Measured};
use super::{Failover, Report};

/// Tables of a report, as text.
pub fn table(report: &Report) -> String {
    let mut out = format!(
        "\n  {}: {}; {} processors, load average {:.1} before; {} rounds of {} s; medians\n",
        report.accelerator,
        report.accelerator_reason,
        report.processors,
        report.load_before,
        report.rounds,
        report.seconds
    );
    report.cases.iter().for_each(|case| of_case(&mut out, case));
    if !report.failovers.is_empty() {
        failovers(&mut out, &report.failovers);
    }
    // Writing to a string cannot fail, here and below.
    if !report.goals.is_empty() {
        let _ = writeln!(out, "\n  goals");
    }
    for goal in &report.goals {
        let met = if goal.met { "met" } else { "MISSED" };
        let _ = writeln!(
            out,
            "    {}: {}, seen {:.2}: {met}",
            goal.what, goal.wanted, goal.seen
        );
    }
    out.push('\n');
    out
}

fn of_case(out: &mut String, case: &Case) {
    let _ = writeln!(
        out,
        "\n  {} on {}, size {}, {} MB of memory, {} clients\n\n  {:<26} {:>6} {:>7} {:>8} {:>9} {:>7} {:>6} {:>7} {:>7} {:>7}",
        case.load,
        case.guest,
        case.size,
        case.memory_mb,
        case.clients,
        "",
        "share",
        "spread",
        "latency",
        "bytes",
        "fewer",
        "read",
        "pause",
        "99 %",
        "safe"
    );
    for way in &case.ways {
        let name = format!("{} {} ms", way.way, way.epoch_ms);
        let _ = writeln!(
            out,
            "  {name:<26} {:>6.2} {:>7.2} {:>7.1}x {:>9.0} {:>6.1}x {:>5.0}% {:>7.1} {:>7.1} {:>7.1}",
            way.ratio.median,
            way.ratio.spread,
            way.latency_ratio.median,
            way.bytes.median,
            way.times_fewer.median,
            way.as_blocks.median * 100.0,
            way.pause_p50_ms.median,
            way.pause_p99_ms.median,
            way.safe_p50_ms.median
        );
    }
    let slowest = case.ways.iter().max_by(|a, b| {
        let pause = |way: &Measured| way.pause_p50_ms.median;
        pause(a).total_cmp(&pause(b))
    });
    if let Some(way) = slowest {
        trace(out, way);
    }
}

fn trace(out: &mut String, way: &Measured) {
    let _ = writeln!(
        out,
        "  where the longest pause goes ({} {} ms), in ms: median, and what 99 % stay below",
        way.way, way.epoch_ms
    );
    let (p50, p99) = (way.trace_p50, way.trace_p99);
    for (name, p50, p99) in [
        ("stop", p50.stop, p99.stop),
        ("scan", p50.scan, p99.scan),
        ("copy", p50.copy, p99.copy),
        ("devices", p50.devices, p99.devices),
        ("cut", p50.cut, p99.cut),
        ("resume", p50.resume, p99.resume),
    ] {
        let _ = writeln!(out, "    {name:<8} {p50:>7.2} {p99:>8.2}");
    }
}

fn failovers(out: &mut String, failovers: &[Failover]) {
    let _ = writeln!(
        out,
        "\n  {:<40} {:>10} {:>12} {:>10} {:>7}",
        "hosts that were killed: no commits, in ms", "in all", "undetected", "takeover", "after"
    );
    for failover in failovers {
        let name = format!("{}, {}, {}", failover.guest, failover.load, failover.way);
        let _ = writeln!(
            out,
            "  {name:<40} {:>10.0} {:>12.0} {:>10.0} {:>7.2}",
            failover.outage_ms.median,
            failover.without_detection_ms.median,
            failover.takeover_ms.median,
            failover.after.median
        );
    }
}
