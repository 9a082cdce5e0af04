//! Who has not a volume's key gets nothing, learns nothing and disturbs nobody.

use std::sync::Arc;
use std::time::Duration;

use dax::client::{ClientConfig, create_volume};
use dax::credentials::{Nonce, Proof, Secret, Side, VolumeKey};
use dax::error::ErrorKind;
use dax::ids::{Epoch, Generation, NodeName, VolumeName};
use dax::storage::{Storage, SyncScope, VolumeSettings};
use dax::wire::{MAX_GREETING_BYTES, Request, Response};
use rand::{Rng, RngCore, SeedableRng, rngs::SmallRng};

use super::client::{Client, key, kind, v, write};
use super::{TestZone, config};
use crate::{OpenError, StoreConfig};

fn secret(byte: u8) -> Secret {
    Secret::parse(&[byte; 40]).unwrap()
}

fn name(volume: &str) -> VolumeName {
    VolumeName::new(volume).unwrap()
}

fn key_of(volume: &str) -> VolumeKey {
    secret(1).key(&name(volume))
}

fn with_secret() -> StoreConfig {
    StoreConfig {
        secret: Some(secret(1)),
        ..config()
    }
}

/// Makes the volume, proves to know its key, and owns epoch 1.
fn owner(t: &TestZone, volume: &str) -> Client {
    let mut c = Client::silent(&t.address);
    let key = key_of(volume);
    assert!(matches!(c.prove(volume, &key), Response::NoVolume { .. }));
    assert_eq!(c.create(volume), Response::Done);
    assert!(matches!(c.prove(volume, &key), Response::Welcome { .. }));
    assert!(c.own(1, "owner/1"));
    c
}

/// Everything that could tell or change something.
fn requests() -> Vec<Request> {
    let value = Some(bytes::Bytes::from_static(b"x"));
    // Short enough for a stranger.
    let mut block = write(key(1, 0), Generation::SINGLE, v(1, 9));
    block.data.truncate(100);
    vec![
        Request::Ping,
        Request::Space,
        Request::Epoch,
        Request::Flush,
        Request::Write(block),
        Request::Read {
            key: key(1, 0),
            up_to: Generation::MAX,
        },
        Request::GetRecord { name: "r".into() },
        Request::ListRecords {
            prefix: String::new(),
            after: None,
        },
        Request::PutRecord {
            epoch: None,
            name: "r".into(),
            version: v(9, 9),
            value,
        },
        Request::OwnEpoch {
            epoch: Epoch(9),
            owner: "thief".into(),
            settled: true,
        },
        Request::CreateVolume {
            volume: name("a"),
            settings: super::client::settings(),
            rebuild: false,
            membership: None,
        },
        Request::CreateVolume {
            volume: name("new"),
            settings: super::client::settings(),
            rebuild: false,
            membership: None,
        },
    ]
}

/// The zone's last words on this connection, which must be an error and the end.
fn refusal(mut c: Client, request: &Request) -> ErrorKind {
    c.send(1, request);
    let (_, response) = c.receive();
    assert!(c.is_hung_up(), "{request:?}");
    kind(&response).unwrap_or_else(|| panic!("{request:?} is answered by {response:?}"))
}

#[test]
fn a_client_with_the_key_makes_and_uses_a_volume() {
    let t = TestZone::with(with_secret());
    let mut c = owner(&t, "a");
    c.write(write(key(1, 0), Generation::SINGLE, v(1, 1)));
    c.flush();
    let mut other = Client::silent(&t.address);
    let welcome = other.prove("a", &key_of("a"));
    assert!(matches!(welcome, Response::Welcome { .. }));
    assert_eq!(other.version(key(1, 0), Generation::MAX), Some(v(1, 1)));
}

