//! When the log of a running server may be ordered, from what happens to the agent's connections there. Pure.
//!
//! ```text
//!   connecting ──streams──▶ taking places ──all──▶ proving ──proved──▶ ordered
//!       ▲                       ▲     │ some are others'  │ not proved   │ a place is lost
//!       │ disconnected,         └─────┴──── waiting ◀─────┴──────────────┘
//!       └─ with no places
//!                     disconnected, with all other places
//!   proving, ordered ─────────────────────────────────────▶ reconnecting ──streams──▶ proving
//!                                                                │ one is lost, or left for the connection
//!                                                                └─────▶ short ──streams──▶ waiting
//!
//!   any of them ──stop──▶ settling ──what was answered is durable──▶ confirming on, until the server ends
//! ```
//!
//! Invariant: the log is ordered only while commits are known to wait for the connection that confirms, and every place
//! for a replication connection is the agent's.

use pgdata::confirm::Refusal;

/// So many proofs in a row that saw nothing are followed by a rest: each holds commits back.
const UNSEEN_MAX: u8 = 5;

/// How far it is.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub(super) enum Stage {
    /// The connection that confirms is being made.
    #[default]
    Connecting,
    /// The same, with all other places in hand: what they keep free is for it.
    Reconnecting,
    /// The same, and some place may be another's.
    Short,
    /// All other places for replication connections are being taken.
    Taking,
    /// A commit of the agent's own shows whether commits wait.
    Proving,
    /// The log is ordered.
    Ordered,
    /// It is not; in a while it is tried again.
    Waiting,
    /// The server is to stop: nothing is answered early any more.
    Settling,
    /// Others may connect. Commits that wait are confirmed on.
    Leaving,
    /// The server has ended the connection, as it does when it stops.
    Over,
}

/// What happened.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Event {
    /// The server takes the connection for its standby.
    Streams,
    /// The connection that confirms is gone, or was not let in, and why.
    Disconnected(Refusal, String),
    /// All places are the agent's.
    AllPlaces,
    /// They are not, and why.
    SomePlaces(String),
    /// A commit waited.
    Proved,
    /// None did, or something else is in the way.
    NotProved(String),
    /// It could not be seen whether one did.
    NotSeen(String),
    /// The server ended a connection that took a place.
    PlaceLost,
    /// It is time to try again.
    Again,
    /// It is time to connect again.
    ConnectAgain,
    /// The server is to be stopped in order.
    Stop,
    /// What was answered early is durable, or that takes too long to wait for.
    Settled,
}

/// What is to be done.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Effect {
    /// Make the connection that confirms.
    Connect,
    /// Send `ConnectAgain` after a short pause.
    PauseConnect,
    /// Send `Again` after a pause.
    Pause,
    /// Send `Again` after a long one.
    Rest,
    /// Take the other places.
    TakePlaces,
    /// Give them up, as soon as what was answered early is durable.
    LeavePlaces,
    /// The same with one of them.
    LeaveOne,
    /// See whether a commit waits.
    Prove,
    /// Let syncs be answered early.
    Order,
    /// Let none be, and say why.
    BeStrict(String),
    /// Wait until what was answered early is durable.
    Settle,
}

#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub(super) struct Steps {
    stage: Stage,
    /// How many proofs in a row saw nothing.
    unseen: u8,
}

impl Steps {
    pub(super) fn stage(self) -> Stage {
        self.stage
    }

    /// True if the server is to stop, or has.
    pub(super) fn stops(self) -> bool {
        matches!(self.stage, Stage::Settling | Stage::Leaving | Stage::Over)
    }

    /// What follows from an event; one that comes too late changes nothing.
    pub(super) fn step(&mut self, event: Event) -> Vec<Effect> {
        match (self.stage, &event) {
            (Stage::Proving, Event::Proved) => self.unseen = 0,
            (Stage::Proving, Event::NotSeen(_)) => self.unseen = self.unseen.saturating_add(1),
            _ => {}
        }
        let (next, effects) = match self.stops() {
            true => self.stage.stopping(&event),
            false => self.stage.running(event, self.unseen >= UNSEEN_MAX),
        };
        self.stage = next;
        effects
    }
}

impl Stage {
    fn stopping(self, event: &Event) -> (Stage, Vec<Effect>) {
        match (self, event) {
            (_, Event::Disconnected(..)) => (Stage::Over, vec![]),
            (Stage::Settling, Event::Settled) => (Stage::Leaving, vec![Effect::LeavePlaces]),
            (stage, _) => (stage, vec![]),
        }
    }

