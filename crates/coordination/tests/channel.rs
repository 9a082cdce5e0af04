//! The direct channel between two agents of one process, over both kinds of sockets.

#![allow(clippy::unwrap_used, reason = "a test that meets an error fails")]

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use coordination::address::Address;
use coordination::channel::{
    ChannelError, ClientEvent, Handler, Identity, Notice, Party, Progress, Request, Server,
    Subscription, Trigger, open_session, request, subscribe,
};
use coordination::records::Incarnation;
use dax::ids::{Epoch, NodeName, VolumeName};
use dax::tls::{Files, Tls, new_identity};
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::UnixStream;
use tokio::sync::mpsc::{self, UnboundedReceiver};
use volume::lsn::Lsn;
use volume::recent_log::RecentLog;

const LIMIT: Duration = Duration::from_secs(20);

struct Echo;

#[async_trait]
impl Handler for Echo {
    async fn request(&self, request: Request) -> Result<Value, String> {
        match request {
            Request::Status => Ok(json!({ "state": "active" })),
            Request::Failover { to, force } => Ok(json!({ "to": to, "force": force })),
            Request::Reload { journal } => Ok(json!({ "journal": journal })),
            Request::Restart
            | Request::Reinitialize
            | Request::Exchange { .. }
            | Request::CancelExchange
            | Request::InVolume { .. }
            | Request::Checkpoint
            | Request::FinishUpgrade => Ok(json!({})),
            Request::Enlist => std::future::pending().await,
            Request::Unknown(_) => Err("this agent does not know that request".into()),
        }
    }

    /// A server that repeats what it is told.
    async fn session(&self) -> Result<UnixStream, String> {
        let (ours, theirs) = UnixStream::pair().map_err(|error| error.to_string())?;
        tokio::spawn(async move {
            let (mut read, mut write) = theirs.into_split();
            tokio::io::copy(&mut read, &mut write).await
        });
        Ok(ours)
    }
}

fn identity(node: &str, volume: &str) -> Identity {
    Identity {
        node: NodeName::new(node).unwrap(),
        volume: VolumeName::new(volume).unwrap(),
        incarnation: Incarnation("1".into()),
    }
}

fn party(node: &str, volume: &str) -> Party {
    Party {
        me: identity(node, volume),
        tls: None,
    }
}

fn any_port() -> Address {
    "127.0.0.1:0".parse().unwrap()
}

async fn server_at(address: &Address) -> Server {
    Server::bind(address, party("a", "main"), Arc::new(Echo))
        .await
        .unwrap()
}

fn standby(server: &Server) -> (Subscription, UnboundedReceiver<ClientEvent>) {
    let (events, received) = mpsc::unbounded_channel();
    (
        subscribe(server.address().clone(), party("b", "main"), events, None),
        received,
    )
}

fn trigger(lsn: u64) -> Trigger {
    Trigger {
        epoch: Epoch(1),
        synced_lsn: Lsn(lsn),
        journal_synced: 7,
        timeline: 1,
        starts: 0,
        proxied: false,
    }
}

/// The next event for which `wanted` holds.
async fn next(
    events: &mut UnboundedReceiver<ClientEvent>,
    wanted: fn(&ClientEvent) -> bool,
) -> ClientEvent {
    let find = async {
        loop {
            let event = events.recv().await.unwrap();
            if wanted(&event) {
                return event;
            }
        }
    };
    tokio::time::timeout(LIMIT, find).await.unwrap()
}

async fn connected(events: &mut UnboundedReceiver<ClientEvent>) {
    next(
        events,
        |e| matches!(e, ClientEvent::Connected(peer) if peer.node.as_str() == "a"),
    )
    .await;
}

#[tokio::test]
async fn triggers_arrive_and_the_latest_wins() {
    let server = server_at(&any_port()).await;
    server.publish(trigger(1));
    let (subscription, mut events) = standby(&server);
    connected(&mut events).await;
    for lsn in 2..=1000 {
        server.publish(trigger(lsn));
    }
    let mut triggers = subscription.triggers();
    let mut last = Lsn::ZERO;
    while last < Lsn(1000) {
        tokio::time::timeout(LIMIT, triggers.changed())
            .await
            .unwrap()
            .unwrap();
        let now = triggers.borrow_and_update().unwrap();
        assert!(now.synced_lsn > last, "an older trigger after a newer one");
        last = now.synced_lsn;
    }
    // Whoever connects later gets the latest one at once.
    let (late, _events) = standby(&server);
    let mut triggers = late.triggers();
    tokio::time::timeout(LIMIT, triggers.changed())
        .await
        .unwrap()
        .unwrap();
    assert_eq!(*triggers.borrow(), Some(trigger(1000)));
}

