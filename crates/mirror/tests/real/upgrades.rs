//! A major upgrade, decided from what real managers say. Both members have one version here; where another one is needed, the status is
//! changed on its way.

use std::time::Duration;

use mirror::driver::peer::Question;
use mirror::driver::upgrade::{Direction, Next, Refusal, Stage, finish, next, release, upgrade};
use mirror::driver::{Status, Verdict};

use crate::server::psql;
use crate::site::{Site, run};

/// A version that no server has yet.
const NEWER: u32 = 990_001;

/// The statuses, as if the second member had this version.
fn statuses(site: &Site, version: Option<u32>) -> Vec<Option<Status>> {
    let mut statuses: Vec<Option<Status>> = (0..2).map(|at| site.status(at)).collect();
    if let (Some(status), Some(version)) = (&mut statuses[1], version) {
        status.server_version_num = Some(version);
    }
    statuses
}

/// Executes the steps until there is none; what they were, and why the next one is refused.
fn carry_out(site: &Site, direction: Direction) -> (Vec<&'static str>, Option<Refusal>) {
    let (mut verdict, mut has_switched) = (None::<Verdict>, false);
    let mut steps = Vec::new();
    loop {
        let step = std::cell::RefCell::new(None);
        site.wait("the next step", || {
            let statuses = statuses(site, Some(NEWER));
            let next = next(direction, &statuses, verdict.as_ref(), has_switched);
            let is_step = !matches!(next, Next::Wait(_));
            step.replace(Some(next));
            is_step
        });
        match step.into_inner().expect("it was waited for") {
            Next::Verify => {
                steps.push("verify");
                verdict = Some(site.verify());
            }
            Next::SwitchOver => {
                steps.push("switch over");
                site.ask_primary(Question::Switchover);
                has_switched = true;
            }
            Next::Done => return (steps, None),
            Next::Refused(why) => return (steps, Some(why)),
            Next::Wait(_) => {}
        }
    }
}

/// The version is known of a server without the database, too: one that is to be filled.
#[test]
fn members_of_one_version_are_no_upgrade() {
    let mut site = Site::unmanaged("", |_| {});
    let version = site.sides[1].server.sql(&["SHOW server_version_num"]);
    let version: u32 = version.trim().parse().expect("a number");
    site.sides[1].server.sql(&["DROP DATABASE app"]);
    site.manage(1);
    site.wait("its version is known", || {
        let status = site.status(1);
        status.is_some_and(|status| status.server_version_num == Some(version))
    });
    let refused = next(Direction::Forward, &statuses(&site, None), None, false);
    assert_eq!(refused, Next::Refused(Refusal::Unreachable));
    site.manage(0);
    site.settle();
    let all = statuses(&site, None);
    for direction in [Direction::Forward, Direction::Back] {
        let Next::Refused(refusal) = next(direction, &all, None, false) else {
            panic!("it is not refused");
        };
        let both = format!("they are m0 ({0}) and m1 ({0})", release(version));
        assert!(refusal.to_string().ends_with(&both), "{refusal}");
    }
    assert!(matches!(finish(&all), Err(Refusal::SameVersion(_))));
    assert_eq!(upgrade(&all), None);
}

#[test]
fn an_upgrade_goes_there_and_back_and_says_when_the_way_back_is_closed() {
    let site = Site::start("");
    let client = site.connect();
    let schema = "CREATE TABLE t (id int PRIMARY KEY, a text); INSERT INTO t VALUES (1, 'a')";
    run(&site, &client, schema);
    site.switch_to(0);
    site.settle();
    let is = |stage| {
        let found = upgrade(&statuses(&site, Some(NEWER)));
        found.is_some_and(|found| found.state == stage)
    };
    assert!(is(Stage::NotSwitchedOver));
    let newer_is_standby = finish(&statuses(&site, Some(NEWER)));
    assert!(matches!(newer_is_standby, Err(Refusal::NotSwitchedOver(_))));
    let (_, refusal) = carry_out(&site, Direction::Back);
    assert!(matches!(refusal, Some(Refusal::Serves(Direction::Back, _))));

    let steps = vec!["verify", "switch over"];
    assert_eq!(carry_out(&site, Direction::Forward), (steps.clone(), None));
    assert!(is(Stage::WayBackOpen));
    run(&site, &client, "INSERT INTO t VALUES (2, 'b')");
    let (_, refusal) = carry_out(&site, Direction::Forward);
    assert!(matches!(
        refusal,
        Some(Refusal::Serves(Direction::Forward, _))
    ));
    finish(&statuses(&site, Some(NEWER))).expect("the newer one is primary");
    assert_eq!(carry_out(&site, Direction::Back), (steps.clone(), None));
    assert!(is(Stage::NotSwitchedOver));
    assert_eq!(carry_out(&site, Direction::Forward), (steps, None));

    // The older one differs: there is no way back until somebody has decided. What it commits right after it was primary would be taken
    // for the rest of that, and undone.
    run(&site, &client, "INSERT INTO t VALUES (3, 'c')");
    site.must_be_equal();
    std::thread::sleep(Duration::from_secs(2));
    psql(&site.member(0), "UPDATE t SET a = 'wrong' WHERE id = 1").expect("behind its back");
    site.wait("the way back is closed", || is(Stage::WayBackClosed));
    let closed = upgrade(&statuses(&site, Some(NEWER))).expect("the versions differ");
    assert!(closed.to_string().contains("wrong"), "{closed}");
    let (steps, refusal) = carry_out(&site, Direction::Back);
    assert!(
        steps.is_empty() && matches!(refusal, Some(Refusal::SetAside(..))),
        "{refusal:?}"
    );
}
