//! One message of each kind, for the tests.

use bytes::Bytes;

use super::*;
use crate::credentials::{Nonce, Proof};
use crate::error::ErrorKind;
use crate::ids::{BlockIndex, Epoch, FileId, StoreId, VolumeName, ZoneId};
use crate::layer::Layer;
use crate::membership::{Change, Member, Membership};
use crate::sightings::{Position, Run, Runs, Sighting, Sightings, Standing};
use crate::storage::{EpochGrant, Lineage, Retention, Space, Traffic, Usage, VolumeSettings};

pub(super) const KEY: BlockKey = BlockKey {
    file: FileId(7),
    block: BlockIndex(9),
};
pub(super) const VERSION: Version = Version {
    epoch: Epoch(3),
    seq: 11,
};

fn grant() -> EpochGrant {
    EpochGrant {
        epoch: Epoch(3),
        owner: "a/1".into(),
    }
}

fn membership() -> Box<Membership> {
    let member = |number: u8| Member {
        store: StoreId::new(number.into()).unwrap(),
        address: format!("host{number}:7101"),
        zone: ZoneId(number),
    };
    let stores = |numbers: &[u64]| numbers.iter().filter_map(|n| StoreId::new(*n)).collect();
    Box::new(Membership {
        version: VERSION,
        changes: 4,
        sync_replicas: 2,
        members: vec![member(1), member(2), member(3)],
        change: Some(Change {
            joining: vec![member(4)],
            leaving: stores(&[2]),
            sync_replicas: 2,
            begun: VERSION,
            back: false,
            joint: true,
        }),
        former: vec![member(8), member(9)],
    })
}

fn sightings() -> Sightings {
    let seen = |number| Sighting {
        store: StoreId::new(number).unwrap(),
        run: 5,
        commit: 900 + number,
    };
    Sightings {
        version: VERSION,
        stores: vec![seen(1), seen(2)],
    }
}

pub(super) fn requests() -> Vec<Request> {
    requests_of(PROTOCOL)
}

pub(super) fn requests_of(protocol: u16) -> Vec<Request> {
    let volume = VolumeName::new("v").unwrap();
    let data = Bytes::from(vec![5; 64]);
    let write = BlockWrite {
        epoch: Epoch(3),
        key: KEY,
        generation: Generation::MAX,
        version: VERSION,
        checksum: checksum(KEY, Generation::MAX, VERSION, &data),
        base: None,
        data: data.clone(),
    };
    let mut requests = vec![
        Request::Hello {
            protocol,
            volume: volume.clone(),
            client: "c".into(),
            zone: Some("z".into()),
            nonce: Nonce([8; 32]),
        },
        Request::Proof {
            proof: Proof([9; 32]),
        },
        Request::CreateVolume {
            volume: volume.clone(),
            settings: VolumeSettings::default(),
            rebuild: true,
            membership: None,
        },
        Request::CreateVolume {
            volume,
            settings: VolumeSettings::default(),
            rebuild: false,
            membership: Some(membership()),
        },
        Request::SetMembers {
            epoch: Epoch(3),
            membership: membership(),
        },
        Request::Know { version: VERSION },
        Request::Sightings {
            epoch: Epoch(3),
            sightings: Box::new(sightings()),
        },
        Request::WentBack {
            epoch: Epoch(3),
            run: 11,
            lift: 3 << 40,
        },
        Request::Write(write.clone()),
        Request::Write(BlockWrite {
            base: Some(Base {
                generation: Generation {
                    epoch: Epoch(2),
                    number: 5,
                },
                bytes: 2,
            }),
            data: data.slice(2..),
            ..write
        }),
        Request::Flush,
        Request::Read {
            key: KEY,
            up_to: Generation::MAX,
        },
        Request::Promote {
            epoch: Epoch(3),
            key: KEY,
        },
        Request::Epoch,
        Request::OwnEpoch {
            epoch: Epoch(3),
            owner: "a/1".into(),
            settled: true,
        },
        Request::PutRecord {
            epoch: None,
            name: "n".into(),
            version: VERSION,
            value: None,
        },
        Request::PutRecord {
            epoch: Some(Epoch(3)),
            name: "n".into(),
            version: VERSION,
            value: Some(Bytes::from_static(b"x")),
        },
        Request::GetRecord { name: "n".into() },
        Request::ListRecords {
            prefix: "n".into(),
            after: Some("na".into()),
        },
        Request::Retain {
            epoch: Epoch(3),
            retention: Retention {
                images: vec![Lineage::up_to(Generation::MAX), Lineage(vec![])],
            },
        },
        Request::RemoveFiles {
            epoch: Epoch(3),
            files: vec![FileId(1), FileId(2)],
        },
        Request::RemoveBlocksBefore {
            epoch: Epoch(3),
            file: FileId(1),
            block: BlockIndex(4),
        },
        Request::Space,
        Request::Usage,
        Request::Ping,
        Request::Inventory {
            epoch: Epoch(3),
            after: None,
        },
        Request::Inventory {
            epoch: Epoch(3),
            after: Some((KEY, Generation::MAX)),
        },
        Request::Rebuilt { epoch: Epoch(3) },
    ];
    if protocol >= PROTOCOL_OF_PINS {
        for (proof, membership) in [(None, None), (Some(Proof([7; 32])), Some(membership()))] {
            requests.push(Request::CreateVolume {
                volume: VolumeName::new("v").unwrap(),
                settings: layered(proof),
                rebuild: false,
                membership,
            });
        }
        requests.extend([true, false].map(|close| Request::RemoveVolume {
            epoch: Epoch(3),
            close,
        }));
    }
    requests
}

