//! What a schedule did, as its clients saw it: the one thing that the checkers are fed with.
//!
//! Every write and every record has contents of its own, a number that grows from write to write. So
//! a checker needs no versions: contents say who wrote them, and when.

use std::collections::BTreeMap;

use crate::ids::{BlockKey, Epoch, FileId, Generation};

/// A client's number. A client lives once: a node that starts again is another one.
pub type ClientId = usize;

/// An operation's number in its history.
pub type OpNumber = u64;

/// What a block or record holds, by the order of all writes; 0 is "nothing".
pub type Content = u64;

/// Nothing was ever written.
pub const NOTHING: Content = 0;

/// A copy that fails its checksum.
pub const DAMAGED: Content = Content::MAX;

/// A record of the registry, by number.
pub type RecordId = u8;

/// What a client asks for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Action {
    Own,
    /// Everything that the client has written so far.
    Sync,
    SyncFile(FileId),
    /// What the client has written to the file up to these contents.
    SyncUpTo(FileId, Content),
    Promote(BlockKey),
    Read {
        key: BlockKey,
        up_to: Generation,
    },
    /// A block of the image of a seal.
    ReadSeal {
        seal: Content,
        key: BlockKey,
    },
    Put {
        record: RecordId,
        content: Content,
    },
    Get(RecordId),
    PromoteRecord(RecordId),
    /// True if the client's epoch still stands, so that what it knows is all that was acknowledged.
    Confirm,
    /// Anything else that must end, and that nothing is known about.
    Other,
}

/// What an operation gave.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Outcome {
    /// It owns the epoch, or owns it still.
    Owned(Epoch),
    Done,
    Block(Generation, Content),
    Record(Content),
    /// A higher epoch exists, or somebody else won the contest for one.
    Fenced,
}

/// Durable contents of a replica's blocks.
pub type Shelf = BTreeMap<(BlockKey, Generation), Content>;

/// Replicas whose copies count, and how many of them make a write durable.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Roster {
    pub members: Vec<usize>,
    pub sync: usize,
}

/// One thing that happened.
#[derive(Debug, Clone)]
pub enum Event {
    Wrote {
        client: ClientId,
        epoch: Epoch,
        key: BlockKey,
        generation: Generation,
        content: Content,
    },
    Started {
        op: OpNumber,
        client: ClientId,
        /// The epoch that the client owned.
        epoch: Option<Epoch>,
        action: Action,
    },
    Ended {
        op: OpNumber,
        outcome: Outcome,
    },
    /// The writer cut its stream of writes: a seal's image is what it wrote so far, on top of the
    /// image of the seal that its epoch began with.
    Cut {
        client: ClientId,
        epoch: Epoch,
        seal: Content,
        base: Content,
    },
    /// The owner of the epoch lets go of images of earlier seals than these, and of generations up to
    /// `end` that no kept image shows.
    Retained {
        epoch: Epoch,
        seals: [Content; 2],
        end: Generation,
    },
    /// The owner of an epoch needs no block of the file before this one any more, and writes none.
    Removed {
        epoch: Epoch,
        file: FileId,
        before: u64,
    },
    /// Whose copies count from now on, by place in what is stored: a write is durable once it is on enough of
    /// one of them.
    Rosters(Vec<Roster>),
    /// What each replica has durably; none where it has lost everything and does not count.
    Stored(Vec<Option<Shelf>>),
}

/// A write, as far as it is known to everybody.
#[derive(Debug, Clone, Copy)]
pub struct Write {
    pub content: Content,
    pub client: ClientId,
    pub epoch: Epoch,
    pub key: BlockKey,
    pub generation: Generation,
}

/// An operation that has started.
#[derive(Debug, Clone, Copy)]
pub struct Started {
    pub client: ClientId,
    pub epoch: Option<Epoch>,
    pub action: Action,
    /// The last contents that were written when it started.
    pub at: Content,
}

/// Everything that has happened, for checkers to look things up.
#[derive(Debug, Default)]
pub struct History {
    writes: BTreeMap<Content, Write>,
    records: BTreeMap<Content, (RecordId, Option<Epoch>)>,
    ops: BTreeMap<OpNumber, Started>,
    last: Content,
}

impl History {
    /// Takes an event in, before the checkers see it.
    pub fn note(&mut self, event: &Event) {
        match *event {
            Event::Wrote {
                client,
                epoch,
                key,
                generation,
                content,
            } => {
                let write = Write {
                    content,
                    client,
                    epoch,
                    key,
                    generation,
                };
                self.writes.insert(content, write);
                self.last = content;
            }
            Event::Started {
                op,
                client,
                epoch,
                action,
            } => {
                if let Action::Put { record, content } = action {
                    self.records.insert(content, (record, epoch));
                    self.last = self.last.max(content);
                }
                let started = Started {
                    client,
                    epoch,
                    action,
                    at: self.last,
                };
                self.ops.insert(op, started);
            }
            _ => {}
        }
    }

    /// The write that made these contents of a block.
    pub fn write(&self, content: Content) -> Option<&Write> {
        self.writes.get(&content)
    }

    /// Which record these contents were put into, under which epoch.
    pub fn record(&self, content: Content) -> Option<(RecordId, Option<Epoch>)> {
        self.records.get(&content).copied()
    }

    /// An operation that has started.
    pub fn op(&self, op: OpNumber) -> Option<&Started> {
        self.ops.get(&op)
    }

    /// The writes that a sync covers.
    pub fn covered(&self, sync: &Started) -> impl Iterator<Item = &Write> {
        let Started {
            client, action, at, ..
        } = *sync;
        let writes = self.writes.range(..=at).map(|(_, write)| write);
        writes.filter(move |w| w.client == client && action.covers(w))
    }

    /// Writes of the client to the block after `from` and up to `to`, in order.
    pub fn writes_between(
        &self,
        client: ClientId,
        key: BlockKey,
        from: Content,
        to: Content,
    ) -> impl DoubleEndedIterator<Item = &Write> {
        let writes = self.writes.range(from + 1..to + 1).map(|(_, w)| w);
        writes.filter(move |w| w.client == client && w.key == key)
    }

    /// The last contents that were written.
    pub fn last(&self) -> Content {
        self.last
    }
}

impl Action {
    fn covers(self, write: &Write) -> bool {
        match self {
            Action::Sync => true,
            Action::SyncFile(file) => write.key.file == file,
            Action::SyncUpTo(file, content) => write.key.file == file && write.content <= content,
            _ => false,
        }
    }

    /// True if it is a sync point.
    pub fn is_sync(self) -> bool {
        matches!(
            self,
            Action::Sync | Action::SyncFile(_) | Action::SyncUpTo(..)
        )
    }
}
