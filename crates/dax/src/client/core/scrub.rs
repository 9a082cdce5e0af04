//! Comparing what the replicas have, mending what differs, and bringing a replica back that lost
//! everything.
//!
//! ```text
//!   page after page:  ask every replica that is up for its inventory ──▶ compare ──▶ differences
//!   mend:             differences ──▶ each replica's list of missed blocks ──▶ repairs (see repair)
//!   end:              records ──▶ rebuilding replicas ──▶ "rebuilt": they count in quorums again
//! ```
//!
//! Invariants: a page is compared only once [`super::quorum::Roster::rebuild`] replicas that count have answered
//! under this handle's epoch, so the newest version among the answers is the newest that was ever
//! synced; a rebuilding replica becomes one that counts only if it was connected from the first page
//! to the last and lacks nothing that is known. A scrub counts for nobody if it met a block without an intact copy
//! that may be durable with those who were away.

use std::collections::BTreeMap;

use crate::error::{Error, ErrorKind, Result};
use crate::ids::{BlockKey, Generation, ReplicaId, Version};
use crate::replica::prune;
use crate::storage::{Difference, Retention, ScrubCursor, ScrubPage};
use crate::wire::{InventoryEntry, Request, Response, StoredRecord};

use super::change::copy_records;
use super::quorum::{ReplicaSet, Round};
use super::records::List;
use super::shared::Shared;
use super::{Asker, Event, OpId, Output, unexpected};
use crate::writer::pending::Seq;

/// What one replica has of a part of the volume.
#[derive(Debug, Clone)]
pub(super) struct Inventory {
    pub replica: ReplicaId,
    pub entries: Vec<InventoryEntry>,
    pub more: bool,
}

/// How often a replica is asked for a part that it cannot give at present.
const TRIES: u8 = 10;

/// Asks for one part and compares it.
#[derive(Debug)]
pub(super) struct Page {
    after: Option<ScrubCursor>,
    round: Round<Inventory>,
    /// How often each of those that could not answer has failed. What keeps them may pass, and one that is left out has
    /// not taken part in the scrub.
    failed: BTreeMap<ReplicaId, u8>,
}

impl Page {
    pub fn new(after: Option<ScrubCursor>, s: &mut Shared) -> Result<Page> {
        let epoch = s.handle.check_writer()?;
        if after.is_none() {
            s.begin_scrub();
        }
        let request = Request::Inventory { epoch, after };
        Ok(Page {
            after,
            round: Round::new(request, s.links.everybody().len()),
            failed: BTreeMap::new(),
        })
    }

    /// See [`super::quorum::Round::restart`].
    pub fn restart(&mut self) {
        self.round.restart();
    }

    pub fn on(&mut self, id: OpId, event: Event, s: &mut Shared) -> Option<Result<Output>> {
        match event {
            Event::Reply(replica, Response::Inventory { entries, more }) => {
                let inventory = Inventory {
                    replica,
                    entries,
                    more,
                };
                self.round.answer(replica, inventory);
            }
            Event::Reply(replica, Response::Error { kind, message }) => {
                // An index that is damaged stays so.
                let failed = self.failed.entry(replica).or_default();
                *failed = match kind {
                    ErrorKind::Corrupt => TRIES,
                    _ => *failed + 1,
                };
                if let Some(error) = self.round.error(replica, kind, message, s.now) {
                    return Some(Err(error));
                }
            }
            Event::Reply(replica, other) => return Some(Err(unexpected(replica, &other))),
            Event::Lost(replica) => {
                self.failed.remove(&replica);
                self.round.lost(replica);
            }
            Event::Emptied(replica) => self.round.forget(replica),
            Event::Start | Event::Wake | Event::Synced => {}
        }
        self.round
            .ask(s.now, Asker::Op(id), &mut s.links, &mut s.out);
        self.is_complete(s).then(|| Ok(self.compared(s)))
    }

    /// True if everybody who is up has answered, and enough of those who count.
    fn is_complete(&self, s: &Shared) -> bool {
        let counting = self.round.replied().without(s.links.rebuilding());
        let may_pass = self.failed.iter().filter(|(_, failed)| **failed < TRIES);
        let may_pass: ReplicaSet = may_pass.map(|(replica, _)| *replica).collect();
        // One that has left the members since is asked no more.
        let may_pass = may_pass.intersection(s.links.up());
        let left = self
            .round
            .waiting()
            .union(may_pass.without(self.round.replied()));
        #[cfg(test)]
        if s.flaw == Some(crate::simulation::flaw::Flaw::RebuiltFromOne) {
            return left.is_empty() && !counting.is_empty();
        }
        left.is_empty() && s.quorums.is_rebuild(counting)
    }