fn layered(proof: Option<Proof>) -> VolumeSettings {
    let generation = |epoch| Generation {
        epoch: Epoch(epoch),
        number: 5,
    };
    VolumeSettings::default().under(Layer {
        parent: VolumeName::new("p").unwrap(),
        image: Lineage::up_to(generation(2))
            .continued(generation(3))
            .truncated(generation(4)),
        first_epoch: Epoch(5),
        proof,
    })
}

pub(super) fn responses() -> Vec<Response> {
    responses_of(PROTOCOL)
}

pub(super) fn responses_of(protocol: u16) -> Vec<Response> {
    let data = Bytes::from(vec![6; 64]);
    let record = |value| StoredRecord {
        version: VERSION,
        value,
    };
    let entry = |name: &str, value| RecordEntry {
        name: name.into(),
        record: record(value),
    };
    let mut responses = vec![
        Response::Welcome {
            protocol,
            settings: VolumeSettings::default(),
            grant: grant(),
            rebuilding: true,
            store: StoreId::new(77),
            membership: Some(membership()),
            standing: Some(Box::new(Standing {
                position: Position {
                    runs: Runs::new(vec![Run { run: 9, began: 3 }, Run { run: 11, began: 12 }]),
                    commit: 13,
                },
                sightings: sightings(),
            })),
        },
        Response::Welcome {
            protocol: 1,
            settings: VolumeSettings::default(),
            grant: grant(),
            rebuilding: false,
            store: None,
            membership: None,
            standing: None,
        },
        Response::Members(membership()),
        Response::MembersKept { version: VERSION },
        Response::Sightings(Box::new(sightings())),
        Response::NoVolume {
            store: StoreId::new(78).unwrap(),
        },
        Response::Challenge {
            nonce: Nonce([10; 32]),
            proof: Proof([11; 32]),
        },
        Response::Ack { upto: 8, commit: 0 },
        Response::Ack { upto: 8, commit: 9 },
        Response::WriteRefused {
            number: 4,
            kind: ErrorKind::Full,
            message: "full".into(),
        },
        Response::Block(None),
        Response::Block(Some(StoredBlock::new(
            KEY,
            Generation::SINGLE,
            VERSION,
            data,
        ))),
        Response::Epoch(grant()),
        Response::Owned {
            accepted: true,
            grant: grant(),
        },
        Response::RecordStored { version: VERSION },
        Response::Record(None),
        Response::Record(Some(record(Some(Bytes::from_static(b"v"))))),
        Response::Records {
            entries: vec![entry("a", None), entry("b", Some(Bytes::from_static(b"v")))],
            more: true,
        },
        Response::Done,
        Response::Space(Space {
            used_bytes: 1,
            free_bytes: 2,
        }),
        Response::Usage(Box::new(Usage {
            blocks: 1,
            used_bytes: 2,
            since_start: Traffic {
                writes: 3,
                write_bytes: 4,
                reads: 5,
                read_bytes: 6,
                syncs: 7,
            },
            recent: Traffic::default(),
            recent_ms: 8,
            past_blocks: if protocol < 6 { 0 } else { 9 },
            fill: None,
            relatives: Vec::new(),
        })),
        Response::Pong {
            rebuilding: false,
            commit: 0,
        },
        Response::Pong {
            rebuilding: false,
            commit: 9,
        },
        Response::Inventory {
            entries: [Some(VERSION), None]
                .map(|version| InventoryEntry {
                    key: KEY,
                    generation: Generation::MAX,
                    version,
                })
                .to_vec(),
            more: true,
        },
        Response::Error {
            kind: ErrorKind::Corrupt,
            message: "m".into(),
        },
        Response::Fenced { grant: grant() },
    ];
    if protocol >= PROTOCOL_OF_PINS {
        responses.push(Response::Welcome {
            protocol,
            settings: layered(Some(Proof([7; 32]))),
            grant: grant(),
            rebuilding: false,
            store: StoreId::new(77),
            membership: None,
            standing: None,
        });
    }
    responses
}
