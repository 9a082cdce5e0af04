//! What surrounds a simulated client: requests go to the model of Cassandra, time is virtual.
//!
//! Each request of the client is one of the model's, or several at once where the model has none for it. A cell of the
//! model has a block's contents only: the checksum is made of the version that the client is told.

use std::collections::{BTreeMap, HashMap};
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use dax::error::{Error, ErrorKind, Result};
use dax::ids::{BlockKey, FileId, Generation, Version, VolumeName};
use dax::simulation::history::ClientId;
use dax::wire::checksum;
use futures_util::future::{BoxFuture, try_join_all};
use parking_lot::Mutex;
use rand::Rng;
use rand::seq::SliceRandom;

use super::below;
use super::executor::Stage;
use super::flaw::Flaw;
use super::life::Life;
use super::model::{Cell, Gone, Level, Mutation, NodeId, Place, Query, Reply, Request};
use super::places::{
    self, DATA, LOG, SINGLES, exactly, of_row, partition_below, partition_of, place_below,
    place_of, place_of_note, place_of_record, record_of, row_of,
};
use super::stamps::Stamps;
use super::world::{Heard, World};
use crate::client::environment::{Asked, Delete, Environment, Found, Look, Seen};
use crate::lease::{Change, Row as EpochRow, Time};
use crate::row::{self, Chunk, Row};

pub struct Machine {
    pub client: ClientId,
    /// The data centre that it is in.
    pub home: NodeId,
    stage: Stage,
    /// Timestamps that are not the versions' own: flaws.
    stamps: Mutex<Stamps>,
}

fn given_up() -> Error {
    Error::new(ErrorKind::Unavailable, "nobody has answered in time")
}

impl Machine {
    pub fn new(stage: Stage, client: ClientId, home: NodeId) -> Machine {
        let stamps = Mutex::new(Stamps::new(stage.lock().flaw));
        Machine {
            client,
            home,
            stage,
            stamps,
        }
    }

    /// A coordinator: mostly the own data centre's.
    fn coordinator(&self, world: &mut World) -> NodeId {
        let nodes = world.cluster.setup().nodes;
        match world.cluster.is_up(self.home) && world.rng.random_bool(0.8) {
            true => self.home,
            false => world.rng.random_range(0..nodes),
        }
    }

    async fn ask(&self, request: impl FnOnce(&mut World, NodeId) -> Request) -> Result<Reply> {
        let answer = {
            let mut world = self.stage.lock();
            let node = self.coordinator(&mut world);
            let request = request(&mut world, node);
            world.request(self.client, node, request)
        };
        match answer.await {
            Ok(Heard::Reply(Reply::TimedOut)) | Err(_) => Err(given_up()),
            Ok(Heard::Reply(reply)) => Ok(reply),
            Ok(told) => panic!("a request was answered by {told:?}"),
        }
    }

    async fn mutate(&self, mutation: Mutation) -> Result<()> {
        let level = match self.has(Flaw::WrittenAtOne) {
            true => Level::One,
            false => Level::Quorum,
        };
        let asked = self.ask(|_, _| Request::Write(mutation, level)).await?;
        assert_eq!(asked, Reply::Written);
        Ok(())
    }

    async fn read(&self, query: Query, asked: Asked) -> Result<Vec<(u64, Cell)>> {
        // What is given back may go.
        let place = query.place().filter(|place| is_kept(*place));
        let place = place.filter(|_| asked == Asked::Quorum);
        let read = place.map(|place| self.stage.lock().recorder.asks(place));
        let reply = self
            .ask(|world, node| {
                let (level, replicas) = replicas(world, node, asked);
                Request::Read(query, level, replicas)
            })
            .await?;
        let Reply::Rows(rows) = reply else {
            panic!("a read was answered by {reply:?}");
        };
        if let Some(read) = read {
            let found = rows.first().map(|(_, cell)| cell.timestamp);
            self.stage.lock().recorder.read(read, found);
        }
        Ok(rows)
    }

    fn life<T>(&self, change: impl FnOnce(&mut Life) -> T) -> T {
        change(&mut self.stage.lock().lives[self.client])
    }

    fn has(&self, flaw: Flaw) -> bool {
        self.stage.lock().has(flaw)
    }

    fn timestamp(&self, version: Version) -> i64 {
        let mut stamps = self.stamps.lock();
        stamps.of(version, || self.stage.lock().clock(self.client))
    }

    /// What the client is told that it has read.
    fn found(&self, key: BlockKey, generation: Generation, cell: &Cell) -> Found {
        let version = self.stamps.lock().version(cell.timestamp);
        let data = Bytes::from(cell.value.clone().unwrap_or_default());
        let sum = checksum(key, generation, version, &data);
        let (head, data) = row::cell_parts(sum, &data);
        Found {
            generation,
            version,
            cell: Bytes::from([&head[..], data].concat()),
        }
    }

