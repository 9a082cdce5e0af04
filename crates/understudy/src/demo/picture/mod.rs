//! The picture of a failover: throughput over the whole run above, the takeover under a magnifying
//! glass below, each client's commits as dots. One self-contained SVG, drawn by hand.
//!
//! Pure: a report, the clients' history and the moments in, text out.

mod overview;

mod takeover;

use super::report::{Moments, Report};
use super::timeline::{duration, thousands};
use crate::svg::Svg;
use cluster::clients::clock::Offset;
use cluster::clients::history::{History, Outage};

/// Everything that is drawn.
#[derive(Debug, Clone, Copy)]
pub struct Scene<'a> {
    /// The numbers.
    pub report: &'a Report,
    /// Every commit.
    pub history: &'a History,
    /// When what happened.
    pub moments: &'a Moments,
    /// The clients' silence.
    pub outage: &'a Outage,
    /// The end of the load.
    pub end: Offset,
}

const WIDTH: f64 = 1200.0;
const HEIGHT: f64 = 790.0;
const LEFT: f64 = 78.0;
const RIGHT: f64 = 1150.0;

/// One colour for each phase, in order, in every picture.
pub const PHASE_COLOURS: [&str; 6] = [
    "#d1495b", "#30323d", "#6a994e", "#edae49", "#00798c", "#8d6a9f",
];

/// Draws the scene.
pub fn render(scene: &Scene<'_>) -> String {
    let mut svg = Svg::new(WIDTH, HEIGHT, &title(scene.report));
    header(&mut svg, scene);
    overview::draw(&mut svg, scene);
    takeover::draw(&mut svg, scene);
    svg.finish()
}

fn title(report: &Report) -> String {
    let lost = match report.lost {
        0 => "nothing lost".to_string(),
        n => format!("{} commits lost", thousands(n)),
    };
    format!(
        "PostgreSQL killed under load: back in {}, {lost}",
        duration(report.downtime_ms)
    )
}

fn header(svg: &mut Svg, scene: &Scene<'_>) {
    let report = scene.report;
    svg.text(LEFT - 38.0, 52.0, "title", "start", &title(report));
    let about = format!(
        "{} with {} clients, pgbench scale {}. Node {} was killed (SIGKILL, {} processes) {:.1} s into \
         the run; node {} took over.",
        report.postgres,
        report.clients,
        report.scale,
        report.killed_node,
        report.killed_processes,
        report.killed_at_ms / 1000.0,
        report.new_active
    );
    svg.text(LEFT - 38.0, 78.0, "muted", "start", &about);
    let found = format!(
        "{} commits were acknowledged and {} of them are there; {} of {} unanswered ones made it too.",
        thousands(report.acknowledged),
        thousands(report.acknowledged.saturating_sub(report.lost)),
        thousands(report.unknown_present),
        thousands(report.unknown)
    );
    svg.text(LEFT - 38.0, 98.0, "muted", "start", &found);
}

#[cfg(test)]
mod tests {
    use super::*;
    use cluster::clients::history::{Attempt, Outcome};

    /// A made-up run: 1,000 commits a second, a kill at 3 s, silence until 3.8 s.
    fn scene_of(check: impl FnOnce(&str)) {
        let commit = |client: i32, n: i64, at_us: i64| Attempt {
            client,
            n,
            outcome: Outcome::Acknowledged,
            began: Offset(at_us - 900),
            ended: Offset(at_us),
        };
        let attempts = (1..6000)
            .map(|n| (n, n * 1000))
            .filter(|&(_, at)| !(3_000_000..3_800_000).contains(&at))
            .map(|(n, at)| commit((n % 4) as i32 + 1, n, at));
        let history = History::new(attempts.collect());
        let at = |ms: i64| Offset(ms * 1000);
        let moments = Moments {
            killed: at(3000),
            suspected: at(3300),
            fenced: at(3310),
            tail_read: at(3330),
            replayed: at(3400),
            promoted: at(3700),
            first_commit: at(3801),
        };
        let outage = history.outage(moments.killed).unwrap();
        let mut report = Report::sample();
        report.phases_ms = moments.phases();
        report.measure(&history, moments.killed, &outage, at(6000));
        check(&render(&Scene {
            report: &report,
            history: &history,
            moments: &moments,
            outage: &outage,
            end: at(6000),
        }));
    }

    #[test]
    fn the_picture_names_every_phase_and_stands_alone() {
        scene_of(|svg| {
            for name in [
                "detect",
                "fence",
                "log tail",
                "replay",
                "promote",
                "first commit",
            ] {
                assert!(svg.contains(name), "{name} is missing");
            }
            assert!(!svg.contains("href"), "nothing is loaded from elsewhere");
            assert!(svg.starts_with("<svg ") && svg.trim_end().ends_with("</svg>"));
        });
    }

    #[test]
    fn the_picture_has_no_number_that_is_none() {
        scene_of(|svg| {
            assert!(!svg.contains("NaN") && !svg.contains("inf\""), "{svg}");
        });
    }

    #[test]
    fn names_cannot_break_the_markup() {
        let mut svg = Svg::new(10.0, 10.0, "a < b & c");
        svg.text(0.0, 0.0, "muted", "start", "<script>");
        let text = svg.finish();
        assert!(text.contains("a &lt; b &amp; c") && text.contains("&lt;script&gt;"));
    }

    /// Writes the picture for a person to look at: UNDERSTUDY_PICTURE=file cargo test picture
    #[test]
    fn draw_for_a_person() {
        if let Some(file) = std::env::var_os("UNDERSTUDY_PICTURE") {
            scene_of(|svg| std::fs::write(&file, svg).unwrap());
        }
    }
}
