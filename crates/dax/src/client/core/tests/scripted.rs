//! Situations, one at a time, with zones that answer when they are told to.

use bytes::Bytes;

use super::super::*;
use super::peer::Peer;
use crate::ids::{BlockIndex, VolumeName};
use crate::storage::Lineage;

const BLOCK: u32 = 4096;

/// A core and its zones. Messages wait until the test lets them go.
struct Desk {
    core: Core,
    now: Time,
    peers: Vec<Peer>,
    up: Vec<bool>,
    /// Not delivered to the zone yet.
    outbox: Vec<Vec<(u64, Request)>>,
    results: HashMap<OpId, Result<Output>>,
    fenced: bool,
    disconnects: Vec<ZoneId>,
}

fn config(zones: usize) -> CoreConfig {
    CoreConfig {
        addresses: (0..zones).map(|z| format!("zone{z}")).collect(),
        pending_bytes_max: 16 * BLOCK as usize,
        version_list_max: 1000,
        zone_timeout: Time::from_secs(2),
    }
}

impl Desk {
    fn new(replicas: u8, sync_replicas: u8) -> Desk {
        let settings = VolumeSettings {
            block_size_bytes: BLOCK,
            replicas,
            sync_replicas,
        };
        let zones = usize::from(replicas);
        let mut desk = Desk {
            core: Core::new(config(zones), settings),
            now: Time::from_secs(1),
            peers: (0..zones).map(|_| Peer::default()).collect(),
            up: vec![false; zones],
            outbox: vec![Vec::new(); zones],
            results: HashMap::new(),
            fenced: false,
            disconnects: Vec::new(),
        };
        (0..replicas).for_each(|zone| desk.connect(zone));
        desk
    }

    /// With an owned epoch.
    fn owner() -> Desk {
        let mut desk = Desk::new(3, 2);
        let epoch = desk.finish(Call::OwnEpoch {
            owner: "a/1".into(),
        });
        assert_eq!(epoch.unwrap(), Output::Epoch(Epoch(1)));
        desk.run();
        desk
    }

    fn collect(&mut self) {
        for effect in self.core.effects().collect::<Vec<_>>() {
            match effect {
                Effect::Send { zone, id, request } => {
                    let zone = usize::from(zone.0);
                    if self.up[zone] {
                        self.outbox[zone].push((id, request));
                    }
                }
                Effect::Done { op, result } => {
                    assert!(self.results.insert(op, result).is_none(), "done once");
                }
                Effect::Fenced => self.fenced = true,
                Effect::Disconnect { zone, .. } => {
                    self.up[usize::from(zone.0)] = false;
                    self.outbox[usize::from(zone.0)].clear();
                    self.disconnects.push(zone);
                }
            }
        }
    }

    fn connect(&mut self, zone: u8) {
        self.up[usize::from(zone)] = true;
        let grant = self.peers[usize::from(zone)].fence.grant().clone();
        self.core.zone_up(self.now, ZoneId(zone), &grant);
        self.collect();
    }

    fn disconnect(&mut self, zone: u8) {
        self.up[usize::from(zone)] = false;
        self.outbox[usize::from(zone)].clear();
        self.core.zone_down(self.now, ZoneId(zone), "cut".into());
        self.collect();
    }

    /// Delivers what waits for a zone, and its answers.
    fn deliver(&mut self, zone: u8) -> usize {
        let waiting = std::mem::take(&mut self.outbox[usize::from(zone)]);
        let count = waiting.len();
        for (id, request) in waiting {
            let answers = self.peers[usize::from(zone)].handle(0, id, request);
            for (_, id, response) in answers {
                self.core.message(self.now, ZoneId(zone), id, response);
            }
        }
        self.collect();
        count
    }

    fn commit(&mut self, zone: u8) {
        for (_, id, response) in self.peers[usize::from(zone)].commit() {
            self.core.message(self.now, ZoneId(zone), id, response);
        }
        self.collect();
    }

    /// Delivers and commits until nothing moves.
    fn run(&mut self) {
        loop {
            let moved: usize = (0..self.peers.len() as u8).map(|z| self.deliver(z)).sum();
            (0..self.peers.len() as u8).for_each(|z| self.commit(z));
            if moved == 0 && self.outbox.iter().all(Vec::is_empty) {
                return;
            }
        }
    }