    /// The cell of an absence, or what a flaw makes of it.
    fn absence(&self, at: i64) -> Option<Cell> {
        match self.stage.lock().flaw {
            Some(Flaw::AbsenceAsTombstone) => Some(Cell::tombstone(at)),
            Some(Flaw::AbsenceNotPromoted) => None,
            _ => Some(Cell::live(at, "")),
        }
    }

    fn cell(&self, row: &Row) -> Option<(Place, Cell)> {
        let place = place_of(row.key, row.generation);
        let at = match self.has(Flaw::SameTimestampTwice) {
            true => self.stamps.lock().pending(place, row.version),
            false => self.timestamp(row.version),
        };
        let cell = match row.data.is_empty() {
            true => self.absence(at),
            false => Some(Cell::live(at, &row.data[..])),
        };
        cell.map(|cell| (place, cell))
    }
}

/// True if a row is not one that is given back while readers may still ask for it.
fn is_kept(place: Place) -> bool {
    places::block_of(place).is_none_or(|(key, _)| key.file != DATA)
}

/// Whom a coordinator asks.
fn replicas(world: &mut World, node: NodeId, asked: Asked) -> (Level, Vec<NodeId>) {
    let setup = *world.cluster.setup();
    let mut nodes: Vec<NodeId> = (0..setup.nodes).collect();
    nodes.shuffle(&mut world.rng);
    match asked {
        Asked::One => (Level::One, vec![node]),
        Asked::All => (Level::All, nodes),
        Asked::Quorum => {
            // Now and then one more, as speculation does.
            let more = usize::from(world.rng.random_bool(0.2));
            nodes.truncate(setup.quorum() + more);
            (Level::Quorum, nodes)
        }
    }
}

/// The rows of a chunk that a delete takes, as ranges.
fn ranges(what: Delete<'_>) -> Vec<(u64, u64, u64)> {
    let all = |partition| vec![(partition, 0, u64::MAX)];
    let before = |partition, row: u64| match row.checked_sub(1) {
        Some(last) => vec![(partition, 0, last)],
        None => Vec::new(),
    };
    match what {
        Delete::Generations(chunk, ranges) => {
            let range = |(block, (from, to)): &(i64, (i64, i64))| {
                let row = |column| row_of(*block as u64, row::generation(column));
                (partition_of(chunk), row(*from), row(*to))
            };
            ranges.iter().map(range).collect()
        }
        Delete::BlocksBefore(chunk, block) => {
            let first = row_of(block.0, Generation::SINGLE);
            before(partition_of(chunk), first)
        }
        Delete::Chunk(chunk) => all(partition_of(chunk)),
        Delete::NotesBefore(chunk) => {
            let place = place_of_note(chunk);
            before(place.partition, place.row)
        }
        Delete::Notes(file) => all(place_of_note((file, 0)).partition),
    }
}

#[async_trait]
impl Environment for Machine {
    fn boot_time(&self) -> Time {
        self.stage.lock().clock(self.client)
    }

    async fn sleep(&self, length: Duration) {
        let over = self.stage.lock().sleep(self.client, length);
        // The world rings every alarm, or is gone.
        let _ = over.await;
    }

    fn spawn(&self, task: BoxFuture<'static, ()>) {
        self.stage.lock().spawned.push((self.client, task));
    }

    async fn write_rows(&self, _: Chunk, rows: &[Row]) -> Result<()> {
        let cells: Vec<_> = rows.iter().filter_map(|row| self.cell(row)).collect();
        if !cells.is_empty() {
            let gone = Vec::new();
            let written: BTreeMap<_, _> = cells.iter().map(|(p, c)| (*p, c.timestamp)).collect();
            let late = self.life(Life::begin_write);
            let answer = self.mutate(Mutation { cells, gone }).await;
            self.life(|life| life.end_write(late));
            answer?;
            self.stamps.lock().acknowledged(&written);
        }
        Ok(())
    }

    async fn write_chunk(&self, chunk: Chunk, version: Version) -> Result<()> {
        let cell = Cell::live(self.timestamp(version), "");
        self.mutate(Mutation::one(place_of_note(chunk), cell)).await
    }

    async fn read_block(
        &self,
        volume: &VolumeName,
        asked: Asked,
        (_, chunk): Chunk,
        key: BlockKey,
        up_to: Generation,
    ) -> Result<Option<Found>> {
        let level = self.stage.lock().level(volume);
        let last = match level {
            Some((_, false)) => return Ok(None),
            Some((level, true)) => place_below(level, key, up_to),
            None => place_of(key, up_to),
        };
        let rows = self.read(places::up_to(last), asked).await?;
        let row = rows.first();
        Ok(row.map(|(row, cell)| self.found(key, of_row(chunk, *row).1, cell)))
    }

