//! When a manager takes over; everything else is the simulation's.

mod rows;

use super::super::class::Claims;
use super::super::log::Identity;
use super::super::record::Record;
use super::*;

/// The log, and another one.
const LOG: Identity = Identity(7);
const OTHER: Identity = Identity(8);

/// One that is not the first of two, with a member that has everything.
fn manager() -> Manager {
    let rules = Rules {
        timeout_ms: 3_000,
        patience_ms: 3_000,
        ..Rules::default()
    };
    let mut manager = Manager::new(rules, 0);
    manager.member_up(Ledger::default(), Number(0), false, Some(LOG));
    manager
}

/// What a primary says.
fn alive(epoch: u32, last: u64, log: Identity) -> Message {
    let last = Number(last);
    Message::Alive { epoch, last, log }
}

/// True if it begins to own an epoch at this time.
fn takes_over(manager: &mut Manager, now_ms: u64) -> bool {
    let mut out = Vec::new();
    manager.at(now_ms).tick(&mut out);
    out.contains(&Effect::LookAtLog)
}

fn hear(manager: &mut Manager, now_ms: u64) {
    let alive = alive(1, 0, LOG);
    manager.at(now_ms).peer(alive, &mut Vec::new());
}

/// A manager of a member that nobody mirrors.
fn single() -> Manager {
    let rules = Rules {
        is_single: true,
        ..Rules::default()
    };
    Manager::new(rules, 0)
}

#[test]
fn the_only_member_is_served_for_as_long_as_it_answers() {
    let (mut manager, mut out) = (single(), Vec::new());
    manager.at(60_000).tick(&mut out);
    assert_eq!(
        (manager.role(), out.len()),
        (Role::Recovering(Why::Starting), 0)
    );
    manager.single_up(false, &mut out);
    assert_eq!((manager.role(), out), (Role::Single, vec![Effect::Serve]));
    assert!(manager.reads(1_000_000) && manager.role().serves());
    let (life, mut out) = (manager.life(), Vec::new());
    manager.member_down(&mut out);
    assert_eq!(out, [Effect::Unserve]);
    assert!(!manager.reads(1_000_000) && manager.life() > life);
}

/// What was written to it singly the other member would never have got.
// hazard: MIRROR-3
#[test]
fn a_member_of_a_mirror_is_never_served_singly() {
    let (mut manager, mut out) = (single(), Vec::new());
    manager.single_up(true, &mut out);
    manager.tick(&mut out);
    assert_eq!(
        (manager.role(), out),
        (Role::Recovering(Why::Mirrored), Vec::new())
    );
}

/// It waited for twice the timeout, as if both had just begun.
// hazard: MIRROR-48
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
// hazard: MIRROR-49
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

/// One whose member has everything up to here, and owns the first epoch.
fn owner(floor: u64) -> Manager {
    let mut manager = Manager::new(Rules::default(), 0);
    let floor = Number(floor);
    manager.member_up(Ledger::new(floor, []), floor, false, Some(LOG));
    assert!(takes_over(&mut manager, 3_001));
    let mut out = Vec::new();
    manager.log_begins(Number(1), Some(LOG), &mut out);
    manager.owned(1, &mut out);
    manager.log_is(1, LOG, &mut out);
    assert_eq!(out, [Effect::Own, Effect::ReadLog]);
    manager
}

/// A primary whose member has everything up to here, as has the log.
fn primary(last: u64) -> Manager {
    let mut manager = owner(last);
    let mut out = Vec::new();
    manager.log_records(1, (1..=last).map(record).collect(), &mut out);
    manager.log_ends(1, Number(last), LOG, &mut out);
    assert_eq!(manager.role(), Role::Primary);
    manager
}

fn record(number: u64) -> Record {
    long(number, 1)
}

fn long(number: u64, bytes: usize) -> Record {
    Record::of(number, Claims::default(), bytes)
}

fn follow(floor: u64) -> Message {
    Message::Follow {
        epoch: 1,
        from: Number(floor + 1),
        floor: Number(floor),
        saved: Number(floor),
        last: Number(floor),
    }
}

