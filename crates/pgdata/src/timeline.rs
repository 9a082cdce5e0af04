//! Timelines: every promotion begins a new one, and a history file tells from which and where.
//!
//! Invariant: the entries of a [`History`] are in the order of their timelines, each begins where the
//! one before ends, and the last, open-ended one is the timeline that the history is of.

use std::fmt;

use serde::{Deserialize, Serialize};
use volume::log_history::{LogBranch, LogHistory};
use volume::lsn::Lsn;

use crate::parse_lsn;

/// The number of a timeline; the first is 1.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct TimelineId(pub u32);

impl TimelineId {
    /// A new cluster's timeline.
    pub const FIRST: TimelineId = TimelineId(1);

    /// The name of its history file, in `pg_wal`. Timeline 1 has none.
    pub fn history_file_name(self) -> String {
        format!("{:08X}.history", self.0)
    }

    /// From the name of a history file.
    pub fn from_history_file_name(name: &str) -> Option<TimelineId> {
        let digits = name.strip_suffix(".history")?;
        let hex = |b: u8| b.is_ascii_digit() || (b'A'..=b'F').contains(&b);
        if digits.len() != 8 || !digits.bytes().all(hex) {
            return None;
        }
        u32::from_str_radix(digits, 16).ok().map(TimelineId)
    }
}

impl fmt::Display for TimelineId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.0)
    }
}

/// One timeline of a history: it holds the log of `begin..end`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Entry {
    /// The timeline.
    pub timeline: TimelineId,
    /// Where it forked from the one before.
    pub begin: Lsn,
    /// Where the next one forked from it; `None` for the last.
    pub end: Option<Lsn>,
}

/// Why a history file is invalid.
#[derive(Debug, thiserror::Error)]
pub enum HistoryError {
    /// A line is not `<timeline> <position> <reason>`.
    #[error("line {0} of the history of timeline {1} is not understood: {2:?}")]
    Line(usize, TimelineId, String),
    /// Timelines or positions do not ascend.
    #[error("line {0} of the history of timeline {1} does not ascend")]
    Order(usize, TimelineId),
}

/// A timeline with its ancestors.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct History {
    entries: Vec<Entry>,
}

impl History {
    /// The history of a timeline without ancestors (timeline 1, or one whose file is missing).
    pub fn of_first(timeline: TimelineId) -> History {
        History {
            entries: vec![Entry {
                timeline,
                begin: Lsn::ZERO,
                end: None,
            }],
        }
    }

    /// Parses a history file. An empty file means no ancestors.
    pub fn parse(timeline: TimelineId, text: &str) -> Result<History, HistoryError> {
        let mut entries: Vec<Entry> = Vec::new();
        let mut begin = Lsn::ZERO;
        for (number, line) in text
            .lines()
            .enumerate()
            .map(|(i, line)| (i + 1, line.trim()))
        {
            if line.is_empty() || line.starts_with('#') {
                continue;
            }
            let mut fields = line.split_whitespace();
            let parent = fields
                .next()
                .and_then(|field| field.parse().ok())
                .map(TimelineId);
            let end = fields.next().and_then(parse_lsn);
            let (Some(parent), Some(end)) = (parent, end) else {
                return Err(HistoryError::Line(number, timeline, line.to_owned()));
            };
            let ascends = entries.last().is_none_or(|last| last.timeline < parent);
            if !ascends || parent >= timeline {
                return Err(HistoryError::Order(number, timeline));
            }
            // A recovery that ended before a fork names what came behind it as well, and the position where it ended.
            match end < begin {
                true => {
                    entries.retain(|entry| entry.begin < end);
                    if let Some(last) = entries.last_mut() {
                        last.end = Some(end);
                    }
                }
                false => entries.push(Entry {
                    timeline: parent,
                    begin,
                    end: Some(end),
                }),
            }
            begin = end;
        }
        entries.push(Entry {
            timeline,
            begin,
            end: None,
        });
        Ok(History { entries })
    }

