//! The rules, one by one.

use std::time::Duration;

use super::*;

const fn ms(n: u64) -> Time {
    Duration::from_millis(n)
}

const TERMS: Terms = Terms {
    lease: ms(2000),
    unowned: Epoch::NONE,
};

fn row(epoch: u32, owner: &str, renewals: u64) -> Row {
    Row {
        epoch: Epoch(epoch),
        owner: owner.into(),
        lease: TERMS.lease,
        renewals,
        released: false,
    }
}

/// A claim over `before`, seen at `seen`, whose change was applied.
fn won(before: Option<Row>, seen: Time) -> Claim {
    let sighting = Sighting::new(before, seen);
    let mut claim = Claim::new(TERMS, &sighting, "b".into(), seen).unwrap();
    assert!(matches!(claim.next(seen), Next::Change(_)));
    claim.changed(Answer::Applied);
    claim
}

/// A lease whose first renewal was made at `now`.
fn lease(now: Time) -> Lease {
    let mut claim = won(None, now);
    assert!(matches!(claim.next(now), Next::Renew(_)));
    claim.renewed(&Answer::Applied);
    assert_eq!(claim.next(now), Next::Owned);
    claim.into_lease().unwrap()
}

#[test]
fn a_lease_counts_from_before_the_request() {
    let mut lease = lease(ms(100));
    assert_eq!(lease.gate(ms(2099)), Gate::Open);
    assert_eq!(lease.gate(ms(2100)), Gate::Shut);
    let renewal = lease.renew(ms(600));
    // Whenever the answer comes.
    lease.renewed(&renewal, &Answer::Applied);
    assert_eq!(lease.gate(ms(2599)), Gate::Open);
    assert_eq!(lease.gate(ms(2600)), Gate::Shut);
}

#[test]
fn a_timeout_renews_nothing_and_is_asked_again_at_once() {
    let mut lease = lease(ms(0));
    let renewal = lease.renew(ms(500));
    lease.renewed(&renewal, &Answer::Unknown);
    assert_eq!(lease.gate(ms(2000)), Gate::Shut);
    assert_eq!(lease.renewal_at(), Some(ms(500)));
    // It had been applied: the next one is refused by our own row, and the one after that fits.
    let renewal = lease.renew(ms(2100));
    let there = row(1, "b", 2);
    assert!(!renewal.change.applies_to(Some(&there)));
    lease.renewed(&renewal, &Answer::Refused(Some(there.clone())));
    assert_eq!(lease.gate(ms(2100)), Gate::Shut);
    let renewal = lease.renew(ms(2200));
    assert!(renewal.change.applies_to(Some(&there)));
    lease.renewed(&renewal, &Answer::Applied);
    assert_eq!(lease.gate(ms(2200)), Gate::Open);
}

#[test]
fn a_refused_renewal_fences_for_good() {
    let mut lease = lease(ms(0));
    let renewal = lease.renew(ms(500));
    lease.renewed(&renewal, &Answer::Refused(Some(row(2, "c", 0))));
    assert_eq!(lease.gate(ms(600)), Gate::Fenced);
    assert_eq!(lease.renewal_at(), None);
    assert_eq!(lease.release(), None);
}

#[test]
fn a_successor_waits_the_lease_out_with_a_margin() {
    let mut claim = won(Some(row(1, "a", 7)), ms(1000));
    let until = ms(1000 + 2000 + 40 + 50);
    assert_eq!(claim.next(ms(1001)), Next::Wait(until));
    assert!(matches!(claim.next(until), Next::Renew(_)));
    // Not owned before its own renewal was answered.
    assert!(claim.clone().into_lease().is_none());
    claim.renewed(&Answer::Unknown);
    assert!(matches!(claim.next(until), Next::Renew(_)));
    claim.renewed(&Answer::Applied);
    assert_eq!(claim.into_lease().unwrap().epoch(), Epoch(2));
}

#[test]
fn watcher_counts_from_the_last_renewal_it_saw() {
    let seen = Sighting::new(Some(row(1, "a", 7)), ms(0));
    let seen = seen.again(Some(row(1, "a", 8)), ms(500));
    let seen = seen.again(Some(row(1, "a", 8)), ms(5000));
    let mut claim = Claim::new(TERMS, &seen, "b".into(), ms(5000)).unwrap();
    let Next::Change(change) = claim.next(ms(5000)) else {
        panic!("a change");
    };
    // A renewal in between makes it fail.
    assert!(change.applies_to(Some(&row(1, "a", 8))));
    assert!(!change.applies_to(Some(&row(1, "a", 9))));
    claim.changed(Answer::Applied);
    assert!(matches!(claim.next(ms(5000)), Next::Renew(_)));
}