    fn running(self, event: Event, rests: bool) -> (Stage, Vec<Effect>) {
        use Stage::{Connecting, Ordered, Proving, Reconnecting, Settling, Short, Taking, Waiting};
        match (self, event) {
            (_, Event::Stop) => {
                let why = "the server is about to stop".to_owned();
                (Settling, vec![Effect::BeStrict(why), Effect::Settle])
            }
            (_, Event::Disconnected(refusal, why)) => self.disconnected(refusal, &why),
            (Connecting | Reconnecting | Short, Event::ConnectAgain) => {
                (self, vec![Effect::Connect])
            }
            (Connecting, Event::Streams) | (Waiting, Event::Again) => {
                (Taking, vec![Effect::TakePlaces])
            }
            (Reconnecting, Event::Streams) | (Taking, Event::AllPlaces) => {
                (Proving, vec![Effect::Prove])
            }
            (Short, Event::Streams) => wait(OTHERS.to_owned(), Effect::Pause),
            // The rest is for the connection that confirms, until it is there.
            (Reconnecting, Event::PlaceLost) => (Short, vec![]),
            (Taking, Event::SomePlaces(why)) | (Proving, Event::NotProved(why)) => {
                wait(why, Effect::Pause)
            }
            (Proving, Event::NotSeen(why)) => match rests {
                true => wait(
                    format!("{why}; it is tried again after a while"),
                    Effect::Rest,
                ),
                false => wait(why, Effect::Pause),
            },
            (Proving, Event::Proved) => (Ordered, vec![Effect::Order]),
            (Proving | Ordered, Event::PlaceLost) => wait(OTHERS.to_owned(), Effect::Pause),
            (stage, _) => (stage, vec![]),
        }
    }

    fn disconnected(self, refusal: Refusal, why: &str) -> (Stage, Vec<Effect>) {
        use Stage::{Connecting, Ordered, Proving, Reconnecting, Short};
        let why = format!(
            "commits wait, because the agent's connection that confirms them is not there ({why}); it is tried again. \
             If it is refused, let the superuser connect for replication on the local socket in pg_hba.conf"
        );
        let (next, places) = match (self, refusal) {
            (Reconnecting | Short, Refusal::Crowded) => (Short, Some(Effect::LeaveOne)),
            (Proving | Ordered | Reconnecting, _) => (Reconnecting, None),
            (Short, _) => (Short, None),
            _ => (Connecting, Some(Effect::LeavePlaces)),
        };
        let mut effects = vec![Effect::BeStrict(why)];
        effects.extend(places);
        effects.push(Effect::PauseConnect);
        (next, effects)
    }
}

const OTHERS: &str =
    "the server ended a connection of the agent's, and another receiver may take its place";

