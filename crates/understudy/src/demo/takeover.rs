//! The new active's own record of its takeover, put on the run's clock.

use std::time::{Duration, SystemTime};

use anyhow::Context;
use serde::{Deserialize, Serialize};

use super::report::Moments;
use cluster::clients::clock::{Clock, Offset};

/// An entry of `understudy history --json`, as far as the demo needs it.
#[derive(Debug, Clone, Default, PartialEq, Deserialize, Serialize)]
pub struct Takeover {
    /// The epoch that began.
    pub epoch: u32,
    /// Who owns it.
    pub node: String,
    /// The phases in order.
    #[serde(default)]
    pub phases: Vec<Phase>,
    /// When it was done, Unix milliseconds.
    pub unix_ms: u64,
}

/// One phase of it.
#[derive(Debug, Clone, PartialEq, Deserialize, Serialize)]
pub struct Phase {
    /// Name of the phase, as in the history.
    pub phase: String,
    /// Duration of the phase.
    pub ms: u64,
}

impl Takeover {
    /// The last entry of what `understudy history --json` printed.
    ///
    /// # Errors
    /// It is no such list, or empty.
    pub fn last(json: &str) -> anyhow::Result<Takeover> {
        let mut entries: Vec<Takeover> = serde_json::from_str(json)
            .context("cannot read the output of \"understudy history --json\"")?;
        entries.pop().context("the history is empty")
    }

    fn length(&self, phase: &str) -> Duration {
        let found = self.phases.iter().filter(|p| p.phase == phase);
        Duration::from_millis(found.map(|p| p.ms).sum())
    }

    /// When each step ended. The record says when the takeover was done and how long its steps
    /// took; that is followed backwards. Nothing lies before the kill or after the first commit.
    pub fn moments(&self, clock: &Clock, killed: Offset, first_commit: Offset) -> Moments {
        let done = clock.at(SystemTime::UNIX_EPOCH + Duration::from_millis(self.unix_ms));
        let back =
            |from: Offset, phase: &str| Offset(from.0 - self.length(phase).as_micros() as i64);
        let inside = |at: Offset| at.clamp(killed, first_commit.max(killed));
        let replayed = back(done, "promote");
        let tail_read = back(replayed, "replay");
        let fenced = back(tail_read, "log_tail");
        let suspected = back(fenced, "fence");
        Moments {
            killed,
            suspected: inside(suspected),
            fenced: inside(fenced),
            tail_read: inside(tail_read),
            replayed: inside(replayed),
            promoted: inside(done),
            first_commit,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn steps_are_counted_back_from_the_end() {
        let clock = Clock::start();
        let unix_ms = SystemTime::now()
            .duration_since(SystemTime::UNIX_EPOCH)
            .unwrap()
            .as_millis() as u64
            + 10_000;
        let json = format!(
            r#"[{{"number": 1, "epoch": 1, "node": "a", "cause": "created", "unix_ms": 5}},
                {{"number": 2, "epoch": 2, "node": "b", "unix_ms": {unix_ms}, "phases": [
                 {{"phase": "detect", "ms": 300}}, {{"phase": "fence", "ms": 10}},
                 {{"phase": "log_tail", "ms": 20}}, {{"phase": "replay", "ms": 30}},
                 {{"phase": "promote", "ms": 400}}]}}]"#
        );
        let takeover = Takeover::last(&json).unwrap();
        assert_eq!((takeover.node.as_str(), takeover.epoch), ("b", 2));
        let done = clock.at(SystemTime::UNIX_EPOCH + Duration::from_millis(unix_ms));
        let killed = Offset(done.0 - 800_000);
        let moments = takeover.moments(&clock, killed, Offset(done.0 + 5_000));
        let phases = moments.phases().steps().map(|(_, ms)| ms.round() as i64);
        assert_eq!(phases, [340, 10, 20, 30, 400, 5]);
    }

    #[test]
    fn a_record_that_claims_too_much_stays_between_kill_and_first_commit() {
        let takeover = Takeover {
            epoch: 2,
            node: "b".into(),
            phases: vec![Phase {
                phase: "replay".into(),
                ms: 60_000,
            }],
            unix_ms: 0,
        };
        let moments = takeover.moments(&Clock::start(), Offset(1_000), Offset(2_000));
        assert_eq!(moments.phases().total(), 1.0);
    }
}
