//! Decisions that one history shows best.

use super::Guard;
use crate::core::{Effect, Follower, Message, Number, Record, Role, Rules, Session, Who};

fn who(name: &str, life: u64) -> Who {
    Who {
        name: name.to_owned(),
        life,
    }
}

fn rules(first: bool) -> Rules {
    Rules {
        first,
        silence_ms: 1_500,
        confirm_ms: 900,
        heard_ms: 1_200,
        stuck_ms: 4_500,
        patience_ms: 10_000,
        retry_ms: 100,
        flaw: None,
    }
}

fn record(epoch: u32, active: Who, standby: Option<Who>) -> Record {
    Record {
        epoch,
        active,
        standby,
        unsynced_in: None,
    }
}

/// Record that host b writes when it has taken over.
fn unsynced(epoch: u32) -> Record {
    Record {
        unsynced_in: Some("boot".to_owned()),
        ..record(epoch, who("b", 2), None)
    }
}

/// A checkpoint that was made in the first millisecond is confirmed.
fn released(number: u64) -> Effect {
    Effect::Release {
        number: Number(number),
        until_ms: 1_201,
    }
}

/// An active host, its standby, and what it wants done since it has that.
fn protected() -> (Guard, Session, Vec<Effect>) {
    let mut guard = Guard::new(who("a", 1), "boot".to_owned(), rules(true), 0);
    let mut out = Vec::new();
    guard.tick(1, &mut out);
    guard.read(None, &mut out);
    guard.owned(1, None, &mut out);
    let record = |epoch, standby| record(epoch, who("a", 1), standby);
    guard.written(&record(1, None), &mut out);
    guard.durable(1, &mut out);
    guard.message(Message::Follow(who("b", 2)), &mut out);
    let session = Session {
        standby: who("b", 2),
        count: 1,
    };
    guard.made(Number(1), false, &mut out);
    guard.message(Message::Holds(session.clone(), Number(1)), &mut out);
    guard.owned(2, Some(record(1, None)), &mut out);
    guard.written(&record(2, Some(who("b", 2))), &mut out);
    out.clear();
    (guard, session, out)
}

/// A standby that holds a checkpoint, and the record that names it.
fn following() -> (Guard, Session, Record, Vec<Effect>) {
    let mut guard = Guard::new(who("b", 2), "boot".to_owned(), rules(false), 0);
    let mut out = Vec::new();
    guard.tick(1, &mut out);
    let session = Session {
        standby: who("b", 2),
        count: 1,
    };
    let named = record(2, who("a", 1), Some(who("b", 2)));
    guard.read(Some(named.clone()), &mut out);
    guard.message(Message::Begin(session.clone()), &mut out);
    guard.applied(&session, Number(1), &mut out);
    (guard, session, named, out)
}

/// The active host's disk hung for a second. It took its standby, which held everything, for lost, and had the record forget it; nobody
/// could take over then, however long the disk hung.
// hazard: VM-19
#[test]
fn a_host_that_stands_still_keeps_its_standby_and_lets_it_take_over() {
    let (mut guard, session, mut out) = protected();
    guard.tick(4_000, &mut out);
    assert_eq!(out, []);
    guard.tick(4_600, &mut out);
    assert_eq!(
        out[..2],
        [Effect::Send(Message::TakeOver(session)), Effect::Destroy]
    );
}

// hazard: VM-22
#[test]
fn a_standby_that_owes_a_checkpoint_for_long_is_lost_and_everything_waits_then() {
    let (mut guard, session, mut out) = protected();
    guard.tick(1_000, &mut out);
    guard.made(Number(2), false, &mut out);
    guard.tick(1_500, &mut out);
    guard.made(Number(3), false, &mut out);
    guard.message(Message::Holds(session, Number(2)), &mut out);
    out.clear();
    // The one made at 1,500 is owed since the one before it came.
    guard.tick(2_300, &mut out);
    assert_eq!(out, []);
    guard.tick(2_400, &mut out);
    assert_eq!(out, [Effect::Hold, Effect::Unprotect, Effect::Own]);
}

/// A checkpoint that was being made when an operator wanted the standby to take over was taken for the last one, and the standby took
/// over while the machine ran on.
// hazard: VM-21
#[test]
fn the_standby_takes_over_from_the_last_checkpoint() {
    let (mut guard, session, mut out) = protected();
    guard.hand_over(&mut out).unwrap();
    guard.made(Number(2), false, &mut out);
    guard.message(Message::Holds(session.clone(), Number(2)), &mut out);
    assert_eq!(out, [Effect::HandOver, released(2)]);
    out.clear();
    guard.made(Number(3), true, &mut out);
    guard.message(Message::Holds(session.clone(), Number(3)), &mut out);
    let take_over = Effect::Send(Message::TakeOver(session));
    assert_eq!(out, [take_over, released(3)]);
    out.clear();
    // It does not: the machine goes on here.
    guard.tick(1_000, &mut out);
    assert_eq!(out, [Effect::Hold, Effect::Unprotect, Effect::Own]);
}

