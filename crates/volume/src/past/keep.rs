//! Which images stay: rules such as "all for 1d, daily for 14d, weekly for 8w".
//!
//! Invariant: the newest image always stays.

use std::collections::BTreeSet;
use std::str::FromStr;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use serde::Deserialize;

const HOUR: Duration = Duration::from_secs(3600);
const DAY: Duration = Duration::from_secs(24 * 3600);

/// One image of each period, for some time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Rule {
    /// The period; `None` for every image.
    every: Option<Duration>,
    during: Duration,
}

/// Rules of `keep`: an image is kept if one of them keeps it.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(try_from = "String")]
pub struct Keep(Vec<Rule>);

impl TryFrom<String> for Keep {
    type Error = String;

    fn try_from(text: String) -> Result<Keep, String> {
        text.parse()
    }
}

impl FromStr for Keep {
    type Err = String;

    fn from_str(text: &str) -> Result<Keep, String> {
        let rules = text.split(',').map(|rule| {
            let wrong = || {
                format!("\"{}\" is no rule: write for example \"all for 1d, daily for 14d, weekly for 8w\"", rule.trim())
            };
            let (every, during) = rule.trim().split_once(" for ").ok_or_else(wrong)?;
            let every = match every.trim() {
                "all" => None,
                "hourly" => Some(HOUR),
                "daily" => Some(DAY),
                "weekly" => Some(7 * DAY),
                "monthly" => Some(30 * DAY),
                _ => return Err(wrong()),
            };
            let during = humantime::parse_duration(during.trim()).map_err(|_| wrong())?;
            Ok(Rule { every, during })
        });
        Ok(Keep(rules.collect::<Result<_, _>>()?))
    }
}

impl Keep {
    /// True if a rule keeps every image of that time.
    pub fn keeps_all_of(&self, time: SystemTime, now: SystemTime) -> bool {
        let age = now.duration_since(time).unwrap_or_default();
        let mut all = self.0.iter().filter(|rule| rule.every.is_none());
        all.any(|rule| age <= rule.during)
    }

    /// Which of images stay, by the times when they were complete, oldest first. Of each period the newest stays.
    pub fn chosen(&self, images: &[SystemTime], now: SystemTime) -> BTreeSet<usize> {
        let mut kept: BTreeSet<usize> = images.len().checked_sub(1).into_iter().collect();
        for rule in &self.0 {
            let mut last = None;
            for (number, time) in images.iter().enumerate().rev() {
                // One of the future is of a clock that went back: young.
                if now.duration_since(*time).unwrap_or_default() > rule.during {
                    continue;
                }
                let since = time.duration_since(UNIX_EPOCH).unwrap_or_default();
                let period = rule.every.map(|every| since.as_nanos() / every.as_nanos());
                if period.is_none() || period != last {
                    kept.insert(number);
                }
                last = period;
            }
        }
        kept
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW: u64 = 1_000 * 24 * 3600 - 1;

    fn kept(rules: &str, hours_ago: &[u64]) -> Vec<u64> {
        let now = UNIX_EPOCH + Duration::from_secs(NOW);
        let times: Vec<_> = hours_ago
            .iter()
            .map(|hours| now - *hours as u32 * HOUR)
            .collect();
        let keep: Keep = rules.parse().unwrap();
        keep.chosen(&times, now)
            .into_iter()
            .map(|number| hours_ago[number])
            .collect()
    }

    #[test]
    fn rules_keep_one_of_each_period() {
        let ago: Vec<u64> = (0..400).rev().map(|number| number * 6).collect();
        assert_eq!(kept("all for 1d", &ago), [24, 18, 12, 6, 0]);
        assert_eq!(kept("daily for 3d", &ago), [72, 48, 24, 0]);
        let both = kept("all for 12h, weekly for 3w", &ago);
        assert_eq!(both.len(), 2 + 4, "{both:?}");
        assert_eq!(
            kept("all for 0s", &ago),
            [0],
            "the newest stays whatever is said"
        );
        assert!(kept("all for 1d", &[]).is_empty());
        assert_eq!(kept("all for 1h", &[90]), [90]);
    }

    #[test]
    fn a_clock_that_jumps_removes_nothing_more() {
        let now = UNIX_EPOCH + Duration::from_secs(NOW);
        let keep: Keep = "all for 1d".parse().unwrap();
        let times = [now + 100 * DAY, now];
        assert_eq!(keep.chosen(&times, now).len(), 2);
    }

    #[test]
    fn rules_that_are_none_are_refused() {
        for rules in [
            "",
            "daily",
            "daily for",
            "yearly for 1y",
            "all for ever",
            "all for 1d,",
        ] {
            assert!(rules.parse::<Keep>().is_err(), "{rules}");
        }
        assert!("hourly for 2d, monthly for 52w".parse::<Keep>().is_ok());
    }
}
