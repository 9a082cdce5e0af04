//! The upper half: commits a second over the whole run, in slices of 100 ms.

use std::time::Duration;

use super::super::timeline::{duration, thousands};
use super::{LEFT, PHASE_COLOURS, RIGHT, Scene};
use crate::svg::{Scale, Svg};

const TOP: f64 = 150.0;
const BOTTOM: f64 = 395.0;
const SLICE: Duration = Duration::from_millis(100);
const INK: &str = "#2a6f97";
const GOOD: &str = "#3a7d44";
const BAD: &str = "#c1121f";

/// Draws it.
pub fn draw(svg: &mut Svg, scene: &Scene<'_>) {
    let rates: Vec<f64> = scene
        .history
        .buckets(SLICE, scene.end)
        .into_iter()
        .map(|count| f64::from(count) / SLICE.as_secs_f64())
        .collect();
    let highest = rates.iter().copied().fold(10.0, f64::max) * 1.08;
    let x = Scale {
        domain: (0.0, scene.end.seconds()),
        range: (LEFT, RIGHT),
    };
    let y = Scale {
        domain: (0.0, highest),
        range: (BOTTOM, TOP),
    };
    svg.text(
        LEFT - 38.0,
        TOP - 18.0,
        "heading",
        "start",
        "Commits a second",
    );
    svg.text(
        RIGHT,
        TOP - 18.0,
        "muted",
        "end",
        "acknowledged, in slices of 100 ms",
    );
    axes(svg, &x, &y);
    outage(svg, scene, &x);
    curve(svg, &rates, &x, &y);
    averages(svg, scene, &x, &y);
    marks(svg, scene, &x);
}

fn axes(svg: &mut Svg, x: &Scale, y: &Scale) {
    svg.levels(y, (LEFT, RIGHT), 4.0, |value| thousands(value as u64));
    for value in x.ticks(12.0) {
        svg.text(
            x.at(value),
            BOTTOM + 18.0,
            "tick",
            "middle",
            &format!("{value} s"),
        );
    }
    svg.line((LEFT, BOTTOM), (RIGHT, BOTTOM), "stroke=\"#9ca3af\"");
}

fn outage(svg: &mut Svg, scene: &Scene<'_>, x: &Scale) {
    let from = x.at(scene.moments.killed.seconds());
    let to = x.at(scene.outage.first_after.seconds());
    svg.rect(
        (from, TOP),
        (to - from, BOTTOM - TOP),
        &format!("fill=\"{}\" fill-opacity=\".10\"", PHASE_COLOURS[0]),
    );
}

fn curve(svg: &mut Svg, rates: &[f64], x: &Scale, y: &Scale) {
    // Steps: a slice is what was counted between its two edges, and nothing is smoothed over.
    let width = SLICE.as_secs_f64();
    let points: Vec<(f64, f64)> = rates
        .iter()
        .enumerate()
        .flat_map(|(at, &rate)| {
            let from = at as f64 * width;
            [(x.at(from), y.at(rate)), (x.at(from + width), y.at(rate))]
        })
        .collect();
    svg.path(
        &points,
        Some(BOTTOM),
        &format!("fill=\"{INK}\" fill-opacity=\".16\""),
    );
    svg.path(
        &points,
        None,
        &format!("fill=\"none\" stroke=\"{INK}\" stroke-width=\"1.4\" stroke-linejoin=\"round\""),
    );
}

fn averages(svg: &mut Svg, scene: &Scene<'_>, x: &Scale, y: &Scale) {
    let killed = scene.moments.killed.seconds();
    let back = scene.outage.first_after.seconds();
    let stretches = [
        ((killed - 5.0).max(0.0), killed, scene.report.tps_before),
        (back, scene.end.seconds(), scene.report.tps_after),
    ];
    for (from, to, rate) in stretches {
        let at = y.at(rate);
        svg.line(
            (x.at(from), at),
            (x.at(to), at),
            "stroke=\"#22252b\" stroke-width=\"1.2\" stroke-dasharray=\"2 3\"",
        );
        let middle = x.at(from + (to - from) / 2.0);
        let said = format!("{} on average", thousands(rate.round() as u64));
        let box_width = 8.6 * said.len() as f64;
        svg.rect(
            (middle - box_width / 2.0, BOTTOM - 42.0),
            (box_width, 22.0),
            "rx=\"11\" fill=\"#ffffff\" fill-opacity=\".9\"",
        );
        svg.text(middle, BOTTOM - 26.5, "mark", "middle", &said);
    }
}

fn marks(svg: &mut Svg, scene: &Scene<'_>, x: &Scale) {
    let killed = x.at(scene.moments.killed.seconds());
    let back = x.at(scene.outage.first_after.seconds());
    for (at, colour) in [(killed, BAD), (back, GOOD)] {
        svg.line(
            (at, TOP - 6.0),
            (at, BOTTOM),
            &format!("stroke=\"{colour}\" stroke-width=\"1.6\""),
        );
    }
    svg.coloured(
        (killed - 7.0, TOP + 6.0),
        "mark",
        "end",
        BAD,
        "active node killed",
    );
    let said = format!(
        "first commit {} later",
        duration(scene.report.phases_ms.total())
    );
    svg.coloured((back + 7.0, TOP + 6.0), "mark", "start", GOOD, &said);
}
