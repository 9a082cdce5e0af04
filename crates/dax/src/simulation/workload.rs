//! What clients do: owners write, sync, promote, read, seal and scrub; readers follow seals and
//! records. Also those who have been deposed and do not know it.

use std::collections::{BTreeMap, BTreeSet};

use super::contents::{BLOCK_BYTES, value_of};
use super::flaw::Flaw;
use super::history::{Action, ClientId, Content, Event, NOTHING, OpNumber, Outcome, RecordId};
use super::schedule::{DATA, KEYS, SINGLES, Schedule, TAIL};
use crate::client::core::{Call, Core};
use crate::ids::{BlockIndex, BlockKey, Epoch, Generation, Version};
use crate::storage::{Authority, Lineage, Retention, ScrubPage, SyncScope};
use crate::writer::differences::Differences;
use crate::writer::tails::Tails;

/// The record that names the last seal, the owner's other record, and one that a node writes.
const SEAL: RecordId = 0;
const OWNERS: RecordId = 1;
const NODES: RecordId = 2;

/// What an operation was for, where something follows from it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Intent {
    Own,
    /// The new owner's look at the last seal.
    Base,
    /// A cut is synced.
    SyncSeal(Content),
    PutSeal(Content),
    PutNode,
    /// A put or promotion of the owner's other record.
    Record,
    /// A reader's look at the last seal, to read from it.
    Follow,
    /// A block in the image of a seal.
    ReadSeal(Content, BlockKey),
    /// The same, with the version that the seal's list says.
    ReadListed,
    Scrub,
    Mend(Option<(BlockKey, Generation)>),
    EndScrub,
    /// Something about the members.
    Exchange,
    /// A block that the volume below shows, with its contents.
    Below(Content),
    /// Nothing follows.
    Plain,
}

/// Somebody who owns an epoch, or did.
#[derive(Debug)]
pub(super) struct Writer {
    pub client: ClientId,
    pub epoch: Epoch,
    /// The last generation that it cut, and the number of the open one.
    open: u32,
    /// The seal that its epoch began with, once it knows.
    base: Option<Content>,
    /// Its last seal, and the one before.
    seals: [Content; 2],
    sealing: bool,
    scrubbing: bool,
    /// It works on its record: one operation at a time.
    recording: bool,
    /// Its last write, for syncs up to it.
    last: Option<(BlockKey, Content, Version)>,
    /// What its seals list: the newest version of each data block.
    listed: Listed,
    /// The blocks of a single version that it wrote.
    singles: BTreeSet<BlockKey>,
    /// The first block of [`TAIL`] that it has not given back.
    tail: u64,
    /// Blocks that it has sent, as far as it knows them.
    pub tails: Tails,
    pub differences: Differences,
}

/// The newest version of blocks in an image.
type Listed = BTreeMap<BlockKey, (Generation, Version)>;

impl Writer {
    fn generation(&self) -> Generation {
        Generation {
            epoch: self.epoch,
            number: self.open,
        }
    }
}

/// A client without an epoch.
#[derive(Debug)]
pub(super) struct Reader {
    pub client: ClientId,
    /// The seal that it reads from.
    seal: Content,
    putting: bool,
}

impl Reader {
    pub fn new(client: ClientId) -> Reader {
        Reader {
            client,
            seal: NOTHING,
            putting: false,
        }
    }
}

/// What a seal's record would say.
#[derive(Debug, Clone)]
pub(super) struct SealOf {
    pub lineage: Lineage,
    /// The seal before it.
    previous: Content,
    listed: Listed,
}

fn name(record: RecordId) -> String {
    format!("r{record}")
}

impl Schedule {
    // --- who -------------------------------------------------------------------------------------

    /// The writer of the highest epoch.
    pub fn newest_writer(&self) -> Option<usize> {
        let writers = self.writers.iter().enumerate();
        let newest = writers.max_by_key(|(_, w)| w.epoch);
        newest.map(|(index, _)| index)
    }

    /// Mostly the newest writer, now and then one that has been deposed.
    fn some_writer(&mut self) -> Option<usize> {
        let count = self.writers.len() as u64;
        let index = match count > 1 && self.world.chance(25) {
            true => self.world.below(count) as usize,
            false => self.newest_writer()?,
        };
        let client = self.writers[index].client;
        (!self.world.is_paused(client)).then_some(index)
    }

    fn key(&mut self) -> BlockKey {
        let block = self.world.below(KEYS);
        match self.world.chance(50) {
            true => BlockKey::new(SINGLES, block),
            false => BlockKey::new(DATA, block),
        }
    }

