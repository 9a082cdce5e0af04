//! Is the active gone? CAC-DB, appendix A, algorithm 4, with hints and without clocks.
//!
//! **The intuition.** The active advances a counter in the storage tier every T. A standby reads it
//! every poll period and adds up the time that passed between reads that showed no progress; at
//! Tmax the active counts as gone. Adding up between *answered* reads is what counting polls does
//! in the paper: time in which the standby itself learnt nothing (it was paused, or its own store
//! operations were slow or unanswered) proves nothing about the active and does not count. A read
//! that takes longer than a share of Tmax makes the detector *blind*: the active's beats probably
//! suffer from the same, so the count starts at zero when the storage tier answers again. Reads may be quick where
//! writes are not (a disk that does not sync): once the silence is [in doubt](Detector::is_in_doubt), each
//! read comes after a write of the standby's own, and takes as long.
//!
//! **Hints** come over the direct channel and shorten the wait (the paper has none). The active's
//! own agent may say that its PostgreSQL died or stopped: suspect at once. A broken connection
//! whose reconnect is refused means that the agent's process is gone, and with it (parent-death
//! signal) its PostgreSQL: suspect at once. A broken connection that merely does not come back
//! counts after a grace period in which a healthy active would have shown a beat.
//!
//! **Why that is safe.** Being wrong costs a takeover, never data: a new active owns an epoch
//! before it does anything, and no older writer can complete a sync from then on (DAX 4.3). The paper
//! needs Tmax to be conservative and the active to shut itself down; here the fence does both jobs. So
//! an error in this module can cost availability, never correctness.
//!
//! Pure: time is a [`Duration`] since some moment of the caller's monotonic clock.

use std::fmt;
use std::time::Duration;

use dax::ids::Epoch;

use crate::config::Heartbeat as Timing;

/// Value of the heartbeat's counter. It only grows, and a later epoch is greater than any counter of an earlier one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Beat {
    /// Epoch of the active that writes the counter.
    pub epoch: Epoch,
    /// Number of beats in this epoch.
    pub counter: u64,
}

/// Event of the direct channel to the active's agent.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Hint {
    /// The channel to the active stands (again).
    Connected,
    /// A standing channel broke.
    Reset,
    /// Nobody listens where the active's agent listened.
    Refused,
    /// The active's agent says that `epoch` no longer serves.
    Vacant {
        /// The epoch that ended.
        epoch: Epoch,
        /// Reason that the agent gave.
        reason: String,
    },
}

/// Why the active is suspected.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Evidence {
    /// The counter stood still for this long.
    Silent(Duration),
    /// The channel broke and the agent is not running any more.
    AgentGone,
    /// The channel broke, did not come back, and no beat was seen since.
    ChannelLost(Duration),
    /// The active's own agent said so.
    Announced(String),
}

impl fmt::Display for Evidence {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Evidence::Silent(time) => write!(f, "no heartbeat for {} ms", time.as_millis()),
            Evidence::AgentGone => f.write_str("its agent closed the channel and is not running"),
            Evidence::ChannelLost(time) => {
                write!(
                    f,
                    "the channel broke and no heartbeat for {} ms",
                    time.as_millis()
                )
            }
            Evidence::Announced(reason) => write!(f, "its agent says: {reason}"),
        }
    }
}

/// Judgement of the detector about the active.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Verdict {
    /// Alive, or not silent for long enough.
    Alive,
    /// Cannot tell: own store operations are slow or unanswered since then.
    Blind {
        /// Since when.
        since: Duration,
    },
    /// Probably gone.
    Suspect {
        /// When that became the verdict.
        since: Duration,
        /// Reason of the suspicion.
        evidence: Evidence,
    },
}

/// The failure detector of one standby for the current active.
///
/// ```text
///            progress                        Tmax of counted silence, or a hint
///          ┌──────────┐                    ┌────────────────────────────────────┐
///          ▼          │                    │                                    ▼
///        Alive ───────┘ ◀─── progress ───  │ ◀──────── progress ──────────── Suspect
///          │                               │
///          └── own read slow/unanswered ─▶ Blind ── answered quickly ─▶ Alive, count from 0
/// ```
#[derive(Debug, Clone)]
pub struct Detector {
    timing: Timing,
    best: Option<Beat>,
    /// Silence counted so far, and when the last answered read was asked.
    silent: Duration,
    last_asked: Option<Duration>,
    /// When the last progress was seen.
    progress_at: Duration,
    /// The read that is under way.
    asked: Option<Duration>,
    blind_since: Option<Duration>,
    broke_at: Option<Duration>,
    refused: bool,
    announced: Option<String>,
    suspect: Option<(Duration, Evidence)>,
}

impl Detector {
    /// A detector that begins to listen at `now`.
    pub fn new(timing: Timing, now: Duration) -> Detector {
        Detector {
            timing,
            best: None,
            silent: Duration::ZERO,
            last_asked: None,
            progress_at: now,
            asked: None,
            blind_since: None,
            broke_at: None,
            refused: false,
            announced: None,
            suspect: None,
        }
    }

    /// Uses other timings from now on. Silence that was counted before still counts.
    pub fn retime(&mut self, timing: Timing) {
        self.timing = timing;
    }