    async fn read_singles(&self, (file, _): Chunk, blocks: &[i64]) -> Result<HashMap<i64, Found>> {
        let single = Generation::SINGLE;
        let read = blocks.iter().map(async |block| {
            let key = BlockKey::new(file, *block as u64);
            let rows = self.read(exactly(place_of(key, single)), Asked::Quorum);
            let found = rows
                .await?
                .first()
                .map(|(_, cell)| self.found(key, single, cell));
            self.life(|life| life.found(key));
            Ok::<_, Error>(found.map(|found| (*block, found)))
        });
        let found = try_join_all(read).await?;
        Ok(found.into_iter().flatten().collect())
    }

    async fn list_rows(&self, volume: &VolumeName, chunk: Chunk) -> Result<Vec<(i64, Generation)>> {
        let level = self.stage.lock().level(volume);
        let partition = match level {
            Some((_, false)) => return Ok(Vec::new()),
            Some((level, true)) => partition_below(level, chunk),
            None => partition_of(chunk),
        };
        let rows = self.read(places::whole(partition), Asked::Quorum);
        let rows = rows.await?.into_iter().map(|(row, _)| of_row(chunk.1, row));
        Ok(rows
            .map(|(block, generation)| (block as i64, generation))
            .collect())
    }

    async fn list_chunks(&self, file: FileId) -> Result<Vec<u64>> {
        let notes = places::whole(place_of_note((file, 0)).partition);
        let rows = self.read(notes, Asked::Quorum).await?;
        Ok(rows.into_iter().map(|(chunk, _)| chunk).collect())
    }

    async fn scan_chunks(
        &self,
        volume: &VolumeName,
        each: &mut (dyn FnMut(Chunk) + Send),
    ) -> Result<()> {
        if self.stage.lock().level(volume).is_some() {
            below::chunks().for_each(each);
            return Ok(());
        }
        for file in [SINGLES, LOG, DATA] {
            for chunk in self.list_chunks(file).await? {
                each((file, chunk));
            }
        }
        Ok(())
    }

    async fn delete(&self, what: Delete<'_>, version: Version) -> Result<()> {
        let timestamp = self.timestamp(version);
        let gone = ranges(what).into_iter().map(|(partition, from, to)| {
            let gone = Gone {
                from,
                to,
                timestamp,
            };
            (partition, gone)
        });
        let mutation = Mutation {
            cells: Vec::new(),
            gone: gone.collect(),
        };
        self.stage.lock().coverage.one("deletes");
        match mutation.is_empty() {
            true => Ok(()),
            false => self.mutate(mutation).await,
        }
    }

    async fn write_record(
        &self,
        name: &str,
        version: Version,
        value: Option<&Bytes>,
    ) -> Result<()> {
        let at = self.timestamp(version);
        let cell = match value {
            Some(value) => Some(Cell::live(at, &value[..])),
            None => self.absence(at),
        };
        match cell {
            Some(cell) => {
                let place = place_of_record(record_of(name));
                self.mutate(Mutation::one(place, cell)).await
            }
            None => Ok(()),
        }
    }

    async fn read_record(&self, name: &str) -> Result<(Version, Option<Bytes>)> {
        let place = place_of_record(record_of(name));
        let rows = self.read(exactly(place), Asked::Quorum).await?;
        let Some((_, cell)) = rows.into_iter().next() else {
            return Ok((Version::ZERO, None));
        };
        let version = self.stamps.lock().version(cell.timestamp);
        let value = cell.value.filter(|value| !value.is_empty());
        Ok((version, value.map(Bytes::from)))
    }

    async fn list_records(&self, _: &str) -> Result<Vec<(String, Bytes)>> {
        Ok(Vec::new())
    }

    async fn look(&self, how: Look) -> Result<Option<EpochRow>> {
        let settled = how == Look::Settled;
        let answer = {
            let mut world = self.stage.lock();
            world.lives[self.client].looks += 1;
            world.look(self.client, settled)
        };
        let answer = answer.await;
        self.life(|life| life.looks -= 1);
        match answer {
            Ok(Heard::Looked(row)) => Ok(row),
            Err(_) => Err(given_up()),
            Ok(told) => panic!("a look was answered by {told:?}"),
        }
    }

    async fn change(&self, change: &Change) -> Result<bool> {
        let answer = self.stage.lock().change(self.client, change);
        match answer.await {
            Ok(Heard::Changed(applied)) => Ok(applied),
            Err(_) => Err(given_up()),
            Ok(told) => panic!("a change was answered by {told:?}"),
        }
    }

    fn nodes_of(&self, _: &str) -> Vec<Seen> {
        Vec::new()
    }

    async fn used_mib(&self) -> Result<Option<u64>> {
        Ok(None)
    }
}