    /// One thing that somebody does.
    pub fn act(&mut self) {
        self.forget_fenced();
        let nobody = self.newest_writer().is_none() && self.claimants.is_empty();
        // Where nothing can become durable, an owner's writes shall still be waiting when something can.
        let rivals = !self.is_squeezed() && self.claimants.is_empty();
        if nobody || (rivals && self.world.chance(1)) {
            return self.claim();
        }
        match self.world.below(100) {
            0..70 => {
                if let Some(writer) = self.some_writer() {
                    if self.world.chance(5) {
                        self.world.raise();
                    }
                    self.act_as(writer);
                }
            }
            _ => {
                if let Some(reader) = self.some_reader() {
                    self.look(reader);
                }
            }
        }
    }

    fn act_as(&mut self, writer: usize) {
        let client = self.writers[writer].client;
        let key = self.key();
        match self.world.below(100) {
            0..4 => {
                let block = self.writers[writer].tail + self.world.below(2);
                self.write(writer, BlockKey::new(TAIL, block));
            }
            4..42 => {
                self.write(writer, key);
            }
            42..54 => self.sync(writer),
            54..66 => self.promote(
                writer,
                BlockKey {
                    file: SINGLES,
                    ..key
                },
            ),
            66..80 => {
                let up_to = match self.world.chance(50) {
                    true => Generation::MAX,
                    false if key.file == SINGLES => Generation::SINGLE,
                    false => self.writers[writer].generation(),
                };
                self.read(client, key, up_to);
            }
            80..88 => self.seal(writer),
            88..94 => self.record(writer),
            94 => self.scrub(writer),
            95 => self.remove_tail(writer),
            96 => match self.faults.exchanges {
                true => self.exchange(client),
                false => self.scrub(writer),
            },
            97 if self.world.chance(35) => {
                let Writer { epoch, seals, .. } = self.writers[writer];
                if seals.iter().all(|seal| *seal != NOTHING) {
                    self.retain(client, epoch, seals);
                }
            }
            97 if self.world.chance(50) => {
                self.world.coverage.one("questions whether an epoch stands");
                self.start(client, Call::Confirm, Action::Confirm, Intent::Plain);
            }
            97 => self.start(
                client,
                Call::Room(BLOCK_BYTES),
                Action::Other,
                Intent::Plain,
            ),
            _ => {
                let seals = self.writers[writer].seals;
                let seal = seals[self.world.below(2) as usize];
                self.read_seal(client, seal, BlockKey { file: DATA, ..key });
            }
        }
    }

    fn look(&mut self, reader: usize) {
        let client = self.readers[reader].client;
        let key = self.key();
        match self.world.below(100) {
            0..25 => {
                let call = Call::GetRecord(name(SEAL));
                self.start(client, call, Action::Get(SEAL), Intent::Follow);
            }
            25..45 => {
                let seal = self.readers[reader].seal;
                self.read_seal(client, seal, BlockKey { file: DATA, ..key });
            }
            45..65 => {
                let up_to = match key.file {
                    SINGLES => Generation::SINGLE,
                    _ => Generation::MAX,
                };
                self.read(client, key, up_to);
            }
            65..80 => self.get(client, OWNERS),
            80..90 => self.get(client, NODES),
            // One node writes its record, one put at a time.
            _ if reader == 0 && !self.readers[0].putting => {
                self.readers[0].putting = true;
                let content = self.content();
                let authority = Authority::Node;
                self.put(client, (NODES, content), authority, Intent::PutNode);
            }
            _ => {}
        }
    }

    /// The node behind a reader starts again.
    pub fn restart_reader(&mut self, index: usize) {
        let client = self.readers[index].client;
        self.world.coverage.one("readers restarted");
        self.world.crash_client(client);
        self.intents.retain(|(c, _), _| *c != client);
        self.readers[index] = Reader::new(self.world.add_client());
    }

    /// Writers that know that they are fenced do nothing more.
    fn forget_fenced(&mut self) {
        let fenced = |w: &Writer| self.world.clients[w.client].core.is_fenced();
        let gone: Vec<ClientId> = self
            .writers
            .iter()
            .filter(|w| fenced(w))
            .map(|w| w.client)
            .collect();
        for client in gone {
            self.world.crash_client(client);
            self.writers.retain(|w| w.client != client);
        }
    }

    // --- what ------------------------------------------------------------------------------------