    /// The same as it was when the log ended there.
    pub fn up_to(&self, end: Lsn) -> History {
        let begun = |entry: &&Entry| entry.begin < end;
        let mut entries: Vec<Entry> = self.entries.iter().take_while(begun).copied().collect();
        match entries.last_mut() {
            Some(last) => last.end = None,
            None => return History::of_first(self.entries[0].timeline),
        }
        History { entries }
    }

    /// The timeline that this is the history of.
    pub fn timeline(&self) -> TimelineId {
        self.last().timeline
    }

    fn last(&self) -> &Entry {
        self.entries
            .last()
            .expect("a history has at least its own timeline")
    }

    /// All timelines, oldest first.
    pub fn entries(&self) -> &[Entry] {
        &self.entries
    }

    /// The same for the volume, which shows a standby only what is part of it.
    pub fn branches(&self) -> LogHistory {
        LogHistory::new(self.entries.iter().map(|entry| LogBranch {
            timeline: entry.timeline.0,
            begin: entry.begin,
            end: entry.end,
        }))
    }

    /// Where this timeline began; zero for one without ancestors.
    pub fn began(&self) -> Lsn {
        self.last().begin
    }

    /// True if `timeline` is this one or one of its ancestors.
    pub fn contains(&self, timeline: TimelineId) -> bool {
        self.entries.iter().any(|entry| entry.timeline == timeline)
    }

    /// True if log of `timeline` up to `end` is part of this history: a server that has replayed to
    /// there can follow this timeline.
    pub fn contains_log(&self, timeline: TimelineId, end: Lsn) -> bool {
        let entry = self.entries.iter().find(|entry| entry.timeline == timeline);
        entry.is_some_and(|entry| entry.end.is_none_or(|fork| end <= fork))
    }

    /// Where `timeline` was left and for which next timeline; `None` if it is this one or no
    /// ancestor.
    pub fn fork_from(&self, timeline: TimelineId) -> Option<(Lsn, TimelineId)> {
        let at = self
            .entries
            .iter()
            .position(|entry| entry.timeline == timeline)?;
        let next = self.entries.get(at + 1)?;
        Some((next.begin, next.timeline))
    }

    /// The timeline whose log holds the byte at `at`.
    pub fn timeline_at(&self, at: Lsn) -> TimelineId {
        let holds = |entry: &&Entry| entry.end.is_none_or(|end| at < end);
        self.entries
            .iter()
            .find(holds)
            .unwrap_or(self.last())
            .timeline
    }

