//! The states: three replicas, three clients, and what is known to be true of the past.
//!
//! No message is stored. A request that was sent once may arrive at its replica never, at any later
//! time, in any order and again: so the set of what may arrive follows from the client's own state.
//! A reply is taken when the replica gives it; that it may arrive later, or never, is in the
//! client's freedom to act later, or never.

use crate::setup::{CLIENTS, REPLICAS, SYNC, Setup, Stamp, Who};

/// What a replica holds of the block. [`Stored::default`] is nothing.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Stored {
    pub version: Stamp,
    /// The contents, by the version they were first written with.
    pub origin: Stamp,
}

impl Stored {
    pub fn is_absent(self) -> bool {
        self.version == Stamp::default()
    }
}

/// An accepted epoch and whom it was accepted from.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Grant {
    pub epoch: u8,
    pub owner: u8,
}

/// What a replica has stored, or is about to.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Disk {
    pub grant: Grant,
    pub stored: Stored,
}

/// A replica's answer to a client that proposes or announces an epoch.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Answer {
    #[default]
    None,
    Yes,
    No,
}

/// What a replica tells its clients.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Acknowledged {
    /// Per client, a bit for each of its writes that is acknowledged.
    pub acked: [u8; CLIENTS],
    pub answer: [Answer; CLIENTS],
}

/// A replica, and what clients have heard from it.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Site {
    pub disk: Disk,
    /// What is decided and not durable, and what will be told once it is.
    pub round: Option<(Disk, Acknowledged)>,
    pub told: Acknowledged,
    /// It has answered the client's read or promotion.
    pub replied: [bool; CLIENTS],
    /// What it answered to a look.
    pub looked: [Option<Grant>; CLIENTS],
}

/// How far a client is with an epoch.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash)]
pub enum Phase {
    #[default]
    Idle,
    /// Asks a quorum what it has accepted.
    Looking,
    /// Proposes this epoch, or is about to.
    Proposing(u8),
    /// It lost, and asks who won.
    LookingWho,
    Owner(u8),
    /// Somebody else owns this epoch.
    Conflict(u8),
}

/// The one operation that a client may have in progress.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash)]
pub enum Op {
    #[default]
    None,
    /// So many replies, the newest of them, and whether they agree.
    Promoting {
        replies: u8,
        newest: Stored,
        agree: bool,
    },
    /// The choice is on its way to k replicas.
    Rewriting { seq: u8 },
    /// One reply of the quorum is there.
    Reading { first: Stored },
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash)]
pub struct Client {
    pub phase: Phase,
    pub op: Op,
    /// Versions given, counted from [`Setup::first_seq`].
    pub given: u8,
    /// The contents of each of its writes.
    pub origins: [Stamp; 4],
    /// Writes of contents of its own.
    pub wrote: u8,
    pub promotions: u8,
    /// Its first write made after a higher epoch was owned, counted from 1.
    pub late_from: Option<u8>,
    /// The contents that its reads must return: promoted, or its own.
    pub shown: Option<Stamp>,
    /// A promotion has found nothing.
    pub absent: bool,
}

impl Client {
    pub fn epoch(&self) -> Option<u8> {
        match self.phase {
            Phase::Owner(epoch) => Some(epoch),
            _ => None,
        }
    }
}

/// What must survive: see [`crate::judge`].
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash)]
pub struct History {
    /// A bit for each epoch that was owned.
    pub owned: u8,
    /// The newest that was synced, or chosen by a promotion.
    pub floor: Stored,
    /// Contents of epochs below this one that are not the floor are ruled out.
    pub chosen_in: u8,
    /// The oldest contents that this epoch's owner has seen of the epochs before: nothing newer of
    /// those may become durable.
    pub seen: Option<(u8, Stamp)>,
    /// What went wrong.
    pub broken: u8,
    pub crashes: u8,
}

impl History {
    pub fn highest_owned(&self) -> u8 {
        (7 - self.owned.leading_zeros()) as u8
    }
}

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct State {
    pub sites: [Site; REPLICAS],
    pub clients: [Client; CLIENTS],
    pub history: History,
}

impl State {
    /// A owns epoch 1, accepted by two replicas; the third has not heard of it.
    pub fn first(setup: &Setup) -> State {
        let mut site = Site::default();
        site.disk.grant = Grant { epoch: 1, owner: 0 };
        site.told.answer[0] = Answer::Yes;
        let mut clients = [Client::default(); CLIENTS];
        clients[0].phase = Phase::Owner(1);
        for (who, client) in clients.iter_mut().enumerate().skip(1) {
            client.phase = match (setup.contest[who], setup.claims[who]) {
                (true, _) => Phase::Looking,
                (false, 0) => Phase::Idle,
                (false, epoch) => Phase::Proposing(epoch),
            };
        }
        let history = History {
            owned: 0b11,
            ..History::default()
        };
        let mut state = State {
            sites: [site, site, Site::default()],
            clients,
            history,
        };
        if setup.symmetric {
            state.sites.sort_unstable();
        }
        state
    }

    /// Replicas that have acknowledged a client's write.
    pub fn acks(&self, who: Who, write: u8) -> usize {
        let has = |site: &&Site| site.told.acked[who] & bit(write) != 0;
        self.sites.iter().filter(has).count()
    }

    /// True if everything that the client has written is on k replicas.
    pub fn is_synced(&self, who: Who) -> bool {
        let given = self.clients[who].given;
        given == 0 || self.acks(who, given) >= SYNC
    }
}

/// The bit of a client's n-th write (from 1).
pub fn bit(write: u8) -> u8 {
    1 << (write - 1)
}
