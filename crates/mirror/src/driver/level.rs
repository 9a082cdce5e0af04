//! Facts that the stream of the member's commits shares with everybody else.

use std::collections::BTreeMap;

use parking_lot::Mutex;
use tokio::sync::{Notify, mpsc, watch};

use crate::core::manager::Life;
use crate::core::record::{Number, Record};
use crate::core::rows::{Change, Lsn, Origin, Rows};

/// The member executes nothing more while the rows of so many bytes are not compared.
const MOST_KEPT_BYTES: usize = 64 << 20;

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
    kept: watch::Sender<Kept>,
    /// The member's commits up to here were compared.
    compared: Mutex<Lsn>,
    /// Something was learnt of the log.
    learnt: Notify,
}

/// Transactions that the member executes.
#[derive(Default)]
struct Kept {
    /// They are executed in this life of the member.
    life: Option<Life>,
    records: BTreeMap<Number, Record>,
    bytes: usize,
}

impl Kept {
    fn add(&mut self, record: &Record) {
        self.take(&record.number);
        self.bytes += record.bytes();
        self.records.insert(record.number, record.clone());
    }

    fn take(&mut self, number: &Number) -> Option<Record> {
        let record = self.records.remove(number)?;
        self.bytes -= record.bytes();
        Some(record)
    }
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
            kept: watch::Sender::default(),
            compared: Mutex::default(),
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

    /// The member is about to execute these: waits until those before them are compared, as far as there is no room for more.
    ///
    /// All of them are kept, or the comparison of what is executed together would lack a part; none if this life of the member is over.
    pub async fn keep(&self, life: Life, records: &[Record]) {
        let mut kept = self.kept.subscribe();
        // The sender lives as long as the process.
        let may_go_on = |kept: &Kept| kept.life != Some(life) || kept.bytes < MOST_KEPT_BYTES;
        let _ = kept.wait_for(may_go_on).await;
        self.kept.send_modify(|kept| {
            if kept.life == Some(life) {
                records.iter().for_each(|record| kept.add(record));
            }
        });
    }

    /// A life of the member begins.
    pub fn begin(&self, life: Life) {
        self.kept.send_modify(|kept| kept.life = Some(life));
    }

    /// Forgets another life of the member; true if it had commits that were to be undone.
    pub fn forget(&self) -> bool {
        self.kept.send_replace(Kept::default());
        *self.compared.lock() = Lsn(0);
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
        let mut taken = Vec::new();
        let take = |kept: &mut Kept| taken.extend(numbers.iter().filter_map(|it| kept.take(it)));
        self.kept.send_modify(take);
        taken
    }

    /// The member's commit that ends there is about to be compared; false if it was compared before, by a stream that has ended.
    pub fn compares(&self, end: Lsn) -> bool {
        let mut compared = self.compared.lock();
        let is_new = end > *compared;
        *compared = end.max(*compared);
        is_new
    }

    /// Waits until something was learnt.
    pub async fn learns(&self) {
        self.learnt.notified().await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::core::class::Claims;

    const MIB: usize = 1 << 20;

    fn record(number: u64, bytes: usize) -> Record {
        Record::of(number, Claims::default(), bytes)
    }

    /// Past twenty thousand transactions nothing was kept: a part of what was executed together was a difference, all of it was none.
    // hazard: MIRROR-70
    #[tokio::test]
    async fn what_is_executed_waits_for_room_and_is_kept_wholly() {
        let (capture, life) = (Capture::default(), Life(1));
        capture.begin(life);
        let first = [record(1, 40 * MIB), record(2, 40 * MIB)];
        capture.keep(life, &first).await;
        let more = [record(3, MIB)];
        let waiting = capture.keep(life, &more);
        tokio::pin!(waiting);
        let soon = std::time::Duration::from_millis(20);
        let waited = tokio::time::timeout(soon, &mut waiting).await;
        assert!(waited.is_err(), "there is no room");
        assert_eq!(capture.take(&[Number(1), Number(2)]), first);
        waiting.await;
        assert_eq!(capture.take(&[Number(3)]), more);
    }

    /// Whoever waited had what they had come for kept among what the next life of the member executes, where nobody took it.
    // hazard: MIRROR-70
    #[tokio::test]
    async fn nothing_is_kept_for_a_life_that_is_over() {
        let (capture, life) = (Capture::default(), Life(1));
        capture.begin(life);
        capture.keep(life, &[record(1, 80 * MIB)]).await;
        let late = [record(2, 80 * MIB)];
        let late = async { capture.keep(life, &late).await };
        let next = async {
            tokio::task::yield_now().await;
            capture.forget();
            capture.begin(Life(2));
        };
        tokio::join!(late, next);
        assert!(capture.take(&[Number(1), Number(2)]).is_empty());
        capture.keep(Life(2), &[record(3, 1)]).await;
        assert_eq!(capture.take(&[Number(3)]).len(), 1);
    }

    #[test]
    fn a_commit_is_compared_once() {
        let capture = Capture::default();
        assert!(capture.compares(Lsn(10)) && !capture.compares(Lsn(10)));
        assert!(!capture.compares(Lsn(5)) && capture.compares(Lsn(11)));
        capture.forget();
        assert!(capture.compares(Lsn(5)));
    }
}