    /// Somebody new tries to own an epoch.
    pub fn claim(&mut self) {
        let client = self.world.add_client();
        self.claimants.push(client);
        let owner = format!("n/{client}");
        self.start(client, Call::OwnEpoch { owner }, Action::Own, Intent::Own);
    }

    /// Writes a block, if there is room.
    pub fn write(&mut self, writer: usize, key: BlockKey) -> bool {
        let Writer { client, epoch, .. } = self.writers[writer];
        let generation = match key.file {
            SINGLES | TAIL => Generation::SINGLE,
            _ => self.writers[writer].generation(),
        };
        // Data is written on top of an image.
        let unready = key.file == DATA && self.writers[writer].base.is_none();
        let room = |core: &mut Core, _| core.has_room(BLOCK_BYTES);
        if unready || !self.world.with(client, room) {
            self.world.coverage.one("writes that found no room");
            return false;
        }
        let content = self.content();
        // Onto what replicas have, as far as is remembered: else it is refused, and sent again.
        let contents = self.packed(writer, key, generation, content);
        let write = |core: &mut Core, _| core.write(key, generation, contents);
        let Ok(version) = self.world.with(client, write) else {
            return false;
        };
        self.world
            .note(22, [client as u64, content, key.block.0], || {
                format!("client {client} writes {content} to {key} {generation} as {version}")
            });
        self.event(&Event::Wrote {
            client,
            epoch,
            key,
            generation,
            content,
        });
        let w = &mut self.writers[writer];
        w.last = Some((key, content, version));
        match generation {
            Generation::SINGLE => {
                w.singles.insert(key);
            }
            _ => {
                w.listed.insert(key, (generation, version));
            }
        }
        true
    }

    pub fn sync_all(&mut self, writer: usize) {
        let client = self.writers[writer].client;
        let call = Call::Sync(SyncScope::Volume);
        self.start(client, call, Action::Sync, Intent::Plain);
    }

    fn sync(&mut self, writer: usize) {
        let client = self.writers[writer].client;
        let (scope, action) = match (self.world.below(4), self.writers[writer].last) {
            (0, _) => (SyncScope::File(SINGLES), Action::SyncFile(SINGLES)),
            (1, Some((key, content, version))) => (
                SyncScope::FileUpTo(key.file, version),
                Action::SyncUpTo(key.file, content),
            ),
            _ => return self.sync_all(writer),
        };
        self.start(client, Call::Sync(scope), action, Intent::Plain);
    }

    pub fn promote(&mut self, writer: usize, key: BlockKey) {
        let client = self.writers[writer].client;
        let action = Action::Promote(key);
        self.start(client, Call::Promote(key), action, Intent::Plain);
    }

    pub fn read(&mut self, client: ClientId, key: BlockKey, up_to: Generation) {
        let action = Action::Read { key, up_to };
        self.start(client, Call::Read { key, up_to }, action, Intent::Plain);
    }

    pub fn get(&mut self, client: ClientId, record: RecordId) {
        let call = Call::GetRecord(name(record));
        self.start(client, call, Action::Get(record), Intent::Plain);
    }

    /// The owner puts its record, or makes sure of what it says.
    fn record(&mut self, writer: usize) {
        let w = &mut self.writers[writer];
        if std::mem::replace(&mut w.recording, true) {
            return;
        }
        let client = w.client;
        if self.world.chance(30) {
            let call = Call::PromoteRecord(name(OWNERS));
            return self.start(client, call, Action::PromoteRecord(OWNERS), Intent::Record);
        }
        let content = self.content();
        self.put(client, (OWNERS, content), Authority::Owner, Intent::Record);
    }

    fn put(
        &mut self,
        client: ClientId,
        (record, content): (RecordId, Content),
        authority: Authority,
        intent: Intent,
    ) {
        let call = Call::PutRecord {
            name: name(record),
            value: Some(value_of(content)),
            authority,
        };
        self.start(client, call, Action::Put { record, content }, intent);
    }

    // --- seals -----------------------------------------------------------------------------------

