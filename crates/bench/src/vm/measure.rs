//! One machine, unprotected and protected in several ways, in turn.

use serde::Serialize;
use vm::driver::{Parts, Status};

use super::loads::{self, Load, Rate};
use super::stage::{Guest, Stage};
use super::ways::Way;
use super::{Measurement, Options, Report, Subject};
use crate::statistics::Sample;

/// One machine and load.
#[derive(Debug, Clone, Serialize)]
pub struct Case {
    /// Of which part.
    pub part: Measurement,
    /// Database in the machine.
    pub guest: Guest,
    /// What its clients do.
    pub load: Load,
    /// Warehouses; of a scan, megabytes.
    pub size: u32,
    /// Megabytes of the machine's memory.
    pub memory_mb: u64,
    /// Clients that write.
    pub clients: u16,
    /// Transactions a second of the machine unprotected, to be compared with nothing outside this case.
    pub unprotected: Sample,
    /// Their middle latency in milliseconds.
    pub unprotected_p50_ms: Sample,
    /// Each way.
    pub ways: Vec<Measured>,
}

/// One way.
#[derive(Debug, Clone, Serialize)]
pub struct Measured {
    /// Way that was measured.
    pub way: Way,
    /// Between two checkpoints.
    pub epoch_ms: u32,
    /// Transactions a second by those of the machine unprotected in the same round.
    pub ratio: Sample,
    /// The same of the middle latency.
    pub latency_ratio: Sample,
    /// The middle latency in milliseconds.
    pub p50_ms: Sample,
    /// The latency that one transaction in a hundred exceeds.
    pub p99_ms: Sample,
    /// Checkpoints a second.
    pub checkpoints: Sample,
    /// Bytes of one checkpoint.
    pub bytes: Sample,
    /// How many times as many bytes the pages and blocks have that were written.
    pub times_fewer: Sample,
    /// Of the pages that were written, the share that was as it had been sent.
    pub unchanged: Sample,
    /// Of them, the share that was named as a block of the disk.
    pub as_blocks: Sample,
    /// How long a checkpoint stops the machine, in milliseconds: the median of each run.
    pub pause_p50_ms: Sample,
    /// What 99 of 100 checkpoints stay below.
    pub pause_p99_ms: Sample,
    /// From the beginning of a checkpoint until the standby holds it.
    pub safe_p50_ms: Sample,
    /// Where the pause goes, in the run with the middle pause: each step's median.
    pub trace_p50: Parts,
    /// What 99 of 100 stay below, of each step.
    pub trace_p99: Parts,
}

/// One run of a way.
#[derive(Debug, Clone, Copy)]
struct Run {
    rate: Rate,
    base: Rate,
    seconds: f64,
    before: vm::driver::CheckpointStats,
    after: vm::driver::CheckpointStats,
}

impl Run {
    fn grown(&self, of: fn(&vm::driver::CheckpointStats) -> u64) -> f64 {
        of(&self.after).saturating_sub(of(&self.before)) as f64
    }

    fn share(
        &self,
        of: fn(&vm::driver::CheckpointStats) -> u64,
        among: fn(&vm::driver::CheckpointStats) -> u64,
    ) -> f64 {
        self.grown(of) / self.grown(among).max(1.0)
    }
}

