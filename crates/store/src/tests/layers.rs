//! A volume that is laid over an image of another one, and how volumes are removed.

use dax::credentials::{Secret, VolumeKey};
use dax::error::ErrorKind;
use dax::ids::{Epoch, Generation, VolumeName};
use dax::layer::{Layer, MAX_LAYERS};
use dax::storage::{Lineage, Retention, VolumeSettings};
use dax::wire::{Base, BlockWrite, PROTOCOL_OF_FORMS, Request, Response};

use super::client::{Client, data, key, kind, settings, v, write};
use super::{TestZone, config};
use crate::StoreConfig;

pub(super) fn name(volume: &str) -> VolumeName {
    VolumeName::new(volume).unwrap()
}

pub(super) fn g(epoch: u32, number: u32) -> Generation {
    Generation {
        epoch: Epoch(epoch),
        number,
    }
}

/// The image of the tests: the epochs 1 and 2, of which epoch 2 began after generation 2 of epoch 1.
pub(super) fn image() -> Lineage {
    Lineage::up_to(g(1, 2))
        .continued(g(2, 0))
        .truncated(g(2, 3))
}

pub(super) fn over(parent: &str, image: Lineage, first: u32) -> VolumeSettings {
    settings().under(Layer {
        parent: name(parent),
        image,
        first_epoch: Epoch(first),
        proof: None,
    })
}

pub(super) fn make(
    t: &TestZone,
    volume: &str,
    settings: VolumeSettings,
    rebuild: bool,
) -> Response {
    let mut client = Client::silent(&t.address);
    client.hello(volume, dax::credentials::Nonce([3; 32]));
    client.ask(Request::CreateVolume {
        volume: name(volume),
        settings,
        rebuild,
        membership: None,
    })
}

/// A parent with blocks in and outside of the image, and the owner of its epoch 2.
pub(super) fn parent(t: &TestZone) -> Client {
    let mut owner = Client::owner(&t.address, "parent", 1);
    let blocks = [
        (0, g(1, 1)),
        (0, g(1, 5)), // left out by the takeover
        (1, g(1, 2)),
        (3, Generation::SINGLE),
    ];
    for (seq, (block, generation)) in (1..).zip(blocks) {
        owner.write(write(key(1, block), generation, v(1, seq)));
    }
    owner.flush();
    assert!(owner.own(2, "owner/2"));
    let blocks = [(1, g(2, 1)), (1, g(2, 7)), (2, g(2, 5))];
    for (seq, (block, generation)) in (1..).zip(blocks) {
        owner.write(write(key(1, block), generation, v(2, seq)));
    }
    owner.flush();
    owner
}

pub(super) fn owner(t: &TestZone, volume: &str, epoch: u32) -> Client {
    Client::owner(&t.address, volume, epoch)
}

// hazard: LAYER-2
#[test]
fn a_child_reads_the_image_and_nothing_else_of_its_parent() {
    let t = TestZone::new();
    parent(&t);
    assert_eq!(
        make(&t, "child", over("parent", image(), 3), false),
        Response::Done
    );
    let mut child = Client::volume(&t.address, "child");
    let newest = |child: &mut Client, block| child.version(key(1, block), Generation::MAX);
    assert_eq!(
        newest(&mut child, 0),
        Some(v(1, 1)),
        "not what the takeover left out"
    );
    assert_eq!(
        newest(&mut child, 1),
        Some(v(2, 1)),
        "not what came after the image"
    );
    assert_eq!(newest(&mut child, 2), None, "written after the image");
    assert_eq!(newest(&mut child, 3), None, "a block of one version");
    assert_eq!(child.version(key(1, 3), Generation::SINGLE), None);
    assert_eq!(child.version(key(1, 1), g(2, 0)), Some(v(1, 3)));
    assert_eq!(child.version(key(1, 1), g(1, 1)), None);

    for epoch in [1, 2] {
        assert!(!child.own(epoch, "owner/1"), "an epoch of the parent");
    }
    assert!(child.own(3, "owner/1"));
    child.write(write(key(1, 1), g(3, 1), v(3, 1)));
    child.flush();
    assert_eq!(newest(&mut child, 1), Some(v(3, 1)));
    assert_eq!(child.version(key(1, 1), g(3, 0)), Some(v(2, 1)));
    assert_eq!(child.version(key(1, 1), g(1, 2)), Some(v(1, 3)));
    assert_eq!(
        child.used_blocks(),
        1,
        "blocks of the parent are the parent's"
    );
    let Response::Inventory { entries, more } = child.ask(Request::Inventory {
        epoch: Epoch(3),
        after: None,
    }) else {
        panic!("no inventory");
    };
    assert_eq!((entries.len(), more), (1, false));
    // Whatever the child lets go, the parent has what it had.
    let images = vec![image().continued(g(3, 0)).truncated(g(3, 1))];
    let retention = Retention { images };
    let epoch = Epoch(3);
    assert_eq!(
        child.ask(Request::Retain { epoch, retention }),
        Response::Done
    );
    let files = vec![key(1, 0).file];
    let gone = child.ask(Request::RemoveFiles { epoch, files });
    assert_eq!(gone, Response::Done);
    let mut parent = Client::volume(&t.address, "parent");
    assert_eq!(parent.version(key(1, 1), Generation::MAX), Some(v(2, 2)));
    let t = t.restart();
    let mut child = Client::volume(&t.address, "child");
    assert_eq!(child.version(key(1, 0), Generation::MAX), Some(v(1, 1)));
    assert!(!child.own(2, "owner/1"));
}

