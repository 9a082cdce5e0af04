//! A standby that is too far behind: whether beginning anew at the newest seal helps it (CAC-DB 4.4.3),
//! and what it takes along. Pure, but for [`Skips`], which outlives a standby.
//!
//! In the paper a slow standby throws the pages away that it missed updates of. Here the overlay is
//! thrown away as a whole: the newest seal has all of it. What the standby held is read back into its
//! cache, so that it does not become colder with every skip.

use std::time::{Duration, Instant};

use coordination::records::unix_ms;
use dax::ids::BlockKey;
use parking_lot::Mutex;
use serde::Serialize;
use volume::lsn::Lsn;

use crate::config::{OnLag, StandbyConfig};

/// How long a standby goes on after it attached, whatever its lag: what it loads pays off later.
const STAY: Duration = Duration::from_secs(10);
/// What attaching afresh takes, about. A standby that gets there sooner by itself goes on.
const ATTACH: Duration = Duration::from_secs(3);
/// How often seals are looked at while the lag is too large.
const LOOK_EVERY: Duration = Duration::from_secs(2);
/// Redo's speed is measured over so long at least.
const MEASURED_OVER: Duration = Duration::from_secs(2);

/// Follows how far behind a standby is.
#[derive(Debug, Clone)]
pub(super) struct Lag {
    config: StandbyConfig,
    attached: Duration,
    applied: Lsn,
    replay_limit: Lsn,
    looked: Option<Duration>,
    /// Where redo was when its speed began to be measured.
    mark: (Duration, Lsn),
    bytes_per_second: f64,
}

impl Lag {
    /// Of a standby that attached just now.
    pub fn new(config: StandbyConfig, now: Duration) -> Lag {
        Lag {
            config,
            attached: now,
            applied: Lsn::ZERO,
            replay_limit: Lsn::ZERO,
            looked: None,
            mark: (now, Lsn::ZERO),
            bytes_per_second: 0.0,
        }
    }

    /// How far redo is, and the log that is there.
    pub fn progressed(&mut self, applied: Lsn, replay_limit: Lsn, now: Duration) {
        self.applied = self.applied.max(applied);
        self.replay_limit = replay_limit;
        let (since, from) = self.mark;
        let elapsed = now.saturating_sub(since);
        if from == Lsn::ZERO {
            self.mark = (now, self.applied);
        } else if elapsed >= MEASURED_OVER {
            let replayed = self.applied.bytes_since(from) as f64;
            self.bytes_per_second = replayed / elapsed.as_secs_f64();
            self.mark = (now, self.applied);
        }
    }

    fn bytes(&self) -> u64 {
        self.replay_limit.bytes_since(self.applied)
    }

    /// True if it is time to look at the newest seal.
    pub fn wants_look(&mut self, now: Duration) -> bool {
        let slow = self.config.on_lag == OnLag::Skip
            && self.applied > Lsn::ZERO
            && self.bytes() > self.config.max_lag.0;
        let due = self.looked.is_none_or(|at| now >= at + LOOK_EVERY);
        let looks = slow && due && now >= self.attached + STAY;
        if looks {
            self.looked = Some(now);
        }
        looks
    }

    /// Why to begin anew at a seal from whose redo point on the log would be replayed; `None` if that
    /// is not worth it: it saves less than half of the way, or redo is there about as soon.
    pub fn why_skip(&self, redo: Lsn) -> Option<String> {
        let (lag, saved) = (self.bytes(), redo.bytes_since(self.applied));
        let seconds = saved as f64 / self.bytes_per_second.max(1.0);
        let worth_it =
            lag > self.config.max_lag.0 && saved >= lag / 2 && seconds > ATTACH.as_secs_f64();
        worth_it.then(|| {
            format!(
                "{} MiB of log behind, more than {}; the newest seal saves {} MiB",
                lag >> 20,
                self.config.max_lag,
                saved >> 20
            )
        })
    }
}

/// How long a standby stays whose slots cannot follow the active's: each attach interrupts who reads there.
const SLOTS_EVERY: Duration = Duration::from_secs(600);

/// Skips of a node so far, and the blocks that its last standby held.
#[derive(Debug, Default)]
pub(crate) struct Skips {
    /// When a standby last attached again for its slots.
    for_slots: Mutex<Option<Instant>>,
    told: Mutex<SkipStatus>,
    hot: Mutex<Vec<BlockKey>>,
}