pub(super) async fn measure(
    options: &Options,
    part: Measurement,
    subject: Subject,
    ways: &[(Way, u32)],
    report: &mut Report,
    say: &impl Fn(&str),
) -> anyhow::Result<Case> {
    let dir = options.dir.join(format!("case-{}", report.cases.len()));
    let mut stage = Stage::set(options, subject, &dir, say).await?;
    let status = stage.status().await?;
    (report.accelerator, report.accelerator_reason) =
        (status.accelerator, status.accelerator_reason);
    let mut unprotected: Vec<Rate> = Vec::new();
    let mut runs: Vec<Vec<Run>> = ways.iter().map(|_| Vec::new()).collect();
    for round in 1..=options.rounds {
        let number = stage.next_run();
        let password = stage.password.clone();
        let nothing = async || Ok(());
        let timed = loads::timed(
            subject,
            &password,
            options.clients,
            options.seconds,
            number,
            nothing,
        );
        let base = timed.await?;
        unprotected.push(base);
        stage.protect().await?;
        for ((way, epoch_ms), runs) in ways.iter().zip(&mut runs) {
            let run = one(options, subject, (*way, *epoch_ms), base, &mut stage).await?;
            say(&sentence(round, *way, *epoch_ms, &run));
            runs.push(run);
        }
        stage.unprotect().await?;
    }
    drop(stage);
    std::fs::remove_dir_all(&dir)?;
    let of = |value: fn(&Rate) -> f64| Sample::of(unprotected.iter().map(value).collect());
    Ok(Case {
        part,
        guest: subject.guest,
        load: subject.load,
        size: subject.size,
        memory_mb: subject.memory_mb,
        clients: options.clients,
        unprotected: of(|rate| rate.tps),
        unprotected_p50_ms: of(|rate| rate.p50_ms),
        ways: ways
            .iter()
            .zip(&runs)
            .map(|((way, epoch_ms), runs)| summed(*way, *epoch_ms, runs))
            .collect(),
    })
}

async fn one(
    options: &Options,
    subject: Subject,
    (way, epoch_ms): (Way, u32),
    base: Rate,
    stage: &mut Stage,
) -> anyhow::Result<Run> {
    stage.pair.reload(&way.settings(epoch_ms)).await?;
    let number = stage.next_run();
    let mut seen: Vec<Status> = Vec::new();
    let look = async || {
        seen.push(stage.status().await?);
        Ok::<(), anyhow::Error>(())
    };
    let timed = loads::timed(
        subject,
        &stage.password,
        options.clients,
        options.seconds,
        number,
        look,
    );
    let rate = timed.await?;
    let protected = |status: &Status| status.protection.as_deref() == Some("protected");
    anyhow::ensure!(
        seen.iter().all(protected),
        "the standby was lost during a run"
    );
    Ok(Run {
        rate,
        base,
        seconds: f64::from(options.seconds),
        before: seen[0].stats,
        after: seen[1].stats,
    })
}

fn sentence(round: u32, way: Way, epoch_ms: u32, run: &Run) -> String {
    format!(
        "round {round}, {way} every {epoch_ms} ms: {:.2} of unprotected; pause {:.1} ms (99 %: {:.1}); {:.0} bytes each, {:.0} times fewer",
        run.rate.tps / run.base.tps,
        run.after.pause_ms_p50,
        run.after.pause_ms_p99,
        run.share(|told| told.sent_bytes, |told| told.epochs),
        run.share(|told| told.raw_bytes, |told| told.sent_bytes),
    )
}

fn summed(way: Way, epoch_ms: u32, runs: &[Run]) -> Measured {
    let of = |value: &dyn Fn(&Run) -> f64| Sample::of(runs.iter().map(value).collect());
    let pause_p50_ms = of(&|run| run.after.pause_ms_p50);
    let far = |run: &&Run| (run.after.pause_ms_p50 - pause_p50_ms.median).abs();
    let middle = runs.iter().min_by(|a, b| far(a).total_cmp(&far(b)));
    let traced = middle.map_or_else(Default::default, |run| run.after);
    Measured {
        way,
        epoch_ms,
        ratio: of(&|run| run.rate.tps / run.base.tps),
        latency_ratio: of(&|run| run.rate.p50_ms / run.base.p50_ms),
        p50_ms: of(&|run| run.rate.p50_ms),
        p99_ms: of(&|run| run.rate.p99_ms),
        checkpoints: of(&|run| run.grown(|told| told.epochs) / run.seconds),
        bytes: of(&|run| run.share(|told| told.sent_bytes, |told| told.epochs)),
        times_fewer: of(&|run| run.share(|told| told.raw_bytes, |told| told.sent_bytes)),
        unchanged: of(&|run| run.share(|told| told.pages_unchanged, |told| told.pages)),
        as_blocks: of(&|run| run.share(|told| told.pages_as_blocks, |told| told.pages)),
        pause_p99_ms: of(&|run| run.after.pause_ms_p99),
        safe_p50_ms: of(&|run| run.after.safe_ms_p50),
        trace_p50: traced.parts_p50,
        trace_p99: traced.parts_p99,
        pause_p50_ms,
    }
}