#[test]
fn a_write_begins_with_what_the_child_has_read_of_its_parent() {
    let t = TestZone::new();
    parent(&t);
    make(&t, "child", over("parent", image(), 3), false);
    let mut child = owner(&t, "child", 3);
    let onto = |block, generation, version| {
        let mut whole = write(key(1, block), g(3, 1), v(3, version));
        let beginning = data(v(1, 1));
        let contents = [&beginning[..100], &whole.data[100..]].concat();
        whole.checksum = dax::wire::checksum(whole.key, whole.generation, whole.version, &contents);
        BlockWrite {
            base: Some(Base {
                generation,
                bytes: 100,
            }),
            data: contents[100..].to_vec().into(),
            ..whole
        }
    };
    child.write(onto(0, g(1, 1), 1));
    child.flush();
    assert!(child.refused.is_empty(), "{:?}", child.refused);
    assert_eq!(child.version(key(1, 0), Generation::MAX), Some(v(3, 1)));
    child.write(onto(1, g(1, 5), 2));
    child.flush();
    assert_eq!(
        child.refused,
        [(2, ErrorKind::NotFound)],
        "not in the image"
    );
}

#[test]
fn layers_are_eight_deep_at_most() {
    let t = TestZone::new();
    parent(&t);
    let mut below = "parent".to_owned();
    let mut image = image();
    for depth in 1..=MAX_LAYERS as u32 {
        let child = format!("child-{depth}");
        let made = make(&t, &child, over(&below, image.clone(), 2 + depth), false);
        assert_eq!(made, Response::Done);
        let mut owner = owner(&t, &child, 2 + depth);
        assert_eq!(owner.version(key(1, 0), Generation::MAX), Some(v(1, 1)));
        let own = g(2 + depth, 1);
        owner.write(write(key(2, u64::from(depth)), own, v(2 + depth, 1)));
        // One that is in no image.
        owner.write(write(key(1, 1), g(2 + depth, 2), v(2 + depth, 2)));
        owner.flush();
        image = image.continued(own).truncated(own);
        below = child;
    }
    let mut last = Client::volume(&t.address, &below);
    for depth in 1..=MAX_LAYERS as u32 {
        let found = last.version(key(2, u64::from(depth)), Generation::MAX);
        assert_eq!(found, Some(v(2 + depth, 1)));
    }
    assert_eq!(last.version(key(1, 1), g(2 + 8, 1)), Some(v(2, 1)));
    let refused = make(&t, "too-deep", over(&below, image, 20), false);
    assert_eq!(kind(&refused), Some(ErrorKind::Invalid));
}

// hazard: LAYER-3
#[test]
fn a_zone_without_the_whole_parent_does_not_say_that_a_block_is_absent() {
    let t = TestZone::new();
    let layered = || over("parent", image(), 3);
    let early = make(&t, "child", layered(), false);
    assert_eq!(kind(&early), Some(ErrorKind::Unavailable), "no parent here");
    // A zone that lost both: the child's owner was faster.
    assert_eq!(make(&t, "child", layered(), true), Response::Done);
    let mut child = owner_of_lost(&t, "child", 3);
    child.write(write(key(1, 0), g(3, 1), v(3, 1)));
    child.flush();
    let epoch = Epoch(3);
    assert_eq!(child.ask(Request::Rebuilt { epoch }), Response::Done);
    let missing = |child: &mut Client| kind(&child.read(key(1, 1), Generation::MAX));
    assert_eq!(missing(&mut child), Some(ErrorKind::Unavailable));
    let own = child.version(key(1, 0), Generation::MAX);
    assert_eq!(own, Some(v(3, 1)), "its own block");
    assert_eq!(child.version(key(9, 9), Generation::SINGLE), None);

    assert_eq!(make(&t, "parent", settings(), true), Response::Done);
    let mut parent = owner_of_lost(&t, "parent", 2);
    assert_eq!(missing(&mut child), Some(ErrorKind::Unavailable));
    parent.write(write(key(1, 1), g(2, 1), v(2, 1)));
    parent.flush();
    assert_eq!(missing(&mut child), Some(ErrorKind::Unavailable));
    let epoch = Epoch(2);
    assert_eq!(parent.ask(Request::Rebuilt { epoch }), Response::Done);
    let found = child.version(key(1, 1), Generation::MAX);
    assert_eq!(found, Some(v(2, 1)));
    let t = t.restart();
    let mut child = Client::volume(&t.address, "child");
    assert_eq!(child.version(key(1, 1), Generation::MAX), Some(v(2, 1)));
}

