//! What the committer does about each piece of work: the replica's rules ([`dax::replica`]) applied
//! to what is stored.

use std::sync::Arc;

use bytes::Bytes;
use dax::error::{Error, ErrorKind};
use dax::forms::Forms;
use dax::ids::{Epoch, Generation, Version};
use dax::membership::Membership;
use dax::replica::{Claim, Heard, Refusal, replaces};
use dax::sightings::Sightings;
use dax::wire::{BlockWrite, Request, Response, StoredRecord};

use crate::committer::{Committer, Round};
use crate::connection::Conn;
use crate::engine::{EngineError, Found};
use crate::keys::{Slot, decode_record, encode_record};
use crate::meta::{self, Forgiven, Removal, VolumeMeta, to_json};
use crate::reads::ReadJob;
use crate::shared::Work;
use crate::versions::Known;
use crate::volume::Volume;

/// The longest name of a record, in bytes.
const MAX_NAME_BYTES: usize = 1024;

impl Committer {
    /// Decides one piece of work and puts its effects into the round.
    pub(crate) fn decide(&mut self, work: Work, round: &mut Round) -> Result<(), EngineError> {
        round.urgent |= work.is_urgent();
        match work {
            Work::Write(conn, ..) | Work::Refuse(conn, ..) if conn.is_left() => {}
            Work::Write(conn, _, write) if self.is_given_up(&conn, write.epoch) => {
                tracing::debug!(client = %conn.peer, "a write came on a connection that its client gave up: left");
                conn.leave();
            }
            Work::Write(conn, number, write) => {
                round.received(&conn, number);
                match self.write(&conn, write, round)? {
                    Ok(()) => {}
                    Err(error) => refuse(&conn, number, &error),
                }
            }
            Work::Refuse(conn, number, error) => {
                round.received(&conn, number);
                refuse(&conn, number, &error);
            }
            Work::Flush => {}
            Work::Request(conn, id, request) => {
                let reply = self.request(&conn, id, request, round)?;
                round.replies.extend(reply.map(|reply| (conn, id, reply)));
            }
            Work::Drop(volume, slots) => self.drop_slots(&volume, &slots, round)?,
            Work::Purge(slots) => {
                for slot in slots {
                    self.versions.forget(&slot);
                    round.blocks.insert(slot, None);
                }
            }
            Work::Fill(volume, pass, blocks) => self.copy((&volume, pass), blocks, round)?,
            Work::Filled(volume, pass) => self.filled(&volume, pass, round)?,
            Work::Damaged(slot) => self.versions.damage(&slot),
            Work::Removed(volume, number, removal) => self.removed(volume, number, removal, round),
        }
        Ok(())
    }

    /// True if the writer of `epoch` has written on a later connection. What comes on this one is older than what it
    /// has sent again there.
    fn is_given_up(&mut self, conn: &Conn, epoch: Epoch) -> bool {
        let Some(volume) = conn.volume() else {
            return false;
        };
        let admitted = self.admit(volume, epoch).is_ok();
        admitted
            && !self
                .links
                .entry(volume.id)
                .or_default()
                .admit(epoch, conn.id)
    }

    /// Applies a block write, or says why not.
    fn write(
        &mut self,
        conn: &Arc<Conn>,
        write: BlockWrite,
        round: &mut Round,
    ) -> Result<Result<(), Error>, EngineError> {
        let Some(volume) = conn.volume() else {
            return Ok(Err(unbound()));
        };
        if volume.is_removed() {
            return Ok(Err(removed(volume)));
        }
        conn.announce(write.epoch);
        if let Err(error) = self.admit(volume, write.epoch) {
            return Ok(Err(error));
        }
        let slot = Slot {
            volume: volume.id,
            key: write.key,
            generation: write.generation,
        };
        let stored = match self.stored(&slot, round) {
            Ok(stored) => stored,
            // What is there may be newer. The client sends it again.
            Err(error) => return error.told().map(Err),
        };
        if !stored.is_replaced_by(write.version) {
            return Ok(Ok(()));
        }
        if !self.room.admit(&self.shared, write.whole_bytes() as u64) {
            return Ok(Err(full()));
        }
        #[cfg(test)]
        if let Some(refused) = self.held_up(&write, slot) {
            return Ok(Err(refused));
        }
        let sent_bytes = write.data.len() as u64;
        let write = match write.base {
            None => write,
            Some(base) => match self.completed(volume, (write, base), slot, round)? {
                Some(whole) => whole,
                None => return Ok(Err(no_base())),
            },
        };
        round.bytes += write.data.len();
        self.versions.set(slot, write.version);
        let touched = round.touch(volume);
        touched.slots += i64::from(stored == Stored::Nothing);
        touched.written.writes += 1;
        touched.written.write_bytes += sent_bytes;
        if write.generation != Generation::SINGLE {
            touched.candidates.push(write.key);
        }
        round.blocks.insert(slot, Some(write));
        Ok(Ok(()))
    }