#[test]
fn without_a_proof_nothing_is_answered_before_or_after_hello() {
    let t = TestZone::with(with_secret());
    let mut c = owner(&t, "a");
    for request in requests() {
        let stranger = Client::silent(&t.address);
        assert_eq!(refusal(stranger, &request), ErrorKind::Protocol);
        let mut challenged = Client::silent(&t.address);
        challenged.challenged("a", Nonce([1; 32]));
        assert_eq!(refusal(challenged, &request), ErrorKind::Protocol);
    }
    assert!(matches!(
        c.ask(Request::Ping),
        Response::Pong {
            rebuilding: false,
            ..
        }
    ));
    assert_eq!(c.version(key(1, 0), Generation::MAX), None);
    assert!(matches!(c.ask(Request::Epoch), Response::Epoch(grant) if grant.epoch == Epoch(1)));
}

#[test]
fn a_wrong_key_is_refused_the_same_whether_the_volume_exists_or_not() {
    let t = TestZone::with(with_secret());
    owner(&t, "a");
    let wrong = [
        key_of("b"),
        secret(2).key(&name("a")),
        secret(2).key(&name("missing")),
    ];
    let mut said = Vec::new();
    for wrong in wrong {
        for volume in ["a", "missing"] {
            let mut c = Client::silent(&t.address);
            let (greeting, proof) = c.challenged(volume, Nonce([1; 32]));
            // A client that is honest stops here.
            assert!(!wrong.is_proven(Side::Zone, &greeting, &proof));
            let proof = wrong.proof(Side::Client, &greeting);
            c.send(7, &Request::Proof { proof });
            let (id, response) = c.receive();
            assert!(c.is_hung_up());
            assert_eq!(id, 7);
            let Response::Error { kind, message } = response else {
                panic!("{response:?}");
            };
            assert_eq!(kind, ErrorKind::Denied);
            said.push(message.replace(volume, ""));
        }
    }
    said.dedup();
    assert_eq!(said.len(), 1, "{said:?}");
}

#[test]
fn a_key_is_good_for_its_volume_only() {
    let t = TestZone::with(with_secret());
    let mut a = owner(&t, "a");
    a.write(write(key(1, 0), Generation::SINGLE, v(1, 1)));
    a.flush();
    let mut b = owner(&t, "b");
    assert_eq!(b.version(key(1, 0), Generation::MAX), None);
    b.write(write(key(1, 0), Generation::SINGLE, v(1, 2)));
    b.flush();
    assert_eq!(a.version(key(1, 0), Generation::MAX), Some(v(1, 1)));
    // Neither a bound connection nor an admitted one makes another volume, or turns to it.
    let create = |volume: &str| Request::CreateVolume {
        volume: name(volume),
        settings: super::client::settings(),
        rebuild: false,
        membership: None,
    };
    assert_eq!(refusal(b, &create("c")), ErrorKind::Protocol);
    let mut admitted = Client::silent(&t.address);
    let answer = admitted.prove("c", &key_of("c"));
    assert!(matches!(answer, Response::NoVolume { .. }));
    assert_eq!(refusal(admitted, &create("d")), ErrorKind::Protocol);
    let mut turning = Client::silent(&t.address);
    turning.prove("c", &key_of("c"));
    let (greeting, _) = turning.challenged("a", Nonce([1; 32]));
    let proof = key_of("c").proof(Side::Client, &greeting);
    let denied = refusal(turning, &Request::Proof { proof });
    assert_eq!(denied, ErrorKind::Denied);
}

#[test]
fn a_replayed_or_reflected_proof_is_refused() {
    let t = TestZone::with(with_secret());
    owner(&t, "a");
    let nonce = Nonce([6; 32]);
    let mut c = Client::silent(&t.address);
    let (greeting, zones_own) = c.challenged("a", nonce);
    let recorded = key_of("a").proof(Side::Client, &greeting);
    let answer = c.ask(Request::Proof { proof: recorded });
    assert!(matches!(answer, Response::Welcome { .. }));
    for proof in [recorded, zones_own] {
        let mut replaying = Client::silent(&t.address);
        replaying.challenged("a", nonce);
        let denied = refusal(replaying, &Request::Proof { proof });
        assert_eq!(denied, ErrorKind::Denied);
    }
    // What the zone proves to one client is of no use to another.
    let mut reflecting = Client::silent(&t.address);
    let (_, proof) = reflecting.challenged("a", nonce);
    let denied = refusal(reflecting, &Request::Proof { proof });
    assert_eq!(denied, ErrorKind::Denied);
}

