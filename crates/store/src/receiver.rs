//! Reads one connection's requests and sends each where it belongs: block writes and whatever the
//! fence decides to the committer, reads to the engine. The body of a connection's own thread.

use std::io::{self, BufReader};
use std::sync::Arc;

use bytes::BytesMut;
use dax::error::{Error, ErrorKind};
use dax::forms::Forms;
use dax::ids::{BlockKey, Version, VolumeName};
use dax::sightings::{Sightings, Standing};
use dax::storage::{Space, Traffic};
use dax::wire::{BlockWrite, PROTOCOL, Request, Response};

use crate::commits::Commits;
use crate::connection::Conn;
use crate::decide;
use crate::engine::EngineError;
use crate::greeting::{About, Door, Place, Step};
use crate::inventory::InventoryJob;
use crate::keys::VolumeId;
use crate::reads::{ReadJob, list_records, read_record};
use crate::shared::{Shared, Work};
use crate::stream::Stream;
use crate::volume::{Seat, Volume};

/// What a queued request weighs beside its frame.
const WORK_WEIGHT: usize = 256;
/// A retention takes up to so many times the bytes of its frame: its images are lists.
const LISTS_WEIGHT: usize = 8;
/// Bytes read from the socket at once.
const BUFFER_BYTES: usize = 64 << 10;
/// Work that is handed over at once, at most: more would make the queue's bound a loose one.
const TOGETHER_BYTES: usize = 256 << 10;
/// Remembers which blocks were written lately, by hash.
const RECENT: usize = 1024;

/// Why a connection ends.
enum End {
    /// The socket failed, or the client sent malformed bytes.
    Io(io::Error),
    /// The storage engine failed.
    Engine(EngineError),
    /// The zone takes no more work.
    Stopping,
}

impl From<io::Error> for End {
    fn from(e: io::Error) -> End {
        End::Io(e)
    }
}

impl From<EngineError> for End {
    fn from(e: EngineError) -> End {
        End::Engine(e)
    }
}

/// Reads requests until the connection ends.
pub(crate) struct Receiver {
    shared: Arc<Shared>,
    commits: Arc<Commits>,
    conn: Arc<Conn>,
    door: Door,
    seat: Option<Seat>,
    input: BufReader<Stream>,
    scratch: BytesMut,
    /// Work that was not handed over yet, each with its weight: so that the committer is not woken for a
    /// write when the flush behind it is here already.
    together: Vec<(Work, usize)>,
    together_bytes: usize,
    /// Somebody waits for it.
    urgent: bool,
    /// The number of the last write.
    written: u64,
    /// The number of the last write of a block with that hash: a read of it waits for that write.
    recent: Vec<u64>,
}

impl Receiver {
    pub fn new(
        shared: Arc<Shared>,
        commits: Arc<Commits>,
        conn: Arc<Conn>,
        stream: Stream,
        place: Place,
    ) -> Receiver {
        Receiver {
            shared,
            commits,
            conn,
            door: Door::new(place),
            seat: None,
            input: BufReader::with_capacity(BUFFER_BYTES, stream),
            scratch: BytesMut::new(),
            together: Vec::new(),
            together_bytes: 0,
            urgent: false,
            written: 0,
            recent: vec![0; RECENT],
        }
    }

    /// Serves the connection.
    pub fn run(mut self) {
        let end = loop {
            match self.step() {
                Ok(true) => {}
                Ok(false) => break End::Stopping,
                Err(end) => break end,
            }
        };
        self.sign_off();
        match end {
            End::Engine(e) => self.shared.fail(&e),
            End::Io(e) if e.kind() == io::ErrorKind::InvalidData => {
                tracing::warn!(client = %self.conn.peer, error = %e, "client sent an invalid message: disconnected");
            }
            End::Io(e) => tracing::debug!(client = %self.conn.peer, error = %e, "disconnected"),
            End::Stopping => {}
        }
    }

    /// Ends the connection; when the zone stops that is left to it, because acks still go out.
    fn sign_off(&self) {
        let mut conns = self.shared.conns.lock();
        if !self.shared.is_stopping() {
            conns.remove(&self.conn.id);
            drop(conns);
            self.conn.close();
        }
    }

    /// Handles one request; false at the end of the stream.
    fn step(&mut self) -> Result<bool, End> {
        if self.input.buffer().is_empty() {
            self.hand_over()?;
        }
        let Some(frame) = self.door.next_frame(&mut self.input)? else {
            self.hand_over()?;
            return Ok(false);
        };
        let bytes = frame.len();
        let (id, request) = match Request::decode(frame) {
            Ok(decoded) => decoded,
            Err(e) => return Err(self.protocol(0, e)),
        };
        match self.conn.volume().cloned() {
            Some(volume) => self.handle(id, request, bytes, volume)?,
            None => self.greet(id, request, bytes)?,
        }
        Ok(true)
    }

    /// Tells the client what it did wrong, for its log, and ends the connection.
    fn protocol(&mut self, id: u64, error: Error) -> End {
        let answer = decide::error(&error);
        let told = self.conn.answer(id, &answer, &mut self.scratch);
        match told {
            Err(e) => End::Io(e),
            Ok(()) => End::Io(io::Error::new(io::ErrorKind::InvalidData, error)),
        }
    }

