//! The demo of the mirror: machines, managers and members are killed under load as often as wanted, and come back, some with
//! an empty disk.
//!
//! ```text
//!   settled ── strike ──▶ somebody serves ── come back ──▶ settled ── verify ──▶ the next round
//! ```
//!
//! Invariant: a round begins when one manager is primary and the other one a standby, so that no round may lose anything,
//! whatever it strikes.

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant, SystemTime};

use anyhow::{Context, ensure};
use cluster::clients::clock::Clock;
use cluster::clients::history::{History, Outcome};
use cluster::clients::load::{self, Load};
use cluster::clients::schema::{self, Server};
use cluster::clients::session::connect;
use cluster::clients::verify::{self, Check};
use cluster::mirror::{self, Mirror, NAMES};
use cluster::programs;
use cluster::workspace::Workspace;
use rand::rngs::SmallRng;
use rand::seq::SliceRandom;
use rand::{Rng, SeedableRng};
use serde::Serialize;

use super::progress::Progress;
use super::timeline::thousands;

/// What the user chose.
#[derive(Debug, Clone)]
pub struct Options {
    /// How often something is killed.
    pub kills: u32,
    /// Length of the load before the first kill, and after each.
    pub between: Duration,
    /// Concurrent clients.
    pub clients: u16,
    /// pgbench's scale.
    pub scale: u32,
    /// Decides what is killed, and when, and the rows touched.
    pub seed: u64,
    /// PostgreSQL's programs, if not Debian's newest.
    pub bin: Option<PathBuf>,
    /// Where to work.
    pub data: Option<PathBuf>,
    /// Leave data and logs in place.
    pub keep: bool,
}

/// What is killed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Struck {
    /// The primary's machine: its manager and its member.
    Primary,
    /// The same of the standby.
    Standby,
    /// The primary's manager alone.
    PrimaryManager,
    /// The standby's manager alone.
    StandbyManager,
    /// The primary's member alone.
    PrimaryMember,
    /// The standby's member alone.
    StandbyMember,
    /// The primary's manager stands still until the other one has taken over, and then goes on as if nothing had happened.
    FrozenPrimary,
    /// Both managers at once.
    Managers,
    /// Both machines at once.
    Both,
}

/// A part of the mirror that can be killed: a manager or a member, of the primary or of the standby.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum KillTarget {
    Manager(usize),
    Member(usize),
    /// A manager that does not end but stands still.
    Frozen(usize),
}

impl Struck {
    const ALL: [Struck; 9] = [
        Struck::Primary,
        Struck::Standby,
        Struck::PrimaryManager,
        Struck::StandbyManager,
        Struck::PrimaryMember,
        Struck::StandbyMember,
        Struck::FrozenPrimary,
        Struck::Managers,
        Struck::Both,
    ];

    fn parts(self, primary: usize) -> Vec<KillTarget> {
        let standby = 1 - primary;
        let machine = |at| vec![KillTarget::Manager(at), KillTarget::Member(at)];
        match self {
            Struck::Primary => machine(primary),
            Struck::Standby => machine(standby),
            Struck::PrimaryManager => vec![KillTarget::Manager(primary)],
            Struck::StandbyManager => vec![KillTarget::Manager(standby)],
            Struck::PrimaryMember => vec![KillTarget::Member(primary)],
            Struck::StandbyMember => vec![KillTarget::Member(standby)],
            Struck::FrozenPrimary => vec![KillTarget::Frozen(primary)],
            Struck::Managers => vec![KillTarget::Manager(primary), KillTarget::Manager(standby)],
            Struck::Both => [machine(primary), machine(standby)].concat(),
        }
    }

    /// True if the other machine can serve before anything comes back.
    fn leaves_somebody(self) -> bool {
        !matches!(self, Struck::Managers | Struck::Both)
    }

    /// True if another primary is needed.
    fn takes_the_primary(self) -> bool {
        matches!(
            self,
            Struck::Primary
                | Struck::PrimaryManager
                | Struck::PrimaryMember
                | Struck::FrozenPrimary
        )
    }

    /// True if one machine is lost with its disk, if the seed says so.
    fn may_lose_a_disk(self) -> bool {
        matches!(self, Struck::Primary | Struck::Standby)
    }
}

/// One round.
#[derive(Debug, Clone, Serialize)]
pub struct Round {
    /// What was killed.
    pub struck: Struck,
    /// Who was primary.
    pub primary: &'static str,
    /// The longest time without a commit that began with it, in milliseconds.
    pub pause_ms: f64,
    /// The member came back on an empty disk.
    pub disk_lost: bool,
    /// From its return until it was a standby, in seconds.
    pub return_s: f64,
    #[serde(skip)]
    at: Option<SystemTime>,
}

