//! Commits that a member has by itself, and long transactions.

use super::super::super::record::{Record, Token};
use super::super::super::rows::{Header, Lsn, Origin, Rows};
use super::*;

/// A record with rows of a commit that a server has made, which ends there; with its piece, and whether that is the last.
fn rows(number: u64, system: u64, end: u64, piece: (u32, bool)) -> Record {
    let (piece, is_last) = piece;
    let end = Lsn(end);
    let header = Header {
        origin: Origin {
            system,
            end,
            ..Origin::default()
        },
        piece,
        is_last,
    };
    let token = Token { epoch: 1, count: 1 };
    let draft = Rows::default().draft(&header, token, Vec::new());
    Record {
        number: Number(number),
        draft: draft.into(),
    }
}

/// Numbers of what is executed when records come.
fn executed(manager: &mut Manager, records: Vec<Record>) -> Vec<u64> {
    let mut out = Vec::new();
    manager.peer(Message::Records { epoch: 1, records }, &mut out);
    applies(out)
}

fn applies(out: Vec<Effect>) -> Vec<u64> {
    let numbers = out.into_iter().filter_map(|effect| match effect {
        Effect::Apply(record) => Some(record.number.0),
        _ => None,
    });
    numbers.collect()
}

/// A follower whose member has the commits of server 5 up to 100.
fn follower() -> Manager {
    follower_of(0)
}

/// A follower of a primary that has so many transactions.
fn follower_of(last: u64) -> Manager {
    let mut manager = Manager::new(Rules::default(), 0);
    manager.member_up(Ledger::default(), Number(0), false, Some(LOG));
    manager.member_has([(5, Lsn(100))]);
    let alive = Message::Alive {
        epoch: 1,
        last: Number(last),
        log: LOG,
    };
    manager.at(100).peer(alive, &mut Vec::new());
    manager
}

#[test]
fn a_commit_that_the_member_has_made_is_not_executed_there() {
    let mut manager = follower();
    manager.settle(&mut Vec::new());
    let whole = (0, true);
    let records = vec![
        rows(1, 5, 90, whole),
        rows(2, 5, 110, whole),
        rows(3, 6, 90, whole),
    ];
    assert_eq!(executed(&mut manager, records), [2, 3]);
    assert!(
        manager
            .ledger()
            .is_some_and(|ledger| ledger.contains(Number(1)))
    );
    assert_eq!(
        (manager.logged_of(5), manager.logged_of(6)),
        (Lsn(110), Lsn(90))
    );
    assert!(manager.may_log_past_of(6) && !manager.may_log_past_of(5));
}

#[test]
fn a_long_transaction_is_executed_as_a_whole_and_without_an_end_not_at_all() {
    let mut manager = follower();
    manager.settle(&mut Vec::new());
    let begun = vec![rows(1, 6, 10, (0, false)), rows(2, 6, 10, (1, false))];
    assert!(executed(&mut manager, begun).is_empty());
    // Its owner was lost, and the next one logs it once more.
    let again = vec![rows(3, 6, 10, (0, false)), rows(4, 6, 20, (1, true))];
    assert_eq!(executed(&mut manager, again), [4]);
    let floor = |manager: &Manager| manager.ledger().map(Ledger::floor);
    assert_eq!(floor(&manager), Some(Number(2)));
    let life = manager.life();
    manager.applied(life, Number(4), &mut Vec::new());
    assert_eq!(floor(&manager), Some(Number(4)));
}

/// Rows of others were executed on a member that had more than the log, and found keys that it should not have had.
#[test]
fn nothing_is_executed_before_it_is_known_that_the_log_has_what_the_member_has() {
    let mut manager = follower();
    assert!(executed(&mut manager, vec![rows(1, 6, 10, (0, true))]).is_empty());
    assert!(manager.has_tail());
    let mut out = Vec::new();
    manager.settle(&mut out);
    assert_eq!(applies(out), [1]);
    let mut surplus = follower();
    assert!(executed(&mut surplus, vec![rows(1, 6, 10, (0, true))]).is_empty());
    surplus.has_surplus(&mut Vec::new());
    assert_eq!(surplus.role(), Role::Recovering(Why::Behind));
}

/// A primary sends only so much ahead of what is executed: who waited for the end of the log before executing anything waited for ever.
#[test]
fn a_member_that_is_far_behind_is_settled_by_what_it_lacks() {
    let mut manager = follower_of(100_000);
    assert!(!manager.has_tail());
    // Its own commits say nothing of what comes behind them.
    assert!(executed(&mut manager, vec![rows(1, 5, 90, (0, true))]).is_empty());
    assert!(!manager.has_tail());
    assert!(executed(&mut manager, vec![rows(2, 6, 10, (0, true))]).is_empty());
    assert!(manager.has_tail());
}

/// A primary was deposed after the log had got a commit of its member's, and before it heard of that: the rows were executed there once
/// more.
// hazard: MIRROR-32
#[test]
fn what_a_deposed_primary_has_committed_is_not_executed_there() {
    let mut manager = follower();
    // Who still writes there is not ended yet.
    let records = vec![rows(1, 5, 150, (0, true)), rows(2, 6, 10, (0, true))];
    assert!(executed(&mut manager, records).is_empty());
    manager.own_ends(Lsn(200));
    let mut out = Vec::new();
    manager.settle(&mut out);
    assert_eq!(applies(out), [2]);
    let ledger = manager.ledger().expect("the member answers");
    assert!(ledger.contains(Number(1)) && !ledger.contains(Number(2)));
}

