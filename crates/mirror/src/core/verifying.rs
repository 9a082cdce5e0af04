//! Comparisons of both members: their results, and when the next one is due.
//!
//! ```text
//!   primary with a standby ── the interval, or 10 min ──▶ due ── compared ──▶ due after the interval
//!                                                         │  ▲
//!                                       cannot be done now ▼  │ a minute later, and later each time
//!                                                         waits
//! ```
//!
//! Pure: the time is an argument, in milliseconds since the manager began.

use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize};

/// The first comparison is this long after the manager became primary and had a standby, or the interval if that is shorter.
const FIRST_MS: u64 = 600_000;
/// Pause after a comparison that could not be done. It doubles each time.
const AGAIN_MS: u64 = 60_000;
/// How often it doubles at most.
const DOUBLINGS: u32 = 4;
/// Snapshots that must have a difference until it counts.
const CONFIRMED_BY: usize = 2;
/// Number of differences that are remembered.
const REMEMBERED: usize = 5;

/// Result of a comparison.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Verdict {
    /// The members are equal.
    pub equal: bool,
    /// The last transaction that both have.
    pub transaction: u64,
    /// Tables that were compared.
    pub tables: u64,
    /// Rows that the primary's member has in them.
    pub rows: u64,
    /// Differences.
    pub differences: Vec<String>,
    /// Time for which writers were held, in milliseconds.
    pub held_ms: u64,
}

/// The last comparison, as `status` shows it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Verified {
    /// Its end, in milliseconds of the Unix epoch.
    pub unix_ms: u64,
    /// The members were equal.
    pub equal: bool,
    /// The last transaction that both had.
    pub transaction: u64,
    /// Tables that were compared.
    pub tables: u64,
    /// Rows that the primary's member had in them.
    pub rows: u64,
    /// The first of the differences.
    pub differences: Vec<String>,
}

impl Verified {
    /// Remembers a result.
    pub fn new(verdict: &Verdict, unix_ms: u64) -> Verified {
        let more = verdict.differences.len().saturating_sub(REMEMBERED);
        let first = verdict.differences.iter().take(REMEMBERED);
        let mut differences: Vec<String> = first.cloned().collect();
        if more > 0 {
            differences.push(format!("and {more} more"));
        }
        Verified {
            unix_ms,
            equal: verdict.equal,
            transaction: verdict.transaction,
            tables: verdict.tables,
            rows: verdict.rows,
            differences,
        }
    }
}

/// Differences that snapshots have had, one snapshot after the other, by the thing that differs.
#[derive(Debug, Default)]
pub struct Findings(BTreeMap<String, (usize, String)>);

impl Findings {
    /// A later snapshot has these differences. Nobody could look at what was `given_up`.
    pub fn look(&mut self, differences: BTreeMap<String, String>, given_up: &BTreeSet<String>) {
        let before = std::mem::take(&mut self.0);
        let times = |thing: &String| before.get(thing).map_or(0, |(times, _)| *times);
        let found = differences.into_iter();
        self.0 = found
            .map(|(thing, text)| (thing.clone(), (times(&thing) + 1, text)))
            .collect();
        let unknown = before
            .into_iter()
            .filter(|(thing, _)| given_up.contains(thing));
        self.0.extend(unknown);
    }

    /// Differences that count; none if the members are equal.
    ///
    /// # Errors
    /// Differences that were there once, and that nobody has looked at again: they may be gone.
    pub fn verdict(self) -> Result<Vec<String>, Vec<String>> {
        let all = self.0.into_values();
        let (counts, once): (Vec<_>, Vec<_>) = all.partition(|(times, _)| *times >= CONFIRMED_BY);
        let texts = |found: Vec<(usize, String)>| found.into_iter().map(|(_, text)| text).collect();
        match counts.is_empty() && !once.is_empty() {
            true => Err(texts(once)),
            false => Ok(texts(counts)),
        }
    }
}

/// Time of the next comparison.
#[derive(Debug, Default)]
pub struct Schedule {
    due_ms: Option<u64>,
    last_ms: Option<u64>,
    /// Comparisons in a row that could not be done, as far as they make the pause longer.
    postponed: u32,
}