    fn compared(&mut self, s: &mut Shared) -> Output {
        let replied = self.round.replied();
        let replies = std::mem::take(&mut self.round.replies);
        let inventories: Vec<Inventory> = replies.into_iter().map(|(_, i)| i).collect();
        let mut compared = compare(&inventories, s.retention.as_ref());
        // Whoever is away may have the only intact copy of what is durable, so nobody was compared with it.
        let away = s.quorums.all().without(replied);
        let away = away.without(s.lost_members());
        let in_doubt =
            |damaged: &ReplicaSet| !away.is_empty() && s.quorums.is_synced(damaged.union(away));
        let doubtful = compared.unreadable.iter().any(in_doubt);
        s.scrub_answered(match doubtful {
            true => ReplicaSet::default(),
            false => replied,
        });
        compared.page.differences.retain(|d| !s.is_underway(d));
        s.handle.counters.copies_scrubbed += compared.copies;
        s.handle.counters.copies_damaged += compared.damaged;
        debug_assert!(compared.page.next > self.after || compared.page.next.is_none());
        Output::Scrubbed(compared.page)
    }
}

/// The copies of one version: where, and which version; none if it is damaged.
type Copies = Vec<(ReplicaId, Option<Version>)>;

/// A comparison, and what it looked at.
#[derive(Debug, Default)]
struct Compared {
    page: ScrubPage,
    copies: u64,
    damaged: u64,
    /// Who has damaged copies of each version that nobody has an intact copy of.
    unreadable: Vec<ReplicaSet>,
}

/// Finds what differs, as far as all inventories reach.
fn compare(inventories: &[Inventory], retention: Option<&Retention>) -> Compared {
    let cut = inventories.iter().filter(|i| i.more);
    let reach = cut.filter_map(|i| i.entries.last().map(cursor)).min();
    let mut blocks: BTreeMap<BlockKey, BTreeMap<Generation, Copies>> = BTreeMap::new();
    let mut result = Compared::default();
    for inventory in inventories {
        let within = |e: &&InventoryEntry| reach.is_none_or(|reach| cursor(e) <= reach);
        for entry in inventory.entries.iter().filter(within) {
            let generations = blocks.entry(entry.key).or_default();
            let copies = generations.entry(entry.generation).or_default();
            copies.push((inventory.replica, entry.version));
            result.copies += 1;
            result.damaged += u64::from(entry.version.is_none());
        }
    }
    for (key, generations) in blocks {
        if result.page.files.last() != Some(&key.file) {
            result.page.files.push(key.file);
        }
        // A replica may have dropped already what another one still has.
        let stored: Vec<Generation> = generations.keys().copied().collect();
        let dropped = retention.map_or(Vec::new(), |r| prune(&stored, r));
        for (generation, copies) in generations {
            result.page.blocks += 1;
            if dropped.contains(&generation) {
                continue;
            }
            let Some(newest) = copies.iter().filter_map(|(_, version)| *version).max() else {
                let damaged = copies.iter().map(|(replica, _)| *replica);
                result.unreadable.push(damaged.collect());
                result.page.unreadable.push(key);
                continue;
            };
            let has_newest = |replica| copies.contains(&(replica, Some(newest)));
            let behind = inventories.iter().filter(|i| !has_newest(i.replica));
            result.page.differences.extend(behind.map(|i| Difference {
                replica: i.replica,
                key,
                generation,
            }));
        }
    }
    result.page.next = reach;
    result
}

fn cursor(entry: &InventoryEntry) -> ScrubCursor {
    (entry.key, entry.generation)
}

/// Waits until the replicas have what was found missing. One that has refused some of it for long takes no part in the
/// scrub any more.
#[derive(Debug)]
pub(super) struct Mend {
    replicas: ReplicaSet,
}

impl Mend {
    pub fn new(differences: &[Difference], s: &mut Shared) -> Result<Mend> {
        s.handle.check_writer()?;
        let mut replicas = ReplicaSet::default();
        for d in differences {
            replicas.insert(d.replica);
            s.links.note_missed(d.replica, d.key, d.generation);
        }
        Ok(Mend { replicas })
    }

