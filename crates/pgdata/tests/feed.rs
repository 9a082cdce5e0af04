//! The log feed against a stock PostgreSQL standby.

#![allow(clippy::unwrap_used)] // in helpers, too

mod common;

use std::os::unix::fs::{FileExt, PermissionsExt};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use common::Cluster;
use parking_lot::Mutex;
use pgdata::control::{Capacity, ControlFile};
use pgdata::feed::{Feed, Identity, LogSource, ReplayLimit, SourceError};
use pgdata::parse_lsn;
use pgdata::segment::{LOG_PAGE_BYTES, SegmentName, SegmentSize};
use pgdata::settings::{MajorVersion, Setting, StandbyOptions, active, arguments, standby};
use pgdata::timeline::{History, TimelineId};
use tokio::sync::watch;
use volume::lsn::Lsn;

/// Serves the log of a directory, up to a replay limit that the test moves.
struct DirectorySource {
    wal: PathBuf,
    size: SegmentSize,
    system_identifier: u64,
    replay_limit: watch::Sender<ReplayLimit>,
    /// Positions beyond the replay limit that were asked for: there must be none.
    beyond: Mutex<Vec<Lsn>>,
}

impl DirectorySource {
    fn of(cluster: &Cluster, end: Lsn) -> Arc<DirectorySource> {
        let bytes = std::fs::read(cluster.data().join("global/pg_control")).unwrap();
        let control = ControlFile::parse(&bytes).unwrap();
        let replay_limit = ReplayLimit {
            timeline: control.timeline,
            end,
        };
        Arc::new(DirectorySource {
            wal: cluster.wal(),
            size: control.segment_size,
            system_identifier: control.system_identifier,
            replay_limit: watch::Sender::new(replay_limit),
            beyond: Mutex::default(),
        })
    }

    fn advance(&self, end: Lsn) {
        self.replay_limit.send_if_modified(|replay_limit| {
            let further = end > replay_limit.end;
            replay_limit.end = replay_limit.end.max(end);
            further
        });
    }

    async fn history_of(&self, timeline: TimelineId) -> History {
        match self.history(timeline).await.unwrap() {
            Some(text) => History::parse(timeline, std::str::from_utf8(&text).unwrap()).unwrap(),
            None => History::of_first(timeline),
        }
    }
}

#[async_trait]
impl LogSource for DirectorySource {
    async fn identity(&self) -> Result<Identity, SourceError> {
        let replay_limit = *self.replay_limit.borrow();
        Ok(Identity {
            system_identifier: self.system_identifier,
            replay_limit,
        })
    }

    async fn wait_beyond(&self, seen: ReplayLimit) -> ReplayLimit {
        let mut replay_limit = self.replay_limit.subscribe();
        *replay_limit.wait_for(|now| *now != seen).await.unwrap()
    }

    async fn read(&self, on: TimelineId, from: Lsn, max: usize) -> Result<Bytes, SourceError> {
        if from.0 + max as u64 > self.replay_limit.borrow().end.0 {
            self.beyond.lock().push(from);
        }
        let name = SegmentName::to_read(&self.history_of(on).await, from, self.size);
        let file = std::fs::File::open(self.wal.join(name.file_name(self.size)))?;
        let room = (name.range(self.size).end.0 - from.0) as usize;
        let mut bytes = vec![0; max.min(room)];
        file.read_exact_at(&mut bytes, self.size.offset(from))?;
        Ok(bytes.into())
    }

    async fn history(&self, timeline: TimelineId) -> Result<Option<Bytes>, SourceError> {
        match std::fs::read(self.wal.join(timeline.history_file_name())) {
            Ok(bytes) => Ok(Some(bytes.into())),
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(error.into()),
        }
    }
}

