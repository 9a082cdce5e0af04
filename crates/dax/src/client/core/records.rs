//! Records: small values read and written by majority.
//!
//! A write completes once a majority has it, a read takes the newest of a majority, so a completed
//! write is seen by every later read. (Two reads during one write may see the new value and then the
//! old one.) Versions come from the epoch's owner; a record that a node writes without owning an epoch
//! takes a version after the one that is found first.

use std::collections::{BTreeMap, HashMap};

use bytes::Bytes;

use crate::error::{Error, ErrorKind, Result};
use crate::ids::{ReplicaId, Version};
use crate::storage::Authority;
use crate::wire::{MAX_RECORD_BYTES, RecordEntry, Request, Response, StoredRecord};

use super::quorum::{Quorums, Round};
use super::shared::Shared;
use super::{Asker, Event, OpId, Output, unexpected};

/// Reads, writes or promotes one record.
#[derive(Debug)]
pub(super) struct RecordOp {
    name: String,
    goal: Goal,
    step: Step,
}

#[derive(Debug)]
enum Goal {
    Get,
    Put {
        value: Option<Bytes>,
        authority: Authority,
    },
    /// Put under the owner's authority what was read.
    Promote,
}

#[derive(Debug)]
enum Step {
    Getting(Round<Option<StoredRecord>>),
    Putting {
        round: Round<()>,
        version: Version,
        value: Option<Bytes>,
    },
}

impl RecordOp {
    pub fn get(name: String, s: &Shared) -> RecordOp {
        let step = Step::Getting(getting(&name, s.quorums));
        RecordOp {
            name,
            goal: Goal::Get,
            step,
        }
    }

    pub fn promote(name: String, s: &Shared) -> Result<RecordOp> {
        s.handle.check_writer()?;
        Ok(RecordOp {
            goal: Goal::Promote,
            ..RecordOp::get(name, s)
        })
    }

    pub fn put(
        name: String,
        value: Option<Bytes>,
        authority: Authority,
        s: &mut Shared,
    ) -> Result<RecordOp> {
        let bytes = value.as_ref().map_or(0, Bytes::len);
        if bytes > MAX_RECORD_BYTES {
            return Err(Error::new(
                ErrorKind::Invalid,
                format!("record {name} of {bytes} bytes is above 1 MiB"),
            ));
        }
        let version = match authority {
            Authority::Owner => {
                s.handle.check_writer()?;
                Some(s.new_version())
            }
            // Others may have written it since: it is looked for first.
            Authority::Node => None,
        };
        let mut op = RecordOp {
            goal: Goal::Put { value, authority },
            ..RecordOp::get(name, s)
        };
        if let Some(version) = version {
            op.start_put(version, s);
        }
        Ok(op)
    }

    /// Goes on to write, with this version.
    fn start_put(&mut self, version: Version, s: &Shared) {
        let (value, authority) = match (&self.goal, &self.step) {
            (Goal::Put { value, authority }, _) => (value.clone(), *authority),
            (_, Step::Getting(round)) => (newest(round).and_then(|r| r.value), Authority::Owner),
            (_, Step::Putting { value, .. }) => (value.clone(), Authority::Owner),
        };
        let request = Request::PutRecord {
            epoch: match authority {
                Authority::Owner => s.handle.epoch(),
                Authority::Node => None,
            },
            name: self.name.clone(),
            version,
            value: value.clone(),
        };
        self.step = Step::Putting {
            round: Round::new(request, s.quorums.all().len()),
            version,
            value,
        };
    }

    /// See [`super::quorum::Round::restart`].
    pub fn restart(&mut self) {
        match &mut self.step {
            Step::Getting(round) => round.restart(),
            Step::Putting { round, .. } => round.restart(),
        }
    }

