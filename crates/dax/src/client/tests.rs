//! The whole client over sockets, against replicas that keep the replica rules and live in the test.

use std::collections::HashMap;
use std::sync::Arc;

use async_trait::async_trait;
use bytes::BytesMut;
use parking_lot::Mutex;
use tokio::io::AsyncWriteExt;
use tokio::net::UnixListener;
use tokio::net::unix::OwnedWriteHalf;
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};

use super::core::Arrival;
use super::core::tests::peer::{Peer, Sent};
use super::*;
use crate::credentials::{Greeting, Nonce, Proof, Secret, Side};
use crate::storage::VolumeSettings;
use crate::wire::{FrameReader, MAX_FRAME_BYTES, PROTOCOL, Request, Response};
use crate::writer::packing::unpack;

/// One replica: everything is durable at once.
#[derive(Default)]
struct Replica {
    peer: Peer,
    /// What its proofs are made with; without one it asks for none.
    key: Option<VolumeKey>,
    /// What the proofs of each connection are about.
    greetings: HashMap<u64, Greeting>,
    /// How often it was told anything but hello.
    told: usize,
    settings: Option<VolumeSettings>,
    connections: Vec<UnboundedSender<(u64, Response)>>,
}

impl Replica {
    fn handle(&mut self, conn: u64, id: u64, request: Request) {
        self.told += usize::from(!matches!(request, Request::Hello { .. }));
        let sent = match request {
            Request::CreateVolume {
                settings,
                rebuild,
                membership,
                ..
            } => {
                if self.settings.is_none() {
                    self.peer.rebuilding |= rebuild;
                    self.peer.membership = membership;
                }
                let known = self.settings.get_or_insert_with(|| settings.clone());
                let reply = match *known == settings {
                    true => Response::Done,
                    false => Response::Error {
                        kind: ErrorKind::Conflict,
                        message: "other settings".into(),
                    },
                };
                vec![(conn, id, reply)]
            }
            Request::Hello { volume, nonce, .. } => {
                vec![(conn, id, self.hello(conn, volume, nonce))]
            }
            Request::Proof { proof } => vec![(conn, id, self.proven(conn, &proof))],
            request => {
                let mut sent = self.peer.handle(conn, id, request);
                sent.extend(self.peer.commit());
                sent
            }
        };
        self.send(sent);
    }

    fn hello(&mut self, conn: u64, volume: VolumeName, client: Nonce) -> Response {
        let Some(key) = &self.key else {
            return self.welcome(conn);
        };
        let zone = Nonce::random().unwrap();
        let greeting = Greeting {
            volume,
            client,
            zone,
        };
        let proof = key.proof(Side::Zone, &greeting);
        self.greetings.insert(conn, greeting);
        Response::Challenge { nonce: zone, proof }
    }

    fn proven(&mut self, conn: u64, proof: &Proof) -> Response {
        let key = self.key.as_ref().unwrap();
        assert!(key.is_proven(Side::Client, &self.greetings[&conn], proof));
        self.welcome(conn)
    }

    fn welcome(&mut self, conn: u64) -> Response {
        let Arrival {
            grant,
            rebuilding,
            store,
            membership,
            standing,
            ..
        } = self.peer.welcome(conn);
        match &self.settings {
            Some(settings) => Response::Welcome {
                protocol: PROTOCOL,
                settings: settings.clone(),
                grant,
                rebuilding,
                store,
                membership,
                standing,
            },
            None if store.is_some() => Response::NoVolume {
                store: store.expect("just looked"),
            },
            None => Response::Error {
                kind: ErrorKind::NotFound,
                message: "no such volume".into(),
            },
        }
    }

    fn send(&mut self, sent: Vec<Sent>) {
        for (conn, id, response) in sent {
            // A client that went away hears nothing.
            let _ = self.connections[conn as usize].send((id, response));
        }
    }
}

struct Replicas {
    addresses: Vec<String>,
    replicas: Vec<Arc<Mutex<Replica>>>,
    listeners: Vec<JoinSet<()>>,
    dir: tempfile::TempDir,
}

