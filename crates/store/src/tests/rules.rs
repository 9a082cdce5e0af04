//! Writes, reads, fencing, restarts.

use std::time::Duration;

use dax::error::ErrorKind;
use dax::ids::{Epoch, Generation};
use dax::wire::{Request, Response};

use super::client::{Client, data, g, key, kind, v, write};
use super::{TestZone, config};
use crate::{OpenError, StoreConfig, Zone};

const SINGLE: Generation = Generation::SINGLE;
const MAX: Generation = Generation::MAX;

#[test]
fn a_block_is_read_back_with_its_version_and_generation() {
    let t = TestZone::new();
    let mut c = Client::owner(&t.address, "v", 1);
    assert_eq!(c.block(key(1, 0), MAX), None);
    c.write(write(key(1, 0), g(1, 3), v(1, 1)));
    c.write(write(key(1, 0), g(1, 5), v(1, 2)));
    c.write(write(key(1, 1), g(1, 4), v(1, 3)));
    let shown =
        |c: &mut Client, up_to| c.block(key(1, 0), up_to).map(|b| (b.generation, b.version));
    assert_eq!(shown(&mut c, MAX), Some((g(1, 5), v(1, 2))));
    assert_eq!(shown(&mut c, g(1, 4)), Some((g(1, 3), v(1, 1))));
    assert_eq!(shown(&mut c, g(1, 2)), None);
    assert_eq!(c.block(key(1, 0), MAX).unwrap().data, data(v(1, 2)));
    c.flush();
    assert_eq!(c.used_blocks(), 3);
    assert!(c.refused.is_empty());
}

#[test]
fn a_read_sees_the_write_before_it_on_the_same_connection() {
    let t = TestZone::with(StoreConfig {
        commit_delay: Duration::from_secs(3600),
        ..config()
    });
    let mut c = Client::owner(&t.address, "v", 1);
    for seq in 1..=500 {
        let key = key(1, seq % 7);
        c.write(write(key, SINGLE, v(1, seq)));
        assert_eq!(c.version(key, SINGLE), Some(v(1, seq)));
        assert_eq!(c.version(key, MAX), Some(v(1, seq)));
    }
}

#[test]
fn nothing_is_acknowledged_before_a_flush_or_the_delay() {
    let t = TestZone::with(StoreConfig {
        commit_delay: Duration::from_secs(3600),
        ..config()
    });
    let mut c = Client::owner(&t.address, "v", 1);
    c.write(write(key(1, 0), SINGLE, v(1, 1)));
    assert!(matches!(
        c.ask(Request::Ping),
        Response::Pong {
            rebuilding: false,
            ..
        }
    ));
    assert_eq!(c.acked, 0);

    c.flush();
    assert_eq!(c.acked, 1);

    let t = TestZone::new();
    let mut c = Client::owner(&t.address, "v", 1);
    c.write(write(key(1, 0), SINGLE, v(1, 1)));
    c.wait_acked();
}

#[test]
fn older_and_equal_versions_are_acknowledged_without_effect() {
    let t = TestZone::new();
    let mut c = Client::owner(&t.address, "v", 2);
    let mut put = |version| {
        let mut w = write(key(1, 0), SINGLE, version);
        w.epoch = Epoch(2);
        c.write(w);
        c.version(key(1, 0), SINGLE).unwrap()
    };
    assert_eq!(put(v(1, 9)), v(1, 9));
    assert_eq!(put(v(2, 5)), v(2, 5));
    assert_eq!(put(v(2, 4)), v(2, 5));
    assert_eq!(put(v(1, 10)), v(2, 5), "the epoch counts first");
    assert_eq!(put(v(2, 6)), v(2, 6));
    c.flush();
    assert!(c.refused.is_empty());
    // The same when nothing is remembered in memory, and inside one batch.
    let t = t.restart();
    let mut c = Client::volume(&t.address, "v");
    for version in [v(2, 3), v(2, 8), v(2, 7)] {
        c.write(write(key(1, 0), SINGLE, version));
    }
    c.flush();
    assert_eq!(c.version(key(1, 0), SINGLE), Some(v(2, 8)));
    assert_eq!(c.used_blocks(), 1);
}

#[test]
fn a_lower_epoch_is_fenced_for_good() {
    let t = TestZone::new();
    let mut old = Client::owner(&t.address, "v", 1);
    old.write(write(key(1, 0), SINGLE, v(1, 1)));
    old.flush();
    let mut new = Client::volume(&t.address, "v");
    assert!(new.own(2, "new/1"));
    assert!(!new.own(1, "new/1"));
    assert!(!old.own(2, "old/1"), "first come");
    while old.fenced.is_none() {
        old.receive();
    }
    assert_eq!(old.fenced.as_ref().unwrap().epoch, Epoch(2));
    let number = old.write(write(key(1, 0), SINGLE, v(1, 2)));
    old.flush();
    assert_eq!(old.refused, [(number, ErrorKind::Fenced)]);
    let promote = |epoch| Request::Promote {
        epoch: Epoch(epoch),
        key: key(1, 0),
    };
    assert_eq!(kind(&old.ask(promote(1))), Some(ErrorKind::Fenced));
    assert_eq!(kind(&new.ask(promote(3))), Some(ErrorKind::Conflict));
    assert!(matches!(new.ask(promote(2)), Response::Block(Some(b)) if b.version == v(1, 1)));

    let t = t.restart();
    let mut old = Client::volume(&t.address, "v");
    let Response::Epoch(grant) = old.ask(Request::Epoch) else {
        panic!()
    };
    assert_eq!((grant.epoch, grant.owner.as_str()), (Epoch(2), "new/1"));
    old.write(write(key(1, 0), SINGLE, v(1, 3)));
    old.flush();
    assert_eq!(old.refused, [(1, ErrorKind::Fenced)]);
    assert_eq!(old.version(key(1, 0), SINGLE), Some(v(1, 1)));
}

