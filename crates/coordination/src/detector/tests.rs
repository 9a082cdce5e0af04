//! The detector against hand-made schedules, and against random ones.

use proptest::prelude::*;

use super::*;
use crate::config::Preset;

const MS: Duration = Duration::from_millis(1);

fn beat(epoch: u32, counter: u64) -> Option<Beat> {
    let epoch = Epoch(epoch);
    Some(Beat { epoch, counter })
}

/// A standby with a clock that only the test moves.
struct Standby {
    detector: Detector,
    now: Duration,
    beat: Option<Beat>,
}

impl Standby {
    fn new() -> Standby {
        let mut standby = Standby {
            detector: Detector::new(Preset::Fast.timings(), Duration::ZERO),
            now: Duration::ZERO,
            beat: beat(1, 1),
        };
        standby.read(MS);
        standby
    }

    /// Reads the counter; the store takes `round_trip`.
    fn read(&mut self, round_trip: Duration) {
        self.detector.asked(self.now);
        self.now += round_trip;
        self.detector.answered(self.beat, self.now);
    }

    /// Polls for `time`, with or without progress.
    fn poll(&mut self, time: Duration, beats: bool) {
        let end = self.now + time;
        while self.now < end {
            self.now += self.detector.poll();
            if beats {
                self.beat = self.beat.map(|b| Beat {
                    counter: b.counter + 1,
                    ..b
                });
            }
            self.read(MS);
        }
    }

    fn hint(&mut self, hint: Hint) {
        self.detector.hint(hint, self.now);
    }

    fn alive(&mut self) -> bool {
        self.detector.verdict(self.now) == Verdict::Alive
    }

    fn evidence(&mut self) -> Evidence {
        match self.detector.verdict(self.now) {
            Verdict::Suspect { evidence, .. } => evidence,
            other => panic!("{other:?}"),
        }
    }
}

#[test]
fn a_beating_active_is_alive() {
    let mut standby = Standby::new();
    standby.poll(60_000 * MS, true);
    assert!(standby.alive());
}

#[test]
fn silence_counts_to_tmax_and_not_before() {
    let mut standby = Standby::new();
    standby.poll(1_300 * MS, false);
    assert!(standby.alive());
    standby.poll(400 * MS, false);
    assert!(matches!(standby.evidence(), Evidence::Silent(_)));
    // Wrong after all: it beats.
    standby.poll(200 * MS, true);
    assert!(standby.alive());
}

#[test]
fn an_active_that_never_beat_is_suspected_too() {
    let mut standby = Standby::new();
    standby.detector = Detector::new(Preset::Fast.timings(), standby.now);
    standby.beat = None;
    standby.poll(2_000 * MS, false);
    assert!(matches!(standby.evidence(), Evidence::Silent(_)));
}

#[test]
fn time_without_own_answers_does_not_count() {
    let mut standby = Standby::new();
    standby.poll(1_000 * MS, false);
    // One read hangs for a minute: blind meanwhile, and the count begins anew.
    standby.detector.asked(standby.now);
    standby.now += 60_000 * MS;
    assert!(matches!(
        standby.detector.verdict(standby.now),
        Verdict::Blind { .. }
    ));
    standby.detector.answered(standby.beat, standby.now);
    assert!(standby.alive());
    standby.poll(1_200 * MS, false);
    assert!(standby.alive());
    standby.poll(600 * MS, false);
    assert!(matches!(standby.evidence(), Evidence::Silent(_)));
}

#[test]
fn a_paused_standby_does_not_blame_the_active() {
    let mut standby = Standby::new();
    standby.poll(600 * MS, false);
    standby.now += 3_600_000 * MS;
    standby.read(MS);
    assert!(standby.alive());
}

#[test]
fn slow_answers_blind_although_they_come() {
    let mut standby = Standby::new();
    for _ in 0..50 {
        standby.now += 100 * MS;
        standby.read(600 * MS);
        assert!(standby.alive());
    }
}

/// A disk of all zones did not sync for seconds: reads were quick, no beat came through, and a standby
/// took over from an active that lived.
#[test]
fn active_is_not_suspected_where_only_writes_are_slow() {
    let mut s = Standby::new();
    s.poll(500 * MS, true);
    let stalls_until = s.now + Duration::from_secs(20);
    while s.now < stalls_until {
        s.now += s.detector.poll();
        let takes = match s.detector.is_in_doubt() {
            true => stalls_until.saturating_sub(s.now),
            false => MS,
        };
        s.detector.asked(s.now);
        let answered = s.now + takes;
        while s.now < answered {
            s.now += (10 * MS).min(answered - s.now);
            let verdict = s.detector.verdict(s.now);
            assert!(!matches!(verdict, Verdict::Suspect { .. }), "{verdict:?}");
        }
        s.detector.answered(s.beat, s.now);
        assert!(!matches!(
            s.detector.verdict(s.now),
            Verdict::Suspect { .. }
        ));
    }
    // Writes are answered again, and there is still no beat: then it is gone.
    s.poll(s.detector.timing.timeout + 2 * s.detector.poll(), false);
    let verdict = s.detector.verdict(s.now);
    assert!(matches!(verdict, Verdict::Suspect { .. }), "{verdict:?}");
}

