//! Space is given back: versions no image shows, removed files, the past of a file.

use std::time::{Duration, Instant};

use dax::ids::{BlockIndex, Epoch, FileId, Generation};
use dax::storage::{Lineage, Retention};
use dax::wire::{Request, Response};

use super::TestZone;
use super::client::{Client, g, key, v, write};

const SINGLE: Generation = Generation::SINGLE;

fn retain(c: &mut Client, images: Vec<Lineage>) {
    let retain = Request::Retain {
        epoch: Epoch(1),
        retention: Retention { images },
    };
    assert_eq!(c.ask(retain), Response::Done);
}

/// Waits until the volume has this many versions of blocks.
fn wait_used(c: &mut Client, blocks: u64) {
    let start = Instant::now();
    loop {
        let used = c.used_blocks();
        if used == blocks {
            return;
        }
        assert!(start.elapsed() < Duration::from_secs(15), "{used} are left");
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// Ten blocks in each of the generations 1 to 4.
fn four_generations(c: &mut Client) {
    for number in 1..=4 {
        for block in 0..10 {
            let version = v(1, u64::from(number) * 100 + block);
            c.write(write(key(1, block), g(1, number), version));
        }
    }
    c.write(write(key(2, 0), SINGLE, v(1, 1)));
    c.flush();
    assert_eq!(c.used_blocks(), 41);
}

#[test]
fn a_retention_drops_what_no_image_shows() {
    let t = TestZone::new();
    let mut c = Client::owner(&t.address, "v", 1);
    four_generations(&mut c);
    retain(
        &mut c,
        vec![Lineage::up_to(g(1, 2)), Lineage::up_to(g(1, 3))],
    );
    wait_used(&mut c, 31);
    assert_eq!(c.version(key(1, 3), g(1, 1)), None);
    assert_eq!(c.version(key(1, 3), g(1, 2)), Some(v(1, 203)));
    assert_eq!(c.version(key(1, 3), Generation::MAX), Some(v(1, 403)));
    // What was kept for an image is dropped when the image is not needed any more.
    retain(&mut c, vec![Lineage::up_to(g(1, 4))]);
    wait_used(&mut c, 11);
    assert_eq!(c.version(key(1, 3), g(1, 3)), None);
    assert_eq!(c.version(key(2, 0), SINGLE), Some(v(1, 1)));
}

#[test]
fn a_takeover_drops_what_it_left_out() {
    let t = TestZone::new();
    let mut c = Client::owner(&t.address, "v", 1);
    four_generations(&mut c);
    retain(&mut c, vec![Lineage::up_to(g(1, 4))]);
    wait_used(&mut c, 11);
    c.write(write(key(1, 50), g(1, 5), v(1, 900)));
    c.flush();
    retain(&mut c, vec![Lineage::up_to(g(1, 4))]);
    let after = Lineage::up_to(g(1, 4)).continued(g(2, 0));
    retain(&mut c, vec![after]);
    wait_used(&mut c, 11);
    assert_eq!(c.version(key(1, 50), Generation::MAX), None);
}

#[test]
fn a_restart_finds_what_is_left_to_drop() {
    let t = TestZone::new();
    let mut c = Client::owner(&t.address, "v", 1);
    four_generations(&mut c);
    retain(&mut c, vec![Lineage::up_to(g(1, 4))]);
    let t = t.restart(); // perhaps before it was done
    let mut c = Client::volume(&t.address, "v");
    wait_used(&mut c, 11);
    assert_eq!(c.version(key(1, 9), Generation::MAX), Some(v(1, 409)));
}

#[test]
fn removed_files_and_blocks_are_gone_also_after_a_restart() {
    let t = TestZone::new();
    let mut c = Client::owner(&t.address, "v", 1);
    for file in 1..=4 {
        for block in 0..1000 {
            let version = v(1, file * 10_000 + block);
            c.write(write(key(file, block), SINGLE, version));
        }
    }
    c.flush();
    let before = |block| Request::RemoveBlocksBefore {
        epoch: Epoch(1),
        file: FileId(3),
        block: BlockIndex(block),
    };
    assert_eq!(c.ask(before(10)), Response::Done);
    wait_used(&mut c, 3990);
    let files = Request::RemoveFiles {
        epoch: Epoch(1),
        files: vec![FileId(1), FileId(2), FileId(77)],
    };
    c.write(write(key(2, 5000), SINGLE, v(1, 99_999))); // not committed yet
    assert_eq!(c.ask(files), Response::Done);
    assert_eq!(c.ask(before(600)), Response::Done);
    assert_eq!(c.ask(before(500)), Response::Done);
    let t = t.restart();
    let mut c = Client::volume(&t.address, "v");
    wait_used(&mut c, 1400);
    assert_eq!(c.version(key(2, 5), SINGLE), None);
    assert_eq!(c.version(key(2, 5000), SINGLE), None);
    assert_eq!(c.version(key(3, 599), SINGLE), None);
    assert_eq!(c.version(key(3, 600), SINGLE), Some(v(1, 30_600)));
    assert_eq!(c.version(key(4, 0), SINGLE), Some(v(1, 40_000)));
    let fenced = Request::RemoveFiles {
        epoch: Epoch(2),
        files: vec![FileId(4)],
    };
    assert!(super::client::kind(&c.ask(fenced)).is_some());
}
