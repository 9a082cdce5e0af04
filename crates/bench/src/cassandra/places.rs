//! Where the data centres are: all on this machine's loopback, or in network namespaces with long lines
//! between them.

use std::net::IpAddr;
use std::time::Duration;

use anyhow::Context;
use cassandra::server::Site;
use clap::ValueEnum;
use serde::Serialize;

use cluster::sites::{self, Sites};

/// How far the data centres are apart. Clients are next to the first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, ValueEnum)]
#[serde(rename_all = "snake_case")]
pub enum Distance {
    /// All are near.
    OneMachine,
    /// The first is 30 ms from the second there and back, 80 ms from the third; these are 60 ms apart.
    Wan,
}

impl Distance {
    /// In milliseconds: first to second data centre, first to third, second to third. `None` if all are near.
    pub(super) fn round_trips_ms(self) -> Option<[f64; 3]> {
        match self {
            Distance::OneMachine => None,
            Distance::Wan => Some([30.0, 80.0, 60.0]),
        }
    }
}

/// The namespaces, if there are any. Dropping it removes them.
#[derive(Debug)]
pub(super) struct Places(Option<Sites>);

impl Places {
    /// Makes the namespaces of a distance.
    pub fn create(distance: Distance) -> anyhow::Result<Places> {
        let Some(trips) = distance.round_trips_ms() else {
            return Ok(Places(None));
        };
        let sites = Sites::apart(&names(), |from, to| one_way(trips, from, to))?;
        Ok(Places(Some(sites)))
    }

    /// Where each node of Cassandra goes; empty if on loopback addresses.
    pub fn sites(&self) -> anyhow::Result<Vec<Site>> {
        let Some(sites) = &self.0 else {
            return Ok(Vec::new());
        };
        let place = |name: &String| {
            let address = sites.address(name)?;
            let inside = sites.wrapper(name)?;
            let address = IpAddr::V4(address);
            Some(Site { address, inside })
        };
        let all: Option<Vec<Site>> = names().iter().map(place).collect();
        all.context("a data centre has no place")
    }
}

fn names() -> [String; 3] {
    ["dc1", "dc2", "dc3"].map(str::to_owned)
}

/// The data centre of each place. The last one is the clients'.
const DATA_CENTRES: [usize; 4] = [0, 1, 2, 0];

/// Half the round trip between two places. `trips` as [`Distance::round_trips_ms`] gives them.
fn one_way(trips: [f64; 3], from: usize, to: usize) -> Duration {
    sites::one_way(trips, DATA_CENTRES[from], DATA_CENTRES[to])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn clients_are_beside_the_first_data_centre() {
        let trips = Distance::Wan.round_trips_ms().unwrap();
        let trip = |from, to| one_way(trips, from, to) * 2;
        assert_eq!(trip(0, 1), Duration::from_millis(30));
        assert_eq!(trip(2, 0), Duration::from_millis(80));
        assert_eq!(trip(1, 2), Duration::from_millis(60));
        assert_eq!(trip(3, 0), Duration::ZERO);
        assert_eq!(trip(3, 1), Duration::from_millis(30));
        assert_eq!(trip(2, 3), Duration::from_millis(80));
    }

    #[test]
    fn nothing_is_made_for_one_machine() {
        let places = Places::create(Distance::OneMachine).unwrap();
        assert!(places.sites().unwrap().is_empty());
    }
}
