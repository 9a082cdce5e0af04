//! Records, broadcasts, connections and cancelling, one situation at a time.

use bytes::Bytes;

use super::super::*;
use super::harness::*;
use super::peer::Peer;
use crate::ids::{BlockIndex, FileId, StoreId};
use crate::sightings::{Sighting, Sightings};
use crate::storage::{Authority, Lineage, Retention, SyncScope};

#[test]
fn records_need_a_majority_and_the_newest_wins() {
    let mut d = Harness::owner();
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
    let mut d = Harness::owner();
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
    let mut d = Harness::owner();
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
fn broadcasts_reach_a_replica_that_was_away() {
    let mut d = Harness::owner();
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
fn a_silent_replica_is_given_up_and_an_idle_one_is_not() {
    let mut d = Harness::new(3, 2);
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
    assert_eq!(d.disconnects, [ReplicaId(2)]);
    assert!(!d.core.replicas()[2].up);
}

#[test]
fn cancelled_operations_leave_nothing_behind() {
    let mut d = Harness::owner();
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

/// Two lives of a node, each with a first put that reached one replica before it died.
#[test]
fn first_puts_of_different_lives_have_different_versions() {
    let first_put = |value: &'static str| {
        let mut d = Harness::new(3, 2);
        let put = Call::PutRecord {
            name: "n".into(),
            value: Some(Bytes::from(value)),
            authority: Authority::Node,
        };
        d.finish(put).unwrap();
        d.peers[0].records["n"].version
    };
    assert_ne!(first_put("one"), first_put("two"));
}

/// A replica that was full took a later write of the block, and its copy was damaged: the earlier write, which
/// had been refused, was then sent again and taken for the newest.
// hazard: ZONE-39
#[test]
fn refused_writes_are_not_sent_again_behind_a_newer_one() {
    let mut d = Harness::owner();
    d.peers[2].full = true;
    d.write(1, SINGLE, 1);
    d.write(1, SINGLE, 2);
    d.write(2, SINGLE, 7);
    d.run();
    d.peers[2].full = false;
    d.write(1, SINGLE, 3);
    d.pass(Time::from_millis(20));
    d.run();
    assert_eq!(d.peers[2].newest(key(1), SINGLE).unwrap().data[0], 3);
    d.peers[2].blocks.remove(&(key(1), SINGLE));
    d.pass(Time::from_millis(600));
    d.run();
    assert_eq!(d.peers[2].newest(key(1), SINGLE), None, "not an older one");
    assert_eq!(d.peers[2].newest(key(2), SINGLE).unwrap().data[0], 7);
    assert_eq!(d.core.replicas()[2].pending_bytes, 0);
}

// hazard: ZONE-1
#[test]
fn two_entries_that_lead_to_one_store_count_once() {
    let mut d = Harness::unrecorded();
    d.own();
    let one = d.peers[0].store;
    d.disconnect(2);
    // The other's place was given to the first one's address.
    d.peers[2].store = one;
    let error = d.arrive(2).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Invalid);
    assert!(
        error.to_string().contains("replica0 and replica2"),
        "{error}"
    );
    d.disconnect(1);
    d.write(1, SINGLE, 1);
    let sync = d.start(Call::Sync(SyncScope::Volume));
    d.run();
    assert!(d.result(sync).is_none(), "k = 2 is not one disk");
    // Also while the first one is away: it has acknowledged under its own name.
    d.disconnect(0);
    assert!(d.arrive(2).is_err());
    // A store with an empty disk is another one.
    d.peers[2].store = StoreId::new(99);
    d.connect(2);
    d.connect(0);
    d.run();
    assert!(d.result(sync).unwrap().is_ok());
    assert_eq!(d.core.replicas()[2].store, StoreId::new(99));
}

/// A lost disk was being replaced, and the new one was lost as well: the exchange waited for that store for ever.
// hazard: ZONE-20
#[test]
fn a_store_that_is_emptied_while_it_joins_is_replaced_by_the_next_one() {
    let mut d = Harness::owner();
    let (lost, now) = (d.peers[2].store, d.now);
    d.disconnect(2);
    for store in [50, 60] {
        d.core.advise(now, ReplicaId(2), StoreId::new(store));
        let membership = d.core.membership().unwrap();
        assert!(membership.members.iter().any(|m| Some(m.store) == lost));
        let change = membership.change.as_ref().unwrap();
        let joining: Vec<_> = change.joining.iter().map(|m| m.store).collect();
        assert_eq!(joining, [StoreId::new(store).unwrap()]);
        assert_eq!(change.joining[0].address, "replica2");
        assert_eq!(change.leaving, [lost.unwrap()]);
    }
}

/// r2's entry led to r0's store. The store lost its disk and came back with a new id: under r2's name, because that
/// connection was made first. What r0 had acknowledged was gone with it, and was counted.
// hazard: ZONE-33
#[test]
fn a_lost_disk_that_comes_back_under_another_entry_is_lost_under_its_own() {
    let mut d = Harness::unrecorded();
    d.own();
    d.disconnect(2);
    d.peers[2].store = d.peers[0].store;
    d.arrive(2).unwrap_err();
    d.disconnect(1);
    d.write(1, SINGLE, 1);
    let sync = d.start(Call::Sync(SyncScope::Volume));
    d.run();
    assert!(d.result(sync).is_none(), "only r0 has it");
    d.peers[2] = Peer::new(99, None);
    d.peers[2].rebuilding = true;
    d.connect(2);
    d.connect(1);
    d.run();
    assert!(d.result(sync).is_none(), "r1 has the only copy that counts");
}

/// One of two could not be read once; the third is away. The read waited for that one, for as long as it was away.
// hazard: ZONE-34
#[test]
fn a_damaged_copy_is_asked_again_when_it_may_have_been_mended() {
    let mut d = Harness::owner();
    d.write(3, SINGLE, 1);
    d.run();
    // Somebody who knows no versions.
    let mut reader = Harness::new(3, 2);
    reader.peers = std::mem::take(&mut d.peers);
    reader.disconnect(2);
    reader.peers[0].damaged.push(key(3));
    let read = reader.start(Call::Read {
        key: key(3),
        up_to: SINGLE,
    });
    reader.run();
    assert!(reader.result(read).is_none(), "one copy is no quorum");
    reader.peers[0].damaged.clear();
    reader.pass(Time::from_millis(200));
    reader.run();
    let found = reader.result(read).expect("the mended copy is asked");
    assert_eq!(byte_of(found), Some(1));
}

/// The first copy that was found damaged had been mended before the second one was damaged. The read remembered both,
/// and failed.
// hazard: ZONE-35
#[test]
fn copies_that_are_damaged_one_after_the_other_are_not_both_lost() {
    let mut d = Harness::owner();
    d.write(3, SINGLE, 1);
    d.run();
    let mut reader = Harness::new(3, 2);
    reader.peers = std::mem::take(&mut d.peers);
    reader.peers[0].damaged.push(key(3));
    let call = Call::Read {
        key: key(3),
        up_to: SINGLE,
    };
    let read = reader.start(call.clone());
    reader.deliver(0);
    reader.peers[0].damaged.clear();
    reader.peers[1].damaged.push(key(3));
    reader.pass(Time::from_millis(10));
    reader.run();
    assert!(
        reader.result(read).is_none(),
        "the first one may be asked again"
    );
    reader.pass(Time::from_millis(200));
    reader.run();
    let found = reader.result(read).expect("it was mended");
    assert_eq!(byte_of(found), Some(1));
    // What is damaged in both at once is said to be.
    reader.peers[0].damaged.push(key(3));
    let read = reader.start(call);
    for _ in 0..5 {
        reader.run();
        reader.pass(Time::from_millis(200));
    }
    let error = reader.result(read).expect("nobody is left").unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Corrupt);
}

