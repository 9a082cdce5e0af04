//! The primary's side of PostgreSQL's streaming replication, for this node's own standby.
//!
//! [`Feed::bind`] listens on a Unix socket where the standby's `primary_conninfo` points, and streams
//! log that a [`LogSource`] reads from shared storage. What comes back is [`Feedback`] and, if wanted,
//! [`RowsNeeded`]. Messages are encoded and decoded by `pgwire`, whose types fit; the few that are inside
//! CopyData are ours.
//!
//! Invariant: no byte at or beyond the source's replay limit is ever sent, and the bytes sent on one
//! connection are one gapless stretch of one timeline.
//!
//! The socket is for its owner only, which has to be PostgreSQL's user: there is no authentication.

mod command;
mod connection;
mod session;

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use parking_lot::Mutex;
use serde::{Deserialize, Serialize};
use tokio::net::UnixListener;
use tokio::sync::{Notify, watch};
use tokio::task::{JoinHandle, JoinSet};
use tokio::time::Instant;
use volume::lsn::Lsn;

use crate::timeline::TimelineId;

/// How often progress is asked for while someone waits for it.
const ASK_EVERY: Duration = Duration::from_millis(5);

/// What a standby needs is forgotten when it has not said so for so long; it says so every second
/// (`wal_receiver_status_interval`).
const NEEDED_FOR: Duration = Duration::from_secs(10);

/// Up to where the log may be read.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct ReplayLimit {
    /// The newest timeline.
    pub timeline: TimelineId,
    /// The end of the log known to be synced.
    pub end: Lsn,
}

/// Who the log belongs to, and how far it goes now.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Identity {
    /// The cluster's system identifier.
    pub system_identifier: u64,
    /// How far the log goes.
    pub replay_limit: ReplayLimit,
}

/// An error of a source, logged and shown to the standby, which then tries again.
pub type SourceError = Box<dyn std::error::Error + Send + Sync>;

/// Where the log comes from.
#[async_trait]
pub trait LogSource: Send + Sync + 'static {
    /// Whose log it is.
    async fn identity(&self) -> Result<Identity, SourceError>;

    /// Waits until the replay limit is not `seen` any more: further, or on another timeline.
    async fn wait_beyond(&self, seen: ReplayLimit) -> ReplayLimit;

    /// Reads at most `max_len` bytes of the log at `from`, at least one. Never asked for bytes at or
    /// beyond the replay limit, or beyond a historic timeline's end. `timeline` is the newest whose log is
    /// wanted; see [`SegmentName::to_read`](crate::segment::SegmentName::to_read) for the file.
    async fn read(
        &self,
        timeline: TimelineId,
        from: Lsn,
        max_len: usize,
    ) -> Result<Bytes, SourceError>;

    /// The contents of a timeline's history file; `None` if it has none.
    async fn history(&self, timeline: TimelineId) -> Result<Option<Bytes>, SourceError>;
}

/// A standby's progress, as it reports it.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub struct Feedback {
    /// Received up to here.
    pub write: Lsn,
    /// Flushed by the receiver up to here.
    pub flush: Lsn,
    /// Replayed up to here.
    pub apply: Lsn,
}

/// The rows that a standby's queries may still read: those of transactions from these on, each with the
/// number of times that the counter wrapped around (`hot_standby_feedback`). Zero stands for none.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct RowsNeeded {
    /// Oldest transaction whose rows in tables are still read.
    pub xmin: u32,
    /// Number of wraparounds before `xmin`.
    pub epoch: u32,
    /// Oldest transaction whose rows in catalogs are still read, if replication slots need older ones.
    pub catalog_xmin: u32,
    /// Number of wraparounds before `catalog_xmin`.
    pub catalog_epoch: u32,
}

/// What the connections and the handle share.
struct Shared {
    source: Arc<dyn LogSource>,
    server_version: String,
    feedback: watch::Sender<Option<Feedback>>,
    sent: watch::Sender<Lsn>,
    /// What the standby said last of the rows that it needs, and when.
    needed: Mutex<Option<(Instant, RowsNeeded)>>,
    ask: Notify,
}

