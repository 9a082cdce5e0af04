//! The verdict: everything that clients were told, against what is there in the end and what they were shown.

use std::time::Duration;

use anyhow::Context;
use cluster::clients::clock::Offset;
use cluster::clients::history::{History, Outcome};
use cluster::clients::schema::Server;
use cluster::clients::session::connect;
use cluster::clients::verify::{self, Check};
use cluster::stock::Stock;
use serde::Serialize;
use serde_json::Value;

use super::Options;
use super::check::applications::Deed;
use super::check::lists::{Lists, Transaction};
use super::check::numbers::Drawn;
use super::check::prepared::Prepared;
use super::check::readers::Snapshot;
use super::check::strong::StrongRead;
use super::check::{applications, lists, numbers, prepared, readers, strong};
use super::clients::{
    applications as apps, lists as appenders, numbers as drawers, prepared as coordinators,
};
use super::report::{Counts, Report};
use super::stage::{Clients, Stage};

/// How long clients may take to finish what they are at.
const STOP_WITHIN: Duration = Duration::from_secs(90);
const TIMEOUT: Duration = Duration::from_secs(60);
/// So many anomalies of a kind are told.
const TOLD: usize = 10;
/// A silence that is longer than this counts as an outage.
const OUTAGE: Duration = Duration::from_millis(1_000);

/// What PostgreSQL says only if what it reads is not what it wrote.
const CORRUPTION: [&str; 14] = [
    "invalid page",
    "could not read block",
    "could not access status of transaction",
    "missing chunk number",
    "unexpected data beyond EOF",
    "WAL contains references to invalid pages",
    "is not a valid",
    "cache lookup failed",
    "could not find block",
    "failed to re-find",
    "found xmin",
    "wrong hash",
    "has wrong size",
    "right sibling",
];
/// And what it says if its mount refuses it everything, because its node was replaced or its agent was killed. (An error when
/// PG_VERSION is read looks like wrong contents. If they were wrong, the server would not start again.)
const FENCED: [&str; 6] = [
    "is not a valid data directory",
    "Input/output error",
    "Read-only file system",
    "Transport endpoint is not connected",
    "Software caused connection abort",
    "read only 0 of",
];

/// Observations of all clients.
struct Observations {
    transfers: History,
    lists: Vec<Transaction>,
    numbers: Vec<Drawn>,
    prepared: Vec<Prepared>,
    snapshots: Vec<Snapshot>,
    strong: Vec<StrongRead>,
    deeds: Vec<Deed>,
    ddl_rounds: u64,
}

impl Clients {
    /// Lets every client finish what it is at; if some cannot, which.
    async fn stop(self) -> Result<Observations, String> {
        let snapshots = self.readers.take();
        let (transfers, lists, numbers, prepared, strong, deeds, ddl_rounds) = tokio::join!(
            within("transfers", self.transfers.stop()),
            within("appends", self.lists.stop()),
            within("numbers", self.numbers.stop()),
            within("prepared transactions", self.prepared.stop()),
            within("strong reads", self.strong.stop()),
            within("applications", self.applications.stop()),
            within("table changes", self.churn.stop())
        );
        Ok(Observations {
            transfers: transfers?,
            lists: lists?,
            numbers: numbers?,
            prepared: prepared?,
            snapshots,
            strong: strong?,
            deeds: deeds?,
            ddl_rounds: ddl_rounds?,
        })
    }
}

async fn within<T>(what: &str, stopped: impl Future<Output = T>) -> Result<T, String> {
    let stopped = tokio::time::timeout(STOP_WITHIN, stopped).await;
    stopped.map_err(|_| format!("{what} wait for ever"))
}

