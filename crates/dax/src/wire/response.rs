//! What a zone tells a client.

use bytes::{Bytes, BytesMut};

use super::codec::{Decoder, Encoder, malformed};
use super::frame::Frame;
use crate::credentials::{Nonce, Proof};
use crate::error::{Error, ErrorKind, Result};
use crate::ids::{BlockKey, Generation, StoreId, Version};
use crate::membership::Membership;
use crate::sightings::{Sightings, Standing};
use crate::storage::{EpochGrant, Space, Usage, VolumeSettings};

/// A block as a replica keeps it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StoredBlock {
    /// Version that is stored.
    pub version: Version,
    /// The generation it was written in.
    pub generation: Generation,
    /// [`checksum`](super::checksum) as its writer computed it.
    pub checksum: u32,
    /// Contents as they are stored, which may be packed.
    pub data: Bytes,
}

/// A record as a replica keeps it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StoredRecord {
    /// Version that is stored.
    pub version: Version,
    /// Its value; none is a tombstone.
    pub value: Option<Bytes>,
}

/// A record with its name.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RecordEntry {
    /// Name of the record in the registry.
    pub name: String,
    /// What is stored under it.
    pub record: StoredRecord,
}

/// One version of one block, as an inventory names it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct InventoryEntry {
    /// Block that the replica has.
    pub key: BlockKey,
    /// In which generation.
    pub generation: Generation,
    /// Its version; none if it is damaged.
    pub version: Option<Version>,
}

/// A message from a zone to a client.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Response {
    /// The connection is bound to its volume.
    Welcome {
        /// The protocol version that the zone will speak, at most the client's.
        protocol: u16,
        /// How the volume is laid out.
        settings: VolumeSettings,
        /// The epoch that this zone has accepted.
        grant: EpochGrant,
        /// It does not count in quorums yet: see [`Request::Rebuilt`](super::Request::Rebuilt).
        rebuilding: bool,
        /// Which store this is; a zone that speaks protocol 1 does not say.
        store: Option<StoreId>,
        /// Who the volume's members are, as far as this store knows: nothing that it answers on this
        /// connection counts for a client that goes by an older one.
        membership: Option<Box<Membership>>,
        /// How far this store is, and what it was told of others; since protocol 3.
        standing: Option<Box<Standing>>,
    },
    /// Push: there is a newer membership than the one that this connection knows. Until the client says
    /// that it [knows](super::Request::Know) it, what would count in a quorum is refused.
    Members(Box<Membership>),
    /// Push: how far stores were seen to be, newer than what this connection was told before. Whatever is answered
    /// after this store keeps it is answered after this.
    Sightings(Box<Sightings>),
    /// Reply to `SetMembers`: the version that is kept now.
    MembersKept {
        /// That version; higher than the one sent if the store knew a newer one.
        version: Version,
    },
    /// Reply to `Hello` of protocol 2: this store does not know the volume. (Before, an error
    /// `NotFound`.)
    NoVolume {
        /// Which store this is.
        store: StoreId,
    },
    /// Reply to `Hello`: prove that you know the volume's key, as the zone does here.
    Challenge {
        /// Random: the client's proof covers it.
        nonce: Nonce,
        /// The zone's ([`VolumeKey::proof`](crate::credentials::VolumeKey::proof)).
        proof: Proof,
    },
    /// Push: every write of this connection up to this number is durable here, except those that
    /// a `WriteRefused` sent earlier names.
    Ack {
        /// The number of the last durable write.
        upto: u64,
        /// The number of the store's commit that made it so; 0 before protocol 3.
        commit: u64,
    },
    /// Push: this write had no effect.
    WriteRefused {
        /// Number of the refused write, as the client counts.
        number: u64,
        /// `Fenced`, `Full`, `Corrupt` (bad checksum on arrival), `Conflict` (epoch not announced),
        /// `Invalid` (wrong size).
        kind: ErrorKind,
        /// One sentence for a log.
        message: String,
    },
    /// Reply to a read: the block, if there is one.
    Block(Option<StoredBlock>),
    /// Reply to `Epoch`: what is accepted here.
    Epoch(EpochGrant),
    /// Reply to `OwnEpoch`.
    Owned {
        /// True if it was accepted (also if it had been before, from the same owner).
        accepted: bool,
        /// What is accepted here now.
        grant: EpochGrant,
    },
    /// Reply to `PutRecord`: the version that is stored now; higher than the one sent if the zone
    /// had a newer one.
    RecordStored {
        /// That version.
        version: Version,
    },
    /// Reply to `GetRecord`: the record, if the zone ever heard of it.
    Record(Option<StoredRecord>),
    /// Reply to `ListRecords`: one page, ordered by name.
    Records {
        /// The records.
        entries: Vec<RecordEntry>,
        /// True if there are more: ask again after the last name.
        more: bool,
    },
    /// Reply to `Inventory`: one page.
    Inventory {
        /// What is stored, in order.
        entries: Vec<InventoryEntry>,
        /// True if there is more: ask again after the last entry.
        more: bool,
    },
    /// Reply to what has nothing else to say.
    Done,
    /// Reply to `Space`.
    Space(Space),
    /// Reply to `Usage`.
    Usage(Box<Usage>),
    /// Reply to `Ping`.
    Pong {
        /// As in `Welcome`.
        rebuilding: bool,
        /// The number of the store's last commit; 0 before protocol 3.
        commit: u64,
    },
    /// Reply to a request that failed.
    Error {
        /// What to do about it.
        kind: ErrorKind,
        /// One sentence.
        message: String,
    },
    /// Push: a higher epoch than the one that this connection announced was accepted.
    Fenced {
        /// The epoch that fences.
        grant: EpochGrant,
    },
}

