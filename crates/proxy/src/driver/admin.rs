//! The database `understudy`: what the proxy tells of itself, and what an operator tells it, in the words of
//! PgBouncer.

use std::collections::BTreeSet;
use std::error::Error;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use bytes::BytesMut;

use crate::config::Mode;
use crate::core::quota::Group;
use crate::core::session::REASONS;
use crate::core::topology::{News, Place};
use protocol::frame::{self, Refusal};

use super::Proxy;
use super::handle::{KILL, STATES};
use super::socket::Socket;
use super::stats::Sums;
use super::totals::{COUNTS, NOT_REPLAYED};

/// An operator's message cannot be longer.
const MESSAGE_BYTES: usize = 64 << 10;

const HELP: &str = "SHOW POOLS|DATABASES|USERS|CLIENTS|SERVERS|STATS|TOTALS|CLUSTER|CONFIG|VERSION, PAUSE, RESUME, RECONNECT, RELOAD, RESTART, KILL id";

/// Columns of PgBouncer's `SHOW STATS`, without those of what is not counted here. Times are in microseconds, averages those of
/// the last minute.
const STATS: [&str; 17] = [
    "database",
    "total_server_assignment_count",
    "total_xact_count",
    "total_query_count",
    "total_received",
    "total_sent",
    "total_xact_time",
    "total_query_time",
    "total_wait_time",
    "avg_server_assignment_count",
    "avg_xact_count",
    "avg_query_count",
    "avg_recv",
    "avg_sent",
    "avg_xact_time",
    "avg_query_time",
    "avg_wait_time",
];

/// An answer: a table, or a word.
enum Answer {
    Table(&'static [&'static str], Vec<Vec<String>>),
    Done(&'static str),
}

/// Serves an operator until the connection ends.
pub async fn serve(proxy: Arc<Proxy>, mut socket: Socket, mut input: BytesMut, mut out: BytesMut) {
    loop {
        if socket.drain(&mut out).await.is_err() {
            return;
        }
        match frame::take(&mut input, MESSAGE_BYTES) {
            Ok(Some(message)) => match message[0] {
                b'Q' => {
                    // It is answered before the process ends.
                    let _guest = proxy.handover.guest();
                    answer(&proxy, &message, &mut out).await;
                    if socket.drain(&mut out).await.is_err() {
                        return;
                    }
                }
                b'X' => return,
                _ => extended(message[0], &mut out),
            },
            Ok(None) => match socket.read(&mut input).await {
                Ok(read) if read > 0 => {}
                _ => return,
            },
            Err(_) => return,
        }
    }
}

fn extended(tag: u8, out: &mut BytesMut) {
    match tag {
        b'S' => frame::put_ready(out, b'I'),
        b'P' => Refusal::error("0A000", "this database has no extended protocol")
            .hint("Use the simple protocol, as psql does.")
            .put(out),
        _ => {}
    }
}

async fn answer(proxy: &Proxy, message: &[u8], out: &mut BytesMut) {
    let text = frame::name(frame::body(message)).map_or("", |(text, _)| text);
    for statement in text.split(';').map(str::trim).filter(|one| !one.is_empty()) {
        let answered = match statement.eq_ignore_ascii_case("RESTART") {
            true => restart(proxy).await,
            false => execute(proxy, statement),
        };
        match answered {
            Ok(Answer::Table(columns, rows)) => {
                frame::put_table(out, columns, &rows);
                frame::put_complete(out, "SHOW");
            }
            Ok(Answer::Done(word)) => frame::put_complete(out, word),
            Err(refusal) => {
                refusal.put(out);
                break;
            }
        }
    }
    frame::put_ready(out, b'I');
}

fn execute(proxy: &Proxy, statement: &str) -> Result<Answer, Refusal> {
    let words: Vec<String> = statement
        .split_whitespace()
        .map(str::to_ascii_uppercase)
        .collect();
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    match words.as_slice() {
        ["SHOW", "POOLS"] => Ok(pools(proxy)),
        ["SHOW", "DATABASES"] => Ok(databases(proxy)),
        ["SHOW", "USERS"] => Ok(users(proxy)),
        ["SHOW", "CLIENTS"] => Ok(clients(proxy)),
        ["SHOW", "SERVERS"] => Ok(servers(proxy)),
        ["SHOW", "STATS"] => Ok(stats(proxy)),
        ["SHOW", "TOTALS"] => Ok(totals(proxy)),
        ["SHOW", "CLUSTER"] => Ok(cluster(proxy)),
        ["SHOW", "CONFIG"] => Ok(config(proxy)),
        ["SHOW", "VERSION"] => {
            let version = format!("understudy proxy {}", env!("CARGO_PKG_VERSION"));
            Ok(Answer::Table(&["version"], vec![vec![version]]))
        }
        ["SHOW", "HELP"] => Ok(Answer::Table(&["commands"], vec![vec![HELP.to_owned()]])),
        ["PAUSE"] => {
            proxy.cluster.hear(News::Pause);
            Ok(Answer::Done("PAUSE"))
        }
        ["RESUME"] => {
            proxy.cluster.hear(News::Unpause);
            Ok(Answer::Done("RESUME"))
        }
        ["RECONNECT"] => {
            proxy
                .pools
                .lock()
                .values()
                .for_each(|pool| pool.close_idle());
            Ok(Answer::Done("RECONNECT"))
        }
        ["RELOAD"] => reload(proxy),
        ["KILL", id] => kill(proxy, id),
        _ => Err(Refusal::error(
            "42601",
            format!("\"{statement}\" is no command of the proxy"),
        )
        .hint(format!("Commands: {HELP}."))),
    }
}