    fn answer(&mut self, id: u64, answer: &Response) -> Result<(), End> {
        Ok(self.conn.answer(id, answer, &mut self.scratch)?)
    }

    /// Leaves a request, in a frame of so many bytes, to the committer.
    fn enqueue(&mut self, id: u64, request: Request, bytes: usize) -> Result<(), End> {
        let times = match request {
            Request::Retain { .. } => LISTS_WEIGHT,
            _ => 1,
        };
        let work = Work::Request(self.conn.clone(), id, request);
        self.put(work, WORK_WEIGHT + bytes * times)
    }

    /// Puts work behind what is to be handed over.
    fn put(&mut self, work: Work, weight: usize) -> Result<(), End> {
        self.urgent |= work.is_urgent();
        self.together.push((work, weight));
        self.together_bytes += weight;
        match self.together_bytes >= TOGETHER_BYTES {
            true => self.hand_over(),
            false => Ok(()),
        }
    }

    /// Gives the committer what has come; commits it here if somebody waits and nobody else commits.
    fn hand_over(&mut self) -> Result<(), End> {
        if self.together.is_empty() {
            return Ok(());
        }
        let volume = self.conn.volume().map_or(VolumeId::NONE, |v| v.id);
        self.together_bytes = 0;
        let queue = &self.shared.queue;
        if std::mem::take(&mut self.urgent) {
            let put = queue.put_quietly(volume, self.together.drain(..));
            put.ok_or(End::Stopping)?;
            self.commits.help();
            return Ok(());
        }
        match queue.put_all(volume, self.together.drain(..)) {
            true => Ok(()),
            false => Err(End::Stopping),
        }
    }

    /// Handles a request of a connection that has no volume yet.
    fn greet(&mut self, id: u64, request: Request, bytes: usize) -> Result<(), End> {
        let secret = self.shared.config.secret.as_ref();
        match self.door.hear(secret, request) {
            Ok(Step::Answer(answer)) => self.answer(id, &answer),
            Ok(Step::Bind(name, about)) => self.bind(id, &name, &about),
            Ok(Step::Create(request)) => self.enqueue(id, request, bytes),
            Err(e) => Err(self.protocol(id, e)),
        }
    }

    fn bind(&mut self, id: u64, name: &VolumeName, about: &About) -> Result<(), End> {
        let Some(volume) = self.shared.volumes.get(name) else {
            let store = self.shared.id;
            let answer = match about.protocol {
                ..2 => {
                    let text = format!("no volume {name} in this zone");
                    decide::error(&Error::new(ErrorKind::NotFound, text))
                }
                _ => Response::NoVolume { store },
            };
            return self.answer(id, &answer);
        };
        let reads = Forms::of_protocol(about.protocol);
        if let Err(error) = volume.forms().check_reader(reads) {
            tracing::warn!(client = %self.conn.peer, name = %about.client, volume = %name, %error, "refused");
            return Err(self.protocol(id, error));
        }
        let max = self.shared.config.connections_max;
        self.seat = Seat::take(&volume, max);
        if self.seat.is_none() {
            let text = format!("volume {name} has {max} connections to this zone already");
            let error = Error::new(ErrorKind::Unavailable, text);
            return Err(self.protocol(id, error));
        }
        let welcome = Response::Welcome {
            protocol: about.protocol.min(PROTOCOL),
            settings: volume.settings.clone(),
            grant: volume.grant(),
            rebuilding: volume.is_rebuilding(),
            store: Some(self.shared.id),
            membership: volume.membership(),
            standing: Some(Box::new(Standing {
                position: self.shared.position(&volume),
                sightings: Sightings::clone(&volume.sightings()),
            })),
        };
        let (mut members, mut seen) = (Version::ZERO, Version::ZERO);
        if let Response::Welcome {
            membership,
            standing: Some(standing),
            ..
        } = &welcome
        {
            members = membership.as_ref().map_or(members, |m| m.version);
            seen = standing.sightings.version;
        }
        match about.protocol {
            ..3 => self.conn.goes_by_configuration(),
            _ => self.conn.knows(members),
        }
        tracing::debug!(client = %self.conn.peer, name = %about.client, volume = %name, "connected");
        self.answer(id, &welcome)?;
        self.conn.bind(volume.clone(), reads);
        self.catch_up(&volume, members, seen);
        Ok(())
    }

    /// Tells the client what became known between its welcome and its being told of everything.
    fn catch_up(&self, volume: &Volume, members: Version, seen: Version) {
        if self.conn.known_commit(1) == 0 {
            return;
        }
        if let Some(newer) = volume.membership().filter(|m| m.version > members) {
            self.conn.send(0, Response::Members(newer));
        }
        let sightings = volume.sightings();
        if sightings.version > seen {
            let sightings = Box::new(Sightings::clone(&sightings));
            self.conn.send(0, Response::Sightings(sightings));
        }
    }