/// Skips of a node's standbys, for the node's status.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub(crate) struct SkipStatus {
    count: u64,
    /// Why it last did, and when.
    last: Option<String>,
    last_unix_ms: Option<u64>,
}

impl Skips {
    /// Counts one.
    pub fn skipped(&self, why: &str) {
        let mut told = self.told.lock();
        told.count += 1;
        told.last = Some(why.to_owned());
        told.last_unix_ms = Some(unix_ms());
    }

    /// True if a standby may attach again for its slots; that counts then.
    pub fn may_attach_for_slots(&self) -> bool {
        let mut last = self.for_slots.lock();
        let may = last.is_none_or(|at| at.elapsed() >= SLOTS_EVERY);
        if may {
            *last = Some(Instant::now());
        }
        may
    }

    pub fn report(&self) -> SkipStatus {
        self.told.lock().clone()
    }

    /// Remembers what a standby held that attaches again.
    pub fn remember(&self, hot: Vec<BlockKey>) {
        *self.hot.lock() = hot;
    }

    /// What the last standby held.
    pub fn take_hot(&self) -> Vec<BlockKey> {
        std::mem::take(&mut *self.hot.lock())
    }
}

#[cfg(test)]
mod tests {
    use coordination::config::ByteSize;

    use super::*;

    const MIB: u64 = 1 << 20;

    fn seconds(seconds: u64) -> Duration {
        Duration::from_secs(seconds)
    }

    /// 100 MiB behind, replaying one MiB a second, attached 20 s ago.
    fn behind(on_lag: OnLag) -> Lag {
        let config = StandbyConfig {
            on_lag,
            max_lag: ByteSize::mib(50),
            ..StandbyConfig::default()
        };
        let mut lag = Lag::new(config, seconds(0));
        for second in 0..=20 {
            lag.progressed(Lsn((10 + second) * MIB), Lsn(130 * MIB), seconds(second));
        }
        lag
    }

    #[test]
    fn a_standby_far_behind_skips_if_that_saves_most_of_the_way() {
        let mut lag = behind(OnLag::Skip);
        assert!(lag.wants_look(seconds(20)));
        assert!(!lag.wants_look(seconds(21)), "it looked just now");
        assert!(lag.wants_look(seconds(22)));
        let why = lag.why_skip(Lsn(120 * MIB)).unwrap();
        assert_eq!(
            why,
            "100 MiB of log behind, more than 50MiB; the newest seal saves 90 MiB"
        );
        assert_eq!(lag.why_skip(Lsn(60 * MIB)), None, "less than half");
        assert_eq!(lag.why_skip(Lsn(20 * MIB)), None, "redo is past that seal");
    }

    #[test]
    fn standby_that_catches_up_soon_continues() {
        let mut lag = behind(OnLag::Skip);
        // 40 MiB a second.
        lag.progressed(Lsn(110 * MIB), Lsn(220 * MIB), seconds(22));
        assert!(lag.wants_look(seconds(22)));
        assert_eq!(lag.why_skip(Lsn(215 * MIB)), None);
        lag.progressed(Lsn(111 * MIB), Lsn(320 * MIB), seconds(24));
        assert!(lag.why_skip(Lsn(300 * MIB)).is_some(), "it slowed down");
    }

    #[test]
    fn standbys_never_skip_too_early_or_against_the_setting() {
        for on_lag in [OnLag::Follow, OnLag::Wait] {
            assert!(!behind(on_lag).wants_look(seconds(20)));
        }
        let mut lag = behind(OnLag::Skip);
        lag.attached = seconds(15);
        assert!(!lag.wants_look(seconds(24)), "attached 9 s ago");
        assert!(lag.wants_look(seconds(25)));
        lag.progressed(Lsn(81 * MIB), Lsn(130 * MIB), seconds(30));
        assert!(!lag.wants_look(seconds(30)), "49 MiB are not too much");
        let mut unknown = Lag::new(StandbyConfig::default(), seconds(0));
        unknown.progressed(Lsn::ZERO, Lsn(9000 * MIB), seconds(30));
        assert!(!unknown.wants_look(seconds(30)), "nothing is known of redo");
    }
}