fn reload(proxy: &Proxy) -> Result<Answer, Refusal> {
    let waits = proxy.reload().map_err(|error| {
        let why = error.source().map_or_else(String::new, ToString::to_string);
        Refusal::error("F0000", error.to_string()).detail(why)
    })?;
    if waits.is_empty() {
        return Ok(Answer::Done("RELOAD"));
    }
    let rows = waits.iter().map(|key| vec![(*key).to_owned()]);
    Ok(Answer::Table(&["waits for the next start"], rows.collect()))
}

async fn restart(proxy: &Proxy) -> Result<Answer, Refusal> {
    let restarted = proxy.restart().await;
    restarted
        .map(|()| Answer::Done("RESTART"))
        .map_err(|error| {
            let why = error.source().map_or_else(String::new, ToString::to_string);
            Refusal::error("55000", error.to_string()).detail(why)
        })
}

fn kill(proxy: &Proxy, id: &str) -> Result<Answer, Refusal> {
    let all = proxy.handles.all();
    let found = all.iter().find(|handle| handle.id.to_string() == id);
    let handle =
        found.ok_or_else(|| Refusal::error("22023", format!("there is no client {id}")))?;
    handle.poke(KILL);
    Ok(Answer::Done("KILL"))
}

fn pools(proxy: &Proxy) -> Answer {
    let columns = &[
        "database",
        "user",
        "server",
        "sv_active",
        "sv_idle",
        "cl_waiting",
        "maxwait",
        "pool_mode",
    ];
    let mut rows = Vec::new();
    for pool in proxy.pools.lock().values() {
        let login = pool.login();
        for shown in pool.show() {
            let (used, idle) = (shown.used.to_string(), shown.idle.to_string());
            let waiting = pool.waiting().to_string();
            let longest = seconds(pool.longest_wait());
            let place = shown.place.name().to_owned();
            let (user, database) = (login.user.clone(), login.name.clone());
            rows.push(vec![
                database,
                user,
                place,
                used,
                idle,
                waiting,
                longest,
                mode(login.mode),
            ]);
        }
    }
    rows.sort();
    Answer::Table(columns, rows)
}

fn databases(proxy: &Proxy) -> Answer {
    let columns = &[
        "name",
        "server",
        "max_connections",
        "current_connections",
        "database",
        "pool_size",
        "pool_mode",
    ];
    let settings = proxy.settings();
    let config = &settings.config;
    let pools = proxy.pools.lock();
    let names = pools.values().map(|pool| pool.login().name);
    let names = names.chain(config.databases.keys().cloned());
    shared(proxy, columns, names, Group::Database, |name| {
        // No user has a name without letters: what counts is what the database says.
        let size = config.size_of(name, "").to_string();
        let mode = mode(config.mode_of(name, ""));
        vec![config.dbname(name).to_owned(), size, mode]
    })
}

fn users(proxy: &Proxy) -> Answer {
    let columns = &[
        "name",
        "server",
        "max_user_connections",
        "current_connections",
        "pool_size",
        "pool_mode",
    ];
    let settings = proxy.settings();
    let users = &settings.config.users;
    let pools = proxy.pools.lock();
    let names = pools.values().map(|pool| pool.login().user);
    let names = names.chain(users.keys().cloned());
    shared(proxy, columns, names, Group::User, |name| {
        let own = users.get(name);
        let size = own.and_then(|own| own.pool_size);
        let mode = own.and_then(|own| own.pool_mode).map(mode);
        let size = size.map_or_else(String::new, |size| size.to_string());
        vec![size, mode.unwrap_or_default()]
    })
}

/// Connections that count for the limits of several pools.
fn shared(
    proxy: &Proxy,
    columns: &'static [&'static str],
    names: impl Iterator<Item = String>,
    group: impl Fn(Arc<str>) -> Group,
    more: impl Fn(&str) -> Vec<String>,
) -> Answer {
    let names: BTreeSet<String> = names.collect();
    let mut rows = Vec::new();
    for name in names {
        let (most, mut open) = proxy.quotas.show(&group(name.as_str().into()));
        open.entry(Place::Active).or_default();
        for (server, count) in open {
            let counts = [most, count].map(|count| count.to_string());
            let row = [name.clone(), server.name().to_owned()]
                .into_iter()
                .chain(counts);
            rows.push(row.chain(more(&name)).collect());
        }
    }
    Answer::Table(columns, rows)
}