/// What the demo found: `--json` prints exactly this.
#[derive(Debug, Clone, Default, Serialize)]
pub struct Report {
    /// True if nothing was lost, applied twice or different, and every check holds.
    pub passed: bool,
    /// Commits that clients were told of.
    pub acknowledged: u64,
    /// Those of them that are missing on a member.
    pub lost: u64,
    /// Transactions that are there more than once, or though no client committed them, on a member.
    pub applied_twice: u64,
    /// Times that the members were not equal, or that one of them differed.
    pub diverged: u64,
    /// Commits without an answer, which may be there or not.
    pub unknown: u64,
    /// The median of the times without commits after a primary was lost.
    pub downtime_ms: f64,
    /// The longest of them.
    pub downtime_worst_ms: f64,
    /// The longest time without commits after a standby was lost.
    pub standby_pause_worst_ms: Option<f64>,
    /// The median of the times from the return of a member with an empty disk until it was a standby.
    pub transfer_s: Option<f64>,
    /// Commits a second over the whole run, outages included.
    pub tps: f64,
    /// What was killed.
    pub rounds: Vec<Round>,
    /// What was checked.
    pub checks: Vec<Check>,
    /// Concurrent clients.
    pub clients: u16,
    /// pgbench's scale.
    pub scale: u32,
    /// Repeats the run.
    pub seed: u64,
}

/// How long anything may take.
const WITHIN: Duration = Duration::from_secs(120);
/// A client gives up on an answer after this, and connects again.
const ANSWERS_WITHIN: Duration = Duration::from_secs(5);
/// Commits that show that somebody serves.
const COMMITS: u64 = 20;

/// Runs the demo. Dropping the future ends it and cleans up.
///
/// # Errors
/// Something cannot be started or does not answer. Lost commits are no error but a report.
pub async fn run(options: &Options) -> anyhow::Result<Report> {
    let bin = programs::find(options.bin.as_deref())?;
    let mut workspace = Workspace::create(options.data.as_deref(), options.keep)?;
    let result = on_stage(options, &bin, workspace.path()).await;
    workspace.keep_unless(matches!(&result, Ok(report) if report.passed));
    result
}

async fn on_stage(options: &Options, bin: &Path, dir: &Path) -> anyhow::Result<Report> {
    let mut progress = Progress::new();
    let mut mirror = set_stage(options, bin, dir, &progress).await?;
    let clock = Clock::start();
    let load = Load::start(
        mirror.any_writable(),
        load::Options {
            clients: options.clients,
            scale: options.scale,
            seed: options.seed,
            timeout: ANSWERS_WITHIN,
            ..load::Options::default()
        },
        clock,
    );
    progress.say(&format!(
        "{} clients connect to \"{}\"",
        options.clients,
        schema::connection_string(&mirror.any_writable())
    ));
    let count = load.counter();
    progress.start(clock, move || count.get(), || None);
    let mut report = Report {
        clients: options.clients,
        scale: options.scale,
        seed: options.seed,
        ..Report::default()
    };
    let mut rng = SmallRng::seed_from_u64(options.seed);
    for (number, struck) in plan(options.kills, &mut rng).into_iter().enumerate() {
        let disk_lost = struck.may_lose_a_disk() && (number == 0 || rng.random_bool(0.5));
        let wait = options.between.mul_f64(rng.random_range(0.5..1.5));
        tokio::time::sleep(wait).await;
        let round = play((struck, disk_lost), &mut mirror, &load, clock, &progress).await?;
        report.rounds.push(round);
        report.diverged += u64::from(!verify_members(&mirror).await?);
    }
    tokio::time::sleep(options.between).await;
    mirror.settle(WITHIN).await?;
    progress.stop();
    progress.say("verifying");
    let history = load.stop().await;
    report.diverged += u64::from(!verify_members(&mirror).await?);
    judge(&mirror, bin, &history, clock, &mut report).await?;
    tokio::task::block_in_place(|| mirror.shutdown());
    Ok(report)
}

/// What is killed in each round: the primary first, then everything in turn, in an order that the seed decides.
fn plan(kills: u32, rng: &mut SmallRng) -> Vec<Struck> {
    let mut all = vec![Struck::Primary];
    while all.len() < kills as usize {
        let mut next = Struck::ALL;
        next.shuffle(rng);
        all.extend(next);
    }
    all.truncate(kills as usize);
    all
}