    fn pass(&mut self, time: Time) {
        self.now += time;
        self.core.tick(self.now);
        self.collect();
    }

    fn start(&mut self, call: Call) -> OpId {
        let op = self.core.start(self.now, call);
        self.collect();
        op
    }

    fn finish(&mut self, call: Call) -> Result<Output> {
        let op = self.start(call);
        self.run();
        self.result(op).expect("it can finish with what is up")
    }

    fn result(&mut self, op: OpId) -> Option<Result<Output>> {
        self.results.remove(&op)
    }

    fn write(&mut self, block: u64, generation: Generation, byte: u8) -> Version {
        let version = self.core.write(key(block), generation, data(byte));
        self.collect();
        version.unwrap()
    }

    fn read(&mut self, block: u64, up_to: Generation) -> Option<u8> {
        let read = Call::Read {
            key: key(block),
            up_to,
        };
        byte_of(self.finish(read))
    }
}

fn key(block: u64) -> BlockKey {
    BlockKey::new(FileId(5), block)
}

fn data(byte: u8) -> Bytes {
    Bytes::from(vec![byte; BLOCK as usize])
}

fn byte_of(output: Result<Output>) -> Option<u8> {
    match output.unwrap() {
        Output::Block(block) => block.map(|b| b.data[0]),
        other => panic!("no block: {other:?}"),
    }
}

const SINGLE: Generation = Generation::SINGLE;

#[test]
fn a_sync_needs_k_zones_and_says_flush() {
    let mut d = Desk::owner();
    d.write(0, SINGLE, 1);
    let op = d.start(Call::Sync(SyncScope::Volume));
    assert!(
        d.outbox
            .iter()
            .all(|o| matches!(o.last(), Some((_, Request::Flush))))
    );
    d.deliver(2);
    assert!(d.result(op).is_none(), "one of three is too few");
    d.deliver(0);
    assert_eq!(d.result(op).unwrap().unwrap(), Output::Unit);
    assert_eq!(d.core.zones()[1].pending_bytes, u64::from(BLOCK));
    d.deliver(1);
    assert_eq!(d.core.zones()[1].pending_bytes, 0);
}

#[test]
fn a_sync_covers_what_was_written_before_it_and_no_more() {
    let mut d = Desk::owner();
    let version = d.write(0, SINGLE, 1);
    let upto = d.start(Call::Sync(SyncScope::FileUpTo(FileId(5), version)));
    let other = d.start(Call::Sync(SyncScope::File(FileId(6))));
    assert!(d.result(other).is_some(), "nothing of that file is pending");
    (0..2).for_each(|z| {
        d.deliver(z);
    });
    d.write(1, SINGLE, 2);
    assert!(d.result(upto).is_some());
    let all = d.start(Call::Sync(SyncScope::Volume));
    assert!(d.result(all).is_none());
    d.run();
    assert!(d.result(all).is_some());
}

#[test]
fn pending_blocks_are_read_from_memory_and_known_ones_from_one_zone() {
    let mut d = Desk::owner();
    d.write(0, SINGLE, 1);
    assert_eq!(d.read(0, Generation::MAX), Some(1));
    assert_eq!(d.core.counters().reads_pending, 1);
    d.run();
    let op = d.start(Call::Read {
        key: key(0),
        up_to: Generation::MAX,
    });
    assert_eq!(d.outbox.iter().map(Vec::len).sum::<usize>(), 1);
    d.run();
    assert_eq!(byte_of(d.result(op).unwrap()), Some(1));
    assert_eq!(d.core.counters().reads_one, 1);
}

#[test]
fn a_stale_answer_is_retried_elsewhere() {
    let mut d = Desk::owner();
    d.write(0, SINGLE, 1);
    d.run();
    d.write(0, SINGLE, 2);
    d.run();
    // The nearest zone has lost its mind: it shows the version before.
    let old = d.peers[0].blocks[&(key(0), SINGLE)].clone();
    let version = Version {
        seq: 1,
        ..old.version
    };
    let block = crate::wire::StoredBlock::new(key(0), SINGLE, version, data(1));
    d.peers[0].blocks.insert((key(0), SINGLE), block);
    assert_eq!(d.read(0, Generation::MAX), Some(2));
    assert_eq!(d.core.counters().reads_stale, 1);
}

