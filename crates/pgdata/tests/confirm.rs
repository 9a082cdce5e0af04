//! The agent as the synchronous standby of a stock PostgreSQL: commits wait for what it confirms.

#![allow(clippy::unwrap_used)] // in helpers, too

mod common;

use std::sync::Arc;
use std::time::Duration;

use common::Cluster;
use pgdata::confirm::{CONFIRMS, ConfirmError, Confirmable, Place, Refusal, confirm_log};
use pgdata::feed::RowsNeeded;
use pgdata::parse_lsn;
use pgdata::sealer::SyncedLog;
use pgdata::settings;
use pgdata::timeline::TimelineId;
use tokio::sync::{oneshot, watch};
use tokio::task::JoinHandle;
use volume::lsn::Lsn;

/// The agent's connection, and what it goes by.
struct Agent {
    synced: watch::Sender<SyncedLog>,
    _held: watch::Sender<bool>,
    at_most: watch::Sender<Option<Lsn>>,
    needed: watch::Sender<RowsNeeded>,
    ended: JoinHandle<Result<(), ConfirmError>>,
}

impl Agent {
    async fn connect(cluster: &Cluster) -> Agent {
        let (agent, streams) = Agent::begin(cluster);
        streams.await.unwrap();
        agent
    }

    /// Why the server does not let it confirm.
    async fn refused(cluster: &Cluster) -> Refusal {
        let (mut agent, streams) = Agent::begin(cluster);
        tokio::select! {
            ended = &mut agent.ended => ended.unwrap().unwrap_err().refusal(),
            Ok(()) = streams => {
                agent.ended.abort();
                Refusal::None
            }
        }
    }

    /// One that has yet to be let in, and what tells that it is.
    fn begin(cluster: &Cluster) -> (Agent, oneshot::Receiver<()>) {
        let start = SyncedLog {
            end: Lsn(0),
            timeline: TimelineId::FIRST,
        };
        let (synced, held) = (watch::Sender::new(start), watch::Sender::new(false));
        let (at_most, needed) = (watch::Sender::default(), watch::Sender::default());
        let mut confirmable = Confirmable {
            synced: synced.subscribe(),
            held: held.subscribe(),
            at_most: at_most.subscribe(),
            needed: needed.subscribe(),
        };
        let (streaming, streams) = oneshot::channel();
        let socket = cluster.socket();
        let ended = tokio::spawn(async move {
            confirm_log(&socket, "postgres", &mut confirmable, streaming).await
        });
        let agent = Agent {
            synced,
            _held: held,
            at_most,
            needed,
            ended,
        };
        (agent, streams)
    }

    fn confirm(&self, end: Lsn) {
        let timeline = TimelineId::FIRST;
        self.synced.send_replace(SyncedLog { end, timeline });
    }
}

fn running(port: u16, configuration: &str) -> Arc<Cluster> {
    let cluster = Cluster::init(port, 1, configuration);
    cluster.start(&settings::arguments(&settings::ordered()));
    Arc::new(cluster)
}

async fn ask(cluster: &Arc<Cluster>, statements: &'static [&'static str]) -> String {
    let cluster = Arc::clone(cluster);
    let asked = tokio::task::spawn_blocking(move || cluster.sql(statements));
    asked.await.unwrap()
}

