//! A simulated node: the real machine and detector, and what its driver remembers.

use std::collections::{HashMap, HashSet};
use std::time::Duration;

use coordination::config::{Preset, Tags};
use coordination::detector::Detector;
use coordination::liveness::Liveness;
use coordination::records::{ActiveState, Member};
use dax::ids::{Epoch, NodeName};

use super::zones::{Commit, Owner, Reply};
use crate::machine::ranking::Ranking;
use crate::machine::{LastBeat, Limits, Machine, State};

/// What an operation in the storage tier is for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Purpose {
    /// A poll of the registry.
    Poll,
    /// The look before an epoch is proposed.
    BeforeFence {
        sent: u64,
    },
    Own(Epoch),
    /// The first heartbeat, before which an owner changes nothing.
    FirstBeat(Epoch),
    Tail,
    Beat(ActiveState),
    Commit(Commit),
}

/// An operation under way, and who answered it.
#[derive(Debug)]
pub(super) struct Operation {
    pub purpose: Purpose,
    pub began: u64,
    pub done: HashMap<usize, Reply>,
}

pub(super) struct Node {
    pub at: usize,
    pub name: NodeName,
    pub tags: Tags,
    /// Its libraries are the volume's.
    pub fits: bool,
    pub machine: Machine,
    pub up: bool,
    /// It does nothing until then.
    pub frozen_until: u64,
    pub incarnation: u32,
    /// Operations of earlier lives mean nothing to this one.
    pub operations: HashMap<u64, Operation>,
    pub state: State,
    /// When the work of the state is done.
    pub busy_until: u64,
    pub next_poll: u64,
    pub next_look: u64,
    pub next_commit: u64,
    pub updated: u64,
    /// The last heartbeat that was seen, and the highest epoch that decisions are based on.
    pub beat: Option<LastBeat>,
    pub seen: Epoch,
    pub standby_alive: bool,
    pub liveness: Liveness,
    /// Of a standby: the epoch it was attached under.
    pub attached_to: Option<Epoch>,
    /// Until when it waits for the beat of whoever took over in its place.
    pub awaits_until: Option<u64>,
    pub detector: Option<Detector>,
    pub ranking: Option<Ranking>,
    /// Of an owner of an epoch.
    pub owned: Option<Epoch>,
    pub counter: u64,
    pub beaten_at: u64,
    pub found: HashSet<Commit>,
    /// It left word in its last beat.
    pub left: bool,
}

impl Node {
    pub fn new(at: usize, tags: Tags) -> Node {
        let name = ["north", "south", "east", "west"][at];
        let name = NodeName::new(name).expect("a name");
        Node {
            at,
            machine: Node::fresh(&name, &tags),
            name,
            tags,
            fits: true,
            up: false,
            frozen_until: 0,
            incarnation: 0,
            operations: HashMap::new(),
            state: State::Looking,
            busy_until: 0,
            next_poll: 0,
            next_look: 0,
            next_commit: 0,
            updated: 0,
            beat: None,
            seen: Epoch(0),
            standby_alive: false,
            liveness: Liveness::default(),
            attached_to: None,
            awaits_until: None,
            detector: None,
            ranking: None,
            owned: None,
            counter: 0,
            beaten_at: 0,
            found: HashSet::new(),
            left: false,
        }
    }

    fn fresh(name: &NodeName, tags: &Tags) -> Machine {
        let limits = Limits::new(Preset::Fast.timings().timeout);
        Machine::new(name.clone(), tags.clone(), limits)
    }

    pub fn owner(&self) -> Owner {
        (self.at, self.incarnation)
    }

    pub fn start(&mut self) {
        self.machine = Node::fresh(&self.name, &self.tags);
        self.state = State::Looking;
        self.up = true;
        self.frozen_until = 0;
        self.incarnation += 1;
        self.begin();
    }

    /// A new life begins.
    pub fn begin(&mut self) {
        self.operations.clear();
        self.beat = None;
        self.seen = Epoch(0);
        self.standby_alive = false;
        self.liveness = Liveness::default();
        self.attached_to = None;
        self.awaits_until = None;
        self.detector = None;
        self.ranking = None;
        self.owned = None;
        self.left = false;
        self.next_poll = 0;
    }

    pub fn runs(&self, now: u64) -> bool {
        self.up && now >= self.frozen_until
    }

    pub fn does(&self, purpose: impl Fn(&Purpose) -> bool) -> bool {
        self.operations.values().any(|o| purpose(&o.purpose))
    }

    /// An epoch for which a zone has accepted somebody else, while others say nothing for longer than that: nobody may
    /// have won it.
    pub fn undecided(&self, now: u64) -> Option<(u64, Epoch)> {
        // Rivals wait for different times, as the protocol's do.
        let patience = 250 + 150 * self.at as u64;
        self.operations.iter().find_map(|(number, operation)| {
            let Purpose::Own(epoch) = operation.purpose else {
                return None;
            };
            let refused = operation.done.values().any(|r| matches!(r, Reply::Refused));
            let undecided = refused && now >= operation.began + patience;
            undecided.then_some((*number, epoch))
        })
    }

    pub fn member(&self) -> Member {
        let role = self.machine.role();
        let mut member = crate::machine::tests::member(
            self.name.as_str(),
            role,
            self.machine.state().of_member(),
        );
        member.tags = self.tags.clone();
        member.misfit = (!self.fits).then(|| "other libraries".to_owned());
        member.incarnation.0 = self.incarnation.to_string();
        member.updated = self.updated;
        member
    }
}

pub(super) fn ms_of(time: Duration) -> u64 {
    time.as_millis() as u64
}

pub(super) fn ms(time: u64) -> Duration {
    Duration::from_millis(time)
}