impl Replicas {
    fn start() -> Replicas {
        let dir = tempfile::tempdir().unwrap();
        let mut replicas = Replicas {
            addresses: Vec::new(),
            replicas: Vec::new(),
            listeners: Vec::new(),
            dir,
        };
        for index in 0..3 {
            let path = replicas.dir.path().join(format!("z{index}"));
            replicas.addresses.push(format!("unix:{}", path.display()));
            replicas.replicas.push(Arc::default());
            replicas.listeners.push(JoinSet::new());
            replicas.listen(index);
        }
        replicas
    }

    fn listen(&mut self, index: usize) {
        let path = self.dir.path().join(format!("z{index}"));
        let _ = std::fs::remove_file(&path);
        let listener = UnixListener::bind(path).unwrap();
        let replica = Arc::clone(&self.replicas[index]);
        self.listeners[index].spawn(async move {
            let mut connections = JoinSet::new();
            while let Ok((stream, _)) = listener.accept().await {
                connections.spawn(connection(Arc::clone(&replica), stream));
            }
        });
    }

    /// Closes all connections of a replica and takes no new ones.
    async fn stop(&mut self, index: usize) {
        self.listeners[index].shutdown().await;
    }

    fn config(&self) -> ClientConfig {
        let name = VolumeName::new("v").unwrap();
        ClientConfig::new(name, self.addresses.clone(), "test")
    }

    async fn create(&self) {
        let settings = VolumeSettings::default();
        create_volume(&self.config(), &settings).await.unwrap();
    }

    /// How many have the volume and count.
    fn counting(&self) -> usize {
        let counts = |replica: &&Arc<Mutex<Replica>>| {
            let replica = replica.lock();
            replica.settings.is_some() && !replica.peer.rebuilding
        };
        self.replicas.iter().filter(counts).count()
    }

    async fn connect(&self) -> Result<Arc<Client>> {
        self.connect_with(None).await
    }

    async fn connect_with(&self, key: Option<VolumeKey>) -> Result<Arc<Client>> {
        let mut config = self.config();
        config.key = key;
        Client::connect(config).await
    }

    /// Gives replicas their keys, as many as there are.
    fn know(&self, keys: [Option<VolumeKey>; 3]) {
        for (replica, key) in self.replicas.iter().zip(keys) {
            replica.lock().key = key;
        }
    }
}

async fn connection(replica: Arc<Mutex<Replica>>, stream: tokio::net::UnixStream) {
    let (reader, writer) = stream.into_split();
    let (sender, receiver) = unbounded_channel();
    let conn = {
        let mut replica = replica.lock();
        replica.connections.push(sender);
        replica.connections.len() as u64 - 1
    };
    let mut sending = JoinSet::new();
    sending.spawn(send(receiver, writer));
    let mut reader = FrameReader::new(reader);
    while let Ok(frame) = reader.next(MAX_FRAME_BYTES).await {
        let (id, request) = Request::decode(frame).expect("the client speaks the protocol");
        replica.lock().handle(conn, id, request);
    }
}

async fn send(mut receiver: UnboundedReceiver<(u64, Response)>, mut writer: OwnedWriteHalf) {
    let mut scratch = BytesMut::new();
    while let Some((id, response)) = receiver.recv().await {
        let frame = response.encode(id, &mut scratch);
        for part in frame.parts() {
            if writer.write_all(part).await.is_err() {
                return;
            }
        }
    }
}

#[async_trait]
impl crate::conformance::Volume for Replicas {
    async fn open(&self) -> Arc<dyn Storage> {
        self.connect().await.unwrap()
    }
}

async fn created() -> Replicas {
    let replicas = Replicas::start();
    replicas.create().await;
    replicas
}

mod conformance {
    use super::*;
    crate::conformance_tests!(created().await);
}

const KEY: BlockKey = BlockKey {
    file: FileId(9),
    block: BlockIndex(0),
};

fn block_of(byte: u8) -> Bytes {
    Bytes::from(vec![byte; 8192])
}

