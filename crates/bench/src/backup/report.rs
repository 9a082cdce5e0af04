//! The report for people.

use super::Report;
use super::images::Images;
use super::step::Step;

/// A table.
pub fn table(report: &Report) -> String {
    let mut out = format!(
        "\n  {:.1} GB, {:.0} transactions a second by {} clients, {} processors\n\n  {:<18} {:<12} {:>8} {:>11} {:>10} {:>8} {:>8}\n",
        report.database_bytes as f64 / 1e9,
        report.rate,
        report.clients,
        report.processors,
        "",
        "",
        "s",
        "processor s",
        "stored MB",
        "p50 ms",
        "p99 ms"
    );
    row(&mut out, "no backup", &report.rest);
    for tool in &report.tools {
        for step in &tool.steps {
            row(&mut out, tool.tool.name(), step);
        }
    }
    let archiving = &report.archiving;
    out.push_str("\n  transactions a second while the log is archived, medians\n\n");
    let alone = archiving.nothing.median.max(f64::MIN_POSITIVE);
    for (name, sample) in [
        ("by nobody", &archiving.nothing),
        ("by understudy backup archive", &archiving.understudy),
        ("by pgBackRest", &archiving.pgbackrest),
    ] {
        let ratio = sample.median / alone;
        out.push_str(&format!(
            "  {name:<31} {:>8.0} {ratio:>8.3}\n",
            sample.median
        ));
    }
    let lag = &archiving.lag_ms;
    out.push_str(&format!(
        "\n  the repository is behind by {} ms, at 99 % by {} ms\n\n",
        lag.p50, lag.p99
    ));
    out.push_str(&images(&report.images));
    out
}

/// Costs of images of the past.
fn images(images: &Images) -> String {
    let Images { nothing, kept, .. } = images;
    let mut out = format!(
        "  {:<31} {:>8} {:>8} {:>8}\n",
        format!("{} images are kept, medians", images.images),
        "none",
        "all",
        ""
    );
    let rows = [
        ("transactions a second", &nothing.tps, &kept.tps, 1.0),
        (
            "zones, processor us each",
            &nothing.zones_cpu_ms,
            &kept.zones_cpu_ms,
            1e-3,
        ),
        (
            "zones, memory MB",
            &nothing.zones_memory_bytes,
            &kept.zones_memory_bytes,
            1e6,
        ),
    ];
    for (name, without, with, unit) in rows {
        let (without, with) = (without.median, with.median);
        let ratio = with / without.max(f64::MIN_POSITIVE);
        let line = format!(
            "  {name:<31} {:>8.0} {:>8.0} {ratio:>8.3}\n",
            without / unit,
            with / unit
        );
        out.push_str(&line);
    }
    out.push_str(&format!(
        "\n  {:.0} blocks are kept for them, and given back within {:.1} s\n\n",
        images.past_blocks.median, images.given_back_seconds.median
    ));
    out
}

fn row(out: &mut String, tool: &str, step: &Step) {
    let ms = |latency: f64| match latency {
        // Nobody asks for anything while a backup is restored.
        0.0 => String::new(),
        some => format!("{some:.1}"),
    };
    let line = format!(
        "  {tool:<18} {:<12} {:>8.1} {:>11.1} {:>10.0} {:>8} {:>8}",
        step.name,
        step.seconds,
        step.cpu_seconds,
        step.stored_bytes as f64 / 1e6,
        ms(step.p50_ms),
        ms(step.p99_ms)
    );
    out.push_str(line.trim_end());
    out.push('\n');
}
