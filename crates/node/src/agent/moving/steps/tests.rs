//! Every order of events up to a depth, against what must always hold; and that a move comes about
//! from wherever that leads, once nothing stands in its way.

use std::collections::HashSet;

use dax::ids::Epoch;

use super::*;

/// Seals have generations from 1 on; that of generation n ends (W) here.
fn end_of(number: u32) -> Lsn {
    Lsn(u64::from(number) * 2)
}

fn generation(number: u32) -> Generation {
    Generation {
        epoch: Epoch(1),
        number,
    }
}

/// The machine and the world that it acts on.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct World {
    steps: Steps,
    now: Duration,
    /// The newest seal.
    sealed: u32,
    target: u32,
    base: u32,
    work: Option<&'static str>,
    /// P, while the log is held.
    held: Option<Lsn>,
    applied: Lsn,
    replay_limit: Lsn,
    over: bool,
    moves: u32,
}

impl World {
    fn new() -> World {
        World {
            steps: Steps::new(generation(0), Duration::ZERO),
            now: Duration::ZERO,
            sealed: 0,
            target: 0,
            base: 0,
            work: None,
            held: None,
            applied: Lsn(0),
            replay_limit: Lsn(1),
            over: false,
            moves: 0,
        }
    }

    /// Everything that can happen next.
    fn next(&self) -> Vec<World> {
        let mut worlds = Vec::new();
        for later in [ASK_EVERY, QUIET, RETRY, LOOK_EVERY] {
            let mut world = self.clone();
            world.now += later;
            worlds.extend(world.input(Input::Time));
        }
        if self.sealed < 2 {
            let mut world = self.clone();
            world.sealed += 1;
            let told = generation(world.sealed);
            worlds.extend(world.clone().input(Input::Sealed(told)));
            // Nobody tells.
            worlds.push(world);
        }
        if self.applied < self.replay_limit {
            let mut world = self.clone();
            world.applied.0 += 1;
            worlds.extend(world.progress());
        }
        if self.held.is_none() && self.replay_limit < Lsn(4) {
            // More log is shown; nobody tells at once how far redo is.
            let mut world = self.clone();
            world.replay_limit.0 += 1;
            worlds.push(world);
        }
        worlds.extend(self.clone().input(Input::Stale));
        for result in self.results() {
            let mut world = self.clone();
            world.work = None;
            worlds.extend(world.input(result));
        }
        worlds
    }

    fn progress(self) -> Vec<World> {
        let applied = self.applied;
        self.input(Input::Progress(applied))
    }

    /// What the work under way can lead to, the good result first.
    fn results(&self) -> Vec<Input> {
        let looked = match self.sealed > self.base {
            true => Input::Newer(end_of(self.sealed)),
            false => Input::NothingNew,
        };
        match self.work {
            Some("look") => vec![looked, Input::OtherLine, Input::Failed],
            Some("claim") => vec![Input::Claimed, Input::Gone, Input::ClaimLost, Input::Failed],
            Some("load") => vec![Input::Loaded, Input::Failed],
            Some("plan") => vec![Input::Planned, Input::Failed],
            Some("narrow") => vec![Input::Narrowed, Input::ClaimLost, Input::Failed],
            _ => Vec::new(),
        }
    }

    /// The worlds after an input: two where a move is tried.
    fn input(mut self, input: Input) -> Vec<World> {
        if matches!(input, Input::Newer(_)) {
            self.target = self.sealed;
        }
        let effects = self.steps.on(input, self.replay_limit, self.now);
        assert!(!self.over || effects.is_empty(), "over is over");
        let mut worlds = vec![self];
        for effect in effects {
            worlds = worlds.into_iter().flat_map(|w| w.effect(effect)).collect();
        }
        for world in &worlds {
            assert_eq!(world.held.is_some(), world.steps.is_holding(), "{world:?}");
            let settling = world.held.is_some();
            assert!(
                !settling || world.work.is_none(),
                "no work while the log is held"
            );
            assert!(
                !settling || world.steps.wake_at().is_some(),
                "holds for ever"
            );
        }
        worlds
    }

    fn effect(mut self, effect: Effect) -> Vec<World> {
        let work = match effect {
            Effect::Look => Some("look"),
            Effect::Claim => Some("claim"),
            Effect::Load => Some("load"),
            Effect::Plan => Some("plan"),
            Effect::Narrow => Some("narrow"),
            _ => None,
        };
        if let Some(work) = work {
            assert_eq!(self.work.replace(work), None, "one piece of work at a time");
            if work == "plan" {
                assert!(
                    self.replay_limit >= end_of(self.target),
                    "stamps above its redo"
                );
            }
            return vec![self];
        }
        match effect {
            Effect::Hold => assert_eq!(self.held.replace(self.replay_limit), None),
            Effect::Release => assert!(self.held.take().is_some()),
            Effect::Ask => assert!(self.held.is_some()),
            Effect::AttachAfresh => self.over = true,
            _ => {
                let rest = self.held.expect("moves only while the log is held");
                assert!(self.applied >= rest, "redo is not at rest");
                assert!(self.applied >= end_of(self.target), "newer than the replay");
                assert!(self.target > self.base);
                let mut moved = self.clone();
                moved.base = self.target;
                moved.moves += 1;
                let mut worlds = moved.input(Input::Moved(generation(self.target)));
                worlds.extend(self.input(Input::Failed));
                return worlds;
            }
        }
        vec![self]
    }

