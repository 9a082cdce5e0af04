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