    pub(crate) fn stored(&self, slot: &Slot, round: &Round) -> Result<Stored, EngineError> {
        if let Some(known) = self.versions.get(slot) {
            return Ok(Stored::Version(known));
        }
        let version = |version| {
            Stored::Version(Known {
                version,
                damaged: false,
            })
        };
        if let Some(write) = round.blocks.get(slot) {
            let write = write.as_ref();
            return Ok(write.map_or(Stored::Nothing, |w| version(w.version)));
        }
        Ok(match self.shared.engine.get(slot)? {
            None => Stored::Nothing,
            Some(Found::Block(block)) => version(block.version),
            Some(Found::Corrupt(_)) => Stored::Damaged,
        })
    }

    /// True if `epoch` may change the volume.
    pub(crate) fn admit(&self, volume: &Volume, epoch: Epoch) -> Result<(), Error> {
        let fence = self.fences.get(&volume.id);
        let fence = fence.expect("every volume that a connection is bound to has a fence");
        fence.admit(epoch).map_err(|refusal| match refusal {
            Refusal::Fenced => {
                let (now, owner) = (fence.grant().epoch, &fence.grant().owner);
                Error::new(
                    ErrorKind::Fenced,
                    format!("{epoch} is over: {owner} owns {now}"),
                )
            }
            Refusal::Unannounced => Error::new(
                ErrorKind::Conflict,
                format!("{epoch} was not announced to this zone"),
            ),
        })
    }