mod tag {
    pub const WELCOME: u8 = 1;
    pub const NO_VOLUME: u8 = 16;
    pub const MEMBERS: u8 = 17;
    pub const MEMBERS_KEPT: u8 = 18;
    /// With the number of a commit, which protocol 2 does not have.
    pub const SIGHTINGS: u8 = 19;
    pub const ACK_OF_COMMIT: u8 = 22;
    pub const PONG_OF_COMMIT: u8 = 23;
    pub const ACK: u8 = 2;
    pub const WRITE_REFUSED: u8 = 3;
    pub const BLOCK: u8 = 4;
    pub const EPOCH: u8 = 5;
    pub const OWNED: u8 = 6;
    pub const RECORD_STORED: u8 = 7;
    pub const RECORD: u8 = 8;
    pub const RECORDS: u8 = 9;
    pub const DONE: u8 = 10;
    pub const SPACE: u8 = 11;
    pub const USAGE: u8 = 30;
    pub const PONG: u8 = 12;
    pub const ERROR: u8 = 13;
    pub const FENCED: u8 = 14;
    pub const CHALLENGE: u8 = 15;
    pub const INVENTORY: u8 = 20;
}

impl Response {
    fn tag(&self) -> u8 {
        match self {
            Response::Welcome { .. } => tag::WELCOME,
            Response::NoVolume { .. } => tag::NO_VOLUME,
            Response::Members(_) => tag::MEMBERS,
            Response::MembersKept { .. } => tag::MEMBERS_KEPT,
            Response::Sightings(_) => tag::SIGHTINGS,
            Response::Challenge { .. } => tag::CHALLENGE,
            Response::Ack { commit: 0, .. } => tag::ACK,
            Response::Ack { .. } => tag::ACK_OF_COMMIT,
            Response::WriteRefused { .. } => tag::WRITE_REFUSED,
            Response::Block(_) => tag::BLOCK,
            Response::Epoch(_) => tag::EPOCH,
            Response::Owned { .. } => tag::OWNED,
            Response::RecordStored { .. } => tag::RECORD_STORED,
            Response::Record(_) => tag::RECORD,
            Response::Records { .. } => tag::RECORDS,
            Response::Done => tag::DONE,
            Response::Space(_) => tag::SPACE,
            Response::Usage(_) => tag::USAGE,
            Response::Pong { commit: 0, .. } => tag::PONG,
            Response::Pong { .. } => tag::PONG_OF_COMMIT,
            Response::Inventory { .. } => tag::INVENTORY,
            Response::Error { .. } => tag::ERROR,
            Response::Fenced { .. } => tag::FENCED,
        }
    }

    /// The message, or the error that it tells.
    ///
    /// # Errors
    /// What an [`Response::Error`] says.
    pub fn into_result(self) -> Result<Response> {
        match self {
            Response::Error { kind, message } => Err(Error::new(kind, message)),
            response => Ok(response),
        }
    }

