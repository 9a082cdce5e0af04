//! What a client asks of a zone.

use bytes::{Bytes, BytesMut};

use super::codec::{Decoder, Encoder, malformed};
use super::frame::Frame;
use super::write::BlockWrite;
use crate::credentials::{Nonce, Proof};
use crate::error::Result;
use crate::ids::{BlockIndex, BlockKey, Epoch, FileId, Generation, Version, VolumeName};
use crate::membership::Membership;
use crate::sightings::Sightings;
use crate::storage::{Retention, VolumeSettings};

/// A message from a client to a zone.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Request {
    /// First on every connection: binds it to a volume. Reply: `Challenge` if the zone asks for
    /// proof; else, and after the proof, `Welcome`, `NoVolume`, or an error `Protocol`.
    Hello {
        /// The highest [`PROTOCOL`](super::PROTOCOL) that the client speaks.
        protocol: u16,
        /// The volume that everything else on this connection is about.
        volume: VolumeName,
        /// For the zone's log.
        client: String,
        /// The zone that the client is in, if it says; only an emulated network asks.
        zone: Option<String>,
        /// Random: the zone's proof covers it.
        nonce: Nonce,
    },
    /// The answer to a `Challenge`. Reply: as to a `Hello` that needs no proof, or error `Denied`,
    /// which ends the connection.
    Proof {
        /// The client's ([`VolumeKey::proof`](crate::credentials::VolumeKey::proof)).
        proof: Proof,
    },
    /// Makes the volume that `Hello` named; say `Hello` again afterwards. Reply: `Done`, also if it
    /// exists with the same settings; error `Conflict` if it exists with others, `Invalid` if they
    /// are invalid.
    CreateVolume {
        /// Name of the volume, unique in the zone.
        volume: VolumeName,
        /// How it is laid out.
        settings: VolumeSettings,
        /// The volume exists elsewhere and this replica has lost it, or never had it: it counts in
        /// no quorum until `Rebuilt`.
        rebuild: bool,
        /// Who the volume's members are, if that is recorded.
        membership: Option<Box<Membership>>,
    },
    /// Keep this membership, if it is newer than the one that is kept; durable before the reply. Reply:
    /// `MembersKept`, or error `Fenced`, `Conflict` (epoch not announced).
    SetMembers {
        /// The epoch that the client owns.
        epoch: Epoch,
        /// The membership.
        membership: Box<Membership>,
    },
    /// From now on the client counts by the membership of this version, or a newer one. No reply.
    Know {
        /// Version of the membership.
        version: Version,
    },
    /// Stores a block. No reply; see `Ack` and `WriteRefused`. The frame's id is the write's number.
    Write(BlockWrite),
    /// Commit what was written so far at once, do not wait for more. No reply but an earlier `Ack`.
    Flush,
    /// The newest version in a generation not above `up_to`. Reply: `Block`, or error `Corrupt`.
    Read {
        /// Block that is read.
        key: BlockKey,
        /// The last generation that counts.
        up_to: Generation,
    },
    /// The same of a block in [`Generation::SINGLE`], read under the fence: the zone replies only if
    /// its accepted epoch is `epoch`, durably, and from then on no older write can change what it
    /// replied. Reply: `Block`, or error `Fenced`, `Conflict` (epoch not announced), `Corrupt`.
    Promote {
        /// The epoch that the client owns.
        epoch: Epoch,
        /// Block that is read under the fence.
        key: BlockKey,
    },
    /// Which epoch has the zone accepted? Reply: `Epoch`.
    Epoch,
    /// Accept this epoch from this owner (durable before the reply). Reply: `Owned`.
    OwnEpoch {
        /// Epoch that the client wants to own.
        epoch: Epoch,
        /// Its owner, with incarnation.
        owner: String,
        /// A quorum has accepted it from this owner already: replaces another owner of the same
        /// epoch, which then cannot have won.
        settled: bool,
    },
    /// Stores a record, durable before the reply. Reply: `RecordStored`, or error `Fenced`,
    /// `Conflict` (epoch not announced).
    PutRecord {
        /// The epoch under whose authority it is written, if any.
        epoch: Option<Epoch>,
        /// Name of the record in the registry.
        name: String,
        /// Its version; newer replaces, older or equal has no effect.
        version: Version,
        /// Its value; none is a tombstone.
        value: Option<Bytes>,
    },
    /// Reads a record. Reply: `Record`.
    GetRecord {
        /// Name of the record in the registry.
        name: String,
    },
    /// Reads the records whose names start with `prefix`, in order of name, tombstones included.
    /// Reply: `Records`.
    ListRecords {
        /// What the names start with.
        prefix: String,
        /// Only names greater than this (the last of the page before).
        after: Option<String>,
    },
    /// What must be kept of data blocks; replaces what was said before. Reply: `Done`.
    Retain {
        /// Epoch of the owner that requests it.
        epoch: Epoch,
        /// What to keep.
        retention: Retention,
    },
    /// Gives back all blocks of these files. Covers the writes that came
    /// before on this connection, too. Reply: `Done`.
    RemoveFiles {
        /// Epoch of the owner that requests it.
        epoch: Epoch,
        /// At most [`MAX_FILES_PER_REQUEST`](super::MAX_FILES_PER_REQUEST).
        files: Vec<FileId>,
    },
    /// Gives back the blocks of a file before `block`. Covers the writes that came
    /// before on this connection, too. Reply: `Done`.
    RemoveBlocksBefore {
        /// Epoch of the owner that requests it.
        epoch: Epoch,
        /// File whose first blocks are removed.
        file: FileId,
        /// The first block to keep.
        block: BlockIndex,
    },
    /// Keep how far the stores were seen to be, if it is newer than what is kept. Reply: `Done`, or error `Fenced`,
    /// `Conflict`.
    Sightings {
        /// The epoch that the client owns.
        epoch: Epoch,
        /// What was seen.
        sightings: Box<Sightings>,
    },
    /// This store lacks what it had acknowledged: it counts in no quorum until `Rebuilt`. Reply: `Done`, or error
    /// `Fenced`, `Conflict` (also if the process is another one by now).
    WentBack {
        /// Epoch of the owner that noticed it.
        epoch: Epoch,
        /// The run of the process that is meant.
        run: u64,
        /// Its commits are told as so much further from now on.
        lift: u64,
    },
    /// Which versions of which blocks are stored, in order of (block, generation), each verified
    /// against its checksum; one page. Reply: `Inventory`, or error `Fenced`, `Conflict`.
    Inventory {
        /// The authority: from the answer on, no older epoch changes what it says.
        epoch: Epoch,
        /// Only what comes after this.
        after: Option<(BlockKey, Generation)>,
    },
    /// Removes the volume for good, or only closes it: from then on, until a higher epoch is accepted, no other volume is laid
    /// over it. Covers the writes that came before on this connection, too. Reply: `Done`, or error `Fenced`, `Conflict` (also
    /// if another volume is laid over it).
    RemoveVolume {
        /// Epoch of the owner that requests it.
        epoch: Epoch,
        /// It is only closed.
        close: bool,
    },
    /// Everything that this replica lacked has been sent to it and is durable: from now on it counts
    /// in quorums. Reply: `Done`, or error `Fenced`, `Conflict`.
    Rebuilt {
        /// Epoch of the owner that rebuilt the replica.
        epoch: Epoch,
    },
    /// How much room is there? Reply: `Space`.
    Space,
    /// What is kept of the volume here, and what is done for it? Reply: `Usage`.
    Usage,
    /// Are you there? Reply: `Pong`.
    Ping,
}