/// The zones said no to a record that one of them had taken. The host that read it as its own afterwards, and held the machine's memory,
/// forgot that, and booted from the disk.
// hazard: VM-20
#[test]
fn a_host_that_finds_its_own_record_goes_on_with_what_it_holds() {
    let (mut guard, _, named, mut out) = following();
    guard.tick(1_600, &mut out);
    guard.owned(3, Some(named), &mut out);
    let own = unsynced(3);
    assert_eq!(out.last(), Some(&Effect::Write(own.clone())));
    guard.refused();
    guard.tick(1_800, &mut out);
    assert_eq!(out.last(), Some(&Effect::Own));
    guard.owned(5, Some(own.clone()), &mut out);
    assert_eq!(out.last(), Some(&Effect::Write(Record { epoch: 5, ..own })));
    guard.written(&unsynced(5), &mut out);
    assert!(out.contains(&Effect::Resume));
    assert!(matches!(guard.role(), Role::Running(_)));
}

/// What the disk of a host that took over held was in the kernel's memory only, when the other host gave its own disk up to follow.
// hazard: VM-23
#[test]
fn standby_does_not_follow_before_the_disk_is_durable() {
    let mut guard = Guard::new(who("a", 1), "boot".to_owned(), rules(true), 0);
    let mut out = Vec::new();
    guard.tick(1, &mut out);
    guard.read(None, &mut out);
    guard.owned(1, None, &mut out);
    guard.written(&record(1, who("a", 1), None), &mut out);
    out.clear();
    guard.message(Message::Follow(who("b", 2)), &mut out);
    guard.durable(7, &mut out);
    guard.message(Message::Follow(who("b", 2)), &mut out);
    assert_eq!(out, [], "another life's disk is not this one's");
    guard.durable(1, &mut out);
    guard.message(Message::Follow(who("b", 2)), &mut out);
    assert!(matches!(out[0], Effect::Send(Message::Begin(_))));
}

/// A standby took over, and its host lost power before the machine's disk was synced there. It booted from what the kernel had happened to
/// write, while the other host gave its own disk up to follow.
// hazard: VM-34
#[test]
fn a_disk_that_lost_what_was_not_synced_is_not_started_from_before_an_operator_says_so() {
    let after = |boot: &str| {
        let mut guard = Guard::new(who("b", 9), boot.to_owned(), rules(false), 0);
        let mut out = Vec::new();
        guard.tick(1, &mut out);
        guard.read(Some(unsynced(3)), &mut out);
        out.clear();
        guard.tick(20_000, &mut out);
        (guard, out)
    };
    // The process ended, and the kernel has what it was given.
    assert_eq!(after("boot").1, [Effect::Own]);
    let (mut guard, mut out) = after("another");
    assert_eq!(out, [Effect::Read]);
    assert!(guard.is_doubtful());
    guard.read(Some(unsynced(3)), &mut out);
    out.clear();
    assert_eq!(guard.start_from_disk(&mut out), Ok(()));
    guard.owned(4, Some(unsynced(3)), &mut out);
    let recorded = record(4, who("b", 9), None);
    assert_eq!(out.last(), Some(&Effect::Write(recorded.clone())));
    guard.written(&recorded, &mut out);
    assert!(out.contains(&Effect::Boot));
}

// hazard: VM-34
#[test]
fn standby_does_not_follow_before_the_record_says_that_the_disk_is_synced() {
    let (mut guard, session, named, mut out) = following();
    guard.message(Message::TakeOver(session), &mut out);
    assert!(out.contains(&Effect::Sync));
    guard.owned(3, Some(named), &mut out);
    guard.written(&unsynced(3), &mut out);
    guard.durable(2, &mut out);
    assert_eq!(out.last(), Some(&Effect::Own));
    guard.message(Message::Follow(who("a", 7)), &mut out);
    assert_eq!(*guard.role(), Role::Running(Follower::None));
    guard.owned(4, Some(unsynced(3)), &mut out);
    let synced = record(4, who("b", 2), None);
    assert_eq!(out.last(), Some(&Effect::Write(synced.clone())));
    guard.written(&synced, &mut out);
    guard.message(Message::Follow(who("a", 7)), &mut out);
    assert!(matches!(guard.role(), Role::Running(Follower::Copying(_))));
}

/// The other host may run the machine, and does not ask the zones while it has no standby.
#[test]
fn an_operator_starts_no_second_machine_beside_a_host_that_can_be_reached() {
    let mut guard = Guard::new(who("a", 1), "boot".to_owned(), rules(true), 0);
    let mut out = Vec::new();
    guard.read(Some(unsynced(3)), &mut out);
    guard.link_up(&mut out);
    assert!(guard.start_from_disk(&mut out).is_err());
    guard.link_lost(&mut out);
    assert_eq!(guard.start_from_disk(&mut out), Ok(()));
}
