//! How far the zones are from each other. Latencies are one way; the tenant is in the first zone.

use std::time::Duration;

use store::{Link, Network};

/// A setting of the network.
#[derive(Debug, Clone)]
pub(super) struct Distance {
    pub name: &'static str,
    pub network: Network,
}

/// The three settings of figure 6.
pub(super) fn distances() -> [Distance; 3] {
    [
        distance("one zone", 0.1, 0.1, 0.1),
        distance("zones 1 ms apart", 1.0, 1.0, 1.0),
        regions(),
    ]
}

/// Round trips as between the paper's regions: 75 ms and 35 ms to the others, 40 ms between them.
pub(super) fn regions() -> Distance {
    distance("regions 35 and 75 ms apart", 35.0, 75.0, 40.0)
}

/// Round trips in milliseconds: first to second, first to third, second to third zone.
fn distance(name: &'static str, near: f64, far: f64, between: f64) -> Distance {
    Distance {
        name,
        network: network(&[(0, 1, near), (0, 2, far), (1, 2, between)]),
    }
}

fn network(round_trips_ms: &[(u8, u8, f64)]) -> Network {
    let link = |(a, b, ms): &(u8, u8, f64)| {
        let one_way = Duration::from_secs_f64(ms / 2000.0);
        Link {
            latency: one_way,
            // A little, as real lines have.
            jitter: one_way / 50,
            ..Link::new(&a.to_string(), &b.to_string())
        }
    };
    Network {
        links: round_trips_ms.iter().map(link).collect(),
        ..Network::default()
    }
}