/// Moves the replay limit to what the primary has flushed, for ever.
fn follow(primary: Arc<Cluster>, source: Arc<DirectorySource>) -> tokio::task::JoinHandle<()> {
    tokio::spawn(async move {
        loop {
            let primary = primary.clone();
            source.advance(
                tokio::task::spawn_blocking(move || flushed(&primary))
                    .await
                    .unwrap(),
            );
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    })
}

/// The end of a record up to which the primary has flushed. Its log writer flushes whole pages: the
/// end of a page may be inside a record, which a standby never reports as applied.
fn flushed(primary: &Cluster) -> Lsn {
    loop {
        let at = parse_lsn(&primary.sql(&["SELECT pg_current_wal_flush_lsn()"])).unwrap();
        if !at.0.is_multiple_of(LOG_PAGE_BYTES as u64) {
            return at;
        }
        // A commit flushes up to the end of a record.
        primary.sql(&["SELECT pg_logical_emit_message(true, 'test', 'x')"]);
    }
}

fn version() -> MajorVersion {
    MajorVersion::parse(&common::run("postgres", &["--version"])).unwrap()
}

fn standby_arguments(feed: &Feed) -> Vec<String> {
    let capacity = Capacity {
        max_connections: 100,
        max_worker_processes: 8,
        max_wal_senders: 10,
        max_prepared_transactions: 0,
        max_locks_per_transaction: 64,
    };
    let options = StandbyOptions {
        primary_conninfo: feed.connection_string(),
        capacity,
        archive_mode: Some("always".into()),
        query_delay: Duration::from_secs(1),
        feedback: true,
        reads_ahead: true,
        cleans_ahead: true,
    };
    arguments(&standby(version(), &options))
}

async fn within<T>(what: &str, wait: impl Future<Output = T>) -> T {
    let timeout = Duration::from_secs(60);
    tokio::time::timeout(timeout, wait)
        .await
        .unwrap_or_else(|_| panic!("waited for {what}"))
}

const SUMS: &str = "SELECT (SELECT sum(abalance) FROM pgbench_accounts), \
                    (SELECT sum(bbalance) FROM pgbench_branches), \
                    (SELECT count(*) FROM pgbench_history)";

/// A primary with the pgbench tables, and its stopped copy to become a standby.
fn pair(port: u16) -> (Arc<Cluster>, Cluster) {
    let primary = Cluster::init(port, 1, "wal_keep_size = 1GB\nmax_wal_size = 2GB");
    primary.start(&[]);
    primary.pgbench(&["-i", "-q", "-s", "1"]);
    primary.stop("fast");
    let copy = Cluster::copy_of(&primary, port + 1);
    copy.signal("standby.signal");
    primary.start(&arguments(&active(version())));
    (Arc::new(primary), copy)
}

/// A feed that PostgreSQL's user alone can use.
fn listen(sockets: &tempfile::TempDir, source: Arc<DirectorySource>) -> Feed {
    let feed = Feed::bind(sockets.path(), 5499, "15", source).unwrap();
    let mode = std::fs::metadata(feed.socket()).unwrap().permissions();
    assert_eq!(PermissionsExt::mode(&mode) & 0o777, 0o600);
    common::own(&feed.socket());
    feed
}

async fn blocking<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> T {
    tokio::task::spawn_blocking(work).await.unwrap()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_standby_follows_a_running_primary_and_is_promoted() {
    let (primary, copy) = pair(54021);
    let source = DirectorySource::of(&primary, flushed(&primary));
    let sockets = common::directory();
    let feed = listen(&sockets, source.clone());
    let copy = Arc::new(copy);
    let settings = standby_arguments(&feed);
    let starting = copy.clone();
    blocking(move || starting.start(&settings)).await;
    let following = follow(primary.clone(), source.clone());

    let loaded = primary.clone();
    blocking(move || loaded.pgbench(&["-n", "-t", "400", "-c", "4"])).await;
    let end = flushed(&primary);
    source.advance(end);
    let feedback = within("replay", feed.applied(end)).await;
    assert!(feedback.apply >= end && feedback.flush >= end);
    assert!(feed.sent() >= end);
    assert_eq!(copy.sql(&[SUMS]), primary.sql(&[SUMS]));
    let reported = async {
        while feed.needed().is_none() {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    within("the rows that its queries need", reported).await;

    // While the replay limit is held nothing arrives, but progress is still reported: redo is at rest.
    following.abort();
    let _ = following.await;
    primary.sql(&["INSERT INTO pgbench_history SELECT 1, 1, 1, 0, now()"]);
    let held = source.identity().await.unwrap().replay_limit.end;
    let end = flushed(&primary);
    let rest = within("an answer", feed.applied(held)).await;
    assert!(rest.apply == held && feed.sent() == held && held < end);
    source.advance(end);
    within("replay after the pause", feed.applied(end)).await;

    let sums = primary.sql(&[SUMS]);
    primary.stop("fast");
    let promoted = copy.clone();
    blocking(move || promoted.promote()).await;
    assert_eq!(copy.sql(&[SUMS]), sums);
    assert_eq!(copy.sql(&["SHOW full_page_writes"]), "off");
    copy.sql(&["INSERT INTO pgbench_history SELECT 1, 1, 1, 0, now()"]);
    assert_eq!(
        *source.beyond.lock(),
        [],
        "asked for log beyond the replay_limit"
    );
}

/// A standby on the old timeline is led over to the new one: end of the stream, history file, stream
/// of the next timeline; also when it connects only afterwards.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_standby_follows_the_log_to_a_new_timeline() {
    let (primary, copy) = pair(54023);
    let source = DirectorySource::of(&primary, flushed(&primary));
    let sockets = common::directory();
    let feed = listen(&sockets, source.clone());
    let copy = Arc::new(copy);
    let settings = standby_arguments(&feed);
    let starting = (copy.clone(), settings.clone());
    blocking(move || starting.0.start(&starting.1)).await;
    primary.sql(&["CREATE TABLE t AS SELECT 1 AS timeline"]);
    let end = flushed(&primary);
    source.advance(end);
    within("replay of timeline 1", feed.applied(end)).await;

    primary.stop("fast");
    primary.signal("standby.signal");
    primary.start(&[]);
    primary.promote();
    primary.sql(&["INSERT INTO t VALUES (2)"]);
    let end = flushed(&primary);
    source.replay_limit.send_replace(ReplayLimit {
        timeline: TimelineId(2),
        end,
    });
    within("replay of timeline 2", feed.applied(end)).await;
    assert_eq!(copy.sql(&["SELECT sum(timeline) FROM t"]), "3");
    let timeline = "SELECT received_tli FROM pg_stat_wal_receiver";
    assert_eq!(copy.sql(&[timeline]), "2");

    copy.stop("fast");
    primary.sql(&["INSERT INTO t VALUES (3)"]);
    let end = flushed(&primary);
    source.advance(end);
    blocking({
        let copy = copy.clone();
        move || copy.start(&settings)
    })
    .await;
    within("replay after a restart", feed.applied(end)).await;
    assert_eq!(copy.sql(&["SELECT sum(timeline) FROM t"]), "6");
    for line in copy.log().lines() {
        let expected = pgdata::expected_warnings::is_expected(
            line,
            pgdata::expected_warnings::Situation::Takeover,
        );
        assert!(expected, "unexpected in the standby's log: {line}");
    }
}

#[test]
fn pinned_settings_exist() {
    let cluster = Cluster::init(54025, 1, "");
    let options = StandbyOptions {
        primary_conninfo: "host='/a b' port=1".into(),
        capacity: Capacity {
            max_connections: 123,
            max_worker_processes: 8,
            max_wal_senders: 10,
            max_prepared_transactions: 2,
            max_locks_per_transaction: 64,
        },
        archive_mode: Some("always".into()),
        query_delay: Duration::from_millis(1500),
        feedback: true,
        reads_ahead: true,
        cleans_ahead: true,
    };
    cluster.configure(pgdata::settings::DEFAULTS);
    cluster.signal("standby.signal");
    let pinned = standby(version(), &options);
    cluster.start(&arguments(&pinned));
    for Setting { name, value } in &pinned {
        let shown = cluster.sql(&[&format!("SHOW {name}")]);
        assert_eq!(&shown, value, "{name}");
    }
    assert_eq!(cluster.sql(&["SHOW checkpoint_timeout"]), "1min");
}