    pub fn on(&mut self, id: OpId, event: Event, s: &mut Shared) -> Option<Result<Output>> {
        let result = self.advance(id, event, s);
        if !matches!(result, Ok(None)) {
            return result.transpose();
        }
        let asker = Asker::Op(id);
        match &mut self.step {
            Step::Getting(round) => round.ask(s.now, asker, &mut s.links, &mut s.out),
            Step::Putting { round, .. } => round.ask(s.now, asker, &mut s.links, &mut s.out),
        }
        None
    }

    fn advance(&mut self, id: OpId, event: Event, s: &mut Shared) -> Result<Option<Output>> {
        match event {
            Event::Reply(replica, reply) => self.reply(id, replica, reply, s),
            Event::Lost(replica) => {
                match &mut self.step {
                    Step::Getting(round) => round.lost(replica),
                    Step::Putting { round, .. } => round.lost(replica),
                }
                Ok(None)
            }
            Event::Emptied(replica) => {
                match &mut self.step {
                    Step::Getting(round) => round.forget(replica),
                    Step::Putting { round, .. } => round.forget(replica),
                }
                Ok(None)
            }
            Event::Start | Event::Wake | Event::Synced => Ok(None),
        }
    }

    fn reply(
        &mut self,
        id: OpId,
        replica: ReplicaId,
        reply: Response,
        s: &mut Shared,
    ) -> Result<Option<Output>> {
        match (&mut self.step, reply) {
            (Step::Getting(round), Response::Record(record)) => {
                round.answer(replica, record);
                if s.quorums.is_majority(round.replied()) {
                    s.links.forget_asked(id);
                    return self.got(s);
                }
            }
            (Step::Putting { round, version, .. }, Response::RecordStored { version: stored }) => {
                if stored > *version {
                    s.links.forget_asked(id);
                    self.outdone(stored, s);
                    return Ok(None);
                }
                round.answer(replica, ());
                let enough = s.quorums.is_majority(round.replied());
                #[cfg(test)]
                let enough = enough || s.flaw == Some(crate::simulation::flaw::Flaw::PutAtOne);
                if enough {
                    return Ok(Some(self.put_done()));
                }
            }
            (Step::Getting(round), Response::Error { kind, message }) => {
                fail(round.error(replica, kind, message, s.now))?;
            }
            (Step::Putting { round, .. }, Response::Error { kind, message }) => {
                fail(round.error(replica, kind, message, s.now))?;
            }
            (_, other) => return Err(unexpected(replica, &other)),
        }
        Ok(None)
    }

    /// A majority was read.
    fn got(&mut self, s: &mut Shared) -> Result<Option<Output>> {
        let Step::Getting(round) = &self.step else {
            return Ok(None);
        };
        let found = newest(round);
        let version = found.as_ref().map_or(Version::ZERO, |r| r.version);
        match self.goal {
            Goal::Get => return Ok(Some(Output::Record(found.and_then(|r| r.value)))),
            Goal::Promote if found.is_none() => return Ok(Some(Output::Record(None))),
            Goal::Promote => {
                s.handle.check_writer()?;
                s.handle.skip_past(version);
                let version = s.new_version();
                self.start_put(version, s);
            }
            Goal::Put { ref value, .. } => {
                let records = &mut s.handle.node_records;
                let version = records.next(&self.name, value.as_ref(), version);
                self.start_put(version, s);
            }
        }
        Ok(None)
    }

    /// A replica has a newer version than the one being written: write again, above it.
    fn outdone(&mut self, stored: Version, s: &mut Shared) {
        let version = match &self.goal {
            Goal::Put {
                authority: Authority::Node,
                value,
            } => {
                let records = &mut s.handle.node_records;
                records.next(&self.name, value.as_ref(), stored)
            }
            _ => {
                s.handle.skip_past(stored);
                s.new_version()
            }
        };
        self.start_put(version, s);
    }

    fn put_done(&mut self) -> Output {
        match (&self.goal, &mut self.step) {
            (Goal::Promote, Step::Putting { value, .. }) => Output::Record(value.take()),
            _ => Output::Unit,
        }
    }
}