/// An owner was told how far r0 was, and had not met it: nobody had recorded that it is a member. What the owner told
/// next left r0 out, and so it was forgotten everywhere: r0 came back on an old copy of its directory and counted.
// hazard: ZONE-8
#[test]
fn sighting_of_a_store_that_an_owner_has_not_met_is_passed_on() {
    let mut d = Harness::unrecorded();
    d.disconnect(0);
    // As if it had never been met.
    let mut d = Harness {
        core: Core::new(config(3), d.core.settings().clone()),
        ..d
    };
    let seen = Sighting {
        store: d.peers[0].store.unwrap(),
        run: 1,
        commit: 78,
    };
    let version = Version {
        epoch: Epoch::NONE,
        seq: 1,
    };
    for peer in &mut d.peers {
        let stores = vec![seen.clone()];
        peer.sightings = Sightings { version, stores };
    }
    d.connect(1);
    d.connect(2);
    d.own();
    d.write(1, SINGLE, 1);
    d.finish(Call::Sync(SyncScope::Volume)).unwrap();
    d.pass(Time::from_millis(20));
    d.run();
    for peer in &d.peers[1..] {
        assert!(peer.sightings.version > version, "it was told anew");
        assert!(peer.sightings.of(seen.store).any(|known| *known == seen));
    }
    // Its copy was made at an earlier commit.
    d.peers[0].position.commit = 23;
    d.peers[0].start(1001);
    d.connect(0);
    d.run();
    assert!(d.peers[0].rebuilding, "it counts no more");
}

