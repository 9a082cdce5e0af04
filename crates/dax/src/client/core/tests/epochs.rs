//! Fencing, contests for an epoch, and promotion, one situation at a time.

use super::super::*;
use super::harness::*;
use super::peer::Peer;
use crate::ids::ZoneId;
use crate::membership::Member;
use crate::storage::SyncScope;

#[test]
fn fenced_by_anybody_is_final() {
    let mut d = Harness::owner();
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
fn a_replica_that_was_away_tells_of_the_fence_in_its_welcome() {
    let mut d = Harness::owner();
    d.disconnect(0);
    d.peers[0].fence.own(Epoch(2), "b/1", false);
    d.connect(0);
    assert!(d.fenced);
}

#[test]
fn a_block_of_a_higher_epoch_fences_its_reader() {
    let mut d = Harness::owner();
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
    let mut d = Harness::new(3, 2);
    let claim = d.start(Call::OwnEpoch {
        owner: "a/1".into(),
    });
    (0..3).for_each(|z| {
        d.deliver(z);
    });
    // Both have looked; the other is first in two replicas.
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
    let mut d = Harness::new(3, 2);
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
fn an_owner_takes_over_replicas_that_had_accepted_a_loser() {
    let mut d = Harness::new(3, 2);
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

/// Three replicas with a block of epoch 1: 1 everywhere, except that the last has a newer one.
fn after_a_crash(agree: bool) -> Harness {
    let mut old = Harness::owner();
    old.write(0, SINGLE, 1);
    old.run();
    if !agree {
        old.write(0, SINGLE, 2);
        old.start(Call::Sync(SyncScope::Volume));
        old.deliver(2);
        old.commit(2);
    }
    let mut d = Harness::new(3, 2);
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
fn promotion_goes_on_without_a_replica_that_is_silent() {
    let mut d = after_a_crash(false);
    let op = d.start(Call::Promote(key(0)));
    d.deliver(0);
    d.deliver(1);
    assert!(d.result(op).is_none(), "a little timeout for the third");
    d.pass(Time::from_millis(1100));
    d.deliver(0);
    d.deliver(1);
    assert_eq!(byte_of(d.result(op).unwrap()), Some(1));
    // What the silent replica holds of the dead epoch has lost, for good. It is a lazy replica by now.
    d.pass(Time::from_millis(20));
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

/// A replica that has not accepted the epoch may still take a write of the dead one and complete its
/// sync, after it said that it has no such block: so it is not asked before it has.
#[test]
fn an_owner_asks_only_replicas_that_have_accepted_its_epoch() {
    let mut d = Harness::new(3, 2);
    let claim = d.start(Call::OwnEpoch {
        owner: "b/1".into(),
    });
    // The third replica is slow: it has not seen the claim.
    while d.result(claim).is_none() {
        for replica in 0..2 {
            d.deliver(replica);
            d.commit(replica);
        }
    }
    d.outbox[2].retain(|(_, request)| matches!(request, Request::OwnEpoch { .. }));
    let read = d.start(Call::Read {
        key: key(0),
        up_to: SINGLE,
    });
    d.pass(Time::from_secs(1));
    let asked = |d: &Harness| {
        let mut requests = d.outbox[2].iter();
        requests.any(|(_, request)| matches!(request, Request::Read { .. }))
    };
    assert!(!asked(&d), "not even while it waits for the others");
    d.disconnect(0);
    d.pass(Time::from_secs(1));
    assert!(!asked(&d));
    d.run();
    assert_eq!(
        byte_of(d.result(read).unwrap()),
        None,
        "the third accepted, and was asked"
    );
}

/// Of two rivals each has one replica, and the third is away.
#[test]
fn a_contest_ends_while_a_replica_is_away() {
    let mut d = Harness::new(3, 2);
    d.disconnect(2);
    let claim = d.start(Call::OwnEpoch {
        owner: "a/1".into(),
    });
    (0..2).for_each(|z| {
        d.deliver(z);
    });
    d.peers[0].fence.own(Epoch(1), "b/1", false);
    d.run();
    assert!(d.result(claim).is_none(), "the third may decide it");
    // Time to give the first proposal up, and to find that nobody has won.
    for _ in 0..2 {
        d.pass(Time::from_secs(1));
        d.run();
    }
    assert_eq!(d.result(claim).unwrap().unwrap(), Output::Epoch(Epoch(2)));
}

/// An owner that had been away met only a store that is no member any more. It went by the members that this store
/// named, found nobody there whom its writes were owed to, and took them for synced.
// hazard: ZONE-6
#[test]
fn an_owner_that_hears_of_members_of_a_later_epoch_is_fenced() {
    let mut d = Harness::owner_with(VolumeSettings::spread(1, 1));
    d.disconnect(0);
    d.write(1, SINGLE, 7);
    let sync = d.start(Call::Sync(SyncScope::Volume));
    let came = Member {
        store: StoreId::new(9).unwrap(),
        address: "replica9".into(),
        zone: ZoneId(0),
    };
    let settings = VolumeSettings::spread(1, 1);
    let later = Version {
        epoch: Epoch(2),
        seq: 1,
    };
    let mut membership = Membership::first(&settings, vec![came], later).unwrap();
    membership.former = members(&settings).members;
    d.peers[0].membership = Some(Box::new(membership));
    d.arrive(0).unwrap_err();
    assert!(d.fenced);
    assert!(d.result(sync).unwrap().unwrap_err().is_fenced());
}
