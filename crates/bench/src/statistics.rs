//! Medians and spreads of a few runs.

use serde::Serialize;

/// What several runs of one thing gave.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Sample {
    /// Each run, in order.
    pub runs: Vec<f64>,
    /// The middle one.
    pub median: f64,
    /// From the lowest to the highest run, as a share of the median.
    pub spread: f64,
}

impl Sample {
    /// Sums up runs; all zero if there are none.
    pub fn of(runs: Vec<f64>) -> Sample {
        let mut sorted = runs.clone();
        sorted.sort_by(f64::total_cmp);
        let median = match sorted.len() {
            0 => 0.0,
            n if n % 2 == 1 => sorted[n / 2],
            n => f64::midpoint(sorted[n / 2 - 1], sorted[n / 2]),
        };
        let (low, high) = (sorted.first(), sorted.last());
        let range = high.zip(low).map_or(0.0, |(high, low)| high - low);
        Sample {
            runs,
            median,
            spread: if median > 0.0 { range / median } else { 0.0 },
        }
    }
}

/// A quantile of sorted numbers; 0 if there are none.
pub fn quantile<N: Copy + Default>(sorted: &[N], share: f64) -> N {
    let last = sorted.len().saturating_sub(1);
    let at = (last as f64 * share).round() as usize;
    sorted.get(at).copied().unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantiles_are_of_the_sorted_list() {
        assert_eq!(quantile(&[1.0, 2.0, 3.0], 0.5), 2.0);
        assert_eq!(quantile::<f64>(&[], 0.5), 0.0);
    }

    #[test]
    fn the_median_is_the_middle_or_between_the_two_in_the_middle() {
        assert_eq!(Sample::of(vec![9.0, 1.0, 5.0]).median, 5.0);
        assert_eq!(Sample::of(vec![1.0, 9.0, 4.0, 6.0]).median, 5.0);
        assert_eq!(Sample::of(vec![4.0, 5.0, 6.0]).spread, 0.4);
        assert_eq!(Sample::of(Vec::new()).median, 0.0);
    }
}
