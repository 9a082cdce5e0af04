//! How long a server that commits wait at is given before it is made an end of: one that does not let the agent confirm
//! them, and one whose log the agent cannot follow. Pure.
//!
//! Invariant: a connection that was lost is no refusal, and one attempt that fails is no reason: a server that works is
//! not restarted for it.

use std::time::Duration;

use pgdata::confirm::Refusal;
use tokio::time::Instant;
use volume::lsn::Lsn;

/// A server that refuses the agent for so long, so many times, is started again for a strict log.
const REFUSED_FOR: Duration = Duration::from_secs(5);
const REFUSED_TIMES: u32 = 3;
/// So is one to which no connection is made for so long, whatever the reason.
const AWAY_FOR: Duration = Duration::from_secs(30);
/// A log that is not followed for so long never will be.
const UNFOLLOWED_FOR: Duration = Duration::from_secs(10);
/// Between two attempts to connect; doubles up to the second. Commits wait meanwhile.
const CONNECT_MIN: Duration = Duration::from_millis(50);
const CONNECT_MAX: Duration = Duration::from_millis(500);

/// With the connection that confirms. See the module.
#[derive(Debug, Default)]
pub(super) struct Patience {
    /// The first attempt that failed, since there was a stream.
    failed_since: Option<Instant>,
    /// The first that was refused, and how many were.
    refused_since: Option<Instant>,
    refused: u32,
    failed: u32,
}

impl Patience {
    /// The stream stands: all is well.
    pub(super) fn streams(&mut self) {
        *self = Patience::default();
    }

    /// There is no connection; the first time a stream was lost, or never stood. Whether to wait no longer.
    pub(super) fn fails(&mut self, refusal: Refusal, now: Instant) -> bool {
        let lasts = |since: Instant, limit| now.duration_since(since) >= limit;
        let failed_since = *self.failed_since.get_or_insert(now);
        self.failed += 1;
        if refusal == Refusal::Forbidden {
            self.refused_since.get_or_insert(now);
            self.refused += 1;
        }
        let is_refused = self.refused >= REFUSED_TIMES
            && self
                .refused_since
                .is_some_and(|since| lasts(since, REFUSED_FOR));
        let is_away = self.failed >= REFUSED_TIMES && lasts(failed_since, AWAY_FOR);
        is_refused || is_away
    }

    /// How long to wait before the next attempt.
    pub(super) fn pause(&self) -> Duration {
        let doubled = CONNECT_MIN * (1 << self.failed.saturating_sub(1).min(8));
        doubled.min(CONNECT_MAX)
    }
}

/// With a log that is not followed. See the module.
#[derive(Debug, Default)]
pub(super) struct Following {
    stands: Option<(Lsn, Instant)>,
}

impl Following {
    /// The log cannot be followed at `stuck` now, if anywhere. Whether it never will be.
    pub(super) fn look(&mut self, stuck: Option<Lsn>, now: Instant) -> bool {
        self.stands = match (stuck, self.stands) {
            (Some(at), Some((stood, since))) if at == stood => Some((stood, since)),
            (stuck, _) => stuck.map(|at| (at, now)),
        };
        self.stands
            .is_some_and(|(_, since)| now.duration_since(since) >= UNFOLLOWED_FOR)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn secs(secs: u64) -> Duration {
        Duration::from_secs(secs)
    }

    // hazard: ORDER-13
    #[test]
    fn a_server_that_refuses_the_agent_for_long_is_given_up() {
        let (mut patience, begin) = (Patience::default(), Instant::now());
        assert!(!patience.fails(Refusal::None, begin), "lost");
        assert!(
            !patience.fails(Refusal::Forbidden, begin + secs(10)),
            "the first"
        );
        assert!(
            !patience.fails(Refusal::Forbidden, begin + secs(16)),
            "two are few"
        );
        assert!(patience.fails(Refusal::Forbidden, begin + secs(17)));
        patience.streams();
        assert!(!patience.fails(Refusal::Forbidden, begin + secs(30)));
    }

    /// A single failure behind a long pause made an end of servers that were well.
    #[test]
    fn failures_without_a_refusal_have_much_more_time() {
        let (mut patience, begin) = (Patience::default(), Instant::now());
        for second in [0, 10, 20, 29] {
            for refusal in [Refusal::None, Refusal::Crowded] {
                assert!(!patience.fails(refusal, begin + secs(second)), "{second}");
            }
        }
        assert!(patience.fails(Refusal::Crowded, begin + AWAY_FOR));
        let mut patience = Patience::default();
        assert!(!patience.fails(Refusal::None, begin));
        assert!(
            !patience.fails(Refusal::None, begin + secs(3600)),
            "only the second"
        );
    }

    /// Whatever else was tried before: commits wait.
    // hazard: ORDER-18
    #[test]
    fn the_connection_is_tried_again_soon_and_soonest_after_it_stood() {
        let (mut patience, now) = (Patience::default(), Instant::now());
        patience.fails(Refusal::None, now);
        assert_eq!(patience.pause(), CONNECT_MIN);
        for _ in 0..100 {
            patience.fails(Refusal::None, now);
        }
        assert_eq!(patience.pause(), CONNECT_MAX);
        patience.streams();
        patience.fails(Refusal::None, now);
        assert_eq!(patience.pause(), CONNECT_MIN);
    }

    #[test]
    fn a_log_that_is_stuck_at_one_position_for_long_is_given_up() {
        let (mut following, begin) = (Following::default(), Instant::now());
        let mut look =
            |stuck: Option<u64>, second| following.look(stuck.map(Lsn), begin + secs(second));
        assert!(!look(Some(7), 0) && !look(Some(7), 9));
        assert!(!look(None, 10), "it goes on");
        assert!(!look(Some(7), 11) && !look(Some(8), 20), "it has gone on");
        assert!(!look(Some(8), 29) && look(Some(8), 30));
    }
}
