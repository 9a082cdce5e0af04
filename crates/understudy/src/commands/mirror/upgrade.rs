//! `understudy mirror upgrade`: a major upgrade, step by step. [`mirror::driver::upgrade`] decides; here the managers are asked.

use std::time::{Duration, Instant};

use mirror::driver::config::Config;
use mirror::driver::peer::Question;
use mirror::driver::upgrade::{
    self, Direction, Next, Refusal, Upgrade, newer_member, replacement, second_member,
};
use mirror::driver::{Level, Status, Verdict};
use serde::Serialize;

use super::findings::findings;
use super::managers::{ask_primary, load, statuses, switchover};
use crate::cli::MirrorUpgrading;
use crate::exit::{Code, Failure};

/// How often the managers are asked.
const LOOK_AGAIN: Duration = Duration::from_millis(200);
/// How often it is told what is waited for, if that changes all the time.
const TELL_AGAIN: Duration = Duration::from_secs(5);

/// Result of the command.
#[derive(Debug, Default, Serialize)]
struct Report {
    /// The comparison before the switchover.
    verdict: Option<Verdict>,
    /// It has switched over.
    switched_over: bool,
    /// State of the upgrade afterwards.
    upgrade: Option<Upgrade>,
    /// The reason for which it stopped.
    refused: Option<String>,
    /// Lines that an operator executes.
    lines: Vec<String>,
}

/// Runs it, and tells what was done.
pub(super) async fn run(args: &MirrorUpgrading) -> anyhow::Result<Code> {
    let file = &args.asking.file.config;
    let (_, config) = load(file)?;
    let mut report = Report::default();
    let done = match (config.single, args.finish) {
        (true, _) => {
            report.lines = second_member();
            let why = "this manager's member is the only one (single = true)";
            let advice = "Add a second member of the new version, as the lines above say.";
            Err(Failure::new(Code::Refused, why).advise(advice).into())
        }
        (false, true) => finish(args, &config, &mut report).await,
        (false, false) => carry_out(args, &config, &mut report).await,
    };
    report.refused = done.as_ref().err().map(|error| format!("{error:#}"));
    if !config.single
        && let Ok(statuses) = statuses(file).await
    {
        report.upgrade = upgrade::upgrade(&statuses);
    }
    match args.asking.json {
        true => println!("{}", serde_json::to_string(&report)?),
        false => print!("{}", text(args, &report)),
    }
    done.map(|()| Code::Ok)
}

async fn carry_out(
    args: &MirrorUpgrading,
    config: &Config,
    report: &mut Report,
) -> anyhow::Result<()> {
    let file = &args.asking.file.config;
    let direction = match args.back {
        true => Direction::Back,
        false => Direction::Forward,
    };
    let deadline = Instant::now() + args.timeout;
    let mut is_checked = args.back;
    let mut waiting = Waiting::default();
    loop {
        let statuses = statuses(file).await?;
        let verdict = report.verdict.as_ref();
        let next = upgrade::next(direction, &statuses, verdict, report.switched_over);
        if let Next::Refused(refusal) = next {
            report.lines = lines(&refusal, &statuses, config)?;
            return Err(refused(&refusal));
        }
        if !std::mem::replace(&mut is_checked, true) {
            must_be_well(config).await?;
        }
        match next {
            Next::Wait(what) => {
                if Instant::now() > deadline {
                    let limit = humantime::format_duration(args.timeout);
                    let why = format!("not within {limit}: {what}");
                    let advice = "Look at both managers with understudy mirror status; a longer --timeout waits for longer.";
                    return Err(Failure::new(Code::Unavailable, why).advise(advice).into());
                }
                waiting.tell(what);
                tokio::time::sleep(LOOK_AGAIN).await;
            }
            Next::Verify => {
                eprintln!("understudy: comparing the members");
                let told = ask_primary(file, &statuses, Question::Verify).await?;
                report.verdict = Some(serde_json::from_str(&told)?);
            }
            Next::SwitchOver if args.dry_run => return Ok(()),
            Next::SwitchOver => {
                eprintln!("understudy: switching over");
                ask_primary(file, &statuses, switchover(&statuses)).await?;
                report.switched_over = true;
            }
            Next::Done | Next::Refused(_) => return Ok(()),
        }
    }
}