/// A directory that was put back to before the child was made has the parent as it was then, and does not know it.
// hazard: LAYER-4
#[test]
fn a_child_that_was_lost_does_not_believe_a_parent_that_was_not() {
    let t = TestZone::new();
    parent(&t);
    make(&t, "child", over("parent", image(), 3), true);
    let mut child = owner_of_lost(&t, "child", 3);
    let epoch = Epoch(3);
    assert_eq!(child.ask(Request::Rebuilt { epoch }), Response::Done);
    let read = |child: &mut Client| kind(&child.read(key(1, 0), Generation::MAX));
    assert_eq!(read(&mut child), Some(ErrorKind::Unavailable));
    let mut parent = owner(&t, "parent", 4);
    let epoch = Epoch(4);
    assert_eq!(parent.ask(Request::Rebuilt { epoch }), Response::Done);
    assert_eq!(child.version(key(1, 0), Generation::MAX), Some(v(1, 1)));
}

pub(super) fn owner_of_lost(t: &TestZone, volume: &str, epoch: u32) -> Client {
    let mut client = Client::volume(&t.address, volume);
    let owned = client.ask(Request::OwnEpoch {
        epoch: Epoch(epoch),
        owner: "owner/1".into(),
        settled: true,
    });
    assert!(matches!(owned, Response::Owned { accepted: true, .. }));
    client
}

#[test]
fn a_layer_must_fit_its_parent() {
    let t = TestZone::new();
    parent(&t);
    let other = VolumeSettings {
        block_size_bytes: 4096 * 4,
        ..over("parent", image(), 3)
    };
    let refused = make(&t, "child", other, false);
    assert_eq!(kind(&refused), Some(ErrorKind::Invalid));
    let low = make(&t, "child", over("parent", image(), 2), false);
    assert_eq!(kind(&low), Some(ErrorKind::Invalid));
    assert_eq!(
        make(&t, "child", over("parent", image(), 3), false),
        Response::Done
    );
    let again = make(&t, "child", over("parent", image(), 3), false);
    assert_eq!(again, Response::Done, "repeated");
    let otherwise = make(&t, "child", over("parent", image(), 4), false);
    assert_eq!(kind(&otherwise), Some(ErrorKind::Conflict));
    let mut old = Client::silent(&t.address);
    let nonce = dax::credentials::Nonce([3; 32]);
    let refused = old.hello_as(PROTOCOL_OF_FORMS, "child", None, nonce);
    assert_eq!(kind(&refused), Some(ErrorKind::Denied), "an older release");
}

/// A tenant with the key of some volume could read every other one by laying his own over it.
// hazard: LAYER-5
#[test]
fn nobody_lays_a_volume_over_one_whose_key_he_does_not_know() {
    let secret = Secret::parse(&[1; 40]).unwrap();
    let with_secret = StoreConfig {
        secret: Some(secret.clone()),
        ..config()
    };
    let t = TestZone::with(with_secret);
    let key_of = |volume: &str| secret.key(&name(volume));
    let make = |volume: &str, settings: VolumeSettings, rebuild| {
        let mut client = Client::silent(&t.address);
        client.prove(volume, &key_of(volume));
        client.ask(Request::CreateVolume {
            volume: name(volume),
            settings,
            rebuild,
            membership: None,
        })
    };
    assert_eq!(make("parent", settings(), false), Response::Done);
    let layered = |child: &str, key: Option<&VolumeKey>| {
        let plain = over("parent", image(), 3);
        let layer = plain.layer.clone().unwrap();
        plain.under(layer.proven(&name(child), key))
    };
    for rebuild in [false, true] {
        for key in [None, Some(&key_of("child"))] {
            let refused = make("child", layered("child", key), rebuild);
            assert_eq!(kind(&refused), Some(ErrorKind::Denied));
        }
        let of_another = layered("other", Some(&key_of("parent")));
        let refused = make("child", of_another, rebuild);
        assert_eq!(kind(&refused), Some(ErrorKind::Denied));
    }
    let proven = layered("child", Some(&key_of("parent")));
    assert_eq!(make("child", proven, false), Response::Done);
}