    /// Cuts the stream of writes: what comes now belongs to the next generation.
    fn seal(&mut self, writer: usize) {
        let w = &mut self.writers[writer];
        let Some(base) = w.base.filter(|_| !w.sealing) else {
            return;
        };
        let (client, epoch, sealed) = (w.client, w.epoch, w.generation());
        w.sealing = true;
        w.open += 1;
        let previous = w.seals[0];
        let own = w.listed.clone();
        let before = self.seals.get(&base);
        let mut listed = before.map_or_else(Listed::new, |seal| seal.listed.clone());
        listed.extend(own);
        let lineage = before.map_or(Lineage(Vec::new()), |seal| seal.lineage.clone());
        let lineage = lineage.continued(Generation { epoch, number: 0 });
        let lineage = lineage.truncated(sealed);
        let seal = self.content();
        let sealed = SealOf {
            lineage,
            previous,
            listed,
        };
        self.seals.insert(seal, sealed);
        self.event(&Event::Cut {
            client,
            epoch,
            seal,
            base,
        });
        self.world.coverage.one("seals cut");
        if self.world.flaw == Some(Flaw::SealBeforeSync) {
            return self.put_seal(client, seal);
        }
        let call = Call::Sync(SyncScope::Volume);
        self.start(client, call, Action::Sync, Intent::SyncSeal(seal));
    }

    fn put_seal(&mut self, client: ClientId, seal: Content) {
        let intent = Intent::PutSeal(seal);
        self.put(client, (SEAL, seal), Authority::Owner, intent);
    }

    fn sealed(&mut self, writer: usize, seal: Content) {
        self.world.coverage.one("seals completed");
        let w = &mut self.writers[writer];
        w.sealing = false;
        w.seals = [seal, w.seals[0]];
        let (client, epoch, seals) = (w.client, w.epoch, w.seals);
        if self.world.chance(50) && seals.iter().all(|s| *s != NOTHING) {
            self.retain(client, epoch, seals);
        }
    }

    /// Lets go of what neither of two seals shows, nor what comes after them.
    fn retain(&mut self, client: ClientId, epoch: Epoch, seals: [Content; 2]) {
        let images: Vec<Lineage> = seals
            .iter()
            .filter_map(|seal| self.seals.get(seal).map(|s| s.lineage.clone()))
            .collect();
        let end = images.iter().map(Lineage::end).max().unwrap_or_default();
        self.event(&Event::Retained { epoch, seals, end });
        self.world.coverage.one("retentions");
        let call = Call::Retain(Retention { images });
        self.start(client, call, Action::Other, Intent::Plain);
    }

    /// Gives back one more block of what has no end.
    fn remove_tail(&mut self, writer: usize) {
        let w = &mut self.writers[writer];
        w.tail += 1;
        let (client, epoch, before) = (w.client, w.epoch, w.tail);
        self.event(&Event::Removed {
            epoch,
            file: TAIL,
            before,
        });
        self.world.coverage.one("removals");
        let call = Call::RemoveBlocksBefore(TAIL, BlockIndex(before));
        self.start(client, call, Action::Other, Intent::Plain);
    }

    /// Seals whose images must still be whole.
    pub fn kept_seals(&self) -> Vec<Content> {
        let writer = self.newest_writer().map(|index| &self.writers[index]);
        let seals = writer.map(|w| w.seals).unwrap_or_default();
        seals.into_iter().filter(|seal| *seal != NOTHING).collect()
    }

    pub fn read_seal(&mut self, client: ClientId, seal: Content, key: BlockKey) {
        let known = self.seals.get(&seal);
        let Some((end, listed)) = known.map(|s| (s.lineage.end(), s.listed.get(&key).copied()))
        else {
            return;
        };
        let action = Action::ReadSeal { seal, key };
        if let Some((up_to, version)) = listed
            && self.world.chance(50)
        {
            self.world.coverage.one("image reads with the seal's list");
            let call = Call::ReadExpected {
                key,
                up_to,
                version,
            };
            return self.start(client, call, action, Intent::ReadListed);
        }
        let call = Call::Read { key, up_to: end };
        self.start(client, call, action, Intent::ReadSeal(seal, key));
    }

    /// Where a read of an image goes on, after it found a block of another line of generations; none
    /// if the image has no such block.
    fn read_on(lineage: &Lineage, found: Generation) -> Option<Generation> {
        let below = match found.number.checked_sub(1) {
            Some(number) => Generation { number, ..found },
            None => Generation {
                epoch: Epoch(found.epoch.0.checked_sub(1)?),
                number: u32::MAX,
            },
        };
        lineage.floor(below)
    }

    // --- scrubs ----------------------------------------------------------------------------------

    pub fn scrub(&mut self, writer: usize) {
        let w = &mut self.writers[writer];
        if std::mem::replace(&mut w.scrubbing, true) {
            return;
        }
        let client = w.client;
        self.world.coverage.one("scrubs");
        self.start(client, Call::Scrub(None), Action::Other, Intent::Scrub);
    }

