//! An exhaustive model of quorums, fences and promotion: every schedule within small bounds.
//!
//! Three replicas (k = 2), one block. A owns epoch 1 and writes; B and C take over, promote, read and
//! write; A goes on as if nothing had happened. The replicas are [`dax::replica`]; the clients repeat
//! what `client::core` does. `docs/understand/protocol.md` (*Exhaustive model*) says what was found.
//!
//! Left out: what is concurrent inside one client, repairs, generations (a block here keeps one
//! version), records, removal, damage.

mod judge;
mod setup;
mod state;
mod step;

use std::time::Instant;

use setup::{Setup, Variant};
use state::{Phase, State};
use stateright::{Checker, HasDiscoveries, Model, Property};
use step::Step;

/// The model as the checker wants it.
#[derive(Clone, Copy)]
struct Dax(Setup);

const ONE_OWNER: &str = "an epoch has one owner";
const NOTHING_LOST: &str = "what was synced or promoted is never lost";
const STABLE: &str = "reads after a promotion are stable";
const NO_LATE_SYNC: &str = "a write made after a newer epoch was owned is never synced";
const DURABLE: &str = "what must survive is on k replicas";
const UNIQUE: &str = "a version stands for one contents";

const PROMOTES: &str = "a takeover promotes an unsynced write";
const DROPS: &str = "a takeover drops an unsynced write";
const ONE_ROUND: &str = "a promotion takes one round";
const REWRITES: &str = "a promotion writes again";
const APPEARS: &str = "a block that a quorum did not have appears after all";
const THIRD: &str = "a third epoch is owned and promotes";
const CONFLICT: &str = "a loser learns who won";
const NOBODY: &str = "a contest that nobody won is settled by the next epoch";

impl Model for Dax {
    type State = State;
    type Action = Step;

    fn init_states(&self) -> Vec<State> {
        vec![State::first(&self.0)]
    }

    fn actions(&self, state: &State, actions: &mut Vec<Step>) {
        state.steps(&self.0, actions);
    }

    fn next_state(&self, state: &State, step: Step) -> Option<State> {
        let mut next = state.clone();
        next.take(&self.0, step);
        Some(next)
    }

    fn properties(&self) -> Vec<Property<Dax>> {
        let mut properties = vec![
            Property::always(ONE_OWNER, |_, s: &State| !s.is_broken(judge::TWO_OWNERS)),
            Property::always(NOTHING_LOST, |_, s: &State| !s.is_broken(judge::LOST)),
            Property::always(STABLE, |_, s: &State| !s.is_broken(judge::UNSTABLE)),
            Property::always(NO_LATE_SYNC, |_, s: &State| !s.is_broken(judge::LATE)),
            Property::always(DURABLE, |_, s: &State| judge::floor_is_durable(s)),
            Property::always(UNIQUE, |_, s: &State| judge::versions_are_unique(s)),
        ];
        if !self.0.is_broken() {
            properties.extend(self.reachable());
        }
        properties
    }
}

impl Dax {
    /// What must be possible, so that the bounds are known to be wide enough.
    fn reachable(&self) -> Vec<Property<Dax>> {
        let mut reachable = vec![
            Property::sometimes(PROMOTES, |_, s: &State| judge::promoted_unsynced(s, 1)),
            Property::sometimes(ONE_ROUND, |_, s: &State| {
                s.clients[1].shown.is_some() && s.clients[1].given == 0
            }),
            Property::sometimes(REWRITES, |_, s: &State| {
                let b = &s.clients[1];
                b.given > b.wrote && b.shown.is_some() && b.op == state::Op::None
            }),
        ];
        if self.0.writes[0] > 1 {
            reachable.push(Property::sometimes(DROPS, |_, s: &State| {
                judge::dropped_unsynced(s, 1)
            }));
        }
        if self.0.promotions[1] > 1 {
            reachable.push(Property::sometimes(APPEARS, |_, s: &State| {
                let b = &s.clients[1];
                b.absent && b.shown.is_some() && b.wrote == 0
            }));
        }
        if self.0.max_epoch > 2 {
            reachable.push(Property::sometimes(THIRD, |_, s: &State| {
                let mut clients = s.clients.iter();
                clients.any(|c| c.epoch() == Some(3) && c.shown.is_some())
            }));
        }
        if self.0.contest[1] {
            reachable.push(Property::sometimes(CONFLICT, |_, s: &State| {
                s.clients[1].epoch() == Some(2) && s.clients[2].phase == Phase::Conflict(2)
            }));
            // Epochs 0 (nobody's), 1 and 3.
            reachable.push(Property::sometimes(NOBODY, |_, s: &State| {
                s.history.owned == 0b1011
            }));
        }
        reachable
    }
}

impl State {
    fn is_broken(&self, bit: u8) -> bool {
        self.history.broken & bit != 0
    }
}