#[tokio::test]
async fn creating_again_is_harmless_and_otherwise_a_conflict() {
    let replicas = created().await;
    replicas.create().await;
    let other = VolumeSettings {
        block_size_bytes: 16384,
        ..VolumeSettings::default()
    };
    let error = create_volume(&replicas.config(), &other).await;
    assert_eq!(error.unwrap_err().kind(), ErrorKind::Conflict);
    let mut two = replicas.config();
    two.replicas.pop();
    let two = create_volume(&two, &other).await;
    assert_eq!(two.unwrap_err().kind(), ErrorKind::Invalid);
}

/// Whoever makes a volume dies after the first replica has it: the others were told to be rebuilt, and
/// nobody was left who could.
// hazard: SEAL-2
#[tokio::test]
async fn making_a_volume_is_repeated_after_it_was_interrupted() {
    for made in 1..3 {
        let replicas = Replicas::start();
        let settings = VolumeSettings::default();
        for replica in &replicas.replicas[..made] {
            replica.lock().settings = Some(settings.clone());
        }
        replicas.create().await;
        assert!(replicas.counting() > 1, "{made} made");
        let client = replicas.connect().await.unwrap();
        let owner = NodeName::new("a").unwrap();
        client.own_epoch(&owner).await.unwrap();
    }
}

// hazard: SEAL-2
#[tokio::test]
async fn two_who_make_a_volume_at_once_both_succeed() {
    for _ in 0..20 {
        let replicas = Replicas::start();
        tokio::join!(replicas.create(), replicas.create(), replicas.create());
        assert!(replicas.counting() > 1);
        let client = replicas.connect().await.unwrap();
        let owner = NodeName::new("a").unwrap();
        client.own_epoch(&owner).await.unwrap();
    }
}

/// What a quorum of it knew is gone: no fresh replicas pretend otherwise.
// hazard: SEAL-2
#[tokio::test]
async fn a_volume_in_use_that_most_replicas_have_lost_is_not_made_again() {
    let replicas = created().await;
    let owner = NodeName::new("a").unwrap();
    let client = replicas.connect().await.unwrap();
    client.own_epoch(&owner).await.unwrap();
    client.write(KEY, Generation::SINGLE, block_of(1)).unwrap();
    client.csync(SyncScope::Volume).await.unwrap();
    drop(client);
    for replica in &replicas.replicas[..2] {
        *replica.lock() = Replica::default();
    }
    let (config, settings) = (replicas.config(), VolumeSettings::default());
    let error = create_volume(&config, &settings).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Conflict);
    assert!(error.to_string().contains("only 1 of 3"), "{error}");
    assert!(replicas.replicas[0].lock().settings.is_none());
}

#[tokio::test]
async fn an_unknown_volume_is_not_found() {
    let replicas = Replicas::start();
    assert_eq!(
        replicas.connect().await.unwrap_err().kind(),
        ErrorKind::NotFound
    );
}

