//! The verdict over a soak: is everything there that was acknowledged, and whole?

use anyhow::Context;

use super::readers::Tally;
use super::report::Report;
use super::sample::Sample;
use super::{Options, Run};
use cluster::Cluster;
use cluster::clients::clock::Offset;
use cluster::clients::history::{History, Outcome};
use cluster::clients::schema::Server;
use cluster::clients::session::connect;
use cluster::clients::verify::{self, Check};
use understudy::demo::takeover::Takeover;

/// The overlay may vary by this, however small it is.
const OVERLAY_SLACK: u64 = 64 << 20;
/// With fewer moves than this nothing can be said of how the overlay grows.
const MOVES_TO_JUDGE: u64 = 8;

/// Asks the active, and puts everything together.
pub(super) async fn report(
    options: &Options,
    cluster: &Cluster,
    run: Run,
) -> anyhow::Result<Report> {
    let active = cluster.active().await.context("nobody is active")?;
    let server = cluster.server(&active)?;
    let mut checks = database(options, &server, &run).await?;
    // What has just come back may be busy catching up.
    let told = run.answers.iter().enumerate();
    checks.extend(told.map(|(at, (_, tally))| answers(tally, at == 0)));
    let killed = run.killed.seconds();
    let (before, _) = run
        .series
        .split_at(run.series.partition_point(|s| s.seconds <= killed));
    let (base_moves, fresh_attaches) = (moved(before), attached(before));
    checks.push(moves(before));
    checks.extend(overlay(before));
    let lines = cluster.unexpected_log_lines(|_, _| false);
    checks.push(Check {
        name: "nothing unexpected in the logs",
        passed: lines.is_empty(),
        detail: match lines.first() {
            Some(first) => format!("{} lines, for example {first}", lines.len()),
            None => "no line".into(),
        },
    });
    let config = cluster.node(&active)?.config.display().to_string();
    let history = cluster
        .run(&["history", "--config", &config, "--json"])
        .await?;
    let outage = run.balances.outage(run.killed);
    let rate = |history: &History| history.rate(Offset(0), run.killed);
    Ok(Report {
        passed: checks.iter().all(|check| check.passed),
        checks,
        before_s: run.killed.seconds(),
        after_s: run.end.since(run.killed).as_secs_f64(),
        downtime_ms: outage.map_or(0.0, |o| o.length().as_secs_f64() * 1000.0),
        takeover: Takeover::last(&history)?,
        acknowledged: [&run.balances, &run.orders].map(|h| h.count(Outcome::Acknowledged)),
        tps_before: rate(&run.balances) + rate(&run.orders),
        ddl_rounds: run.ddl_rounds,
        lag_bytes: run.lag.0,
        lag_ms: run.lag.1,
        base_moves,
        fresh_attaches,
        answers: run.answers.into_iter().collect(),
        unexpected_log_lines: lines,
        series: run.series,
        tables: run.tables,
        picture: None,
        data: None,
    })
}

async fn database(options: &Options, server: &Server, run: &Run) -> anyhow::Result<Vec<Check>> {
    let (_, mut checks) = verify::database(server, &run.balances).await?;
    let client = connect(&server.config()).await?;
    let rows = client
        .query("SELECT client, n FROM shop.ledger", &[])
        .await
        .context("cannot read the orders' ledger")?;
    let ledger: Vec<(i32, i64)> = rows.iter().map(|row| (row.get(0), row.get(1))).collect();
    let [mut lost, mut unexpected] = verify::compare(&run.orders, &ledger).checks();
    lost.name = "no acknowledged order lost";
    unexpected.name = "no order that nobody committed";
    checks.extend([lost, unexpected]);
    let faults = client.query("SELECT fault FROM shop.faults()", &[]).await?;
    let faults: Vec<String> = faults.iter().map(|row| row.get(0)).collect();
    checks.push(Check {
        name: "the order entry's conditions hold",
        passed: faults.is_empty(),
        detail: match faults.is_empty() {
            true => "counters, orders, lines, payments and stock agree".into(),
            false => faults.join("; "),
        },
    });
    checks.push(verify::amcheck(&options.bin, server).await?);
    checks.extend(verify::visibility(server).await?);
    Ok(checks)
}