#[tokio::test]
async fn the_log_goes_with_the_triggers_of_its_epoch() {
    let server = server_at(&any_port()).await;
    let written = Arc::new(RecentLog::new(Epoch(1)));
    server.send_along(Arc::clone(&written));
    let wanted = Arc::new(RecentLog::new(Epoch(1)));
    let of_another_epoch = Arc::new(RecentLog::new(Epoch(2)));
    let follow = |log: &Arc<RecentLog>| {
        let (events, received) = mpsc::unbounded_channel();
        let (to, log) = (server.address().clone(), Some(Arc::clone(log)));
        let subscription = subscribe(to, party("b", "main"), events, log);
        (subscription, received)
    };
    let (first, mut events) = follow(&wanted);
    connected(&mut events).await;
    let (second, mut events) = follow(&of_another_epoch);
    connected(&mut events).await;
    let mut seen = [first.triggers(), second.triggers()];
    let mut publish = async |lsn: u64| {
        server.publish(trigger(lsn));
        for triggers in &mut seen {
            let there = |t: &Option<Trigger>| t.is_some_and(|t| t.synced_lsn == Lsn(lsn));
            let arrived = triggers.wait_for(there);
            tokio::time::timeout(LIMIT, arrived).await.unwrap().unwrap();
        }
    };
    written.put(Lsn(8192), &[7; 8192]);
    publish(8192).await;
    publish(8192 + 100).await;
    // No more than is durable, however much was written.
    assert_eq!(wanted.read(Lsn(8192)..Lsn(8293)), None);
    publish(8192 + 5000).await;
    let sent = wanted.read(Lsn(8192)..Lsn(8192 + 5000));
    assert_eq!(sent, Some(vec![7; 5000].into()));
    assert_eq!(of_another_epoch.read(Lsn(8192)..Lsn(8193)), None);
    // What is not at hand any more has to be read.
    written.put(Lsn(100_000), &[8; 10]);
    publish(100_005).await;
    assert_eq!(wanted.read(Lsn(100_000)..Lsn(100_001)), None);
    publish(100_010).await;
    let sent = wanted.read(Lsn(100_005)..Lsn(100_010));
    assert_eq!(sent, Some(vec![8; 5].into()));
}

#[tokio::test]
async fn progress_is_listed_until_the_standby_leaves() {
    let server = server_at(&any_port()).await;
    let mut changed = server.subscribers_changed();
    let (subscription, mut events) = standby(&server);
    connected(&mut events).await;
    let progress = Progress {
        applied: Lsn(5),
        warm: true,
        ..Progress::default()
    };
    subscription.progress(progress);
    let told = changed.wait_for(|_| {
        server
            .subscribers()
            .first()
            .is_some_and(|s| s.progress == Some(progress))
    });
    tokio::time::timeout(LIMIT, told).await.unwrap().unwrap();
    assert_eq!(server.subscribers()[0].who, identity("b", "main"));
    drop(subscription);
    let left = changed.wait_for(|_| server.subscribers().is_empty());
    tokio::time::timeout(LIMIT, left).await.unwrap().unwrap();
}

#[tokio::test]
async fn notices_reach_every_subscriber_once() {
    let server = server_at(&any_port()).await;
    let (_b, mut to_b) = standby(&server);
    let (_c, mut to_c) = standby(&server);
    connected(&mut to_b).await;
    connected(&mut to_c).await;
    let notice = Notice::PostgresDead {
        epoch: Epoch(1),
        detail: "signal 9".into(),
    };
    server.announce(notice.clone());
    for events in [&mut to_b, &mut to_c] {
        let event = next(events, |e| matches!(e, ClientEvent::Notice(_))).await;
        assert_eq!(event, ClientEvent::Notice(notice.clone()));
    }
    let status = request(
        server.address(),
        &party("cli", "main"),
        Request::Status,
        LIMIT,
    )
    .await;
    assert!(status.is_ok());
    assert!(to_b.try_recv().is_err(), "told twice");
}