/// Stops everything and judges.
///
/// # Errors
/// Nobody answers although everything was whole again.
pub(super) async fn report(
    options: &Options,
    stage: Stage,
    whole: Result<(), String>,
) -> anyhow::Result<Report> {
    let Stage {
        clients,
        roles,
        orders,
        mut proxy,
        remote,
        mut cluster,
        disks,
        sites,
        clocks,
        clock,
        struck,
        ended,
        healed,
        ..
    } = stage;
    let end = clock.now();
    let mut checks = vec![Check {
        name: "everything is whole again after each round",
        passed: whole.is_ok(),
        detail: match &whole {
            Ok(()) => format!("{} rounds", healed.len()),
            Err(why) => format!("after {} rounds: {why}", healed.len()),
        },
    }];
    drop((roles, orders));
    let mut report = Report {
        passed: false,
        seed: options.seed,
        flaw: options.flaw,
        heartbeat: options.heartbeat.clone(),
        seconds: end.seconds(),
        epochs: 0,
        counts: Counts::default(),
        outages_ms: Vec::new(),
        checks: Vec::new(),
        struck,
        ended,
        healed_s: healed.iter().map(|took| took.as_secs_f64()).collect(),
        clocks: clocks.is_some(),
        data: None,
    };
    match clients.stop().await {
        Ok(told) => {
            report.counts = counts(&told);
            report.outages_ms = outages(&told.transfers, end);
            let judged = judge(options, (&mut cluster, &remote), &told, &mut report).await;
            match judged {
                Ok(found) => checks.extend(found),
                Err(error) => checks.push(failed("the database answers", format!("{error:#}"))),
            }
        }
        Err(why) => checks.push(failed("clients can finish", why)),
    }
    checks.push(match proxy.check_running() {
        Ok(()) => Check {
            name: "the proxy runs to the end",
            passed: true,
            detail: "and answers".into(),
        },
        Err(error) => failed("the proxy runs to the end", format!("{error:#}")),
    });
    checks.extend(logs(&cluster));
    report.passed = checks.iter().all(|check| check.passed);
    report.checks = checks;
    cluster.shutdown();
    drop((disks, sites, clocks));
    Ok(report)
}

fn failed(name: &'static str, detail: String) -> Check {
    Check {
        name,
        passed: false,
        detail,
    }
}

fn counts(told: &Observations) -> Counts {
    let of = |outcome| told.lists.iter().filter(|t| t.outcome == outcome).count() as u64;
    Counts {
        transfers: told.transfers.count(Outcome::Acknowledged),
        transfers_unknown: told.transfers.count(Outcome::Unknown),
        lists: of(Outcome::Acknowledged),
        lists_unknown: of(Outcome::Unknown),
        lists_refused: of(Outcome::Refused),
        numbers: told.numbers.len() as u64,
        prepared: told.prepared.len() as u64,
        snapshots: told.snapshots.len() as u64,
        strong_reads: told.strong.len() as u64,
        deeds: told.deeds.len() as u64,
        ddl_rounds: told.ddl_rounds,
    }
}

/// The silences of the transfers, longest first, in milliseconds.
fn outages(history: &History, end: Offset) -> Vec<u64> {
    let mut ends: Vec<Offset> = history.commits().map(|commit| commit.ended).collect();
    ends.push(end);
    let silences = ends.windows(2).map(|pair| pair[1].since(pair[0]));
    let mut long: Vec<u64> = silences
        .filter(|silence| *silence > OUTAGE)
        .map(|silence| silence.as_millis() as u64)
        .collect();
    long.sort_unstable_by(|a, b| b.cmp(a));
    long
}