#[test]
fn a_proof_that_nobody_asked_for_is_refused() {
    let proof = Proof([0; 32]);
    let t = TestZone::with(with_secret());
    let c = Client::silent(&t.address);
    assert_eq!(refusal(c, &Request::Proof { proof }), ErrorKind::Protocol);
    let bound = owner(&t, "a");
    assert_eq!(
        refusal(bound, &Request::Proof { proof }),
        ErrorKind::Protocol
    );
    let open = TestZone::new();
    let c = Client::silent(&open.address);
    assert_eq!(refusal(c, &Request::Proof { proof }), ErrorKind::Protocol);
}

#[test]
fn a_stranger_may_send_short_frames_only() {
    let t = TestZone::with(with_secret());
    let mut c = owner(&t, "a");
    for len in [MAX_GREETING_BYTES as u32 + 1, 1 << 20, u32::MAX] {
        let mut stranger = Client::silent(&t.address);
        stranger.send_bytes(&len.to_le_bytes()).unwrap();
        assert!(stranger.is_hung_up(), "{len}");
        let mut challenged = Client::silent(&t.address);
        challenged.challenged("a", Nonce([1; 32]));
        challenged.send_bytes(&len.to_le_bytes()).unwrap();
        assert!(challenged.is_hung_up(), "{len}");
    }
    // Who is known may send longer ones.
    let value = Some(vec![1; 2 * MAX_GREETING_BYTES].into());
    let stored = c.ask(Request::PutRecord {
        epoch: None,
        name: "long".into(),
        version: v(1, 1),
        value,
    });
    assert_eq!(stored, Response::RecordStored { version: v(1, 1) });
}

#[test]
fn a_stranger_who_takes_too_long_is_disconnected_and_others_are_not() {
    let t = TestZone::with(StoreConfig {
        greeting_timeout: Duration::from_millis(200),
        ..with_secret()
    });
    let mut c = owner(&t, "a");
    let mut silent = Client::silent(&t.address);
    assert!(silent.is_hung_up());
    // One byte after the other keeps nobody's place either.
    let mut slow = Client::silent(&t.address);
    slow.send_bytes(&(MAX_GREETING_BYTES as u32).to_le_bytes())
        .unwrap();
    let sent = (0..MAX_GREETING_BYTES).take_while(|_| {
        std::thread::sleep(Duration::from_millis(10));
        slow.send_bytes(&[1]).is_ok()
    });
    assert!(sent.count() < MAX_GREETING_BYTES);
    assert!(matches!(
        c.ask(Request::Ping),
        Response::Pong {
            rebuilding: false,
            ..
        }
    ));
}

#[test]
fn strangers_fill_their_places_and_no_others() {
    let t = TestZone::with(StoreConfig {
        strangers_max: 3,
        ..with_secret()
    });
    let mut c = owner(&t, "a");
    let come = || {
        let mut stranger = Client::silent(&t.address);
        let (greeting, _) = stranger.challenged("a", Nonce([1; 32]));
        (stranger, greeting)
    };
    let mut strangers = [come(), come(), come()];
    assert!(Client::silent(&t.address).is_hung_up());
    assert!(matches!(
        c.ask(Request::Ping),
        Response::Pong {
            rebuilding: false,
            ..
        }
    ));
    // Who has proved to be none leaves a place to another.
    let (known, greeting) = &mut strangers[0];
    let proof = key_of("a").proof(Side::Client, greeting);
    let answer = known.ask(Request::Proof { proof });
    assert!(matches!(answer, Response::Welcome { .. }));
    let (_next, _) = come();
    assert!(Client::silent(&t.address).is_hung_up());
}