#[test]
fn a_version_that_every_zone_lost_is_an_error() {
    let mut d = Desk::owner();
    d.write(0, SINGLE, 1);
    d.run();
    d.peers.iter_mut().for_each(|p| p.blocks.clear());
    let read = Call::Read {
        key: key(0),
        up_to: Generation::MAX,
    };
    let error = d.finish(read).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Corrupt);
}

#[test]
fn damaged_replicas_are_passed_over_and_too_many_are_an_error() {
    let mut d = Desk::owner();
    d.write(0, SINGLE, 1);
    d.run();
    d.peers[0].damaged.push(key(0));
    assert_eq!(d.read(0, Generation::MAX), Some(1), "known version");
    let mut reader = Desk::new(3, 2);
    std::mem::swap(&mut reader.peers, &mut d.peers);
    assert_eq!(reader.read(0, Generation::MAX), Some(1), "quorum");
    reader.peers[1].damaged.push(key(0));
    let read = Call::Read {
        key: key(0),
        up_to: Generation::MAX,
    };
    let error = reader.finish(read).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Corrupt);
}

#[test]
fn reads_as_of_an_image_leave_the_list_alone() {
    let mut d = Desk::owner();
    let g = |number| Generation {
        epoch: Epoch(1),
        number,
    };
    d.write(0, g(1), 1);
    d.write(0, g(3), 3);
    assert_eq!(d.read(0, g(2)), Some(1), "pending of that image");
    d.run();
    assert_eq!(d.read(0, g(2)), Some(1));
    assert_eq!(d.core.counters().reads_quorum, 1);
    assert_eq!(d.read(0, Generation::MAX), Some(3));
    assert_eq!(d.core.counters().reads_one, 1);
}

#[test]
fn a_quorum_read_asks_another_zone_when_one_is_slow() {
    let mut d = Desk::owner();
    d.write(0, SINGLE, 1);
    d.run();
    let mut reader = Desk::new(3, 2);
    std::mem::swap(&mut reader.peers, &mut d.peers);
    reader.run();
    let op = reader.start(Call::Read {
        key: key(0),
        up_to: Generation::MAX,
    });
    let asked: Vec<u8> = (0..3)
        .filter(|z| !reader.outbox[usize::from(*z)].is_empty())
        .collect();
    assert_eq!(asked.len(), 2);
    reader.deliver(asked[0]);
    reader.pass(Time::from_millis(1100));
    let third = (0..3).find(|z| !asked.contains(z)).unwrap();
    reader.deliver(third);
    assert_eq!(byte_of(reader.result(op).unwrap()), Some(1));
}

#[test]
fn reads_and_syncs_wait_for_zones_and_go_on() {
    let mut d = Desk::owner();
    d.write(0, SINGLE, 1);
    (0..3).for_each(|z| d.disconnect(z));
    d.write(0, SINGLE, 2);
    let sync = d.start(Call::Sync(SyncScope::Volume));
    d.pass(Time::from_secs(100));
    assert!(d.result(sync).is_none());
    d.connect(1);
    d.run();
    assert!(d.result(sync).is_none());
    d.connect(2);
    d.run();
    assert!(d.result(sync).unwrap().is_ok());
    assert_eq!(d.peers[2].newest(key(0), SINGLE).unwrap().data[0], 2);
    let reader = Desk::new(3, 2);
    assert!(
        reader
            .outbox
            .iter()
            .flatten()
            .all(|(_, r)| matches!(r, Request::Ping))
    );
}

#[test]
fn what_a_zone_missed_is_sent_when_it_returns() {
    let mut d = Desk::owner();
    d.disconnect(2);
    for block in 0..5 {
        d.write(block, SINGLE, block as u8);
    }
    d.write(0, SINGLE, 100);
    d.run();
    assert!(d.peers[2].blocks.is_empty());
    d.connect(2);
    d.run();
    assert_eq!(d.peers[2].blocks, d.peers[0].blocks);
    assert_eq!(d.core.zones()[2].pending_bytes, 0);
}

#[test]
fn memory_is_bounded_while_a_zone_is_away() {
    let mut d = Desk::owner();
    d.disconnect(2);
    for block in 0..100 {
        let room = d.finish(Call::Room(BLOCK as usize));
        assert!(room.is_ok());
        d.write(block, SINGLE, 1);
        d.run();
    }
    assert!(d.core.zones()[2].pending_bytes <= 16 * u64::from(BLOCK));
    d.connect(2);
    d.run();
    let trouble = d.core.zones()[2].trouble.clone();
    assert!(
        trouble.unwrap().contains("lacks"),
        "missed writes are counted"
    );
    assert_eq!(d.read(0, Generation::MAX), Some(1));
}