    /// Puts the message into a frame. `scratch` must be empty and is left empty; reusing it saves
    /// allocations. Block data is not copied.
    pub fn encode(&self, id: u64, scratch: &mut BytesMut) -> Frame {
        Frame::begin(scratch, id, self.tag());
        let payload = self.encode_body(&mut Encoder(scratch));
        Frame::finish(scratch, payload)
    }

    /// Writes the fields and returns the payload that follows them.
    fn encode_body(&self, out: &mut Encoder<'_>) -> Bytes {
        match self {
            Response::Welcome {
                protocol,
                settings,
                grant,
                rebuilding,
                store,
                membership,
                standing,
            } => {
                out.u16(*protocol);
                out.settings(settings);
                out.grant(grant);
                out.bool(*rebuilding);
                if *protocol >= 2 {
                    out.store(*store);
                }
                if *protocol >= 3 {
                    out.membership(membership.as_deref());
                    out.standing(standing.as_deref());
                }
                out.layer(settings.layer.as_deref());
            }
            Response::Members(membership) => out.membership(Some(membership)),
            Response::MembersKept { version } => out.version(*version),
            Response::Sightings(sightings) => out.sightings(sightings),
            Response::NoVolume { store } => out.store(Some(*store)),
            Response::Challenge { nonce, proof } => {
                out.array(&nonce.0);
                out.array(&proof.0);
            }
            Response::Ack { upto, commit } => {
                out.u64(*upto);
                if *commit > 0 {
                    out.u64(*commit);
                }
            }
            Response::WriteRefused {
                number,
                kind,
                message,
            } => {
                out.u64(*number);
                out.error_kind(*kind);
                out.text(message);
            }
            Response::Block(block) => {
                out.bool(block.is_some());
                if let Some(block) = block {
                    out.version(block.version);
                    out.generation(block.generation);
                    out.u32(block.checksum);
                    out.len(block.data.len());
                    return block.data.clone();
                }
            }
            Response::Epoch(grant) | Response::Fenced { grant } => out.grant(grant),
            Response::Owned { accepted, grant } => {
                out.bool(*accepted);
                out.grant(grant);
            }
            Response::RecordStored { version } => out.version(*version),
            Response::Record(record) => {
                out.bool(record.is_some());
                if let Some(record) = record {
                    record.encode(out);
                }
            }
            Response::Records { entries, more } => {
                out.bool(*more);
                out.len(entries.len());
                for entry in entries {
                    out.text(&entry.name);
                    entry.record.encode(out);
                }
            }
            Response::Inventory { entries, more } => {
                out.bool(*more);
                out.len(entries.len());
                for entry in entries {
                    out.key(entry.key);
                    out.generation(entry.generation);
                    out.bool(entry.version.is_some());
                    out.version(entry.version.unwrap_or_default());
                }
            }
            Response::Done => {}
            Response::Pong { rebuilding, commit } => {
                out.bool(*rebuilding);
                if *commit > 0 {
                    out.u64(*commit);
                }
            }
            Response::Space(space) => {
                out.u64(space.used_bytes);
                out.u64(space.free_bytes);
            }
            Response::Usage(usage) => out.usage(usage),
            Response::Error { kind, message } => {
                out.error_kind(*kind);
                out.text(message);
            }
        }
        Bytes::new()
    }