mod tag {
    pub const HELLO: u8 = 1;
    pub const CREATE_VOLUME: u8 = 2;
    pub const WRITE: u8 = 3;
    /// The same with a base, since protocol 4.
    pub const WRITE_ONTO: u8 = 31;
    pub const FLUSH: u8 = 4;
    pub const READ: u8 = 5;
    pub const PROMOTE: u8 = 6;
    pub const EPOCH: u8 = 7;
    pub const OWN_EPOCH: u8 = 8;
    pub const PUT_RECORD: u8 = 9;
    pub const GET_RECORD: u8 = 10;
    pub const LIST_RECORDS: u8 = 11;
    pub const RETAIN: u8 = 12;
    pub const REMOVE_FILES: u8 = 13;
    pub const REMOVE_BLOCKS_BEFORE: u8 = 14;
    pub const SPACE: u8 = 15;
    pub const PING: u8 = 16;
    pub const PROOF: u8 = 17;
    /// The same with members, since protocol 3.
    pub const CREATE_WITH_MEMBERS: u8 = 24;
    pub const SET_MEMBERS: u8 = 22;
    pub const KNOW: u8 = 23;
    pub const SIGHTINGS: u8 = 25;
    pub const WENT_BACK: u8 = 26;
    pub const USAGE: u8 = 30;
    pub const INVENTORY: u8 = 20;
    pub const REBUILT: u8 = 21;
    /// As `CREATE_WITH_MEMBERS` with a layer, since protocol 6: zones of an older release do not know it.
    pub const CREATE_LAYERED: u8 = 32;
    /// Since protocol 6.
    pub const REMOVE_VOLUME: u8 = 33;
}

