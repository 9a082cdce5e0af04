//! What an owner writes, on its way: the writer's batches, and records, each sent until it is acknowledged.

use bytes::Bytes;
use dax::ids::{BlockKey, Generation, Version};
use dax::simulation::history::{Content, NOTHING, OpNumber, Outcome, RecordId};
use dax::storage::Block;
use dax::writer::pending::Seq;

use super::super::client::{Token, bytes, place_of, place_of_record, version, version_of};
use super::super::flaw::Flaw;
use super::super::model::{Cell, Level, Mutation, Place, Request, Timestamp};
use super::super::world::World;
use super::{After, Owner};
use crate::row::Row;

/// Whoever learns of a fence does nothing any more.
const NOT_FENCED: &str = "an owner that knows of no fence has versions";

impl Owner {
    pub(super) fn next_version(&mut self, world: &World) -> Version {
        let version = self.writer.next_version().expect(NOT_FENCED);
        self.stamp(world, version.seq);
        version
    }

    fn stamp(&mut self, world: &World, seq: Seq) {
        if world.has(Flaw::ClockTimestamps) {
            let clock = world.clock(self.client).as_micros() as Timestamp;
            let last = self.stamps.values().next_back().copied();
            let stamp = last.map_or(clock, |last| clock.max(last + 1));
            self.stamps.insert(seq, stamp);
        }
    }

    /// The timestamp of a version of this owner.
    pub(super) fn timestamp(&self, seq: Seq) -> Timestamp {
        let own = version(self.epoch, seq);
        self.stamps.get(&seq).copied().unwrap_or(own)
    }

    /// The version that a timestamp stands for.
    pub fn version_of(&self, timestamp: Timestamp) -> Version {
        let mut distorted = self.stamps.iter();
        let seq = distorted.find(|(_, stamp)| **stamp == timestamp);
        match seq {
            Some((seq, _)) => version_of(version(self.epoch, *seq)),
            None => version_of(timestamp),
        }
    }

    /// Writes a block.
    pub fn write(
        &mut self,
        world: &mut World,
        key: BlockKey,
        generation: Generation,
        content: Content,
    ) {
        let before = self.writer.handle.pending.read(key, generation);
        let before = before.filter(|block| block.generation == generation);
        let data = Bytes::from(bytes(content));
        let written = self.writer.write(key, generation, data);
        let seq = written.expect(NOT_FENCED).seq;
        self.stamp(world, seq);
        if let Some(before) = before.filter(|_| world.has(Flaw::SameTimestampTwice)) {
            let same = self.timestamp(before.version.seq);
            self.stamps.insert(seq, same);
        }
        self.latest.insert(place_of(key, generation), content);
        self.pump(world);
    }

    /// Writes again what a promotion of a block has found; the version that is waited for.
    pub fn promote(&mut self, world: &mut World, key: BlockKey, content: Content) -> Seq {
        let found = Block {
            version: Version::ZERO,
            generation: Generation::SINGLE,
            data: Bytes::from(bytes(content)),
        };
        let found = (content != NOTHING).then_some(&found);
        let seq = self.writer.promote(key, found).expect(NOT_FENCED).seq;
        self.stamp(world, seq);
        self.latest
            .insert(place_of(key, Generation::SINGLE), content);
        self.pump(world);
        seq
    }

    /// What this owner wrote there, or promoted.
    pub fn latest(&self, place: Place) -> Option<Content> {
        self.latest.get(&place).copied()
    }

    fn pump(&mut self, world: &mut World) {
        while let Some(batch) = self.writer.next_batch() {
            let first = batch.rows[0].version.seq;
            self.sending.insert(first, batch);
            self.send(world, first);
        }
    }

    fn send(&mut self, world: &mut World, first: Seq) {
        let Some(batch) = self.sending.get(&first) else {
            return;
        };
        let absent_as_tombstone = world.has(Flaw::AbsenceAsTombstone);
        let cell = |row: &Row| {
            let timestamp = self.timestamp(row.version.seq);
            match row.data.is_empty() && absent_as_tombstone {
                true => Cell::tombstone(timestamp),
                false => Cell::live(timestamp, row.data.to_vec()),
            }
        };
        let rows = batch.rows.iter();
        let rows = rows.map(|row| (place_of(row.key, row.generation), cell(row)));
        let mutation = Mutation(rows.collect());
        self.request(world, Token::Write(first), mutation);
    }

    fn request(&self, world: &mut World, token: Token, mutation: Mutation) {
        let level = match world.has(Flaw::WrittenAtOne) {
            true => Level::One,
            false => Level::Quorum,
        };
        let node = self.coordinator(world);
        world.request(self.client, token, node, Request::Write(mutation, level));
    }

    /// A batch was acknowledged, or not in time.
    pub fn sent(&mut self, world: &mut World, first: Seq, done: bool) {
        let Some(mut batch) = self.sending.remove(&first) else {
            return;
        };
        if !done && self.writer.still_wanted(&mut batch) {
            self.sending.insert(first, batch);
            return self.send(world, first);
        }
        self.writer.sent(&batch, done);
        self.pump(world);
    }

    /// Writes a record; the operation ends when it is acknowledged, and the gate open.
    pub fn put_record(
        &mut self,
        world: &mut World,
        (record, content): (RecordId, Content),
        tombstone: bool,
        (op, outcome, after): (OpNumber, Outcome, Option<After>),
    ) {
        let seq = self.next_version(world).seq;
        let (place, timestamp) = (place_of_record(record), self.timestamp(seq));
        let cell = match tombstone {
            true => Cell::tombstone(timestamp),
            false => Cell::live(timestamp, bytes(content)),
        };
        let mutation = Mutation::one(place, cell);
        let waiting = self.waiting(world, op, outcome, after);
        self.latest.insert(place, content);
        self.putting.insert(seq, (mutation.clone(), waiting));
        self.request(world, Token::Put(seq), mutation);
    }

    /// A record was acknowledged, or not in time.
    pub fn put_replied(&mut self, world: &mut World, seq: Seq, done: bool) {
        if done {
            let done = self.putting.remove(&seq);
            self.at_gate.extend(done.map(|(_, waiting)| waiting));
        } else if let Some((mutation, _)) = self.putting.get(&seq) {
            let mutation = mutation.clone();
            self.request(world, Token::Put(seq), mutation);
        }
    }
}
