//! What was counted of all sessions.

use std::sync::atomic::{AtomicU64, Ordering};

use crate::core::session::{Counts, REASONS};

/// The counts in their order here, with the names and meanings that monitoring sees.
pub const COUNTS: [(&str, &str); 7] = [
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

/// The name and the meaning of the count of transactions that were lost with their server, one for each of [`REASONS`].
pub const NOT_REPLAYED: (&str, &str) = (
    "not_replayed_total",
    "Transactions that were lost with their server (40001).",
);

/// Sums over all sessions.
#[derive(Default)]
pub struct Totals {
    counts: [AtomicU64; COUNTS.len()],
    not_replayed: [AtomicU64; REASONS.len()],
}

fn add(totals: &[AtomicU64], before: &[u64], now: &[u64]) {
    for (total, (before, now)) in totals.iter().zip(before.iter().zip(now)) {
        if now > before {
            total.fetch_add(now - before, Ordering::Relaxed);
        }
    }
}

fn list(counts: &Counts) -> [u64; COUNTS.len()] {
    [
        counts.batches,
        counts.on_standby,
        counts.refused_by_standby,
        counts.replayed,
        counts.in_doubt,
        counts.in_doubt_committed,
        counts.in_doubt_unknown,
    ]
}

impl Totals {
    /// A session's counts went from `before` to `now`.
    pub fn add(&self, before: &Counts, now: &Counts) {
        add(&self.counts, &list(before), &list(now));
        add(&self.not_replayed, &before.not_replayed, &now.not_replayed);
    }

    /// The sums.
    pub fn counts(&self) -> Counts {
        let [
            batches,
            on_standby,
            refused_by_standby,
            replayed,
            in_doubt,
            in_doubt_committed,
            in_doubt_unknown,
        ] = self.read();
        Counts {
            batches,
            // Those of pools have these.
            transactions: 0,
            on_standby,
            refused_by_standby,
            replayed,
            not_replayed: self.not_replayed(),
            in_doubt,
            in_doubt_committed,
            in_doubt_unknown,
        }
    }

    /// The sums, in the order of [`COUNTS`].
    pub fn read(&self) -> [u64; COUNTS.len()] {
        std::array::from_fn(|at| self.counts[at].load(Ordering::Relaxed))
    }

    /// Transactions that were lost with their server, in the order of [`REASONS`].
    pub fn not_replayed(&self) -> [u64; REASONS.len()] {
        std::array::from_fn(|at| self.not_replayed[at].load(Ordering::Relaxed))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn new_counts_alone_are_added() {
        let totals = Totals::default();
        let mut not_replayed = [0; REASONS.len()];
        not_replayed[1] = 2;
        let one = Counts {
            batches: 3,
            replayed: 1,
            not_replayed,
            ..Counts::default()
        };
        let two = Counts { batches: 5, ..one };
        totals.add(&Counts::default(), &one);
        totals.add(&one, &two);
        assert_eq!(totals.read(), [5, 0, 0, 1, 0, 0, 0]);
        assert_eq!(totals.counts(), two);
    }
}
