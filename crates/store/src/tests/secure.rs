//! Connections over TCP with certificates: who has none of this cluster gets nothing.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use dax::client::{Client, ClientConfig, create_volume};
use dax::error::ErrorKind;
use dax::ids::{Generation, NodeName, VolumeName};
use dax::storage::{Storage, SyncScope, VolumeSettings};
use dax::tls::{Files, Tls, new_identity};
use rand::{Rng, RngCore, SeedableRng, rngs::SmallRng};

use super::client::key;
use super::{TestZone, config};
use crate::StoreConfig;

/// A new cluster's certificate.
pub(super) fn identity() -> Tls {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("cluster.pem");
    new_identity(&path).unwrap();
    Tls::load(Files::Identity(path)).unwrap()
}

/// A zone's configuration with a certificate of its own.
pub(super) fn protected() -> StoreConfig {
    with(&identity())
}

fn with(tls: &Tls) -> StoreConfig {
    StoreConfig {
        tls: Some(tls.clone()),
        ..config()
    }
}

/// A zone that listens on a port as well.
fn zone(config: StoreConfig) -> (TestZone, String) {
    let zone = TestZone::with(config);
    let address = zone.zone.serve("127.0.0.1:0").unwrap();
    (zone, address)
}

fn client(address: &str, tls: Option<&Tls>) -> ClientConfig {
    let name = VolumeName::new("v").unwrap();
    let mut config = ClientConfig::new(name, vec![address.to_owned()], "test");
    config.tls = tls.cloned();
    config
}

async fn owner(config: ClientConfig) -> Arc<Client> {
    let settings = VolumeSettings::spread(1, 1);
    create_volume(&config, &settings).await.unwrap();
    let client = Client::connect(config).await.unwrap();
    let owner = NodeName::new("a").unwrap();
    client.own_epoch(&owner).await.unwrap();
    client
}

/// The zone still serves its own.
async fn is_well(address: &str, tls: &Tls) {
    let client = owner(client(address, Some(tls))).await;
    let contents = Bytes::from(vec![7; 8192]);
    client
        .write(key(1, 0), Generation::SINGLE, contents)
        .unwrap();
    client.csync(SyncScope::Volume).await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn blocks_travel_whole_in_both_directions() {
    let tls = identity();
    let (_zone, address) = zone(with(&tls));
    let client = owner(client(&address, Some(&tls))).await;
    let mut rng = SmallRng::seed_from_u64(4);
    let blocks: Vec<Bytes> = (0..500)
        .map(|_| {
            let mut block = vec![0; 8192];
            rng.fill_bytes(&mut block);
            block.into()
        })
        .collect();
    for (at, block) in (0..).zip(&blocks) {
        client
            .write(key(1, at), Generation::SINGLE, block.clone())
            .unwrap();
    }
    client.csync(SyncScope::Volume).await.unwrap();
    // Many at once, so that answers are on their way while requests are.
    let reads = (0..500u64).map(|at| client.read(key(1, at), Generation::MAX));
    let read = futures_util::future::join_all(reads).await;
    for (read, block) in read.into_iter().zip(&blocks) {
        assert_eq!(read.unwrap().unwrap().data, *block);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn another_cluster_and_plaintext_are_refused_with_the_reason() {
    let (ours, theirs) = (identity(), identity());
    let (_zone, address) = zone(with(&ours));
    let (_open, plain) = zone(config());
    for (address, tls, kind, says) in [
        (
            &address,
            Some(&theirs),
            ErrorKind::Denied,
            "another cluster",
        ),
        (
            &plain,
            Some(&ours),
            ErrorKind::Denied,
            "without certificates",
        ),
    ] {
        let config = client(address, tls);
        let error = Client::connect(config).await.unwrap_err();
        assert_eq!(error.kind(), kind);
        assert!(error.to_string().contains(says), "{error}");
    }
    // A client without certificates waits for zones that answer; it is told why they do not.
    let config = client(&address, None);
    let connecting = Client::connect(config);
    let waited = tokio::time::timeout(Duration::from_millis(500), connecting).await;
    assert!(waited.is_err(), "{waited:?}");
    is_well(&address, &ours).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn noise_before_and_inside_of_a_handshake_ends_a_connection_and_nothing_else() {
    let tls = identity();
    let (zone, address) = zone(with(&tls));
    let mut rng = SmallRng::seed_from_u64(7);
    for round in 0..100 {
        let mut socket = TcpStream::connect(&address).unwrap();
        let timeout = Some(Duration::from_secs(20));
        socket.set_read_timeout(timeout).unwrap();
        let mut noise = vec![0; rng.random_range(16..3000)];
        rng.fill_bytes(&mut noise);
        if round % 2 == 0 {
            // A record of TLS whose length fits, so that the noise reaches what is behind.
            let length = (noise.len() - 5) as u16;
            noise[..3].copy_from_slice(&[0x16, 3, 1]);
            noise[3..5].copy_from_slice(&length.to_be_bytes());
        }
        // It may hang up in the middle; what it says is an alert at most, never an answer.
        let _ = socket.write_all(&noise);
        let _ = socket.shutdown(std::net::Shutdown::Write);
        let mut said = Vec::new();
        let _ = socket.read_to_end(&mut said);
        assert!(said.is_empty() || said[0] == 0x15, "{said:?}");
    }
    zone.zone.failure().unwrap();
    is_well(&address, &tls).await;
}

#[test]
fn a_handshake_that_trickles_keeps_nobodys_place() {
    let (_zone, address) = zone(StoreConfig {
        greeting_timeout: Duration::from_millis(200),
        ..protected()
    });
    let mut slow = TcpStream::connect(address).unwrap();
    // The head of a long record, then one byte after the other.
    slow.write_all(&[0x16, 3, 1, 0x3f, 0]).unwrap();
    let sent = (0..0x3f00).take_while(|_| {
        std::thread::sleep(Duration::from_millis(10));
        slow.write_all(&[1]).is_ok()
    });
    assert!(sent.count() < 0x3f00);
}