/// Another owner, who has met nobody yet.
fn successor(d: Harness) -> Harness {
    let settings = d.core.settings().clone();
    let config = CoreConfig {
        membership: Some(members(&settings)),
        ..config(d.peers.len())
    };
    let up = vec![false; d.peers.len()];
    Harness {
        core: Core::new(config, settings),
        up,
        ..d
    }
}

/// What a store was told: this store was seen at a commit of its first run.
fn tell(peer: &mut Peer, seq: u64, store: StoreId, commit: u64) {
    let version = Version {
        epoch: Epoch::NONE,
        seq,
    };
    let run = store.number();
    let stores = vec![Sighting { store, run, commit }];
    peer.sightings = Sightings { version, stores };
}

/// Of five stores, r1 alone had been told how far r2 was in the end. The next owner met the three others first, and what it
/// told then, with a higher version, replaced what r1 knew: r2 went on with an old copy of its directory, and counted.
// hazard: ZONE-9
#[test]
fn facts_of_one_store_are_not_forgotten_by_an_owner_who_knew_less() {
    let mut d = successor(Harness::new(5, 3));
    let back = d.peers[2].store.unwrap();
    for index in [0, 1, 3, 4] {
        let (seq, commit) = if index == 1 { (10, 100) } else { (5, 50) };
        tell(&mut d.peers[index], seq, back, commit);
    }
    [0, 3, 4].into_iter().for_each(|replica| d.connect(replica));
    d.own();
    d.write(1, SINGLE, 1);
    d.finish(Call::Sync(SyncScope::Volume)).unwrap();
    d.wait_secs(6);
    d.connect(1);
    d.run();
    d.wait_secs(6);
    for index in [0, 1, 3, 4] {
        let mut known = d.peers[index].sightings.of(back);
        assert!(known.any(|seen| seen.commit == 100), "r{index}");
    }
    d.peers[2].position.commit = 60;
    d.peers[2].start(1001);
    d.connect(2);
    d.run();
    assert!(d.peers[2].rebuilding, "it counts no more");
}

