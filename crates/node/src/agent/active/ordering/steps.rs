//! When the log of a running server may be ordered, from what happens to the agent's connections there. Pure.
//!
//! ```text
//!                       ┌────────────────── disconnected ───────────────────┐
//!                       ▼                                                    │
//!   connecting ──streams──▶ taking places ──all──▶ proving ──proved──▶ ordered
//!                               ▲     │ some are others'   │ not proved    │ a place is lost
//!                               └─────┴──── waiting ◀──────┴───────────────┘
//!
//!   any of them ──stop──▶ settling ──what was answered is durable──▶ confirming on, until the server ends
//! ```
//!
//! Invariant: the log is ordered only while commits are known to wait for the connection that confirms, and every place
//! for a replication connection is the agent's.

/// How far it is.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub(super) enum Stage {
    /// The connection that confirms is being made.
    #[default]
    Connecting,
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
    /// The connection that confirms is gone, and why.
    Disconnected(String),
    /// All places are the agent's.
    AllPlaces,
    /// They are not, and why.
    SomePlaces(String),
    /// A commit waited.
    Proved,
    /// None did, or something else is in the way.
    NotProved(String),
    /// The server ended a connection that took a place.
    PlaceLost,
    /// It is time to try again.
    Again,
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
    /// Send `Again` after a pause.
    Pause,
    /// Take the other places.
    TakePlaces,
    /// Give them up, as soon as what was answered early is durable.
    LeavePlaces,
    /// See whether a commit waits.
    Prove,
    /// Let syncs be answered early.
    Order,
    /// Let none be, and say why.
    BeStrict(String),
    /// Wait until what was answered early is durable.
    Settle,
}

impl Stage {
    /// What follows from an event; one that comes too late changes nothing.
    pub(super) fn step(self, event: Event) -> (Stage, Vec<Effect>) {
        use Stage::{Connecting, Leaving, Ordered, Over, Proving, Settling, Taking, Waiting};
        let strict =
            |why: String, then: Effect| vec![Effect::BeStrict(why), Effect::LeavePlaces, then];
        match (self, event) {
            (Settling | Leaving | Over, Event::Disconnected(_)) => (Over, vec![]),
            (Settling, Event::Settled) => (Leaving, vec![Effect::LeavePlaces]),
            (Settling | Leaving | Over, _) => (self, vec![]),
            (_, Event::Stop) => {
                let why = "the server is about to stop".to_owned();
                (Settling, vec![Effect::BeStrict(why), Effect::Settle])
            }
            (_, Event::Disconnected(why)) => {
                let why = format!(
                    "commits wait, because the agent's connection that confirms them is not there ({why}); it is \
                     tried again. If it is refused, let the superuser connect for replication on the local socket \
                     in pg_hba.conf"
                );
                (Connecting, strict(why, Effect::Pause))
            }
            (Connecting, Event::Again) => (Connecting, vec![Effect::Connect]),
            (Connecting, Event::Streams) | (Waiting, Event::Again) => {
                (Taking, vec![Effect::TakePlaces])
            }
            (Taking, Event::AllPlaces) => (Proving, vec![Effect::Prove]),
            (Taking, Event::SomePlaces(why)) | (Proving, Event::NotProved(why)) => {
                (Waiting, strict(why, Effect::Pause))
            }
            (Proving, Event::Proved) => (Ordered, vec![Effect::Order]),
            (Proving | Ordered, Event::PlaceLost) => {
                let why = "the server ended a connection of the agent's, and another receiver may take its place";
                (Waiting, strict(why.to_owned(), Effect::Pause))
            }
            (stage, _) => (stage, vec![]),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Where events lead from the beginning, and what is done last.
    fn after(events: &[Event]) -> (Stage, Vec<Effect>) {
        let begin = (Stage::default(), vec![]);
        events
            .iter()
            .fold(begin, |(stage, _), event| stage.step(event.clone()))
    }

    fn ordered() -> Vec<Event> {
        vec![Event::Streams, Event::AllPlaces, Event::Proved]
    }

    fn with(event: Event) -> Vec<Event> {
        [ordered(), vec![event]].concat()
    }

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
    fn it_is_strict_at_once_when_anything_of_that_is_gone() {
        for lost in [Event::PlaceLost, Event::Disconnected("x".into())] {
            let (stage, done) = after(&with(lost));
            assert_ne!(stage, Stage::Ordered);
            assert!(
                matches!(done[0], Effect::BeStrict(_)),
                "before anything else"
            );
            assert!(done.contains(&Effect::LeavePlaces));
        }
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
        let lost = Event::Disconnected("gone".into());
        let (stage, done) = after(&[ordered(), vec![lost, Event::Again]].concat());
        assert_eq!((stage, done), (Stage::Connecting, vec![Effect::Connect]));
    }

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
        let ended = [settled, vec![Event::Disconnected("ended".into())]].concat();
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
