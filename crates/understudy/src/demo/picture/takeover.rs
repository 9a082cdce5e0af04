//! The lower half: the takeover under a magnifying glass. One row a client, one dot a commit, the
//! phases as bands behind them.

use super::super::timeline::millis;
use super::{LEFT, PHASE_COLOURS, Scene};
use crate::svg::{Scale, Svg};
use cluster::clients::clock::Offset;
use cluster::clients::history::Outcome;

const TOP: f64 = 490.0;
const BOTTOM: f64 = 725.0;
const RIGHT: f64 = 880.0;
const BAND: f64 = 14.0;

/// Names as a person reads them, in order.
const NAMES: [&str; 6] = [
    "detect",
    "fence",
    "log tail",
    "replay",
    "promote",
    "first commit",
];

/// Draws it.
pub fn draw(svg: &mut Svg, scene: &Scene<'_>) {
    let total = scene.report.phases_ms.total().max(1.0);
    // Milliseconds since the kill.
    let x = Scale {
        domain: (-0.25 * total, 1.35 * total),
        range: (LEFT, RIGHT),
    };
    svg.text(LEFT - 38.0, TOP - 34.0, "heading", "start", "The takeover");
    svg.text(
        LEFT + 78.0,
        TOP - 34.0,
        "muted",
        "start",
        "one row a client, one dot an acknowledged commit, one ring a commit without an answer",
    );
    phases(svg, scene, &x);
    clients(svg, scene, &x);
    axis(svg, &x);
    legend(svg, scene);
}

fn phases(svg: &mut Svg, scene: &Scene<'_>, x: &Scale) {
    let mut at = 0.0;
    for ((_, ms), colour) in scene.report.phases_ms.steps().iter().zip(PHASE_COLOURS) {
        let from = x.at(at);
        at += ms;
        // A phase of a millisecond must still be seen.
        let width = (x.at(at) - from).max(1.5);
        svg.rect(
            (from, TOP - BAND - 4.0),
            (width, BAND),
            &format!("fill=\"{colour}\""),
        );
        svg.rect(
            (from, TOP),
            (width, BOTTOM - TOP),
            &format!("fill=\"{colour}\" fill-opacity=\".11\""),
        );
    }
}

fn clients(svg: &mut Svg, scene: &Scene<'_>, x: &Scale) {
    let rows = scene.report.clients.max(1);
    let row = |client: i32| TOP + (f64::from(client) - 0.5) * (BOTTOM - TOP) / f64::from(rows);
    let killed = scene.moments.killed;
    let since_kill = |at: Offset| (at.0 - killed.0) as f64 / 1000.0;
    let seen = |outcome: Outcome| -> Vec<(f64, f64)> {
        scene
            .history
            .attempts()
            .iter()
            .filter(|a| a.outcome == outcome)
            .map(|a| (since_kill(a.ended), a.client))
            .filter(|(ms, _)| x.domain.0 <= *ms && *ms <= x.domain.1)
            .map(|(ms, client)| (x.at(ms), row(client)))
            .collect()
    };
    for client in 1..=i32::from(rows) {
        svg.line(
            (LEFT, row(client)),
            (RIGHT, row(client)),
            "stroke=\"#e5e7eb\"",
        );
    }
    svg.dots(&seen(Outcome::Acknowledged), 5.0, "#2a6f97");
    for (cx, cy) in seen(Outcome::Unknown) {
        svg.add(format_args!(
            "<circle cx=\"{cx:.1}\" cy=\"{cy:.1}\" r=\"4\" fill=\"#ffffff\" stroke=\"#c1121f\" stroke-width=\"1.6\"/>"
        ));
    }
    svg.text(LEFT - 10.0, row(1) + 4.0, "tick", "end", "client 1");
    if rows > 1 {
        svg.text(
            LEFT - 10.0,
            row(i32::from(rows)) + 4.0,
            "tick",
            "end",
            &rows.to_string(),
        );
    }
}

fn axis(svg: &mut Svg, x: &Scale) {
    svg.line((LEFT, BOTTOM), (RIGHT, BOTTOM), "stroke=\"#9ca3af\"");
    for value in x.ticks(8.0) {
        let said = match value {
            0.0 => "kill".to_string(),
            ms => format!("{ms} ms"),
        };
        svg.line(
            (x.at(value), BOTTOM),
            (x.at(value), BOTTOM + 4.0),
            "stroke=\"#9ca3af\"",
        );
        svg.text(x.at(value), BOTTOM + 19.0, "tick", "middle", &said);
    }
}

fn legend(svg: &mut Svg, scene: &Scene<'_>) {
    let left = RIGHT + 40.0;
    let right = super::RIGHT;
    let mut y = TOP + 4.0;
    for ((name, colour), (_, ms)) in NAMES
        .iter()
        .zip(PHASE_COLOURS)
        .zip(scene.report.phases_ms.steps())
    {
        svg.rect(
            (left, y - 11.0),
            (13.0, 13.0),
            &format!("rx=\"3\" fill=\"{colour}\""),
        );
        svg.text(left + 24.0, y, "muted", "start", name);
        svg.text(right, y, "value", "end", &format!("{} ms", millis(ms)));
        y += 29.0;
    }
    svg.line((left, y - 16.0), (right, y - 16.0), "stroke=\"#d1d5db\"");
    svg.text(left, y + 6.0, "heading", "start", "kill to first commit");
    let total = format!("{} ms", millis(scene.report.phases_ms.total()));
    svg.text(right, y + 6.0, "heading", "end", &total);
}