impl Request {
    fn tag(&self) -> u8 {
        match self {
            Request::Hello { .. } => tag::HELLO,
            Request::Proof { .. } => tag::PROOF,
            Request::CreateVolume { settings, .. } if settings.layer.is_some() => {
                tag::CREATE_LAYERED
            }
            Request::CreateVolume {
                membership: None, ..
            } => tag::CREATE_VOLUME,
            Request::CreateVolume { .. } => tag::CREATE_WITH_MEMBERS,
            Request::SetMembers { .. } => tag::SET_MEMBERS,
            Request::Know { .. } => tag::KNOW,
            Request::Write(write) if write.base.is_some() => tag::WRITE_ONTO,
            Request::Write(_) => tag::WRITE,
            Request::Flush => tag::FLUSH,
            Request::Read { .. } => tag::READ,
            Request::Promote { .. } => tag::PROMOTE,
            Request::Epoch => tag::EPOCH,
            Request::OwnEpoch { .. } => tag::OWN_EPOCH,
            Request::PutRecord { .. } => tag::PUT_RECORD,
            Request::GetRecord { .. } => tag::GET_RECORD,
            Request::ListRecords { .. } => tag::LIST_RECORDS,
            Request::Retain { .. } => tag::RETAIN,
            Request::RemoveFiles { .. } => tag::REMOVE_FILES,
            Request::RemoveBlocksBefore { .. } => tag::REMOVE_BLOCKS_BEFORE,
            Request::Sightings { .. } => tag::SIGHTINGS,
            Request::WentBack { .. } => tag::WENT_BACK,
            Request::Inventory { .. } => tag::INVENTORY,
            Request::Rebuilt { .. } => tag::REBUILT,
            Request::RemoveVolume { .. } => tag::REMOVE_VOLUME,
            Request::Space => tag::SPACE,
            Request::Usage => tag::USAGE,
            Request::Ping => tag::PING,
        }
    }

    /// Puts the message into a frame. `scratch` must be empty and is left empty; reusing it saves
    /// allocations. Block data and record values are not copied.
    pub fn encode(&self, id: u64, scratch: &mut BytesMut) -> Frame {
        Frame::begin(scratch, id, self.tag());
        let payload = self.encode_body(&mut Encoder(scratch));
        Frame::finish(scratch, payload)
    }