/// Waits until a query answers so.
async fn until(cluster: &Arc<Cluster>, query: &'static [&'static str], answer: &str) {
    let wait = async {
        while ask(cluster, query).await != answer {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    tokio::time::timeout(Duration::from_secs(60), wait)
        .await
        .unwrap_or_else(|_| panic!("{query:?} never answers {answer}"));
}

/// How many commits wait.
const WAITING: &[&str] = &["SELECT count(*) FROM pg_stat_activity WHERE wait_event = 'SyncRep'"];
const END: &[&str] = &["SELECT pg_current_wal_insert_lsn()"];

async fn end(cluster: &Arc<Cluster>) -> Lsn {
    parse_lsn(&ask(cluster, END).await).unwrap()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_commit_waits_for_its_own_position_and_no_other() {
    let cluster = running(54041, "autovacuum = off");
    let agent = Agent::connect(&cluster).await;
    agent.confirm(end(&cluster).await);
    let creates = tokio::spawn({
        let cluster = Arc::clone(&cluster);
        async move { ask(&cluster, &["CREATE TABLE t (n int)"]).await }
    });
    until(&cluster, WAITING, "1").await;
    let first = end(&cluster).await;
    let inserts = tokio::spawn({
        let cluster = Arc::clone(&cluster);
        async move {
            ask(
                &cluster,
                &["SELECT pg_logical_emit_message(true, 'x', 'y')"],
            )
            .await
        }
    });
    until(&cluster, WAITING, "2").await;
    // What is not confirmed is not to be seen.
    let seen: &[&str] = &["SELECT count(*) FROM pg_class WHERE relname = 't'"];
    assert_eq!(ask(&cluster, seen).await, "0");
    agent.confirm(first);
    creates.await.unwrap();
    assert_eq!(ask(&cluster, seen).await, "1");
    assert_eq!(ask(&cluster, WAITING).await, "1");
    // Held back, nothing more is confirmed.
    agent.at_most.send_replace(Some(first));
    agent.confirm(end(&cluster).await);
    tokio::time::sleep(Duration::from_millis(100)).await;
    assert_eq!(ask(&cluster, WAITING).await, "1");
    agent.at_most.send_replace(None);
    inserts.await.unwrap();

    let name: &[&str] = &["SELECT application_name, sync_state FROM pg_stat_replication"];
    assert_eq!(ask(&cluster, name).await, format!("{CONFIRMS}|sync"));
    agent.needed.send_replace(RowsNeeded {
        xmin: 700,
        ..RowsNeeded::default()
    });
    let keeps: &[&str] = &["SELECT backend_xmin IS NOT NULL FROM pg_stat_replication"];
    until(&cluster, keeps, "t").await;
}

// hazard: ORDER-8
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn holder_of_all_places_is_alone() {
    let cluster = running(54042, "max_wal_senders = 3\nidle_session_timeout = 200ms");
    let agent = Agent::connect(&cluster).await;
    let socket = cluster.socket();
    let options = "-c idle_session_timeout=0";
    let mut places = Vec::new();
    for _ in 0..2 {
        places.push(Place::take(&socket, "postgres", options).await.unwrap());
    }
    let refused = Place::take(&socket, "postgres", options).await.unwrap_err();
    assert!(refused.to_string().contains("max_wal_senders"), "{refused}");
    assert_eq!(refused.refusal(), Refusal::Crowded);
    let lost = tokio::time::timeout(Duration::from_secs(1), places[0].lost());
    assert!(lost.await.is_err(), "it stays, although it is idle");
    agent.confirm(Lsn(u64::MAX));
    let terminated: &[&str] = &[
        "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = 'understudy_place' \
         ORDER BY pid LIMIT 1",
    ];
    ask(&cluster, terminated).await;
    let (one, other) = places.split_at_mut(1);
    let lost = async {
        tokio::select! {
            () = one[0].lost() => {}
            () = other[0].lost() => {}
        }
    };
    let lost = tokio::time::timeout(Duration::from_secs(10), lost);
    lost.await.unwrap();
    for place in places {
        place.leave().await;
    }
}

/// Where the log of a server ends that has made its last checkpoint, as pg_waldump says of what follows `start`.
async fn end_behind_the_last_checkpoint(cluster: &Cluster, start: Lsn) -> Lsn {
    let (wal, start) = (cluster.wal(), start.to_string());
    let look = async {
        loop {
            let said = std::process::Command::new(common::bin().join("pg_waldump"))
                .args(["--path", common::text(&wal), "--start", &start])
                .output()
                .unwrap();
            let records = String::from_utf8_lossy(&said.stdout).into_owned();
            let behind = String::from_utf8_lossy(&said.stderr).into_owned();
            let end = behind.split("invalid record length at ").nth(1);
            let end = end.and_then(|rest| rest.split(':').next());
            if records.contains("CHECKPOINT_SHUTDOWN")
                && let Some(end) = end
            {
                return parse_lsn(end).unwrap();
            }
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    };
    let found = tokio::time::timeout(Duration::from_secs(60), look).await;
    found.expect("it makes its last checkpoint")
}

/// The connection stays until the server ends it, and a server that stops waits until all of its log is confirmed.
// hazard: ORDER-15
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_that_stops_is_confirmed_to_its_end() {
    let cluster = running(54043, "autovacuum = off");
    let agent = Agent::connect(&cluster).await;
    let start = end(&cluster).await;
    agent.confirm(start);
    let stopping = Arc::clone(&cluster);
    let stops = tokio::task::spawn_blocking(move || stopping.stop("fast"));
    let end = end_behind_the_last_checkpoint(&cluster, start).await;
    tokio::time::sleep(Duration::from_millis(200)).await;
    assert!(!stops.is_finished(), "its last checkpoint is not confirmed");
    assert!(!agent.ended.is_finished());
    // Exactly all that there is: it would wait on for anything else.
    agent.confirm(end);
    stops.await.unwrap();
    assert!(agent.ended.await.unwrap().is_err(), "the server ended it");
}

/// With a commit whose wait is cancelled the client gets a success, behind a warning. A timeout does not cancel it:
/// PostgreSQL has disabled it by then.
// hazard: ORDER-10
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_cancelled_wait_is_a_warning() {
    let cluster = running(54044, "autovacuum = off");
    let agent = Agent::connect(&cluster).await;
    agent.confirm(end(&cluster).await);
    let waits = tokio::spawn({
        let cluster = Arc::clone(&cluster);
        let commits: &[&str] = &[
            "SET statement_timeout = 300",
            "SELECT pg_logical_emit_message(true, 'x', 'y') IS NULL",
        ];
        async move { ask(&cluster, commits).await }
    });
    until(&cluster, WAITING, "1").await;
    tokio::time::sleep(Duration::from_secs(1)).await;
    assert!(!waits.is_finished(), "the timeout is not that of a commit");
    let cancel: &[&str] =
        &["SELECT pg_cancel_backend(pid) FROM pg_stat_activity WHERE wait_event = 'SyncRep'"];
    assert_eq!(ask(&cluster, cancel).await, "t");
    assert_eq!(waits.await.unwrap(), "f");
    let log = cluster.log();
    assert!(
        log.contains("canceling wait for synchronous replication due to user request"),
        "{log}"
    );
}

/// By what it is told the agent gives up a place, gives up the server, or only tries again.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn refused_confirmer_gets_the_reason() {
    let cluster = running(54045, "max_wal_senders = 1");
    let socket = cluster.socket();
    let place = Place::take(&socket, "postgres", "").await.unwrap();
    assert_eq!(Agent::refused(&cluster).await, Refusal::Crowded);
    place.leave().await;
    let free: &[&str] = &["SELECT count(*) FROM pg_stat_activity WHERE backend_type = 'walsender'"];
    until(&cluster, free, "0").await;
    let agent = Agent::connect(&cluster).await;
    agent.ended.abort();
    let hba = cluster.data().join("pg_hba.conf");
    let rest = std::fs::read_to_string(&hba).unwrap();
    std::fs::write(&hba, format!("local replication all reject\n{rest}")).unwrap();
    ask(&cluster, &["SELECT pg_reload_conf()"]).await;
    let refused = async {
        while Agent::refused(&cluster).await != Refusal::Forbidden {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    let refused = tokio::time::timeout(Duration::from_secs(60), refused);
    refused.await.expect("once it has read its file");
}
