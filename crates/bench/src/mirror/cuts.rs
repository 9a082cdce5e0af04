//! Two primaries, tried in every way in which the network can be cut between managers, zones and members, with real
//! processes in network namespaces of their own.
//!
//! ```text
//!   member-north ── north ──────── south ── member-south      a cut: some of these lines, in one direction or both
//!                      └── zones ────┘                        clients reach both managers all the time
//! ```
//!
//! Invariant: each manager has clients of its own, so that whoever acknowledges is heard. Judged is what they were told: the
//! epochs of commits never go back, no read is older than a commit that was acknowledged before it began, and in the end
//! each commit is there once on both members.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, ensure};
use cluster::clients::session::connect;
use cluster::mirror::{Mirror, NAMES, Options as MirrorOptions, member_name};
use cluster::sites::Sites;
use cluster::wan::Quality;
use parking_lot::Mutex;
use serde::Serialize;
use tokio::task::JoinHandle;
use tokio_postgres::{Client, Config, SimpleQueryMessage};

use super::{Options, WITHIN};

/// Results of cutting the network.
#[derive(Debug, Clone, Default, Serialize)]
pub struct Cuts {
    /// How often the network was cut.
    pub cuts: u32,
    /// Of them those after which another manager was primary.
    pub takeovers: u32,
    /// Commits that clients were told of.
    pub acknowledged: u64,
    /// Commits without an answer, or that failed.
    pub unknown: u64,
    /// Reads that were answered.
    pub reads: u64,
    /// Commits of an epoch that were acknowledged after commits of a later one.
    pub primaries_at_once: u64,
    /// Reads that lacked a commit that was acknowledged before.
    pub old_reads: u64,
    /// Acknowledged commits that are missing on a member.
    pub lost: u64,
    /// Commits that are there more often than once.
    pub applied_twice: u64,
    /// Times that the members were not equal.
    pub different: u64,
}

/// Clients of each manager that write, each a row of its own.
const WRITERS: usize = 2;
/// How long a cut lasts: longer than the timeout and the lease together.
const LASTS: Duration = Duration::from_secs(4);
/// Each client rests so long between two transactions.
const REST: Duration = Duration::from_millis(4);
/// A client gives up after this, and connects again.
const ANSWERS_WITHIN: Duration = Duration::from_secs(3);

/// The lines that are cut, each between places of two kinds.
const LINES: [(&str, &str); 5] = [
    ("north", "south"),
    ("north", "zone"),
    ("south", "zone"),
    ("north", "member-north"),
    ("south", "member-south"),
];

/// Packets of which direction are lost.
#[derive(Debug, Clone, Copy)]
enum Direction {
    Both,
    There,
    Back,
}

/// A commit that was acknowledged.
#[derive(Debug, Clone, Copy)]
struct Commit {
    row: usize,
    value: i64,
    epoch: Option<u32>,
    began: Instant,
    ended: Instant,
}

/// Outcomes of all clients' requests.
#[derive(Debug, Default)]
struct ClientOutcomes {
    commits: Mutex<Vec<Commit>>,
    /// The last value of each row that was acknowledged.
    last: Mutex<Vec<i64>>,
    unknown: AtomicU64,
    reads: AtomicU64,
    old_reads: AtomicU64,
    ends: AtomicBool,
}

/// Every set of lines, in both directions and in one.
fn all() -> Vec<(u32, Direction)> {
    let directions = [Direction::Both, Direction::There, Direction::Back];
    let sets = 1..1_u32 << LINES.len();
    directions
        .into_iter()
        .flat_map(|direction| sets.clone().map(move |set| (set, direction)))
        .collect()
}

fn zones() -> impl Iterator<Item = String> {
    (1..=3).map(|number| format!("zone-{number}"))
}