    /// Writes the fields and returns the payload that follows them.
    fn encode_body(&self, out: &mut Encoder<'_>) -> Bytes {
        match self {
            Request::Hello {
                protocol,
                volume,
                client,
                zone,
                nonce,
            } => {
                out.u16(*protocol);
                out.text(volume.as_str());
                out.text(client);
                out.text(zone.as_deref().unwrap_or_default());
                out.array(&nonce.0);
            }
            Request::Proof { proof } => out.array(&proof.0),
            Request::CreateVolume {
                volume,
                settings,
                rebuild,
                membership,
            } => {
                out.text(volume.as_str());
                out.settings(settings);
                out.bool(*rebuild);
                if membership.is_some() || settings.layer.is_some() {
                    out.membership(membership.as_deref());
                }
                out.layer(settings.layer.as_deref());
            }
            Request::SetMembers { epoch, membership } => {
                out.epoch(*epoch);
                out.membership(Some(membership));
            }
            Request::Know { version } => out.version(*version),
            Request::Write(write) => return write.encode(out),
            Request::Flush | Request::Epoch | Request::Space | Request::Usage | Request::Ping => {}
            Request::Read { key, up_to } => {
                out.key(*key);
                out.generation(*up_to);
            }
            Request::Promote { epoch, key } => {
                out.epoch(*epoch);
                out.key(*key);
            }
            Request::OwnEpoch {
                epoch,
                owner,
                settled,
            } => {
                out.epoch(*epoch);
                out.text(owner);
                out.bool(*settled);
            }
            Request::PutRecord {
                epoch,
                name,
                version,
                value,
            } => {
                out.bool(epoch.is_some());
                out.epoch(epoch.unwrap_or_default());
                out.text(name);
                out.version(*version);
                out.bool(value.is_some());
                let value = value.clone().unwrap_or_default();
                out.len(value.len());
                return value;
            }
            Request::GetRecord { name } => out.text(name),
            Request::ListRecords { prefix, after } => {
                out.text(prefix);
                out.bool(after.is_some());
                out.text(after.as_deref().unwrap_or_default());
            }
            Request::Retain { epoch, retention } => {
                out.epoch(*epoch);
                out.retention(retention);
            }
            Request::RemoveFiles { epoch, files } => {
                out.epoch(*epoch);
                out.len(files.len());
                files.iter().for_each(|f| out.u64(f.0));
            }
            Request::RemoveBlocksBefore { epoch, file, block } => {
                out.epoch(*epoch);
                out.u64(file.0);
                out.u64(block.0);
            }
            Request::Sightings { epoch, sightings } => {
                out.epoch(*epoch);
                out.sightings(sightings);
            }
            Request::WentBack { epoch, run, lift } => {
                out.epoch(*epoch);
                out.u64(*run);
                out.u64(*lift);
            }
            Request::Inventory { epoch, after } => {
                out.epoch(*epoch);
                out.bool(after.is_some());
                if let Some((key, generation)) = after {
                    out.key(*key);
                    out.generation(*generation);
                }
            }
            Request::Rebuilt { epoch } => out.epoch(*epoch),
            Request::RemoveVolume { epoch, close } => {
                out.epoch(*epoch);
                out.bool(*close);
            }
        }
        Bytes::new()
    }