/// No question was answered wrong, and some, or `each`, right.
fn answers(tally: &Tally, each: bool) -> Check {
    let wrong: Vec<String> = tally
        .iter()
        .flat_map(|(name, answers)| answers.wrong.iter().map(move |w| format!("{name}: {w}")))
        .collect();
    let unanswered: Vec<&str> = tally
        .iter()
        .filter(|(_, answers)| each && answers.right == 0)
        .map(|(name, _)| *name)
        .collect();
    let right: u64 = tally.values().map(|answers| answers.right).sum();
    let gave_way: u64 = tally.values().map(|answers| answers.gave_way).sum();
    Check {
        name: "what sessions on a standby are told is true",
        passed: wrong.is_empty() && unanswered.is_empty() && right > 0,
        detail: match (wrong.is_empty(), unanswered.is_empty()) {
            (true, true) => format!("{right} right answers, {gave_way} gave way to redo"),
            (true, false) => format!("never answered: {}", unanswered.join(", ")),
            (false, _) => wrong.join("; "),
        },
    }
}

/// Moves of all attachments together.
pub(super) fn moved(samples: &[Sample]) -> u64 {
    let counts = samples.iter().filter_map(|s| s.base_moves);
    let mut total = 0;
    let mut last = 0;
    for count in counts {
        total += if count >= last { count - last } else { count };
        last = count;
    }
    total
}

/// How often the count of moves began anew.
fn attached(samples: &[Sample]) -> u64 {
    let counts: Vec<u64> = samples.iter().filter_map(|s| s.base_moves).collect();
    counts.windows(2).filter(|two| two[1] < two[0]).count() as u64
}

fn moves(samples: &[Sample]) -> Check {
    let moved = moved(samples);
    Check {
        name: "the standby's base follows",
        passed: moved > 0,
        detail: format!("it moved {moved} times"),
    }
}

/// The overlay of the second half of the run is not much larger than that of the first.
fn overlay(samples: &[Sample]) -> Option<Check> {
    if moved(samples) < MOVES_TO_JUDGE {
        return None;
    }
    let highest = |half: &[Sample]| half.iter().filter_map(|s| s.overlay_bytes).max();
    let (early, late) = samples.split_at(samples.len() / 2);
    let (early, late) = (highest(early)?, highest(late)?);
    Some(Check {
        name: "the overlay does not grow with time",
        passed: late <= 2 * early + OVERLAY_SLACK,
        detail: format!(
            "at most {} kB in the first half, {} kB in the second",
            early >> 10,
            late >> 10
        ),
    })
}

#[cfg(test)]
mod tests {
    use super::super::readers::Answers;
    use super::*;

    fn sample(moves: u64, overlay_mib: u64) -> Sample {
        Sample {
            base_moves: Some(moves),
            overlay_bytes: Some(overlay_mib << 20),
            ..Sample::default()
        }
    }

    #[test]
    fn moves_go_on_counting_when_a_standby_attaches_afresh() {
        let samples = [sample(1, 0), sample(4, 0), sample(0, 0), sample(2, 0)];
        assert_eq!((moved(&samples), attached(&samples)), (6, 1));
    }

    #[test]
    fn an_overlay_that_grows_and_grows_is_a_fault() {
        let grown = |by: u64| {
            let samples: Vec<Sample> = (0..20).map(|n| sample(n, 10 + n * by)).collect();
            overlay(&samples).unwrap().passed
        };
        assert!(grown(1) && !grown(100));
    }

    #[test]
    fn a_question_without_an_answer_is_a_fault_as_a_wrong_one_is() {
        let told = |right, wrong: &[&str]| {
            let answers = Answers {
                right,
                gave_way: 7,
                wrong: wrong.iter().map(|w| (*w).to_owned()).collect(),
            };
            answers_of(answers)
        };
        assert!(told(1, &[]).passed);
        assert!(!told(0, &[]).passed);
        assert!(!told(9, &["5 | 4 | 5"]).passed);
        assert!(!answers(&Tally::new(), false).passed);
    }

    fn answers_of(one: Answers) -> Check {
        answers(&Tally::from([("a question", one)]), true)
    }
}
