//! Charts of the standby benchmark: lag while catching up, and throughput through a failure.

use super::curve::CatchUp;
use super::methods::{Method, Outcome};
use understudy::demo::timeline::thousands;
use understudy::svg::{Scale, Svg};

const WIDTH: f64 = 1000.0;
const LEFT: f64 = 80.0;
const RIGHT: f64 = 830.0;
const PANEL: f64 = 230.0;
const COLOURS: [&str; 6] = [
    "#9ca3af", "#d9b382", "#b0772b", "#9cc5db", "#2a6f97", "#13415c",
];

/// A curve with its name.
struct Curve<'a> {
    name: String,
    colour: &'a str,
    points: Vec<(f64, f64)>,
}

/// Log left to replay, second by second: a panel for each distance.
pub fn draw_curve(runs: &[CatchUp]) -> String {
    let mut latencies: Vec<u32> = runs.iter().map(|run| run.latency_ms).collect();
    latencies.dedup();
    let title = "A standby catches up";
    let mut svg = sheet(title, latencies.len());
    let subtitle = "Log left to replay in kB, by the number of blocks read at the same time";
    svg.text(60.0, 64.0, "muted", "start", subtitle);
    for (at, latency) in latencies.iter().enumerate() {
        let of_panel = runs.iter().filter(|run| run.latency_ms == *latency);
        let curves = of_panel.zip(COLOURS).map(|(run, colour)| Curve {
            name: match run.degree {
                0 => "redo alone".to_owned(),
                degree => format!("{degree} at once"),
            },
            colour,
            points: run
                .lag
                .iter()
                .map(|(s, b)| (*s, *b as f64 / 1000.0))
                .collect(),
        });
        let heading = format!("{latency} ms to every copy");
        panel(&mut svg, at, &heading, &curves.collect::<Vec<_>>(), None);
    }
    svg.finish()
}

/// Commits a second through the failure (figure 6.11), and blocks held before it (figure 6.13).
pub fn draw_methods(outcomes: &[Outcome]) -> String {
    let mut svg = sheet("What is done about a slow standby", 2);
    let colour = |method: Method| match method {
        Method::Wait => COLOURS[2],
        Method::Skip => COLOURS[3],
        Method::ReadAhead => COLOURS[5],
        Method::Nothing => COLOURS[0],
    };
    let curves = |values: fn(&Outcome) -> Vec<f64>| -> Vec<Curve<'static>> {
        let curve = |outcome: &Outcome| Curve {
            name: outcome.method.describe().to_owned(),
            colour: colour(outcome.method),
            points: values(outcome)
                .into_iter()
                .enumerate()
                .map(|(at, value)| (at as f64 + 0.5, value))
                .collect(),
        };
        outcomes.iter().map(curve).collect()
    };
    let commits = curves(|o| o.commits.iter().copied().map(f64::from).collect());
    let failure = outcomes.first().map(|o| o.failure_s);
    panel(&mut svg, 0, "commits a second", &commits, failure);
    let held = curves(|o| o.blocks_held.iter().map(|n| *n as f64).collect());
    panel(&mut svg, 1, "blocks held by the standby", &held, None);
    svg.finish()
}

fn sheet(title: &str, panels: usize) -> Svg {
    let mut svg = Svg::new(WIDTH, 90.0 + PANEL * panels as f64, title);
    svg.text(60.0, 42.0, "title", "start", title);
    svg
}

fn panel(svg: &mut Svg, at: usize, heading: &str, curves: &[Curve<'_>], mark: Option<f64>) {
    let top = 110.0 + PANEL * at as f64;
    let bottom = top + 160.0;
    let highest = |of: fn(&(f64, f64)) -> f64| {
        let points = curves.iter().flat_map(|curve| &curve.points);
        points.map(of).fold(1.0, f64::max)
    };
    let x = Scale {
        domain: (0.0, highest(|point| point.0)),
        range: (LEFT, RIGHT),
    };
    let y = Scale {
        domain: (0.0, highest(|point| point.1) * 1.05),
        range: (bottom, top),
    };
    svg.text(60.0, top - 12.0, "heading", "start", heading);
    svg.levels(&y, (LEFT, RIGHT), 4.0, |value| thousands(value as u64));
    for value in x.ticks(8.0) {
        let label = format!("{value} s");
        svg.text(x.at(value), bottom + 18.0, "tick", "middle", &label);
    }
    for (number, curve) in curves.iter().enumerate() {
        let points: Vec<_> = curve
            .points
            .iter()
            .map(|(a, b)| (x.at(*a), y.at(*b)))
            .collect();
        let style = format!(
            "fill=\"none\" stroke=\"{}\" stroke-width=\"2\"",
            curve.colour
        );
        svg.path(&points, None, &style);
        let place = (RIGHT + 16.0, top + 14.0 + 20.0 * number as f64);
        svg.coloured(place, "mark", "start", curve.colour, &curve.name);
    }
    if let Some(at) = mark {
        let at = x.at(at);
        let style = "stroke=\"#c1121f\" stroke-dasharray=\"4 3\"";
        svg.line((at, top), (at, bottom), style);
        svg.text(at + 4.0, top + 10.0, "muted", "start", "failure");
    }
}