async fn judge(
    options: &Options,
    (cluster, remote): (&mut cluster::Cluster, &Stock),
    told: &Observations,
    report: &mut Report,
) -> anyhow::Result<Vec<Check>> {
    let active = cluster.wait_active(TIMEOUT).await?;
    let server = cluster.server(&active)?;
    let status: Value = serde_json::from_str(&cluster.ask("status").await?)?;
    report.epochs = status["epoch"].as_u64().context("no epoch")?;
    let client = connect(&server.config()).await?;
    let decided = coordinators::sweep(&client, &told.prepared).await?;
    let last = appenders::all(&client).await?;
    let rows = drawers::all(&client).await?;
    let halves = coordinators::all(&client).await?;
    let mut checks = transfers(&server, &told.transfers).await?;
    let strict = lists::check(&told.lists, &last);
    keep(options, "lists.json", &told.lists, &last, strict.is_empty())?;
    checks.push(check(
        "appends are strictly serializable, and none is lost",
        &strict,
        format!("{} transactions", told.lists.len()),
    ));
    let past = readers::check(&told.snapshots, &told.lists, &last, 0);
    checks.push(check(
        "reads on standbys are of the past, in order",
        &past,
        format!("{} snapshots", told.snapshots.len()),
    ));
    let strong = strong::check(&told.strong, &told.lists, &last);
    checks.push(check(
        "strong reads through the proxy miss nothing that anybody was told before",
        &strong,
        format!("{} reads", told.strong.len()),
    ));
    let rows_of_applications = (
        apps::rows(&client).await?,
        apps::remote_rows(&remote.server()).await?,
    );
    checks.push(check(
        "applications through the proxy are told the truth, and see no other tenant",
        &applications::check(
            &told.deeds,
            &rows_of_applications.0,
            &rows_of_applications.1,
        ),
        format!("{} deeds", told.deeds.len()),
    ));
    checks.push(check(
        "numbers of a sequence are given once, in order",
        &numbers::check(&told.numbers, &rows),
        format!("{} numbers", told.numbers.len()),
    ));
    let mut two_phase = prepared::check(&told.prepared, &halves);
    two_phase.extend(
        decided
            .iter()
            .map(|id| prepared::Anomaly::Undone { id: *id }),
    );
    checks.push(check(
        "prepared transactions end as was decided",
        &two_phase,
        format!("{} transactions", told.prepared.len()),
    ));
    checks.push(verify::amcheck(&cluster.options().bin, &server).await?);
    checks.extend(verify::visibility(&server).await?);
    Ok(checks)
}

async fn transfers(server: &Server, history: &History) -> anyhow::Result<Vec<Check>> {
    Ok(verify::database(server, history).await?.1)
}

/// Anomalies as a check.
fn check<A: Serialize>(name: &'static str, anomalies: &[A], sound: String) -> Check {
    let told = anomalies.iter().take(TOLD);
    let told: Vec<String> = told
        .filter_map(|anomaly| serde_json::to_string(anomaly).ok())
        .collect();
    Check {
        name,
        passed: anomalies.is_empty(),
        detail: match anomalies.len() {
            0 => sound,
            count => format!("{count} anomalies in {sound}: {}", told.join(" ")),
        },
    }
}

/// Leaves the history of the lists in the directory, if there is something to be looked for.
fn keep(
    options: &Options,
    file: &str,
    transactions: &[Transaction],
    last: &Lists,
    sound: bool,
) -> anyhow::Result<()> {
    if sound {
        return Ok(());
    }
    let path = options.dir.join(file);
    let text = serde_json::to_string(&(transactions, last))?;
    std::fs::write(&path, text).with_context(|| format!("cannot write {}", path.display()))
}

/// What is in the logs of a cluster only if something is wrong with it.
fn logs(cluster: &cluster::Cluster) -> Vec<Check> {
    let panics = cluster.agent_log_lines("panicked at");
    let lost = cluster.agent_log_lines("no zone has an intact copy");
    let fenced = |line: &str| FENCED.iter().any(|word| line.contains(word));
    let corrupt = cluster.unexpected_log_lines(|_, line| {
        fenced(line) || !CORRUPTION.iter().any(|word| line.contains(word))
    });
    let corrupt: Vec<String> = corrupt
        .into_iter()
        .filter(|line| !line.contains("panicked at"))
        .collect();
    [
        ("no agent and no zone panicked", panics),
        ("no block is damaged everywhere", lost),
        ("PostgreSQL reads what it wrote", corrupt),
    ]
    .map(|(name, lines)| Check {
        name,
        passed: lines.is_empty(),
        detail: match lines.first() {
            Some(first) => format!("{} lines, for example {first}", lines.len()),
            None => "no line of a log says otherwise".into(),
        },
    })
    .to_vec()
}