/// Starts the mirror with pgbench's tables: they are on the first member before anybody mirrors it.
async fn set_stage(
    options: &Options,
    bin: &Path,
    dir: &Path,
    progress: &Progress,
) -> anyhow::Result<Mirror> {
    let program = std::env::current_exe().context("cannot tell which program this is")?;
    progress.say(&format!(
        "starting 3 zones, and 2 servers with {} in {}",
        bin.display(),
        dir.display()
    ));
    let mut mirror = Mirror::prepare(mirror::Options::new(dir, bin, &program)).await?;
    progress.say(&format!(
        "loading pgbench's tables, scale {}: {} accounts",
        options.scale,
        thousands(u64::from(options.scale) * 100_000)
    ));
    schema::create(bin, &mirror.member(0), options.scale).await?;
    progress.say("starting a manager beside each; the second member is filled from the first");
    mirror.start(WITHIN).await?;
    Ok(mirror)
}

/// One round: kill, see somebody serve, let what is dead come back.
async fn play(
    (struck, disk_lost): (Struck, bool),
    mirror: &mut Mirror,
    load: &Load,
    clock: Clock,
    progress: &Progress,
) -> anyhow::Result<Round> {
    mirror.settle(WITHIN).await?;
    let primary = mirror.wait_primary(WITHIN).await?;
    let parts = struck.parts(primary);
    let at = SystemTime::now();
    let what = names(&parts);
    let how = match struck {
        Struck::FrozenPrimary => "stands still",
        _ => "KILLED",
    };
    progress.say(&format!("{:>4.1} s  {what} {how}", clock.now().seconds()));
    progress.set_state(format!("without {what}"));
    tokio::task::block_in_place(|| strike(mirror, &parts));
    let acknowledged = load.acknowledged();
    if struck.leaves_somebody() {
        more(load, acknowledged).await?;
        if struck.takes_the_primary() {
            mirror.wait_serves(1 - primary, WITHIN).await?;
        }
        let who = NAMES[mirror.wait_primary(WITHIN).await?];
        progress.say(&format!("{:>4.1} s  {who} serves", clock.now().seconds()));
        mirror.check_running()?;
    }
    let returned = Instant::now();
    for part in &parts {
        if let KillTarget::Member(at) = *part {
            match disk_lost {
                true => mirror.renew_member(at).await?,
                false => mirror.start_member(at).await?,
            }
        }
    }
    for part in &parts {
        match *part {
            KillTarget::Manager(at) => mirror.start_manager(at).await?,
            KillTarget::Frozen(at) => mirror.manager(at).context("it runs")?.resume(),
            KillTarget::Member(_) => {}
        }
    }
    mirror.settle(WITHIN).await?;
    more(load, load.acknowledged()).await?;
    let return_s = returned.elapsed().as_secs_f64();
    let how = if disk_lost {
        ", with an empty disk,"
    } else {
        ""
    };
    progress.say(&format!(
        "{:>4.1} s  what was killed came back{how} and is a standby after {return_s:.1} s",
        clock.now().seconds()
    ));
    progress.set_state("");
    Ok(Round {
        struck,
        primary: NAMES[primary],
        pause_ms: 0.0,
        disk_lost,
        return_s,
        at: Some(at),
    })
}

fn names(parts: &[KillTarget]) -> String {
    let name = |part: &KillTarget| match *part {
        KillTarget::Manager(at) => format!("{}'s manager", NAMES[at]),
        KillTarget::Member(at) => format!("{}'s PostgreSQL", NAMES[at]),
        KillTarget::Frozen(at) => format!("{}'s manager", NAMES[at]),
    };
    let names: Vec<String> = parts.iter().map(name).collect();
    names.join(" and ")
}

fn strike(mirror: &mut Mirror, parts: &[KillTarget]) {
    for part in parts {
        match *part {
            KillTarget::Manager(at) => {
                mirror.kill_manager(at);
            }
            KillTarget::Member(at) => mirror.kill_member(at),
            KillTarget::Frozen(at) => {
                if let Some(manager) = mirror.manager(at) {
                    manager.pause();
                }
            }
        }
    }
}

/// Waits for commits after so many.
async fn more(load: &Load, after: u64) -> anyhow::Result<()> {
    load.wait_acknowledged(after + COMMITS, WITHIN).await
}

/// True if `understudy mirror verify` says that the members are equal.
async fn verify_members(mirror: &Mirror) -> anyhow::Result<bool> {
    let deadline = Instant::now() + WITHIN;
    loop {
        // Its exit code says "different", too; what it prints is the answer. Without a standby it is asked again.
        match mirror.verdict().await? {
            Some(verdict) => return Ok(verdict["equal"] == true),
            None => ensure!(Instant::now() < deadline, "the members cannot be compared"),
        }
        tokio::time::sleep(Duration::from_millis(200)).await;
    }
}