pub(super) async fn measure(options: &Options, say: &impl Fn(&str)) -> anyhow::Result<Cuts> {
    let dir = options.dir.join("cuts");
    std::fs::create_dir(&dir)?;
    let places: Vec<String> = zones()
        .chain(NAMES.map(str::to_owned))
        .chain([member_name(0), member_name(1)])
        .collect();
    let sites = Arc::new(Sites::apart(&places, |_, _| Duration::ZERO)?);
    let mut settings = MirrorOptions::new(&dir, &options.bin, &options.understudy);
    settings.sites = Some(sites.clone());
    settings.settings = ["timeout = \"1s\"", "lease = \"500ms\""]
        .map(str::to_owned)
        .to_vec();
    let mut mirror = Mirror::prepare(settings).await?;
    let rows = WRITERS * NAMES.len();
    connect(&mirror.member(0).config())
        .await?
        .batch_execute(&format!(
            "CREATE TABLE counters (id int PRIMARY KEY, n bigint NOT NULL);
             INSERT INTO counters SELECT id, 0 FROM generate_series(0, {rows} - 1) id"
        ))
        .await?;
    mirror.start(WITHIN).await?;
    let told = Arc::new(ClientOutcomes::default());
    *told.last.lock() = vec![0; rows];
    let clients = start_clients(&mirror, &told);
    let mut cuts = Cuts::default();
    let chosen = all().into_iter().skip(options.first_cut as usize);
    for (set, direction) in chosen.take(options.cuts as usize) {
        let primary = mirror.wait_primary(WITHIN).await?;
        cut(&sites, set, direction, 1000)?;
        tokio::time::sleep(LASTS).await;
        cut(&sites, set, direction, 0)?;
        mirror.settle(WITHIN).await?;
        let next = mirror.wait_primary(WITHIN).await?;
        cuts.cuts += 1;
        cuts.takeovers += u32::from(next != primary);
        let equal = verify(&mirror).await?;
        cuts.different += u64::from(!equal);
        let count = told.commits.lock().len();
        let lines: Vec<String> = lines(set).map(|(a, b)| format!("{a}-{b}")).collect();
        say(&format!(
            "{} {direction:?}: {} was primary, {} is; {count} commits so far, members {}",
            lines.join(" "),
            NAMES[primary],
            NAMES[next],
            if equal { "equal" } else { "DIFFERENT" }
        ));
    }
    told.ends.store(true, Ordering::Relaxed);
    for client in clients {
        client.await?;
    }
    mirror.settle(WITHIN).await?;
    cuts.different += u64::from(!verify(&mirror).await?);
    judge(&mirror, &told, &mut cuts).await?;
    tokio::task::block_in_place(|| mirror.shutdown());
    say(&format!("{cuts:?}"));
    let broken = [
        cuts.primaries_at_once,
        cuts.old_reads,
        cuts.lost,
        cuts.applied_twice,
        cuts.different,
    ];
    ensure!(broken == [0; 5], "a promise is broken: {cuts:?}");
    Ok(cuts)
}

fn lines(set: u32) -> impl Iterator<Item = (&'static str, &'static str)> {
    let lines = LINES.into_iter().enumerate();
    lines.filter_map(move |(at, line)| (set >> at & 1 == 1).then_some(line))
}

/// Loses so many in a thousand packets of the chosen lines.
fn cut(sites: &Sites, set: u32, direction: Direction, loss_permille: u16) -> anyhow::Result<()> {
    let quality = Quality {
        delay: Duration::ZERO,
        loss_permille,
    };
    for (one, other) in lines(set) {
        let others = match other {
            "zone" => zones().collect(),
            other => vec![other.to_owned()],
        };
        for other in others {
            if !matches!(direction, Direction::Back) {
                sites.set_line(Some(one), Some(&other), quality)?;
            }
            if !matches!(direction, Direction::There) {
                sites.set_line(Some(&other), Some(one), quality)?;
            }
        }
    }
    Ok(())
}

async fn verify(mirror: &Mirror) -> anyhow::Result<bool> {
    let deadline = Instant::now() + WITHIN;
    loop {
        if let Some(verdict) = mirror.verdict().await? {
            return Ok(verdict["equal"] == true);
        }
        ensure!(Instant::now() < deadline, "the members cannot be compared");
        tokio::time::sleep(Duration::from_millis(200)).await;
    }
}

/// Writers and a reader for each manager.
fn start_clients(mirror: &Mirror, told: &Arc<ClientOutcomes>) -> Vec<JoinHandle<()>> {
    let mut clients = Vec::new();
    for at in 0..NAMES.len() {
        let config = mirror.server(at).config();
        for row in at * WRITERS..(at + 1) * WRITERS {
            clients.push(tokio::spawn(write(config.clone(), row, told.clone())));
        }
        clients.push(tokio::spawn(read(config, told.clone())));
    }
    clients
}

async fn open(config: &Config) -> Option<Client> {
    let opened = tokio::time::timeout(ANSWERS_WITHIN, connect(config)).await;
    let client = opened.ok().and_then(Result::ok);
    if client.is_none() {
        tokio::time::sleep(REST * 10).await;
    }
    client
}

/// The first column of the first row, if all went well in time.
async fn ask(client: &Client, text: &str) -> Option<Vec<(String, String)>> {
    let asked = tokio::time::timeout(ANSWERS_WITHIN, client.simple_query(text)).await;
    let rows = asked
        .ok()?
        .ok()?
        .into_iter()
        .filter_map(|message| match message {
            SimpleQueryMessage::Row(row) => {
                let column = |at: usize| (at < row.len()).then(|| row.get(at).unwrap_or_default());
                let (one, other) = (column(0).unwrap_or_default(), column(1).unwrap_or_default());
                Some((one.to_owned(), other.to_owned()))
            }
            _ => None,
        });
    Some(rows.collect())
}