/// Explores everything within the bounds: each rule holds, and each wanted situation is reached.
fn holds(what: &str, setup: Setup) {
    let started = Instant::now();
    let checker = Dax(setup).checker().spawn_bfs().join();
    report(what, &checker, started);
    checker.assert_properties();
}

/// Explores until a rule is broken, which must be `expected`, and prints the shortest such schedule.
fn fails(what: &str, setup: Setup, expected: &'static str) {
    let mut shortest: Option<Vec<Step>> = None;
    loop {
        let started = Instant::now();
        let wanted = HasDiscoveries::AnyOf([expected].into());
        let mut checker = Dax(setup).checker().finish_when(wanted);
        if let Some(steps) = &shortest {
            // The first that is found may be a little longer than need be: look for a shorter one.
            checker = checker.target_max_depth(steps.len() + 1);
        }
        let checker = checker.spawn_bfs().join();
        report(what, &checker, started);
        match checker.discovery(expected) {
            Some(path) => shortest = Some(path.into_actions()),
            None => break,
        }
    }
    let steps = shortest.unwrap_or_else(|| panic!("{what}: no schedule breaks {expected:?}"));
    println!("{what} breaks: {expected}");
    for step in steps {
        println!("    {step}");
    }
}

/// Printed with `--nocapture`.
fn report(what: &str, checker: &impl Checker<Dax>, started: Instant) {
    println!(
        "{what}: {} states, {} steps, depth {}, {:.1} s",
        checker.unique_state_count(),
        checker.state_count(),
        checker.max_depth(),
        started.elapsed().as_secs_f64()
    );
}

#[test]
fn a_takeover_loses_nothing() {
    holds("takeover", Setup::takeover());
}

#[test]
fn three_epochs_lose_nothing() {
    holds("three epochs", Setup::three_epochs());
}

#[test]
fn a_contest_has_one_winner() {
    holds("contest", Setup::contest());
}

#[test]
fn a_crash_in_a_takeover_loses_nothing() {
    holds("crash", Setup::crash());
}

/// Of the two guards of a promotion, the replica's fence and the owner's choice of whom it asks,
/// either is enough within these bounds.
#[test]
fn an_owner_that_asks_only_its_own_replicas_guards_a_promotion_too() {
    let setup = Setup {
        variant: Variant::PromotionGuardedByTheOwner,
        ..Setup::takeover()
    };
    holds("promotion guarded by the owner alone", setup);
}

#[test]
fn a_promotion_needs_the_fence() {
    let setup = Setup::takeover().broken(Variant::UnfencedPromotion);
    fails("unfenced promotion", setup, STABLE);
}

#[test]
fn an_owner_must_not_read_where_its_epoch_is_not_accepted() {
    let setup = Setup::takeover().broken(Variant::ReadsBeforeAcceptance);
    fails("reads before acceptance", setup, NOTHING_LOST);
}

#[test]
fn a_quorum_that_agrees_is_not_enough_for_a_promotion() {
    let setup = Setup::takeover().broken(Variant::QuorumAgrees);
    fails("a quorum agrees", setup, STABLE);
}

#[test]
fn relabelling_at_each_replica_is_not_stable() {
    let setup = Setup::takeover().broken(Variant::Relabelling);
    fails("relabelling", setup, STABLE);
}

#[test]
fn versions_must_compare_the_epoch_first() {
    let setup = Setup::takeover().broken(Variant::CounterAlone);
    fails("counter alone", setup, NOTHING_LOST);
}

#[test]
fn acceptance_by_one_replica_is_not_ownership() {
    let setup = Setup::contest().broken(Variant::EpochQuorumOfOne);
    fails("epoch quorum of one", setup, ONE_OWNER);
}

#[test]
fn writes_need_the_fence() {
    let setup = Setup::takeover().broken(Variant::UnfencedWrites);
    fails("unfenced writes", setup, NO_LATE_SYNC);
}

#[test]
fn answers_wait_for_the_commit() {
    let setup = Setup::crash().broken(Variant::AnswersBeforeCommit);
    fails("answers before the commit", setup, NOTHING_LOST);
}

// Wider bounds: `cargo test --release -p dax --test model -- --ignored --nocapture`.

#[test]
#[ignore = "takes minutes and gigabytes"]
fn a_longer_takeover_loses_nothing() {
    holds("wide takeover", Setup::wide_takeover());
}

#[test]
#[ignore = "takes minutes and gigabytes"]
fn busy_epochs_lose_nothing() {
    holds("wide three epochs", Setup::wide_three_epochs());
}

#[test]
#[ignore = "takes minutes and gigabytes"]
fn a_longer_contest_has_one_winner() {
    holds("wide contest", Setup::wide_contest());
}

#[test]
#[ignore = "takes minutes and gigabytes"]
fn two_crashes_in_a_takeover_lose_nothing() {
    holds("wide crash", Setup::wide_crash());
}