    /// Handles a request that has a reply; `None` if it is given later.
    fn request(
        &mut self,
        conn: &Arc<Conn>,
        id: u64,
        request: Request,
        round: &mut Round,
    ) -> Result<Option<Response>, EngineError> {
        if let Request::CreateVolume {
            volume,
            settings,
            rebuild,
            membership,
        } = request
        {
            return Ok(Some(self.create(
                (volume, settings),
                rebuild,
                membership,
                round,
            )));
        }
        let Some(volume) = conn.volume().cloned() else {
            return Ok(Some(error(&unbound())));
        };
        if volume.is_removed() {
            return Ok(Some(error(&removed(&volume))));
        }
        Ok(Some(match request {
            Request::OwnEpoch {
                epoch,
                owner,
                settled,
            } => {
                if let Err(e) = volume.forms().check_reader(conn.reads()) {
                    return Ok(Some(error(&e)));
                }
                if let Err(e) = volume.check_complete()
                    && !settled
                {
                    return Ok(Some(error(&e)));
                }
                if !settled && let Err(e) = check_known(&volume, conn, round) {
                    return Ok(Some(error(&e)));
                }
                conn.announce(epoch);
                self.own(&volume, (epoch, &owner, settled), round)
            }
            Request::Promote { epoch, key } => {
                conn.announce(epoch);
                let admitted = self.admit(&volume, epoch);
                match admitted.and_then(|()| volume.check_complete()) {
                    Err(e) => error(&e),
                    Ok(()) => {
                        let job = ReadJob {
                            conn: conn.clone(),
                            volume,
                            id,
                            key,
                            up_to: Generation::SINGLE,
                            after: 0,
                        };
                        round.promotes.push((epoch, job));
                        return Ok(None);
                    }
                }
            }
            Request::PutRecord {
                epoch,
                name,
                version,
                value,
            } => {
                let refused = match epoch {
                    Some(epoch) => self.admit(&volume, epoch).err(),
                    None => check_known(&volume, conn, round).err(),
                };
                match refused {
                    Some(e) => error(&e),
                    None => {
                        let record = StoredRecord { version, value };
                        if name == Forms::RECORD
                            && let Some(forms) = meta::written_forms(record.clone())
                        {
                            round.forms.push((volume.clone(), forms));
                        }
                        round.filling(&volume, &name);
                        self.put_record(&volume, &name, record, round)?
                    }
                }
            }
            Request::Retain { epoch, retention } => match self.admit(&volume, epoch) {
                Err(e) => error(&e),
                Ok(()) => self.retain(&volume, retention, round),
            },
            Request::RemoveFiles { epoch, files } => match self.admit(&volume, epoch) {
                Err(e) => error(&e),
                Ok(()) => self.remove(&volume, Removal::Files(files), round),
            },
            Request::RemoveBlocksBefore { epoch, file, block } => {
                match self.admit(&volume, epoch) {
                    Err(e) => error(&e),
                    Ok(()) => self.remove(&volume, Removal::Before(file, block), round),
                }
            }
            Request::SetMembers { epoch, membership } => match self.admit(&volume, epoch) {
                Err(e) => error(&e),
                Ok(()) => self.exchange(&volume, conn, membership, round),
            },
            Request::Sightings { epoch, sightings } => match self.admit(&volume, epoch) {
                Err(e) => error(&e),
                Ok(()) => see(&volume, Arc::from(sightings), round),
            },
            Request::WentBack { epoch, run, lift } => match self.admit(&volume, epoch) {
                Err(e) => error(&e),
                Ok(()) if Some(run) != self.shared.runs.current() => error(&Error::new(
                    ErrorKind::Conflict,
                    "the zone has restarted since",
                )),
                Ok(()) => went_back(&volume, Forgiven { run, lift }, round),
            },
            Request::RemoveVolume { epoch, close } => match self.admit(&volume, epoch) {
                Err(e) => error(&e),
                Ok(()) => self.remove_volume(&volume, epoch, close, round)?,
            },
            Request::Rebuilt { epoch } => match self.admit(&volume, epoch) {
                Err(e) => error(&e),
                Ok(()) => self.rebuilt(&volume, round)?,
            },
            other => {
                debug_assert!(false, "{other:?} is answered by its connection");
                error(&Error::new(ErrorKind::Protocol, "not for the committer"))
            }
        }))
    }

    fn own(
        &mut self,
        volume: &Arc<Volume>,
        (epoch, owner, settled): (Epoch, &str, bool),
        round: &mut Round,
    ) -> Response {
        let fence = self.fences.entry(volume.id).or_default();
        let claim = fence.own(epoch, owner, settled);
        let grant = fence.grant().clone();
        if claim == Claim::Accepted {
            round
                .metas
                .insert(meta::epoch_key(volume.id), Some(to_json(&grant)));
            round.grants.push((volume.clone(), grant.clone()));
        }
        Response::Owned {
            accepted: claim != Claim::Refused,
            grant,
        }
    }

    fn put_record(
        &mut self,
        volume: &Volume,
        name: &str,
        record: StoredRecord,
        round: &mut Round,
    ) -> Result<Response, EngineError> {
        let bytes = record.value.as_ref().map_or(0, Bytes::len);
        if name.len() > MAX_NAME_BYTES || bytes > dax::wire::MAX_RECORD_BYTES {
            return Ok(error(&Error::new(
                ErrorKind::Invalid,
                format!("record of {} and {bytes} bytes: too large", name.len()),
            )));
        }
        let key = meta::record_key(volume.id, name);
        let stored = match round.metas.get(&key) {
            Some(value) => value.clone(),
            None => match self.shared.engine.meta(&key) {
                Ok(value) => value,
                Err(e) => return e.told().map(|told| error(&told)),
            },
        };
        let stored = stored.and_then(decode_record).map(|r| r.version);
        if !replaces(record.version, stored) {
            let version = stored.unwrap_or(record.version);
            return Ok(Response::RecordStored { version });
        }
        round.bytes += bytes;
        round.metas.insert(key, Some(encode_record(&record)));
        Ok(Response::RecordStored {
            version: record.version,
        })
    }
}