#[test]
fn an_epoch_that_was_not_announced_cannot_write() {
    let t = TestZone::new();
    let mut c = Client::owner(&t.address, "v", 1);
    let number = c.write(write(key(1, 0), SINGLE, v(2, 1)));
    c.write(write(key(1, 1), SINGLE, v(1, 1)));
    c.flush();
    assert_eq!(c.refused, [(number, ErrorKind::Conflict)]);
    assert_eq!(c.version(key(1, 0), MAX), None);
    assert_eq!(c.version(key(1, 1), MAX), Some(v(1, 1)));
}

#[test]
fn volumes_do_not_see_each_other() {
    let t = TestZone::new();
    let mut a = Client::owner(&t.address, "a", 5);
    let mut b = Client::owner(&t.address, "b", 1);
    a.write(write(key(1, 0), SINGLE, v(5, 1)));
    b.write(write(key(1, 0), SINGLE, v(1, 7)));
    a.flush();
    b.flush();
    assert_eq!(a.version(key(1, 0), MAX), Some(v(5, 1)));
    assert_eq!(b.version(key(1, 0), MAX), Some(v(1, 7)));
    assert_eq!((a.used_blocks(), b.used_blocks()), (1, 1));
    let t = t.restart();
    let mut b = Client::volume(&t.address, "b");
    assert_eq!(b.version(key(1, 0), MAX), Some(v(1, 7)));
}

#[test]
fn a_graceful_stop_acknowledges_what_was_received() {
    let t = TestZone::with(StoreConfig {
        commit_delay: Duration::from_secs(3600),
        ..config()
    });
    let mut c = Client::owner(&t.address, "v", 1);
    for seq in 1..=100 {
        c.write(write(key(1, seq), SINGLE, v(1, seq)));
    }
    // The answer has come back, so the writes before it were received.
    assert!(matches!(
        c.ask(Request::Ping),
        Response::Pong {
            rebuilding: false,
            ..
        }
    ));
    assert_eq!(c.acked, 0);
    let t = t.restart();
    c.wait_acked();
    assert!(c.is_hung_up());
    let mut c = Client::volume(&t.address, "v");
    for seq in 1..=100 {
        assert_eq!(c.version(key(1, seq), SINGLE), Some(v(1, seq)));
    }
}

#[test]
fn a_full_zone_refuses_writes_and_recovers_by_itself() {
    let t = TestZone::new();
    let mut c = Client::owner(&t.address, "v", 1);
    c.write(write(key(1, 0), SINGLE, v(1, 1)));
    c.flush();
    t.zone.set_reserve_bytes(u64::MAX);
    let full = loop {
        // What was admitted before is still written.
        let number = c.write(write(key(1, 1), SINGLE, v(1, c.written + 2)));
        c.flush();
        if !c.refused.is_empty() {
            break number;
        }
        std::thread::sleep(Duration::from_millis(20));
    };
    assert_eq!(c.refused, [(full, ErrorKind::Full)]);
    assert_eq!(c.version(key(1, 0), SINGLE), Some(v(1, 1)), "reads go on");
    assert!(
        Client::volume(&t.address, "v").own(2, "next/1"),
        "epochs too"
    );
    t.zone.set_reserve_bytes(0);
    let mut c = Client::volume(&t.address, "v");
    c.write(write(key(1, 2), SINGLE, v(2, 1)));
    c.flush();
    while !c.refused.is_empty() {
        c.refused.clear();
        std::thread::sleep(Duration::from_millis(20));
        c.write(write(key(1, 2), SINGLE, v(2, 1)));
        c.flush();
    }
    assert_eq!(c.version(key(1, 2), SINGLE), Some(v(2, 1)));
}

#[test]
fn unusable_directories_and_addresses_are_named_clearly() {
    let t = TestZone::new();
    let dir = t.dir.path().join("zone");
    let error = Zone::open(&dir, config()).err().unwrap();
    assert!(matches!(error, OpenError::Locked { .. }), "{error:?}");
    assert!(error.to_string().contains("another zone server"));
    let error = t.zone.serve(&t.address).unwrap_err();
    assert!(matches!(error, OpenError::AddressInUse { .. }), "{error:?}");
    let tcp = t.zone.serve("127.0.0.1:0").unwrap();
    let error = t.zone.serve(&tcp).unwrap_err();
    assert!(matches!(error, OpenError::AddressInUse { .. }), "{error:?}");
    assert!(matches!(
        t.zone.serve("nonsense").unwrap_err(),
        OpenError::Address { .. }
    ));
    assert!(matches!(
        Zone::open("/proc/zone", config()),
        Err(OpenError::Directory { .. })
    ));
}

#[test]
fn a_stale_socket_file_is_replaced_but_no_other_file() {
    let dir = tempfile::tempdir().unwrap();
    let zone = Zone::open(dir.path().join("zone"), config()).unwrap();
    let path = dir.path().join("stale");
    drop(std::os::unix::net::UnixListener::bind(&path).unwrap());
    let address = format!("unix:{}", path.display());
    zone.serve(&address).unwrap();
    Client::volume(&address, "v");
    let file = dir.path().join("file");
    std::fs::write(&file, "mine").unwrap();
    assert!(zone.serve(&format!("unix:{}", file.display())).is_err());
    assert_eq!(std::fs::read(&file).unwrap(), b"mine");
}
