//! The picture of a soak: overlay, retained space and lag over time, one below the other.

use super::report::Report;
use super::sample::Sample;
use understudy::demo::timeline::thousands;
use understudy::svg::{Scale, Svg};

const WIDTH: f64 = 1000.0;
const LEFT: f64 = 80.0;
const RIGHT: f64 = 840.0;
const PANEL: f64 = 175.0;
const INK: &str = "#2a6f97";
const SECOND: &str = "#b0772b";

/// A curve: its name, its colour, and its value at a sample.
type Curve = (&'static str, &'static str, fn(&Sample) -> Option<f64>);

const MIB: f64 = (1 << 20) as f64;

const PANELS: [(&str, &[Curve]); 5] = [
    (
        "Overlay of the standby, MiB",
        &[("overlay", INK, |s| Some(s.overlay_bytes? as f64 / MIB))],
    ),
    (
        "Space in the zones, MiB, all copies",
        &[
            ("used", INK, |s| Some(s.used_bytes? as f64 / MIB)),
            ("on disk", SECOND, |s| Some(s.disk_bytes as f64 / MIB)),
        ],
    ),
    (
        "Log kept, MiB",
        &[("log", INK, |s| Some(s.log_bytes? as f64 / MIB))],
    ),
    (
        "Resident memory, MiB, the largest of each kind",
        &[
            ("agent", INK, |s| Some(s.largest(false)? as f64 / MIB)),
            ("zone", SECOND, |s| Some(s.largest(true)? as f64 / MIB)),
        ],
    ),
    (
        "Replay behind the durable log, ms, the worst of each interval",
        &[("lag", INK, |s| Some(s.lag.ms as f64))],
    ),
];

/// Draws a report.
pub fn draw(report: &Report) -> String {
    let height = 90.0 + PANEL * PANELS.len() as f64;
    let title = "A standby that lives long";
    let mut svg = Svg::new(WIDTH, height, title);
    svg.text(LEFT, 42.0, "title", "start", title);
    let [balances, orders] = report.acknowledged.map(thousands);
    let subtitle = format!(
        "{balances} balances, {orders} orders, {} rounds of table changes; the base moved {} times",
        thousands(report.ddl_rounds),
        report.base_moves
    );
    svg.text(LEFT, 64.0, "muted", "start", &subtitle);
    for (at, (heading, curves)) in PANELS.iter().enumerate() {
        panel(&mut svg, report, heading, curves, 110.0 + PANEL * at as f64);
    }
    svg.finish()
}

fn panel(svg: &mut Svg, report: &Report, heading: &str, curves: &[Curve], top: f64) {
    let bottom = top + 110.0;
    let series = &report.series;
    let values = curves
        .iter()
        .flat_map(|(_, _, of)| series.iter().filter_map(of));
    let x = Scale {
        domain: (0.0, series.last().map_or(1.0, |s| s.seconds)),
        range: (LEFT, RIGHT),
    };
    let y = Scale {
        domain: (0.0, values.fold(1.0, f64::max) * 1.1),
        range: (bottom, top),
    };
    svg.text(LEFT, top - 10.0, "heading", "start", heading);
    svg.levels(&y, (LEFT, RIGHT), 3.0, |value| thousands(value as u64));
    for value in x.ticks(10.0) {
        let label = format!("{value} s");
        svg.text(x.at(value), bottom + 18.0, "tick", "middle", &label);
    }
    for (name, colour, of) in curves {
        let style = format!("fill=\"none\" stroke=\"{colour}\" stroke-width=\"2\"");
        // Two nodes are looked at: one until the kill, the other after it.
        let (before, after) =
            series.split_at(series.partition_point(|s| s.seconds < report.before_s));
        let points = |part: &[Sample]| {
            let points = part
                .iter()
                .filter_map(|s| Some((x.at(s.seconds), y.at(of(s)?))));
            points.collect::<Vec<_>>()
        };
        svg.path(&points(before), None, &style);
        svg.path(&points(after), None, &style);
        let points = points(series);
        let last = points.last().map_or(bottom, |(_, y)| *y);
        svg.coloured((RIGHT + 8.0, last + 4.0), "mark", "start", colour, name);
    }
    let killed = x.at(report.before_s);
    let style = "stroke=\"#c1121f\" stroke-dasharray=\"4 3\"";
    svg.line((killed, top), (killed, bottom), style);
    svg.text(killed + 4.0, top + 10.0, "muted", "start", "killed");
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_panel_has_its_curve() {
        let sample = |seconds: f64| Sample {
            seconds,
            overlay_bytes: Some(1 << 20),
            used_bytes: Some(2 << 20),
            log_bytes: Some(3 << 20),
            disk_bytes: 4 << 20,
            resident_bytes: [("north".to_owned(), 1 << 20)].into(),
            ..Sample::default()
        };
        let report = Report {
            series: vec![sample(1.0), sample(2.0)],
            before_s: 1.5,
            ..Report::default()
        };
        let svg = draw(&report);
        // Six curves, each before and after the kill; no zone's memory was seen.
        assert_eq!(svg.matches("<path").count(), 12);
        assert!(svg.trim_end().ends_with("</svg>"));
    }
}
