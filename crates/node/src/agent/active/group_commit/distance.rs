//! Whether zones are so far that commits should wait for each other (pure).
//!
//! Invariant: calm. Between near and far it takes a clear difference that lasts, because each change is written
//! into the shared configuration. What is not measured is not near.

use std::time::Duration;

use dax::storage::ReplicaStatus;

/// Zones that are farther are far ...
const FAR: Duration = Duration::from_millis(10);
/// ... until they are nearer than this.
const NEAR: Duration = Duration::from_millis(8);
/// A change must last so long: a zone that restarts is none.
const LASTS: Duration = Duration::from_secs(15);

/// The round trip that a flush takes to `sync_replicas` of these; nothing if fewer have been measured or are there.
pub(super) fn round_trip(replicas: &[ReplicaStatus], sync_replicas: u8) -> Option<Duration> {
    let there = replicas.iter().filter(|replica| replica.up);
    let mut round_trips: Vec<Duration> = there.filter_map(|r| r.round_trip).collect();
    round_trips.sort();
    let slowest_needed = usize::from(sync_replicas).saturating_sub(1);
    round_trips.get(slowest_needed).copied()
}

/// What is known of it.
#[derive(Debug, Default)]
pub(super) struct Distance {
    /// What counts: near, or as far as that.
    known: Option<Option<Duration>>,
    /// How long it has been otherwise.
    otherwise: Duration,
}

impl Distance {
    /// It is `round_trip` now; `passed` since the last time.
    pub(super) fn see(&mut self, round_trip: Option<Duration>, passed: Duration) {
        let Some(round_trip) = round_trip else { return };
        let was_far = self.far().is_some();
        let is_far = round_trip >= if was_far { NEAR } else { FAR };
        self.otherwise = match is_far == was_far {
            true => Duration::ZERO,
            false => self.otherwise + passed,
        };
        if !self.is_known() || is_far == was_far || self.otherwise >= LASTS {
            self.known = Some(is_far.then_some(round_trip));
            self.otherwise = Duration::ZERO;
        }
    }

    /// True if it was ever measured.
    pub(super) fn is_known(&self) -> bool {
        self.known.is_some()
    }

    /// The round trip, if it is far.
    pub(super) fn far(&self) -> Option<Duration> {
        self.known.flatten()
    }
}

#[cfg(test)]
mod tests {
    use dax::ids::{ReplicaId, ZoneId};

    use super::*;

    fn replica(round_trip_ms: Option<u64>, up: bool) -> ReplicaStatus {
        ReplicaStatus {
            replica: ReplicaId(0),
            zone: ZoneId(0),
            address: String::new(),
            store: None,
            up,
            round_trip: round_trip_ms.map(Duration::from_millis),
            pending_bytes: 0,
            missed_blocks: 0,
            scrub_wanted: false,
            rebuilding: false,
            reads: None,
            full: false,
            trouble: None,
        }
    }

    fn seen_ms(round_trips_ms: &[Option<u64>]) -> Option<u128> {
        let replicas: Vec<_> = round_trips_ms.iter().map(|r| replica(*r, true)).collect();
        round_trip(&replicas, 2).map(|r| r.as_millis())
    }

    #[test]
    fn the_second_nearest_of_three_decides() {
        assert_eq!(seen_ms(&[Some(75), Some(0), Some(36)]), Some(36));
        assert_eq!(seen_ms(&[Some(0), None, Some(300)]), Some(300));
        assert_eq!(seen_ms(&[Some(0), None, None]), None);
        assert_eq!(seen_ms(&[None, None, None]), None);
    }

    #[test]
    fn absent_zone_does_not_count() {
        let replicas = [(Some(0), true), (Some(1), false), (Some(40), true)];
        let replicas = replicas.map(|(round_trip, up)| replica(round_trip, up));
        assert_eq!(round_trip(&replicas, 2), Some(Duration::from_millis(40)));
        assert_eq!(round_trip(&replicas, 3), None);
    }

    #[test]
    fn distance_changes_when_it_is_clear_and_lasts() {
        let mut distance = Distance::default();
        let mut after = |seconds: u32, milliseconds: Option<u64>| {
            for _ in 0..seconds {
                let round_trip = milliseconds.map(Duration::from_millis);
                distance.see(round_trip, Duration::from_secs(1));
            }
            distance.far().map(|far| far.as_millis())
        };
        assert_eq!(after(1, Some(9)), None);
        assert_eq!(after(14, Some(10)), None);
        assert_eq!(after(1, Some(9)), None);
        assert_eq!(after(14, Some(12)), None, "it began anew");
        assert_eq!(after(1, Some(12)), Some(12));
        assert_eq!(after(1, Some(30)), Some(30), "how far counts at once");
        assert_eq!(after(100, Some(8)), Some(8));
        assert_eq!(after(14, Some(1)), Some(8));
        assert_eq!(after(100, None), Some(8));
        assert_eq!(after(1, Some(1)), None);
    }
}