    /// Reads a frame as [`read_frame`](super::read_frame) returns it: its id and message. Block data
    /// shares the frame's memory.
    ///
    /// # Errors
    /// `Protocol` for anything malformed, `Invalid` for an impossible volume name.
    pub fn decode(frame: Bytes) -> Result<(u64, Request)> {
        let mut d = Decoder(frame);
        let id = d.u64()?;
        let tag = d.u8()?;
        let request = match tag {
            tag::HELLO => Request::Hello {
                protocol: d.u16()?,
                volume: d.volume()?,
                client: d.text()?,
                zone: Some(d.text()?).filter(|zone| !zone.is_empty()),
                nonce: Nonce(d.array()?),
            },
            tag::PROOF => Request::Proof {
                proof: Proof(d.array()?),
            },
            tag::CREATE_VOLUME | tag::CREATE_WITH_MEMBERS | tag::CREATE_LAYERED => {
                let (volume, mut settings, rebuild) = (d.volume()?, d.settings()?, d.bool()?);
                let membership = match tag {
                    tag::CREATE_VOLUME => None,
                    _ => d.membership()?,
                };
                if tag == tag::CREATE_LAYERED {
                    let layer = d.layer()?;
                    settings.layer = Some(layer.ok_or_else(|| malformed("no layer"))?);
                }
                Request::CreateVolume {
                    volume,
                    settings,
                    rebuild,
                    membership,
                }
            }
            tag::SET_MEMBERS => Request::SetMembers {
                epoch: d.epoch()?,
                membership: (d.membership()?).ok_or_else(|| malformed("no members"))?,
            },
            tag::KNOW => Request::Know {
                version: d.version()?,
            },
            tag::WRITE => Request::Write(BlockWrite::decode(&mut d, false)?),
            tag::WRITE_ONTO => Request::Write(BlockWrite::decode(&mut d, true)?),
            tag::FLUSH => Request::Flush,
            tag::READ => Request::Read {
                key: d.key()?,
                up_to: d.generation()?,
            },
            tag::PROMOTE => Request::Promote {
                epoch: d.epoch()?,
                key: d.key()?,
            },
            tag::EPOCH => Request::Epoch,
            tag::OWN_EPOCH => Request::OwnEpoch {
                epoch: d.epoch()?,
                owner: d.text()?,
                settled: d.bool()?,
            },
            tag::SPACE => Request::Space,
            tag::USAGE => Request::Usage,
            tag::PING => Request::Ping,
            tag => Request::decode_record(tag, &mut d)?,
        };
        Ok((id, request))
    }

    /// The records and the removals.
    fn decode_record(tag: u8, d: &mut Decoder) -> Result<Request> {
        Ok(match tag {
            tag::PUT_RECORD => {
                let (has_epoch, epoch) = (d.bool()?, d.epoch()?);
                let (name, version) = (d.text()?, d.version()?);
                let (has_value, value) = (d.bool()?, d.bytes()?);
                Request::PutRecord {
                    epoch: has_epoch.then_some(epoch),
                    name,
                    version,
                    value: has_value.then_some(value),
                }
            }
            tag::GET_RECORD => Request::GetRecord { name: d.text()? },
            tag::LIST_RECORDS => {
                let (prefix, has_after, after) = (d.text()?, d.bool()?, d.text()?);
                Request::ListRecords {
                    prefix,
                    after: has_after.then_some(after),
                }
            }
            tag::RETAIN => Request::Retain {
                epoch: d.epoch()?,
                retention: d.retention()?,
            },
            tag::REMOVE_FILES => {
                let epoch = d.epoch()?;
                let files = (0..d.count(8)?).map(|_| d.u64().map(FileId));
                Request::RemoveFiles {
                    epoch,
                    files: files.collect::<Result<_>>()?,
                }
            }
            tag::REMOVE_BLOCKS_BEFORE => Request::RemoveBlocksBefore {
                epoch: d.epoch()?,
                file: FileId(d.u64()?),
                block: BlockIndex(d.u64()?),
            },
            tag::SIGHTINGS => Request::Sightings {
                epoch: d.epoch()?,
                sightings: Box::new(d.sightings()?),
            },
            tag::WENT_BACK => Request::WentBack {
                epoch: d.epoch()?,
                run: d.u64()?,
                lift: d.u64()?,
            },
            tag::INVENTORY => Request::Inventory {
                epoch: d.epoch()?,
                after: match d.bool()? {
                    true => Some((d.key()?, d.generation()?)),
                    false => None,
                },
            },
            tag::REBUILT => Request::Rebuilt { epoch: d.epoch()? },
            tag::REMOVE_VOLUME => Request::RemoveVolume {
                epoch: d.epoch()?,
                close: d.bool()?,
            },
            other => return Err(malformed(&format!("unknown request {other}"))),
        })
    }
}