#[tokio::test]
async fn a_dead_agent_is_a_reset_and_a_refusal_and_its_return_is_noticed() {
    let server = server_at(&any_port()).await;
    let address = server.address().clone();
    let (_subscription, mut events) = standby(&server);
    connected(&mut events).await;
    drop(server);
    let event = next(&mut events, |_| true).await;
    assert_eq!(event, ClientEvent::Reset);
    next(&mut events, |e| *e == ClientEvent::Refused).await;
    let _again = server_at(&address).await;
    connected(&mut events).await;
}

#[tokio::test]
async fn a_unix_socket_serves_the_same_and_a_dead_ones_file_is_replaced() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("agent");
    // What a killed agent leaves: a file that nobody listens at.
    drop(std::os::unix::net::UnixListener::bind(&path).unwrap());
    let server = server_at(&Address::Unix(path.clone())).await;
    let mode =
        std::os::unix::fs::PermissionsExt::mode(&std::fs::metadata(&path).unwrap().permissions());
    assert_eq!(mode & 0o777, 0o600);
    let (_subscription, mut events) = standby(&server);
    connected(&mut events).await;
    // A second agent must not take the place of a living one.
    let second = Server::bind(server.address(), party("a", "main"), Arc::new(Echo)).await;
    assert!(matches!(second, Err(ChannelError::Io { .. })));
    drop(server);
    next(&mut events, |e| *e == ClientEvent::Refused).await;
    assert!(!path.exists());
}

#[tokio::test]
async fn requests_are_answered_or_refused_in_words() {
    let server = server_at(&any_port()).await;
    let me = party("cli", "main");
    let ask = |what| request(server.address(), &me, what, LIMIT);
    assert_eq!(
        ask(Request::Status).await.unwrap(),
        json!({ "state": "active" })
    );
    let failover = Request::Failover {
        to: Some(NodeName::new("b").unwrap()),
        force: true,
    };
    assert_eq!(
        ask(failover).await.unwrap(),
        json!({ "to": "b", "force": true })
    );
    let unknown = ask(Request::Unknown(json!({ "request": "brew" })))
        .await
        .unwrap_err();
    assert!(unknown.to_string().contains("does not know"), "{unknown}");
    let slow = request(
        server.address(),
        &me,
        Request::Enlist,
        Duration::from_millis(50),
    )
    .await;
    assert!(matches!(slow, Err(ChannelError::Timeout { .. })));
}

#[tokio::test]
async fn an_agent_of_another_volume_is_refused() {
    let server = server_at(&any_port()).await;
    let stranger = party("x", "other");
    let error = request(server.address(), &stranger, Request::Status, LIMIT)
        .await
        .unwrap_err();
    assert!(
        error.to_string().contains("works for volume main"),
        "{error}"
    );
    let (events, mut received) = mpsc::unbounded_channel();
    let _subscription = subscribe(server.address().clone(), stranger, events, None);
    next(&mut received, |e| matches!(e, ClientEvent::Rejected(_))).await;
    assert!(server.subscribers().is_empty());
}

#[tokio::test]
async fn missing_agent_is_reported_as_such() {
    let server = server_at(&any_port()).await;
    let address = server.address().clone();
    drop(server);
    // The listening task may take a moment to end.
    for _ in 0..1_000 {
        match request(&address, &party("cli", "main"), Request::Status, LIMIT).await {
            Err(error @ ChannelError::Refused { .. }) => {
                assert!(error.to_string().contains("no agent listens at 127.0.0.1"));
                return;
            }
            _ => tokio::time::sleep(Duration::from_millis(5)).await,
        }
    }
    panic!("never refused");
}

/// A party of a cluster whose identity is in that file, which is made if it is not there.
fn protected(node: &str, file: &std::path::Path) -> Party {
    if !file.exists() {
        new_identity(file).unwrap();
    }
    Party {
        tls: Some(Tls::load(Files::Identity(file.to_owned())).unwrap()),
        ..party(node, "main")
    }
}

