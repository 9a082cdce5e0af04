//! The report as tables for a person.

use std::fmt::Write as _;

use super::{Idle, Load, Protocol, Reintegration, Report, Scaling, Way, Workload};

/// Tables of a report, as text.
pub fn table(report: &Report) -> String {
    let mut out = format!(
        "\n  {} processors, {} rounds of {} s; medians\n",
        report.processors, report.rounds, report.seconds
    );
    if !report.workloads.is_empty() {
        workloads(&mut out, report);
    }
    if !report.idle.is_empty() {
        idle(&mut out, &report.idle);
    }
    if !report.scaling.is_empty() {
        scaling(&mut out, report);
    }
    if !report.reintegrations.is_empty() {
        reintegrations(&mut out, &report.reintegrations);
    }
    out.push('\n');
    out
}

// Writing to a string cannot fail, here and below.
fn workloads(out: &mut String, report: &Report) {
    let _ = writeln!(
        out,
        "\n  pgbench scale {}; transactions a second, the middle latency and the pooler's processor time for one, in microseconds\n\n  \
         {:<46} {:>8} {:>7} {:>10} {:>7} {:>5} {:>10} {:>7} {:>5} {:>7}",
        report.scale,
        "",
        "direct",
        "p50",
        "pgbouncer",
        "p50",
        "cpu",
        "understudy",
        "p50",
        "cpu",
        "ratio"
    );
    for workload in &report.workloads {
        let _ = write!(out, "  {:<46}", name(workload));
        for (way, width) in workload.ways.iter().zip([8, 10, 10]) {
            let (tps, p50_us) = (way.tps.median, way.p50_ms.median * 1000.0);
            let _ = write!(out, " {tps:>width$.0} {p50_us:>7.0}");
            if way.way != Way::Direct {
                let _ = write!(out, " {:>5.1}", way.cpu_us.median);
            }
        }
        let rate = |at: usize| workload.ways.get(at).map_or(0.0, |way| way.tps.median);
        let _ = writeln!(out, " {:>7.2}", rate(2) / rate(1).max(f64::MIN_POSITIVE));
    }
}

fn name(workload: &Workload) -> String {
    let load = match workload.load {
        Load::SelectOnly => "select-only",
        Load::ReadWrite => "read-write",
    };
    let protocol = match workload.protocol {
        Protocol::Simple => "simple",
        Protocol::Extended => "extended",
    };
    format!(
        "{load}, {protocol}, {}, {} clients",
        workload.pooling.name(),
        workload.clients
    )
}

fn idle(out: &mut String, all: &[Idle]) {
    let _ = writeln!(
        out,
        "\n  {:<14} {:>8} {:>10} {:>12} {:>16}",
        "idle clients", "", "MB in all", "kB a client", "the next, in ms"
    );
    for one in all {
        let _ = writeln!(
            out,
            "  {:<14} {:>8} {:>10.1} {:>12.1} {:>16.1}",
            one.way.to_string(),
            one.clients,
            one.with_bytes as f64 / 1e6,
            one.client_bytes as f64 / 1e3,
            one.next_ms
        );
    }
}

fn scaling(out: &mut String, report: &Report) {
    let _ = writeln!(
        out,
        "\n  a bookshop with {} books and {} shoppers; each database server has {} % of a processor; strong reads\n\n  \
         {:>10} {:>9} {:>15} {:>8} {:>9} {:>14} {:>16}",
        report.books,
        report.shoppers,
        report.slice_percent,
        "updates, %",
        "standbys",
        "interactions/s",
        "speedup",
        "p50, ms",
        "active, us",
        "standbys, us"
    );
    for Scaling {
        updates,
        standbys,
        tps,
        speedup,
        p50_ms,
        active_cpu_us,
        standbys_cpu_us,
    } in &report.scaling
    {
        let _ = writeln!(
            out,
            "  {updates:>10} {standbys:>9} {:>15.0} {speedup:>8.2} {:>9.1} {active_cpu_us:>14.0} {standbys_cpu_us:>16.0}",
            tps.median, p50_ms.median
        );
    }
}

fn reintegrations(out: &mut String, all: &[Reintegration]) {
    let _ = writeln!(
        out,
        "\n  {:<6} {:>18} {:>14} {:>20} {:>22}",
        "spare",
        "before the loss/s",
        "worst second",
        "spare at 9/10 after",
        "standby at 9/10 after"
    );
    let seconds = |s: Option<f64>| s.map_or_else(|| "-".to_owned(), |s| format!("{s:.0} s"));
    for one in all {
        let _ = writeln!(
            out,
            "  {:<6} {:>18.0} {:>13.0}% {:>20} {:>22}",
            if one.warm { "warm" } else { "cold" },
            one.before_tps,
            one.worst_share * 100.0,
            seconds(one.spare_recovers_s),
            seconds(one.standby_recovers_s)
        );
    }
}