/// A stream that began again gave the log what was on its way there: both members then had it twice, or neither.
// hazard: MIRROR-31
#[test]
fn what_was_given_to_the_log_is_known_until_it_is_acknowledged() {
    let mut manager = primary(0);
    let (mut out, mut follows) = (Vec::new(), Vec::new());
    manager.peer(follow(0), &mut follows);
    let given = |number: u64, end: u64, is_last: bool| {
        let record = rows(number, 5, end, (0, is_last));
        record.draft.as_ref().clone()
    };
    manager.commit(given(1, 10, true), &mut out);
    manager.commit(given(2, 15, false), &mut out);
    manager.commit(given(3, 20, true), &mut out);
    let ends = [(Lsn(10), Number(1)), (Lsn(20), Number(3))];
    assert_eq!(manager.given(), (ends.into(), 3));
    manager.durable(1, Number(1), &mut out);
    // The other member does not have it yet.
    assert_eq!(manager.given(), (ends.into(), 2));
    let (numbers, floor) = (vec![Number(1)], Number(1));
    manager.peer(Message::Applied { numbers, floor }, &mut out);
    assert_eq!(manager.given(), ([ends[1]].into(), 2));
    assert_eq!(manager.ledger().map(Ledger::floor), Some(Number(1)));
}

/// It was found to have a surplus while it took over, and served in that epoch all the same.
// hazard: MIRROR-34
#[test]
fn one_that_has_a_surplus_gives_its_epoch_up() {
    let mut manager = owner(0);
    let mut out = Vec::new();
    manager.has_surplus(&mut out);
    assert_eq!(out, [Effect::Release]);
    manager.log_ends(1, Number(0), LOG, &mut out);
    manager.tick(&mut out);
    assert_eq!(manager.role(), Role::Recovering(Why::Behind));
    assert_eq!((manager.taking(), manager.epoch()), (None, None));
}

/// Commits that it could have logged when it took over could not be logged any more, and rows of others were executed beside them.
// hazard: MIRROR-34
#[test]
fn one_that_loses_its_epoch_before_it_serves_is_unsettled_again() {
    let mut manager = owner(0);
    manager.member_has([(5, Lsn(100))]);
    let mut out = Vec::new();
    manager.settle(&mut out);
    manager.fenced(1, &mut out);
    assert!(manager.is_unsettled());
    let alive = alive(2, 0, LOG);
    manager.peer(alive, &mut out);
    out.clear();
    let records = vec![rows(1, 6, 10, (0, true))];
    manager.peer(Message::Records { epoch: 2, records }, &mut out);
    assert!(applies(out).is_empty());
}

/// It had followed a primary, and took what that had sent for all of the log that it was about to own.
// hazard: MIRROR-34
#[test]
fn one_that_takes_over_has_the_tail_when_it_has_read_the_log() {
    let mut manager = follower();
    assert!(manager.has_tail());
    let mut out = Vec::new();
    manager.own(&mut out);
    manager.owned(2, &mut out);
    assert!(!manager.has_tail());
    manager.log_is(2, LOG, &mut out);
    manager.log_ends(2, Number(0), LOG, &mut out);
    assert!(manager.has_tail());
}

/// The copy had the sequence as it was when it was dumped, and the log's values from before that position were left out: after a takeover
/// numbers were used again.
// hazard: MIRROR-73
#[test]
fn a_copy_takes_the_sequences_of_commits_that_it_has() {
    let mut manager = follower();
    manager.member_has([(7, Lsn(100)), (5, Lsn(100))]);
    manager.settle(&mut Vec::new());
    let advanced = |number: u64, system: u64| {
        let record = rows(number, system, 90, (0, true));
        let sequences = vec![("public.s".to_owned(), 33)];
        let (header, token) = (record.draft.header, record.draft.token);
        Record {
            number: record.number,
            draft: Rows::default().draft(&header, token, sequences).into(),
        }
    };
    let records = vec![
        advanced(1, 5),
        rows(2, 5, 90, (0, true)),
        // Its own: it has used the values itself.
        advanced(3, 7),
    ];
    assert_eq!(executed(&mut manager, records), [1]);
}

/// A copy of a primary has what that has committed since it last wrote down how far it was: more than a primary sends ahead, under load. It
/// waited for the end of the log, and the primary for it.
// hazard: MIRROR-79
#[test]
fn what_a_member_has_already_does_not_wait_until_it_is_settled() {
    let mut manager = manager();
    manager.member_up(Ledger::default(), Number(0), false, Some(LOG));
    manager.member_has([(7, Lsn(100)), (5, Lsn(100))]);
    let mut out = Vec::new();
    manager.peer(alive(1, 9, LOG), &mut out);
    let send = |manager: &mut Manager, records: Vec<Record>| {
        let mut out = Vec::new();
        manager.peer(Message::Records { epoch: 1, records }, &mut out);
        out
    };
    let out = send(
        &mut manager,
        vec![rows(1, 5, 90, (0, true)), rows(2, 7, 95, (0, true))],
    );
    assert!(manager.is_unsettled() && !manager.has_tail());
    let floors: Vec<Number> = out
        .iter()
        .filter_map(|effect| match effect {
            Effect::Send(Message::Applied { floor, .. }) => Some(*floor),
            _ => None,
        })
        .collect();
    assert_eq!(floors, [Number(1), Number(2)], "the primary sends more");
    // What it lacks waits, and whatever comes behind that.
    let out = send(
        &mut manager,
        vec![rows(3, 5, 110, (0, true)), rows(4, 7, 96, (0, true))],
    );
    assert!(out.is_empty() && manager.has_tail(), "{out:?}");
    let mut out = Vec::new();
    manager.settle(&mut out);
    assert_eq!(applies(out), [3]);
}