/// What a slot holds, as far as the put rule is concerned.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Stored {
    Nothing,
    Version(Known),
    /// A damaged block whose version nobody remembers: any intact one repairs it.
    Damaged,
}

impl Stored {
    pub fn is_replaced_by(self, version: Version) -> bool {
        match self {
            Stored::Nothing | Stored::Damaged => true,
            Stored::Version(known) => known.is_replaced_by(version),
        }
    }
}

/// The same as [`Volume::check_known`], for what this round has decided already.
fn check_known(volume: &Arc<Volume>, conn: &Conn, round: &Round) -> Result<(), Error> {
    let decided = round.memberships.iter().rev();
    let mut decided = decided.filter(|(v, _)| v.id == volume.id);
    match decided.next() {
        Some((_, kept)) if conn.may_count(kept) => Ok(()),
        Some(_) => Err(Error::new(
            ErrorKind::Unavailable,
            format!("the zones of volume {} are changing", volume.name),
        )),
        None => volume.check_known(|kept| conn.may_count(kept)),
    }
}

/// Keeps a membership, if it is newer than what was kept or decided.
pub(crate) fn hear(
    volume: &Arc<Volume>,
    conn: &Conn,
    membership: Box<Membership>,
    round: &mut Round,
) -> Response {
    let decided = round.memberships.iter().rev();
    let mut decided = decided.filter(|(v, _)| v.id == volume.id);
    let kept = match decided.next() {
        Some((_, kept)) => kept.version,
        None => volume.membership().map_or(Version::ZERO, |m| m.version),
    };
    conn.knows(membership.version);
    if dax::replica::hear(kept, membership.version) == Heard::Old {
        return Response::MembersKept { version: kept };
    }
    let version = membership.version;
    let key = meta::members_key(volume.id);
    round.metas.insert(key, Some(to_json(&membership)));
    round.memberships.push((volume.clone(), membership));
    Response::MembersKept { version }
}

/// Keeps how far stores were seen to be, if that is news.
fn see(volume: &Arc<Volume>, sightings: Arc<Sightings>, round: &mut Round) -> Response {
    if sightings.version > volume.sightings().version {
        let key = meta::sightings_key(volume.id);
        round.metas.insert(key, Some(to_json(&*sightings)));
        round.sightings.push((volume.clone(), sightings));
    }
    Response::Done
}

/// The volume is to be rebuilt, as its owner says to this run.
fn went_back(volume: &Arc<Volume>, forgiven: Forgiven, round: &mut Round) -> Response {
    mark(volume, round, |about| {
        about.rebuilding = true;
        about.forgiven = Some(forgiven);
        about.filled = false;
    });
    round.went_back.push((volume.clone(), forgiven));
    Response::Done
}

/// Changes what is kept about a volume.
pub(crate) fn mark(volume: &Volume, round: &mut Round, change: impl FnOnce(&mut VolumeMeta)) {
    let mut about = volume.decided();
    change(&mut about);
    let key = meta::volume_key(&volume.name);
    round.metas.insert(key, Some(to_json(&*about)));
}

fn refuse(conn: &Conn, number: u64, error: &Error) {
    conn.send(
        0,
        Response::WriteRefused {
            number,
            kind: error.kind(),
            message: error.to_string(),
        },
    );
}

/// An error as a reply.
pub(crate) fn error(error: &Error) -> Response {
    Response::Error {
        kind: error.kind(),
        message: error.to_string(),
    }
}

fn unbound() -> Error {
    Error::new(ErrorKind::Protocol, "say hello first, to name a volume")
}

/// The answer to whoever works on in a volume that was removed.
pub(crate) fn removed(volume: &Volume) -> Error {
    let text = format!("volume {} was removed", volume.name);
    Error::new(ErrorKind::Fenced, text)
}

fn no_base() -> Error {
    Error::new(
        ErrorKind::NotFound,
        "this zone does not have what the write begins with",
    )
}

fn full() -> Error {
    Error::new(ErrorKind::Full, "no room in this zone but its reserve")
}