    /// An own store operation that takes longer than this makes the detector blind.
    pub fn slow(&self) -> Duration {
        self.timing.timeout / 3
    }

    /// True if the next read must show that writes are answered, too.
    pub fn is_in_doubt(&self) -> bool {
        self.silent >= self.slow()
    }

    /// How long to wait between two reads.
    pub fn poll(&self) -> Duration {
        self.timing.poll
    }

    /// The newest beat that was seen.
    pub fn beat(&self) -> Option<Beat> {
        self.best
    }

    /// A read of the counter begins.
    pub fn asked(&mut self, now: Duration) {
        // A read that replaces one without an answer does not make the wait shorter.
        self.asked.get_or_insert(now);
    }

    /// The read was answered: the counter, or that it was never written.
    pub fn answered(&mut self, beat: Option<Beat>, now: Duration) {
        let asked = self.asked.take().unwrap_or(now);
        if beat > self.best {
            self.progress(beat, asked, now);
            return;
        }
        if now.saturating_sub(asked) > self.slow() {
            self.silent = Duration::ZERO;
            self.last_asked = None;
        } else {
            let gap = self
                .last_asked
                .map_or(Duration::ZERO, |last| asked.saturating_sub(last));
            // A longer gap is a pause of this node, in which it could learn nothing.
            self.silent += gap.min(2 * self.timing.poll);
            self.last_asked = Some(asked);
        }
        self.blind_since = None;
        self.judge(now);
    }

    fn progress(&mut self, beat: Option<Beat>, asked: Duration, now: Duration) {
        let successor = self.best.map(|b| b.epoch) < beat.map(|b| b.epoch);
        if successor && self.best.is_some() {
            // Hints about the predecessor do not apply to its successor.
            (self.broke_at, self.refused) = (None, false);
            self.announced = None;
        }
        self.best = beat;
        self.silent = Duration::ZERO;
        self.last_asked = Some(asked);
        self.progress_at = now;
        self.blind_since = None;
        if self.announced.is_none() {
            self.suspect = None;
        }
        if !self.refused {
            self.broke_at = self.broke_at.map(|_| now);
        }
        self.judge(now);
    }

    /// The read failed or was given up: nothing is known.
    pub fn failed(&mut self, now: Duration) {
        let asked = self.asked.take().unwrap_or(now);
        self.blind_since.get_or_insert(asked);
        self.silent = Duration::ZERO;
        self.last_asked = None;
    }

    /// The direct channel told something.
    pub fn hint(&mut self, hint: Hint, now: Duration) {
        match hint {
            Hint::Connected => {
                (self.broke_at, self.refused) = (None, false);
                if !matches!(
                    self.suspect,
                    Some((_, Evidence::Silent(_) | Evidence::Announced(_)))
                ) {
                    self.suspect = None;
                }
            }
            Hint::Reset => {
                self.broke_at.get_or_insert(now);
            }
            // Counts only after an established channel broke: a node that starts finds many agents not running.
            Hint::Refused => self.refused |= self.broke_at.is_some(),
            Hint::Vacant { epoch, reason } => {
                if self.best.is_none_or(|b| b.epoch <= epoch) {
                    self.announced.get_or_insert(reason);
                }
            }
        }
        self.judge(now);
    }

    /// Judges the active at `now`.
    pub fn verdict(&mut self, now: Duration) -> Verdict {
        let overdue = self
            .asked
            .filter(|asked| now.saturating_sub(*asked) > self.slow());
        if let Some(asked) = overdue {
            self.blind_since.get_or_insert(asked);
            self.silent = Duration::ZERO;
            self.last_asked = None;
        }
        if let Some(since) = self.blind_since {
            return Verdict::Blind { since };
        }
        self.judge(now);
        match &self.suspect {
            Some((since, evidence)) => Verdict::Suspect {
                since: *since,
                evidence: evidence.clone(),
            },
            None => Verdict::Alive,
        }
    }

    /// Time at which the verdict can next change without a read: the end of a grace period.
    pub fn wake_at(&self) -> Option<Duration> {
        let broke = self.broke_at.filter(|_| self.suspect.is_none())?;
        Some(broke + self.timeout())
    }

    /// A healthy active whose channel broke shows a beat within this time.
    fn timeout(&self) -> Duration {
        self.timing
            .grace
            .max(self.timing.interval + 2 * self.timing.poll)
    }

    fn judge(&mut self, now: Duration) {
        if self.suspect.is_some() {
            return;
        }
        let lost_for = self.broke_at.map(|broke| now.saturating_sub(broke));
        let quiet = now.saturating_sub(self.progress_at);
        let evidence = if let Some(reason) = &self.announced {
            Evidence::Announced(reason.clone())
        } else if self.refused {
            Evidence::AgentGone
        } else if lost_for.is_some_and(|t| t >= self.timeout()) {
            Evidence::ChannelLost(quiet)
        } else if self.silent >= self.timing.timeout {
            Evidence::Silent(quiet)
        } else {
            return;
        };
        self.suspect = Some((now, evidence));
    }
}

#[cfg(test)]
mod tests;
