//! What was counted of all sessions.

use std::sync::atomic::{AtomicU64, Ordering};

use crate::core::session::Counts;

/// The counts in their order here, with the names and meanings that monitoring sees.
pub const COUNTS: [(&str, &str); 8] = [
    (
        "units_total",
        "Queries and extended-protocol batches answered.",
    ),
    (
        "units_on_standby_total",
        "Those of them that a standby answered.",
    ),
    (
        "refused_by_standby_total",
        "Statements that a standby could not run, and the active ran.",
    ),
    (
        "replayed_total",
        "Transactions that went on after the loss of their server, on another.",
    ),
    (
        "not_replayed_total",
        "Transactions that were lost with their server (40001).",
    ),
    ("in_doubt_total", "Commits whose answer was lost."),
    (
        "in_doubt_committed_total",
        "Those of them that turned out to have committed.",
    ),
    (
        "in_doubt_unknown_total",
        "Those of them whose outcome could not be found out (08007).",
    ),
];

/// Sums over all sessions.
#[derive(Default)]
pub struct Totals([AtomicU64; COUNTS.len()]);

fn list(counts: &Counts) -> [u64; COUNTS.len()] {
    [
        counts.units,
        counts.on_standby,
        counts.refused_by_standby,
        counts.replayed,
        counts.not_replayed,
        counts.in_doubt,
        counts.in_doubt_committed,
        counts.in_doubt_unknown,
    ]
}

impl Totals {
    /// A session's counts went from `before` to `now`.
    pub fn add(&self, before: &Counts, now: &Counts) {
        let pairs = list(before).into_iter().zip(list(now));
        for (total, (before, now)) in self.0.iter().zip(pairs) {
            if now > before {
                total.fetch_add(now - before, Ordering::Relaxed);
            }
        }
    }

    /// The sums.
    pub fn counts(&self) -> Counts {
        let [
            units,
            on_standby,
            refused_by_standby,
            replayed,
            not_replayed,
            in_doubt,
            in_doubt_committed,
            in_doubt_unknown,
        ] = self.read();
        Counts {
            units,
            on_standby,
            refused_by_standby,
            replayed,
            not_replayed,
            in_doubt,
            in_doubt_committed,
            in_doubt_unknown,
        }
    }

    /// The sums, in the order of [`COUNTS`].
    pub fn read(&self) -> [u64; COUNTS.len()] {
        std::array::from_fn(|at| self.0[at].load(Ordering::Relaxed))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_is_new_counts() {
        let totals = Totals::default();
        let one = Counts {
            units: 3,
            replayed: 1,
            ..Counts::default()
        };
        let two = Counts { units: 5, ..one };
        totals.add(&Counts::default(), &one);
        totals.add(&one, &two);
        assert_eq!(totals.read(), [5, 0, 0, 1, 0, 0, 0, 0]);
        assert_eq!(totals.counts(), two);
    }
}