    /// From now on everything goes well.
    fn goes_well(mut self) -> World {
        self.sealed += 1;
        let told = Input::Sealed(generation(self.sealed));
        self = self.input(told).remove(0);
        for _ in 0..40 {
            if self.over || self.base == self.sealed {
                return self;
            }
            if let Some(result) = self.results().into_iter().next() {
                self.work = None;
                self = self.input(result).remove(0);
                continue;
            }
            if self.held.is_none() {
                self.replay_limit = self.replay_limit.max(end_of(self.sealed));
            }
            self.applied = self.replay_limit;
            self = self.progress().remove(0);
            if let Some(at) = self.steps.wake_at() {
                self.now = self.now.max(at);
                self = self.input(Input::Time).remove(0);
            }
        }
        panic!("no move comes about: {self:?}");
    }
}

// hazard: PAGE-7
#[test]
fn in_every_order_of_events_moves_are_safe_and_come_about() {
    let mut seen = HashSet::new();
    let mut edge = vec![World::new()];
    let mut moves = 0;
    for _ in 0..11 {
        let mut next = Vec::new();
        for world in edge {
            moves += u32::from(world.moves > 0);
            world.clone().goes_well();
            next.extend(world.next().into_iter().filter(|w| seen.insert(w.clone())));
        }
        edge = next;
    }
    assert!(seen.len() > 10_000 && moves > 50, "{} {moves}", seen.len());
}

/// Feeds progress and says what comes out.
fn progress(steps: &mut Steps, applied: u64, replay_limit: u64, now: Duration) -> Vec<Effect> {
    steps.on(Input::Progress(Lsn(applied)), Lsn(replay_limit), now)
}

/// Ready to hold: everything is known of a seal that ends at 100.
fn ready(now: Duration) -> Steps {
    let mut steps = Steps::new(generation(0), now);
    let seal = Input::Sealed(generation(1));
    assert_eq!(steps.on(seal, Lsn(0), now), [Effect::Look]);
    assert_eq!(
        steps.on(Input::Newer(Lsn(100)), Lsn(0), now),
        [Effect::Claim]
    );
    assert_eq!(steps.on(Input::Claimed, Lsn(0), now), [Effect::Load]);
    assert_eq!(steps.on(Input::Loaded, Lsn(0), now), []);
    assert_eq!(progress(&mut steps, 10, 90, now), []);
    assert_eq!(progress(&mut steps, 20, 120, now), [Effect::Plan]);
    assert_eq!(steps.on(Input::Planned, Lsn(0), now), []);
    steps
}

#[test]
fn a_standby_that_is_level_moves_without_a_pause() {
    let now = Duration::from_secs(1);
    let mut steps = ready(now);
    let effects = progress(&mut steps, 120, 120, now);
    assert_eq!(effects, [Effect::Hold, Effect::Move]);
    let moved = Input::Moved(generation(1));
    assert_eq!(
        steps.on(moved, Lsn(0), now),
        [Effect::Release, Effect::Narrow]
    );
    assert_eq!(steps.on(Input::Narrowed, Lsn(0), now), []);
    assert_eq!(steps.wake_at(), Some(now + LOOK_EVERY));
}

#[test]
fn redo_that_stands_still_is_given_its_log_back_and_tried_again() {
    let mut now = Duration::from_secs(1);
    let mut steps = ready(now);
    let effects = progress(&mut steps, 110, 120, now);
    assert_eq!(effects, [Effect::Hold, Effect::Ask]);
    now += QUIET / 2;
    assert_eq!(progress(&mut steps, 115, 120, now), [Effect::Ask]);
    now += QUIET / 2;
    assert_eq!(
        steps.on(Input::Time, Lsn(0), now),
        [Effect::Ask],
        "it had advanced"
    );
    now += QUIET;
    assert_eq!(steps.on(Input::Time, Lsn(0), now), [Effect::Release]);
    assert_eq!(progress(&mut steps, 130, 150, now), [], "not at once");
    now += RETRY;
    assert_eq!(
        steps.on(Input::Time, Lsn(0), now),
        [Effect::Hold, Effect::Ask]
    );
    assert_eq!(progress(&mut steps, 150, 150, now), [Effect::Move]);
}

#[test]
fn a_seal_told_of_during_a_move_is_looked_at_after_it() {
    let now = Duration::from_secs(1);
    let mut steps = ready(now);
    assert_eq!(steps.on(Input::Sealed(generation(2)), Lsn(0), now), []);
    progress(&mut steps, 120, 120, now);
    steps.on(Input::Moved(generation(1)), Lsn(0), now);
    assert_eq!(steps.on(Input::Narrowed, Lsn(0), now), [Effect::Look]);
}

// Redo was at the end of the log when it last told, and more log is shown since: that is no rest.
// hazard: PAGE-7
#[test]
fn log_that_was_shown_after_the_last_progress_is_waited_for() {
    let now = Duration::from_secs(1);
    let mut steps = ready(now);
    steps.applied = Lsn(120);
    let effects = steps.on(Input::Time, Lsn(180), now);
    assert_eq!(effects, [Effect::Hold, Effect::Ask]);
    assert_eq!(progress(&mut steps, 150, 180, now), []);
    assert_eq!(progress(&mut steps, 180, 180, now), [Effect::Move]);
}