/// Holds what clients were told against both members.
async fn judge(
    mirror: &Mirror,
    bin: &Path,
    history: &History,
    clock: Clock,
    report: &mut Report,
) -> anyhow::Result<()> {
    for at in 0..2 {
        let server = mirror.member(at);
        let (comparison, mut checks) = verify::database(&server, history).await?;
        checks.push(verify::amcheck(bin, &server).await?);
        report.acknowledged = comparison.acknowledged;
        report.lost = report.lost.max(comparison.lost.len() as u64);
        let twice = comparison.unexpected.len() as u64 + surplus(&server).await?;
        report.applied_twice = report.applied_twice.max(twice);
        report.checks.extend(checks);
    }
    report.unknown = history.count(Outcome::Unknown);
    for round in &mut report.rounds {
        let at = round.at.context("a round was struck")?;
        let outage = history
            .outage(clock.at(at))
            .context("no commit after a kill")?;
        round.pause_ms = outage.length().as_secs_f64() * 1000.0;
    }
    let pauses = |which: fn(Struck) -> bool| {
        let rounds = report.rounds.iter().filter(|round| which(round.struck));
        let mut pauses: Vec<f64> = rounds.map(|round| round.pause_ms).collect();
        pauses.sort_by(f64::total_cmp);
        pauses
    };
    // Clients wait for a manager that stands still as long as they like to.
    let lost = pauses(|struck| struck.takes_the_primary() && struck != Struck::FrozenPrimary);
    let standby = pauses(|struck| struck.leaves_somebody() && !struck.takes_the_primary());
    let transfers = report.rounds.iter().filter(|round| round.disk_lost);
    let mut transfers: Vec<f64> = transfers.map(|round| round.return_s).collect();
    transfers.sort_by(f64::total_cmp);
    report.downtime_ms = median(&lost).unwrap_or_default();
    report.downtime_worst_ms = lost.last().copied().unwrap_or_default();
    report.standby_pause_worst_ms = standby.last().copied();
    report.transfer_s = median(&transfers);
    report.tps = report.acknowledged as f64 / clock.now().seconds().max(1.0);
    report.passed = (report.lost, report.applied_twice, report.diverged) == (0, 0, 0)
        && report.checks.iter().all(|check| check.passed);
    ensure!(report.acknowledged > 0, "nothing was committed");
    Ok(())
}

/// Rows of pgbench's history beyond those of the ledger, which has each transaction once.
async fn surplus(server: &Server) -> anyhow::Result<u64> {
    let client = connect(&server.config()).await?;
    let text =
        "SELECT (SELECT count(*) FROM pgbench_history) - (SELECT count(*) FROM understudy_ledger)";
    let surplus: i64 = client.query_one(text, &[]).await?.get(0);
    Ok(surplus.unsigned_abs())
}

fn median(sorted: &[f64]) -> Option<f64> {
    sorted.get(sorted.len() / 2).copied()
}

/// The story in a few lines.
pub fn render(report: &Report) -> String {
    let mut text = format!(
        "\n  {} kills of a mirror under load: {} commits acknowledged, {} LOST, {} applied twice, {} times different\n",
        report.rounds.len(),
        thousands(report.acknowledged),
        report.lost,
        report.applied_twice,
        report.diverged,
    );
    text.push_str(&format!(
        "  no commits for {:.0} ms after the primary was lost (median), {:.0} ms at most; {:.0} commits a second over all\n",
        report.downtime_ms, report.downtime_worst_ms, report.tps
    ));
    if let Some(seconds) = report.transfer_s {
        text.push_str(&format!(
            "  a member with an empty disk was a standby after {seconds:.1} s\n"
        ));
    }
    for check in &report.checks {
        let sign = if check.passed { '✓' } else { '✗' };
        text.push_str(&format!("  {sign} {:<38} {}\n", check.name, check.detail));
    }
    let verdict = if report.passed { "passed" } else { "FAILED" };
    text.push_str(&format!("\n  {verdict} (seed {})\n", report.seed));
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_primary_is_first_and_then_everything_in_turn() {
        let plan = plan(28, &mut SmallRng::seed_from_u64(1));
        assert_eq!((plan.len(), plan[0]), (28, Struck::Primary));
        for turn in plan[1..].chunks(9) {
            assert!(Struck::ALL.iter().all(|struck| turn.contains(struck)));
        }
    }

    #[test]
    fn the_primary_of_the_moment_is_what_is_struck() {
        assert_eq!(Struck::PrimaryMember.parts(1), [KillTarget::Member(1)]);
        assert_eq!(Struck::StandbyManager.parts(1), [KillTarget::Manager(0)]);
        assert_eq!(Struck::Both.parts(0).len(), 4);
    }
}
