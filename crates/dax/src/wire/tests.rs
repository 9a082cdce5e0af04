use std::path::{Path, PathBuf};

use super::*;
use crate::credentials::{Nonce, Proof};
use crate::error::ErrorKind;
use crate::ids::{BlockIndex, Epoch, FileId, StoreId, VolumeName, ZoneId};
use crate::membership::{Change, Member, Membership};
use crate::sightings::{Position, Run, Runs, Sighting, Sightings, Standing};
use crate::storage::{EpochGrant, Lineage, Retention, Space, Traffic, Usage, VolumeSettings};
use crate::writer::packing::piece;
use bytes::BytesMut;
use proptest::prelude::*;

const KEY: BlockKey = BlockKey {
    file: FileId(7),
    block: BlockIndex(9),
};
const VERSION: Version = Version {
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

fn requests() -> Vec<Request> {
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
    vec![
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
    ]
}

fn responses() -> Vec<Response> {
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
    vec![
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
        Response::Usage(Usage {
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
        }),
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
    ]
}

/// Where the corpus keeps a message: by its kind, numbered where there are several.
fn file_of(kind: &str, message: &impl std::fmt::Debug, earlier: &mut Vec<String>) -> PathBuf {
    let shown = format!("{message:?}");
    let name: String = shown
        .chars()
        .take_while(char::is_ascii_alphabetic)
        .flat_map(|c| {
            [
                c.is_uppercase().then_some('-'),
                Some(c.to_ascii_lowercase()),
            ]
        })
        .flatten()
        .collect();
    let number = earlier.iter().filter(|e| **e == name).count() + 1;
    earlier.push(name.clone());
    let corpus = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/corpus");
    corpus.join(format!("{kind}{name}-{number}.bin"))
}

/// The format is an agreement with other versions: it does not change by accident. After a change that
/// is meant, `UPDATE_CORPUS=1` writes the files anew.
#[test]
fn messages_are_what_the_corpus_holds() {
    let mut scratch = BytesMut::new();
    let mut files: Vec<(PathBuf, Vec<u8>)> = Vec::new();
    let mut earlier = Vec::new();
    for request in requests() {
        let bytes = on_the_wire(&request.encode(7, &mut scratch));
        files.push((file_of("request", &request, &mut earlier), bytes));
    }
    earlier.clear();
    for response in responses() {
        let bytes = on_the_wire(&response.encode(7, &mut scratch));
        files.push((file_of("response", &response, &mut earlier), bytes));
    }
    for (path, bytes) in files {
        if std::env::var_os("UPDATE_CORPUS").is_some() {
            std::fs::write(&path, &bytes).unwrap();
        }
        let kept = std::fs::read(&path).unwrap_or_default();
        assert!(kept == bytes, "{} holds something else", path.display());
    }
}

pub(super) fn on_the_wire(frame: &Frame) -> Vec<u8> {
    frame.parts().concat()
}

#[test]
fn requests_come_back_as_they_went() {
    let mut scratch = BytesMut::new();
    for (id, request) in (1u64..).zip(requests()) {
        let bytes = on_the_wire(&request.encode(id, &mut scratch));
        let frame = read_frame(&mut &bytes[..], MAX_FRAME_BYTES)
            .unwrap()
            .unwrap();
        assert_eq!(Request::decode(frame).unwrap(), (id, request));
    }
}

#[tokio::test]
async fn responses_come_back_as_they_went() {
    let mut scratch = BytesMut::new();
    for (id, response) in (1u64..).zip(responses()) {
        let bytes = on_the_wire(&response.encode(id, &mut scratch));
        let frame = FrameReader::new(&bytes[..])
            .next(MAX_FRAME_BYTES)
            .await
            .unwrap();
        assert_eq!(Response::decode(frame).unwrap(), (id, response));
    }
}

#[test]
fn a_write_is_completed_by_what_it_begins_with_and_by_nothing_else() {
    let data = Bytes::from_static(b"beginning and end");
    let write = |bytes: u32| BlockWrite {
        epoch: Epoch(1),
        key: KEY,
        generation: Generation::SINGLE,
        version: VERSION,
        checksum: checksum(KEY, Generation::SINGLE, VERSION, &data),
        base: Some(Base {
            generation: Generation::SINGLE,
            bytes,
        }),
        data: data.slice(bytes as usize..),
    };
    let whole = write(9).completed(b"beginning of another").unwrap();
    assert_eq!((whole.base, whole.data.clone()), (None, data.clone()));
    assert_eq!(whole.whole_bytes(), write(9).whole_bytes());
    assert_eq!(write(9).completed(b"Beginning"), None);
    assert_eq!(write(9).completed(b"beginnin"), None);
    assert_eq!(whole.completed(b"beginning"), None, "it is whole");
}

proptest! {
    /// A frame of bytes that do not pack ends with them, and a CRC-32C behind them hid them from the checksum of the whole:
    /// a zone put pieces behind every first piece of the same length.
    // hazard: D3
    #[test]
    fn a_piece_is_put_behind_no_other_piece(
        beginnings in prop::collection::vec(any::<(u8, u8)>(), 1..300),
        new in prop::collection::vec(any::<u8>(), 1..300),
    ) {
        let (beginning, other): (Vec<u8>, Vec<u8>) = beginnings.into_iter().unzip();
        prop_assume!(beginning != other);
        let first = |bytes: &[u8]| piece(&[], &[], bytes, 8192).unwrap();
        let (kept, foreign) = (first(&beginning), first(&other));
        let whole = piece(&kept, &beginning, &new, 8192).unwrap();
        let write = || BlockWrite {
            epoch: Epoch(1),
            key: KEY,
            generation: Generation::SINGLE,
            version: VERSION,
            checksum: checksum(KEY, Generation::SINGLE, VERSION, &whole),
            base: Some(Base {
                generation: Generation::SINGLE,
                bytes: kept.len() as u32,
            }),
            data: whole.slice(kept.len()..),
        };
        prop_assert_eq!(write().completed(&foreign), None);
        prop_assert_eq!(write().completed(&kept).unwrap().data, whole);
    }
}

#[test]
fn block_data_is_not_copied() {
    let data = Bytes::from(vec![1; 8192]);
    let write = BlockWrite {
        epoch: Epoch(1),
        key: KEY,
        generation: Generation::SINGLE,
        version: VERSION,
        checksum: 0,
        base: None,
        data: data.clone(),
    };
    let frame = Request::Write(write).encode(1, &mut BytesMut::new());
    assert_eq!(frame.payload.as_ptr(), data.as_ptr());
    assert!(frame.head.len() < 100);
}

#[test]
fn a_checksum_covers_the_name_and_the_bytes() {
    let block = StoredBlock::new(KEY, Generation::SINGLE, VERSION, Bytes::from_static(b"abc"));
    assert!(block.is_intact(KEY));
    assert!(!block.is_intact(BlockKey::new(FileId(7), 10)));
    let other = StoredBlock {
        version: Version::ZERO,
        ..block.clone()
    };
    assert!(!other.is_intact(KEY));
    let other = StoredBlock {
        data: Bytes::from_static(b"abd"),
        ..block
    };
    assert!(!other.is_intact(KEY));
}

#[test]
fn a_frame_cut_short_is_an_error() {
    let mut scratch = BytesMut::new();
    for request in requests() {
        let bytes = Bytes::from(on_the_wire(&request.encode(1, &mut scratch)));
        for end in 4..bytes.len() - 1 {
            assert!(
                Request::decode(bytes.slice(4..end)).is_err(),
                "{request:?} cut at {end}"
            );
        }
    }
    for response in responses() {
        let bytes = Bytes::from(on_the_wire(&response.encode(1, &mut scratch)));
        for end in 4..bytes.len() - 1 {
            // Before protocol 6 it ended here.
            if matches!(response, Response::Usage(_)) && end == bytes.len() - 8 {
                continue;
            }
            assert!(
                Response::decode(bytes.slice(4..end)).is_err(),
                "{response:?} cut at {end}"
            );
        }
    }
}

proptest! {
    #[test]
    fn noise_never_panics(noise in proptest::collection::vec(any::<u8>(), 0..300), tag in 0u8..20) {
        let mut framed = vec![0; 8];
        framed.push(tag);
        framed.extend(&noise);
        let _ = Request::decode(Bytes::from(framed.clone()));
        let _ = Response::decode(Bytes::from(framed));
        let _ = Request::decode(Bytes::from(noise.clone()));
        let _ = Response::decode(Bytes::from(noise));
    }
}