#[test]
fn a_released_row_needs_no_wait_and_a_longer_lease_is_remembered() {
    let mut released = row(1, "a", 7);
    released.released = true;
    let mut claim = won(Some(released), ms(1000));
    assert!(matches!(claim.next(ms(1000)), Next::Renew(_)));

    let mut long = row(1, "a", 7);
    long.lease = ms(60_000);
    let sighting = Sighting::new(Some(long), ms(1000));
    let mut claim = Claim::new(TERMS, &sighting, "b".into(), ms(1000)).unwrap();
    let Next::Change(change) = claim.next(ms(1000)) else {
        panic!("a change");
    };
    assert_eq!(change.new.lease, ms(60_000));
    claim.changed(Answer::Applied);
    let Next::Wait(until) = claim.next(ms(1000)) else {
        panic!("a wait");
    };
    assert!(until > ms(61_000));
    let Next::Renew(renewal) = claim.next(until) else {
        panic!("a renewal");
    };
    assert_eq!(renewal.change.new.lease, TERMS.lease);
}

#[test]
fn an_unknown_outcome_is_read_back() {
    for (there, won) in [(row(2, "b", 0), true), (row(1, "a", 7), false)] {
        let sighting = Sighting::new(Some(row(1, "a", 7)), ms(0));
        let mut claim = Claim::new(TERMS, &sighting, "b".into(), ms(0)).unwrap();
        claim.changed(Answer::Unknown);
        assert_eq!(claim.next(ms(1)), Next::Look);
        claim.looked(Some(there.clone()));
        match won {
            true => assert!(matches!(claim.next(ms(1)), Next::Wait(_))),
            false => assert_eq!(claim.next(ms(1)), Next::Lost(Some(there))),
        }
    }
}

#[test]
fn a_claim_that_was_overtaken_while_it_waited_is_lost() {
    let mut claim = won(Some(row(1, "a", 7)), ms(0));
    assert!(matches!(claim.next(ms(5000)), Next::Renew(_)));
    let winner = row(3, "c", 0);
    claim.renewed(&Answer::Refused(Some(winner.clone())));
    assert_eq!(claim.next(ms(5000)), Next::Lost(Some(winner)));
    assert!(claim.into_lease().is_none());
}

#[test]
fn a_release_shuts_the_gate_before_anybody_hears_of_it() {
    let mut lease = lease(ms(0));
    let change = lease.release().unwrap();
    assert!(change.new.released);
    assert_eq!(lease.gate(ms(1)), Gate::Fenced);
}

#[test]
fn a_claim_that_is_under_way_is_left_alone() {
    let other = row(2, "c", 0);
    let sighting = Sighting::new(Some(other.clone()), ms(0));
    let mut claim = Claim::new(TERMS, &sighting, "b".into(), ms(100)).unwrap();
    let until = ms(2000 + 40 + 50 + 500);
    assert_eq!(claim.next(ms(100)), Next::Wait(until));
    let Next::Change(change) = claim.next(until) else {
        panic!("a change");
    };
    // It has renewed meanwhile: it owns the epoch, and is not deposed.
    let owner = row(2, "c", 1);
    assert!(!change.applies_to(Some(&owner)));
    let mut lost = claim.clone();
    lost.changed(Answer::Refused(Some(owner.clone())));
    assert_eq!(lost.next(until), Next::Lost(Some(owner)));
    // It has not: it is dead, and its lease and its predecessor's have been waited out already.
    assert!(change.applies_to(Some(&other)));
    claim.changed(Answer::Applied);
    assert!(matches!(claim.next(until), Next::Renew(_)));
}

#[test]
fn two_claimants_do_not_depose_each_other_for_ever() {
    // Each claims as soon as it has seen the other's claim; neither is told of anything but the row.
    let mut there = row(1, "a", 7);
    let mut seen = Sighting::new(Some(there.clone()), ms(0));
    let mut first = Claim::new(TERMS, &seen, "b".into(), ms(0)).unwrap();
    let Next::Change(change) = first.next(ms(0)) else {
        panic!("a change");
    };
    there = change.new;
    first.changed(Answer::Applied);
    seen = seen.again(Some(there.clone()), ms(10));
    let mut second = Claim::new(TERMS, &seen, "c".into(), ms(10)).unwrap();
    let (Next::Wait(of_first), Next::Wait(of_second)) = (first.next(ms(20)), second.next(ms(20)))
    else {
        panic!("two waits");
    };
    assert!(of_first < of_second);
    assert!(matches!(first.next(of_first), Next::Renew(_)));
}