    /// Reads a frame as [`FrameReader::next`](super::FrameReader::next) returns it: its id and
    /// message. Block data shares the frame's memory.
    ///
    /// # Errors
    /// `Protocol` for anything malformed.
    pub fn decode(frame: Bytes) -> Result<(u64, Response)> {
        let mut d = Decoder(frame);
        let id = d.u64()?;
        let response = match d.u8()? {
            tag::WELCOME => decode_welcome(&mut d)?,
            tag::NO_VOLUME => Response::NoVolume {
                store: d.some_store()?,
            },
            tag::MEMBERS => {
                let membership = d.membership()?;
                Response::Members(membership.ok_or_else(|| malformed("no members"))?)
            }
            tag::MEMBERS_KEPT => Response::MembersKept {
                version: d.version()?,
            },
            tag::SIGHTINGS => Response::Sightings(Box::new(d.sightings()?)),
            tag::CHALLENGE => Response::Challenge {
                nonce: Nonce(d.array()?),
                proof: Proof(d.array()?),
            },
            tag::ACK => Response::Ack {
                upto: d.u64()?,
                commit: 0,
            },
            tag::ACK_OF_COMMIT => Response::Ack {
                upto: d.u64()?,
                commit: d.u64()?,
            },
            tag::WRITE_REFUSED => Response::WriteRefused {
                number: d.u64()?,
                kind: d.error_kind()?,
                message: d.text()?,
            },
            tag::BLOCK => Response::Block(StoredBlock::decode(&mut d)?),
            tag::EPOCH => Response::Epoch(d.grant()?),
            tag::OWNED => Response::Owned {
                accepted: d.bool()?,
                grant: d.grant()?,
            },
            tag::RECORD_STORED => Response::RecordStored {
                version: d.version()?,
            },
            tag::RECORD => Response::Record(match d.bool()? {
                true => Some(StoredRecord::decode(&mut d)?),
                false => None,
            }),
            tag::RECORDS => decode_records(&mut d)?,
            tag::DONE => Response::Done,
            tag::SPACE => Response::Space(Space {
                used_bytes: d.u64()?,
                free_bytes: d.u64()?,
            }),
            tag::USAGE => Response::Usage(Box::new(d.usage()?)),
            tag::PONG => Response::Pong {
                rebuilding: d.bool()?,
                commit: 0,
            },
            tag::PONG_OF_COMMIT => Response::Pong {
                rebuilding: d.bool()?,
                commit: d.u64()?,
            },
            tag::INVENTORY => decode_inventory(&mut d)?,
            tag::ERROR => Response::Error {
                kind: d.error_kind()?,
                message: d.text()?,
            },
            tag::FENCED => Response::Fenced { grant: d.grant()? },
            other => return Err(malformed(&format!("unknown response {other}"))),
        };
        Ok((id, response))
    }
}

fn decode_welcome(d: &mut Decoder) -> Result<Response> {
    let protocol = d.u16()?;
    let (mut settings, grant, rebuilding) = (d.settings()?, d.grant()?, d.bool()?);
    let store = if protocol < 2 { None } else { d.store()? };
    let (membership, standing) = match protocol {
        ..3 => (None, None),
        _ => (d.membership()?, d.standing()?),
    };
    settings.layer = d.layer()?;
    Ok(Response::Welcome {
        protocol,
        settings,
        grant,
        rebuilding,
        store,
        membership,
        standing,
    })
}

/// The fewest bytes that an entry takes: name length, version, value flag and length.
const MIN_ENTRY_BYTES: usize = 4 + 12 + 1 + 4;

fn decode_records(d: &mut Decoder) -> Result<Response> {
    let more = d.bool()?;
    let entries = (0..d.count(MIN_ENTRY_BYTES)?).map(|_| {
        Ok(RecordEntry {
            name: d.text()?,
            record: StoredRecord::decode(d)?,
        })
    });
    Ok(Response::Records {
        entries: entries.collect::<Result<_>>()?,
        more,
    })
}

/// The bytes that an entry of an inventory takes: block, generation, flag and version.
const INVENTORY_ENTRY_BYTES: usize = 16 + 8 + 1 + 12;

fn decode_inventory(d: &mut Decoder) -> Result<Response> {
    let more = d.bool()?;
    let entries = (0..d.count(INVENTORY_ENTRY_BYTES)?).map(|_| {
        let (key, generation) = (d.key()?, d.generation()?);
        let (intact, version) = (d.bool()?, d.version()?);
        Ok(InventoryEntry {
            key,
            generation,
            version: intact.then_some(version),
        })
    });
    Ok(Response::Inventory {
        entries: entries.collect::<Result<_>>()?,
        more,
    })
}

impl StoredBlock {
    fn decode(d: &mut Decoder) -> Result<Option<StoredBlock>> {
        if !d.bool()? {
            return Ok(None);
        }
        Ok(Some(StoredBlock {
            version: d.version()?,
            generation: d.generation()?,
            checksum: d.u32()?,
            data: d.bytes()?,
        }))
    }
}

impl StoredRecord {
    fn encode(&self, out: &mut Encoder<'_>) {
        out.version(self.version);
        out.bool(self.value.is_some());
        out.bytes(self.value.as_deref().unwrap_or_default());
    }

    fn decode(d: &mut Decoder) -> Result<StoredRecord> {
        let version = d.version()?;
        let (has_value, value) = (d.bool()?, d.bytes()?);
        Ok(StoredRecord {
            version,
            value: has_value.then_some(value),
        })
    }
}