    pub fn on(&self, s: &mut Shared) -> Option<Result<Output>> {
        let mut is_done = true;
        for replica in self.replicas.iter() {
            if s.refuses(replica) {
                s.scrub_lost(replica);
            } else if s.links.up().contains(replica) {
                is_done &= s.links.is_mended(replica);
            }
        }
        is_done.then_some(Ok(Output::Unit))
    }
}

/// Brings the replicas that took part in a whole scrub back into the quorums, one after the other.
#[derive(Debug)]
pub(super) struct End {
    waiting: Vec<ReplicaId>,
    rebuilt: Vec<ReplicaId>,
    /// What was written before the end. A page leaves out what is on its way to a replica; that must
    /// have arrived, because it can be refused.
    upto: Seq,
    step: Step,
}

/// ```text
///   next replica ──▶ waiting until mended ──▶ listing records ──▶ copying ──▶ telling ──▶ next
///                    (the replica goes down at any step: it is left out, and the next one begins)
/// ```
#[derive(Debug)]
enum Step {
    Next,
    Mending,
    Listing(Box<List>),
    /// So many records are on their way.
    Copying(usize),
    Telling,
}

impl End {
    pub fn new(s: &mut Shared) -> Result<End> {
        s.handle.check_writer()?;
        let waiting = s.end_scrub();
        Ok(End {
            waiting: waiting.iter().collect(),
            rebuilt: Vec::new(),
            upto: s.handle.last_seq(),
            step: Step::Next,
        })
    }

    /// The present replica's turn begins again; what was copied to it stays there.
    pub fn restart(&mut self) {
        self.step = Step::Next;
    }

    pub fn on(&mut self, id: OpId, event: Event, s: &mut Shared) -> Option<Result<Output>> {
        match self.advance(id, event, s) {
            Err(error) => Some(Err(error)),
            Ok(()) if !self.waiting.is_empty() => None,
            Ok(()) => Some(Ok(Output::Rebuilt(std::mem::take(&mut self.rebuilt)))),
        }
    }

    fn advance(&mut self, id: OpId, event: Event, s: &mut Shared) -> Result<()> {
        let (up, turn) = (s.links.up(), self.waiting.last().copied());
        if let Event::Lost(lost) = &event {
            // It may come back with nothing again, and is left out.
            self.waiting.retain(|replica| replica != lost);
        }
        self.waiting.retain(|replica| up.contains(*replica));
        let Some(replica) = self.waiting.last().copied() else {
            return Ok(());
        };
        if turn != Some(replica) {
            // What was done for the one before says nothing of this one.
            s.links.forget_asked(id);
            self.step = Step::Next;
        }
        match (&mut self.step, event) {
            (Step::Next, _) => self.step = Step::Mending,
            (Step::Mending, _) if s.links.misses_unknown(replica) || s.refuses(replica) => {
                self.leave_out(id, s);
            }
            (Step::Mending, _)
                if s.links.is_mended(replica)
                    && s.handle.pending.is_complete(replica, self.upto) =>
            {
                let mut list = List::new(String::new(), s.quorums);
                list.on(id, Event::Start, s);
                self.step = Step::Listing(Box::new(list));
            }
            (Step::Listing(list), event) => match list.on(id, event, s) {
                Some(Ok(_)) => {
                    let records = list.take_newest();
                    self.copy(id, replica, records, s)?;
                }
                Some(Err(error)) => return Err(error),
                None => {}
            },
            (Step::Copying(left), Event::Reply(from, reply)) if from == replica => {
                check(replica, &reply)?;
                *left -= 1;
                if *left == 0 {
                    self.tell(id, replica, s)?;
                }
            }
            (Step::Telling, Event::Reply(from, reply)) if from == replica => {
                check(replica, &reply)?;
                s.set_rebuilding(replica, false);
                self.rebuilt.push(replica);
                self.waiting.pop();
                self.step = Step::Next;
            }
            _ => {}
        }
        Ok(())
    }

    fn leave_out(&mut self, id: OpId, s: &mut Shared) {
        s.links.forget_asked(id);
        self.waiting.pop();
        self.step = Step::Next;
    }

    fn copy(
        &mut self,
        id: OpId,
        replica: ReplicaId,
        records: BTreeMap<String, StoredRecord>,
        s: &mut Shared,
    ) -> Result<()> {
        s.links.forget_asked(id);
        if records.is_empty() {
            return self.tell(id, replica, s);
        }
        self.step = Step::Copying(records.len());
        copy_records(id, ReplicaSet::from_iter([replica]), &records, s)?;
        Ok(())
    }