pub(super) fn remove(owner: &mut Client, epoch: u32, close: bool) -> Response {
    let epoch = Epoch(epoch);
    owner.ask(Request::RemoveVolume { epoch, close })
}

// hazard: LAYER-6
#[test]
fn a_volume_with_others_over_it_is_not_removed() {
    let t = TestZone::new();
    let mut owner = parent(&t);
    make(&t, "child", over("parent", image(), 3), false);
    for close in [true, false] {
        let Response::Error { kind, message } = remove(&mut owner, 2, close) else {
            panic!("removed");
        };
        assert_eq!(kind, ErrorKind::Conflict);
        assert!(message.contains("child"), "{message}");
    }
    let mut child = Client::owner(&t.address, "child", 3);
    assert_eq!(
        kind(&remove(&mut child, 3, false)),
        Some(ErrorKind::Conflict),
        "not closed"
    );
    assert_eq!(remove(&mut child, 3, true), Response::Done);
    assert_eq!(remove(&mut child, 3, false), Response::Done);
    assert!(child.is_hung_up());

    assert_eq!(remove(&mut owner, 2, true), Response::Done);
    let closed = make(&t, "late", over("parent", image(), 3), false);
    assert_eq!(kind(&closed), Some(ErrorKind::Conflict));
    let t = t.restart();
    let closed = make(&t, "late", over("parent", image(), 3), false);
    assert_eq!(kind(&closed), Some(ErrorKind::Conflict), "closed durably");
    // Whoever wanted to remove it is fenced.
    let mut next = Client::owner(&t.address, "parent", 3);
    assert_eq!(
        make(&t, "late", over("parent", image(), 4), false),
        Response::Done
    );
    assert_eq!(kind(&remove(&mut next, 2, false)), Some(ErrorKind::Fenced));
    assert_eq!(kind(&remove(&mut next, 3, true)), Some(ErrorKind::Conflict));
}

#[test]
fn a_removed_volume_is_gone_for_good() {
    let t = TestZone::new();
    let mut owner = parent(&t);
    owner.ask(Request::PutRecord {
        epoch: Some(Epoch(2)),
        name: "r".into(),
        version: v(2, 1),
        value: Some(bytes::Bytes::from_static(b"x")),
    });
    let mut reader = Client::volume(&t.address, "parent");
    assert_eq!(remove(&mut owner, 2, true), Response::Done);
    // Writes that came before are covered, those that come after are not taken.
    owner.write(write(key(1, 7), g(2, 8), v(2, 9)));
    assert_eq!(remove(&mut owner, 2, false), Response::Done);
    assert!(reader.is_hung_up());
    let again = make(&t, "parent", settings(), false);
    assert_eq!(
        kind(&again),
        Some(ErrorKind::Conflict),
        "a name is used once"
    );
    let over_it = make(&t, "child", over("parent", image(), 3), false);
    assert_eq!(kind(&over_it), Some(ErrorKind::Conflict));
    let mut other = Client::owner(&t.address, "other", 1);
    other.write(write(key(1, 0), g(1, 1), v(1, 1)));
    other.flush();
    let t = t.restart();
    let again = make(&t, "parent", settings(), true);
    assert_eq!(
        kind(&again),
        Some(ErrorKind::Conflict),
        "also if it is lost elsewhere"
    );
    let left = || t.zone.stored_slots();
    let until = std::time::Instant::now() + std::time::Duration::from_secs(20);
    while left() > 1 && std::time::Instant::now() < until {
        std::thread::sleep(std::time::Duration::from_millis(5));
    }
    assert_eq!(left(), 1, "the other volume's block");
    // The next volume does not get what is left of its id.
    let mut next = Client::owner(&t.address, "next", 1);
    assert_eq!(next.version(key(1, 0), Generation::MAX), None);
    assert_eq!(
        next.ask(Request::GetRecord { name: "r".into() }),
        Response::Record(None)
    );
    let mut other = Client::volume(&t.address, "other");
    assert_eq!(other.version(key(1, 0), Generation::MAX), Some(v(1, 1)));
}
