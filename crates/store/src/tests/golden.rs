//! The whole directory of a zone as release 0.1 left it, opened and asked by this release: made by `scripts/golden-zone`, and never
//! made again.

use std::path::Path;
use std::process::Command;

use bytes::Bytes;
use dax::credentials::Nonce;
use dax::ids::{BlockIndex, BlockKey, Epoch, FileId, Generation};
use dax::wire::{Base, BlockWrite, Request, Response, checksum};
use dax::writer::packing::unpack;

use super::client::{Client, v};
use super::{TestZone, config, open};

const BLOCK: usize = 8192;

fn key(file: u64, block: u64) -> BlockKey {
    BlockKey {
        file: FileId(file),
        block: BlockIndex(block),
    }
}

/// As `scripts/golden/zone.rs` wrote it.
fn contents(file: u64, block: u64, round: u8) -> Vec<u8> {
    let mut data: Vec<u8> = (0..BLOCK).map(|at| (at / 64) as u8).collect();
    data[..8].copy_from_slice(&file.to_le_bytes());
    data[8..16].copy_from_slice(&block.to_le_bytes());
    data[4096] = round;
    data
}

fn unpacked() -> TestZone {
    let archive = Path::new(env!("CARGO_MANIFEST_DIR")).join("src/golden/zone-0.1.tar.gz");
    let dir = tempfile::tempdir().unwrap();
    let tar = Command::new("tar")
        .arg("--extract")
        .arg("--gzip")
        .arg("--file")
        .arg(archive)
        .arg("--directory")
        .arg(dir.path())
        .status();
    assert!(tar.unwrap().success());
    let (zone, address) = open(&dir, config());
    TestZone { zone, address, dir }
}

fn record(client: &mut Client, name: &str) -> Option<Option<Bytes>> {
    match client.ask(Request::GetRecord { name: name.into() }) {
        Response::Record(record) => record.map(|record| record.value),
        other => panic!("{other:?}"),
    }
}

/// Reads everything that is in it. Of the data, the second of two generations is retained, which was written as a difference.
fn read_all(client: &mut Client) {
    let last = Generation {
        epoch: Epoch(1),
        number: 2,
    };
    for file in [10, 11] {
        for block in 0..16 {
            let kept = client.block(key(file, block), last).unwrap();
            assert_eq!(kept.generation, last);
            let data = unpack(kept.data, BLOCK).unwrap();
            assert_eq!(data, contents(file, block, 2), "{file} {block}");
        }
    }
    let mut page = vec![0; BLOCK];
    for end in (256..=4096).step_by(256) {
        page[end - 256..end].fill((end / 256) as u8);
    }
    let tail = client.block(key(20, 0), Generation::SINGLE).unwrap();
    assert_eq!(unpack(tail.data, BLOCK).unwrap(), page);
    let owned = Bytes::from_static(b"{\"of\":\"the owner\"}");
    assert_eq!(record(client, "owned"), Some(Some(owned)));
    let free = Bytes::from_static(b"{\"of\":\"anybody\"}");
    assert_eq!(record(client, "free"), Some(Some(free)));
    assert_eq!(record(client, "gone"), Some(None), "a tombstone");
}

// hazard: U3
#[test]
fn a_directory_of_release_0_1_is_read_and_answered() {
    let zone = unpacked();
    let mut client = Client::silent(&zone.address);
    let Response::Welcome {
        grant,
        rebuilding,
        membership,
        standing,
        store,
        ..
    } = client.hello("golden", Nonce([1; 32]))
    else {
        panic!("the zone does not know the volume");
    };
    assert!(
        grant.epoch == Epoch(1) && grant.owner.starts_with("north"),
        "{grant:?}"
    );
    assert!(!rebuilding);
    let membership = membership.expect("it was recorded");
    assert_eq!(membership.members.len(), 3);
    let known = membership.members.iter().any(|m| Some(m.store) == store);
    assert!(known, "it is one of them");
    let standing = standing.expect("it says how far it is");
    assert!(standing.position.commit > 0);
    assert_eq!(
        standing.position.runs.iter().len(),
        2,
        "its run, and this one"
    );
    read_all(&mut client);
    // It goes on: another owner writes behind what release 0.1 left, and all is there after another start.
    assert!(client.own(2, "south/1"));
    let before = client.block(key(20, 0), Generation::SINGLE).unwrap();
    let piece = Bytes::from_static(b"more");
    let whole: Bytes = [&before.data[..], &piece].concat().into();
    let version = v(2, 1);
    client.write(BlockWrite {
        epoch: Epoch(2),
        key: key(30, 0),
        generation: Generation::SINGLE,
        version,
        checksum: checksum(key(30, 0), Generation::SINGLE, version, &piece),
        base: None,
        data: piece,
    });
    client.write(BlockWrite {
        epoch: Epoch(2),
        key: key(20, 0),
        generation: Generation::SINGLE,
        version: v(2, 2),
        checksum: checksum(key(20, 0), Generation::SINGLE, v(2, 2), &whole),
        base: Some(Base {
            generation: Generation::SINGLE,
            bytes: before.data.len() as u32,
        }),
        data: whole.slice(before.data.len()..),
    });
    client.flush();
    assert!(client.refused.is_empty(), "{:?}", client.refused);
    let zone = zone.restart();
    let mut client = Client::volume(&zone.address, "golden");
    let read = |client: &mut Client, file| client.block(key(file, 0), Generation::SINGLE).unwrap();
    assert_eq!(read(&mut client, 20).data, whole);
    assert_eq!(&read(&mut client, 30).data[..], b"more");
}