    fn tell(&mut self, id: OpId, replica: ReplicaId, s: &mut Shared) -> Result<()> {
        let epoch = s.handle.check_writer()?;
        self.step = Step::Telling;
        let request = Request::Rebuilt { epoch };
        s.links
            .ask(replica, Asker::Op(id), request, s.now, &mut s.out);
        Ok(())
    }
}

fn check(replica: ReplicaId, reply: &Response) -> Result<()> {
    match reply {
        Response::Done | Response::RecordStored { .. } => Ok(()),
        Response::Error { kind, message } => Err(Error::new(
            *kind,
            format!("{replica} could not be rebuilt: {message}"),
        )),
        other => Err(unexpected(replica, other)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ids::{Epoch, FileId};
    use crate::storage::Lineage;

    fn key(file: u64, block: u64) -> BlockKey {
        BlockKey::new(FileId(file), block)
    }

    fn g(number: u32) -> Generation {
        Generation {
            epoch: Epoch(1),
            number,
        }
    }

    fn v(seq: u64) -> Version {
        Version {
            epoch: Epoch(1),
            seq,
        }
    }

    fn inventory(replica: u8, entries: &[(BlockKey, Generation, u64)], more: bool) -> Inventory {
        let entry = |(key, generation, seq): &(BlockKey, Generation, u64)| InventoryEntry {
            key: *key,
            generation: *generation,
            version: (*seq > 0).then(|| v(*seq)),
        };
        Inventory {
            replica: ReplicaId(replica),
            entries: entries.iter().map(entry).collect(),
            more,
        }
    }

    fn differences(page: &ScrubPage) -> Vec<(u8, u64, u32)> {
        let each = page.differences.iter();
        each.map(|d| (d.replica.0, d.key.block.0, d.generation.number))
            .collect()
    }

    #[test]
    fn missing_old_and_damaged_copies_differ() {
        let full = [
            (key(1, 0), g(1), 5),
            (key(1, 1), g(1), 6),
            (key(1, 1), g(2), 9),
            (key(2, 0), g(1), 7),
        ];
        let mut other = full;
        other[1].2 = 4;
        other[3].2 = 0;
        let inventories = [
            inventory(0, &full, false),
            inventory(1, &other, false),
            inventory(2, &full[..2], false),
        ];
        let found = compare(&inventories, None);
        let expected = [(1, 1, 1), (2, 1, 2), (1, 0, 1), (2, 0, 1)];
        assert_eq!(differences(&found.page), expected);
        assert_eq!(found.page.files, [FileId(1), FileId(2)]);
        assert_eq!((found.page.blocks, found.copies, found.damaged), (4, 10, 1));
        assert_eq!(found.page.next, None);
    }

    #[test]
    fn pages_are_compared_as_far_as_all_of_them_reach() {
        let long = [
            (key(1, 0), g(1), 1),
            (key(1, 5), g(1), 2),
            (key(1, 9), g(1), 3),
        ];
        let inventories = [
            inventory(0, &long, true),
            inventory(1, &long[..2], true),
            inventory(2, &[], false),
        ];
        let found = compare(&inventories, None);
        assert_eq!(found.page.next, Some((key(1, 5), g(1))));
        assert_eq!(differences(&found.page), [(2, 0, 1), (2, 5, 1)]);
    }

    #[test]
    fn blocks_that_one_replica_has_dropped_are_not_sent_back() {
        let retention = Retention {
            images: vec![Lineage::up_to(g(2))],
        };
        let inventories = [
            inventory(0, &[(key(1, 0), g(1), 1), (key(1, 0), g(2), 2)], false),
            inventory(1, &[(key(1, 0), g(2), 2)], false),
        ];
        let found = compare(&inventories, Some(&retention));
        assert_eq!(differences(&found.page), []);
        let found = compare(&inventories, None);
        assert_eq!(differences(&found.page), [(1, 0, 1)]);
    }

    #[test]
    fn a_block_without_an_intact_copy_is_named() {
        let inventories = [
            inventory(0, &[(key(1, 0), g(1), 0)], false),
            inventory(1, &[(key(1, 0), g(1), 0)], false),
        ];
        let found = compare(&inventories, None);
        assert_eq!(found.page.unreadable, [key(1, 0)]);
        assert!(found.page.differences.is_empty());
    }
}
