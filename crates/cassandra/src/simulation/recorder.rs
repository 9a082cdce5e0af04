//! What clients did and saw, for the checkers; what seals stand for.

use std::collections::BTreeMap;

use dax::ids::{BlockKey, Epoch, Generation};
use dax::simulation::checkers::{Checkers, Violation};
use dax::simulation::history::{Action, ClientId, Content, Event, OpNumber, Outcome};
use dax::storage::Lineage;

use super::commits::Commits;
use super::model::{Place, Timestamp};
use super::monotonic::Monotonic;

/// What a seal's record says.
#[derive(Debug, Clone)]
pub struct Seal {
    pub lineage: Lineage,
    /// The one before it on its line.
    pub previous: Content,
    /// All commits before the cut.
    pub log: Vec<Content>,
}

pub struct Recorder {
    checkers: Checkers,
    pub violation: Option<Violation>,
    pub seals: BTreeMap<Content, Seal>,
    pub commits: Commits,
    reads: Monotonic,
    /// The highest epoch whose owner knows that it has it.
    pub newest_owned: Epoch,
    /// Operations that have not ended.
    open: BTreeMap<OpNumber, (ClientId, Action)>,
    next_op: OpNumber,
    next_read: OpNumber,
    next_content: Content,
}

impl Recorder {
    pub fn new(sync_replicas: usize) -> Recorder {
        Recorder {
            checkers: Checkers::new(sync_replicas).with_absence(),
            violation: None,
            seals: BTreeMap::new(),
            commits: Commits::default(),
            reads: Monotonic::default(),
            newest_owned: Epoch::NONE,
            open: BTreeMap::new(),
            next_op: 1,
            next_read: 0,
            next_content: 1,
        }
    }

    pub fn event(&mut self, event: &Event) {
        let result = self.checkers.event(event);
        self.judge(result);
    }

    /// A client fails with something else than a fence.
    pub fn failed(&mut self, what: String) {
        self.wrong("no errors", what);
    }

    pub fn wrong(&mut self, checker: &'static str, what: String) {
        self.judge(Err(Violation { checker, what }));
    }

    /// Remembers the first promise that is broken.
    fn judge(&mut self, result: Result<(), Violation>) {
        if self.violation.is_none() {
            self.violation = result.err();
        }
    }

    /// An owner begins with this log.
    pub fn began(&mut self, owner: Epoch, log: Vec<Content>) {
        let result = self.commits.began(owner, log);
        self.judge(result);
    }

    /// Whoever waits for a commit is told that it is done.
    pub fn committed(&mut self, epoch: Epoch, position: usize, content: Content) {
        let result = self.commits.acknowledged(epoch, position, content);
        self.judge(result);
    }

    /// A quorum is asked for a row; the read's number.
    pub fn asks(&mut self, place: Place) -> OpNumber {
        self.next_read += 1;
        self.reads.began(self.next_read, place);
        self.next_read
    }

    /// A quorum has answered.
    pub fn read(&mut self, read: OpNumber, found: Option<Timestamp>) {
        let result = self.reads.ended(read, found);
        self.judge(result);
    }

    /// Contents that nobody has written before.
    pub fn content(&mut self) -> Content {
        self.next_content += 1;
        self.next_content - 1
    }

    pub fn start(&mut self, client: ClientId, epoch: Option<Epoch>, action: Action) -> OpNumber {
        let op = self.next_op;
        self.next_op += 1;
        self.open.insert(op, (client, action));
        self.event(&Event::Started {
            op,
            client,
            epoch,
            action,
        });
        op
    }

    pub fn end(&mut self, op: OpNumber, outcome: Outcome) {
        if let Outcome::Owned(epoch) = outcome {
            self.newest_owned = self.newest_owned.max(epoch);
        }
        self.open.remove(&op);
        self.event(&Event::Ended { op, outcome });
    }

    /// The number of the next operation.
    pub fn next_op(&self) -> OpNumber {
        self.next_op
    }

    /// Operations of these clients that began before `next`, and have not ended.
    pub fn open_since(&self, next: OpNumber, clients: &[ClientId]) -> Option<String> {
        let mut open = self.open.range(..next);
        let (_, (client, action)) = open.find(|(_, (client, _))| clients.contains(client))?;
        Some(format!("client {client} still waits for {action:?}"))
    }

    pub fn wrote(
        &mut self,
        client: ClientId,
        epoch: Epoch,
        key: BlockKey,
        generation: Generation,
    ) -> Content {
        let content = self.content();
        self.event(&Event::Wrote {
            client,
            epoch,
            key,
            generation,
            content,
        });
        content
    }
}
