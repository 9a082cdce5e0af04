//! Flushes of many connections at once: somebody commits each of them, without help of the clock.

use std::time::Duration;

use dax::ids::Generation;

use super::client::{Client, key, v, write};
use super::{TestZone, config};
use crate::StoreConfig;

const CLIENTS: u64 = 6;
const FLUSHES: u64 = 200;

#[test]
fn flushes_are_all_answered_when_many_come_at_once() {
    let zone = TestZone::with(StoreConfig {
        // A flush that nobody takes would be taken by this otherwise.
        commit_delay: Duration::from_secs(3600),
        ..config()
    });
    std::thread::scope(|scope| {
        for client in 1..=CLIENTS {
            let address = &zone.address;
            scope.spawn(move || {
                let name = format!("volume-{client}");
                let mut writer = Client::owner(address, &name, 1);
                for seq in 1..=FLUSHES {
                    writer.write(write(key(1, seq), Generation::SINGLE, v(1, seq)));
                    writer.flush();
                }
            });
        }
    });
    let zone = zone.restart();
    for client in 1..=CLIENTS {
        let mut reader = Client::volume(&zone.address, &format!("volume-{client}"));
        for seq in [1, FLUSHES / 2, FLUSHES] {
            let found = reader.version(key(1, seq), Generation::SINGLE);
            assert_eq!(found, Some(v(1, seq)));
        }
    }
}

#[test]
fn unawaited_writes_are_durable_in_time() {
    let zone = TestZone::new();
    let mut writer = Client::owner(&zone.address, "v", 1);
    let mut other = Client::owner(&zone.address, "w", 1);
    for seq in 1..=50 {
        // A flush of another connection now and then finds the write in the queue, or the round begun.
        writer.write(write(key(1, seq), Generation::SINGLE, v(1, seq)));
        other.write(write(key(1, seq), Generation::SINGLE, v(1, seq)));
        other.flush();
        writer.wait_acked();
    }
}