#[tokio::test]
async fn agents_of_one_cluster_talk_over_tls_and_a_dead_one_is_a_reset() {
    let dir = tempfile::tempdir().unwrap();
    let ours = dir.path().join("ours");
    let me = protected("a", &ours);
    let server = Server::bind(&any_port(), me, Arc::new(Echo)).await.unwrap();
    server.publish(trigger(1));
    let (events, mut received) = mpsc::unbounded_channel();
    let address = server.address().clone();
    let subscription = subscribe(address.clone(), protected("b", &ours), events, None);
    connected(&mut received).await;
    for lsn in 2..=100 {
        server.publish(trigger(lsn));
    }
    let mut triggers = subscription.triggers();
    let arrived = triggers.wait_for(|t| *t == Some(trigger(100)));
    tokio::time::timeout(LIMIT, arrived).await.unwrap().unwrap();
    let cli = protected("cli", &ours);
    let status = request(&address, &cli, Request::Status, LIMIT).await;
    assert_eq!(status.unwrap(), json!({ "state": "active" }));
    drop(server);
    assert_eq!(next(&mut received, |_| true).await, ClientEvent::Reset);
    next(&mut received, |e| *e == ClientEvent::Refused).await;
}

#[tokio::test]
async fn strangers_to_the_cluster_are_refused_with_the_reason() {
    let dir = tempfile::tempdir().unwrap();
    let (ours, theirs) = (dir.path().join("ours"), dir.path().join("theirs"));
    let me = protected("a", &ours);
    let server = Server::bind(&any_port(), me, Arc::new(Echo)).await.unwrap();
    let plain = server_at(&any_port()).await;
    for (at, who, says) in [
        (&server, protected("x", &theirs), "another cluster"),
        (&server, party("x", "main"), "without [tls]"),
        (&plain, protected("x", &ours), "without certificates"),
    ] {
        let order = Request::Failover {
            to: None,
            force: true,
        };
        let error = request(at.address(), &who, order, LIMIT).await.unwrap_err();
        let text = match std::error::Error::source(&error) {
            Some(source) => format!("{error}: {source}"),
            None => error.to_string(),
        };
        assert!(text.contains(says), "{text}");
        let (events, mut received) = mpsc::unbounded_channel();
        let _subscription = subscribe(at.address().clone(), who, events, None);
        // Evidence that the agent is dead it is not.
        let event = next(&mut received, |_| true).await;
        let refused = matches!(
            event,
            ClientEvent::Rejected(_) | ClientEvent::Unreachable(_)
        );
        assert!(refused, "{event:?}");
        assert!(at.subscribers().is_empty());
    }
}

#[tokio::test]
async fn noise_on_the_port_does_no_harm() {
    use tokio::io::AsyncWriteExt;
    let server = server_at(&any_port()).await;
    let Address::Tcp { host, port } = server.address().clone() else {
        panic!()
    };
    let mut noise = tokio::net::TcpStream::connect((host, port)).await.unwrap();
    noise.write_all(b"GET / HTTP/1.1\r\n\r\n").await.unwrap();
    let status = request(
        server.address(),
        &party("cli", "main"),
        Request::Status,
        LIMIT,
    )
    .await;
    assert!(status.is_ok());
}

#[tokio::test]
async fn a_session_is_carried_to_those_of_the_cluster() {
    let dir = tempfile::tempdir().unwrap();
    let ours = dir.path().join("ours");
    let me = protected("a", &ours);
    let over_tls = Server::bind(&any_port(), me, Arc::new(Echo)).await.unwrap();
    let socket: Address = format!("unix:{}/channel", dir.path().display())
        .parse()
        .unwrap();
    let over_socket = server_at(&socket).await;
    for (server, who) in [
        (&over_tls, protected("cli", &ours)),
        (&over_socket, party("cli", "main")),
    ] {
        let session = open_session(server.address(), &who).await.unwrap();
        let (mut client, psql) = UnixStream::pair().unwrap();
        let carried = tokio::spawn(session.serve(psql));
        // More than the buffers between hold, so both ways must flow at once.
        let said: Vec<u8> = (0..4 << 20).map(|at: u32| at as u8).collect();
        let (mut read, mut write) = client.split();
        let mut heard = vec![0; said.len()];
        let (_, sent) = tokio::join!(read.read_exact(&mut heard), write.write_all(&said));
        sent.unwrap();
        assert!(heard == said, "other bytes came back");
        drop(client);
        carried.await.unwrap().unwrap();
    }
}

/// Everybody on this machine can reach a port.
#[tokio::test]
async fn sessions_are_refused_over_unprotected_connections() {
    let server = server_at(&any_port()).await;
    let Err(error) = open_session(server.address(), &party("cli", "main")).await else {
        panic!("a session was opened");
    };
    assert!(
        error.to_string().contains("protected connections only"),
        "{error}"
    );
}
