//! What was measured, as JSON and as a table.

use std::fmt::Write as _;

use serde::Serialize;

use super::timed::Run;
use super::{Distance, Load};
use crate::statistics::Sample;

/// Everything that was measured.
#[derive(Debug, Clone, Serialize)]
pub struct Report {
    /// How far the data centres are apart.
    pub distance: Distance,
    /// Round trips between data centres: first and second, first and third, second and third. None if all are
    /// near.
    pub round_trips_ms: Option<[f64; 3]>,
    /// Each load with each number of clients.
    pub rows: Vec<Row>,
    /// Length of one run.
    pub seconds: u32,
    /// Processors of the machine, which Cassandra and all sides share.
    pub processors: usize,
}

/// One load with one number of clients.
#[derive(Debug, Clone, Serialize)]
pub struct Row {
    /// What clients do.
    pub load: Load,
    /// How many of them.
    pub clients: u16,
    /// The block path.
    pub block_path: Measured,
    /// What it is compared with.
    pub others: Vec<Other>,
}

/// A side that the block path is compared with.
#[derive(Debug, Clone, Serialize)]
pub struct Other {
    /// `driver`, `baseline_1` or `baseline_2`.
    pub side: &'static str,
    /// What it did.
    #[serde(flatten)]
    pub measured: Measured,
    /// The block path's median rate by this side's.
    pub ratio: f64,
}

/// What one side did.
#[derive(Debug, Clone, Serialize)]
pub struct Measured {
    /// Operations a second, run by run.
    pub per_second: Sample,
    /// The middle latency, of the runs' middle ones.
    pub p50_ms: f64,
    /// The same of one in ten.
    pub p90_ms: f64,
    /// The same of one in a hundred.
    pub p99_ms: f64,
    /// The longest latency of all runs.
    pub max_ms: f64,
    /// Processor time of the clients' process for one operation, the middle one of the runs.
    pub client_us: f64,
}

impl Row {
    /// Sums up the sides, of which the first is the block path; none if there are none.
    pub(super) fn of<'a>(
        load: Load,
        clients: u16,
        sides: impl IntoIterator<Item = (&'static str, &'a Vec<Run>)>,
    ) -> Option<Row> {
        let mut sides = sides.into_iter();
        let block_path = Measured::of(sides.next()?.1);
        let other = |(side, runs): (&'static str, &'a Vec<Run>)| {
            let measured = Measured::of(runs);
            let ratio = block_path.per_second.median / measured.per_second.median;
            Other {
                side,
                measured,
                ratio,
            }
        };
        Some(Row {
            load,
            clients,
            others: sides.map(other).collect(),
            block_path,
        })
    }

    fn write(&self, out: &mut String) {
        let load = format!("{:?}", self.load).to_lowercase();
        let ours = [("block_path", &self.block_path, None)].into_iter();
        let others = self.others.iter();
        let others = others.map(|other| (other.side, &other.measured, Some(other.ratio)));
        for (side, measured, ratio) in ours.chain(others) {
            let ratio = ratio.map_or_else(String::new, |ratio| format!("{ratio:.2}"));
            // Writing to a string does not fail.
            let _ = writeln!(
                out,
                "  {load:<12}{:>8}  {:<12}{:>10.1}{:>10.2}{:>10.2}{:>10.2}{:>10.2}{:>10.0}{ratio:>18}",
                self.clients,
                side.replace('_', " "),
                measured.per_second.median,
                measured.p50_ms,
                measured.p90_ms,
                measured.p99_ms,
                measured.max_ms,
                measured.client_us,
            );
        }
    }
}

impl Measured {
    fn of(runs: &[Run]) -> Measured {
        let sample = |value: &dyn Fn(&Run) -> f64| Sample::of(runs.iter().map(value).collect());
        let quantile = |share| sample(&|run: &Run| run.quantile_ms(share)).median;
        let longest = runs.iter().map(|run| run.quantile_ms(1.0));
        Measured {
            per_second: sample(&|run| run.per_second),
            p50_ms: quantile(0.5),
            p90_ms: quantile(0.9),
            p99_ms: quantile(0.99),
            max_ms: longest.fold(0.0, f64::max),
            client_us: sample(&|run| run.client_us).median,
        }
    }
}

/// A table for a person.
pub fn table(report: &Report) -> String {
    let distance = report.round_trips_ms.map_or_else(
        || "all near".to_owned(),
        |[near, far, between]| format!("round trips {near}, {far} and {between} ms"),
    );
    let mut out = format!(
        "\n  {distance}; {} s a run, {} processors for Cassandra and its clients; medians\n\n  \
         {:<12}{:>8}  {:<12}{:>10}{:>10}{:>10}{:>10}{:>10}{:>10}{:>18}\n",
        report.seconds,
        report.processors,
        "",
        "clients",
        "",
        "a second",
        "p50 ms",
        "p90 ms",
        "p99 ms",
        "max ms",
        "client us",
        "block path by it"
    );
    for row in &report.rows {
        row.write(&mut out);
    }
    out.push('\n');
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    fn run(per_second: f64, latencies_us: &[u32]) -> Run {
        Run {
            per_second,
            latencies_us: latencies_us.to_vec(),
            client_us: 0.0,
        }
    }

    #[test]
    fn a_side_is_told_by_its_middle_run_and_its_worst_moment() {
        let measured = Measured::of(&[
            run(10.0, &[1000, 2000, 3000]),
            run(30.0, &[4000]),
            run(20.0, &[9000]),
        ]);
        assert_eq!(measured.per_second.median, 20.0);
        assert_eq!(
            [measured.p50_ms, measured.p90_ms, measured.p99_ms],
            [4.0; 3]
        );
        assert_eq!(measured.max_ms, 9.0);
    }

    #[test]
    fn the_block_path_is_compared_with_every_other_side() {
        let runs = [30.0, 10.0, 5.0].map(|rate| vec![run(rate, &[1000])]);
        let sides = ["block_path", "baseline_1", "baseline_2"]
            .into_iter()
            .zip(&runs);
        let row = Row::of(Load::Transaction, 8, sides).unwrap();
        let ratios: Vec<_> = row.others.iter().map(|o| (o.side, o.ratio)).collect();
        assert_eq!(ratios, [("baseline_1", 3.0), ("baseline_2", 6.0)]);
        let report = Report {
            distance: Distance::Wan,
            round_trips_ms: Distance::Wan.round_trips_ms(),
            rows: vec![row],
            seconds: 5,
            processors: 2,
        };
        let table = table(&report);
        assert!(table.contains("round trips 30, 80 and 60 ms"), "{table}");
        let line = table.lines().find(|line| line.contains("baseline 2"));
        assert!(line.is_some_and(|line| line.ends_with("6.00")), "{table}");
    }
}
