//! The picture: every system's throughput before and after the loss of its active, from the kill on.

use std::collections::BTreeMap;

use super::loss::Loss;
use super::system::Kind;
use understudy::svg::{Scale, Svg};

const WIDTH: f64 = 1000.0;
const LEFT: f64 = 60.0;
const RIGHT: f64 = 960.0;
const TOP: f64 = 90.0;
const ROW: f64 = 150.0;
const PLOT: f64 = 96.0;
/// Slices of a timeline in a second.
const SLICES: f64 = 2.0;

/// Draws the median loss of each system, one below the other, all with the same axes.
pub(super) fn draw(title: &str, losses: &BTreeMap<Kind, Vec<Loss>>) -> String {
    let typical: Vec<(Kind, &Loss)> = losses
        .iter()
        .filter_map(|(kind, losses)| Some((*kind, median(losses)?)))
        .collect();
    let height = TOP + ROW * typical.len() as f64 + 20.0;
    let mut svg = Svg::new(
        WIDTH,
        height,
        "Throughput when the active's machine is killed",
    );
    svg.text(
        40.0,
        40.0,
        "title",
        "start",
        "Throughput when the active's machine is killed",
    );
    svg.text(40.0, 62.0, "muted", "start", title);
    let rates = typical.iter().flat_map(|(_, loss)| rates(loss));
    let highest = rates.map(|(_, rate)| rate).fold(1.0, f64::max);
    let ends = typical.iter().map(|(_, loss)| {
        let length = loss.timeline.len() as f64 / SLICES;
        (-loss.killed_at_s, length - loss.killed_at_s)
    });
    let (from, to) = ends.fold((0.0_f64, 1.0_f64), |(low, high), (a, b)| {
        (low.min(a), high.max(b))
    });
    let x = Scale {
        domain: (from, to),
        range: (LEFT, RIGHT),
    };
    for (at, (kind, loss)) in typical.iter().enumerate() {
        let top = TOP + ROW * at as f64;
        let y = Scale {
            domain: (0.0, highest),
            range: (top + 24.0 + PLOT, top + 24.0),
        };
        row(&mut svg, (&x, &y), *kind, loss);
    }
    svg.finish()
}

fn row(svg: &mut Svg, (x, y): (&Scale, &Scale), kind: Kind, loss: &Loss) {
    let (bottom, top) = y.range;
    svg.text(LEFT, top - 8.0, "heading", "start", kind.name());
    let mut said = format!(
        "no commits for {:.2} s, {} lost",
        loss.downtime_ms / 1000.0,
        loss.lost
    );
    if let (Some(given_back_s), Some(protected_ms)) = (loss.given_back_at_s, loss.protected_ms) {
        said += &format!(
            "; given back, protected {:.1} s later",
            protected_ms / 1000.0
        );
        let from = x.at(given_back_s - loss.killed_at_s);
        let to = x.at(given_back_s - loss.killed_at_s + protected_ms / 1000.0);
        let size = (to - from, bottom - top);
        svg.rect((from, top), size, "fill=\"#16a34a\" fill-opacity=\".25\"");
    }
    svg.text(RIGHT, top - 8.0, "muted", "end", &said);
    svg.levels(y, (LEFT, RIGHT), 2.0, |value| format!("{value:.0}"));
    for value in x.ticks(10.0) {
        svg.text(
            x.at(value),
            bottom + 16.0,
            "tick",
            "middle",
            &format!("{value:.0} s"),
        );
    }
    let points: Vec<(f64, f64)> = rates(loss).map(|(s, rate)| (x.at(s), y.at(rate))).collect();
    svg.path(
        &points,
        Some(bottom),
        "fill=\"#2563eb\" fill-opacity=\".15\"",
    );
    svg.path(
        &points,
        None,
        "fill=\"none\" stroke=\"#2563eb\" stroke-width=\"1.5\"",
    );
    svg.line(
        (x.at(0.0), top),
        (x.at(0.0), bottom),
        "stroke=\"#dc2626\" stroke-dasharray=\"4 3\"",
    );
}

/// Seconds from the kill, and commits a second there. The last slice is not a whole one.
fn rates(loss: &Loss) -> impl Iterator<Item = (f64, f64)> {
    let whole = loss.timeline.len().saturating_sub(1);
    let slices = loss.timeline.iter().take(whole).enumerate();
    slices.map(|(at, commits)| {
        let middle = (at as f64 + 0.5) / SLICES;
        (middle - loss.killed_at_s, f64::from(*commits) * SLICES)
    })
}

/// The one with the median downtime.
fn median(losses: &[Loss]) -> Option<&Loss> {
    let mut sorted: Vec<&Loss> = losses.iter().collect();
    sorted.sort_by(|a, b| a.downtime_ms.total_cmp(&b.downtime_ms));
    sorted.get(sorted.len() / 2).copied()
}