    /// The end of what this history and `other` have in common, and the last common timeline; `None`
    /// if they share nothing.
    pub fn common_with(&self, other: &History) -> Option<(TimelineId, Lsn)> {
        let pairs = self.entries.iter().zip(&other.entries);
        let same = pairs.take_while(|(a, b)| a.timeline == b.timeline && a.begin == b.begin);
        let (a, b) = same.last()?;
        let end = [a.end, b.end]
            .into_iter()
            .flatten()
            .min()
            .unwrap_or(Lsn(u64::MAX));
        Some((a.timeline, end))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &str = "# a comment\n1\t0/3000000\tno recovery target specified\n\n\
                        3\t0/5000148\tno recovery target specified\n";

    fn history() -> History {
        History::parse(TimelineId(4), TEXT).unwrap()
    }

    #[test]
    fn a_history_can_be_looked_at_as_of_then() {
        let text = "1\t0/200\tno\n2\t0/300\tno\n";
        let history = History::parse(TimelineId(3), text).unwrap();
        for (end, timeline) in [(0, 1), (0x200, 1), (0x201, 2), (0x300, 2), (0x301, 3)] {
            let then = history.up_to(Lsn(end));
            assert_eq!(then.timeline(), TimelineId(timeline), "{end:x}");
            assert_eq!(then.entries().last().unwrap().end, None);
        }
        let then = history.up_to(Lsn(0x280));
        assert_eq!(
            then,
            History::parse(TimelineId(2), "1\t0/200\tno\n").unwrap()
        );
    }

    #[test]
    fn forks_are_found() {
        let history = history();
        assert_eq!(history.timeline(), TimelineId(4));
        assert_eq!(history.began(), Lsn(0x5000148));
        assert_eq!(
            history.fork_from(TimelineId(1)),
            Some((Lsn(0x3000000), TimelineId(3)))
        );
        assert_eq!(
            history.fork_from(TimelineId(3)),
            Some((Lsn(0x5000148), TimelineId(4)))
        );
        assert_eq!(history.fork_from(TimelineId(4)), None);
        assert_eq!(history.fork_from(TimelineId(2)), None);
        assert!(!history.contains(TimelineId(2)));
    }

    #[test]
    fn a_server_past_the_fork_cannot_follow() {
        let history = history();
        assert!(history.contains_log(TimelineId(1), Lsn(0x3000000)));
        assert!(!history.contains_log(TimelineId(1), Lsn(0x3000008)));
        assert!(history.contains_log(TimelineId(4), Lsn(0x9000000)));
        assert!(!history.contains_log(TimelineId(2), Lsn(0x1000000)));
    }

    /// A restore to a moment before the last takeover wrote such a file, and no node could serve it.
    #[test]
    fn a_recovery_that_ended_before_a_fork_goes_on_from_there() {
        let text = "1\t0/4C000A0\tx\n2\t0/50000A0\tx\n3\t0/4C00150\tbefore 2026\n";
        let history = History::parse(TimelineId(4), text).unwrap();
        let timelines: Vec<u32> = history.entries().iter().map(|e| e.timeline.0).collect();
        assert_eq!(timelines, [1, 2, 4]);
        assert!(history.contains_log(TimelineId(2), Lsn(0x4C00150)));
        assert!(!history.contains_log(TimelineId(2), Lsn(0x4C00151)));
        assert_eq!(history.timeline_at(Lsn(0x4C00150)).0, 4);
        let text = "1\t0/4C000A0\tx\n2\t0/4000000\tbefore 2026\n";
        let history = History::parse(TimelineId(3), text).unwrap();
        assert_eq!(history.timeline_at(Lsn(0x4000000)).0, 3);
        assert_eq!(history.timeline_at(Lsn(0x3FFFFFF)).0, 1);
    }

    #[test]
    fn a_byte_belongs_to_one_timeline() {
        let history = history();
        assert_eq!(history.timeline_at(Lsn(0x5000147)).0, 3);
        assert_eq!(history.timeline_at(Lsn(0x5000148)).0, 4);
    }

    #[test]
    fn common_part_of_two_histories_ends_at_the_earlier_fork() {
        let other = History::parse(TimelineId(5), "1\t0/2000000\tx\n").unwrap();
        assert_eq!(
            history().common_with(&other),
            Some((TimelineId(1), Lsn(0x2000000)))
        );
        let same = history();
        assert_eq!(
            history().common_with(&same),
            Some((TimelineId(4), Lsn(u64::MAX)))
        );
        let stranger = History::of_first(TimelineId(7));
        assert_eq!(history().common_with(&stranger), None);
    }

    #[test]
    fn nonsense_is_refused_with_its_line() {
        let parse = |text| History::parse(TimelineId(4), text).unwrap_err().to_string();
        assert!(parse("1\tx\ty").contains("line 1"));
        assert!(parse("1\t0/2\tx\n1\t0/3\tx").contains("line 2"));
        assert!(parse("4\t0/4\tx").contains("does not ascend"));
    }

    #[test]
    fn history_file_names() {
        assert_eq!(TimelineId(26).history_file_name(), "0000001A.history");
        assert_eq!(
            TimelineId::from_history_file_name("0000001A.history"),
            Some(TimelineId(26))
        );
        for bad in [
            "1A.history",
            "0000001a.history",
            "0000001A",
            "0000001A.history.tmp",
        ] {
            assert_eq!(TimelineId::from_history_file_name(bad), None, "{bad}");
        }
    }
}