/// Refuses what a mirror would refuse. Differences were there before, and are told.
async fn must_be_well(config: &Config) -> anyhow::Result<()> {
    let mut checked = mirror::driver::check(config).await?;
    checked
        .findings
        .retain(|finding| finding.level != Level::Advice);
    let is_refused = |level| level == Level::Refused;
    let refused = checked.findings.iter().any(|one| is_refused(one.level));
    if !checked.findings.is_empty() {
        eprint!("{}", findings(&checked));
    }
    if !refused {
        return Ok(());
    }
    let why = "the members are not as a mirror needs them";
    let advice = "Do what the lines above say; understudy mirror check shows them again.";
    Err(Failure::new(Code::Refused, why).advise(advice).into())
}

async fn finish(
    args: &MirrorUpgrading,
    config: &Config,
    report: &mut Report,
) -> anyhow::Result<()> {
    let statuses = statuses(&args.asking.file.config).await?;
    match upgrade::finish(&statuses) {
        Ok((older, newer)) => {
            let target = target_of(&older.manager, &statuses, config)?;
            report.lines = replacement(&older, &newer, &target);
            Ok(())
        }
        Err(refusal) => Err(refused(&refusal)),
    }
}

fn refused(refusal: &Refusal) -> anyhow::Error {
    let code = match refusal {
        Refusal::Unreachable => Code::Unavailable,
        _ => Code::Refused,
    };
    Failure::new(code, refusal.to_string())
        .advise(refusal.advice())
        .into()
}

/// Lines that help with a refusal.
fn lines(
    refusal: &Refusal,
    statuses: &[Option<Status>],
    config: &Config,
) -> anyhow::Result<Vec<String>> {
    let Refusal::SameVersion(sides) = refusal else {
        return Ok(Vec::new());
    };
    let is_primary = |manager: &str| {
        let mut all = statuses.iter().flatten();
        all.any(|status| status.name == manager && status.role.serves())
    };
    let [one, other] = sides;
    let standby = if is_primary(&other.manager) {
        one
    } else {
        other
    };
    let target = target_of(&standby.manager, statuses, config)?;
    Ok(newer_member(standby, &target))
}

/// The place of a manager's member: the first status is that of the manager of the file.
fn target_of(
    manager: &str,
    statuses: &[Option<Status>],
    config: &Config,
) -> anyhow::Result<mirror::driver::target::Target> {
    let own = statuses.first().and_then(Option::as_ref);
    Ok(match own.is_some_and(|own| own.name == manager) {
        true => config.target()?,
        false => config.other_target()?,
    })
}

/// The thing that was told last.
#[derive(Debug, Default)]
struct Waiting(Option<(String, Instant)>);

impl Waiting {
    fn tell(&mut self, what: String) {
        let is_told = |(told, at): &(String, Instant)| *told == what || at.elapsed() < TELL_AGAIN;
        if !self.0.as_ref().is_some_and(is_told) {
            eprintln!("understudy: waiting for {what}");
            self.0 = Some((what, Instant::now()));
        }
    }
}

/// The report, for people.
fn text(args: &MirrorUpgrading, report: &Report) -> String {
    let mut out = String::new();
    if let Some(verdict) = report.verdict.as_ref().filter(|verdict| verdict.equal) {
        out.push_str(&format!(
            "the members were equal at transaction {}: {} tables with {} rows\n",
            verdict.transaction, verdict.tables, verdict.rows
        ));
    }
    if let Some(upgrade) = &report.upgrade {
        out.push_str(&format!("{upgrade}\n"));
    }
    if report.refused.is_none() {
        let then = match (args.finish, args.dry_run, args.back) {
            (true, ..) => {
                "the older member is replaced as follows; until then the way back stays as it is\n"
            }
            (_, true, _) => "nothing was switched over (--dry-run)\n",
            (_, _, true) => "understudy mirror upgrade switches over to the newer version again\n",
            _ => "understudy mirror upgrade --back switches back, and --finish ends the upgrade\n",
        };
        out.push_str(then);
    }
    for line in &report.lines {
        out.push_str(&format!("{line}\n"));
    }
    out
}