impl Schedule {
    /// True if the members are to be compared now. An interval of 0 means never.
    pub fn is_due(
        &mut self,
        now_ms: u64,
        every_ms: u64,
        is_primary: bool,
        has_standby: bool,
    ) -> bool {
        if every_ms == 0 || !is_primary {
            self.due_ms = None;
            return false;
        }
        match self.due_ms {
            Some(due_ms) => now_ms >= due_ms,
            None if has_standby => {
                let first_ms = now_ms.saturating_add(every_ms.min(FIRST_MS));
                let next_ms = self.last_ms.map_or(0, |last| last.saturating_add(every_ms));
                self.due_ms = Some(first_ms.max(next_ms));
                false
            }
            None => false,
        }
    }

    /// The members were compared, by schedule or by a command.
    pub fn compared(&mut self, now_ms: u64, every_ms: u64) {
        self.last_ms = Some(now_ms);
        self.postponed = 0;
        self.due_ms = self.due_ms.map(|_| now_ms.saturating_add(every_ms));
    }

    /// The members could not be compared.
    pub fn postpone(&mut self, now_ms: u64, every_ms: u64) {
        let pause_ms = AGAIN_MS << self.postponed;
        self.postponed = DOUBLINGS.min(self.postponed + 1);
        let again_ms = now_ms.saturating_add(pause_ms.min(every_ms));
        self.due_ms = self.due_ms.map(|_| again_ms);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const DAY: u64 = 24 * 3600 * 1000;
    const HOUR: u64 = 3600 * 1000;
    const MINUTE: u64 = 60_000;

    /// The times, in minutes, at which a primary with a standby compares that takes no time for it.
    fn times(schedule: &mut Schedule, every_ms: u64, minutes: std::ops::Range<u64>) -> Vec<u64> {
        let due = minutes.filter(|minute| {
            let now_ms = minute * MINUTE;
            let is_due = schedule.is_due(now_ms, every_ms, true, true);
            if is_due {
                schedule.compared(now_ms, every_ms);
            }
            is_due
        });
        due.collect()
    }

    #[test]
    fn a_primary_with_a_standby_compares_at_the_interval_and_not_at_once() {
        let mut schedule = Schedule::default();
        let wanted = [10, 10 + 24 * 60, 10 + 48 * 60];
        assert_eq!(times(&mut schedule, DAY, 0..3 * 24 * 60), wanted);
        // An interval that is shorter than the first wait.
        let mut schedule = Schedule::default();
        assert_eq!(times(&mut schedule, 5 * MINUTE, 0..21), [5, 10, 15, 20]);
        assert!(times(&mut Schedule::default(), 0, 0..3 * 24 * 60).is_empty());
    }

    #[test]
    fn nothing_is_due_without_a_standby_that_was_there_once_or_at_a_standby() {
        let mut schedule = Schedule::default();
        assert!((0..3000).all(|minute| !schedule.is_due(minute * MINUTE, DAY, true, false)));
        assert!((0..3000).all(|minute| !schedule.is_due(minute * MINUTE, DAY, false, false)));
        // It counts from the standby's appearance.
        assert!(!schedule.is_due(3000 * MINUTE, DAY, true, true));
        assert!(!schedule.is_due(3009 * MINUTE, DAY, true, true));
        // A standby that is lost before it is time is missed at that time.
        assert!(schedule.is_due(3010 * MINUTE, DAY, true, false));
    }

    #[test]
    fn a_comparison_that_cannot_be_done_is_tried_again_a_minute_later() {
        let mut schedule = Schedule::default();
        assert!(!schedule.is_due(0, DAY, true, true));
        assert!(schedule.is_due(10 * MINUTE, DAY, true, true));
        schedule.postpone(12 * MINUTE, DAY);
        assert!(!schedule.is_due(13 * MINUTE - 1, DAY, true, true));
        assert!(schedule.is_due(13 * MINUTE, DAY, true, true));
        schedule.compared(15 * MINUTE, DAY);
        assert!(!schedule.is_due(DAY + 15 * MINUTE - 1, DAY, true, true));
        assert!(schedule.is_due(DAY + 15 * MINUTE, DAY, true, true));
        // With a transaction that is open for a day the pauses grow, up to a quarter of an hour.
        for minutes in [1, 2, 4, 8, 16, 16] {
            schedule.postpone(2 * DAY, DAY);
            assert!(!schedule.is_due(2 * DAY + minutes * MINUTE - 1, DAY, true, true));
            assert!(schedule.is_due(2 * DAY + minutes * MINUTE, DAY, true, true));
        }
        // Not more seldom than by the interval.
        schedule.postpone(0, 500);
        assert!(schedule.is_due(500, 500, true, true));
    }

    #[test]
    fn a_command_counts_as_a_comparison() {
        let mut schedule = Schedule::default();
        assert!(!schedule.is_due(0, DAY, true, true));
        schedule.compared(9 * MINUTE, DAY);
        assert!(!schedule.is_due(DAY + 8 * MINUTE, DAY, true, true));
        assert!(schedule.is_due(DAY + 9 * MINUTE, DAY, true, true));
    }

    #[test]
    fn a_manager_that_is_primary_again_counts_from_its_last_comparison() {
        let mut schedule = Schedule::default();
        assert!(!schedule.is_due(0, DAY, true, true));
        assert!(schedule.is_due(10 * MINUTE, DAY, true, true));
        schedule.compared(10 * MINUTE, DAY);
        assert!(!schedule.is_due(HOUR, DAY, false, false));
        assert!(!schedule.is_due(2 * HOUR, DAY, true, true));
        assert!(!schedule.is_due(DAY, DAY, true, true));
        assert!(schedule.is_due(DAY + 10 * MINUTE, DAY, true, true));
        // After days as a standby it does not compare at once.
        schedule.compared(DAY + 10 * MINUTE, DAY);
        assert!(!schedule.is_due(5 * DAY, DAY, false, false));
        assert!(!schedule.is_due(6 * DAY, DAY, true, true));
        assert!(!schedule.is_due(6 * DAY + 9 * MINUTE, DAY, true, true));
        assert!(schedule.is_due(6 * DAY + 10 * MINUTE, DAY, true, true));
    }

    fn found(things: &[&str]) -> BTreeMap<String, String> {
        let differs = things.iter().map(|thing| (*thing).to_owned());
        differs
            .map(|thing| (thing.clone(), format!("{thing} differs")))
            .collect()
    }

    /// A difference of one snapshot was published, and an alarm raised, if the next snapshot could not be taken in time. TRUNCATE is
    /// visible in older snapshots, on one member before the other.
    #[test]
    fn a_difference_counts_once_a_later_snapshot_has_it() {
        let (nothing, mut findings) = (BTreeSet::new(), Findings::default());
        findings.look(found(&["a", "b"]), &nothing);
        findings.look(found(&["b"]), &nothing);
        assert_eq!(findings.verdict(), Ok(vec!["b differs".to_owned()]));
        let mut findings = Findings::default();
        findings.look(found(&["a"]), &nothing);
        assert_eq!(findings.verdict(), Err(vec!["a differs".to_owned()]));
        let mut findings = Findings::default();
        findings.look(found(&["a"]), &nothing);
        findings.look(found(&[]), &nothing);
        assert_eq!(findings.verdict(), Ok(vec![]));
    }

    #[test]
    fn a_table_that_is_given_up_is_as_it_was_before() {
        let (nothing, a) = (BTreeSet::new(), BTreeSet::from(["a".to_owned()]));
        let mut findings = Findings::default();
        findings.look(found(&[]), &a);
        findings.look(found(&["a"]), &nothing);
        findings.look(found(&[]), &a);
        assert_eq!(findings.verdict(), Err(vec!["a differs".to_owned()]));
        let mut findings = Findings::default();
        for given_up in [&nothing, &a, &nothing] {
            let differs = if given_up.is_empty() {
                found(&["a"])
            } else {
                found(&[])
            };
            findings.look(differs, given_up);
        }
        assert_eq!(findings.verdict(), Ok(vec!["a differs".to_owned()]));
    }

    #[test]
    fn long_lists_of_differences_are_cut() {
        let mut verdict = Verdict {
            differences: (0..5).map(|n| n.to_string()).collect(),
            ..Verdict::default()
        };
        let all = Verified::new(&verdict, 7);
        assert_eq!((all.unix_ms, &all.differences), (7, &verdict.differences));
        verdict.differences.extend(["5".to_owned(), "6".to_owned()]);
        let cut = Verified::new(&verdict, 7).differences;
        assert_eq!((cut.len(), cut[5].as_str()), (6, "and 2 more"));
    }
}