    fn handle(
        &mut self,
        id: u64,
        request: Request,
        bytes: usize,
        volume: Arc<Volume>,
    ) -> Result<(), End> {
        if !matches!(request, Request::Write(_) | Request::Flush) {
            // It may have to wait for what the committer does with the writes before it.
            self.hand_over()?;
        }
        let counts = matches!(
            request,
            Request::Read { .. }
                | Request::Epoch
                | Request::GetRecord { .. }
                | Request::ListRecords { .. }
        );
        if counts {
            let complete = volume.check_complete();
            if let Err(e) =
                complete.and_then(|()| volume.check_known(|kept| self.conn.may_count(kept)))
            {
                return self.answer(id, &decide::error(&e));
            }
        }
        match request {
            Request::Write(write) => self.write(id, write, &volume),
            Request::Flush => {
                volume.count(&Traffic {
                    syncs: 1,
                    ..Traffic::default()
                });
                self.put(Work::Flush, WORK_WEIGHT)?;
                self.hand_over()
            }
            Request::Know { version } => {
                self.conn.knows(version);
                Ok(())
            }
            Request::Usage => {
                let usage = self.shared.volumes.usage_of(&volume);
                self.answer(id, &Response::Usage(Box::new(usage)))
            }
            Request::Read { key, up_to } => {
                let job = ReadJob {
                    conn: self.conn.clone(),
                    volume,
                    id,
                    key,
                    up_to,
                    after: self.recent[recent_index(key)],
                };
                self.read(job)
            }
            Request::Epoch => self.answer(id, &Response::Epoch(volume.grant())),
            Request::Ping => {
                let rebuilding = volume.is_rebuilding();
                let commit = self.conn.known_commit(self.shared.engine.last_commit());
                self.answer(id, &Response::Pong { rebuilding, commit })
            }
            Request::Inventory { epoch, after } => self.inventory(InventoryJob {
                conn: self.conn.clone(),
                volume,
                id,
                epoch,
                after,
            }),
            Request::Space => {
                let space = Space {
                    used_bytes: volume.used_bytes(),
                    free_bytes: self.shared.free_bytes()?,
                };
                self.answer(id, &Response::Space(space))
            }
            Request::GetRecord { name } => {
                let answer = read_record(&self.shared, &volume, &name)?;
                self.answer(id, &answer)
            }
            Request::ListRecords { prefix, after } => {
                let answer = list_records(&self.shared, &volume, &prefix, after.as_deref())?;
                self.answer(id, &answer)
            }
            Request::Hello { .. } | Request::Proof { .. } => {
                let text = "this connection has its volume already";
                Err(self.protocol(id, Error::new(ErrorKind::Protocol, text)))
            }
            Request::CreateVolume { volume: other, .. } if other != volume.name => {
                let text = format!("this connection is for volume {}", volume.name);
                Err(self.protocol(id, Error::new(ErrorKind::Protocol, text)))
            }
            other => self.enqueue(id, other, bytes),
        }
    }

    /// Leaves an inventory to the thread that takes them, unless too many answers wait for this client.
    fn inventory(&mut self, job: InventoryJob) -> Result<(), End> {
        let id = job.id;
        if self.shared.inventories.offer(job) {
            return Ok(());
        }
        let text = "too many answers wait for this client";
        self.answer(
            id,
            &decide::error(&Error::new(ErrorKind::Unavailable, text)),
        )
    }

    fn write(&mut self, number: u64, write: BlockWrite, volume: &Volume) -> Result<(), End> {
        if number != self.written + 1 {
            let text = format!("write {number} follows write {}", self.written);
            return Err(self.protocol(number, Error::new(ErrorKind::Protocol, text)));
        }
        self.written = number;
        self.recent[recent_index(write.key)] = number;
        let bytes = write.whole_bytes();
        let weight = bytes + WORK_WEIGHT;
        let conn = self.conn.clone();
        let size = volume.settings.block_size_bytes;
        // Shorter if it is packed.
        let refused = if !(1..=size as usize).contains(&bytes) {
            let text = format!("{bytes} bytes in a block of {size}");
            Some(Error::new(ErrorKind::Invalid, text))
        } else if !write.is_intact() {
            let text = format!("block {} arrived damaged", write.key);
            Some(Error::new(ErrorKind::Corrupt, text))
        } else {
            None
        };
        match refused {
            Some(error) => self.put(Work::Refuse(conn, number, error), WORK_WEIGHT),
            None => self.put(Work::Write(conn, number, write), weight),
        }
    }

    /// Serves a single read here; lets the pool help when more requests are waiting already.
    fn read(&mut self, job: ReadJob) -> Result<(), End> {
        let job = match self.input.buffer().is_empty() {
            true => Some(job),
            false => self.shared.reads.offer(job),
        };
        match job {
            Some(job) => Ok(job.serve(&self.shared, &mut self.scratch)?),
            None => Ok(()),
        }
    }
}

/// Blocks with the same index share a place in `recent`.
fn recent_index(key: BlockKey) -> usize {
    let mixed = (key.file.0 ^ key.block.0.rotate_left(32)).wrapping_mul(0x9E37_79B9_7F4A_7C15);
    (mixed >> 54) as usize % RECENT
}
