//! Volumes that were laid over another one, and get everything themselves.

use std::time::{Duration, Instant};

use dax::error::ErrorKind;
use dax::ids::{BlockKey, Epoch, Generation, Version};
use dax::layer::{FILL, FILLED};
use dax::storage::{Fill, Retention};
use dax::wire::{BlockWrite, Request, Response};

use super::TestZone;
use super::client::{Client, key, kind, settings, v, write};
use super::layers::{g, image, make, over, owner, owner_of_lost, parent, remove};

fn put(client: &mut Client, record: &str) {
    let put = client.ask(Request::PutRecord {
        epoch: None,
        name: record.to_owned(),
        version: v(1, 1),
        value: Some(bytes::Bytes::from_static(b"{}")),
    });
    assert!(matches!(put, Response::RecordStored { .. }), "{put:?}");
}

fn fill(client: &mut Client) -> Fill {
    match client.ask(Request::Usage) {
        Response::Usage(usage) => usage.fill.expect("a volume with a layer"),
        other => panic!("{other:?}"),
    }
}

/// Waits until the zone says that the volume has everything.
fn filled(client: &mut Client) {
    let until = Instant::now() + Duration::from_secs(20);
    while !fill(client).done {
        assert!(Instant::now() < until, "{:?}", fill(client));
        std::thread::sleep(Duration::from_millis(10));
    }
}

/// A copy that another zone has, as the owner of epoch 3 sends it who mends.
fn copy(block: u64, generation: Generation, version: Version) -> BlockWrite {
    BlockWrite {
        epoch: Epoch(3),
        ..write(key(1, block), generation, version)
    }
}

fn shown(client: &mut Client) -> Vec<Option<Version>> {
    let blocks = (0..4).map(|block| key(1, block));
    blocks
        .map(|key| client.version(key, Generation::MAX))
        .collect()
}

fn stored(client: &mut Client, epoch: u32) -> Vec<(BlockKey, Generation)> {
    let (epoch, after) = (Epoch(epoch), None);
    match client.ask(Request::Inventory { epoch, after }) {
        Response::Inventory { entries, .. } => entries
            .iter()
            .map(|one| (one.key, one.generation))
            .collect(),
        other => panic!("{other:?}"),
    }
}

// hazard: LAYER-9, LAYER-10, LAYER-13
#[test]
fn a_filled_child_reads_as_before_and_its_parent_may_go() {
    let t = TestZone::new();
    let mut below = parent(&t);
    make(&t, "child", over("parent", image(), 3), false);
    let mut child = owner(&t, "child", 3);
    child.write(write(key(1, 1), g(3, 2), v(3, 1)));
    child.flush();
    let before = shown(&mut child);
    assert_eq!(before, [Some(v(1, 1)), Some(v(3, 1)), None, None]);
    assert!(!fill(&mut child).done, "nobody has asked for it");
    put(&mut child, FILL);
    filled(&mut child);
    assert_eq!(shown(&mut child), before);
    // What an older image shows is there as well.
    assert_eq!(child.version(key(1, 1), g(3, 1)), Some(v(2, 1)));
    let copies = [(key(1, 0), g(1, 1)), (key(1, 1), g(2, 1))];
    let all = [copies[0], copies[1], (key(1, 1), g(3, 2))];
    assert_eq!(stored(&mut child, 3), all);
    assert_eq!(child.used_blocks(), 3);
    let t = t.restart();
    let mut child = Client::volume(&t.address, "child");
    assert!(fill(&mut child).done && !fill(&mut child).ended);
    drop(below);
    below = owner(&t, "parent", 4);
    let refused = remove(&mut below, 4, true);
    assert_eq!(
        kind(&refused),
        Some(ErrorKind::Conflict),
        "of other zones nothing is known"
    );
    put(&mut child, FILLED);
    assert!(fill(&mut child).ended);
    assert_eq!(remove(&mut below, 4, true), Response::Done);
    assert_eq!(remove(&mut below, 4, false), Response::Done);
    let t = t.restart();
    let mut child = owner(&t, "child", 5);
    assert_eq!(shown(&mut child), before);
    child.write(write(key(1, 2), g(5, 1), v(5, 1)));
    child.flush();
    assert_eq!(child.version(key(1, 2), Generation::MAX), Some(v(5, 1)));
}

#[test]
fn copies_are_not_shown_before_all_are_there_and_what_no_image_needs_is_not_copied() {
    let t = TestZone::new();
    parent(&t);
    make(&t, "child", over("parent", image(), 3), false);
    let mut child = owner(&t, "child", 3);
    child.write(write(key(1, 1), g(3, 1), v(3, 1)));
    child.flush();
    let epoch = Epoch(3);
    let images = vec![image().continued(g(3, 0)).truncated(g(3, 1))];
    let retention = Retention { images };
    let told = child.ask(Request::Retain { epoch, retention });
    assert_eq!(told, Response::Done);
    // A fill that was begun has put this.
    child.write(copy(0, g(1, 1), v(1, 1)));
    child.flush();
    let own = (key(1, 1), g(3, 1));
    assert_eq!(stored(&mut child, 3), [own]);
    put(&mut child, FILL);
    filled(&mut child);
    assert_eq!(stored(&mut child, 3), [(key(1, 0), g(1, 1)), own]);
}