#[test]
fn noise_at_every_stage_ends_that_connection_and_nothing_else() {
    let t = TestZone::with(with_secret());
    let mut c = owner(&t, "a");
    let mut rng = SmallRng::seed_from_u64(2);
    for round in 0..200u64 {
        let mut noisy = Client::silent(&t.address);
        match round % 4 {
            0 => {}
            1 => drop(noisy.challenged("a", Nonce([1; 32]))),
            2 => drop(noisy.prove("nothing", &key_of("nothing"))),
            _ => drop(noisy.prove("a", &key_of("a"))),
        }
        let mut noise = vec![0; rng.random_range(13..3000)];
        rng.fill_bytes(&mut noise);
        if round % 3 > 0 {
            // A sound length and tag, so that the noise reaches the decoder.
            let len = noise.len() as u32 - 4;
            noise.splice(..4, len.to_le_bytes());
            noise[12] = rng.random_range(0..20);
        }
        let _ = noisy.send_bytes(&noise); // it may hang up in the middle
        if round % 20 == 0 {
            c.write(write(key(1, round), Generation::SINGLE, v(1, round + 1)));
            c.flush();
        }
    }
    t.zone.failure().unwrap();
    for round in (0..200).step_by(20) {
        let version = c.version(key(1, round), Generation::MAX);
        assert_eq!(version, Some(v(1, round + 1)));
    }
}

#[test]
fn without_a_certificate_only_this_machine_may_connect() {
    let open = TestZone::new();
    for address in ["0.0.0.0:0", "[::]:0"] {
        match open.zone.serve(address) {
            Err(error @ OpenError::Unprotected { .. }) => {
                let text = error.to_string();
                assert!(text.contains("--identity"), "{text}");
                assert!(text.contains(address), "{text}");
            }
            // This machine may lack one of the two.
            Err(OpenError::Address { .. }) => {}
            other => panic!("{other:?}"),
        }
    }
    for address in ["127.0.0.1:0", "localhost:0"] {
        open.zone.serve(address).unwrap();
    }
    let closed = TestZone::with(super::secure::protected());
    closed.zone.serve("0.0.0.0:0").unwrap();
}

fn client(addresses: &[String], key: Option<VolumeKey>) -> ClientConfig {
    let mut config = ClientConfig::new(name("a"), addresses.to_vec(), "test");
    config.key = key;
    config
}

async fn connect(
    addresses: &[String],
    key: Option<VolumeKey>,
) -> dax::Result<Arc<dax::client::Client>> {
    dax::client::Client::connect(client(addresses, key)).await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_replication_client_proves_itself_or_says_what_is_wrong() {
    let zones: Vec<TestZone> = (0..3).map(|_| TestZone::with(with_secret())).collect();
    let addresses: Vec<String> = zones.iter().map(|z| z.address.clone()).collect();
    let settings = VolumeSettings::default();
    let create =
        async |key: Option<VolumeKey>| create_volume(&client(&addresses, key), &settings).await;
    let wrong = secret(2).key(&name("a"));
    for (key, says) in [(None, "none is configured"), (Some(wrong), "another key")] {
        let error = create(key.clone()).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Denied);
        assert!(error.to_string().contains(says), "{error}");
        let error = connect(&addresses, key).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Denied);
        assert!(error.to_string().contains(says), "{error}");
    }
    let right = || Some(key_of("a"));
    let error = connect(&addresses, right()).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::NotFound);
    create(right()).await.unwrap();
    create(right()).await.unwrap();
    let client = connect(&addresses, right()).await.unwrap();
    let owner = NodeName::new("a").unwrap();
    client.own_epoch(&owner).await.unwrap();
    let contents = bytes::Bytes::from(vec![7; 8192]);
    client
        .write(key(1, 0), Generation::SINGLE, contents.clone())
        .unwrap();
    client.csync(SyncScope::Volume).await.unwrap();
    let read = client.read(key(1, 0), Generation::MAX).await.unwrap();
    assert_eq!(read.unwrap().data, contents);
}
