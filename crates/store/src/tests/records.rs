//! Volumes and records.

use bytes::Bytes;
use dax::credentials::Nonce;
use dax::error::ErrorKind;
use dax::forms::Forms;
use dax::ids::{Epoch, Version, VolumeName};
use dax::storage::VolumeSettings;
use dax::wire::{PROTOCOL_OF_FORMS, RECORDS_PAGE_BYTES, Request, Response};

use super::TestZone;
use super::client::{Client, kind, settings, v};

fn put(
    c: &mut Client,
    epoch: Option<u32>,
    name: &str,
    version: Version,
    value: Option<Bytes>,
) -> Response {
    c.ask(Request::PutRecord {
        epoch: epoch.map(Epoch),
        name: name.into(),
        version,
        value,
    })
}

fn get(c: &mut Client, name: &str) -> Option<(Version, Option<Bytes>)> {
    match c.ask(Request::GetRecord { name: name.into() }) {
        Response::Record(record) => record.map(|r| (r.version, r.value)),
        other => panic!("{other:?}"),
    }
}

fn bytes(text: &'static str) -> Option<Bytes> {
    Some(Bytes::from_static(text.as_bytes()))
}

#[test]
fn a_newer_record_replaces_and_survives_a_restart() {
    let t = TestZone::new();
    let mut c = Client::owner(&t.address, "v", 1);
    let stored = |version| Response::RecordStored { version };
    assert_eq!(get(&mut c, "a"), None);
    assert_eq!(
        put(&mut c, Some(1), "a", v(1, 2), bytes("x")),
        stored(v(1, 2))
    );
    assert_eq!(put(&mut c, None, "a", v(1, 1), bytes("y")), stored(v(1, 2)));
    assert_eq!(get(&mut c, "a"), Some((v(1, 2), bytes("x"))));
    assert_eq!(put(&mut c, None, "b", v(0, 7), bytes("")), stored(v(0, 7)));
    assert_eq!(put(&mut c, Some(1), "a", v(1, 3), None), stored(v(1, 3)));
    assert_eq!(get(&mut c, "a"), Some((v(1, 3), None)), "a tombstone");
    let t = t.restart();
    let mut c = Client::volume(&t.address, "v");
    assert_eq!(get(&mut c, "a"), Some((v(1, 3), None)));
    assert_eq!(get(&mut c, "b"), Some((v(0, 7), bytes(""))));
    assert_eq!(get(&mut Client::volume(&t.address, "w"), "a"), None);
}

#[test]
fn an_owners_record_needs_the_owners_epoch() {
    let t = TestZone::new();
    let mut c = Client::owner(&t.address, "v", 2);
    let refused = |r: Response| kind(&r).unwrap();
    assert_eq!(
        refused(put(&mut c, Some(1), "a", v(1, 1), bytes("x"))),
        ErrorKind::Fenced
    );
    assert_eq!(
        refused(put(&mut c, Some(3), "a", v(3, 1), bytes("x"))),
        ErrorKind::Conflict
    );
    assert_eq!(get(&mut c, "a"), None);
    let long = "n".repeat(5000);
    assert_eq!(
        refused(put(&mut c, None, &long, v(1, 1), bytes("x"))),
        ErrorKind::Invalid
    );
}

#[test]
fn records_are_listed_in_pages() {
    let t = TestZone::new();
    let mut c = Client::volume(&t.address, "v");
    let big = Bytes::from(vec![1; 700_000]);
    assert!(3 * big.len() > RECORDS_PAGE_BYTES);
    let mut names: Vec<String> = (0..8).map(|i| format!("node/{i}")).collect();
    for name in &names {
        put(&mut c, None, name, v(0, 1), Some(big.clone()));
    }
    put(&mut c, None, "other", v(0, 1), bytes("x"));
    let (mut listed, mut after) = (Vec::new(), None);
    loop {
        let list = Request::ListRecords {
            prefix: "node/".into(),
            after: after.clone(),
        };
        let Response::Records { entries, more } = c.ask(list) else {
            panic!()
        };
        assert!(entries.len() < names.len(), "one page cannot hold all");
        listed.extend(entries.into_iter().map(|e| e.name));
        after = listed.last().cloned();
        if !more {
            break;
        }
    }
    names.sort();
    assert_eq!(listed, names);
}

#[test]
fn a_volume_is_made_once() {
    let t = TestZone::new();
    let mut c = Client::silent(&t.address);
    let name = VolumeName::new("v").unwrap();
    let hello = |c: &mut Client| c.hello("v", Nonce([1; 32]));
    assert!(matches!(hello(&mut c), Response::NoVolume { .. }));
    let mut create = |settings| {
        c.ask(Request::CreateVolume {
            volume: name.clone(),
            settings,
            rebuild: false,
            membership: None,
        })
    };
    let odd = VolumeSettings {
        block_size_bytes: 5000,
        ..settings()
    };
    assert_eq!(kind(&create(odd)), Some(ErrorKind::Invalid));
    assert_eq!(create(settings()), Response::Done);
    assert_eq!(create(settings()), Response::Done);
    let other = VolumeSettings {
        block_size_bytes: 16384,
        ..settings()
    };
    assert_eq!(kind(&create(other)), Some(ErrorKind::Conflict));
    let t = t.restart();
    let mut c = Client::silent(&t.address);
    assert!(matches!(hello(&mut c), Response::Welcome { settings: s, .. } if s == settings()));
}

/// A node of release 0.1 does not look at the number of what may be written: it owned the epoch, and could not go on.
// hazard: U2
#[test]
fn node_that_cannot_read_the_written_forms_owns_no_epoch_and_is_refused() {
    let t = TestZone::new();
    let mut owner = Client::owner(&t.address, "v", 1);
    let mut old = Client::silent(&t.address);
    let hello = old.hello_as(PROTOCOL_OF_FORMS - 1, "v", None, Nonce([7; 32]));
    assert!(matches!(hello, Response::Welcome { .. }), "{hello:?}");
    assert!(old.own(2, "old/1"), "the number allows it");
    assert!(owner.own(3, "owner/1"));
    let raised = bytes("{\"written\":2}");
    let stored = put(&mut owner, Some(3), Forms::RECORD, v(3, 1), raised);
    assert_eq!(stored, Response::RecordStored { version: v(3, 1) });
    let refused = old.ask(Request::OwnEpoch {
        epoch: Epoch(4),
        owner: "old/1".into(),
        settled: false,
    });
    assert_eq!(kind(&refused), Some(ErrorKind::Denied), "{refused:?}");
    let t = t.restart();
    let mut again = Client::silent(&t.address);
    let hello = again.hello_as(PROTOCOL_OF_FORMS - 1, "v", None, Nonce([8; 32]));
    assert_eq!(kind(&hello), Some(ErrorKind::Denied), "{hello:?}");
    let mut owner = Client::volume(&t.address, "v");
    assert!(owner.own(4, "owner/1"), "nobody was fenced");
}
