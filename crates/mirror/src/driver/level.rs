//! Facts that the stream of the member's commits shares with everybody else.

use std::collections::BTreeMap;

use parking_lot::Mutex;
use tokio::sync::{Notify, mpsc, watch};

use crate::core::record::{Number, Record};
use crate::core::rows::{Change, Lsn, Origin, Rows};

/// So many transactions that the member has executed are kept at most until they are compared.
const MOST_KEPT: usize = 20_000;

/// Commits of a member that the log does not have, and gets no more.
#[derive(Debug, Clone, Default)]
pub struct Surplus {
    /// Their rows, in order; nothing if there are too many.
    pub commits: Vec<(Origin, Rows)>,
    bytes: usize,
    is_too_much: bool,
}

/// Rows of more bytes are not kept.
const MOST_SURPLUS_BYTES: usize = 32 << 20;

impl Surplus {
    /// A commit more.
    pub fn push(&mut self, origin: Origin, rows: Rows) {
        self.bytes += bytes(&rows);
        self.commits.push((origin, rows));
        self.is_too_much |= self.bytes > MOST_SURPLUS_BYTES;
        if self.is_too_much {
            self.commits.clear();
        }
    }

    /// The log has its commits up to there.
    pub fn is_logged(&mut self, up_to: Lsn) {
        let gone = self
            .commits
            .partition_point(|(origin, _)| origin.end <= up_to);
        let gone = self.commits.drain(..gone);
        self.bytes -= gone.map(|(_, rows)| bytes(&rows)).sum::<usize>();
    }
}

fn bytes(rows: &Rows) -> usize {
    rows.changes.iter().map(Change::bytes).sum()
}

/// Event for the stream of a primary.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Event {
    /// The log has a record.
    Logged(Number),
    /// Whoever has committed it may be told so.
    Answer(Number),
}

/// Facts of the stream and for it.
pub struct Capture {
    /// To the stream, if commits are logged.
    events: Mutex<Option<mpsc::UnboundedSender<Event>>>,
    /// The epoch in which commits are logged; none if they are compared.
    pub epoch: watch::Sender<Option<u32>>,
    /// The epoch in which the log has all that was committed before it.
    pub level: watch::Sender<Option<u32>>,
    /// Up to where everything is dealt with.
    pub confirmed: watch::Sender<Lsn>,
    /// The end of the member's WAL when it was found to be one that nobody writes to but this manager.
    pub began: Mutex<Option<Lsn>>,
    /// Commits that are to be undone.
    pub surplus: Mutex<Option<Surplus>>,
    /// Transactions of the log that the member executes, until they are compared.
    kept: Mutex<BTreeMap<Number, Record>>,
    /// Something was learnt of the log.
    learnt: Notify,
}

impl Default for Capture {
    fn default() -> Capture {
        Capture {
            events: Mutex::default(),
            epoch: watch::Sender::new(None),
            level: watch::Sender::new(None),
            confirmed: watch::Sender::new(Lsn(0)),
            began: Mutex::default(),
            surplus: Mutex::default(),
            kept: Mutex::default(),
            learnt: Notify::new(),
        }
    }
}

impl Capture {
    /// A stream is told what becomes of records from now on, in the place of the one before.
    pub fn listen(&self) -> mpsc::UnboundedReceiver<Event> {
        let (events, receiver) = mpsc::unbounded_channel();
        self.events.lock().replace(events);
        receiver
    }

    /// Tells the stream.
    pub fn tell(&self, event: Event) {
        if let Some(events) = &*self.events.lock() {
            // One that has ended does not care.
            let _ = events.send(event);
        }
    }

    /// The member is about to execute this.
    pub fn keep(&self, record: &Record) {
        let mut kept = self.kept.lock();
        if kept.len() < MOST_KEPT {
            kept.insert(record.number, record.clone());
        }
    }

    /// Forgets another life of the member; true if it had commits that were to be undone.
    pub fn forget(&self) -> bool {
        self.kept.lock().clear();
        *self.began.lock() = None;
        self.surplus.lock().take().is_some()
    }

    /// The log has more, or the manager is something else.
    pub fn learn(&self) {
        self.learnt.notify_one();
    }

    /// Waits until everything up to there is dealt with.
    pub async fn reaches(&self, at: Lsn) {
        // The sender lives as long as the process.
        let _ = self.confirmed.subscribe().wait_for(|now| *now >= at).await;
    }

    /// Takes what is kept of transactions that are to be compared.
    pub fn take(&self, numbers: &[Number]) -> Vec<Record> {
        let mut kept = self.kept.lock();
        let taken = numbers.iter().filter_map(|number| kept.remove(number));
        taken.collect()
    }

    /// Waits until something was learnt.
    pub async fn learns(&self) {
        self.learnt.notified().await;
    }
}