/// A listening feed; dropping it closes the socket and its connections.
pub struct Feed {
    shared: Arc<Shared>,
    directory: PathBuf,
    port: u16,
    accepting: JoinHandle<()>,
}

impl Feed {
    /// Listens on `<directory>/.s.PGSQL.<port>`, replacing a socket left there. Nobody else may be able to write into the
    /// directory. `server_version` is what to announce, e.g. `15`.
    ///
    /// # Errors
    /// Those of the socket.
    pub fn bind(
        directory: &Path,
        port: u16,
        server_version: &str,
        source: Arc<dyn LogSource>,
    ) -> io::Result<Feed> {
        let path = socket(directory, port);
        match std::fs::remove_file(&path) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            _ => {}
        }
        let listener = UnixListener::bind(&path)?;
        std::fs::set_permissions(&path, std::os::unix::fs::PermissionsExt::from_mode(0o600))?;
        let shared = Arc::new(Shared {
            source,
            server_version: server_version.to_owned(),
            feedback: watch::Sender::new(None),
            sent: watch::Sender::new(Lsn::ZERO),
            needed: Mutex::new(None),
            ask: Notify::new(),
        });
        let accepting = tokio::spawn(accept(listener, shared.clone()));
        Ok(Feed {
            shared,
            directory: directory.to_owned(),
            port,
            accepting,
        })
    }

    /// Its socket, which only this process's user may use: where PostgreSQL's is another one, give it to that.
    pub fn socket(&self) -> PathBuf {
        socket(&self.directory, self.port)
    }

    /// What `primary_conninfo` must be.
    pub fn connection_string(&self) -> String {
        let directory = self.directory.display().to_string();
        let directory = directory.replace('\\', "\\\\").replace('\'', "\\'");
        format!(
            "host='{directory}' port={} user=understudy application_name=understudy \
             sslmode=disable gssencmode=disable",
            self.port
        )
    }

    /// The standby's progress; `None` until it has reported any. Progress of redo alone is reported
    /// only when asked for (N12): see [`Feed::request_reply`] and [`Feed::applied`].
    pub fn feedback(&self) -> watch::Receiver<Option<Feedback>> {
        self.shared.feedback.subscribe()
    }

    /// The end of what was handed to the standby so far; never goes down.
    pub fn sent(&self) -> Lsn {
        *self.shared.sent.borrow()
    }

    /// The rows that the standby's queries may still read, if it says so (`hot_standby_feedback`). A
    /// connection that breaks takes nothing back at once: the queries go on.
    pub fn needed(&self) -> Option<RowsNeeded> {
        let said = *self.shared.needed.lock();
        said.filter(|(at, _)| at.elapsed() < NEEDED_FOR)
            .map(|(_, rows)| rows)
    }

    /// Asks the standby to report its progress now.
    pub fn request_reply(&self) {
        self.shared.ask.notify_one();
    }

    /// Waits until the standby has replayed up to `target`, asking for its progress.
    pub async fn applied(&self, target: Lsn) -> Feedback {
        let mut feedback = self.feedback();
        loop {
            if let Some(reached) = *feedback.borrow_and_update()
                && reached.apply >= target
            {
                return reached;
            }
            self.request_reply();
            // Whether it reported or the time passed, the loop looks again; the sender lives in
            // `self.shared`, so the channel is never closed.
            drop(tokio::time::timeout(ASK_EVERY, feedback.changed()).await);
        }
    }
}

impl Drop for Feed {
    fn drop(&mut self) {
        self.accepting.abort();
    }
}

fn socket(directory: &Path, port: u16) -> PathBuf {
    directory.join(format!(".s.PGSQL.{port}"))
}

async fn accept(listener: UnixListener, shared: Arc<Shared>) {
    // Dropped with this task, which ends the connections.
    let mut connections = JoinSet::new();
    loop {
        match listener.accept().await {
            Ok((socket, _)) => {
                connections.spawn(connection::serve(socket, shared.clone()));
            }
            Err(error) => {
                tracing::warn!(%error, "the feed cannot accept a connection");
                tokio::time::sleep(Duration::from_millis(100)).await;
            }
        }
        while connections.try_join_next().is_some() {}
    }
}
