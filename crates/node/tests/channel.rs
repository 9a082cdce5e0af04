//! The direct channel between two agents of one process, over both kinds of sockets.

#![allow(clippy::unwrap_used, reason = "a test that meets an error fails")]

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use dax::ids::{Epoch, NodeName, VolumeName};
use node::address::Address;
use node::channel::{
    ChannelError, ClientEvent, Handler, Identity, Notice, Progress, Request, Server, Subscription,
    Trigger, request, subscribe,
};
use node::records::Incarnation;
use serde_json::{Value, json};
use tokio::sync::mpsc::{self, UnboundedReceiver};
use volume::lsn::Lsn;

const LIMIT: Duration = Duration::from_secs(20);

struct Echo;

#[async_trait]
impl Handler for Echo {
    async fn request(&self, request: Request) -> Result<Value, String> {
        match request {
            Request::Status => Ok(json!({ "state": "active" })),
            Request::Failover { to, force } => Ok(json!({ "to": to, "force": force })),
            Request::Reload { journal } => Ok(json!({ "journal": journal })),
            Request::Restart | Request::Reinitialize => Ok(json!({})),
            Request::Enlist => std::future::pending().await,
            Request::Unknown(_) => Err("this agent does not know that request".into()),
        }
    }
}

fn identity(node: &str, volume: &str) -> Identity {
    Identity {
        node: NodeName::new(node).unwrap(),
        volume: VolumeName::new(volume).unwrap(),
        incarnation: Incarnation("1".into()),
    }
}

fn any_port() -> Address {
    "127.0.0.1:0".parse().unwrap()
}

async fn server_at(address: &Address) -> Server {
    Server::bind(address, identity("a", "main"), Arc::new(Echo))
        .await
        .unwrap()
}

fn standby(server: &Server) -> (Subscription, UnboundedReceiver<ClientEvent>) {
    let (events, received) = mpsc::unbounded_channel();
    (
        subscribe(server.address().clone(), identity("b", "main"), events),
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
        &identity("cli", "main"),
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
    let second = Server::bind(server.address(), identity("a", "main"), Arc::new(Echo)).await;
    assert!(matches!(second, Err(ChannelError::Io { .. })));
    drop(server);
    next(&mut events, |e| *e == ClientEvent::Refused).await;
    assert!(!path.exists());
}

#[tokio::test]
async fn requests_are_answered_or_refused_in_words() {
    let server = server_at(&any_port()).await;
    let me = identity("cli", "main");
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
    let stranger = identity("x", "other");
    let error = request(server.address(), &stranger, Request::Status, LIMIT)
        .await
        .unwrap_err();
    assert!(
        error.to_string().contains("works for volume main"),
        "{error}"
    );
    let (events, mut received) = mpsc::unbounded_channel();
    let _subscription = subscribe(server.address().clone(), stranger, events);
    next(&mut received, |e| matches!(e, ClientEvent::Rejected(_))).await;
    assert!(server.subscribers().is_empty());
}

#[tokio::test]
async fn no_agent_at_all_is_said_so() {
    let server = server_at(&any_port()).await;
    let address = server.address().clone();
    drop(server);
    // The listening task may take a moment to end.
    for _ in 0..1_000 {
        match request(&address, &identity("cli", "main"), Request::Status, LIMIT).await {
            Err(error @ ChannelError::Refused { .. }) => {
                assert!(error.to_string().contains("no agent listens at 127.0.0.1"));
                return;
            }
            _ => tokio::time::sleep(Duration::from_millis(5)).await,
        }
    }
    panic!("never refused");
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
        &identity("cli", "main"),
        Request::Status,
        LIMIT,
    )
    .await;
    assert!(status.is_ok());
}
