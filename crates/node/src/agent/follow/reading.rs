//! Log and journal on their way to this standby, several parts at once: what the active announces is asked
//! for while what it announced before is still under way, because from far away each takes a round trip.
//!
//! ```text
//!   announced ─▶ ask: journal and log since the last one ─┐  ... 16 at most
//!                                                         ▼
//!            next, in the order of the announcements: names to apply, then all of it may be shown
//! ```
//!
//! Invariants: what comes out of [`Reading::next`] comes in order, and the parts of the journal join
//! without a gap; log that could not be read here is read when PostgreSQL asks for it.

use std::collections::VecDeque;
use std::sync::Arc;

use dax::storage::Storage;
use tokio::task::JoinHandle;
use volume::journal::tail::JournalPart;

use crate::agent::error::Result;
use crate::agent::log::SharedLog;
use crate::agent::standby::{Known, Standby};

/// Stretches that may be under way.
const AT_ONCE: usize = 16;
/// Log that is read before it is shown, in all: a standby that is far behind reads as redo goes on.
const AHEAD_BYTES_MAX: u64 = 4 << 20;
/// The same of one part: names do not wait for more.
const STRETCH_BYTES_MAX: u64 = 256 << 10;

/// What was announced, and what of the journal has to be applied before it may be shown.
pub(super) type Arrived = (Known, Result<Option<JournalPart>>);

pub(super) struct Reading {
    storage: Arc<dyn Storage>,
    log: Arc<SharedLog>,
    under_way: VecDeque<(Known, JoinHandle<Result<Option<JournalPart>>>)>,
    asked: Known,
}

impl Reading {
    /// Goes on from what the standby has.
    pub(super) fn new(standby: &Standby) -> Reading {
        Reading {
            storage: Arc::clone(&standby.storage),
            log: Arc::clone(&standby.log),
            under_way: VecDeque::new(),
            asked: shown(standby),
        }
    }

    /// Asks for what is new in `to`. Does nothing if too much is under way: to be called again after
    /// [`next`](Self::next).
    pub(super) fn ask(&mut self, to: Known) {
        let to = self.asked.max(to);
        if to == self.asked || self.under_way.len() >= AT_ONCE {
            return;
        }
        let replay_limit = self.log.replay_limit().end;
        let from = self.asked.end.max(replay_limit);
        let is_near = to.end.bytes_since(replay_limit) <= AHEAD_BYTES_MAX
            && to.end.bytes_since(from) <= STRETCH_BYTES_MAX;
        let log = is_near.then_some(from..to.end);
        let journal = self.asked.journal..to.journal;
        let (storage, source) = (Arc::clone(&self.storage), Arc::clone(&self.log));
        let read = tokio::spawn(async move {
            let read_log = async {
                if let Some(range) = log {
                    source.read_ahead(range).await;
                }
            };
            let read_journal = async {
                match journal.is_empty() {
                    true => Ok(None),
                    false => JournalPart::read(storage, journal).await.map(Some),
                }
            };
            let ((), part) = tokio::join!(read_log, read_journal);
            Ok(part?)
        });
        self.under_way.push_back((to, read));
        self.asked = to;
    }

    /// Waits for the oldest part; for ever if there is none.
    pub(super) async fn next(&mut self) -> Arrived {
        let Some((to, read)) = self.under_way.front_mut() else {
            return std::future::pending().await;
        };
        let (to, read) = (*to, read.await);
        self.under_way.pop_front();
        let read =
            read.expect("reading neither panics nor is cancelled while somebody waits for it");
        (to, read)
    }
}

impl Drop for Reading {
    fn drop(&mut self) {
        self.under_way.iter().for_each(|(_, read)| read.abort());
    }
}

/// What the standby shows of the log, and how far its names are.
pub(super) fn shown(standby: &Standby) -> Known {
    let replay_limit = standby.log.replay_limit();
    Known {
        journal: standby.tail.position(),
        end: replay_limit.end,
        timeline: replay_limit.timeline,
    }
}
