//! Whatever arrives, the zone goes on.

use std::collections::HashMap;

use dax::error::ErrorKind;
use dax::ids::Generation;
use dax::wire::{MAX_FRAME_BYTES, Request, Response};
use rand::{Rng, RngCore, SeedableRng, rngs::SmallRng};

use super::TestZone;
use super::client::{Client, key, v, write};

/// The zone still serves somebody else.
fn is_well(t: &TestZone) {
    t.zone.failure().unwrap();
    let mut c = Client::volume(&t.address, "well");
    assert!(matches!(
        c.ask(Request::Ping),
        Response::Pong {
            rebuilding: false,
            ..
        }
    ));
}

#[test]
fn noise_ends_a_connection_and_nothing_else() {
    let t = TestZone::new();
    let mut rng = SmallRng::seed_from_u64(1);
    for round in 0..200 {
        let mut c = match round % 2 {
            0 => Client::silent(&t.address),
            _ => Client::volume(&t.address, "v"),
        };
        let mut noise = vec![0; rng.random_range(1..3000)];
        rng.fill_bytes(&mut noise);
        if round % 3 == 0 {
            // A sound length, so that the noise reaches the decoder; then a sound tag.
            let len = noise.len() as u32;
            noise.splice(..0, len.to_le_bytes());
            if noise.len() > 12 {
                noise[12] = rng.random_range(0..20);
            }
        }
        let _ = c.send_bytes(&noise); // it may hang up in the middle
    }
    is_well(&t);
}

#[test]
fn impossible_lengths_are_refused() {
    let t = TestZone::new();
    for len in [0u32, 1, 8, MAX_FRAME_BYTES as u32 + 1, u32::MAX] {
        let mut c = Client::silent(&t.address);
        c.send_bytes(&len.to_le_bytes()).unwrap();
        assert!(c.is_hung_up(), "{len}");
    }
    is_well(&t);
}

#[test]
fn requests_before_hello_end_the_connection() {
    let t = TestZone::new();
    let mut c = Client::silent(&t.address);
    c.send(1, &Request::Ping);
    let (id, response) = c.receive();
    assert_eq!(id, 1);
    assert_eq!(super::client::kind(&response), Some(ErrorKind::Protocol));
    assert!(c.is_hung_up());
    is_well(&t);
}

#[test]
fn writes_out_of_number_end_the_connection() {
    let t = TestZone::new();
    let mut c = Client::owner(&t.address, "v", 1);
    let block = write(key(1, 0), Generation::SINGLE, v(1, 1));
    c.send(2, &Request::Write(block));
    assert!(c.is_hung_up());
    is_well(&t);
}

#[test]
fn damaged_or_odd_blocks_are_refused_one_by_one() {
    let t = TestZone::new();
    let mut c = Client::owner(&t.address, "v", 1);
    let sound = write(key(1, 0), Generation::SINGLE, v(1, 1));
    let mut damaged = sound.clone();
    damaged.checksum ^= 1;
    let mut long = sound.clone();
    long.data = [&long.data[..], &[0]].concat().into();
    let mut misnamed = sound.clone();
    misnamed.key = key(1, 1);
    c.write(damaged);
    c.write(long);
    c.write(misnamed);
    c.write(sound);
    c.flush();
    let refused = [
        (1, ErrorKind::Corrupt),
        (2, ErrorKind::Invalid),
        (3, ErrorKind::Corrupt),
    ];
    assert_eq!(c.refused, refused);
    assert_eq!(c.version(key(1, 0), Generation::MAX), Some(v(1, 1)));
    assert_eq!(c.version(key(1, 1), Generation::MAX), None);
}

#[test]
fn many_reads_at_once_are_all_answered() {
    let t = TestZone::new();
    let mut c = Client::owner(&t.address, "v", 1);
    for seq in 1..=50 {
        c.write(write(key(1, seq), Generation::SINGLE, v(1, seq)));
    }
    let up_to = Generation::MAX;
    for round in 0..20u64 {
        let ids = (1..=100).map(|i| (round * 100 + i) << 32);
        let mut open: HashMap<u64, u64> = ids.map(|id| (id, 1 + (id >> 32) % 50)).collect();
        for (id, seq) in &open {
            let key = key(1, *seq);
            c.send(*id, &Request::Read { key, up_to });
        }
        while !open.is_empty() {
            if let (id, Response::Block(block)) = c.receive() {
                let seq = open.remove(&id).expect("one answer each");
                assert_eq!(block.unwrap().version, v(1, seq));
            }
        }
    }
}

#[test]
fn a_client_that_reads_no_answers_holds_up_nobody() {
    let t = TestZone::new();
    let mut c = Client::owner(&t.address, "v", 1);
    c.write(write(key(1, 1), Generation::SINGLE, v(1, 1)));
    c.flush();
    let mut deaf = Client::volume(&t.address, "v");
    let asking = std::thread::spawn(move || {
        let read = Request::Read {
            key: key(1, 1),
            up_to: Generation::MAX,
        };
        // Until the zone stops and hangs up.
        while deaf.try_send(1, &read).is_ok() {}
    });
    for _ in 0..200 {
        assert!(c.block(key(1, 1), Generation::MAX).is_some());
    }
    c.write(write(key(1, 1), Generation::SINGLE, v(1, 2)));
    c.flush();
    t.zone.stop().unwrap();
    asking.join().unwrap();
}
