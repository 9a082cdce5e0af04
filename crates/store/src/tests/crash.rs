//! SIGKILL at any moment loses nothing that was acknowledged. The zone runs in a child process: this
//! test executable again, running the test [`serve_until_killed`] alone.

use std::collections::HashMap;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use bytes::Bytes;
use dax::ids::{BlockKey, Epoch, Generation, Version};
use dax::wire::{Request, Response};

use super::client::{Client, g, key, v, write};
use super::config;
use crate::Zone;

const DIR: &str = "ZONE_TEST_DIR";

/// Not a test of its own: the child's life.
#[test]
fn serve_until_killed() {
    let Some(dir) = std::env::var_os(DIR) else {
        return;
    };
    let dir = Path::new(&dir);
    let zone = Zone::open(dir.join("zone"), config()).unwrap();
    zone.serve(&address(dir)).unwrap();
    zone.wait().unwrap();
}

fn address(dir: &Path) -> String {
    format!("unix:{}", dir.join("socket").display())
}

/// A zone in a process of its own; killed when dropped.
struct Process(Child);

impl Process {
    fn start(dir: &Path) -> Process {
        let child = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "tests::crash::serve_until_killed", "--nocapture"])
            .env(DIR, dir)
            .stdout(Stdio::null())
            .spawn()
            .unwrap();
        let start = Instant::now();
        let socket = dir.join("socket");
        while std::os::unix::net::UnixStream::connect(&socket).is_err() {
            assert!(start.elapsed() < Duration::from_secs(20), "no zone");
            std::thread::sleep(Duration::from_millis(5));
        }
        Process(child)
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        self.0.kill().unwrap(); // SIGKILL
        self.0.wait().unwrap();
    }
}

#[test]
fn acknowledged_writes_survive_sigkill() {
    let dir = tempfile::tempdir().unwrap();
    let mut acked: HashMap<(BlockKey, Generation), Version> = HashMap::new();
    for epoch in 1..=4u32 {
        let process = Process::start(dir.path());
        let mut c = Client::volume(&address(dir.path()), "v");
        for ((key, generation), version) in &acked {
            let block = c.block(*key, *generation).expect("acknowledged");
            assert!(block.version >= *version, "{key} went back");
            assert_eq!(block.generation, *generation);
        }
        if epoch > 1 {
            let Response::Epoch(grant) = c.ask(Request::Epoch) else {
                panic!()
            };
            assert_eq!(grant.epoch, Epoch(epoch - 1), "the fence stands");
            let name = "r".to_owned();
            let Response::Record(Some(record)) = c.ask(Request::GetRecord { name }) else {
                panic!("the record is lost")
            };
            assert_eq!(record.version, v(epoch - 1, 1));
        }
        assert!(c.own(epoch, "owner/1"));
        let record = Request::PutRecord {
            epoch: Some(Epoch(epoch)),
            name: "r".into(),
            version: v(epoch, 1),
            value: Some(Bytes::from_static(b"value")),
        };
        assert!(matches!(c.ask(record), Response::RecordStored { .. }));
        let mut sent = Vec::new();
        let total = 1500 + u64::from(epoch) * 77;
        for seq in 1..=total {
            let place = (key(1 + seq % 3, seq * 7 % 400), g(1, (seq % 2) as u32));
            sent.push((place, v(epoch, seq)));
            c.write(write(place.0, place.1, v(epoch, seq)));
            if seq % 100 == 0 {
                c.send(0, &Request::Flush);
            }
        }
        // Kill it when part of it is acknowledged, the rest on its way.
        while c.acked < total / 3 {
            c.receive();
        }
        drop(process);
        acked.extend(sent.into_iter().take(c.acked as usize));
    }
}