    /// Mends what a page of a scrub found.
    pub fn scrubbed(&mut self, page: ScrubPage) {
        let found = page.differences.len() as u64;
        self.world
            .coverage
            .some("differences found by scrubs", found);
        let unreadable = page.unreadable.len() as u64;
        let what = "blocks of which a scrub saw no intact copy";
        self.world.coverage.some(what, unreadable);
        self.page = Some(page);
    }

    // --- what follows ----------------------------------------------------------------------------

    /// What an operation gave in the end; none if it goes on.
    pub fn follow(
        &mut self,
        client: ClientId,
        op: OpNumber,
        intent: &Intent,
        outcome: Outcome,
    ) -> Option<Outcome> {
        let (Intent::ReadSeal(seal, key), Outcome::Block(found, content)) = (*intent, outcome)
        else {
            return Some(outcome);
        };
        let lineage = &self.seals.get(&seal)?.lineage;
        if content == NOTHING || lineage.contains(found) {
            return Some(outcome);
        }
        self.world.coverage.one("image reads that left a dead line");
        let Some(up_to) = Schedule::read_on(lineage, found) else {
            return Some(Outcome::Block(Generation::SINGLE, NOTHING));
        };
        self.begin(client, Call::Read { key, up_to }, op, *intent);
        None
    }

    /// What comes after an operation.
    pub fn after(&mut self, client: ClientId, intent: Intent, outcome: Outcome) {
        let writer = self.writers.iter().position(|w| w.client == client);
        match (intent, outcome, writer) {
            (Intent::Own, Outcome::Owned(epoch), _) => self.owned(client, epoch),
            (Intent::Own, _, _) => {
                self.claimants.retain(|c| *c != client);
                self.world.crash_client(client);
                self.world.coverage.one("contests lost");
            }
            (Intent::Base, Outcome::Record(seal), Some(writer)) => self.based(writer, seal),
            (Intent::SyncSeal(seal), Outcome::Done, Some(_)) => self.put_seal(client, seal),
            (Intent::PutSeal(seal), Outcome::Done, Some(writer)) => self.sealed(writer, seal),
            (Intent::Follow, Outcome::Record(seal), _) => {
                let reader = self.readers.iter_mut().find(|r| r.client == client);
                if let Some(reader) = reader {
                    reader.seal = seal;
                }
            }
            (Intent::Scrub, Outcome::Done, _) => {
                if let Some(page) = self.page.take() {
                    let intent = Intent::Mend(page.next);
                    self.start(client, Call::Mend(page.differences), Action::Other, intent);
                }
            }
            (Intent::Mend(None), Outcome::Done, _) => {
                self.start(client, Call::EndScrub, Action::Other, Intent::EndScrub);
            }
            (Intent::Mend(next), Outcome::Done, _) => {
                self.start(client, Call::Scrub(next), Action::Other, Intent::Scrub);
            }
            (Intent::PutNode, _, _) => self.readers[0].putting = false,
            (Intent::Record, _, Some(writer)) => self.writers[writer].recording = false,
            (Intent::EndScrub, Outcome::Done, Some(writer)) => {
                self.world.coverage.one("scrubs completed");
                self.writers[writer].scrubbing = false;
                self.finish_exchange(client);
            }
            _ => {}
        }
    }

    /// A client owns an epoch: it looks where the last one left off.
    fn owned(&mut self, client: ClientId, epoch: Epoch) {
        self.world.coverage.one("takeovers");
        self.claimants.retain(|c| *c != client);
        self.writers.push(Writer {
            client,
            epoch,
            tails: Tails::default(),
            // Too little for all blocks.
            differences: Differences::new(4 * BLOCK_BYTES),
            open: 1,
            base: None,
            seals: [NOTHING; 2],
            sealing: false,
            scrubbing: false,
            recording: false,
            last: None,
            listed: Listed::new(),
            singles: BTreeSet::new(),
            tail: 0,
        });
        let call = Call::PromoteRecord(name(SEAL));
        self.start(client, call, Action::PromoteRecord(SEAL), Intent::Base);
        if self.world.chance(60) {
            for block in 0..KEYS {
                self.promote(self.writers.len() - 1, BlockKey::new(SINGLES, block));
            }
        }
    }

    fn based(&mut self, writer: usize, seal: Content) {
        let previous = self.seals.get(&seal).map_or(NOTHING, |s| s.previous);
        let w = &mut self.writers[writer];
        w.base = Some(seal);
        w.seals = [seal, previous];
    }
}
