//! Sequences: whoever was told that a number of a sequence is committed has it alone, and who asked later has a
//! larger one. Numbers may be left out.

use std::collections::HashMap;

use cluster::clients::clock::Offset;
use serde::Serialize;

/// A number that a client was told is committed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Drawn {
    pub began: Offset,
    pub ended: Offset,
    pub number: i64,
}

/// What cannot have been.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Anomaly {
    /// Given to two.
    Twice { number: i64 },
    /// Who asked after this larger number was committed got this smaller one.
    WentBack { number: i64, after: i64 },
    /// Committed, and not in the table.
    Lost { number: i64 },
}

/// Everything that is wrong: by what clients were told, and the table at the end.
pub(crate) fn check(drawn: &[Drawn], table: &[i64]) -> Vec<Anomaly> {
    let mut anomalies = Vec::new();
    let mut rows: HashMap<i64, u32> = HashMap::new();
    for &number in table {
        let count = rows.entry(number).or_default();
        *count += 1;
        if *count == 2 {
            anomalies.push(Anomaly::Twice { number });
        }
    }
    let mut told: HashMap<i64, u32> = HashMap::new();
    for draw in drawn {
        let number = draw.number;
        let count = told.entry(number).or_default();
        *count += 1;
        if *count == 2 && rows.get(&number).copied().unwrap_or(0) < 2 {
            anomalies.push(Anomaly::Twice { number });
        }
        if *count == 1 && !rows.contains_key(&number) {
            anomalies.push(Anomaly::Lost { number });
        }
    }
    anomalies.extend(went_back(drawn));
    anomalies
}

/// Goes through time, with the largest number that was committed so far.
fn went_back(drawn: &[Drawn]) -> Vec<Anomaly> {
    let begins = drawn.iter().map(|d| (d.began, false, d.number));
    let ends = drawn.iter().map(|d| (d.ended, true, d.number));
    let mut events: Vec<(Offset, bool, i64)> = begins.chain(ends).collect();
    events.sort_unstable();
    let mut largest = i64::MIN;
    let mut anomalies = Vec::new();
    for (_, is_end, number) in events {
        if is_end {
            largest = largest.max(number);
        } else if number < largest {
            let after = largest;
            anomalies.push(Anomaly::WentBack { number, after });
        }
    }
    anomalies
}

#[cfg(test)]
mod tests {
    use super::*;

    fn drawn(began: i64, ended: i64, number: i64) -> Drawn {
        Drawn {
            began: Offset(began),
            ended: Offset(ended),
            number,
        }
    }

    #[test]
    fn gaps_and_neighbours_in_any_order_are_right() {
        let history = [drawn(0, 5, 2), drawn(1, 4, 1), drawn(6, 7, 35)];
        assert_eq!(check(&history, &[1, 2, 3, 35]), []);
    }

    #[test]
    fn a_number_given_twice_lost_or_smaller_than_before_is_found() {
        let twice = [drawn(0, 1, 1), drawn(0, 1, 1)];
        assert_eq!(check(&twice, &[1]), [Anomaly::Twice { number: 1 }]);
        assert_eq!(check(&twice, &[1, 1]), [Anomaly::Twice { number: 1 }]);
        assert_eq!(check(&[drawn(0, 1, 1)], &[]), [Anomaly::Lost { number: 1 }]);
        let back = [drawn(0, 1, 40), drawn(2, 3, 8)];
        let went_back = Anomaly::WentBack {
            number: 8,
            after: 40,
        };
        assert_eq!(check(&back, &[40, 8]), [went_back]);
    }
}