/// It is strict, and tried again `then`.
fn wait(why: String, then: Effect) -> (Stage, Vec<Effect>) {
    let effects = vec![Effect::BeStrict(why), Effect::LeavePlaces, then];
    (Stage::Waiting, effects)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Where events lead from the beginning, and what is done last.
    fn after(events: &[Event]) -> (Stage, Vec<Effect>) {
        let mut steps = Steps::default();
        let mut last = vec![];
        for event in events {
            last = steps.step(event.clone());
        }
        (steps.stage(), last)
    }

    fn gone() -> Event {
        Event::Disconnected(Refusal::None, "gone".into())
    }

    fn crowded() -> Event {
        Event::Disconnected(Refusal::Crowded, "full".into())
    }

    fn ordered() -> Vec<Event> {
        vec![Event::Streams, Event::AllPlaces, Event::Proved]
    }

    fn with(event: Event) -> Vec<Event> {
        [ordered(), vec![event]].concat()
    }

    // hazard: ORDER-7
    #[test]
    fn the_log_is_ordered_once_commits_wait_and_all_places_are_taken() {
        assert_eq!(after(&ordered()), (Stage::Ordered, vec![Effect::Order]));
        for short in [
            &[Event::AllPlaces, Event::Proved][..],
            &[Event::Streams, Event::Proved],
            &[Event::Proved],
        ] {
            let (stage, done) = after(short);
            assert_ne!(stage, Stage::Ordered);
            assert!(!done.contains(&Effect::Order), "{short:?}");
        }
    }

    #[test]
    fn log_is_strict_at_once_when_a_condition_is_gone() {
        for lost in [Event::PlaceLost, gone()] {
            let (stage, done) = after(&with(lost));
            assert_ne!(stage, Stage::Ordered);
            assert!(
                matches!(done[0], Effect::BeStrict(_)),
                "before anything else"
            );
        }
        let (_, done) = after(&with(Event::PlaceLost));
        assert!(done.contains(&Effect::LeavePlaces));
    }

    /// Receivers that wait for a place would take them all, and nobody would confirm.
    // hazard: ORDER-17
    #[test]
    fn places_are_kept_until_the_connection_that_confirms_is_back() {
        let (stage, done) = after(&with(gone()));
        assert_eq!(stage, Stage::Reconnecting);
        assert!(!done.contains(&Effect::LeavePlaces) && !done.contains(&Effect::LeaveOne));
        let again = [with(gone()), vec![Event::ConnectAgain]].concat();
        assert_eq!(after(&again).1, vec![Effect::Connect]);
        let back = [again, vec![Event::Streams]].concat();
        assert_eq!(after(&back), (Stage::Proving, vec![Effect::Prove]));
    }

    // hazard: ORDER-17
    #[test]
    fn a_place_is_given_up_for_the_connection_that_confirms_and_then_others_may_be_there() {
        let full = [with(gone()), vec![Event::ConnectAgain, crowded()]].concat();
        let (stage, done) = after(&full);
        assert_eq!(stage, Stage::Short);
        assert!(done.contains(&Effect::LeaveOne) && done.contains(&Effect::PauseConnect));
        let lost = [with(gone()), vec![Event::PlaceLost]].concat();
        assert_eq!(after(&lost), (Stage::Short, vec![]));
        for short in [full, lost] {
            let back = [short, vec![Event::ConnectAgain, Event::Streams]].concat();
            let (stage, done) = after(&back);
            assert_eq!(stage, Stage::Waiting);
            assert!(done.contains(&Effect::LeavePlaces) && !done.contains(&Effect::Prove));
        }
        // With no place in hand there is none to give up.
        let (stage, done) = after(&[crowded()]);
        assert_eq!(stage, Stage::Connecting);
        assert!(!done.contains(&Effect::LeaveOne));
    }

    /// Each proof holds all commits back for as long as it sees nothing.
    // hazard: ORDER-20
    #[test]
    fn proofs_that_see_nothing_are_given_a_rest() {
        let unseen = || {
            vec![
                Event::AllPlaces,
                Event::NotSeen("dark".into()),
                Event::Again,
            ]
        };
        let times = |n: u8| {
            let tries = (0..n).flat_map(|_| unseen());
            let mut all: Vec<_> = std::iter::once(Event::Streams).chain(tries).collect();
            all.pop();
            after(&all).1
        };
        assert!(times(UNSEEN_MAX - 1).contains(&Effect::Pause));
        assert!(times(UNSEEN_MAX).contains(&Effect::Rest));
        assert!(
            times(UNSEEN_MAX + 1).contains(&Effect::Rest),
            "until one is seen"
        );
        let mut steps = Steps::default();
        steps.step(Event::Streams);
        for event in (0..UNSEEN_MAX).flat_map(|_| unseen()) {
            steps.step(event);
        }
        for event in [
            Event::AllPlaces,
            Event::Proved,
            Event::PlaceLost,
            Event::Again,
        ] {
            steps.step(event);
        }
        steps.step(Event::AllPlaces);
        let done = steps.step(Event::NotSeen("dark".into()));
        assert!(done.contains(&Effect::Pause), "one was seen since");
    }

    #[test]
    fn while_others_are_connected_it_stays_strict_and_is_tried_again() {
        let refused = Event::SomePlaces("others".into());
        let (stage, done) = after(&[Event::Streams, refused.clone()]);
        assert_eq!(stage, Stage::Waiting);
        assert!(
            done.contains(&Effect::LeavePlaces),
            "others may come and go"
        );
        let (stage, done) = after(&[Event::Streams, refused, Event::Again]);
        assert_eq!((stage, done), (Stage::Taking, vec![Effect::TakePlaces]));
    }

    #[test]
    fn a_lost_connection_is_made_again_from_the_beginning() {
        let early = [Event::Streams, gone(), Event::ConnectAgain];
        let (stage, done) = after(&early);
        assert_eq!((stage, done), (Stage::Connecting, vec![Effect::Connect]));
    }

    // hazard: ORDER-15
    #[test]
    fn before_a_stop_what_was_answered_is_durable_and_then_others_may_connect() {
        let (stage, done) = after(&with(Event::Stop));
        assert_eq!(stage, Stage::Settling);
        assert!(matches!(done[0], Effect::BeStrict(_)));
        assert!(done.contains(&Effect::Settle) && !done.contains(&Effect::LeavePlaces));
        let settled = [ordered(), vec![Event::Stop, Event::Settled]].concat();
        let left = after(&settled);
        assert_eq!(left, (Stage::Leaving, vec![Effect::LeavePlaces]));
        // The connection that confirms stays until the server ends it, and is not made again.
        let ended = [settled, vec![gone()]].concat();
        assert_eq!(after(&ended), (Stage::Over, vec![]));
    }

    #[test]
    fn nothing_orders_the_log_once_it_is_to_stop() {
        let late = [Event::Streams, Event::AllPlaces, Event::Stop];
        for event in [
            Event::Proved,
            Event::AllPlaces,
            Event::Streams,
            Event::Again,
        ] {
            let (stage, done) = after(&[&late[..], &[event]].concat());
            assert_eq!((stage, done), (Stage::Settling, vec![]));
        }
    }
}
