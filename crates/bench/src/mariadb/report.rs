//! The report as tables.

use super::Report;

/// Tables for a person.
pub fn table(report: &Report) -> String {
    let mut out = format!(
        "\n  {} accounts, {} s a run, {} processors; medians\n\n  {:<44} {:>26} {:>8} {:>6} {:>8} {:>8} {:>9}\n",
        report.accounts,
        report.seconds,
        report.processors,
        "",
        "",
        "tps",
        "ratio",
        "p50 ms",
        "CPU us",
        "written B"
    );
    for workload in &report.workloads {
        for (at, measured) in workload.systems.iter().enumerate() {
            out.push_str(&format!(
                "  {:<44} {:>26} {:>8.0} {:>6.2} {:>8.2} {:>8.0} {:>9.0}\n",
                if at == 0 { &workload.name } else { "" },
                measured.system.to_string(),
                measured.tps.median,
                measured.ratio,
                measured.p50_ms.median,
                measured.cpu_us.median,
                measured.written_bytes.median,
            ));
        }
    }
    if !report.losses.is_empty() {
        out.push_str(&format!(
            "\n  the server is killed after {} s of load\n",
            report.before
        ));
    }
    for loss in &report.losses {
        let phases: Vec<String> = loss
            .phases
            .iter()
            .map(|(name, ms)| format!("{name} {ms:.0}"))
            .collect();
        out.push_str(&format!(
            "  {:<26} no commits for {:>6.0} ms, {} kills; {} acknowledged, {} LOST; {}\n",
            loss.system.to_string(),
            loss.outage_ms.median,
            loss.outage_ms.runs.len(),
            loss.acknowledged,
            loss.lost,
            phases.join(", "),
        ));
    }
    let verdict = if report.passed { "passed" } else { "FAILED" };
    out.push_str(&format!("\n  {verdict}\n\n"));
    out
}