/// The log was lost, or is that of another mirror: the numbers of new transactions were taken for those that the member had, so
/// they were acknowledged and executed nowhere.
// hazard: MIRROR-2
#[test]
fn one_whose_member_has_more_than_the_log_ever_had_does_not_serve() {
    let mut manager = owner(5);
    let mut out = Vec::new();
    manager.log_records(1, (1..=3).map(record).collect(), &mut out);
    manager.log_ends(1, Number(3), LOG, &mut out);
    assert_eq!(out, [Effect::Release]);
    assert_eq!(manager.role(), Role::Recovering(Why::Ahead));
    assert!(!takes_over(&mut manager, 60_000));
    // Nor does it follow whoever serves with that log, or is made anew, even if that has become long enough.
    for last in [3, 9] {
        out.clear();
        manager.peer(alive(2, last, LOG), &mut out);
        assert!(out.is_empty());
        assert_eq!(manager.role(), Role::Recovering(Why::Ahead));
    }
    // It is looked at again when its member is.
    manager.member_up(Ledger::new(Number(3), []), Number(3), false, Some(LOG));
    assert_eq!(manager.role(), Role::Recovering(Why::Starting));
}

/// What the primary says of the log may be older than a state transfer; what it has when it is asked is not.
// hazard: MIRROR-2
#[test]
fn one_whose_member_has_more_than_the_log_follows_nobody() {
    let mut manager = Manager::new(Rules::default(), 0);
    let ledger = Ledger::new(Number(2), [Number(7)]);
    manager.member_up(ledger, Number(2), false, None);
    let mut primary = primary(6);
    let (mut asked, mut told) = (Vec::new(), Vec::new());
    manager.peer(alive(1, 6, LOG), &mut asked);
    let Some(Effect::Send(follow @ Message::Follow { .. })) = asked.pop() else {
        panic!("it asks");
    };
    primary.peer(follow, &mut told);
    assert_eq!(told, [Effect::Send(Message::Ahead { epoch: 1 })]);
    assert_eq!(primary.follower(), None);
    manager.peer(Message::Ahead { epoch: 1 }, &mut asked);
    assert_eq!(manager.role(), Role::Recovering(Why::Ahead));
    assert_eq!(manager.log(), None, "it does not fit this log");
    assert!(!takes_over(&mut manager, 60_000));
    primary.peer(self::follow(6), &mut told);
    assert_eq!(primary.follower(), Some((Number(6), true)));
}

/// The primary before it gave the log's past back between the look at the log and the end of its epoch. Nobody served from then on.
// hazard: MIRROR-5
#[test]
fn one_that_finds_a_gap_when_it_has_taken_over_leaves_it_to_others() {
    let mut manager = owner(5);
    let mut out = Vec::new();
    manager.log_records(1, (8..=9).map(record).collect(), &mut out);
    manager.log_ends(1, Number(9), LOG, &mut out);
    assert_eq!(out, [Effect::Release]);
    assert_eq!(manager.role(), Role::Recovering(Why::Behind));
    assert!(!takes_over(&mut manager, 60_000));
}

fn sent(out: &[Effect]) -> Vec<usize> {
    let of = |effect: &Effect| match effect {
        Effect::Send(Message::Records { records, .. }) => Some(records.len()),
        _ => None,
    };
    out.iter().filter_map(of).collect()
}

/// All that it lacked went in one message, which could be longer than any may be.
// hazard: MIRROR-11
#[test]
fn what_is_sent_together_is_not_long() {
    const MIB: usize = 1 << 20;
    let mut manager = primary(0);
    let mut out = Vec::new();
    manager.peer(follow(0), &mut out);
    out.clear();
    let records = (1..).zip([1, 2, 3, 10, 1, 1]);
    let records = records.map(|(number, mib)| long(number, mib * MIB));
    let records = Some(records.collect());
    manager.read_for_peer(Number(1), records, &mut out);
    assert_eq!(sent(&out), [2, 1, 1, 2]);
}