fn mode(mode: Mode) -> String {
    format!("{mode:?}").to_lowercase()
}

fn clients(proxy: &Proxy) -> Answer {
    let columns = &[
        "id",
        "user",
        "database",
        "addr",
        "state",
        "connect_time",
        "units",
    ];
    let row = |handle: &Arc<super::handle::Handle>| {
        let state = handle.state.load(Ordering::Relaxed) as usize;
        vec![
            handle.id.to_string(),
            handle.user.clone(),
            handle.database.clone(),
            handle
                .peer
                .map_or_else(|| "unix".to_owned(), |peer| peer.to_string()),
            STATES.get(state).copied().unwrap_or("").to_owned(),
            format!("{}s", handle.since.elapsed().as_secs()),
            handle.batches.load(Ordering::Relaxed).to_string(),
        ]
    };
    Answer::Table(columns, proxy.handles.all().iter().map(row).collect())
}

fn servers(proxy: &Proxy) -> Answer {
    let topology = proxy.cluster.topology();
    let mut rows = Vec::new();
    if let Some(active) = &topology.active {
        rows.push(vec!["active".to_owned(), active.to_string(), String::new()]);
    }
    for standby in &topology.standbys {
        let role = if standby.is_spare { "spare" } else { "standby" };
        let replayed = standby.replayed.to_string();
        rows.push(vec![
            format!("{role} {}", standby.name),
            standby.address.to_string(),
            replayed,
        ]);
    }
    Answer::Table(&["server", "address", "replayed"], rows)
}

fn stats(proxy: &Proxy) -> Answer {
    let all = proxy.stats.by_database().into_iter();
    let rows = all.map(|(database, sums, averages)| {
        let of = |sums: Sums| sums.counts.into_iter().chain(sums.times);
        let numbers = of(sums).chain(of(averages)).map(|one| one.to_string());
        std::iter::once(database).chain(numbers).collect()
    });
    Answer::Table(&STATS, rows.collect())
}

fn totals(proxy: &Proxy) -> Answer {
    let counts = COUNTS.iter().zip(proxy.totals.read());
    let counts = counts.map(|((name, _), value)| ((*name).to_owned(), value));
    let reasons = REASONS.iter().zip(proxy.totals.not_replayed());
    let reasons =
        reasons.map(|(why, value)| (format!("{}.{}", NOT_REPLAYED.0, why.label()), value));
    let rows = counts.chain(reasons);
    let rows = rows.map(|(name, value)| vec![name, value.to_string()]);
    Answer::Table(&["name", "value"], rows.collect())
}

fn cluster(proxy: &Proxy) -> Answer {
    let topology = proxy.cluster.topology();
    let horizon = |(epoch, horizon): (&dax::ids::Epoch, &Option<_>)| {
        let horizon: &Option<crate::core::outcome::Horizon> = horizon;
        vec![
            epoch.0.to_string(),
            horizon.map_or_else(|| "unknown".to_owned(), |horizon| horizon.0.to_string()),
            if *epoch == topology.epoch {
                "now".to_owned()
            } else {
                String::new()
            },
        ]
    };
    Answer::Table(
        &["epoch", "horizon", "state"],
        topology.horizons.iter().map(horizon).collect(),
    )
}

fn config(proxy: &Proxy) -> Answer {
    let settings = proxy.settings();
    let config = &settings.config;
    let pairs = [
        ("listen", config.listen.to_string()),
        ("pool_mode", mode(config.pool_mode)),
        ("pool_size", config.pool_size.to_string()),
        ("max_db_connections", config.max_db_connections.to_string()),
        (
            "max_user_connections",
            config.max_user_connections.to_string(),
        ),
        ("max_clients", config.max_clients.to_string()),
        ("query_timeout", seconds(config.query_timeout)),
        (
            "idle_transaction_timeout",
            seconds(config.idle_transaction_timeout),
        ),
        ("client_idle_timeout", seconds(config.client_idle_timeout)),
        ("server_idle_timeout", seconds(config.server_idle_timeout)),
        ("server_lifetime", seconds(config.server_lifetime)),
        ("server_tls.mode", config.server_tls.mode.name().to_owned()),
        ("reads.mode", config.reads.mode.clone()),
        (
            "takeover.replay_transactions",
            config.takeover.replay_transactions.to_string(),
        ),
        (
            "takeover.resolve_in_doubt_commits",
            config.takeover.resolve_in_doubt_commits.to_string(),
        ),
    ];
    let rows = pairs.map(|(key, value)| vec![key.to_owned(), value]);
    Answer::Table(&["key", "value"], rows.into())
}

fn seconds(time: std::time::Duration) -> String {
    format!("{}s", time.as_secs_f64())
}
