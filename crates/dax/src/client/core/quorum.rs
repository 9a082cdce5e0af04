//! Sets of zones, how large quorums are, and the one way to ask zones and count answers.
//!
//! Invariants: every read quorum meets every set of k replicas; every epoch quorum meets every other,
//! every read quorum's complement is too small for a sync, and so is the complement of an epoch
//! quorum: once an epoch is owned, no older writer finds k replicas.

use crate::error::{Error, ErrorKind};
use crate::ids::ZoneId;
use crate::storage::VolumeSettings;
use crate::wire::Request;

use super::links::Links;
use super::{Asker, Effects, Time};

/// A set of zones.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct ZoneSet(u16);

impl ZoneSet {
    /// The most zones that a volume can have.
    pub const MAX_ZONES: usize = 16;

    pub fn first(zones: usize) -> ZoneSet {
        ZoneSet(((1u32 << zones) - 1) as u16)
    }
    pub fn insert(&mut self, zone: ZoneId) {
        self.0 |= 1 << zone.0;
    }
    pub fn remove(&mut self, zone: ZoneId) {
        self.0 &= !(1 << zone.0);
    }
    pub fn contains(self, zone: ZoneId) -> bool {
        self.0 & (1 << zone.0) != 0
    }
    pub fn union(self, other: ZoneSet) -> ZoneSet {
        ZoneSet(self.0 | other.0)
    }
    pub fn without(self, other: ZoneSet) -> ZoneSet {
        ZoneSet(self.0 & !other.0)
    }
    pub fn len(self) -> usize {
        self.0.count_ones() as usize
    }
    pub fn is_empty(self) -> bool {
        self.0 == 0
    }
    pub fn iter(self) -> impl Iterator<Item = ZoneId> {
        (0..Self::MAX_ZONES as u8)
            .map(ZoneId)
            .filter(move |z| self.contains(*z))
    }
}

/// How many zones make which quorum.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Quorums {
    /// Copies of each block, and zones (the paper's N).
    pub replicas: usize,
    /// Copies that make a write durable (the paper's k).
    pub sync: usize,
}

impl Quorums {
    pub fn new(settings: &VolumeSettings) -> Quorums {
        Quorums {
            replicas: settings.replicas.into(),
            sync: settings.sync_replicas.into(),
        }
    }

    /// Meets every set of k replicas.
    pub fn read(self) -> usize {
        self.replicas - self.sync + 1
    }

    /// For records.
    pub fn majority(self) -> usize {
        self.replicas / 2 + 1
    }

    /// For epochs: meets every other epoch quorum, and every set of k replicas.
    pub fn epoch(self) -> usize {
        self.majority().max(self.read())
    }
}

/// How long to wait before a zone that answered with a passing error is asked again.
const RETRY: Time = Time::from_millis(100);

/// A question put to zones, and who has answered.
///
/// ```text
///   not asked ──ask──▶ waiting ──answer──▶ answered
///       ▲                 │ │
///       └──zone went down─┘ └──passing error──▶ resting ──after RETRY──▶ not asked
/// ```
#[derive(Debug)]
pub(crate) struct Round<R> {
    pub request: Request,
    pub replies: Vec<(ZoneId, R)>,
    /// How many zones should have been asked by now.
    pub spread: usize,
    waiting: ZoneSet,
    answered: ZoneSet,
    resting: ZoneSet,
    retry_at: Time,
    widen_at: Option<Time>,
}

impl<R> Round<R> {
    /// Asks the `spread` nearest zones first, more as time passes.
    pub fn new(request: Request, spread: usize) -> Round<R> {
        Round {
            request,
            replies: Vec::new(),
            spread,
            waiting: ZoneSet::default(),
            answered: ZoneSet::default(),
            resting: ZoneSet::default(),
            retry_at: Time::ZERO,
            widen_at: None,
        }
    }

    /// Zones that answered.
    pub fn answered(&self) -> ZoneSet {
        self.answered
    }

    /// Zones whose answer is on its way, as far as known.
    pub fn waiting(&self) -> ZoneSet {
        self.waiting
    }

    /// Asks whom it is time to ask.
    pub fn ask(&mut self, now: Time, asker: Asker, links: &mut Links, out: &mut Effects) {
        // Whoever proposes an epoch asks everybody; accepting it is what admits a zone.
        let among = match self.request {
            Request::OwnEpoch { .. } | Request::Epoch => links.up(),
            _ => links.askable(),
        };
        if !self.resting.is_empty() && now >= self.retry_at {
            self.resting = ZoneSet::default();
        }
        if self.widen_at.is_some_and(|at| now >= at) {
            self.widen_at = None;
            self.spread += 1;
        }
        loop {
            let busy = self.waiting.union(self.answered);
            if busy.len() >= self.spread {
                break;
            }
            let Some(zone) = links.nearest(among.without(busy.union(self.resting))) else {
                break;
            };
            self.waiting.insert(zone);
            links.ask(zone, asker, self.request.clone(), now, out);
        }
        if self.widen_at.is_none() && !self.waiting.is_empty() {
            self.widen_at = Some(now + links.hedge_delay(self.waiting));
        }
    }

    /// Counts an answer.
    pub fn answer(&mut self, zone: ZoneId, reply: R) {
        self.waiting.remove(zone);
        self.answered.insert(zone);
        self.replies.retain(|(z, _)| *z != zone);
        self.replies.push((zone, reply));
    }

    /// An answer that counts as given but has nothing in it (a damaged block): one more is asked.
    pub fn spoiled(&mut self, zone: ZoneId) {
        self.waiting.remove(zone);
        self.answered.insert(zone);
        self.spread += 1;
    }

    /// The zone went down.
    pub fn lost(&mut self, zone: ZoneId) {
        self.waiting.remove(zone);
    }

    fn rest(&mut self, zone: ZoneId, now: Time) {
        self.waiting.remove(zone);
        self.resting.insert(zone);
        self.retry_at = now + RETRY;
    }

    /// The zone answered with an error: it is asked again later, unless asking again cannot help.
    pub fn error(
        &mut self,
        zone: ZoneId,
        kind: ErrorKind,
        message: String,
        now: Time,
    ) -> Option<Error> {
        match kind {
            ErrorKind::Invalid | ErrorKind::Protocol => Some(Error::new(kind, message)),
            _ => {
                self.rest(zone, now);
                None
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quorums_meet() {
        for replicas in 1..=9 {
            for sync in 1..=replicas {
                let q = Quorums { replicas, sync };
                assert!(q.read() + sync > replicas);
                assert!(q.epoch() + sync > replicas);
                assert!(2 * q.epoch() > replicas);
                assert!(2 * q.majority() > replicas);
                assert!(q.epoch() <= replicas);
            }
        }
    }

    #[test]
    fn zone_sets_are_sets() {
        let mut set = ZoneSet::first(3);
        assert_eq!(set.len(), 3);
        set.remove(ZoneId(1));
        assert_eq!(set.iter().collect::<Vec<_>>(), [ZoneId(0), ZoneId(2)]);
        assert_eq!(ZoneSet::first(16).len(), 16);
        assert_eq!(
            ZoneSet::first(3).without(set).iter().next(),
            Some(ZoneId(1))
        );
    }
}