#[test]
fn writers_wait_while_too_much_is_unsynced() {
    let mut d = Desk::owner();
    (1..3).for_each(|z| d.disconnect(z));
    for block in 0..16 {
        d.write(block, SINGLE, 1);
    }
    let room = d.start(Call::Room(BLOCK as usize));
    d.run();
    assert!(d.result(room).is_none(), "one zone cannot sync it");
    d.connect(1);
    d.run();
    assert!(d.result(room).unwrap().is_ok());
}

#[test]
fn a_full_zone_is_tried_again() {
    let mut d = Desk::owner();
    d.peers[0].full = true;
    d.peers[1].full = true;
    d.write(0, SINGLE, 1);
    let sync = d.start(Call::Sync(SyncScope::Volume));
    d.run();
    assert!(d.result(sync).is_none());
    assert_eq!(d.core.zones()[0].trouble.as_deref(), Some("Full"));
    d.peers[0].full = false;
    d.pass(Time::from_secs(1));
    d.run();
    assert!(d.result(sync).unwrap().is_ok());
    assert_eq!(d.core.zones()[0].trouble, None);
}

#[test]
fn fenced_by_anybody_is_final() {
    let mut d = Desk::owner();
    d.write(0, SINGLE, 1);
    d.run();
    d.write(0, SINGLE, 2);
    let sync = d.start(Call::Sync(SyncScope::Volume));
    d.peers[1].fence.own(Epoch(2), "b/1", false);
    d.deliver(1);
    assert!(d.fenced);
    assert!(d.result(sync).unwrap().unwrap_err().is_fenced());
    assert!(
        d.core
            .write(key(0), SINGLE, data(3))
            .unwrap_err()
            .is_fenced()
    );
    let read = d.start(Call::Read {
        key: key(0),
        up_to: SINGLE,
    });
    assert!(d.result(read).unwrap().unwrap_err().is_fenced());
    let Output::Grant(grant) = d.finish(Call::AcceptedEpoch).unwrap() else {
        panic!("a grant");
    };
    assert_eq!(grant.owner, "b/1");
}

#[test]
fn a_zone_that_was_away_tells_of_the_fence_in_its_welcome() {
    let mut d = Desk::owner();
    d.disconnect(0);
    d.peers[0].fence.own(Epoch(2), "b/1", false);
    d.connect(0);
    assert!(d.fenced);
}

#[test]
fn a_block_of_a_higher_epoch_fences_its_reader() {
    let mut d = Desk::owner();
    d.write(0, SINGLE, 1);
    d.run();
    for peer in &mut d.peers {
        let version = Version {
            epoch: Epoch(2),
            seq: 1,
        };
        let block = crate::wire::StoredBlock::new(key(0), SINGLE, version, data(2));
        peer.blocks.insert((key(0), SINGLE), block);
    }
    let read = Call::Read {
        key: key(0),
        up_to: SINGLE,
    };
    assert!(d.finish(read).unwrap_err().is_fenced());
}

#[test]
fn the_loser_of_a_contest_learns_who_won() {
    let mut d = Desk::new(3, 2);
    let claim = d.start(Call::OwnEpoch {
        owner: "a/1".into(),
    });
    (0..3).for_each(|z| {
        d.deliver(z);
    });
    // Both have looked; the other is first in two zones.
    d.peers[0].fence.own(Epoch(1), "b/1", false);
    d.peers[1].fence.own(Epoch(1), "b/1", false);
    d.run();
    let error = d.result(claim).unwrap().unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Conflict);
    assert!(error.to_string().contains("b/1"), "{error}");
    assert_eq!(d.core.epoch(), None);
}

#[test]
fn a_contest_that_nobody_won_goes_to_the_next_epoch() {
    let mut d = Desk::new(3, 2);
    let claim = d.start(Call::OwnEpoch {
        owner: "a/1".into(),
    });
    (0..3).for_each(|z| {
        d.deliver(z);
    });
    d.peers[0].fence.own(Epoch(1), "b/1", false);
    d.peers[1].fence.own(Epoch(1), "c/1", false);
    d.run();
    let result = d.result(claim).unwrap();
    assert_eq!(result.unwrap(), Output::Epoch(Epoch(2)));
    for peer in &d.peers {
        assert_eq!(peer.fence.grant().owner, "a/1");
    }
}