#[tokio::test]
async fn a_replica_may_leave_and_come_back() {
    let mut replicas = created().await;
    let client = replicas.connect().await.unwrap();
    let name = NodeName::new("a").unwrap();
    client.own_epoch(&name).await.unwrap();
    for (round, replica) in [0, 1, 2, 0].into_iter().enumerate() {
        replicas.stop(replica).await;
        let byte = round as u8 + 1;
        client
            .write(KEY, Generation::SINGLE, block_of(byte))
            .unwrap();
        client.csync(SyncScope::Volume).await.unwrap();
        let read = client.read(KEY, Generation::MAX).await.unwrap().unwrap();
        assert_eq!(read.data[0], byte);
        replicas.listen(replica);
        let missed = || {
            let peer = &replicas.replicas[replica].lock().peer;
            let kept = peer.newest(KEY, Generation::MAX)?;
            Some(unpack(kept.data.clone(), 8192).unwrap()[0])
        };
        while missed() != Some(byte) {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    }
}

#[tokio::test]
async fn without_a_majority_everything_waits_and_then_goes_on() {
    let mut replicas = created().await;
    let client = replicas.connect().await.unwrap();
    let name = NodeName::new("a").unwrap();
    client.own_epoch(&name).await.unwrap();
    replicas.stop(0).await;
    replicas.stop(1).await;
    client.write(KEY, Generation::SINGLE, block_of(1)).unwrap();
    let syncing = {
        let client = Arc::clone(&client);
        tokio::spawn(async move { client.csync(SyncScope::Volume).await })
    };
    let getting = {
        let client = Arc::clone(&client);
        tokio::spawn(async move { client.get_record("r").await })
    };
    tokio::time::sleep(Duration::from_millis(100)).await;
    assert!(!syncing.is_finished() && !getting.is_finished());
    replicas.listen(0);
    syncing.await.unwrap().unwrap();
    assert_eq!(getting.await.unwrap().unwrap(), None);
}

#[tokio::test]
async fn a_dropped_call_is_withdrawn() {
    let mut replicas = created().await;
    let client = replicas.connect().await.unwrap();
    for replica in 0..3 {
        replicas.stop(replica).await;
    }
    let read = client.read(KEY, Generation::MAX);
    let late = tokio::time::timeout(Duration::from_millis(50), read).await;
    assert!(late.is_err());
    assert!(client.driver.is_idle());
}

fn volume_key(byte: u8) -> Option<VolumeKey> {
    let secret = Secret::parse(&[byte; 32]).unwrap();
    Some(secret.key(&VolumeName::new("v").unwrap()))
}

#[tokio::test]
async fn a_client_and_zones_with_the_same_key_work_together() {
    let replicas = created().await;
    replicas.know([volume_key(1), volume_key(1), volume_key(1)]);
    let client = replicas.connect_with(volume_key(1)).await.unwrap();
    client
        .own_epoch(&NodeName::new("a").unwrap())
        .await
        .unwrap();
    client.write(KEY, Generation::SINGLE, block_of(1)).unwrap();
    client.csync(SyncScope::Volume).await.unwrap();
}

#[tokio::test]
async fn zones_that_do_not_know_the_key_are_refused_and_told_nothing() {
    let replicas = created().await;
    let settings = VolumeSettings::default();
    let told: usize = replicas.replicas.iter().map(|r| r.lock().told).sum();
    for (theirs, ours, says) in [
        (volume_key(2), volume_key(1), "another key"),
        (None, volume_key(1), "has no secret"),
        (volume_key(2), None, "none is configured"),
    ] {
        replicas.know([theirs.clone(), theirs.clone(), theirs]);
        let connected = replicas.connect_with(ours.clone()).await.unwrap_err();
        let mut config = replicas.config();
        config.key = ours;
        let created = create_volume(&config, &settings);
        for error in [connected, created.await.unwrap_err()] {
            assert_eq!(error.kind(), ErrorKind::Denied);
            assert!(error.to_string().contains(says), "{error}");
        }
    }
    let told_now: usize = replicas.replicas.iter().map(|r| r.lock().told).sum();
    assert_eq!(told_now, told);
}

#[tokio::test]
async fn an_unproven_zone_is_not_believed_that_the_volume_is_missing() {
    let replicas = Replicas::start();
    let error = replicas.connect_with(volume_key(1)).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Denied);
    assert!(error.to_string().contains("no such volume"), "{error}");
}

#[tokio::test]
async fn pretending_zone_is_reported_and_the_others_serve() {
    let replicas = created().await;
    replicas.know([volume_key(1), None, volume_key(1)]);
    let client = replicas.connect_with(volume_key(1)).await.unwrap();
    client
        .own_epoch(&NodeName::new("a").unwrap())
        .await
        .unwrap();
    client.write(KEY, Generation::SINGLE, block_of(1)).unwrap();
    client.csync(SyncScope::Volume).await.unwrap();
    let trouble = loop {
        if let Some(trouble) = &client.replicas()[1].trouble {
            break trouble.clone();
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    };
    assert!(trouble.contains("has no secret"), "{trouble}");
    assert!(!client.replicas()[1].up);
    assert_eq!(
        replicas.replicas[1]
            .lock()
            .peer
            .newest(KEY, Generation::MAX),
        None
    );
}
