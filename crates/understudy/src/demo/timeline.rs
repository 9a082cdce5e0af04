//! The story of a failover as text, for a person at a terminal.

use std::fmt::Write;

use super::report::{Phases, Report};

/// What happens in each phase, in the reader's words.
pub fn meaning(phase: &str) -> &'static str {
    match phase {
        "detect" => "the standby notices",
        "fence" => "a majority of the zones refuses the old writer, for good",
        "log_tail" => "the log's last records are read and its end is fixed",
        "replay" => "PostgreSQL replays what is left",
        "promote" => "the standby's view becomes the volume; PostgreSQL accepts writes",
        "first_commit" => "a client has connected again and committed",
        _ => "",
    }
}

/// Writes the whole story.
pub fn render(report: &Report) -> String {
    let mut out = String::new();
    headline(&mut out, report);
    waterfall(&mut out, &report.phases_ms);
    throughput(&mut out, report);
    checks(&mut out, report);
    footer(&mut out, report);
    out
}

// Writing to a String never fails, so the results of `write!` carry nothing.
macro_rules! line {
    ($out:expr) => { $out.push('\n') };
    ($out:expr, $($arg:tt)*) => {{ let _ = writeln!($out, $($arg)*); }};
}

fn headline(out: &mut String, report: &Report) {
    line!(out);
    let lost = match report.lost {
        0 => "nothing lost".to_string(),
        n => format!("{} COMMITS LOST", thousands(n)),
    };
    line!(
        out,
        "  {} killed at {:.1} s with {} processes; {} took over (epoch {}).",
        report.killed_node,
        report.killed_at_ms / 1000.0,
        report.killed_processes,
        report.new_active,
        report.epoch
    );
    line!(
        out,
        "  {} of {} acknowledged commits are there: {lost}. Down for {}.",
        thousands(report.acknowledged - report.lost.min(report.acknowledged)),
        thousands(report.acknowledged),
        duration(report.downtime_ms)
    );
    if let Some(proxied) = &report.proxied {
        line!(out, "  {}", proxied.sentence());
    }
    line!(out);
}

fn waterfall(out: &mut String, phases: &Phases) {
    const WIDTH: f64 = 40.0;
    let total = phases.total().max(0.001);
    let mut at = 0.0;
    line!(out, "  {:<13} {:>8} {:>9}", "kill", "", "0 ms");
    for (name, ms) in phases.steps() {
        let from = (at / total * WIDTH) as usize;
        at += ms;
        let to = (at / total * WIDTH) as usize;
        let bar = match to.saturating_sub(from) {
            0 => "▏".to_string(),
            cells => "█".repeat(cells),
        };
        let bar = format!("{}{bar}", " ".repeat(from.min(39)));
        line!(
            out,
            "  {name:<13} {:>8} {:>9}  {bar:<40}  {}",
            format!("+{}", millis(ms)),
            format!("{} ms", millis(at)),
            meaning(name)
        );
    }
    line!(out);
}

fn throughput(out: &mut String, report: &Report) {
    let share = match report.tps_before {
        before if before > 0.0 => {
            format!(" ({:.0} % of before)", report.tps_after / before * 100.0)
        }
        _ => String::new(),
    };
    line!(
        out,
        "  throughput    {} commits/s before, {} after{share}, {} clients",
        thousands(report.tps_before.round() as u64),
        thousands(report.tps_after.round() as u64),
        report.clients
    );
    if let Some(lag) = report.lag_bytes_at_kill {
        line!(
            out,
            "  replay lag    {} bytes of log when the active was killed",
            thousands(lag)
        );
    }
    if let Some(took) = report.rejoined_ms {
        line!(
            out,
            "  protected     again: {} follows as a standby {} after its restart",
            report.killed_node,
            duration(took)
        );
    }
    if let Some(rounds) = report.ddl_rounds {
        line!(
            out,
            "  table churn   {} rounds of create, index, vacuum, truncate, drop",
            thousands(rounds)
        );
    }
    line!(out);
}

fn checks(out: &mut String, report: &Report) {
    for check in &report.checks {
        let mark = if check.passed { "✓" } else { "✗" };
        line!(out, "  {mark} {:<38} {}", check.name, check.detail);
    }
    line!(out);
}

fn footer(out: &mut String, report: &Report) {
    if let Some(picture) = &report.picture {
        line!(out, "  picture       {}", picture.display());
    }
    if let Some(data) = &report.data {
        line!(out, "  data, logs    {}", data.display());
    }
    line!(
        out,
        "  again         understudy demo --seed {}",
        report.seed
    );
    line!(out);
}

/// 12345 as "12,345".
pub fn thousands(number: u64) -> String {
    let digits = number.to_string();
    let mut out = String::with_capacity(digits.len() + digits.len() / 3);
    for (at, digit) in digits.chars().enumerate() {
        if at > 0 && (digits.len() - at).is_multiple_of(3) {
            out.push(',');
        }
        out.push(digit);
    }
    out
}

/// Milliseconds with a decimal only where it says something.
pub fn millis(ms: f64) -> String {
    if ms < 10.0 {
        format!("{ms:.1}")
    } else {
        format!("{ms:.0}")
    }
}

/// A length as a person says it.
pub fn duration(ms: f64) -> String {
    if ms < 1000.0 {
        format!("{ms:.0} ms")
    } else {
        format!("{:.2} s", ms / 1000.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_grouped_by_three() {
        let said: Vec<String> = [0, 999, 1000, 1234567].map(thousands).into();
        assert_eq!(said, ["0", "999", "1,000", "1,234,567"]);
    }

    #[test]
    fn lengths_are_said_in_the_unit_that_fits() {
        assert_eq!(duration(812.4), "812 ms");
        assert_eq!(duration(1234.0), "1.23 s");
        assert_eq!(millis(3.26), "3.3");
    }
}
