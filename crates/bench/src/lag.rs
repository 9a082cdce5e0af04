//! How far replay is behind the durable log, in bytes and in time.
//!
//! Invariant: a moment of the log counts as replayed only once the standby says a position at or
//! past it; so the time behind is never understated by more than the distance of two looks.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use serde::Serialize;
use tokio::task::JoinHandle;

use cluster::clients::schema::Server;
use cluster::clients::session::connect;
use cluster::wait::{flushed_by, replayed_by};

/// Told to whoever looks for the reason, next to what the nodes log.
const FAR_BEHIND: Duration = Duration::from_millis(250);

/// Positions of the log that are durable and not replayed yet, with when they were first seen.
#[derive(Debug, Default)]
pub struct Ahead(VecDeque<(i64, Duration)>);

impl Ahead {
    /// Takes a look at `now`; how long the oldest position that is not replayed has been durable.
    pub fn look(&mut self, now: Duration, durable: i64, replayed: i64) -> Duration {
        while self.0.front().is_some_and(|(lsn, _)| *lsn <= replayed) {
            self.0.pop_front();
        }
        if durable > replayed && self.0.back().is_none_or(|(lsn, _)| *lsn < durable) {
            self.0.push_back((durable, now));
        }
        let oldest = self.0.front().map(|(_, since)| *since);
        oldest.map_or(Duration::ZERO, |since| now.saturating_sub(since))
    }
}

/// One look.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize)]
pub struct Behind {
    /// Bytes of log.
    pub bytes: u64,
    /// Milliseconds.
    pub ms: u64,
}

/// Middle, nearly all, and the worst look.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize)]
pub struct Spread {
    /// Half of all looks are at most this.
    pub p50: u64,
    /// 99 of 100 are.
    pub p99: u64,
    /// All are.
    pub max: u64,
}

impl Spread {
    /// Of any numbers.
    pub fn of(mut values: Vec<u64>) -> Spread {
        values.sort_unstable();
        let at = |share: f64| {
            let place = (values.len() as f64 * share).ceil() as usize;
            values.get(place.saturating_sub(1)).copied()
        };
        Spread {
            p50: at(0.5).unwrap_or_default(),
            p99: at(0.99).unwrap_or_default(),
            max: values.last().copied().unwrap_or_default(),
        }
    }
}

/// Looks until it is dropped; a connection that breaks is made again.
#[derive(Debug)]
pub struct Watch {
    looks: Arc<Mutex<Vec<Behind>>>,
    task: JoinHandle<()>,
}

impl Watch {
    /// Starts looking, so often.
    pub fn start(active: &Server, standby: &Server, every: Duration) -> Watch {
        let looks = Arc::new(Mutex::new(Vec::new()));
        let (active, standby, seen) = (active.config(), standby.config(), Arc::clone(&looks));
        let task = tokio::spawn(async move {
            let began = Instant::now();
            let mut ahead = Ahead::default();
            loop {
                tokio::time::sleep(every).await;
                let (Ok(active), Ok(standby)) = tokio::join!(connect(&active), connect(&standby))
                else {
                    continue;
                };
                loop {
                    // The durable end first: what is replayed meanwhile only makes the lag smaller.
                    let Some(durable) = flushed_by(&active).await else {
                        break;
                    };
                    let Some(replayed) = replayed_by(&standby).await else {
                        break;
                    };
                    let time = ahead.look(began.elapsed(), durable, replayed);
                    if time > FAR_BEHIND {
                        tracing::debug!(?time, bytes = durable - replayed, "far behind");
                    }
                    seen.lock().push(Behind {
                        bytes: u64::try_from(durable - replayed).unwrap_or(0),
                        ms: u64::try_from(time.as_millis()).unwrap_or(u64::MAX),
                    });
                    tokio::time::sleep(every).await;
                }
            }
        });
        Watch { looks, task }
    }

    /// The worst look since the `from`th; and how many there are now.
    pub fn worst_since(&self, from: usize) -> (Behind, usize) {
        let looks = self.looks.lock();
        let since = looks.get(from..).unwrap_or_default();
        let worst = Behind {
            bytes: since.iter().map(|b| b.bytes).max().unwrap_or(0),
            ms: since.iter().map(|b| b.ms).max().unwrap_or(0),
        };
        (worst, looks.len())
    }

    /// How many looks there are.
    pub fn looks(&self) -> usize {
        self.looks.lock().len()
    }

    /// All looks, in bytes and in milliseconds.
    pub fn spread(&self) -> (Spread, Spread) {
        self.spread_since(0)
    }

    /// Those since the `from`th.
    pub fn spread_since(&self, from: usize) -> (Spread, Spread) {
        let looks = self.looks.lock();
        let looks = looks.get(from..).unwrap_or_default();
        (
            Spread::of(looks.iter().map(|b| b.bytes).collect()),
            Spread::of(looks.iter().map(|b| b.ms).collect()),
        )
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        self.task.abort();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn time_behind_counts_from_when_the_oldest_missing_position_was_durable() {
        let mut ahead = Ahead::default();
        let mut look = |ms, durable, replayed| {
            ahead
                .look(Duration::from_millis(ms), durable, replayed)
                .as_millis()
        };
        assert_eq!(look(0, 100, 100), 0);
        assert_eq!(look(100, 200, 100), 0);
        assert_eq!(look(200, 300, 150), 100);
        // 200 is replayed, 300 is durable since 200 ms.
        assert_eq!(look(500, 400, 250), 300);
        assert_eq!(look(600, 400, 400), 0);
    }

    #[test]
    fn percentiles_are_of_the_looks() {
        let spread = Spread::of((1..=200).rev().collect());
        assert_eq!((spread.p50, spread.p99, spread.max), (100, 198, 200));
        assert_eq!(Spread::of(Vec::new()), Spread::default());
    }
}
