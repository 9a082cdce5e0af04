//! When a manager takes over; everything else is the simulation's.

use super::*;

/// One that is not the first of two, with a member that has everything.
fn manager() -> Manager {
    let rules = Rules {
        timeout_ms: 3_000,
        patience_ms: 3_000,
        ..Rules::default()
    };
    let mut manager = Manager::new(rules, 0);
    manager.member_up(Ledger::default(), Number(0), false);
    manager
}

/// Whether it begins to own an epoch at this time.
fn takes_over(manager: &mut Manager, now_ms: u64) -> bool {
    let mut out = Vec::new();
    manager.at(now_ms).tick(&mut out);
    out.contains(&Effect::LookAtLog)
}

fn hear(manager: &mut Manager, now_ms: u64) {
    let last = Number(0);
    let alive = Message::Alive { epoch: 1, last };
    manager.at(now_ms).peer(alive, &mut Vec::new());
}

/// It waited for twice the timeout, as if both had just begun.
#[test]
fn whoever_heard_a_primary_waits_for_the_timeout_alone() {
    let mut manager = manager();
    hear(&mut manager, 100);
    assert!(!takes_over(&mut manager, 3_100));
    assert!(takes_over(&mut manager, 3_101));
}

#[test]
fn the_second_of_two_that_begin_waits_longer() {
    let mut manager = manager();
    assert!(!takes_over(&mut manager, 6_000));
    assert!(takes_over(&mut manager, 6_001));
}

#[test]
fn one_whose_primary_has_ended_does_not_wait() {
    let mut manager = manager();
    hear(&mut manager, 100);
    let mut out = Vec::new();
    manager.at(200).peer_lost(&mut out);
    assert!(!out.contains(&Effect::LookAtLog));
    manager.at(250).peer_gone(&mut out);
    assert!(out.contains(&Effect::LookAtLog));
    // It was heard again: the suspicion was wrong.
    let mut other = self::manager();
    hear(&mut other, 100);
    other.at(200).peer_lost(&mut Vec::new());
    other.is_peer_gone = true;
    hear(&mut other, 220);
    assert!(!takes_over(&mut other, 300));
}

/// The primary waited for it until the timeout, and with it every commit.
#[test]
fn a_standby_that_lost_its_member_says_so() {
    let mut manager = manager();
    hear(&mut manager, 100);
    let mut out = Vec::new();
    manager.member_down(&mut out);
    assert!(out.contains(&Effect::Send(Message::Left)));
}

/// It went on as one that was replaced, and nobody ever made its member anew.
#[test]
fn one_that_is_behind_takes_over_nothing_and_stays_behind() {
    let mut manager = manager();
    hear(&mut manager, 100);
    let mut out = Vec::new();
    assert!(takes_over(&mut manager, 3_101));
    hear(&mut manager, 3_102);
    manager.peer(Message::TooLate { epoch: 1 }, &mut out);
    assert_eq!(manager.role(), Role::Recovering(Why::Behind));
    out.clear();
    manager.owned(2, &mut out);
    assert_eq!(out, [Effect::Release]);
    assert_eq!(manager.role(), Role::Recovering(Why::Behind));
}
