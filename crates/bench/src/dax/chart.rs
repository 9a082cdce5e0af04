//! Charts of the DAX benchmark: bars for the variants, curves for the outages.

use dax::storage::Protocol;

use super::outages::{Outage, Timeline};
use super::variants::{Row, name};
use understudy::demo::timeline::thousands;
use understudy::svg::{Scale, Svg};

const WIDTH: f64 = 1000.0;
const MARGIN: f64 = 60.0;
const INK: &str = "#2a6f97";
const OLD: &str = "#b0772b";

/// A colour for each variant, the paper's own comparison points in the warm ones.
fn colour(protocol: Protocol) -> &'static str {
    match protocol {
        Protocol::WriteAll => "#d9b382",
        Protocol::Quorum => OLD,
        Protocol::BasicOptimistic => "#9cc5db",
        Protocol::StrongOptimistic => INK,
    }
}

/// Bars: a panel for each distance with a scale of its own (DAX, figure 6).
pub fn draw_variants(rows: &[Row]) -> String {
    const HEIGHT: f64 = 360.0;
    const TOP: f64 = 100.0;
    const BOTTOM: f64 = 300.0;
    let mut svg = Svg::new(WIDTH, HEIGHT, "Variants of the block protocol");
    svg.text(
        MARGIN,
        42.0,
        "title",
        "start",
        "Variants of the block protocol",
    );
    let subtitle = "Transactions a second; each panel has a scale of its own";
    svg.text(MARGIN, 64.0, "muted", "start", subtitle);
    let panel = (WIDTH - 2.0 * MARGIN) / rows.len().max(1) as f64;
    for (at, row) in rows.iter().enumerate() {
        let left = MARGIN + panel * at as f64;
        let highest = row.cells.iter().map(|c| c.tps.median).fold(1.0, f64::max);
        let y = Scale {
            domain: (0.0, highest * 1.1),
            range: (BOTTOM, TOP),
        };
        let bar = (panel - 30.0) / row.cells.len().max(1) as f64;
        for (at, cell) in row.cells.iter().enumerate() {
            let x = left + bar * at as f64;
            let top = y.at(cell.tps.median);
            let fill = format!("fill=\"{}\"", colour(cell.protocol));
            svg.rect((x + 4.0, top), (bar - 8.0, BOTTOM - top), &fill);
            let value = thousands(cell.tps.median.round() as u64);
            svg.text(x + bar / 2.0, top - 6.0, "value", "middle", &value);
        }
        let right = left + panel - 30.0;
        svg.line((left, BOTTOM), (right, BOTTOM), "stroke=\"#9ca3af\"");
        let middle = f64::midpoint(left, right);
        svg.text(middle, BOTTOM + 20.0, "heading", "middle", &row.distance);
    }
    for (at, protocol) in Protocol::ALL.into_iter().enumerate() {
        let x = MARGIN + 190.0 * at as f64;
        let fill = format!("fill=\"{}\"", colour(protocol));
        svg.rect((x, HEIGHT - 24.0), (12.0, 12.0), &fill);
        svg.text(x + 18.0, HEIGHT - 13.0, "muted", "start", name(protocol));
    }
    svg.finish()
}

/// Curves: a panel for each outage (DAX, figures 8 to 10).
pub fn draw_outages(timelines: &[Timeline]) -> String {
    const PANEL: f64 = 190.0;
    let height = 90.0 + PANEL * Outage::ALL.len() as f64;
    let mut svg = Svg::new(WIDTH, height, "Servers lost under load");
    svg.text(MARGIN, 42.0, "title", "start", "Servers lost under load");
    let subtitle = "Transactions a second; regions 35 and 75 ms apart, 6 copies, k = 4";
    svg.text(MARGIN, 64.0, "muted", "start", subtitle);
    for (at, outage) in Outage::ALL.into_iter().enumerate() {
        let top = 110.0 + PANEL * at as f64;
        let of_outage = timelines.iter().filter(|t| t.outage == outage);
        panel(&mut svg, outage, &of_outage.collect::<Vec<_>>(), top);
    }
    svg.finish()
}

fn panel(svg: &mut Svg, outage: Outage, timelines: &[&Timeline], top: f64) {
    let bottom = top + 120.0;
    let seconds = timelines.iter().map(|t| t.tps.len()).max().unwrap_or(1);
    let rates = timelines.iter().flat_map(|t| t.tps.iter().copied());
    let x = Scale {
        domain: (0.0, seconds as f64),
        range: (MARGIN, WIDTH - 190.0),
    };
    let y = Scale {
        domain: (0.0, rates.fold(1.0, f64::max) * 1.1),
        range: (bottom, top),
    };
    svg.text(MARGIN, top - 10.0, "heading", "start", outage.describe());
    for value in y.ticks(3.0) {
        let at = y.at(value);
        svg.line((MARGIN, at), (WIDTH - 190.0, at), "stroke=\"#eceef1\"");
        let label = thousands(value as u64);
        svg.text(MARGIN - 8.0, at + 4.0, "tick", "end", &label);
    }
    for value in x.ticks(10.0) {
        let label = format!("{value} s");
        svg.text(x.at(value), bottom + 18.0, "tick", "middle", &label);
    }
    for timeline in timelines {
        let points: Vec<(f64, f64)> = timeline
            .tps
            .iter()
            .enumerate()
            .map(|(at, tps)| (x.at(at as f64 + 0.5), y.at(*tps)))
            .collect();
        let colour = colour(timeline.protocol);
        let style = format!("fill=\"none\" stroke=\"{colour}\" stroke-width=\"2\"");
        svg.path(&points, None, &style);
        let last = points.last().map_or(bottom, |(_, y)| *y);
        svg.coloured(
            (WIDTH - 182.0, last + 4.0),
            "mark",
            "start",
            colour,
            name(timeline.protocol),
        );
    }
    if let Some(timeline) = timelines.first() {
        let marks = [
            (Some(timeline.lost_at_s), "lost"),
            (timeline.back_at_s, "back"),
        ];
        for (at, label) in marks
            .into_iter()
            .filter_map(|(at, label)| Some((at?, label)))
        {
            let at = x.at(at as f64);
            svg.line(
                (at, top),
                (at, bottom),
                "stroke=\"#c1121f\" stroke-dasharray=\"4 3\"",
            );
            svg.text(at + 4.0, top + 10.0, "muted", "start", label);
        }
    }
}
