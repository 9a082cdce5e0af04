//! How long commits wait for one another where zones are far away.
//!
//! PostgreSQL flushes its log one flush after the other, and each takes a round trip to the zones that make
//! it durable. Clients then come in two groups, each waiting for the other's flush as well as for its own; if
//! the one who flushes waits a moment for those whose commits were just acknowledged, they are one group.
//! Within a data centre the wait gains nothing.

use std::collections::BTreeMap;
use std::time::Duration;

use dax::storage::ReplicaStatus;

/// Nearer zones need no wait.
const FAR: Duration = Duration::from_millis(10);
/// A longer wait costs more than it gains.
const DELAY_MAX: Duration = Duration::from_millis(10);
/// This part of a round trip: a transaction takes a few milliseconds.
const PART: u32 = 8;
/// So many others must be at work.
const SIBLINGS: u32 = 3;

/// PostgreSQL's parameters for a node that sees the replicas so, of which `sync_replicas` make a write
/// durable; none if they are near, or nobody has measured yet.
pub(super) fn suitable(replicas: &[ReplicaStatus], sync_replicas: u8) -> BTreeMap<String, String> {
    let mut round_trips: Vec<Duration> = replicas.iter().filter_map(|r| r.round_trip).collect();
    round_trips.sort();
    let slowest_needed = usize::from(sync_replicas).saturating_sub(1);
    match round_trips.get(slowest_needed) {
        Some(far) if *far >= FAR => {
            let delay = (*far / PART).min(DELAY_MAX).as_micros();
            let parameters = [
                ("commit_delay", delay.to_string()),
                ("commit_siblings", SIBLINGS.to_string()),
            ];
            parameters.map(|(name, value)| (name.into(), value)).into()
        }
        _ => BTreeMap::new(),
    }
}

#[cfg(test)]
mod tests {
    use dax::ids::{ReplicaId, ZoneId};

    use super::*;

    fn seen(round_trips_ms: &[Option<u64>]) -> BTreeMap<String, String> {
        let replica = |round_trip: &Option<u64>| ReplicaStatus {
            replica: ReplicaId(0),
            zone: ZoneId(0),
            address: String::new(),
            store: None,
            up: true,
            round_trip: round_trip.map(Duration::from_millis),
            pending_bytes: 0,
            missed_blocks: 0,
            scrub_wanted: false,
            rebuilding: false,
            trouble: None,
        };
        let replicas: Vec<_> = round_trips_ms.iter().map(replica).collect();
        suitable(&replicas, 2)
    }

    #[test]
    fn the_second_nearest_of_three_decides() {
        let far = seen(&[Some(75), Some(0), Some(36)]);
        assert_eq!(far["commit_delay"], "4500");
        assert_eq!(far["commit_siblings"], "3");
        assert!(seen(&[Some(0), Some(1), Some(300)]).is_empty());
        assert_eq!(seen(&[Some(0), None, Some(300)])["commit_delay"], "10000");
    }

    #[test]
    fn what_nobody_measured_changes_nothing() {
        assert!(seen(&[None, None, None]).is_empty());
        assert!(seen(&[Some(0), None, None]).is_empty());
    }
}
