//! What `understudy status` says of Apache Cassandra, where that is the storage tier.

use coordination::config::{ClusterConfig, FencingChoice};
use dax::storage::ReplicaStatus;
use serde::Serialize;

/// The storage tier as this configuration has it, and its data centres as they look from here.
#[derive(Debug, PartialEq, Serialize)]
pub(super) struct CassandraView {
    keyspace: String,
    fencing: FencingChoice,
    /// What a takeover may have to wait for; none with verified syncs.
    lease_ms: Option<u64>,
    data_centres: Vec<DataCentre>,
}

#[derive(Debug, PartialEq, Serialize)]
struct DataCentre {
    name: String,
    /// Copies of every block,
    copies: usize,
    /// and how many of them answer.
    copies_up: usize,
    round_trip_ms: Option<f64>,
}

impl CassandraView {
    /// None if zones are the storage tier.
    pub(super) fn new(config: &ClusterConfig, replicas: &[ReplicaStatus]) -> Option<CassandraView> {
        let place = config.store.as_ref()?;
        let settings = &config.cassandra;
        let leased = settings.fencing == FencingChoice::Lease;
        let names = settings.data_centres.iter().zip(0u8..);
        let data_centres = names.map(|(name, zone)| {
            let here = replicas.iter().filter(|replica| replica.zone.0 == zone);
            let times = here.clone().filter_map(|replica| replica.round_trip);
            DataCentre {
                name: name.clone(),
                copies: here.clone().count(),
                copies_up: here.filter(|replica| replica.up).count(),
                round_trip_ms: times.min().map(|time| time.as_secs_f64() * 1000.0),
            }
        });
        Some(CassandraView {
            keyspace: place.keyspace.clone(),
            fencing: settings.fencing,
            lease_ms: leased.then_some(settings.lease.as_millis() as u64),
            data_centres: data_centres.collect(),
        })
    }

    /// The line above the copies.
    pub(super) fn line(&self) -> String {
        let up = self.data_centres.iter().filter(|dc| dc.copies_up > 0);
        let fence = match self.lease_ms {
            Some(ms) => format!("a lease of {ms} ms"),
            None => "verified syncs".to_owned(),
        };
        format!(
            "Cassandra, keyspace {}: {} of {} data centres up, fenced by {fence}\n",
            self.keyspace,
            up.count(),
            self.data_centres.len()
        )
    }
}

#[cfg(test)]
mod tests {
    use dax::ids::{ReplicaId, ZoneId};
    use std::time::Duration;

    use super::*;

    const CONFIG: &str = "name = \"north\"\nvolume = \"main\"\n                          store = \"cassandra://127.0.0.1/blocks\"\n";

    fn replica(zone: u8, up: bool) -> ReplicaStatus {
        ReplicaStatus {
            replica: ReplicaId(zone),
            zone: ZoneId(zone),
            address: String::new(),
            store: None,
            up,
            round_trip: up.then_some(Duration::from_micros(1500)),
            pending_bytes: 0,
            missed_blocks: 0,
            scrub_wanted: false,
            rebuilding: false,
            reads: None,
            full: false,
            trouble: None,
        }
    }

    #[test]
    fn data_centres_are_told_by_name() {
        let config = ClusterConfig::parse(CONFIG, None).unwrap();
        let replicas = [replica(0, true), replica(1, false), replica(2, true)];
        let view = CassandraView::new(&config, &replicas).unwrap();
        assert_eq!(
            view.line(),
            "Cassandra, keyspace blocks: 2 of 3 data centres up, fenced by a lease of 2000 ms\n"
        );
        let json = serde_json::to_value(&view).unwrap();
        assert_eq!(json["data_centres"][1]["name"], "dc2");
        assert_eq!(json["data_centres"][1]["copies_up"], 0);
        assert_eq!(json["data_centres"][2]["round_trip_ms"], 1.5);
    }

    #[test]
    fn verified_syncs_have_no_lease() {
        let verifying = format!("{CONFIG}[cassandra]\nfencing = \"verify\"\n");
        let view =
            CassandraView::new(&ClusterConfig::parse(&verifying, None).unwrap(), &[]).unwrap();
        assert_eq!(view.lease_ms, None);
        assert!(
            view.line()
                .ends_with("0 of 3 data centres up, fenced by verified syncs\n")
        );
    }

    #[test]
    fn zones_are_not_cassandra() {
        let zones = CONFIG.replace(
            "store = \"cassandra://127.0.0.1/blocks\"",
            "zones = [\"127.0.0.1:7101\"]",
        );
        assert_eq!(
            CassandraView::new(&ClusterConfig::parse(&zones, None).unwrap(), &[]),
            None
        );
    }
}
