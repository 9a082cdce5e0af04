//! Decisions that one history shows best.

use super::Guard;
use crate::core::{Effect, Message, Number, Record, Role, Rules, Session, Who};

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
        stuck_ms: 4_500,
        patience_ms: 10_000,
        retry_ms: 100,
        flaw: None,
    }
}

/// An active host, its standby, and what it wants done since it has that.
fn protected() -> (Guard, Session, Vec<Effect>) {
    let mut guard = Guard::new(who("a", 1), rules(true), 0);
    let mut out = Vec::new();
    guard.tick(1, &mut out);
    guard.read(None, &mut out);
    guard.owned(1, None, &mut out);
    let record = |epoch, standby| Record {
        epoch,
        active: who("a", 1),
        standby,
    };
    guard.written(&record(1, None), &mut out);
    guard.durable(1);
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

/// The active host's disk hung for a second. It took its standby, which held everything, for lost, and had the record forget it; nobody
/// could take over then, however long the disk hung.
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
#[test]
fn the_standby_takes_over_from_the_last_checkpoint() {
    let (mut guard, session, mut out) = protected();
    guard.hand_over(&mut out).unwrap();
    guard.made(Number(2), false, &mut out);
    guard.message(Message::Holds(session.clone(), Number(2)), &mut out);
    assert_eq!(out, [Effect::HandOver, Effect::Release(Number(2))]);
    out.clear();
    guard.made(Number(3), true, &mut out);
    guard.message(Message::Holds(session.clone(), Number(3)), &mut out);
    let take_over = Effect::Send(Message::TakeOver(session));
    assert_eq!(out, [take_over, Effect::Release(Number(3))]);
    out.clear();
    // It does not: the machine goes on here.
    guard.tick(1_000, &mut out);
    assert_eq!(out, [Effect::Hold, Effect::Unprotect, Effect::Own]);
}

/// The zones said no to a record that one of them had taken. The host that read it as its own afterwards, and held the machine's memory,
/// forgot that, and booted from the disk.
#[test]
fn a_host_that_finds_its_own_record_goes_on_with_what_it_holds() {
    let mut guard = Guard::new(who("b", 2), rules(false), 0);
    let mut out = Vec::new();
    guard.tick(1, &mut out);
    let session = Session {
        standby: who("b", 2),
        count: 1,
    };
    let record = |epoch, active, standby| Record {
        epoch,
        active,
        standby,
    };
    let named = record(2, who("a", 1), Some(who("b", 2)));
    guard.read(Some(named.clone()), &mut out);
    guard.message(Message::Begin(session.clone()), &mut out);
    guard.applied(&session, Number(1), &mut out);
    guard.tick(1_600, &mut out);
    guard.owned(3, Some(named), &mut out);
    let own = record(3, who("b", 2), None);
    assert_eq!(out.last(), Some(&Effect::Write(own.clone())));
    guard.refused();
    guard.tick(1_800, &mut out);
    assert_eq!(out.last(), Some(&Effect::Own));
    guard.owned(5, Some(own.clone()), &mut out);
    assert_eq!(out.last(), Some(&Effect::Write(Record { epoch: 5, ..own })));
    guard.written(&record(5, who("b", 2), None), &mut out);
    assert!(out.contains(&Effect::Resume));
    assert!(matches!(guard.role(), Role::Running(_)));
}

/// What the disk of a host that took over held was in the kernel's memory only, when the other host gave its own disk up to follow.
#[test]
fn nobody_follows_before_the_disk_is_durable() {
    let mut guard = Guard::new(who("a", 1), rules(true), 0);
    let mut out = Vec::new();
    guard.tick(1, &mut out);
    guard.read(None, &mut out);
    guard.owned(1, None, &mut out);
    let record = Record {
        epoch: 1,
        active: who("a", 1),
        standby: None,
    };
    guard.written(&record, &mut out);
    out.clear();
    guard.message(Message::Follow(who("b", 2)), &mut out);
    guard.durable(7);
    guard.message(Message::Follow(who("b", 2)), &mut out);
    assert_eq!(out, [], "another life's disk is not this one's");
    guard.durable(1);
    guard.message(Message::Follow(who("b", 2)), &mut out);
    assert!(matches!(out[0], Effect::Send(Message::Begin(_))));
}
