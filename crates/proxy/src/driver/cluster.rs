//! The cluster, as a source tells of it, for all tasks of a proxy; and what a source may tell of the proxy.

use std::sync::Arc;
use std::time::Duration;

use coordination::channel::ProxyReport;
use parking_lot::RwLock;
use tokio::sync::Notify;

use crate::core::topology::{News, Topology};

use super::handle::{Handles, NEWS, TRANSACTION, WAITING};
use super::totals::Totals;

/// What is known, and who is told when it changes.
pub struct Cluster {
    topology: RwLock<Arc<Topology>>,
    changed: Notify,
    handles: Arc<Handles>,
    totals: Arc<Totals>,
}

impl Cluster {
    /// Nothing is known yet.
    pub fn new(handles: Arc<Handles>, totals: Arc<Totals>) -> Cluster {
        Cluster {
            topology: RwLock::default(),
            changed: Notify::new(),
            handles,
            totals,
        }
    }

    /// What is known.
    pub fn topology(&self) -> Arc<Topology> {
        self.topology.read().clone()
    }

    /// A source tells something. Clients are woken if it concerns their sessions.
    pub fn hear(&self, news: News) {
        let concerns_all = {
            let mut topology = self.topology.write();
            let mut next = Topology::clone(&topology);
            next.hear(news);
            let concerns_all = next.epoch != topology.epoch
                || next.is_held() != topology.is_held()
                || next.silent != topology.silent
                || next.is_unproven != topology.is_unproven;
            *topology = Arc::new(next);
            concerns_all
        };
        self.changed.notify_waiters();
        if concerns_all {
            self.handles.poke_all(NEWS);
        }
    }

    /// Waits for news, but not for long.
    pub async fn news_within(&self, time: Duration) {
        // Whether there was news or not, it is time to look again.
        let _ = tokio::time::timeout(time, self.changed.notified()).await;
    }

    /// Waits for news.
    pub async fn news(&self) {
        self.changed.notified().await;
    }

    /// How many clients have a transaction open, or a statement under way.
    pub fn open_transactions(&self) -> usize {
        self.handles.count_in(TRANSACTION)
    }

    /// What is told of this proxy; the source knows where it listens.
    pub fn report(&self) -> ProxyReport {
        let counts = self.totals.counts();
        ProxyReport {
            listen: String::new(),
            clients: self.handles.count() as u64,
            waiting: self.handles.count_in(WAITING) as u64,
            on_active: counts.batches.saturating_sub(counts.on_standby),
            on_standbys: counts.on_standby,
            replayed: counts.replayed,
            in_doubt: counts.in_doubt,
            in_doubt_committed: counts.in_doubt_committed,
            in_doubt_unknown: counts.in_doubt_unknown,
        }
    }
}
