//! Transactions of the log that may be executed now, until somebody takes them.
//!
//! ```text
//!   ready ──add──▶ waits while others are executed, for up to LATER ──take──▶ executed as one, with all that wait
//! ```
//!
//! What a transaction costs its member falls with the number of those that are executed as one, so whoever executes some takes all that
//! came meanwhile. A transaction does not wait long for that: others may be executed for minutes.
//!
//! Invariant: what is here may be executed in any order, and together, because of what conflicts the schedule has begun only the first.
//! Nothing stays: whoever is told to come takes until there is nothing left, and of what is added while others are busy somebody
//! comes later.

use std::collections::VecDeque;
use std::time::Duration;

use parking_lot::Mutex;

use crate::core::manager::Life;
use crate::core::record::Record;

/// So many transactions are executed as one at most.
const TOGETHER: usize = 16;
/// How long they wait at most while others are executed.
pub const LATER: Duration = Duration::from_millis(1);

/// Who has to come and take.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Comes {
    /// Somebody, at once.
    Now,
    /// Somebody, after [`LATER`], who asks [`Ready::come`].
    Later,
    /// Nobody more than those who are there or will be.
    Nobody,
}

#[derive(Default)]
struct State {
    waiting: VecDeque<(Life, Record)>,
    /// Those who take and execute.
    executing: usize,
    /// Somebody comes later.
    is_awaited: bool,
}

/// See the module.
#[derive(Default)]
pub struct Ready(Mutex<State>);

impl Ready {
    /// Adds what became ready in this life of the member.
    pub fn add(&self, life: Life, records: Vec<Record>) -> Comes {
        let mut state = self.0.lock();
        state
            .waiting
            .extend(records.into_iter().map(|record| (life, record)));
        if state.waiting.is_empty() {
            Comes::Nobody
        } else if state.executing == 0 || state.waiting.len() >= TOGETHER {
            state.executing += 1;
            Comes::Now
        } else if !std::mem::replace(&mut state.is_awaited, true) {
            Comes::Later
        } else {
            Comes::Nobody
        }
    }

    /// True if somebody who has come later has something to do.
    pub fn come(&self) -> bool {
        let mut state = self.0.lock();
        state.is_awaited = false;
        let has_work = !state.waiting.is_empty();
        state.executing += usize::from(has_work);
        has_work
    }

    /// Takes what is executed together, of one life; nothing, if whoever executes may go.
    pub fn take(&self) -> Option<(Life, Vec<Record>)> {
        let mut state = self.0.lock();
        let Some((life, _)) = state.waiting.front() else {
            state.executing -= 1;
            return None;
        };
        let life = *life;
        let same = state.waiting.iter().take(TOGETHER);
        let count = same.take_while(|(other, _)| *other == life).count();
        let records = state.waiting.drain(..count).map(|(_, record)| record);
        Some((life, records.collect()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::core::class::Claims;

    fn records(numbers: std::ops::Range<u64>) -> Vec<Record> {
        numbers
            .map(|number| Record::of(number, Claims::default(), 0))
            .collect()
    }

    /// How many are taken, until there are none.
    fn taken(ready: &Ready) -> Vec<usize> {
        std::iter::from_fn(|| ready.take().map(|(_, records)| records.len())).collect()
    }

    #[test]
    fn what_comes_while_others_are_executed_is_executed_as_one() {
        let (ready, life) = (Ready::default(), Life(1));
        assert_eq!(ready.add(life, records(0..1)), Comes::Now);
        assert_eq!(ready.take().map(|(_, records)| records.len()), Some(1));
        assert_eq!(ready.add(life, records(1..2)), Comes::Later);
        assert_eq!(ready.add(life, records(2..5)), Comes::Nobody);
        assert_eq!(taken(&ready), [4]);
        // Whoever was to come later finds nothing.
        assert!(!ready.come());
        assert_eq!(ready.add(life, records(5..6)), Comes::Now);
    }

    /// Transactions that had become ready behind a long one waited until that had ended.
    #[test]
    fn nobody_waits_long_for_what_others_execute() {
        let (ready, life) = (Ready::default(), Life(1));
        assert_eq!(ready.add(life, records(0..1)), Comes::Now);
        assert!(ready.take().is_some());
        assert_eq!(ready.add(life, records(1..2)), Comes::Later);
        assert!(ready.come());
        assert_eq!(taken(&ready), [1]);
        // The first one is executed still.
        assert_eq!(ready.add(life, records(2..3)), Comes::Later);
    }

    #[test]
    fn many_are_taken_by_several_and_lives_are_apart() {
        let ready = Ready::default();
        assert_eq!(
            ready.add(Life(1), records(0..TOGETHER as u64 + 3)),
            Comes::Now
        );
        assert_eq!(ready.add(Life(2), records(0..TOGETHER as u64)), Comes::Now);
        let lives: Vec<_> = std::iter::from_fn(|| ready.take())
            .map(|(life, records)| (life.0, records.len()))
            .collect();
        assert_eq!(lives, [(1, TOGETHER), (1, 3), (2, TOGETHER)]);
        assert!(ready.take().is_none());
        assert_eq!(ready.add(Life(2), Vec::new()), Comes::Nobody);
        assert_eq!(ready.add(Life(2), records(9..10)), Comes::Now);
    }
}