/// Adds one to a row, again and again.
async fn write(config: Config, row: usize, told: Arc<ClientOutcomes>) {
    let text = format!("UPDATE counters SET n = n + 1 WHERE id = {row} RETURNING n");
    while !told.ends.load(Ordering::Relaxed) {
        let Some(client) = open(&config).await else {
            continue;
        };
        while !told.ends.load(Ordering::Relaxed) {
            let began = Instant::now();
            let answer = ask(&client, &text).await;
            let value = answer.as_deref().and_then(<[_]>::first);
            let Some(value) = value.and_then(|(value, _)| value.parse().ok()) else {
                told.unknown.fetch_add(1, Ordering::Relaxed);
                break;
            };
            let ended = Instant::now();
            told.last.lock()[row] = value;
            let token = ask(&client, "SHOW understudy.transaction").await;
            let epoch = token.as_deref().and_then(<[_]>::first);
            let epoch = epoch.and_then(|(token, _)| token.split_once('-')?.0.parse().ok());
            told.commits.lock().push(Commit {
                row,
                value,
                epoch,
                began,
                ended,
            });
            if epoch.is_none() {
                break;
            }
            tokio::time::sleep(REST).await;
        }
    }
}

/// Reads all rows, again and again.
async fn read(config: Config, told: Arc<ClientOutcomes>) {
    while !told.ends.load(Ordering::Relaxed) {
        let Some(client) = open(&config).await else {
            continue;
        };
        while !told.ends.load(Ordering::Relaxed) {
            let before = told.last.lock().clone();
            let Some(rows) = ask(&client, "SELECT id, n FROM counters ORDER BY id").await else {
                break;
            };
            told.reads.fetch_add(1, Ordering::Relaxed);
            let values = rows.iter().map(|(_, n)| n.parse::<i64>().unwrap_or(-1));
            if before.iter().zip(values).any(|(before, now)| now < *before) {
                told.old_reads.fetch_add(1, Ordering::Relaxed);
            }
            tokio::time::sleep(REST).await;
        }
    }
}

/// How many commits came after one of a later epoch had been acknowledged.
fn set_back(commits: &[Commit]) -> u64 {
    let mut by_end: Vec<&Commit> = commits.iter().collect();
    by_end.sort_by_key(|commit| commit.ended);
    let mut by_beginning = by_end.clone();
    by_beginning.sort_by_key(|commit| commit.began);
    let (mut ended, mut highest, mut count) = (by_end.into_iter().peekable(), 0, 0);
    for commit in by_beginning {
        while let Some(before) = ended.next_if(|before| before.ended <= commit.began) {
            highest = highest.max(before.epoch.unwrap_or(0));
        }
        count += u64::from(commit.epoch.is_some_and(|epoch| epoch < highest));
    }
    count
}

/// Holds what clients were told against both members.
async fn judge(mirror: &Mirror, told: &ClientOutcomes, cuts: &mut Cuts) -> anyhow::Result<()> {
    let commits = told.commits.lock().clone();
    cuts.acknowledged = commits.len() as u64;
    cuts.unknown = told.unknown.load(Ordering::Relaxed);
    cuts.reads = told.reads.load(Ordering::Relaxed);
    cuts.old_reads = told.old_reads.load(Ordering::Relaxed);
    cuts.primaries_at_once = set_back(&commits);
    for at in 0..NAMES.len() {
        let client = connect(&mirror.member(at).config()).await?;
        for row in client.query("SELECT id, n FROM counters", &[]).await? {
            let (id, n): (i32, i64) = (row.get(0), row.get(1));
            let own = commits.iter().filter(|commit| commit.row == id as usize);
            let last = own.clone().map(|commit| commit.value).max().unwrap_or(0);
            let count = i64::try_from(own.count()).context("a count")?;
            cuts.lost += u64::from(n < last.max(count));
            // What failed may have committed.
            let most = count + i64::try_from(cuts.unknown).context("a count")?;
            cuts.applied_twice += u64::from(n > most);
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_line_is_cut_in_each_direction() {
        let all = all();
        assert_eq!(all.len(), 93);
        for (one, other) in LINES {
            let has = |set: u32| lines(set).any(|line| line == (one, other));
            assert_eq!(all.iter().filter(|(set, _)| has(*set)).count(), 48);
        }
    }

    #[test]
    fn a_primary_that_comes_after_its_successor_is_found() {
        let zero = Instant::now();
        let commit = |epoch: u32, began: u64, ended: u64| Commit {
            row: 0,
            value: 0,
            epoch: Some(epoch),
            began: zero + Duration::from_millis(began),
            ended: zero + Duration::from_millis(ended),
        };
        assert_eq!(set_back(&[commit(1, 0, 10), commit(2, 11, 12)]), 0);
        // It was under way when the later one was acknowledged.
        assert_eq!(set_back(&[commit(1, 0, 20), commit(2, 11, 12)]), 0);
        assert_eq!(set_back(&[commit(2, 0, 5), commit(1, 6, 7)]), 1);
    }
}
