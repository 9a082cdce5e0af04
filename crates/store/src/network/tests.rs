//! A zone behind an emulated network, spoken to over its socket.

use std::path::PathBuf;
use std::time::{Duration, Instant};

use dax::ids::Generation;
use dax::wire::{Request, Response};
use tempfile::TempDir;

use super::{Emulated, Link, Network};
use crate::tests::client::{Client, key, v, write};
use crate::tests::config;
use crate::{OpenError, StoreConfig, Zone};

const SINGLE: Generation = Generation::SINGLE;

fn is_pong(answer: &Response) -> bool {
    matches!(answer, Response::Pong { .. })
}
const LATENCY: Duration = Duration::from_millis(40);

/// A zone "here" with a network file.
struct Far {
    zone: Zone,
    address: String,
    file: PathBuf,
    _dir: TempDir,
}

impl Far {
    fn new(network: &Network) -> Far {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("network.toml");
        network.write(&file).unwrap();
        let zone = Zone::open(dir.path().join("zone"), emulating(&file)).unwrap();
        let address = format!("unix:{}", dir.path().join("socket").display());
        let address = zone.serve(&address).unwrap();
        Far {
            zone,
            address,
            file,
            _dir: dir,
        }
    }

    /// Changes the file and waits until that is in force.
    fn change(&self, network: &Network) {
        network.write(&self.file).unwrap();
        let emulation = self.zone.network().unwrap();
        while *emulation.state.lock().network != *network {
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    fn client(&self, zone: &str) -> Client {
        Client::volume_from(&self.address, "v", Some(zone))
    }
}

fn emulating(file: &std::path::Path) -> StoreConfig {
    StoreConfig {
        network: Some(Emulated {
            file: file.to_owned(),
            zone: "here".into(),
        }),
        ..config()
    }
}

fn far() -> Network {
    let mut network = Network::default();
    network.link_mut("far", "here").latency = LATENCY;
    network
}

fn cut() -> Network {
    let mut network = far();
    network.link_mut("far", "here").cut = true;
    network
}

fn time(work: impl FnOnce()) -> Duration {
    let start = Instant::now();
    work();
    start.elapsed()
}

#[test]
fn connecting_and_asking_take_their_time_from_afar_only() {
    let t = Far::new(&far());
    // One round trip to connect, one to say hello.
    let mut client = None;
    assert!(time(|| client = Some(t.client("far"))) >= LATENCY * 4);
    let mut far = client.unwrap();
    for _ in 0..3 {
        let ping = || assert!(is_pong(&far.ask(Request::Ping)));
        assert!(time(ping) >= LATENCY * 2);
    }
    assert!(t.zone.network().unwrap().link("here").is_none());
    let mut near = t.client("near");
    assert!(is_pong(&near.ask(Request::Ping)));
}

#[test]
fn many_writes_travel_at_once_and_in_order() {
    let mut network = far();
    let link = network.link_mut("far", "here");
    link.jitter = Duration::from_millis(10);
    link.loss = 0.05;
    link.rto = Duration::from_millis(20);
    let t = Far::new(&network);
    let mut c = t.client("far");
    assert!(c.own(1, "owner/1"));
    // The zone ends a connection whose writes come out of order.
    for seq in 1..=500 {
        c.write(write(key(1, seq), SINGLE, v(1, seq)));
    }
    c.flush();
    assert!(c.refused.is_empty());
    for seq in [1, 250, 500] {
        assert_eq!(c.version(key(1, seq), SINGLE), Some(v(1, seq)));
    }
}

#[test]
fn a_cut_connection_delivers_nothing_until_it_is_healed_and_then_everything() {
    let t = Far::new(&far());
    let mut c = t.client("far");
    assert!(c.own(1, "owner/1"));
    c.write(write(key(1, 0), SINGLE, v(1, 1)));
    c.flush();
    t.change(&cut());
    for seq in 2..=50 {
        c.write(write(key(1, seq), SINGLE, v(1, seq)));
    }
    c.send(0, &Request::Flush);
    c.give_up_after(LATENCY * 5);
    assert!(c.try_receive().is_none(), "nothing comes back");
    // And nothing went there.
    let mut near = t.client("near");
    assert_eq!(near.version(key(1, 2), SINGLE), None);
    assert_eq!(near.version(key(1, 0), SINGLE), Some(v(1, 1)));

    t.change(&far());
    c.give_up_after(Duration::from_secs(20));
    c.wait_acked();
    for seq in 2..=50 {
        assert_eq!(near.version(key(1, seq), SINGLE), Some(v(1, seq)));
    }
}

#[test]
fn connecting_over_a_cut_link_hangs_until_it_is_healed() {
    let t = Far::new(&cut());
    let (tell, told) = std::sync::mpsc::channel();
    std::thread::scope(|scope| {
        scope.spawn(|| {
            t.client("far");
            tell.send(()).unwrap();
        });
        assert!(told.recv_timeout(Duration::from_millis(300)).is_err());
        t.client("near");
        t.change(&far());
        told.recv().unwrap();
    });
}

#[test]
fn writes_of_a_dead_client_over_a_cut_link_arrive_late() {
    let t = Far::new(&far());
    let mut c = t.client("far");
    assert!(c.own(1, "owner/1"));
    t.change(&cut());
    c.write(write(key(1, 0), SINGLE, v(1, 1)));
    c.send(0, &Request::Flush);
    drop(c);
    let mut near = t.client("near");
    assert_eq!(near.version(key(1, 0), SINGLE), None);
    t.change(&Network::default());
    while near.version(key(1, 0), SINGLE).is_none() {
        std::thread::sleep(Duration::from_millis(5));
    }
}

#[test]
fn a_zone_behind_a_cut_link_can_be_stopped() {
    let t = Far::new(&far());
    let mut c = t.client("far");
    t.change(&cut());
    t.zone.stop().unwrap();
    assert!(c.is_hung_up());
}

#[test]
fn a_bad_file_is_refused_at_the_start_and_ignored_later() {
    let t = Far::new(&far());
    std::fs::write(&t.file, "latency = \"1s\"").unwrap();
    let emulation = t.zone.network().unwrap();
    while emulation.state.lock().seen.as_deref() != Ok("latency = \"1s\"") {
        std::thread::sleep(Duration::from_millis(5));
    }
    let link = emulation.link("far");
    assert_eq!(
        link.map(|link| link.latency),
        Some(LATENCY),
        "the last good one"
    );
    std::fs::remove_file(&t.file).unwrap();
    while emulation.state.lock().seen.is_ok() {
        std::thread::sleep(Duration::from_millis(5));
    }
    assert!(emulation.link("far").is_some());
    let mut better = Network::default();
    better.links.push(Link::new("other", "here"));
    t.change(&better);
    assert!(emulation.link("far").is_none());

    let dir = tempfile::tempdir().unwrap();
    for text in [Some("latency = \"1s\""), None] {
        let file = dir.path().join("network.toml");
        match text {
            Some(text) => std::fs::write(&file, text).unwrap(),
            None => std::fs::remove_file(&file).unwrap(),
        }
        let error = Zone::open(dir.path().join("zone"), emulating(&file)).err();
        let error = error.unwrap();
        assert!(matches!(error, OpenError::Network { .. }), "{error:?}");
    }
}