/// Of long transactions a thousand were sent, however much memory that took.
// hazard: MIRROR-11
#[test]
fn no_more_than_so_much_is_under_way() {
    let mut manager = primary(0);
    let mut out = Vec::new();
    manager.peer(follow(0), &mut out);
    for number in 1..=6 {
        let draft = long(number, 30 << 20).draft.as_ref().clone();
        manager.commit(draft, &mut out);
        manager.durable(1, Number(number), &mut out);
    }
    assert_eq!(sent(&out), [1, 1, 1]);
    out.clear();
    let numbers = (1..=3).map(Number).collect();
    let floor = Number(3);
    manager.peer(Message::Applied { numbers, floor }, &mut out);
    // It is not in memory any more.
    assert!(out.contains(&Effect::ReadForPeer(Number(4))));
}

/// A long message was cut off by the timeout, again and again, and its sender taken for lost.
// hazard: MIRROR-11
#[test]
fn whoever_is_in_the_middle_of_a_message_is_not_silent() {
    let mut manager = manager();
    hear(&mut manager, 100);
    manager.at(3_000).peer_speaks();
    assert!(!takes_over(&mut manager, 6_000));
    assert!(takes_over(&mut manager, 6_001));
}

/// A new log had grown past what a member of another one has: it was taken for the member's own, and what the member lacked of it
/// was taken for what it had.
// hazard: MIRROR-13
#[test]
fn one_whose_member_belongs_to_another_log_follows_nobody_and_is_not_made_anew() {
    for is_diverged in [false, true] {
        let mut manager = Manager::new(Rules::default(), 0);
        let ledger = Ledger::new(Number(5), []);
        manager.member_up(ledger, Number(5), is_diverged, Some(OTHER));
        let mut out = Vec::new();
        manager.peer(alive(3, 1_000, LOG), &mut out);
        assert!(out.is_empty());
        // Not `Diverged`, nor `Behind`: what it has would be dropped.
        assert_eq!(manager.role(), Role::Recovering(Why::Foreign));
        assert!(!takes_over(&mut manager, 60_000));
        assert_eq!(manager.log(), Some(OTHER));
        // It is known which log is written here: a member that comes back is not taken for another one even for a moment.
        manager.member_down(&mut out);
        let ledger = Ledger::new(Number(5), []);
        manager.member_up(ledger, Number(5), is_diverged, Some(OTHER));
        assert_eq!(manager.role(), Role::Recovering(Why::Foreign));
    }
}

// hazard: MIRROR-13
#[test]
fn one_whose_member_belongs_to_another_log_takes_no_epoch() {
    let mut manager = manager();
    assert!(takes_over(&mut manager, 6_001));
    let mut out = Vec::new();
    manager.log_begins(Number(1), Some(OTHER), &mut out);
    assert!(out.is_empty());
    assert_eq!(manager.role(), Role::Recovering(Why::Foreign));
    // It was named between the look at it and the epoch.
    let mut manager = owner(5);
    manager.log_is(1, OTHER, &mut out);
    // Nothing of it is executed.
    manager.log_records(1, (1..=9).map(record).collect(), &mut out);
    manager.log_ends(1, Number(9), OTHER, &mut out);
    assert_eq!(out, [Effect::Release]);
    assert_eq!(manager.role(), Role::Recovering(Why::Foreign));
    assert!(!takes_over(&mut manager, 60_000));
    // An operator has given it up: it is made anew.
    manager.member_empty(false);
    assert_eq!(manager.role(), Role::Recovering(Why::Behind));
}

/// Members that an earlier version has made say nothing.
#[test]
fn a_member_that_belongs_to_no_log_takes_the_one_that_it_fits() {
    let mut manager = Manager::new(Rules::default(), 0);
    manager.member_up(Ledger::new(Number(2), []), Number(2), false, None);
    let mut out = Vec::new();
    manager.peer(alive(1, 500_000, LOG), &mut out);
    assert_eq!(manager.log(), None, "it may still be found to be behind");
    manager.peer(alive(1, 2, LOG), &mut out);
    assert_eq!(manager.role(), Role::Standby);
    assert_eq!(manager.log(), Some(LOG));
    manager.peer(alive(2, 3, OTHER), &mut out);
    assert_eq!(manager.role(), Role::Recovering(Why::Foreign));
    // The same of one that takes over.
    let mut manager = owner(0);
    manager.log = None;
    manager.log_ends(1, Number(0), OTHER, &mut out);
    assert_eq!(manager.role(), Role::Primary);
    assert_eq!(manager.log(), Some(OTHER));
}