/// A zone that missed a block of the parent was filled, and its copy is sent to one that has lost the child: history 9885 of the
/// simulation.
// hazard: LAYER-10
#[test]
fn a_copy_that_is_older_than_what_the_layer_shows_is_not_believed() {
    let t = TestZone::new();
    parent(&t);
    make(&t, "child", over("parent", image(), 3), false);
    let above = image().continued(g(3, 1)).truncated(g(3, 1));
    make(&t, "last", over("child", above, 4), false);
    let mut child = owner(&t, "child", 3);
    child.write(copy(1, g(1, 2), v(1, 2)));
    child.write(copy(0, g(1, 1), v(1, 0)));
    child.flush();
    assert!(child.refused.is_empty());
    let expected = [Some(v(1, 1)), Some(v(2, 1)), None, None];
    let mut last = Client::volume(&t.address, "last");
    assert_eq!(shown(&mut child), expected);
    assert_eq!(shown(&mut last), expected);
    put(&mut child, FILL);
    filled(&mut child);
    assert_eq!(shown(&mut child), expected);
    assert_eq!(shown(&mut last), expected);
}

// hazard: LAYER-11
#[test]
fn a_file_that_was_removed_is_not_copied() {
    let t = TestZone::new();
    parent(&t);
    make(&t, "child", over("parent", image(), 3), false);
    let mut child = owner(&t, "child", 3);
    let (epoch, files) = (Epoch(3), vec![key(1, 0).file]);
    let gone = child.ask(Request::RemoveFiles { epoch, files });
    assert_eq!(gone, Response::Done);
    let t = t.restart();
    let mut child = owner(&t, "child", 4);
    put(&mut child, FILL);
    filled(&mut child);
    assert_eq!(stored(&mut child, 4), []);
    assert_eq!(child.version(key(1, 0), Generation::MAX), None);
}

#[test]
fn a_chain_is_filled_in_the_middle_and_at_its_end() {
    let t = TestZone::new();
    let mut bottom = parent(&t);
    make(&t, "middle", over("parent", image(), 3), false);
    let mut middle = owner(&t, "middle", 3);
    middle.write(write(key(1, 2), g(3, 1), v(3, 1)));
    middle.flush();
    let above = image().continued(g(3, 1)).truncated(g(3, 1));
    for (first, last) in [(4, "last"), (5, "other")] {
        make(&t, last, over("middle", above.clone(), first), false);
    }
    let expected = [Some(v(1, 1)), Some(v(2, 1)), Some(v(3, 1)), None];
    // The last one has all of both below.
    let mut last = owner(&t, "last", 4);
    put(&mut last, FILL);
    filled(&mut last);
    put(&mut last, FILLED);
    assert_eq!(stored(&mut last, 4).len(), 3);
    // The middle one is needed by the other, and needs the first no more.
    put(&mut middle, FILL);
    filled(&mut middle);
    put(&mut middle, FILLED);
    assert_eq!(
        kind(&remove(&mut middle, 3, true)),
        Some(ErrorKind::Conflict)
    );
    for close in [true, false] {
        assert_eq!(remove(&mut bottom, 2, close), Response::Done);
    }
    let mut other = owner(&t, "other", 5);
    assert_eq!(shown(&mut other), expected);
    put(&mut other, FILL);
    filled(&mut other);
    put(&mut other, FILLED);
    for close in [true, false] {
        assert_eq!(remove(&mut middle, 3, close), Response::Done);
    }
    let t = t.restart();
    for volume in ["last", "other"] {
        let mut client = Client::volume(&t.address, volume);
        assert_eq!(shown(&mut client), expected, "{volume}");
    }
}

// hazard: LAYER-12
#[test]
fn a_zone_that_was_rebuilt_is_filled_if_the_others_were_before() {
    let t = TestZone::new();
    for (volume, records) in [("early", &[FILL][..]), ("late", &[FILL, FILLED])] {
        make(&t, volume, over("parent", image(), 3), true);
        let mut child = owner_of_lost(&t, volume, 3);
        // What the others have of it.
        child.write(copy(0, g(1, 1), v(1, 1)));
        child.flush();
        for record in records {
            put(&mut child, record);
        }
        assert!(!fill(&mut child).done, "it is being rebuilt");
        let epoch = Epoch(3);
        assert_eq!(child.ask(Request::Rebuilt { epoch }), Response::Done);
    }
    let t = t.restart();
    let mut late = Client::volume(&t.address, "late");
    assert!(fill(&mut late).ended);
    assert_eq!(shown(&mut late), [Some(v(1, 1)), None, None, None]);
    let mut early = Client::volume(&t.address, "early");
    assert!(!fill(&mut early).done);
    let unknown = early.read(key(1, 1), Generation::MAX);
    assert_eq!(kind(&unknown), Some(ErrorKind::Unavailable));

    // A parent that is being rebuilt gives nothing.
    assert_eq!(make(&t, "parent", settings(), true), Response::Done);
    let mut below = owner_of_lost(&t, "parent", 2);
    std::thread::sleep(Duration::from_millis(1500));
    assert!(!fill(&mut early).done);
    below.write(write(key(1, 1), g(2, 1), v(2, 1)));
    below.flush();
    let epoch = Epoch(2);
    assert_eq!(below.ask(Request::Rebuilt { epoch }), Response::Done);
    // After a restart it does not wait until it tries again.
    drop(below);
    let t = t.restart();
    let mut early = Client::volume(&t.address, "early");
    filled(&mut early);
    assert_eq!(
        shown(&mut early),
        [Some(v(1, 1)), Some(v(2, 1)), None, None]
    );
    assert!(Client::volume(&t.address, "parent").own(3, "owner/1"));
}
