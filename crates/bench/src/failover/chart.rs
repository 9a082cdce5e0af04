//! The picture: how long nobody commits, by cause, every round a dot, and the steps of the median one.

use super::report::{Report, Rounds};
use understudy::demo::picture::PHASE_COLOURS;
use understudy::demo::report::Phases;
use understudy::demo::timeline::millis;
use understudy::svg::{Scale, Svg};

const WIDTH: f64 = 1000.0;
const LEFT: f64 = 190.0;
const RIGHT: f64 = 930.0;
const ROW: f64 = 74.0;
const TOP: f64 = 120.0;
const BAR: f64 = 18.0;

/// Draws a report.
pub fn draw(report: &Report) -> String {
    let all: Vec<&Rounds> = report.causes.iter().chain(&report.row).collect();
    let title = "Time without commits, by what happened to the active";
    let mut svg = Svg::new(WIDTH, TOP + ROW * all.len() as f64 + 40.0, title);
    svg.text(40.0, 42.0, "title", "start", title);
    let mut x = 40.0;
    for ((name, _), colour) in Phases::default().steps().into_iter().zip(PHASE_COLOURS) {
        svg.rect(
            (x, 60.0),
            (12.0, 12.0),
            &format!("fill=\"{colour}\" rx=\"2\""),
        );
        svg.text(x + 18.0, 71.0, "muted", "start", name);
        x += 40.0 + 7.5 * name.len() as f64;
    }
    svg.text(
        x,
        71.0,
        "muted",
        "start",
        "steps of the median round; dots: every round",
    );
    let highest = all
        .iter()
        .map(|rounds| rounds.worst(|round| round.downtime_ms));
    let scale = Scale {
        domain: (0.0, highest.fold(100.0, f64::max) * 1.05),
        range: (LEFT, RIGHT),
    };
    let bottom = TOP + ROW * all.len() as f64 - 14.0;
    for value in scale.ticks(8.0) {
        let at = scale.at(value);
        svg.line((at, TOP - 20.0), (at, bottom), "stroke=\"#eceef1\"");
        svg.text(
            at,
            bottom + 18.0,
            "tick",
            "middle",
            &format!("{} ms", millis(value)),
        );
    }
    for (at, rounds) in all.into_iter().enumerate() {
        row(&mut svg, &scale, rounds, TOP + ROW * at as f64);
    }
    svg.finish()
}

fn row(svg: &mut Svg, scale: &Scale, rounds: &Rounds, top: f64) {
    svg.text(40.0, top + 14.0, "heading", "start", &rounds.name);
    let median = rounds.of(|round| round.downtime_ms).median;
    svg.text(
        40.0,
        top + 32.0,
        "muted",
        "start",
        &format!("median {} ms", millis(median)),
    );
    let distance = |ms: f64| (ms - median).abs();
    let typical = rounds
        .rounds
        .iter()
        .min_by(|a, b| distance(a.downtime_ms).total_cmp(&distance(b.downtime_ms)));
    let mut from = 0.0;
    let steps = typical.map(|round| round.phases_ms.steps());
    for ((_, ms), colour) in steps.into_iter().flatten().zip(PHASE_COLOURS) {
        let (a, b) = (scale.at(from), scale.at(from + ms));
        svg.rect((a, top), (b - a, BAR), &format!("fill=\"{colour}\""));
        from += ms;
    }
    let dots: Vec<(f64, f64)> = rounds
        .rounds
        .iter()
        .map(|round| (scale.at(round.downtime_ms), top + BAR + 12.0))
        .collect();
    svg.dots(&dots, 6.0, "#22252b");
}