/// Both managers were told that theirs is the first member, and two different databases counted as equal.
// hazard: MIRROR-14
#[test]
fn a_new_log_belongs_to_one_of_two_members_that_were_made_for_it() {
    assert_eq!(manager().names(Number(0), OTHER), LOG);
    let mut other = manager();
    other.member_up(Ledger::default(), Number(0), false, Some(OTHER));
    other.peer(alive(1, 0, LOG), &mut Vec::new());
    assert_eq!(other.role(), Role::Recovering(Why::Foreign));
    // A log that is not new does not become the member's, nor a new one that of a member which is not.
    assert_eq!(manager().names(Number(3), OTHER), OTHER);
    let mut manager = owner(5);
    let name = manager.names(Number(0), OTHER);
    assert_eq!(name, OTHER);
    let mut out = Vec::new();
    manager.log_ends(1, Number(0), name, &mut out);
    assert_eq!(manager.role(), Role::Recovering(Why::Foreign));
}

/// It is one of an earlier version, and the member belongs to a later one: its records were executed there.
// hazard: MIRROR-13
#[test]
fn nothing_is_executed_of_a_log_that_does_not_say_which_it_is() {
    let mut manager = manager();
    let mut out = Vec::new();
    assert!(takes_over(&mut manager, 6_001));
    manager.log_begins(Number(1), None, &mut out);
    manager.owned(1, &mut out);
    out.clear();
    manager.log_records(1, (1..=9).map(record).collect(), &mut out);
    assert_eq!(out, [Effect::Release]);
    assert_eq!(manager.role(), Role::Recovering(Why::Foreign));
}

/// What somebody has locked on the standby held a client for as long as others wrote.
// hazard: MIRROR-18
#[test]
fn a_standby_that_stands_still_with_one_transaction_is_not_waited_for() {
    let mut manager = primary(0);
    let mut out = Vec::new();
    let commit = |manager: &mut Manager, number: u64, out: &mut Vec<Effect>| {
        let draft = record(number).draft.as_ref().clone();
        manager.commit(draft, out);
        manager.durable(1, Number(number), out);
    };
    manager.peer(follow(0), &mut out);
    commit(&mut manager, 1, &mut out);
    for second in 1..=4_u64 {
        let number = second + 1;
        manager.at(3_000 + second * 1_000);
        manager.confirmed(1, 3_000 + second * 1_000, &mut out);
        commit(&mut manager, number, &mut out);
        let (numbers, floor) = (vec![Number(number)], Number(0));
        manager.peer(Message::Applied { numbers, floor }, &mut out);
        assert!(!out.contains(&Effect::Answer(Number(1))), "{second}");
        assert!(out.contains(&Effect::Answer(Number(number))));
        manager.tick(&mut out);
    }
    assert!(out.contains(&Effect::Answer(Number(1))));
    assert_eq!(manager.follower(), Some((Number(0), false)));
    // It goes on, and is waited for again.
    let (numbers, floor) = (vec![Number(1)], Number(5));
    manager.peer(Message::Applied { numbers, floor }, &mut out);
    assert_eq!(manager.follower(), Some((Number(5), true)));
}

/// A process that stood still for a second gave its epoch up, and ended whatever its clients had under way.
// hazard: MIRROR-78
#[test]
fn a_lease_that_passes_is_no_loss_until_the_zones_were_asked_in_vain() {
    let mut manager = primary(0);
    let mut out = Vec::new();
    manager.at(3_000).confirmed(1, 3_000, &mut out);
    // It stood still, and cannot know whether another one serves: nothing is answered meanwhile.
    manager.at(60_000).tick(&mut out);
    assert!(!manager.reads(60_000) && manager.role() == Role::Primary);
    assert!(out.contains(&Effect::Confirm(1)));
    manager.confirmed(1, 60_000, &mut out);
    assert!(manager.reads(60_010));
    let mut ticks = 0;
    while manager.role() == Role::Primary {
        ticks += 1;
        assert!(ticks < 20, "it never gives up");
        manager.at(60_000 + ticks * 250).tick(&mut out);
    }
    assert!(ticks > 4, "{ticks}");
    assert!(out.contains(&Effect::Unserve));
}