#[test]
fn an_owner_takes_over_zones_that_had_accepted_a_loser() {
    let mut d = Desk::new(3, 2);
    d.disconnect(2);
    let claim = d.start(Call::OwnEpoch {
        owner: "a/1".into(),
    });
    d.run();
    assert!(d.result(claim).unwrap().is_ok());
    d.peers[2].fence.own(Epoch(1), "b/1", false);
    d.connect(2);
    d.write(0, SINGLE, 1);
    d.run();
    assert_eq!(d.peers[2].fence.grant().owner, "a/1");
    assert!(d.peers[2].newest(key(0), SINGLE).is_some());
}

/// Three zones with a block of epoch 1: 1 everywhere, except that the last has a newer one.
fn after_a_crash(agree: bool) -> Desk {
    let mut old = Desk::owner();
    old.write(0, SINGLE, 1);
    old.run();
    if !agree {
        old.write(0, SINGLE, 2);
        old.deliver(2);
        old.commit(2);
    }
    let mut d = Desk::new(3, 2);
    std::mem::swap(&mut d.peers, &mut old.peers);
    d.peers.iter_mut().for_each(Peer::crash);
    let epoch = d.finish(Call::OwnEpoch {
        owner: "b/1".into(),
    });
    assert_eq!(epoch.unwrap(), Output::Epoch(Epoch(2)));
    d.run();
    d
}

#[test]
fn promotion_takes_one_round_where_all_replicas_agree() {
    let mut d = after_a_crash(true);
    let op = d.start(Call::Promote(key(0)));
    (0..3).for_each(|z| {
        d.deliver(z);
    });
    assert_eq!(byte_of(d.result(op).unwrap()), Some(1));
    assert!(d.outbox.iter().all(Vec::is_empty), "nothing is written");
    let again = d.start(Call::Promote(key(0)));
    assert_eq!(d.outbox.iter().map(Vec::len).sum::<usize>(), 1, "known now");
    d.run();
    assert_eq!(byte_of(d.result(again).unwrap()), Some(1));
}

#[test]
fn promotion_writes_the_choice_where_replicas_differ() {
    let mut d = after_a_crash(false);
    let op = d.start(Call::Promote(key(0)));
    d.deliver(0);
    assert!(d.result(op).is_none());
    d.deliver(2);
    assert!(d.result(op).is_none(), "the choice must be durable first");
    d.run();
    assert_eq!(byte_of(d.result(op).unwrap()), Some(2));
    for peer in &d.peers {
        assert_eq!(peer.newest(key(0), SINGLE).unwrap().data[0], 2);
        assert_eq!(peer.version(key(0), SINGLE).epoch, Epoch(2));
    }
}

#[test]
fn promotion_goes_on_without_a_zone_that_is_silent() {
    let mut d = after_a_crash(false);
    let op = d.start(Call::Promote(key(0)));
    d.deliver(0);
    d.deliver(1);
    assert!(d.result(op).is_none(), "a little patience for the third");
    d.pass(Time::from_millis(1100));
    d.deliver(0);
    d.deliver(1);
    assert_eq!(byte_of(d.result(op).unwrap()), Some(1));
    // What the silent zone holds of the dead epoch has lost, for good.
    d.run();
    assert_eq!(d.peers[2].newest(key(0), SINGLE).unwrap().data[0], 1);
}

#[test]
fn promotion_never_overwrites_a_write_made_meanwhile() {
    let mut d = after_a_crash(false);
    let op = d.start(Call::Promote(key(0)));
    d.write(0, SINGLE, 9);
    d.run();
    assert_eq!(byte_of(d.result(op).unwrap()), Some(9));
    assert_eq!(d.read(0, Generation::MAX), Some(9));
    assert_eq!(d.peers[0].newest(key(0), SINGLE).unwrap().data[0], 9);
}