#[test]
fn failed_reads_blind_until_one_is_answered() {
    let mut standby = Standby::new();
    standby.detector.asked(standby.now);
    standby.detector.failed(standby.now);
    assert!(matches!(
        standby.detector.verdict(standby.now),
        Verdict::Blind { .. }
    ));
    standby.hint(Hint::Reset);
    standby.hint(Hint::Refused);
    // A hint does not help a node that cannot reach the store: it may be the one that is cut off.
    assert!(matches!(
        standby.detector.verdict(standby.now),
        Verdict::Blind { .. }
    ));
    standby.poll(200 * MS, false);
    assert_eq!(standby.evidence(), Evidence::AgentGone);
}

#[test]
fn a_refused_reconnect_is_enough() {
    let mut standby = Standby::new();
    standby.hint(Hint::Connected);
    standby.hint(Hint::Reset);
    assert!(standby.alive());
    standby.hint(Hint::Refused);
    assert_eq!(standby.evidence(), Evidence::AgentGone);
}

#[test]
fn refusal_without_an_earlier_connection_says_nothing() {
    let mut standby = Standby::new();
    standby.hint(Hint::Refused);
    standby.poll(1_000 * MS, true);
    assert!(standby.alive());
}

#[test]
fn a_dropped_connection_to_a_beating_active_is_forgiven() {
    let mut standby = Standby::new();
    standby.hint(Hint::Reset);
    standby.poll(10_000 * MS, true);
    assert!(standby.alive());
    standby.hint(Hint::Connected);
    standby.poll(1_000 * MS, false);
    assert!(standby.alive());
}

#[test]
fn a_dropped_connection_and_silence_shorten_the_wait() {
    let mut standby = Standby::new();
    standby.hint(Hint::Reset);
    let wake = standby.detector.wake_at().unwrap();
    assert!(wake - standby.now < Preset::Fast.timings().timeout / 2);
    standby.poll(wake - standby.now, false);
    assert!(matches!(standby.evidence(), Evidence::ChannelLost(_)));
}

#[test]
fn the_agents_own_word_counts_at_once_and_for_its_epoch_only() {
    let mut standby = Standby::new();
    let vacant = |epoch| Hint::Vacant {
        epoch: Epoch(epoch),
        reason: "PostgreSQL died".into(),
    };
    standby.hint(vacant(0));
    assert!(standby.alive());
    standby.hint(vacant(1));
    assert_eq!(
        standby.evidence(),
        Evidence::Announced("PostgreSQL died".into())
    );
    // Its agent beats on, which changes nothing; a successor does.
    standby.poll(400 * MS, true);
    assert!(matches!(standby.evidence(), Evidence::Announced(_)));
    standby.beat = beat(2, 1);
    standby.poll(200 * MS, false);
    assert!(standby.alive());
}

#[test]
fn an_older_epochs_beat_is_no_progress() {
    let mut standby = Standby::new();
    standby.beat = beat(2, 1);
    standby.poll(200 * MS, false);
    for counter in 100..120 {
        standby.beat = beat(1, counter);
        standby.poll(200 * MS, false);
    }
    assert!(matches!(standby.evidence(), Evidence::Silent(_)));
}

proptest! {
    /// Whatever the round trips and pauses: an active that beats at least every T and whose channel
    /// does not break is never suspected while reads are answered.
    #[test]
    fn healthy_active_is_never_suspected(steps in proptest::collection::vec((0u64..900, 0u64..2_000), 1..200)) {
        let mut standby = Standby::new();
        for (round_trip, pause) in steps {
            let beats_per = Preset::Fast.timings().interval;
            standby.now += Preset::Fast.timings().poll + pause.saturating_sub(1_500) as u32 * MS;
            let counter = standby.now.as_millis() / beats_per.as_millis();
            standby.beat = beat(1, u64::try_from(counter).unwrap() + 1);
            standby.read(round_trip as u32 * MS);
            let verdict = standby.detector.verdict(standby.now);
            prop_assert!(!matches!(verdict, Verdict::Suspect { .. }), "{verdict:?}");
        }
    }

    /// Whatever happened before: once the active is silent and reads are answered quickly, it is
    /// suspected within Tmax and a few polls.
    #[test]
    fn silence_is_always_noticed(before in proptest::collection::vec((0u64..900, any::<bool>()), 0..50)) {
        let mut standby = Standby::new();
        for (round_trip, beats) in before {
            standby.now += 100 * MS;
            if beats {
                standby.beat = standby.beat.map(|b| Beat { counter: b.counter + 1, ..b });
            }
            standby.read(round_trip as u32 * MS);
        }
        let timing = Preset::Fast.timings();
        standby.poll(timing.timeout + 3 * timing.poll, false);
        let verdict = standby.detector.verdict(standby.now);
        let suspect = matches!(verdict, Verdict::Suspect { .. });
        prop_assert!(suspect, "{:?}", verdict);
    }
}