/// An owner had met r2 on an old copy of its directory, about which nobody knew better. r1, who did, came later: what the owner
/// had seen itself was believed all the same.
// hazard: ZONE-9
#[test]
fn store_that_knows_better_than_the_owner_is_believed() {
    let mut d = successor(Harness::new(3, 2));
    let back = d.peers[2].store.unwrap();
    tell(&mut d.peers[1], 10, back, 100);
    d.peers[2].position.commit = 60;
    d.peers[2].start(1001);
    d.connect(0);
    d.connect(2);
    d.own();
    d.connect(1);
    d.run();
    assert!(!d.up[2], "its connection is given up");
    d.connect(2);
    d.run();
    assert!(d.peers[2].rebuilding, "it counts no more");
    // It is told once; what is known of it from before denies it no more.
    d.peers[2].rebuilding = false;
    d.peers[2].start(1002);
    d.disconnect(2);
    tell(&mut d.peers[1], 10_000, back, 100);
    d.disconnect(1);
    d.connect(1);
    d.connect(2);
    d.run();
    assert!(!d.peers[2].rebuilding && d.up[2]);
}

/// A store went back to a copy from a time when it was being rebuilt. It said that it was, so nobody told it; once it
/// was rebuilt and counted, what it had been seen to have before denied it, and it had to be rebuilt a second time (the
/// simulation's seed 4813, where two others were being rebuilt by then, so that nobody was left to own an epoch).
// hazard: ZONE-11
#[test]
fn a_store_that_went_back_to_a_rebuild_is_told_as_well() {
    for known_before in [true, false] {
        let mut d = successor(Harness::new(5, 3));
        let back = d.peers[2].store.unwrap();
        tell(&mut d.peers[1], 10, back, 100);
        d.peers[2].position.commit = 60;
        d.peers[2].start(1001);
        d.peers[2].rebuilding = true;
        let (first, last) = if known_before { (1, 2) } else { (2, 1) };
        [0, 3, 4, first]
            .into_iter()
            .for_each(|index| d.connect(index));
        d.own();
        d.connect(last);
        d.run();
        if !known_before {
            assert!(!d.up[2], "its connection is given up");
            d.connect(2);
            d.run();
        }
        assert!(d.peers[2].rebuilding && d.up[2]);
        // It has been brought up to date, and meets somebody who knows of before.
        d.peers[2].rebuilding = false;
        d.peers[2].start(1002);
        tell(&mut d.peers[1], 10_000, back, 100);
        let mut d = successor(d);
        [1, 2].into_iter().for_each(|index| d.connect(index));
        d.run();
        assert!(d.up[2], "it is not turned away ({known_before})");
    }
}

/// A store had gone back to a copy from before a later epoch, which it had accepted. The deposed owner, who could reach
/// nobody else, counted it together with what another store had acknowledged before that epoch, and told its client that
/// the write was durable (the simulation's seeds 777872 and 918684).
// hazard: ZONE-13
#[test]
fn a_store_in_a_new_run_counts_once_somebody_else_has_answered_since() {
    let mut d = Harness::owner();
    [1, 2].into_iter().for_each(|replica| d.disconnect(replica));
    d.write(1, SINGLE, 1);
    let sync = d.start(Call::Sync(SyncScope::Volume));
    d.run();
    d.disconnect(0);
    d.peers[1].start(1001);
    d.connect(1);
    d.run();
    assert_eq!(
        d.peers[1].version(key(1), SINGLE).epoch,
        Epoch(1),
        "it has the write"
    );
    assert!(
        d.result(sync).is_none(),
        "nobody says that it has lost nothing"
    );
    d.connect(2);
    d.deliver(2);
    assert_eq!(d.result(sync).unwrap().unwrap(), Output::Unit);
}

/// A machine was put back to a snapshot with its memory: the store went on in the same run, and had lost what it had
/// acknowledged.
// hazard: ZONE-12
#[test]
fn a_store_that_went_back_with_its_process_is_noticed() {
    let mut d = Harness::owner();
    d.write(1, SINGLE, 1);
    d.finish(Call::Sync(SyncScope::Volume)).unwrap();
    d.run();
    assert!(d.peers[0].position.commit > 0);
    d.disconnect(0);
    d.peers[0].position.commit = 0;
    d.connect(0);
    d.run();
    assert!(d.peers[0].rebuilding, "it counts no more");
}