fn getting(name: &str, quorums: Quorums) -> Round<Option<StoredRecord>> {
    let name = name.to_owned();
    Round::new(Request::GetRecord { name }, quorums.all().len())
}

fn newest(round: &Round<Option<StoredRecord>>) -> Option<StoredRecord> {
    let found = round.replies.iter().filter_map(|(_, r)| r.as_ref());
    found.max_by_key(|r| r.version).cloned()
}

fn fail(error: Option<Error>) -> Result<()> {
    error.map_or(Ok(()), Err)
}

/// Reads the records under a prefix, page by page from each replica.
#[derive(Debug)]
pub(super) struct List {
    round: Round<()>,
    pages: HashMap<ReplicaId, Vec<RecordEntry>>,
    /// Once a majority has answered.
    newest: BTreeMap<String, StoredRecord>,
    prefix: String,
}

impl List {
    pub fn new(prefix: String, quorums: Quorums) -> List {
        let request = Request::ListRecords {
            prefix: prefix.clone(),
            after: None,
        };
        List {
            round: Round::new(request, quorums.all().len()),
            pages: HashMap::new(),
            newest: BTreeMap::new(),
            prefix,
        }
    }

    /// See [`super::quorum::Round::restart`].
    pub fn restart(&mut self) {
        self.round.restart();
        self.pages.clear();
    }

    pub fn on(&mut self, id: OpId, event: Event, s: &mut Shared) -> Option<Result<Output>> {
        match event {
            Event::Reply(replica, Response::Records { entries, more }) => {
                self.page(replica, entries, more, id, s);
            }
            Event::Reply(replica, Response::Error { kind, message }) => {
                self.pages.remove(&replica);
                if let Some(error) = self.round.error(replica, kind, message, s.now) {
                    return Some(Err(error));
                }
            }
            Event::Reply(replica, other) => return Some(Err(unexpected(replica, &other))),
            Event::Lost(replica) => {
                if !self.round.replied().contains(replica) {
                    self.pages.remove(&replica);
                }
                self.round.lost(replica);
            }
            Event::Emptied(replica) => {
                self.pages.remove(&replica);
                self.round.forget(replica);
            }
            Event::Start | Event::Wake | Event::Synced => {}
        }
        if s.quorums.is_majority(self.round.replied()) {
            self.merge();
            return Some(Ok(Output::Records(self.merged())));
        }
        self.round
            .ask(s.now, Asker::Op(id), &mut s.links, &mut s.out);
        None
    }

    fn page(
        &mut self,
        replica: ReplicaId,
        entries: Vec<RecordEntry>,
        more: bool,
        id: OpId,
        s: &mut Shared,
    ) {
        let last = entries.last().map(|e| e.name.clone());
        self.pages.entry(replica).or_default().extend(entries);
        if !more || last.is_none() {
            self.round.answer(replica, ());
            return;
        }
        let request = Request::ListRecords {
            prefix: self.prefix.clone(),
            after: last,
        };
        s.links
            .ask(replica, Asker::Op(id), request, s.now, &mut s.out);
    }

    /// The newest version of each record, without the removed.
    fn merged(&mut self) -> Vec<(String, Bytes)> {
        let present = self.newest.iter();
        present
            .filter_map(|(name, record)| Some((name.clone(), record.value.clone()?)))
            .collect()
    }

    /// The newest version of each record, the removed included, once the list is complete.
    pub fn take_newest(&mut self) -> BTreeMap<String, StoredRecord> {
        std::mem::take(&mut self.newest)
    }

    fn merge(&mut self) {
        let complete = self.round.replied();
        let pages = self
            .pages
            .drain()
            .filter(|(replica, _)| complete.contains(*replica));
        for entry in pages.flat_map(|(_, entries)| entries) {
            match self.newest.get(&entry.name) {
                Some(known) if known.version >= entry.record.version => {}
                _ => {
                    self.newest.insert(entry.name, entry.record);
                }
            }
        }
    }
}
