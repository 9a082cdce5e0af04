//! Counts what clients do to a volume, in all and lately. Pure: it is told the time.

use std::time::Duration;

use dax::storage::Traffic;

/// Seconds that count as lately.
const SECONDS: usize = 10;

/// The counts of one volume.
#[derive(Debug, Default)]
pub(crate) struct Meter {
    total: Traffic,
    /// What happened in each of the last seconds, at the second's place modulo their number.
    seconds: [(u64, Traffic); SECONDS],
}

impl Meter {
    /// Counts something that happened `now`, since the zone was opened.
    pub fn count(&mut self, now: Duration, what: &Traffic) {
        let second = now.as_secs();
        let (at, lately) = &mut self.seconds[second as usize % SECONDS];
        if *at != second {
            (*at, *lately) = (second, Traffic::default());
        }
        lately.add(what);
        self.total.add(what);
    }

    /// Everything; and the last seconds, with how long that is.
    pub fn read(&self, now: Duration) -> (Traffic, Traffic, Duration) {
        let second = now.as_secs();
        let first = (second + 1).saturating_sub(SECONDS as u64);
        let mut recent = Traffic::default();
        for (at, lately) in &self.seconds {
            if (first..=second).contains(at) {
                recent.add(lately);
            }
        }
        (self.total, recent, now - Duration::from_secs(first))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const S: Duration = Duration::from_secs(1);

    fn writes(writes: u64) -> Traffic {
        Traffic {
            writes,
            ..Traffic::default()
        }
    }

    #[test]
    fn old_events_count_in_the_total_only() {
        let mut meter = Meter::default();
        meter.count(S / 2, &writes(1000));
        meter.count(S * 20, &writes(3));
        meter.count(S * 20 + S / 2, &writes(4));
        meter.count(S * 24, &writes(5));
        let read = |now: Duration| {
            let (total, recent, window) = meter.read(now);
            (total.writes, recent.writes, window)
        };
        assert_eq!(read(S * 24 + S / 4), (1012, 12, S * 9 + S / 4));
        assert_eq!(read(S * 30), (1012, 5, S * 9));
        assert_eq!(read(S * 3000), (1012, 0, S * 9));
    }

    #[test]
    fn a_young_meter_looks_back_to_its_start() {
        let mut meter = Meter::default();
        meter.count(S, &writes(3));
        let (_, recent, window) = meter.read(S * 2);
        assert_eq!((recent.writes, window), (3, S * 2));
    }
}