#[test]
fn records_need_a_majority_and_the_newest_wins() {
    let mut d = Desk::owner();
    d.disconnect(2);
    let put = |value: &str| Call::PutRecord {
        name: "r".into(),
        value: Some(Bytes::from(value.to_owned())),
        authority: Authority::Owner,
    };
    d.finish(put("one")).unwrap();
    d.connect(2);
    d.run();
    d.disconnect(0);
    let get = d.finish(Call::GetRecord("r".into())).unwrap();
    assert_eq!(get, Output::Record(Some(Bytes::from("one"))));
    d.disconnect(1);
    let put = d.start(put("two"));
    d.run();
    assert!(d.result(put).is_none());
    d.connect(0);
    d.run();
    assert!(d.result(put).unwrap().is_ok());
    let promoted = d.finish(Call::PromoteRecord("r".into())).unwrap();
    assert_eq!(promoted, Output::Record(Some(Bytes::from("two"))));
    d.connect(1);
    let listed = d.finish(Call::ListRecords("".into())).unwrap();
    let expected = vec![("r".to_owned(), Bytes::from("two"))];
    assert_eq!(listed, Output::Records(expected));
}

#[test]
fn a_record_that_is_outdone_is_written_again_above() {
    let mut d = Desk::owner();
    for peer in &mut d.peers {
        let version = Version {
            epoch: Epoch(1),
            seq: 500,
        };
        let record = crate::wire::StoredRecord {
            version,
            value: None,
        };
        peer.records.insert("r".into(), record);
    }
    let put = Call::PutRecord {
        name: "r".into(),
        value: Some(Bytes::from("x")),
        authority: Authority::Owner,
    };
    d.finish(put).unwrap();
    assert!(d.peers[0].records["r"].version.seq > 500);
    assert!(d.core.next_version().unwrap().seq > 501);
}

#[test]
fn lists_are_read_page_by_page() {
    let mut d = Desk::owner();
    for name in ["a", "b", "c", "d", "e"] {
        let put = Call::PutRecord {
            name: name.into(),
            value: Some(Bytes::from("x")),
            authority: Authority::Owner,
        };
        d.finish(put).unwrap();
    }
    let Output::Records(records) = d.finish(Call::ListRecords("".into())).unwrap() else {
        panic!("records");
    };
    let names: Vec<&str> = records.iter().map(|(n, _)| n.as_str()).collect();
    assert_eq!(names, ["a", "b", "c", "d", "e"]);
}

#[test]
fn chores_reach_a_zone_that_was_away() {
    let mut d = Desk::owner();
    d.write(0, SINGLE, 1);
    d.run();
    d.disconnect(1);
    d.write(1, SINGLE, 1);
    d.finish(Call::RemoveFiles(vec![FileId(5)])).unwrap();
    assert!(d.peers[0].blocks.is_empty() && !d.peers[1].blocks.is_empty());
    let retention = Retention {
        images: vec![Lineage::up_to(SINGLE)],
    };
    d.finish(Call::Retain(retention)).unwrap();
    d.connect(1);
    d.run();
    assert!(
        d.peers[1].blocks.is_empty(),
        "nor does the dropped write appear"
    );
    let before = Call::RemoveBlocksBefore(FileId(6), BlockIndex(3));
    d.finish(before).unwrap();
    let read = d
        .core
        .read_at_once(BlockKey::new(FileId(6), 2), Generation::MAX);
    assert_eq!(read, Some(None));
}

#[test]
fn a_silent_zone_is_given_up_and_an_idle_one_is_not() {
    let mut d = Desk::new(3, 2);
    for _ in 0..10 {
        d.pass(Time::from_millis(500));
        d.run();
    }
    assert!(d.disconnects.is_empty());
    for _ in 0..6 {
        d.pass(Time::from_millis(500));
        d.deliver(0);
        d.deliver(1);
    }
    assert_eq!(d.disconnects, [ZoneId(2)]);
    assert!(!d.core.zones()[2].up);
    assert!(VolumeName::new("v").is_ok());
}

#[test]
fn cancelled_operations_leave_nothing_behind() {
    let mut d = Desk::owner();
    d.write(0, SINGLE, 1);
    let sync = d.start(Call::Sync(SyncScope::Volume));
    let read = d.start(Call::Read {
        key: key(9),
        up_to: SINGLE,
    });
    d.core.cancel(sync);
    d.core.cancel(read);
    d.run();
    assert!(d.results.is_empty());
    assert!(d.core.ops.is_empty());
}
