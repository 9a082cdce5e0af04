//! How far the standby's replay is behind the active's log, looked at a few times a second.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use tokio::task::JoinHandle;

use cluster::clients::schema::Server;
use cluster::clients::session::connect;
use cluster::wait::{flushed_by, replayed_by};

const EVERY: Duration = Duration::from_millis(200);
const UNSEEN: u64 = u64::MAX;

/// Looks until it is dropped, or until one of the servers is gone.
#[derive(Debug)]
pub struct Lag {
    bytes: Arc<AtomicU64>,
    task: JoinHandle<()>,
}

impl Lag {
    /// Starts looking.
    pub fn watch(active: &Server, standby: &Server) -> Lag {
        let bytes = Arc::new(AtomicU64::new(UNSEEN));
        let (active, standby, seen) = (active.config(), standby.config(), bytes.clone());
        let task = tokio::spawn(async move {
            let (Ok(active), Ok(standby)) = (connect(&active).await, connect(&standby).await)
            else {
                return;
            };
            let mut ticks = tokio::time::interval(EVERY);
            loop {
                ticks.tick().await;
                let seen_now = tokio::join!(flushed_by(&active), replayed_by(&standby));
                let (Some(end), Some(applied)) = seen_now else {
                    return;
                };
                seen.store(u64::try_from(end - applied).unwrap_or(0), Ordering::Relaxed);
            }
        });
        Lag { bytes, task }
    }

    /// What was seen last, in bytes of log.
    pub fn bytes(&self) -> Option<u64> {
        self.reader().bytes()
    }

    /// Tells the same to somebody else.
    pub fn reader(&self) -> LagReader {
        LagReader(self.bytes.clone())
    }
}

/// See [`Lag::reader`].
#[derive(Debug, Clone)]
pub struct LagReader(Arc<AtomicU64>);

impl LagReader {
    /// What was seen last; nothing any more once looking has ended.
    pub fn bytes(&self) -> Option<u64> {
        match self.0.load(Ordering::Relaxed) {
            UNSEEN => None,
            bytes => Some(bytes),
        }
    }
}

impl Drop for Lag {
    fn drop(&mut self) {
        self.task.abort();
        self.bytes.store(UNSEEN, Ordering::Relaxed);
    }
}
