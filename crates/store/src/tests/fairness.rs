//! A tenant with a backlog does not hold up another: seen by stepping the committer by hand.

use std::os::unix::net::UnixStream;
use std::sync::Arc;

use dax::ids::{Epoch, Generation, VolumeName};
use dax::wire::Request;

use super::client::{key, settings, v, write};
use super::config;
use crate::committer::Committer;
use crate::connection::Conn;
use crate::engine::DiskEngine;
use crate::keys::VolumeId;
use crate::meta;
use crate::queue::Taken;
use crate::shared::{Shared, Work};
use crate::stream::Stream;
use crate::volume::Volumes;

const SINGLE: Generation = Generation::SINGLE;
const BACKLOG_BYTES: usize = 64 << 20;
const WEIGHT: usize = 4096 + 256;

/// A zone without threads.
struct Bench {
    shared: Arc<Shared>,
    committer: Committer,
    _dir: tempfile::TempDir,
    _peers: Vec<UnixStream>,
}

impl Bench {
    fn new() -> Bench {
        let dir = tempfile::tempdir().unwrap();
        let engine = Box::new(DiskEngine::open(dir.path(), 8 << 20).unwrap());
        meta::check_format(&*engine, dir.path()).unwrap();
        let volumes = Volumes::load(&*engine, dir.path()).unwrap();
        let id = dax::ids::StoreId::random().unwrap();
        let runs = meta::begin_run(&*engine, dir.path(), 1).unwrap();
        let shared = Shared::new(
            config(),
            None,
            dir.path().into(),
            (id, runs),
            engine,
            volumes,
        );
        let shared = Arc::new(shared);
        Bench {
            committer: Committer::new(shared.clone(), 1),
            shared,
            _dir: dir,
            _peers: Vec::new(),
        }
    }

    fn step(&mut self) {
        assert_ne!(self.committer.step().unwrap(), Taken::Closed);
    }

    /// A connection that owns the first epoch of a volume of its own.
    fn tenant(&mut self, id: u64, name: &str) -> Arc<Conn> {
        let (here, there) = UnixStream::pair().unwrap();
        self._peers.push(there);
        let conn = Arc::new(Conn::new(id, name.into(), &Stream::Unix(here)).unwrap());
        let volume = VolumeName::new(name).unwrap();
        let create = Request::CreateVolume {
            volume: volume.clone(),
            settings: settings(),
            rebuild: false,
            membership: None,
        };
        self.put(VolumeId::NONE, Work::Request(conn.clone(), 1, create));
        self.step();
        conn.bind(
            self.shared.volumes.get(&volume).unwrap(),
            dax::forms::Forms::NEWEST,
        );
        let own = Request::OwnEpoch {
            epoch: Epoch(1),
            owner: name.into(),
            settled: false,
        };
        let id = conn.volume().unwrap().id;
        self.put(id, Work::Request(conn.clone(), 2, own));
        self.step();
        conn
    }

    fn put(&self, volume: VolumeId, work: Work) {
        assert!(self.shared.queue.put(volume, work, WEIGHT));
    }

    fn write(&self, conn: &Arc<Conn>, seq: u64) {
        let write = write(key(1, seq), SINGLE, v(1, seq));
        let volume = conn.volume().unwrap().id;
        self.put(volume, Work::Write(conn.clone(), seq, write));
    }

    fn flush(&self, conn: &Arc<Conn>) {
        self.put(conn.volume().unwrap().id, Work::Flush);
    }
}

#[test]
fn a_flushed_write_is_durable_with_the_next_round_whatever_others_have_queued() {
    let mut bench = Bench::new();
    let (noisy, quiet) = (bench.tenant(1, "noisy"), bench.tenant(2, "quiet"));
    let backlog = (BACKLOG_BYTES / WEIGHT) as u64;
    for seq in 1..=backlog {
        bench.write(&noisy, seq);
    }
    bench.flush(&noisy);
    bench.write(&quiet, 1);
    bench.flush(&quiet);

    bench.step();
    assert!(quiet.is_applied(1), "one round, one fsync");
    assert!(noisy.is_applied(1), "the noisy one is in each round, too");
    assert!(!noisy.is_applied(backlog / 8), "and the round is bounded");

    // Again in the middle of the backlog.
    bench.write(&quiet, 2);
    bench.flush(&quiet);
    bench.step();
    assert!(quiet.is_applied(2));
    let mut rounds = 2;
    while !noisy.is_applied(backlog) {
        bench.step();
        rounds += 1;
    }
    let least = BACKLOG_BYTES / bench.shared.config.commit_bytes;
    assert!((least..=least + 3).contains(&rounds), "{rounds} rounds");
}

#[test]
fn tenants_with_backlogs_share_each_round() {
    let mut bench = Bench::new();
    let tenants: Vec<_> = (1..=4)
        .map(|id| bench.tenant(id, &format!("tenant-{id}")))
        .collect();
    // The first has queued everything before the others come.
    for conn in &tenants {
        (1..=2000).for_each(|seq| bench.write(conn, seq));
    }
    bench.step();
    let share = bench.shared.config.commit_bytes / tenants.len() / WEIGHT;
    for conn in &tenants {
        assert!(conn.is_applied(share as u64), "{} has its share", conn.peer);
        assert!(
            !conn.is_applied(share as u64 + 2),
            "{} has no more",
            conn.peer
        );
    }
}
