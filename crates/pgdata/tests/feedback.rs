//! A standby's feedback connection at a stock PostgreSQL.

#![allow(clippy::unwrap_used)] // in helpers, too

mod common;

use std::sync::Arc;
use std::time::Duration;

use common::Cluster;
use pgdata::feed::RowsNeeded;
use pgdata::feedback::{FeedbackError, Report, report_feedback};
use pgdata::parse_lsn;
use tokio::sync::watch;
use tokio::task::JoinHandle;
use volume::lsn::Lsn;

/// A feedback connection named `south`, and what it reports.
struct Feedback {
    reports: watch::Sender<Report>,
    ended: JoinHandle<Result<(), FeedbackError>>,
}

impl Feedback {
    fn start(cluster: &Cluster, xmin: u32) -> Feedback {
        let (reports, mut reported) = watch::channel(report(xmin, Lsn(0)));
        let socket = cluster.socket();
        let ended = tokio::spawn(async move {
            report_feedback(&socket, "postgres", "south", &mut reported).await
        });
        Feedback { reports, ended }
    }
}

fn report(xmin: u32, at: Lsn) -> Report {
    Report {
        received: at,
        applied: at,
        needed: RowsNeeded {
            xmin,
            ..RowsNeeded::default()
        },
    }
}

/// Waits until a query answers so.
async fn until(cluster: &Arc<Cluster>, query: &'static str, answer: &str) {
    let wait = async {
        loop {
            let asked = cluster.clone();
            let found = tokio::task::spawn_blocking(move || asked.sql(&[query]));
            if found.await.unwrap() == answer {
                return;
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    tokio::time::timeout(Duration::from_secs(60), wait)
        .await
        .unwrap_or_else(|_| panic!("{query} never answers {answer}"));
}

fn running(port: u16, configuration: &str) -> Arc<Cluster> {
    let cluster = Cluster::init(port, 1, configuration);
    cluster.start(&[]);
    Arc::new(cluster)
}

/// Rows that are dead and still there after a vacuum.
fn dead_rows(cluster: &Cluster) -> String {
    cluster.sql(&["CREATE EXTENSION IF NOT EXISTS pgstattuple", "VACUUM t"]);
    cluster.sql(&["SELECT dead_tuple_count FROM pgstattuple('t')"])
}

const STAND_INS: &str = "SELECT count(*) FROM pg_stat_replication WHERE state = 'streaming'";

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn vacuum_keeps_what_a_standby_reads_as_long_as_it_says_so() {
    // Log that the connection has not read yet may be recycled: the server ends it then, and who wants it
    // begins anew. Not here.
    let cluster = running(54031, "autovacuum = off\nwal_keep_size = 1GB");
    cluster.sql(&["CREATE TABLE t AS SELECT generate_series(1, 1000) AS n"]);
    let xmin = cluster.sql(&["SELECT pg_snapshot_xmin(pg_current_snapshot())"]);
    let standby = Feedback::start(&cluster, xmin.parse().unwrap());
    until(&cluster, STAND_INS, "1").await;
    until(
        &cluster,
        "SELECT backend_xmin IS NOT NULL FROM pg_stat_replication WHERE application_name = 'south'",
        "t",
    )
    .await;
    cluster.sql(&["DELETE FROM t"]);
    assert_eq!(dead_rows(&cluster), "1000");

    // What is reported later replaces it, and the positions are the standby's own.
    let end = cluster.sql(&["SELECT pg_current_wal_flush_lsn()"]);
    let now = cluster.sql(&["SELECT pg_snapshot_xmin(pg_current_snapshot())"]);
    let later = report(now.parse().unwrap(), parse_lsn(&end).unwrap());
    standby.reports.send_replace(later);
    until(
        &cluster,
        "SELECT replay_lsn IS NOT NULL AND flush_lsn = replay_lsn FROM pg_stat_replication",
        "t",
    )
    .await;
    let shown = "SELECT replay_lsn, backend_xmin FROM pg_stat_replication";
    assert_eq!(cluster.sql(&[shown]), format!("{end}|{now}"));
    assert_eq!(dead_rows(&cluster), "0");

    // The log that comes meanwhile holds nothing up, whatever becomes of it.
    cluster.sql(&[
        "INSERT INTO t SELECT generate_series(1, 200000)",
        "CHECKPOINT",
        "SELECT pg_switch_wal()",
        "DELETE FROM t",
        "CHECKPOINT",
    ]);
    assert_ne!(dead_rows(&cluster), "0");
    drop(standby.reports);
    standby.ended.await.unwrap().unwrap();
    until(&cluster, STAND_INS, "0").await;
    assert_eq!(dead_rows(&cluster), "0");
    let log = cluster.log();
    assert!(
        !log.contains("unexpected EOF") && !log.contains("ERROR") && !log.contains("FATAL"),
        "{log}"
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_that_stops_does_not_wait_for_a_standby_that_is_behind() {
    let cluster = running(54032, "");
    let standby = Feedback::start(&cluster, 3);
    until(&cluster, STAND_INS, "1").await;
    let stopping = cluster.clone();
    tokio::task::spawn_blocking(move || stopping.stop("fast"))
        .await
        .unwrap();
    assert!(standby.ended.await.unwrap().is_err());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_without_room_for_it_says_so() {
    let cluster = running(54033, "max_wal_senders = 0");
    let standby = Feedback::start(&cluster, 3);
    let refused = standby.ended.await.unwrap().unwrap_err().to_string();
    assert!(refused.contains("max_wal_senders"), "{refused}");
}
